"""Usage errors, such as an unknown option, as one line like every other error."""

from __future__ import annotations

import re
from typing import Any

import typer

WrongUsage: Any = typer.BadParameter.__bases__[0]  # UsageError, of Click or of Typer's own copy of it
_TWICE = re.compile(r"( Did you mean [^?]*\?)\1")  # Typer 0.20 and Click 8.5 each make a suggestion


def in_one_line(error: Any) -> str:
    """The error in one line, with the help command to read. If the unknown option is the name of a config key, the line
    says how to set that key."""
    said, context = _TWICE.sub(r"\1", " ".join(error.format_message().split())), error.ctx
    if context is None:
        return said
    written = str(getattr(error, "option_name", None) or "").lstrip("-").replace("-", "_")
    if written and any(param.name == "sets" for param in context.command.params):
        keys = [key for key in _keys() if key.rpartition(".")[2] == written]
        if keys:
            said = f"no such option '--{written}'. It is a key: {' or '.join(f'--set {key}=VALUE' for key in keys)}"
    end = "" if said.endswith((".", "?", "?)")) else "."
    return f"{said[:1].lower()}{said[1:]}{end} See: {context.command_path} -h"


def _keys() -> list[str]:
    """The keys of a config, `section.key`."""
    from torso.config import Config

    sections = ((name, field.annotation) for name, field in Config.model_fields.items())
    return [f"{name}.{key}" for name, kind in sections for key in getattr(kind, "model_fields", {})]
