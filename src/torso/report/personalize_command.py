"""`torso personalize`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torso.plugins import Plugins, load_plugins
from torso.report.console import note
from torso.report.options import ChangedData, DataRoot, Json
from torso.report.predict_command import Label, Text, model_at

if TYPE_CHECKING:
    from torso.runs.personalize import Personalized


def add_to(app: typer.Typer) -> None:
    """Give the command line its command."""
    app.command()(personalize)


def personalize(
    model: Annotated[
        Path,
        typer.Argument(metavar="RUN|MODEL", help="The folder of a finished run, or an exported .safetensors file."),
    ],
    data: Annotated[
        Path, typer.Option(metavar="PATH", help="The client's data: a folder CLASS/*.png, or a .csv or .npz file.")
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Write the model and a page on its use into this empty or new folder."),
    ] = None,
    how: Annotated[
        str, typer.Option(help="Way to make the model: auto, hyper, class-means, calibrate or tune.")
    ] = "auto",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs of fine-tuning; default: personalize.epochs of the run.")
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of each class that is held out to measure the model.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Seed that chooses the held-out samples.")] = 0,
    formats: Annotated[list[str], typer.Option("--format", help="safetensors (the default), onnx, torch-export.")] = [],  # noqa: B006  typer copies it
    keep: Annotated[bool, typer.Option("--keep", help="Write the personal model even if it is worse.")] = False,
    label: Label = "label",
    text: Text = "text",
    data_root: DataRoot = None,
    accept_changed_data: ChangedData = False,
    plugin: Plugins = [],  # noqa: B006  typer copies it
    as_json: Json = False,
) -> None:
    """Make a model for a client that was not in the run, from its own labelled data. Measure it before and after."""
    load_plugins(plugin)
    from torso.federation.models import is_home, is_served
    from torso.results.export import ExportOptions, check_empty
    from torso.runs.personalize import personalize as make
    from torso.runs.personalize import write

    form = ExportOptions.asked(formats, "inside", "calibrated", None)
    if out is not None:
        check_empty(out)  # fails early, before data are read
    of_federation = model.is_dir() and (is_home(model) or is_served(model))
    asked: Any = how
    found = make(
        model_at(model) if of_federation else model,
        data,
        how=asked,
        epochs=epochs,
        held_out=held_out,
        seed=seed,
        keep=keep,
        label=label,
        text=text,
        data_root=data_root,
        accept_changed_data=accept_changed_data,
    )
    written = write(found, out, form) if out is not None else []
    if as_json:
        print(json.dumps({**found.as_json(), "models": [str(path) for path in written]}, ensure_ascii=False))
        return
    for remark in found.remarks:
        note(remark)
    print("\n".join(said(found)))
    if written:
        print(f"{written[0]}: written. Use: {out}/README.md")


def said(found: Personalized) -> list[str]:
    """The result in lines."""
    lines = [f"{found.how}: a model from {found.samples} samples"]
    if not found.held_out:
        return [*lines, "no sample was held out, so it was not measured whether the model is better than before"]
    lines.append(
        f"accuracy on {found.held_out} samples held out: {found.before:.1f} % before, {found.after:.1f} % after"
    )
    if found.worse:
        result = "kept because of --keep" if found.is_personal else "the result is the model as it was before"
        lines.append(f"personalising made it worse: {result}")
    return lines
