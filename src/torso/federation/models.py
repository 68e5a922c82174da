"""The models that runs over a federation leave: each client's own on its machine, the generic one on the server."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.errors import RequestError
from torso.federation.run import AGREED, Charter
from torso.nets import Network
from torso.reading import parse_json
from torso.results.checkpoint import write_text
from torso.results.export import PAGE, check_empty, page
from torso.results.folder import RunFolder
from torso.results.model_file import SUFFIX, load_model, save_model
from torso.results.result import Result
from torso.runs.job import prepare
from torso.runs.models import network_of


@dataclass(frozen=True)
class ClientModel:
    """A client's own model of one run."""

    path: Path
    about: dict[str, Any]


def models_of(home: Path) -> list[ClientModel]:
    """Those of one client, the newest last."""
    found = []
    for path in sorted((home / "models").glob(f"*{SUFFIX}")):
        try:
            about = parse_json(path.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # the model comes first: a client that died between the two makes it again
        found.append(ClientModel(path, about))
    return sorted(found, key=lambda model: str(model.about.get("finished", "")))


def is_home(path: Path) -> bool:
    """Whether a folder is where a client keeps what is its own."""
    begun = (path / "runs").is_dir() and (path.parent / "federation.toml").is_file()  # no run has ended yet
    return ((path / "models").is_dir() or begun) and not (path / "config.toml").exists()


def is_served(path: Path) -> bool:
    """Whether a folder is that of a run over a federation, on the server."""
    return (path / AGREED).is_file()


def export_own(home: Path, out: Path, run: str = "") -> list[Path]:
    """A client's own model, and a page that says how to use it, in a folder that is empty or not there yet."""
    check_empty(out)
    those = [model for model in models_of(home) if model.path.stem.startswith(run)]
    if not those:
        raise RequestError(f"{str(home)!r} holds no model{f' of run {run}' if run else ''}: no run has ended here yet.")
    chosen = those[-1]
    card = load_model(chosen.path).card  # nothing is handed out that cannot be read again
    assert card is not None
    out.mkdir(parents=True, exist_ok=True)
    written = out / f"{chosen.about.get('client', 'client')}{SUFFIX}"
    shutil.copyfile(chosen.path, written)
    write_text(out / PAGE, page(card, None, [written.name], _classes(chosen.about.get("classes", ()))))
    return [written]


def generic_of_run(folder: Path) -> tuple[Network, tuple[str, ...]]:
    """The server's model of a run that has ended, and the names of its classes. What clients keep is not in it."""
    charter, config = Charter.read(folder), Config.load(folder / "config.toml")
    if not (folder / "result.json").is_file() or not Result.read(folder).ok:
        raise RequestError(f"the run in {str(folder)!r} has not ended well: only such a run has models.")
    job = prepare(config, charter.agreement.roster, begins=False)
    if job.keeps_parts:
        raise RequestError(
            f"{config.method.name} keeps parts of the model at its clients: the server has no whole one. On a client's "
            "machine: torso export FOLDER/NAME --out DIR"
        )
    found = RunFolder(folder, config).newest(job.model)
    if found is None:
        raise RequestError(f"{str(folder / 'checkpoints')!r} holds no checkpoint")
    return network_of(job, found.server.reported.model, "generic", None), charter.agreement.classes


def export_generic(folder: Path, out: Path) -> list[Path]:
    """The server's model, and a page that says how to use it."""
    check_empty(out)
    net, classes = generic_of_run(folder)
    written, card = save_model(net, out / f"generic{SUFFIX}"), net.card
    assert card is not None
    write_text(out / PAGE, page(card, Result.read(folder), [written.name], _classes(classes)))
    return [written]


def _classes(names: Sequence[str]) -> str:
    return f"The classes are, in the order of the logits: {', '.join(names)}." if names else ""
