"""`torso data`: parse, call, print."""

from __future__ import annotations

import typer

from torso.report.look_command import look

data_app = typer.Typer(help="Download data sets, and look at your own data.", no_args_is_help=True)
data_app.command("look")(look)


def add_to(app: typer.Typer) -> None:
    """Give the command line its commands."""
    app.add_typer(data_app, name="data")
