"""The command line: parse, call, print. Nothing here loads torch until a command needs it."""

from __future__ import annotations

import importlib
import json
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from torso.errors import RequestError, TorsoError

if TYPE_CHECKING:
    from torso.runs.events import Listener, Stop

app = typer.Typer(
    help="Federated learning that shares the body of a network and treats the head as personal.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Sets = Annotated[list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one key, e.g. train.lr=0.05.")]
Plugins = Annotated[
    list[str], typer.Option("--plugin", metavar="MODULE", help="Import a module that registers things.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print data instead of a table.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest whole checkpoint.")]


@app.command()
def run(
    config: Annotated[Path | None, typer.Argument(metavar="[CONFIG.toml]", help="Left out: the defaults.")] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    out: Annotated[Path | None, typer.Option(help="Run folder; default: the next free one under runs/.")] = None,
    resume: Resume = False,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one experiment and print its result."""
    _load(plugin)
    from torso.config import Config
    from torso.runs import run as runs

    if resume and out is None:
        raise RequestError("--resume needs --out, the folder of the run to continue.")
    if resume and config is None and out is not None:
        config = out / "config.toml"
        if not config.exists():
            raise RequestError(
                f"--resume: {str(out)!r} holds no run (no config.toml). Leave --resume out to start one."
            )
    experiment = Config.load(config, sets)
    folder = out or _free_folder(f"{experiment.method.name}-{experiment.data.source}")
    with _watching(quiet) as (listener, stop):
        try:
            result = runs.run(experiment, folder, resume=resume, listener=listener, stop=stop)
        except runs.Stopped as stopped:
            raise runs.Stopped(" ".join([str(stopped), *(f"--plugin {name}" for name in plugin)])) from None
    _print_results([result], as_json, result.as_json())
    raise typer.Exit(0 if result.ok else 1)


@app.command()
def compare(
    methods: Annotated[
        list[str], typer.Argument(metavar="METHOD… [CONFIG.toml]", help="Methods, and one config file.")
    ],
    sets: Sets = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Run every method with this many seeds.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the runs; default: the next free one under runs/.")
    ] = None,
    resume: Resume = False,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run several methods on the same clients, initial weights and participants, and print one table."""
    _load(plugin)
    from torso.runs.compare import compare as run_all

    names = [name for name in methods if not name.endswith(".toml")]
    files = [name for name in methods if name.endswith(".toml")]
    if not names or len(files) > 1:
        raise RequestError(f"compare takes methods and at most one CONFIG.toml, found {methods}.")
    folder = out or _free_folder("compare")
    with _watching(quiet) as (listener, stop):
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
    _print_results(results, as_json, [result.as_json() for result in results])
    raise typer.Exit(0 if all(result.ok for result in results) else 1)


_methods = typer.Typer(help="List the methods, or show the rules of one.", no_args_is_help=False)
app.add_typer(_methods, name="methods")


@_methods.callback(invoke_without_command=True)
def methods(context: typer.Context, plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the methods: where each comes from, how it differs from FedAvg, what travels, what a client keeps."""
    _load(plugin)
    if context.invoked_subcommand is not None:
        return
    from torso.report.lists import list_methods

    rows = list_methods()
    if not as_json:  # a terminal has no room for all of it: --json and `methods show` do
        rows = [
            {
                **{k: row[k] for k in ("name", "differs_from_fedavg", "travels", "client_keeps")},
                "kB_down/up": f"{row['bytes_down'] / 1000:.0f}/{row['bytes_up'] / 1000:.0f}",
            }
            for row in rows
        ]
    _print_list(rows, as_json)
    if not as_json:
        print("kB: of a participant in a round, 4convNet, 10 classes. More of one: torso methods show NAME")


@_methods.command("show")
def methods_show(name: str, plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """Show the rules of one method in words, axis by axis."""
    _load(plugin)
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
    _load(plugin)
    from torso.report.lists import list_models

    _print_list(list_models(), as_json)


@app.command()
def datasets(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the data sources."""
    _load(plugin)
    from torso.data import sources
    from torso.report.lists import list_registry

    _print_list(list_registry(sources), as_json)


@app.command()
def partitions(plugin: Plugins = [], as_json: Json = False) -> None:  # noqa: B006
    """List the ways to deal data to clients."""
    _load(plugin)
    from torso.data import partitions as known
    from torso.report.lists import list_registry

    _print_list(list_registry(known), as_json)


_bench = typer.Typer(help="Measure speed on this machine.")
app.add_typer(_bench, name="bench")


@_bench.command("engine")
def bench_engine(
    bodies: Annotated[str, typer.Option(help="Networks, with commas between them.")] = "conv4,mobilenet",
    clients: Annotated[str, typer.Option(help="Numbers of stacked clients, with commas between them.")] = "10,100",
    batch: Annotated[int, typer.Option(min=1, help="Images of a client in a step.")] = 50,
    precision: Annotated[str, typer.Option(help="auto, fp32, tf32 or bf16 (auto: tf32 on an accelerator).")] = "auto",
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    as_json: Json = False,
) -> None:
    """Training steps of stacked clients, in images per second, beside one by one and one large model."""
    from torso.engine.bench import measure_engine
    from torso.runs.run import device_of

    try:
        counts = [int(count) for count in clients.split(",")]
    except ValueError:
        raise RequestError(f"--clients {clients!r} is no list of numbers. Example: 10,100") from None
    if min(counts) < 1:
        raise RequestError(f"--clients {clients!r}: at least one client steps. Example: 10,100")
    if precision not in ("auto", "fp32", "tf32", "bf16"):
        raise RequestError(f"--precision {precision!r} is unknown. Accepted: auto, fp32, tf32, bf16")
    found = measure_engine(bodies.split(","), counts, batch, precision, device_of(device))
    if as_json:
        print(json.dumps(found))
        return
    rows = [{**row, "times_centralised": row.get("times_centralised", "")} for row in found["rows"]]
    rows = [{"times_one_by_one": "", **row} for row in rows]
    columns = ("body", "what", "clients", "images_per_s", "times_one_by_one", "times_centralised", "warm_up_s")
    _print_list([{column: row[column] for column in columns} for row in rows], as_json=False)
    print(", ".join(f"{key}: {value}" for key, value in {**found["machine"], "precision": found["precision"]}.items()))


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
    try:
        app()
    except TorsoError as error:
        Console(stderr=True).print(
            f"[bold red]torso:[/bold red] {_escape(str(error))}", soft_wrap=True, highlight=False
        )
        sys.exit(error.exit_status)
    except KeyboardInterrupt:
        sys.exit(130)


def _load(plugins: list[str]) -> None:
    if plugins and "" not in sys.path:
        sys.path.append("")  # a plugin may lie in the current folder
    for name in plugins:
        try:
            importlib.import_module(name)
        except TorsoError:
            raise
        except Exception as error:  # whatever the user's module raises, say it in one line
            what = f"{type(error).__name__}: {error}"
            raise RequestError(f"--plugin {name!r}: {what}. Give a module (not a file) that can be imported.") from None


def _free_folder(name: str) -> Path:
    number = 1
    while (folder := Path("runs") / f"{name}-{number}").exists():
        number += 1
    return folder


@contextmanager
def _watching(quiet: bool) -> Iterator[tuple[Listener, Stop]]:
    """Progress on the error stream, and Ctrl-C that stops after the current round; a second one stops at once."""
    from torso.report.progress import LiveBars, PlainLines
    from torso.runs.events import Listener, Stop

    console, stop = Console(stderr=True), Stop()

    def interrupt(*_: Any) -> None:
        if stop.asked:
            raise KeyboardInterrupt
        stop.ask()
        console.print("stopping after this round (Ctrl-C again: at once, without a checkpoint)")

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        if quiet:
            yield Listener(), stop
        elif console.is_terminal:
            with LiveBars(console) as bars:
                yield bars, stop
        else:
            yield PlainLines(console), stop
    finally:
        signal.signal(signal.SIGINT, before)


def _print_results(results: list[Any], as_json: bool, data: Any) -> None:
    from torso.report.table import table

    if as_json:
        print(json.dumps(data))
        return
    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, 120)  # a file has no edge
    console.print(table(results))
    console.print(
        "accuracy in %, mean ± std over clients (generic: one model, whole test set); MB: both directions",
        soft_wrap=True,
    )
    for result in results:
        if not result.ok:
            console.print(
                f"{result.method} seed {result.seed} {result.status}", style="red", soft_wrap=True, markup=False
            )
        console.print(
            f"{result.method} seed {result.seed}: {result.folder}", soft_wrap=True, highlight=False, markup=False
        )


def _print_list(rows: list[dict[str, Any]], as_json: bool) -> None:
    from rich import box
    from rich.table import Table

    if as_json:
        print(json.dumps(rows))
        return
    view = Table(header_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(rows[0]):
        view.add_column(column.replace("_", " "), overflow="fold", no_wrap=place == 0)  # names stay whole
    for row in rows:
        view.add_row(*(_escape(str(value)) for value in row.values()))
    Console().print(view)


def _escape(text: str) -> str:
    from rich.markup import escape

    return escape(text)
