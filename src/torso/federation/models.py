"""Reads and exports the models of federation runs: each client's own on its machine, the generic one on the server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.errors import RequestError
from torso.federation.run import AGREED, FederationFile
from torso.nets import Network
from torso.nets.calibrate import goes_by_batch
from torso.nets.card import Card
from torso.reading import parse_json
from torso.results.calibration import Calibration, calibrated_path
from torso.results.export import PAGE, PLAIN, Exported, ExportOptions, check_empty, write_models
from torso.results.folder import RunFolder
from torso.results.model_file import SUFFIX, load_model
from torso.results.result import Result
from torso.runs.job import prepare
from torso.runs.models import network_of

_UNCALIBRATED = (
    "generic: BatchNorm has no running statistics, and the server has no samples to calibrate it on. "
    "Where there are samples: torso.calibrated(torso.load_model(FILE), samples)"
)


@dataclass(frozen=True)
class ClientModel:
    """The file of a client's own model of one run."""

    path: Path
    about: dict[str, Any]  # its description, from the JSON file next to it


def models_of(home: Path) -> list[ClientModel]:
    """The models of one client, the newest last."""
    found = []
    for path in sorted((home / "models").glob(f"*{SUFFIX}")):
        try:
            about = parse_json(path.with_suffix(".json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue  # the client ended between the model and its description: it will write both again
        found.append(ClientModel(path, about))
    return sorted(found, key=lambda model: str(model.about.get("finished", "")))


def is_home(path: Path) -> bool:
    """Whether a folder is that of a client, with its states and models."""
    begun = (path / "runs").is_dir() and (path.parent / "federation.toml").is_file()  # no run has finished yet
    return ((path / "models").is_dir() or begun) and not (path / "config.toml").exists()


def is_served(path: Path) -> bool:
    """Whether a folder is the server's run folder of a federation run."""
    return (path / AGREED).is_file()


def export_own(home: Path, out: Path, run: str = "", form: ExportOptions = PLAIN) -> Exported:
    """Write a client's own model and a page about its use into a folder that is empty or does not exist yet.

    `run`: the beginning of a run's id; the newest model of these runs is taken."""
    check_empty(out)
    candidates = [model for model in models_of(home) if model.path.stem.startswith(run)]
    if not candidates:
        raise RequestError(f"{str(home)!r} holds no model{f' of run {run}' if run else ''}: no run has ended here yet.")
    chosen = candidates[-1]
    name = str(chosen.about.get("client", "client"))
    calibrated = calibrated_path(chosen.path)
    net = load_model(calibrated if form.norm == "calibrated" and calibrated.is_file() else chosen.path)
    card = net.card
    assert card is not None
    files = write_models(out, [(name, net)], form, more=_classes(card, chosen.about))
    calibrations = []
    if card.calibrated:
        measured = chosen.about.get("accuracy", {})
        before, after = measured.get("after"), measured.get("calibrated")  # "after": after personalisation
        calibrations.append(Calibration(name, card.calibrated, measured.get("batch") or 0, before, after))
    return Exported(files, out / PAGE, calibrations)


def generic_of_run(folder: Path) -> tuple[Network, tuple[str, ...]]:
    """The server's model of a finished run, and the names of its classes.

    Refused if clients keep parts of the model: then the server has no complete one."""
    federation_file, config = FederationFile.read(folder), Config.load(folder / "config.toml")
    if not (folder / "result.json").is_file() or not Result.read(folder).ok:
        raise RequestError(f"the run in {str(folder)!r} has not ended well: only such a run has models.")
    job = prepare(config, federation_file.agreement.roster, begins=False)
    if job.keeps_parts:
        raise RequestError(
            f"{config.method.name} keeps parts of the model at its clients: the server has no whole one. On a client's "
            "machine: torso export FOLDER/NAME --out DIR"
        )
    found = RunFolder(folder, config).newest(job.model)
    if found is None:
        raise RequestError(f"{str(folder / 'checkpoints')!r} holds no checkpoint")
    return network_of(job, found.server.reported.model, "generic", None), federation_file.agreement.classes


def export_generic(folder: Path, out: Path, form: ExportOptions = PLAIN) -> Exported:
    """Write the server's model and a page about its use. The server has no samples to calibrate BatchNorm on."""
    check_empty(out)
    net, _ = generic_of_run(folder)
    batch = Config.load(folder / "config.toml").measure.batch_size
    files = write_models(out, [("generic", net)], form, batch)
    return Exported(files, out / PAGE, note=_UNCALIBRATED if goes_by_batch(net) else "")


def _classes(card: Card, about: Mapping[str, Any]) -> str:
    """A sentence with the names of the classes, if the model is from an older version whose card has none."""
    names = () if card.class_names else about.get("classes", ())
    return f"The classes are, in the order of the logits: {', '.join(names)}." if names else ""
