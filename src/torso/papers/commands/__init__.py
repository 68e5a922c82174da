"""`torso papers`, `torso reproduce`, `torso leaderboard` and `torso doctor`: parse, call, print."""

from __future__ import annotations

import typer

from torso.papers.commands import doctor, leaderboard, tables
from torso.papers.commands.options import Watching


def add_to(app: typer.Typer, watching: Watching) -> None:
    """Give the command line its commands; `watching` shows progress and takes Ctrl-C."""
    tables.add_to(app, watching)
    leaderboard.add_to(app, watching)
    doctor.add_to(app)
