"""The command that runs an experiment again, word for word."""

from __future__ import annotations

import json
import shlex
from typing import Any

from torso.errors import TorsoError
from torso.report.comparison import flat
from torso.report.records import Record


def command_of(record: Record) -> str:
    """`torso run --set …` with every key that is not as usual, where that is provably the same experiment; else the
    folder's config.toml (a plugin's method, a config from another version, a federation of real machines)."""
    from_file = f"torso run {shlex.quote(str(record.folder / 'config.toml'))}"
    if not record.config:
        return ""
    if record.is_federation:  # on the server's machine; its folder is not the run's business
        return f"torso federation run --at FEDERATION {shlex.quote(str(record.folder / 'config.toml'))}"
    try:
        return _from_keys(record) or from_file
    except (TorsoError, TypeError, ValueError):
        return from_file


def _from_keys(record: Record) -> str:
    from torso.config import Config
    from torso.results.same_run import fingerprint

    usual = flat(Config.load(None, [f"method.name={record.method}"]).as_tree())
    wanted = flat(record.config)
    changed = {key: value for key, value in wanted.items() if usual.get(key) != value}
    names = [key for key in changed if key.startswith("method.") and key.endswith(".name")]
    order = ["method.name", *names, *(key for key in changed if key not in names and key != "method.name")]
    sets = [f"{key}={_said(wanted[key])}" for key in order if key in wanted]
    if fingerprint(Config.load(None, sets)) != fingerprint(Config.load(record.folder / "config.toml")):
        return ""
    return " ".join(["torso run", *(f"--set {shlex.quote(text)}" for text in sets)])


def _said(value: Any) -> str:
    """A value as TOML: a list, a number, a word."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {json.dumps(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_said(v) if isinstance(v, dict) else json.dumps(v) for v in value) + "]"
    return json.dumps(value)
