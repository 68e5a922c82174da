"""The lists of the reference that are made from the code when the site is built."""

from __future__ import annotations

import re

import click
import typer.main

import torso
from torso.cli import app

ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


def public_names() -> str:
    """A mkdocstrings entry for each public name of the package."""
    return "\n\n".join(f"::: torso.{name}" for name in sorted(torso.__all__, key=str.lower))


def commands() -> str:
    """Every command with its help text, as the terminal prints it."""
    root = typer.main.get_command(app)
    return "\n\n".join(_entries(root, "torso"))


def _entries(command: click.Command, path: str) -> list[str]:
    with click.Context(command, info_name=path, terminal_width=80) as context:
        found = [_entry(command, context, path)]
        children = getattr(command, "commands", {})
    for name, child in sorted(children.items()):
        if not child.hidden:
            found += _entries(child, f"{path} {name}")
    return found


def _entry(command: click.Command, context: click.Context, path: str) -> str:
    formatter = context.make_formatter()
    click.Command.format_help(command, context, formatter)
    return f"## {path}\n\n```text\n{ESCAPES.sub('', formatter.getvalue()).rstrip()}\n```"
