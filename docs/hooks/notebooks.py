"""Notebooks as percent-format scripts: `# %% [markdown]` begins a text, `# %%` begins code.

Jupyter (with jupytext), VS Code and PyCharm open them as notebooks. The site shows them as pages, and
tests/docs/test_notebooks.py runs them.
"""

from __future__ import annotations

import ast
import contextlib
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MARK = "# %%"


@dataclass(frozen=True)
class Cell:
    """A cell: Markdown, or Python code."""

    text: str
    markdown: bool


def cells(script: str) -> list[Cell]:
    """The cells of a percent-format script. What stands before the first mark is left out."""
    found: list[Cell] = []
    for piece in f"\n{script}".split(f"\n{MARK}")[1:]:
        first, _, rest = piece.partition("\n")
        markdown = "[markdown]" in first
        lines = rest.strip("\n").splitlines()
        text = "\n".join(line.removeprefix("#").removeprefix(" ") if markdown else line for line in lines)
        found.append(Cell(text, markdown))
    return found


def run(notebook: list[Cell]) -> list[str]:
    """What each cell prints when all are run in order. The value of a last expression is shown, as in a notebook."""
    names: dict[str, Any] = {"__name__": "__main__"}
    return ["" if cell.markdown else _output(cell.text, names) for cell in notebook]


def _output(code: str, names: dict[str, Any]) -> str:
    body = ast.parse(code).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, type_ignores=[]), "notebook", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "notebook", "eval"), names)
            if value is not None:
                print(repr(value))
    return printed.getvalue().rstrip()


def page(notebook: list[Cell], outputs: list[str], name: str) -> str:
    """A notebook as Markdown, with its outputs where there are some."""
    pieces: list[str] = []
    for cell, output in zip(notebook, outputs, strict=True):
        if cell.markdown:
            pieces.append(cell.text)
            continue
        pieces.append(f"```python\n{cell.text.strip()}\n```")
        if output:
            pieces.append(f"```text\n{output}\n```")
    pieces.append(f"This page is the notebook `docs/notebooks/{name}`. Run it: `python docs/notebooks/{name}`.")
    return "\n\n".join(pieces) + "\n"


def read(path: Path) -> list[Cell]:
    """The cells of a notebook file."""
    return cells(path.read_text(encoding="utf-8"))
