"""`torso data`: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from torso.report.look_command import look
from torso.report.options import Json, Quiet

if TYPE_CHECKING:
    from torso.data.fetch import Download, DownloadListener

data_app = typer.Typer(help="Download data sets, and look at your own data.", no_args_is_help=True)
data_app.command("look")(look)

Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of all data sets; default: $TORSO_DATA, else ./data.")
]


def add_to(app: typer.Typer) -> None:
    """Give the command line its commands."""
    app.add_typer(data_app, name="data")


@data_app.command("list")
def list_(out: Out = None, as_json: Json = False) -> None:
    """List the data sets that can be downloaded: size, terms, and whether each is already here."""
    from torso.data.fetch_catalogue import ALIASES, BY_HAND, data_home
    from torso.report.printing import print_list

    home = data_home(out)
    rows = _rows(home)
    if as_json:
        print(json.dumps(rows))
        return
    shown = ("name", "size", "classes", "MB", "there", "terms")  # --json has all columns
    print_list([{name: _short(row[name]) for name in shown} for row in rows], as_json=False)
    console = Console()
    for alias, name in ALIASES.items():
        console.print(f"{alias}: short for {name}", soft_wrap=True, highlight=False)
    for hand in BY_HAND.values():
        said = f"{hand.name}: {hand.about}. Needs {hand.terms}: {hand.page}"
        console.print(said, soft_wrap=True, highlight=False, markup=False)
    console.print(f"Download one to {home}: torso data get NAME", soft_wrap=True, highlight=False, markup=False)


def _rows(home: Path) -> list[dict[str, Any]]:
    from torso.data.fetch_catalogue import DATASETS

    return [
        {
            "name": data.name,
            "train": data.train,
            "test": data.test,
            "size": data.size,
            "classes": data.classes,
            "MB": round(data.download / 1e6),
            "there": data.is_in(home),
            "terms": data.terms,
            "about": data.about,
            "page": data.page,
        }
        for data in DATASETS.values()
    ]


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else ""
    return f"{value:,}" if isinstance(value, int) else str(value)


@data_app.command("get")
def get(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME…]", help="Data sets; without a name, all are listed.")
    ] = None,
    out: Out = None,
    source: Annotated[
        str,
        typer.Option(
            "--from", metavar="URL", help="Folder with the files; default: $TORSO_MIRROR, else the official site."
        ),
    ] = "",
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Download data sets, check them, and say how to use them. An interrupted download continues where it stopped."""
    if not names:
        list_(out, as_json)
        return
    from torso.data import fetch
    from torso.data.fetch_catalogue import data_set

    for name in names:
        data_set(name)  # raises for an unknown name, before anything is downloaded
    done = []
    for name in names:
        with _watching(quiet) as watcher:
            found = fetch.get(name, out, source, watcher)
        done.append(_as_data(found))
        if not as_json:
            _tell(found, out)
    if as_json:
        print(json.dumps(done))


def _as_data(got: Download) -> dict[str, Any]:
    return {"name": got.data.name, "source": got.data.name, "root": str(got.root), "downloaded": got.new}


def _tell(got: Download, out: Path | None) -> None:
    console = Console()
    said = "is checked and ready" if got.new else "was there already"
    root = f" --set data.root={got.root}" if out is not None else ""
    for line in (
        f"{got.data.name}: {got.root} {said}. Terms: {got.data.terms} ({got.data.page})",
        f"Use it: torso run --set data.source={got.data.name}{root}",
    ):
        console.print(line, soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _watching(quiet: bool) -> Iterator[DownloadListener]:
    """Shows progress on the error stream: bars on a terminal, a few lines elsewhere, nothing if quiet."""
    from torso.data.fetch import DownloadListener
    from torso.report.download_bars import Bars, Lines

    console = Console(stderr=True)
    try:
        if quiet:
            yield DownloadListener()
        elif console.is_terminal:
            with Bars(console) as bars:
                yield bars
        else:
            yield Lines(console)
    except KeyboardInterrupt:
        console.print("stopped: the data so far are kept, and the same command goes on from there", soft_wrap=True)
        raise
