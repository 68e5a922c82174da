"""`torso predict`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torso.plugins import Plugins, load_plugins
from torso.report.console import note
from torso.report.options import ChangedData, DataRoot, Json

if TYPE_CHECKING:
    from torso.nets import Network
    from torso.nets.card import Card
    from torso.runs.predict import Predictions

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="An exported .safetensors file, or the folder of a finished run.")
]
Client = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|NUMBER", help="If MODEL is a run: the client whose model answers; default: the generic model."
    ),
]
Label = Annotated[str, typer.Option(metavar="COLUMN", help="Column of a table that holds the class.")]
Text = Annotated[
    str, typer.Option(metavar="COLUMN,…", help="For a model of texts: column of a table that holds the text.")
]


def add_to(app: typer.Typer) -> None:
    """Give the command line its command."""
    app.command()(predict)


def predict(
    model: Model,
    data: Annotated[
        Path,
        typer.Option(metavar="PATH", help="An image, a folder of images, or a .csv, .jsonl, .npz or .txt file."),
    ],
    client: Client = None,
    top: Annotated[int, typer.Option(min=1, help="How many classes to print for each sample.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="FILE.csv", help="Write the answers to this table.")] = None,
    label: Label = "label",
    text: Text = "text",
    data_root: DataRoot = None,
    accept_changed_data: ChangedData = False,
    plugin: Plugins = [],  # noqa: B006  typer copies it
    as_json: Json = False,
) -> None:
    """Classify new samples with a trained model: print classes and their probabilities."""
    load_plugins(plugin)
    from torso.nets.network import card_of
    from torso.runs.predict import answers
    from torso.runs.user_data import read_user_data

    net = model_at(model, client, data_root, accept_changed_data)
    card = card_of(net)
    found = answers(net, read_user_data(data, card, label, text))
    if out is not None:
        found.write(out, top)
    if as_json:
        print(json.dumps({"model": described(card), **found.as_json(top)}, ensure_ascii=False))
        return
    for said in (described(card), *found.remarks):
        note(said)
    if out is None:
        print(lines(found, top))
    else:
        print(f"{out}: {len(found)} answers")
    if found.right is not None:
        share = 100 * found.right / len(found)
        print(f"{found.right} of {len(found)} answers match the labels of the data ({share:.1f} %)")


def model_at(
    path: Path, client: str | None = None, data_root: Path | None = None, accept_changed_data: bool = False
) -> Network:
    """The network of a model file, of a run folder, or of a real federation (a client's folder, or a run on the
    server)."""
    from torso.errors import RequestError
    from torso.federation.models import generic_of_run, is_home, is_served, models_of
    from torso.results.calibration import calibrated_path
    from torso.runs.predict import network_of

    if path.is_dir() and (is_home(path) or is_served(path)):
        if client is not None:
            raise RequestError(f"{str(path)!r} belongs to a real federation and holds one model. Leave --client out.")
        if is_served(path):
            return generic_of_run(path)[0]
        own = models_of(path)
        if not own:
            raise RequestError(f"{str(path)!r} holds no model: no run has ended here yet.")
        newest = own[-1].path
        calibrated = calibrated_path(newest)
        path = calibrated if calibrated.is_file() else newest
    return network_of(path, client, data_root, accept_changed_data=accept_changed_data)


def described(card: Card) -> str:
    """A model in a few words, such as "the generic model: fedavg on digits, 10 classes"."""
    client = "a client" if card.client is None else f"client {card.client}"
    kinds = {
        "generic": "the generic model",
        "newcomer": "the model of a client that came later",
        "personal": f"the personal model of {client}",
        "held": f"the model that {client} holds",
    }
    return f"{kinds[card.kind]}: {card.method} on {card.dataset}, {card.classes} classes"


def lines(found: Predictions, top: int) -> str:
    """The answers as text: a line for each sample, in columns."""
    rows = [
        [name, *(f"{c} {100 * p:.1f} %" for c, p in best)]
        for name, best in zip(found.names, found.top(top), strict=True)
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
