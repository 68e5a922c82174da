"""`torso report`, `torso plot` and `torso watch`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from torso.report.console import note
from torso.report.options import Baseline, Json
from torso.report.starting import starting

Folders = Annotated[
    list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that contain run folders.")
]


def add_to(app: typer.Typer) -> None:
    """Give the command line its commands."""
    app.command()(report)
    app.command()(plot)
    app.command()(watch)


def report(
    runs: Folders,
    out: Annotated[Path, typer.Option(help="File of the page.")] = Path("report.html"),
    baseline: Baseline = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page that shows and compares runs. It opens in a browser without network or server."""
    from torso.report.write import as_data
    from torso.report.write import report as write

    words = ["torso report", *map(str, runs), *(["--baseline", baseline] if baseline else [])]
    comparison = write(runs, out, baseline, " ".join(words))
    if as_json:
        print(json.dumps({"page": str(out), **as_data(comparison)}))
        return
    for text in comparison.notes():
        note(text)
    size, count = out.stat().st_size / 1e6, len(comparison.runs)
    print(f"{out}: {count} run{'' if count == 1 else 's'}, {size:.2f} MB. Open it in a browser.")


def plot(
    runs: Folders,
    kind: Annotated[
        str, typer.Option(help="Kind of chart, such as rounds or clients. An unknown name prints the list.")
    ],
    out: Annotated[Path, typer.Option(help="File to write: .pdf, .svg, .eps, .ps, .png, .jpg, .tif or .webp.")],
    of: Annotated[
        str | None,
        typer.Option(help="If there are several charts of this kind: the method or measure of the one to write."),
    ] = None,
    baseline: Baseline = None,
    width: Annotated[float | None, typer.Option(metavar="INCHES", help="Width of the figure; default: 5.")] = None,
    height: Annotated[
        float | None, typer.Option(metavar="INCHES", help="Height of the figure; default: in proportion.")
    ] = None,
    dpi: Annotated[int, typer.Option(help="Dots per inch of a pixel image.")] = 300,
    title: Annotated[bool, typer.Option("--title", help="Write a title above the chart.")] = False,
    labels: Annotated[
        list[str], typer.Option(metavar="NAME=TEXT", help="Name of a method in the figure. May be repeated.")
    ] = [],  # noqa: B006
) -> None:
    """Write one chart as a figure for a paper (needs the extra plot). In Python, torso.plot returns the figure."""
    with starting():
        from torso.report.plots import write_plot

    size = {"width": width, "height": height}
    chart = write_plot(runs, kind, out, of, baseline=baseline, dpi=dpi, title=title, labels=labels, **size)
    print(f"{out}: {chart.title}. {chart.note}")


def watch(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="A run folder, or the folder that contains your runs.")
    ] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes any free one.")] = 8642,
) -> None:
    """Follow runs in the browser while they train, on a local page. Ctrl-C ends it."""
    from torso.report.watch import serve

    with serve(folder, port) as server:
        print(f"watching {folder} on http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit from None
