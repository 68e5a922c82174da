"""Reuse of training: of runs with the same rounds and other measures, one trains and the others begin at its end.

In the same way LG-FedAvg begins at the last round of a finished FedAvg. The bits are those of a run from the start.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from torso.config import Config
from torso.errors import TorsoError
from torso.measure.analyses import round_analyses
from torso.personal import FineTune, Kept, Personal
from torso.results.checkpoint import adopt
from torso.results.data_file import DATA
from torso.results.files import write_text
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.results.same_run import fingerprint

TRAIN_ANEW = frozenset({"local_only", "local_only_best_on_test"})
"""Measures that train all clients from the start. They take as long as a run, so a table has a separate run for them,
which begins at the end of the main one. `variant=none` leaves it out."""

_LARGE = 256 * 2**20  # bytes; a larger checkpoint holds models of clients and is deleted, so no run begins there
_USUAL = Config()


def training_key(config: Config) -> str:
    """A key that is equal for configs with the same rounds. Measures after the last round do not count, measures
    between rounds do."""
    method, measure = config.method, config.measure
    if measure.every or round_analyses(measure.analyses):
        return fingerprint(config.model_copy(update={"method": replace(method, name="custom")}))
    inert = type(method.personal) in (FineTune, Personal, Kept) and not method.personal.keeps
    plain = replace(method, name="custom", personal=FineTune() if inert else method.personal)
    bare = config.model_copy(
        update={"method": plain, "measure": _USUAL.measure, "personalize": _USUAL.personalize},
    )
    return fingerprint(bare)


def measuring_key(config: Config) -> str:
    """A key that is equal for configs that differ at most in a rate of fine-tuning that the method does not use."""
    tuned, personal = config.personalize, config.method.personal
    phases = personal.phases if tuned.part == "method" else (tuned.part,)
    if phases and personal.rate == "personalize" and (tuned.epochs or any(tuned.sweep)):
        return fingerprint(config)
    unused = tuned.model_copy(update={"lr": _USUAL.personalize.lr})
    return fingerprint(config.model_copy(update={"personalize": unused}))


def opening_key(config: Config) -> str:
    """The training key of the run at whose end this run can begin (for LG-FedAvg: FedAvg's); empty if there is none."""
    earlier = config.method.start.earlier()
    if earlier is None or earlier.rounds:
        return ""
    return training_key(config.but(f"method.name={earlier.method}"))


def finished_runs(root: Path) -> dict[str, Path]:
    """Training key → folder of a finished run at which others can begin, for all runs below the root."""
    found: dict[str, Path] = {}
    for path in sorted(root.glob("*/*/result.json")):
        try:
            if (path.parent / "checkpoints").is_dir() and Result.read(path.parent).ok:
                found.setdefault(training_key(Config.load(path.parent / "config.toml")), path.parent)
        except TorsoError:  # made by another version: no run can begin at it
            continue
    return found


def begin_at(donor: Path, config: Config, out: Path) -> None:
    """Make `out` a run of `config` that has done the donor's rounds. To do the rest, resume it."""
    folder = RunFolder.check(out, config, resume=False)
    folder.create()
    if (donor / DATA).exists():  # the rounds so far were trained on these data
        shutil.copyfile(donor / DATA, out / DATA)
    shutil.copyfile(donor / "history.jsonl", out / "history.jsonl")  # first: a history without a checkpoint is harmless
    if not adopt(donor / "checkpoints", out / "checkpoints", fingerprint(config)):
        write_text(out / "history.jsonl", "")
    elif (donor / "machine.json").exists():
        shutil.copyfile(donor / "machine.json", out / "machine.json")


def delete_large_checkpoints(folders: Iterable[Path], above: int | None = None) -> None:
    """Delete the checkpoints of these finished runs that have more than `above` bytes (default: 256 MiB), to save disk
    space."""
    most = _LARGE if above is None else above
    for folder in folders:
        held = folder / "checkpoints"
        if held.is_dir() and sum(path.stat().st_size for path in held.iterdir()) > most:
            shutil.rmtree(held)
