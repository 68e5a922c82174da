"""The command line `torso`: its commands and its exit statuses. torch is not loaded until a command needs it."""

from __future__ import annotations

import sys
from functools import cache
from io import TextIOWrapper
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from torso.advise import command as advise_command
from torso.errors import TorsoError
from torso.papers import commands as papers
from torso.report import (
    audit_command,
    bench_command,
    data_command,
    export_command,
    federation_command,
    list_commands,
    personalize_command,
    predict_command,
    report_command,
    run_command,
    try_command,
)
from torso.report.help_pages import plain_help
from torso.signals import AT_ONCE, terminated_as_interrupted

app = typer.Typer(
    help="Federated learning that shares the body of a network and treats the head as personal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from torso import __version__

        print(__version__)
        raise typer.Exit


@cache
def _command() -> Any:
    """The click command that contains all commands. `app` would build it at every call, so a process that calls several
    commands keeps it."""
    return typer.main.get_command(app)


def main() -> None:
    """Entry point: 0 done, 1 the run failed, 2 the request was wrong, 130 stopped by the user."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")  # a terminal that cannot show ± must not end a run
    try:
        with terminated_as_interrupted():
            _command()(prog_name="torso")  # also under `python -m torso`
    except TorsoError as error:
        _fail(str(error), error.exit_status)
    except (OSError, UnicodeEncodeError) as error:  # the disk, or a file name that is no text: not a bug in Torso
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail(AT_ONCE, 130)
    except SystemExit as end:
        if end.code == 130:  # a KeyboardInterrupt that typer has caught
            _fail(AT_ONCE, 130)
        raise


def _fail(text: str, status: int) -> None:
    printable = text.encode(errors="backslashreplace").decode()
    Console(stderr=True).print(f"[bold red]torso:[/bold red] {escape(printable)}", soft_wrap=True, highlight=False)
    sys.exit(status)


for commands in (
    run_command,
    report_command,
    list_commands,
    audit_command,
    bench_command,
    data_command,
    export_command,
    predict_command,
    personalize_command,
    try_command,
    federation_command,
    papers,
    advise_command,
):
    commands.add_to(app)
plain_help(app)
