"""Modules of the user's that register things: imported before any name is looked up."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from torso.errors import RequestError, TorsoError

Plugins = Annotated[
    list[str], typer.Option("--plugin", metavar="MODULE", help="Import a module that registers things.")
]


def load_plugins(names: Sequence[str]) -> None:
    if names and "" not in sys.path:
        sys.path.append("")  # a plugin may lie in the current folder
    for name in names:
        try:
            importlib.import_module(name)
        except TorsoError:
            raise
        except Exception as error:  # whatever the user's module raises, say it in one line
            what = f"{type(error).__name__}: {error}"
            raise RequestError(f"--plugin {name!r}: {what}. Give a module (not a file) that can be imported.") from None
