"""The command line: parse, call, print. Nothing here loads torch until a command needs it."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from torso.advise import command as advise_command
from torso.errors import RequestError, TorsoError
from torso.papers import commands as papers
from torso.plugins import Plugins, load_plugins
from torso.report import (
    audit_command,
    bench_command,
    data_command,
    export_command,
    federation_command,
    personalize_command,
    predict_command,
    try_command,
)
from torso.report.help_pages import plain_help
from torso.report.run_request import run_request
from torso.report.starting import starting
from torso.signals import AT_ONCE, terminated_as_interrupted

if TYPE_CHECKING:
    from torso.runs.events import Listener, Stop

app = typer.Typer(
    help="Federated learning that shares the body of a network and treats the head as personal.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Sets = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the config, such as train.lr=0.05.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Baseline = Annotated[
    str | None, typer.Option(metavar="METHOD", help="Compare the others with it; default: fedavg, else the first.")
]
Board = Annotated[bool, typer.Option("--tensorboard", help="Write events for TensorBoard under the run folder.")]
Folders = Annotated[list[Path], typer.Argument(metavar="RUN…", help="Run folders, or folders that hold some.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest whole checkpoint.")]


@app.command()
def run(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD | CONFIG.toml",
            help="A method, a config file, or both. A word that names an existing file is the file. Left out: fedavg "
            "on scikit-learn's digits.",
        ),
    ] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    out: Annotated[Path | None, typer.Option(help="Run folder; default: the next free one under runs/.")] = None,
    resume: Resume = False,
    accept_changed_data: Annotated[
        bool, typer.Option("--accept-changed-data", help="Accept data that have changed since the run began.")
    ] = False,
    plugin: Plugins = [],  # noqa: B006
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one experiment and print its result.

    Examples: torso run fedbabu; torso run mine.toml --set train.rounds=50; torso run --out runs/mine --resume"""
    with starting(quiet):
        load_plugins(plugin)
        from torso.config import Config
        from torso.report.printing import print_results
        from torso.results.folder import own_folder
        from torso.runs import run as runs

    config, sets = run_request(what or [], sets, _note)
    if resume and out is None:
        raise RequestError("--resume needs --out, the folder of the run to continue.")
    if resume and config is None and out is not None:
        config = out / "config.toml"
        if not config.exists():
            raise RequestError(
                f"--resume: {str(out)!r} holds no run (no config.toml). Leave --resume out to start one."
            )
    experiment = Config.load(config, sets)
    name = f"{experiment.method.name}-{experiment.data.source}"
    with own_folder(out, name) as folder, _watching(quiet, tensorboard) as (listener, stop):
        try:
            result = runs.run(
                experiment,
                folder,
                resume=resume,
                listener=listener,
                stop=stop,
                accept_changed_data=accept_changed_data,
            )
        except runs.Stopped as stopped:
            raise runs.Stopped(
                " ".join([str(stopped), *(f"--plugin {shlex.quote(name)}" for name in plugin)])
            ) from None
    print_results([result], as_json, result.as_json())
    raise typer.Exit(0 if result.ok else 1)


@app.command()
def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD… [CONFIG.toml] | RUN…", help="Methods and one config file, or folders of finished runs."
        ),
    ],
    sets: Sets = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Run every method with this many seeds.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs; default: the next free one under runs/.")
    ] = None,
    resume: Resume = False,
    baseline: Baseline = None,
    plugin: Plugins = [],  # noqa: B006
    tensorboard: Board = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run several methods on the same clients, initial weights and participants, and print one table.

    Given folders instead of methods (runs/compare-1, ./mine), read the runs in them and run nothing."""
    with starting(quiet):
        load_plugins(plugin)
        from torso.methods import methods as known
        from torso.parallel.compare import compare as run_all
        from torso.report.comparison import compare_folders
        from torso.report.printing import print_comparison, print_differences, print_results
        from torso.results.folder import own_folder

    if all(name not in known and Path(name).is_dir() for name in methods):
        print_comparison(compare_folders(methods, baseline), as_json)
        return
    names = [name for name in methods if not name.endswith(".toml")]
    files = [name for name in methods if name.endswith(".toml")]
    if not names or len(files) > 1:
        raise RequestError(f"compare takes methods and at most one CONFIG.toml, found {methods}.")
    if baseline is not None and baseline not in names:
        raise RequestError(f"--baseline {baseline!r} is not among the methods. Accepted: {', '.join(names)}")
    with own_folder(out, "compare") as folder, _watching(quiet, tensorboard) as (listener, stop):
        results = run_all(
            names,
            files[0] if files else None,
            sets,
            seeds=seeds,
            out=folder,
            resume=resume,
            listener=listener,
            stop=stop,
        )
    print_results(results, as_json, [result.as_json() for result in results])
    if not as_json:
        print_differences(compare_folders([result.folder for result in results if result.folder], baseline))
    raise typer.Exit(0 if all(result.ok for result in results) else 1)


@app.command()
def report(
    runs: Folders,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    baseline: Baseline = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page that shows and compares runs. It opens in a browser without a network or a server."""
    from torso.report.write import as_data
    from torso.report.write import report as write

    words = ["torso report", *map(str, runs), *(["--baseline", baseline] if baseline else [])]
    comparison = write(runs, out, baseline, " ".join(words))
    if as_json:
        print(json.dumps({"page": str(out), **as_data(comparison)}))
        return
    for note in comparison.notes():
        _note(note)
    size, count = out.stat().st_size / 1e6, len(comparison.runs)
    print(f"{out}: {count} run{'' if count == 1 else 's'}, {size:.2f} MB. Open it in a browser.")


@app.command()
def plot(
    runs: Folders,
    kind: Annotated[str, typer.Option(help="The chart, such as rounds or clients; an unknown name prints the list.")],
    out: Annotated[Path, typer.Option(help="File to write: .pdf, .svg, .eps, .ps, .png, .jpg, .tif or .webp.")],
    of: Annotated[str | None, typer.Option(help="Which of several charts of this kind: a method or a measure.")] = None,
    baseline: Baseline = None,
    width: Annotated[float | None, typer.Option(metavar="INCHES", help="Default: 5.")] = None,
    height: Annotated[float | None, typer.Option(metavar="INCHES", help="Default: in proportion.")] = None,
    dpi: Annotated[int, typer.Option(help="Dots per inch of a file of pixels.")] = 300,
    title: Annotated[bool, typer.Option("--title", help="Write the chart's title over it.")] = False,
    labels: Annotated[
        list[str], typer.Option(metavar="NAME=TEXT", help="What to call a method in the figure; may be repeated.")
    ] = [],  # noqa: B006
) -> None:
    """Write one chart as a figure for a paper (needs the extra plot). In Python, torso.plot returns the figure."""
    with starting():
        from torso.report.plots import write_plot

    size = {"width": width, "height": height}
    chart = write_plot(runs, kind, out, of, baseline=baseline, dpi=dpi, title=title, labels=labels, **size)
    print(f"{out}: {chart.title}. {chart.note}")


@app.command()
def watch(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A run folder, or where runs are made.")] = Path("runs"),
    port: Annotated[int, typer.Option(help="Port of the page; 0 takes any free one.")] = 8642,
) -> None:
    """Follow runs on a local page while they train; Ctrl-C ends it."""
    from torso.report.watch import serve

    with serve(folder, port) as server:
        print(f"watching {folder} on http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            raise typer.Exit from None


_methods = typer.Typer(help="List the methods, or show the rules of one.", no_args_is_help=False)
app.add_typer(_methods, name="methods")


@_methods.callback(invoke_without_command=True)
def methods(
    context: typer.Context,
    plugin: Plugins = [],  # noqa: B006
    long: Annotated[bool, typer.Option("--long", help="Also: what differs from FedAvg, travels, is kept.")] = False,
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
        view.add_row(f"[bold]{key}[/bold]", _escape(text))
    Console().print(view)


@app.command()
def models(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the networks."""
    load_plugins(plugin)
    from torso.report.lists import list_models
    from torso.report.printing import print_list

    print_list(list_models(), as_json)


@app.command()
def datasets(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the data sources."""
    load_plugins(plugin)
    from torso.data import sources
    from torso.report.lists import list_registry
    from torso.report.printing import print_list

    print_list(list_registry(sources), as_json)


@app.command()
def partitions(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the ways to split data among clients."""
    load_plugins(plugin)
    from torso.data import partitions as known
    from torso.report.lists import list_registry
    from torso.report.printing import print_list

    print_list(list_registry(known), as_json)


@app.command()
def attacks(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the attacks that malicious clients can make."""
    load_plugins(plugin)
    from torso.report.lists import list_attacks
    from torso.report.printing import print_list

    print_list(list_attacks(), as_json)


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        from torso import __version__

        print(__version__)
        raise typer.Exit


def main() -> None:
    """Entry point: 0 done, 1 the run failed, 2 the request was wrong, 130 stopped by the user."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="replace")  # no run ends because a terminal has no ±
    try:
        with terminated_as_interrupted():
            app(prog_name="torso")  # also under `python -m torso`
    except TorsoError as error:
        _fail(str(error), error.exit_status)
    except (OSError, UnicodeEncodeError) as error:  # a disk, or a name that is no text: not a fault of ours
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail(AT_ONCE, 130)
    except SystemExit as end:
        if end.code == 130:  # a KeyboardInterrupt that typer has caught
            _fail(AT_ONCE, 130)
        raise


def _fail(text: str, status: int) -> None:
    said = text.encode(errors="backslashreplace").decode()
    Console(stderr=True).print(f"[bold red]torso:[/bold red] {_escape(said)}", soft_wrap=True, highlight=False)
    sys.exit(status)


@contextmanager
def _watching(
    quiet: bool, tensorboard: bool = False, shown: tuple[Any, Any] | None = None
) -> Iterator[tuple[Listener, Stop]]:
    """Progress on the error stream, and Ctrl-C or SIGTERM that stop after the round or measure; a second one at once.

    `shown`: other displays than the usual ones, for a terminal and elsewhere."""
    from torso.runs.events import Listener, Stop
    from torso.runs.progress import LiveBars, PlainLines

    console, stop = Console(stderr=True), Stop()
    bars_of, lines_of = shown or (LiveBars, PlainLines)

    def interrupt(*_: Any) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.ask()
        console.print(f"stopping {stop.when}", soft_wrap=True)

    def with_events(listener: Listener) -> Listener:
        if not tensorboard:
            return listener
        from torso.report.tensorboard import TensorBoard

        return TensorBoard(listener)

    heard = (signal.SIGINT, signal.SIGTERM)  # a scheduler sends the second before it kills
    before = {number: signal.signal(number, interrupt) for number in heard}
    try:
        if quiet or not console.is_terminal:
            yield with_events(Listener() if quiet else lines_of(console)), stop
        else:
            with bars_of(console) as bars:
                yield with_events(bars), stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _note(text: str) -> None:
    Console(stderr=True).print(f"note: {text}", soft_wrap=True, highlight=False, markup=False)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)


audit_command.add_to(app)
bench_command.add_to(app, _watching)
data_command.add_to(app)
export_command.add_to(app)
predict_command.add_to(app)
personalize_command.add_to(app)
try_command.add_to(app)
federation_command.add_to(app, _watching)
papers.add_to(app, _watching)
advise_command.add_to(app, _watching)
plain_help(app)
