"""`torso data look`: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torso.report.options import Json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from torso.config import DataConfig
    from torso.data.inventory import SurveyData
    from torso.data.survey import Survey

Counts = Sequence[int]
_BAR = 28  # characters of the longest bar
_MOST = 20  # rows of a table; --json has all of them


def look(
    path: Annotated[Path, typer.Argument(help="A folder of images, or a .csv, .jsonl, .parquet or .npz file.")],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write config.toml, look.json and pictures into this folder.")
    ] = None,
    label: Annotated[str, typer.Option(help="Column of a table that holds the class; default: label.")] = "",
    client: Annotated[str, typer.Option(help="Column of a table that names the client of a row.")] = "",
    sets: Annotated[
        list[str],
        typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the config, such as data.size=64."),
    ] = [],  # noqa: B006  typer copies it
    as_json: Json = False,
) -> None:
    """Look at data before training: clients, classes, unreadable files, copies. Make a config that fits them."""
    from rich.console import Console

    from torso.config import Config
    from torso.data.survey import survey
    from torso.report.fitting import as_toml, fitting
    from torso.results.export import check_empty

    if out is not None:
        check_empty(out)
    named = [f"data.csv.{key}={json.dumps(name)}" for key, name in (("label", label), ("client", client)) if name]
    options = Config.load(None, [*sets, *named]).data
    with Console(stderr=True, quiet=as_json).status(f"Reading {path}"):
        survey_data = _survey_data(path, options)
        found = survey(survey_data.inventory)
    tree = fitting(survey_data, found)
    text = as_toml(tree, path)
    written = _write(out, survey_data, found, text) if out is not None else []
    if as_json:
        said = {
            **found.as_json(),
            "remarks": survey_data.remarks,
            "config": tree,
            "files": [str(file) for file in written],
        }
        print(json.dumps(said, ensure_ascii=False))
        return
    _print(Console(), path, survey_data, found)
    _print_config(Console(), text, written)


def _survey_data(path: Path, options: DataConfig) -> SurveyData:
    from torso.data.inventory import read_survey_data
    from torso.errors import RequestError

    try:
        return read_survey_data(path, options)
    except RequestError as error:
        if str(error).startswith("data.csv.label") and "is no column" in str(error):
            raise RequestError(f"{error}. Name the column of the classes: --label COLUMN") from None
        raise


def _write(out: Path, survey_data: SurveyData, found: Survey, text: str) -> list[Path]:
    """Write the config, the report and the pictures into a new or empty folder. Nothing is written beside the data."""
    from torso.errors import RequestError
    from torso.report.look_pictures import contact_sheet, partition_chart
    from torso.results.files import write_text

    files = {
        "config.toml": text,
        "look.json": json.dumps(found.as_json(), ensure_ascii=False, indent=1) + "\n",
        "partition.svg": partition_chart(found),
        "samples.svg": contact_sheet(survey_data, found),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            if content:
                write_text(out / name, content)
    except OSError as error:
        raise RequestError(f"--out {str(out)!r} cannot be written: {error}. Give another folder.") from None
    return [out / name for name, content in files.items() if content]


def _print(console: Console, path: Path, survey_data: SurveyData, found: Survey) -> None:
    from rich.markup import escape

    clients = f"{len(found.clients)} clients, " if found.clients else ""
    console.print(
        f"[bold]{escape(str(path))}[/bold]: {found.samples} {found.noun}, {clients}{len(found.classes)} "
        f"class{'' if len(found.classes) == 1 else 'es'}",
        soft_wrap=True,
    )
    console.print(escape(_kind(survey_data, found)), highlight=False, soft_wrap=True)
    if found.clients:
        console.print(_table("client", found.clients, (found.train, found.test), "classes", found.parted))
    turned = [list(zip(*counts, strict=True)) for counts in (found.train, found.test)]
    console.print(_table("class", found.classes, turned, "clients" if found.clients else "", found.parted))
    for finding in (*found.findings, *(f"{_begun(remark)}." for remark in survey_data.remarks)):
        console.print(f"[yellow]•[/yellow] {escape(finding)}", highlight=False, soft_wrap=True)


def _begun(remark: str) -> str:
    """The remark with a capital letter; a config key at its start stays as it is."""
    return remark if remark.startswith("data.") else f"{remark[:1].upper()}{remark[1:]}"


def _kind(survey_data: SurveyData, found: Survey) -> str:
    """What the samples are: `32×32 pixels; 60 grey, 0 colour; …` for images, else the input in words."""
    if not found.sizes:
        return survey_data.input.words if survey_data.input else ""
    height, width, _ = found.sizes[0]
    sizes = f"{width}×{height} pixels" if len(found.sizes) == 1 else f"{len(found.sizes)} sizes"
    return f"{sizes}; {found.grey} grey, {found.colour} colour; unreadable files: {len(found.broken)}"


def _table(what: str, names: Sequence[str], counts: Sequence[Sequence[Counts]], other: str, parted: bool) -> Table:
    """A table with a row for each client (or class): its samples, its number of classes (or clients), and a bar."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    view = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    view.add_column(what, overflow="fold", max_width=30)
    for name in (*(("train", "test") if parted else ("all",)), *([other] if other else [])):
        view.add_column(name, justify="right")
    view.add_column("")
    both = list(zip(names, *counts, strict=True))
    most = max(sum(train) + sum(test) for _, train, test in both)
    for name, train, test in both[:_MOST]:
        bar = f"[blue]{'█' * _length(sum(train), most)}[/blue][cyan]{'▒' * _length(sum(test), most)}[/cyan]"
        kinds = [str(sum(a + b > 0 for a, b in zip(train, test, strict=True)))] if other else []
        amounts = [str(sum(train)), str(sum(test))] if parted else [str(sum(train) + sum(test))]
        view.add_row(escape(name), *amounts, *kinds, bar)
    if len(names) > _MOST:
        view.add_row(f"… and {len(names) - _MOST} more")
    return view


def _length(count: int, most: int) -> int:
    return max(1, round(_BAR * count / most)) if count else 0


def _print_config(console: Console, text: str, written: list[Path]) -> None:
    from rich.markup import escape

    if written:
        console.print(f"Wrote {', '.join(map(str, written))}", highlight=False, soft_wrap=True, markup=False)
        console.print(f"Train: torso run {written[0]}", highlight=False, soft_wrap=True, markup=False)
        return
    console.print(
        "\n[bold]The config that fits[/bold] (--out DIR writes it to a file, with pictures):", highlight=False
    )
    body = text.partition("\n\n")[2]
    console.print(escape(body.rstrip()), highlight=False, soft_wrap=True)
