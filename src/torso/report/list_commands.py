"""`torso methods`, `models`, `datasets`, `partitions` and `attacks`: lists of what is registered."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from torso.plugins import Plugins, load_plugins
from torso.report.options import Json
from torso.report.starting import starting

_methods = typer.Typer(help="List the methods, or show the rules of one.", no_args_is_help=False)


def add_to(app: typer.Typer) -> None:
    """Give the command line its commands."""
    app.add_typer(_methods, name="methods")
    app.command()(models)
    app.command()(datasets)
    app.command()(partitions)
    app.command()(attacks)


@_methods.callback(invoke_without_command=True)
def methods(
    context: typer.Context,
    plugin: Plugins = [],  # noqa: B006
    long: Annotated[
        bool, typer.Option("--long", help="Also print what differs from FedAvg, what travels and what clients keep.")
    ] = False,
    as_json: Json = False,
) -> None:
    """List the methods, one line each, grouped by paper; or show the rules of one."""
    with starting():
        load_plugins(plugin)
        from torso.report.methods_list import print_methods
    if context.invoked_subcommand is not None:
        return
    if as_json:
        from torso.report.lists import list_methods

        print(json.dumps(list_methods()))
        return
    print_methods(long)


@_methods.command("show")
def methods_show(name: str, plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """Show the rules of one method in words, axis by axis."""
    load_plugins(plugin)
    from rich.table import Table

    from torso.report.anatomy import explain

    lines = explain(name)
    if as_json:
        print(json.dumps(dict(lines)))
        return
    view = Table.grid(padding=(0, 2))
    for key, text in lines:
        view.add_row(f"[bold]{key}[/bold]", escape(text))
    Console().print(view)


def models(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the networks."""
    load_plugins(plugin)
    from torso.report.lists import list_models
    from torso.report.printing import print_list

    print_list(list_models(), as_json)


def datasets(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the data sources."""
    load_plugins(plugin)
    from torso.data import sources
    from torso.report.lists import list_registry
    from torso.report.printing import print_list

    print_list(list_registry(sources), as_json)


def partitions(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the ways to split data among clients."""
    load_plugins(plugin)
    from torso.data import partitions as known
    from torso.report.lists import list_registry
    from torso.report.printing import print_list

    print_list(list_registry(known), as_json)


def attacks(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the attacks that malicious clients can make."""
    load_plugins(plugin)
    from torso.report.lists import list_attacks
    from torso.report.printing import print_list

    print_list(list_attacks(), as_json)
