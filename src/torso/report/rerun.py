"""The command line that runs an experiment again."""

from __future__ import annotations

import json
import shlex
from typing import Any

from torso.errors import TorsoError
from torso.report.comparison import flat
from torso.report.records import Record


def command_of(record: Record) -> str:
    """`torso run --set …` with every key that differs from its default, if that is provably the same experiment.
    Otherwise a command with the folder's config.toml (plugin methods, configs of other versions, real federations)."""
    from_file = f"torso run {shlex.quote(str(record.folder / 'config.toml'))}"
    if not record.config:
        return ""
    if record.is_federation:  # the run does not know the federation's folder
        return f"torso federation run --at FEDERATION {shlex.quote(str(record.folder / 'config.toml'))}"
    try:
        return _from_keys(record) or from_file
    except (TorsoError, TypeError, ValueError):
        return from_file


def _from_keys(record: Record) -> str:
    """The command with --set for each changed key; "" if it would be another experiment."""
    from torso.config import Config
    from torso.results.same_run import fingerprint

    defaults = flat(Config.load(None, [f"method.name={record.method}"]).as_tree())
    wanted = flat(record.config)
    changed = {key: value for key, value in wanted.items() if defaults.get(key) != value}
    names = [key for key in changed if key.startswith("method.") and key.endswith(".name")]
    order = ["method.name", *names, *(key for key in changed if key not in names and key != "method.name")]
    sets = [f"{key}={_as_toml(wanted[key])}" for key in order if key in wanted]
    if fingerprint(Config.load(None, sets)) != fingerprint(Config.load(record.folder / "config.toml")):
        return ""
    return " ".join(["torso run", *(f"--set {shlex.quote(text)}" for text in sets)])


def _as_toml(value: Any) -> str:
    """A value in the syntax of --set: TOML, with bare strings."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_as_toml(v) if isinstance(v, dict) else json.dumps(v) for v in value) + "]"
    return json.dumps(value)
