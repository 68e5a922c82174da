"""`torso.load`: read a finished run's folder as a result with working models (config, last checkpoint, data)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.data import Federation
from torso.data.clients import SOURCE
from torso.errors import MissingData, RequestError
from torso.results.data_file import check_data, where_data_were
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.runs.job import data_of, simulate
from torso.runs.models import TrainedModels
from torso.runs.objects import register_objects


def load(
    folder: str | Path,
    *,
    data_root: str | Path | None = None,
    device: str = "",
    clients: Any = None,
    model: Any = None,
    federation: Federation | None = None,
    accept_changed_data: bool = False,
) -> Result:
    """What `torso.run` returned when it ended, from the run's folder.

    The clients' data are read and partitioned again as config.toml says. `data_root` replaces its data.root if the data
    have moved, `device` replaces its run.device, and `federation` is used in place of all that if the data are loaded
    already. `clients` and `model`: the objects that were handed to `torso.run`, if any. Personal models are made from
    the clients' data, so data that differ from those of the run are refused, unless `accept_changed_data`."""
    folder = Path(folder)
    if not (folder / "config.toml").is_file():
        below = sorted(str(path.parent) for path in folder.glob("*/config.toml"))
        some = f"{', '.join(below[:5])}{' …' if len(below) > 5 else ''}"
        which = f"one of {some}" if below else "that of a finished run"
        raise RequestError(f"{str(folder)!r} is not the folder of one run (no config.toml). Give {which}.")
    config = Config.load(folder / "config.toml")
    if not (folder / "result.json").is_file():
        raise RequestError(
            f"the run in {str(folder)!r} has not finished (no result.json). "
            f"Finish it with: torso run --out {folder} --resume"
        )
    result = Result.read(folder)
    if not result.ok:
        raise RequestError(f"the run in {str(folder)!r} {result.status}. Only a run that ended well has models.")
    handed = register_objects(_elsewhere(config, data_root, device), clients, model)
    _check_same(config, handed.config)
    here = handed.config
    if federation is None:
        federation = _data(folder, here, moved=data_root is not None)
    check_data(folder, federation, accept=accept_changed_data)
    job = simulate(here, federation, begins=False)
    found = RunFolder(folder, config).newest(job.model)
    if found is None or found.state.round != result.rounds:
        reasons = "; ".join(found.skipped) if found else "there is none"
        raise RequestError(
            f"{str(folder / 'checkpoints')!r} holds no whole checkpoint of the last round, {result.rounds}: {reasons}. "
            "The models of a run come from it; run it again."
        )
    return replace(result, models=TrainedModels(job, found.state))


def _data(folder: Path, config: Config, moved: bool) -> Federation:
    """Read the run's data. `moved`: from the config's data.root, else from the folder in which they were."""
    try:
        return data_of(config if moved else where_data_were(folder, config))
    except MissingData as missing:
        if moved:
            raise
        hint = "If the data have moved, say where they are: --data-root (data_root=… in Python)"
        raise MissingData(f"{str(missing).rstrip('.')}. {hint}") from None


def _elsewhere(config: Config, data_root: str | Path | None, device: str) -> Config:
    """The config with another data.root or run.device, if one is given."""
    tree = config.as_tree()
    if data_root is not None:
        tree["data"]["root"] = str(data_root)
    if device:
        tree["run"]["device"] = device
    return Config(**tree)


def _check_same(config: Config, handed: Config) -> None:
    """Refuse other clients or another model than those that were handed to the run."""
    if config.data.source != SOURCE:
        return
    root = handed.data.root if handed.data.source == SOURCE else config.data.root
    compared = (("clients", config.data.root, root), ("model", config.model.body, handed.model.body))
    for key, was, now in compared:
        if was != now:
            raise RequestError(f"{key} are not those of the run: it has {was!r}, and these are {now!r}.")
