"""`torso try`: parse, call, print."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torso.plugins import Plugins, load_plugins
from torso.report.options import ChangedData, DataRoot
from torso.report.predict_command import Client, Model, model_at

if TYPE_CHECKING:
    from torso.report.try_page import TitledModel


def add_to(app: typer.Typer) -> None:
    """Give the command line its command."""
    app.command("try")(try_)


def try_(
    model: Model,
    generic: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE|RUN",
            help="Also ask this generic model. With a run and --client, its generic model is asked anyway.",
        ),
    ] = None,
    client: Client = None,
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes any free one.")] = 0,
    data_root: DataRoot = None,
    accept_changed_data: ChangedData = False,
    plugin: Plugins = [],  # noqa: B006  typer copies it
) -> None:
    """Try a model on images or texts in the browser, on a local page. Ctrl-C ends it."""
    load_plugins(plugin)
    from torso.data.inputs import Tokens
    from torso.report.try_page import serve

    models = chosen(model, generic, client, data_root, accept_changed_data)
    with serve(models, port) as server:
        action = "write texts" if isinstance(models[0].kind, Tokens) else "drop images"
        print(f"{action} on http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit from None


def chosen(
    model: Path, generic: Path | None, client: str | None, data_root: Path | None, accept_changed_data: bool = False
) -> list[TitledModel]:
    """The models of the page with their titles; a separate generic model comes first."""
    from torso.nets.network import card_of
    from torso.report.try_page import TitledModel

    if generic is None and client is not None and model.is_dir():
        generic = model
    mine = model_at(model, client, data_root, accept_changed_data)
    mine_is_generic = card_of(mine).kind == "generic"
    if generic is None:
        return [TitledModel("Generic" if mine_is_generic else "Personal", mine)]
    other = TitledModel("Generic", model_at(generic, None, data_root, accept_changed_data))
    return [other, TitledModel("Second" if mine_is_generic else "Personal", mine)]
