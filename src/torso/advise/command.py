"""`torso advise`: parse, call, print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from torso.errors import RequestError
from torso.plugins import Plugins, load_plugins
from torso.report.options import Json, Quiet, Sets
from torso.report.starting import starting
from torso.report.watching import watching

if TYPE_CHECKING:
    from torso.advise.answer import Answer
    from torso.runs.events import Stop

MINUTES = 10.0


def add_to(app: typer.Typer) -> None:
    """Give the command line its command."""
    app.command()(advise)


def advise(
    what: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG.toml", help="A config: its data, network and training are used."),
    ] = None,
    data: Annotated[
        str,
        typer.Option(metavar="PATH | SOURCE", help="Your data (a path, as for `torso data look`), or a data source."),
    ] = "",
    counts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Instead of data: class counts, clients × classes, as .csv or .json."),
    ] = None,
    stand_in: Annotated[
        str, typer.Option(metavar="SOURCE", help="With --counts: run on this data source, dealt with your counts.")
    ] = "",
    minutes: Annotated[float | None, typer.Option(help="Budget in minutes; default: 10.")] = None,
    rounds: Annotated[
        int | None, typer.Option(help="Budget in rounds of FedAvg instead; then the answer is reproducible.")
    ] = None,
    methods: Annotated[
        str, typer.Option(metavar="A,B", help="Methods that compete with FedAvg and training alone; default: a list.")
    ] = "",
    sets: Sets = [],  # noqa: B006  typer copies it
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", help="Write a config for `torso run` with the advised method.")
    ] = None,
    guess: Annotated[
        bool, typer.Option("--guess", help="With --out: write the best guess, even if it is not clearly better.")
    ] = False,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find the method that suits your data. Methods compete on held-out training samples within a budget; the best
    are compared again on other samples. Test data are not used.

    Example: torso advise --data my_images --minutes 10 --out advised.toml"""
    _check_budget(minutes, rounds)
    _check_out(out, guess)
    _check_counts(counts, stand_in, data, out)
    with starting(quiet):
        load_plugins(plugin)
        from torso.advise.advising import advise as advice
        from torso.advise.advising import check_sets
        from torso.advise.request import config_file, config_of

    check_sets(sets)
    file = config_file(what or [])
    if counts is not None and not stand_in:
        _print_counts(counts, as_json)
        return
    config = config_of(file, stand_in or data, sets, "--stand-in" if stand_in else "--data")
    federation, scale = _dealt(config, counts) if counts is not None else (None, 1.0)
    budget = {"rounds": rounds, "minutes": None if rounds else minutes or MINUTES}
    names = [name.strip() for name in methods.split(",") if name.strip()]
    with _watched(quiet) as (stop, told):
        found = advice(config, methods=names, federation=federation, stop=stop, told=told, **budget)
    if out is not None:
        from torso.results.files import write_text

        write_text(out, found.as_toml(guess).replace("FILE.toml", str(out)))
    _print(found, as_json, out, stand_in if counts is not None else "", scale)


def _check_budget(minutes: float | None, rounds: int | None) -> None:
    if minutes is not None and rounds is not None:
        raise RequestError(f"--minutes {minutes:g} and --rounds {rounds} both set the budget. Leave one of them out")
    if minutes is not None and not 0 < minutes < 1e6:
        raise RequestError(f"--minutes {minutes:g} is out of range. Accepted: more than 0")
    if rounds is not None and rounds < 1:
        raise RequestError(f"--rounds {rounds} is out of range. Accepted: 1 or more")


def _check_out(out: Path | None, guess: bool) -> None:
    """Refuse a file that exists or cannot be written, before anything is run."""
    if guess and out is None:
        raise RequestError(
            "--guess needs --out FILE.toml, because it says what is written there. Give both, or leave --guess out"
        )
    if out is None:
        return
    if out.suffix != ".toml":
        raise RequestError(f"--out {str(out)!r} must be a config for `torso run`. Accepted: a name that ends in .toml")
    if out.exists():
        raise RequestError(f"--out {str(out)!r} exists. Give another name, or delete it")
    if not out.parent.is_dir():
        raise RequestError(f"--out {str(out)!r}: the folder {str(out.parent)!r} does not exist")


def _check_counts(counts: Path | None, stand_in: str, data: str, out: Path | None) -> None:
    if counts is None and stand_in:
        raise RequestError(f"--stand-in {stand_in!r} needs --counts FILE. For your own data: --data PATH")
    if counts is not None and (data or out is not None):
        other = "--data" if data else "--out"
        raise RequestError(
            f"--counts and {other} exclude each other, because counts have no samples. Leave one of them out"
        )


def _dealt(config: Any, counts: Path) -> Any:
    from torso.advise.counts import read_counts
    from torso.advise.stand_in import dealt

    return dealt(config, read_counts(counts))


@contextmanager
def _watched(quiet: bool) -> Iterator[tuple[Stop, Callable[[str], None]]]:
    """Gives the stop that Ctrl-C asks, and a function that shows progress if the error stream is a terminal."""
    console = Console(stderr=True)
    with watching(True) as (_, stop):
        if quiet or not console.is_terminal:
            yield stop, lambda text: None
            return
        with console.status("…") as status:
            yield stop, status.update


def _print_counts(path: Path, as_json: bool) -> None:
    """Print what is known from counts alone: traits and the nearest leaderboard settings. No method is advised."""
    from torso.advise import evidence
    from torso.advise.counts import read_counts
    from torso.advise.traits import traits_of

    traits = traits_of(read_counts(path).counts)
    if as_json:
        print(json.dumps({"advice": None, "clients": traits.as_json(), "nearest": evidence.nearest(traits)}))
        return
    hint = (
        "Counts do not show how hard the classes are, so no method is advised. Run the tournament on your data (--data "
        "PATH), or on other data that are dealt with these counts: --stand-in digits"
    )
    for line in (*traits.lines(), "", *evidence.lines(traits), "", hint):
        Console().print(line, soft_wrap=True, highlight=False, markup=False)


def _print(found: Answer, as_json: bool, out: Path | None, stand_in: str, scale: float) -> None:
    from torso.advise.answer import columns
    from torso.report.printing import print_list

    if as_json:
        about = {"stand_in": {"source": stand_in, "scale": round(scale, 4)}} if stand_in else {}
        print(json.dumps({**found.as_json(), **about, "file": None if out is None else str(out)}))
        return
    print_list(columns(found.table()), as_json=False)
    console = Console()
    said = list(found.lines())
    if stand_in:
        less = f", with {scale:.2g} of the samples" if scale < 1 else ""
        said.append(
            f"  The samples are from {stand_in}, dealt with your counts{less}. Your own data may give another answer."
        )
    if out is not None:
        said.append(f"Wrote {out}. Train: torso run {out}")
    for line in said:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
