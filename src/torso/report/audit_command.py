"""`torso audit`: parse, call, print."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torso.errors import RequestError
from torso.plugins import Plugins, load_plugins
from torso.report.options import Json, Quiet, Sets
from torso.report.run_request import run_request
from torso.report.starting import starting


def add_to(app: typer.Typer) -> None:
    """Give the command line its command."""
    app.command()(audit)


def audit(
    what: Annotated[
        list[str] | None, typer.Argument(metavar="METHOD | CONFIG.toml", help="As `torso run` takes them.")
    ] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    runs: Annotated[int, typer.Option(min=1, help="Number of runs. Each has its own canaries and noise.")] = 256,
    canaries: Annotated[int, typer.Option(min=1, help="Number of canaries in each run.")] = 16,
    sees: Annotated[str, typer.Option(help="Which models the auditor sees: all, or last.")] = "all",
    confidence: Annotated[float, typer.Option(help="Confidence of the result, from 0.5 to below 1.")] = 0.95,
    claimed_noise: Annotated[
        float, typer.Option(min=0, help="Test the ε that this noise would give, instead of the noise of the run.")
    ] = 0.0,
    out: Annotated[Path | None, typer.Option(metavar="FILE.json", help="Also write the result to this file.")] = None,
    plugin: Plugins = [],  # noqa: B006
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Test the privacy that a config claims. The command runs it many times with canaries among the clients. Each
    canary sends a chosen update, or nothing. How well the auditor can tell which gives a lower bound on ε. Exit
    status 1: the claim is refuted.

    Example: torso audit fedavg --set privacy.epsilon=8 --runs 256"""
    with starting(quiet):
        load_plugins(plugin)
        from torso.audit.verdict import audit as judged
        from torso.config import Config

    if sees not in ("all", "last"):
        raise RequestError(f"--sees {sees!r} is unknown. Accepted: all, last")
    if not 0.5 <= confidence < 1:
        raise RequestError(f"--confidence {confidence:g} is out of range. Accepted: 0.5 or more, below 1")
    if out is not None and not out.parent.is_dir():
        raise RequestError(f"--out {str(out)!r}: the folder {str(out.parent)!r} does not exist.")
    console = Console(stderr=True)
    config, said = run_request(what or [], sets, lambda text: console.print(text, markup=False))
    with console.status(f"0 of {runs} runs") as status:
        status.stop() if quiet else None
        found = judged(
            *(Config.load(config, said), runs, canaries, "all" if sees == "all" else "last", confidence),
            claimed_noise=claimed_noise,
            told=lambda done: status.update(f"{done} of {runs} runs"),
        )
    text = json.dumps(found.as_json(), indent=1, ensure_ascii=False)
    if out is not None:
        out.write_text(text + "\n", encoding="utf-8")
    print(text if as_json else "\n".join(found.lines()))
    raise typer.Exit(1 if found.refuted else 0)
