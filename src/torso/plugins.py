"""Plugins: the user's own modules (`--plugin`), imported before any registered name is looked up."""

from __future__ import annotations

import importlib
import sys
import sysconfig
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from torso.errors import RequestError, TorsoError

Plugins = Annotated[
    list[str],
    typer.Option(
        "--plugin", metavar="MODULE", help="Import your own code first: a module (mine) or a file (path/mine.py)."
    ),
]


def load_plugins(names: Sequence[str]) -> None:
    """Import every plugin. Any exception in one becomes a RequestError that names its file and line."""
    if names and "" not in sys.path:
        sys.path.append("")  # a plugin may lie in the current folder
    for name in names:
        try:
            _import(name)
        except TorsoError:
            raise
        except SystemExit as end:
            raise RequestError(
                f"--plugin {name!r} calls sys.exit{_place(end)}. A plugin only registers things; put code that runs "
                'under: if __name__ == "__main__":'
            ) from None
        except Exception as error:  # the user's module may raise anything; report it in one line
            raise RequestError(_what_failed(name, error)) from None


def _import(name: str) -> ModuleType:
    path = Path(name)
    if path.suffix != ".py":
        return importlib.import_module(name)
    if not path.is_file():
        raise RequestError(f"--plugin {name!r}: there is no such file.")
    if not path.stem.isidentifier():
        raise RequestError(f"--plugin {name!r}: {path.stem!r} cannot be a module. Rename the file, as in mine.py")
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.append(folder)  # processes that this one starts must find the module, too
    module = importlib.import_module(path.stem)
    found = getattr(module, "__file__", None)
    if found is None or Path(found).resolve() != path.resolve():
        raise RequestError(
            f"--plugin {name!r}: the name {path.stem!r} belongs to another module ({found or 'built in'}). "
            "Rename your file."
        )
    return module


def _what_failed(name: str, error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name and error.name == name:
        return (
            f"--plugin {name!r}: no module of this name can be imported. Give the path of its file, as in "
            f"path/{name}.py, or run the command in the folder of the file."
        )
    if isinstance(error, SyntaxError):  # str(error) would repeat the file and the line
        raised = f"{type(error).__name__}: {error.msg}"
        where = f" ({error.filename}, line {error.lineno})"
    else:
        raised = f"{type(error).__name__}: {' '.join(str(error).split())}".removesuffix(": ")
        where = _place(error)
    return f"--plugin {name!r} cannot be imported: {raised}{where}"


def _place(error: BaseException) -> str:
    """The file and line of the error in brackets: the innermost line outside libraries and Torso, if there is one."""
    paths = sysconfig.get_paths()
    libraries = (paths["stdlib"], paths["purelib"], paths["platlib"], str(Path(__file__).parent))
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in frames if not frame.filename.startswith(libraries)]
    candidates = own or frames
    if not candidates:
        return ""
    innermost = candidates[-1]
    return f" ({innermost.filename}, line {innermost.lineno})"
