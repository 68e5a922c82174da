"""Runs that train the same and measure differently train once: the later ones begin at the end of the first.

LG-FedAvg begins at FedAvg's last round in the same way: the same to the bit as if it had trained FedAvg itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torso.config import Config
from torso.errors import TorsoError
from torso.measure.analyses import analyses
from torso.personal import FineTune, Kept, Personal
from torso.results.checkpoint import adopt, write_text
from torso.results.folder import RunFolder, fingerprint
from torso.results.result import Result

_LARGE = 256 * 2**20  # bytes of a checkpoint: it holds models of clients, which nobody begins at
_USUAL = Config()


def training_key(config: Config) -> str:
    """Equal for configs whose rounds are the same, whatever is measured after them; what is between them counts."""
    method, measure = config.method, config.measure
    if measure.every or any(analyses[name].when == "round" for name in measure.analyses):
        return fingerprint(config.model_copy(update={"method": replace(method, name="custom")}))
    inert = type(method.personal) in (FineTune, Personal, Kept) and not method.personal.keeps
    plain = replace(method, name="custom", personal=FineTune() if inert else method.personal)
    bare = config.model_copy(
        update={"method": plain, "measure": _USUAL.measure, "personalize": _USUAL.personalize},
    )
    return fingerprint(bare)


def measuring_key(config: Config) -> str:
    """Equal for configs that differ at most in a rate of fine-tuning that nobody uses."""
    tuned, personal = config.personalize, config.method.personal
    phases = personal.phases if tuned.part == "method" else (tuned.part,)
    if phases and personal.rate == "personalize" and (tuned.epochs or any(tuned.sweep)):
        return fingerprint(config)
    unused = tuned.model_copy(update={"lr": _USUAL.personalize.lr})
    return fingerprint(config.model_copy(update={"personalize": unused}))


def opening_key(config: Config) -> str:
    """The training key of the run that this one's rounds begin with (LG-FedAvg: FedAvg's), or nothing."""
    earlier = config.method.start.earlier()
    if earlier is None or earlier.rounds:
        return ""
    return training_key(config.but(f"method.name={earlier.method}"))


def finished_runs(root: Path) -> dict[str, Path]:
    """By training key, the finished runs of all tables below a folder that others can begin at."""
    found: dict[str, Path] = {}
    for path in sorted(root.glob("*/*/result.json")):
        try:
            if (path.parent / "checkpoints").is_dir() and Result.read(path.parent).ok:
                found.setdefault(training_key(Config.load(path.parent / "config.toml")), path.parent)
        except TorsoError:  # not a run of this version: nobody begins at it
            continue
    return found


def begin_at(donor: Path, config: Config, out: Path) -> None:
    """Make `out` a run of `config` that has done what the donor has; resuming it does the rest."""
    folder = RunFolder.check(out, config, resume=False)
    folder.create()
    shutil.copyfile(donor / "history.jsonl", out / "history.jsonl")  # first: without a checkpoint it counts for nothing
    if not adopt(donor / "checkpoints", out / "checkpoints", fingerprint(config)):
        write_text(out / "history.jsonl", "")
    elif (donor / "machine.json").exists():
        shutil.copyfile(donor / "machine.json", out / "machine.json")


def thin(folders: Iterable[Path], above: int | None = None) -> None:
    """Drop checkpoints of finished runs above so many bytes (usually large ones): a table of them would fill a disk."""
    most = _LARGE if above is None else above
    for folder in folders:
        held = folder / "checkpoints"
        if held.is_dir() and sum(path.stat().st_size for path in held.iterdir()) > most:
            shutil.rmtree(held)
