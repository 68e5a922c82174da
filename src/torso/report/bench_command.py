"""`torso bench`: speed on this machine."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from torso.errors import RequestError
from torso.report.options import Json, Quiet
from torso.report.watching import watching

Precision = Annotated[str, typer.Option(help="auto, fp32, tf32 or bf16 (auto: tf32 on an accelerator).")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")]
_PRECISIONS = ("auto", "fp32", "tf32", "bf16")
_SOURCES = ("cifar10", "synthetic")


_bench = typer.Typer(help="Measure Torso's speed on this machine.")


def add_to(app: typer.Typer) -> None:
    """Give the command line its commands."""
    app.add_typer(_bench, name="bench")


@_bench.command("engine")
def bench_engine(
    bodies: Annotated[str, typer.Option(help="Networks, with commas between them.")] = "conv4,mobilenet",
    clients: Annotated[str, typer.Option(help="Numbers of stacked clients, with commas between them.")] = "10,100",
    batch: Annotated[int, typer.Option(min=1, help="Images per client and step.")] = 50,
    precision: Precision = "auto",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Measure training steps in images per second: stacked clients, clients one by one, and one model on all the
    images."""
    from torso.engine.bench import measure_engine
    from torso.runs.devices import device_named

    try:
        counts = [int(count) for count in clients.split(",")]
    except ValueError:
        raise RequestError(f"--clients {clients!r} is not a list of numbers. Example: 10,100") from None
    if min(counts) < 1:
        raise RequestError(f"--clients {clients!r}: numbers of clients begin at 1. Example: 10,100")
    _check("--precision", precision, _PRECISIONS)
    found = measure_engine(bodies.split(","), counts, batch, precision, device_named(device))
    empty = {"times_one_by_one": "", "times_centralised": ""}  # some rows have only one of the two
    rows = [{**empty, **row} for row in found["rows"]]
    columns = ("body", "what", "clients", "images_per_s", "times_one_by_one", "times_centralised", "warm_up_s")
    _print(found, [{column: row[column] for column in columns} for row in rows], as_json)


@_bench.command("pfl")
def bench_pfl(
    root: Annotated[str, typer.Option(help="Folder of CIFAR-10; default: the download of `torso data get`.")] = "",
    source: Annotated[str, typer.Option(help="cifar10; or synthetic, to measure only the time.")] = "cifar10",
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds; the benchmark has 1,500.")] = 1500,
    precision: Precision = "auto",
    device: Device = "auto",
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random numbers.")] = 0,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run the benchmark of pfl-research and print how long it took: CIFAR-10, 1,000 clients of 50 images, 50 clients
    a round, a CNN with dropout."""
    from torso.report.pfl_bench import measure_pfl, pfl_config

    _check("--precision", precision, _PRECISIONS)
    _check("--source", source, _SOURCES)
    config = pfl_config(source, root, rounds, precision, device, seed)
    with watching(quiet) as (listener, stop):
        found = measure_pfl(config, listener, stop)
    columns = ("rounds", "training_s", "ms_a_round", "measuring_s", "data_s", "process_s", "accuracy")
    _print(found, [{column: found[column] for column in columns}], as_json)
    if not as_json:
        parts = ("imports_s", "data_s", "training_s", "measuring_s", "other_s")
        print("process: " + ", ".join(f"{part[:-2]} {found[part]} s" for part in parts))
        print(f"training: recording {found['recording_s']} s, a usual round {found['ms_a_usual_round']} ms")
    raise typer.Exit(0 if found["status"] == "ok" else 1)


def _check(option: str, given: str, accepted: tuple[str, ...]) -> None:
    if given not in accepted:
        raise RequestError(f"{option} {given!r} is unknown. Accepted: {', '.join(accepted)}")


def _print(found: dict[str, Any], rows: list[dict[str, Any]], as_json: bool) -> None:
    from torso.report.printing import print_list

    if as_json:
        print(json.dumps(found))
        return
    print_list(rows, as_json=False)
    print(", ".join(f"{key}: {value}" for key, value in {**found["machine"], "precision": found["precision"]}.items()))
