"""The commands `torso papers`, `torso reproduce`, `torso leaderboard` and `torso doctor`: parse, call, print."""

from __future__ import annotations

import typer

from torso.papers.commands import doctor, leaderboard, tables


def add_to(app: typer.Typer) -> None:
    """Add these commands to the command line."""
    tables.add_to(app)
    leaderboard.add_to(app)
    doctor.add_to(app)
