"""`torso run` and `torso compare`: parse, call, print."""

from __future__ import annotations

import shlex
from collections.abc import Collection
from pathlib import Path
from typing import Annotated

import typer

from torso.errors import RequestError, did_you_mean
from torso.plugins import Plugins, load_plugins
from torso.report.console import note
from torso.report.options import Baseline, ChangedData, Json, Quiet, RunOut, Sets, TensorBoard
from torso.report.run_request import run_request
from torso.report.starting import starting
from torso.report.watching import watching

Resume = Annotated[bool, typer.Option("--resume", help="Continue from the newest complete checkpoint.")]


def add_to(app: typer.Typer) -> None:
    """Give the command line its commands."""
    app.command()(run)
    app.command()(compare)


def run(
    what: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="METHOD | CONFIG.toml",
            help="A method, a config file, or both; a name of an existing file is the file. Default: fedavg on "
            "scikit-learn's digits.",
        ),
    ] = None,
    sets: Sets = [],  # noqa: B006  typer copies it
    out: RunOut = None,
    resume: Resume = False,
    accept_changed_data: ChangedData = False,
    plugin: Plugins = [],  # noqa: B006
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run one experiment and print its result.

    Examples: torso run fedbabu; torso run mine.toml --set train.rounds=50; torso run --out runs/mine --resume"""
    with starting(quiet):
        load_plugins(plugin)
        from torso.config import Config
        from torso.report.printing import print_results
        from torso.results.folder import new_run_folder
        from torso.runs.run import Stopped
        from torso.runs.run import run as run_it

    config, sets = run_request(what or [], sets, note)
    if resume:
        config = _config_to_resume(config, out)
    experiment = Config.load(config, sets)
    name = f"{experiment.method.name}-{experiment.data.source}"
    with new_run_folder(out, name) as folder, watching(quiet, tensorboard) as (listener, stop):
        try:
            result = run_it(
                experiment,
                folder,
                resume=resume,
                listener=listener,
                stop=stop,
                accept_changed_data=accept_changed_data,
            )
        except Stopped as stopped:
            raise Stopped(" ".join([str(stopped), *(f"--plugin {shlex.quote(name)}" for name in plugin)])) from None
    print_results([result], as_json, result.as_json())
    raise typer.Exit(0 if result.ok else 1)


def _config_to_resume(config: Path | None, out: Path | None) -> Path:
    """The config file of the run to continue: the given one, else the one in its folder."""
    from torso.results.folder import no_run_in

    if out is None:
        raise RequestError("--resume needs --out, the folder of the run to continue.")
    if config is None and not (out / "config.toml").exists():
        raise no_run_in(out)
    return config or out / "config.toml"


def compare(
    methods: Annotated[
        list[str],
        typer.Argument(
            metavar="METHOD… [CONFIG.toml] | RUN…", help="Methods and one config file, or folders of finished runs."
        ),
    ],
    sets: Sets = [],  # noqa: B006
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds to run each method with.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder of the runs; default: a new one under runs/.")] = None,
    resume: Resume = False,
    baseline: Baseline = None,
    plugin: Plugins = [],  # noqa: B006
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run several methods on the same clients, initial weights and participants, and print one table.

    With folders instead of methods (runs/compare-1, ./mine), it only reads and compares the runs in them."""
    with starting(quiet):
        load_plugins(plugin)
        from torso.methods import methods as known
        from torso.parallel.compare import compare as run_all
        from torso.report.comparison import compare_folders
        from torso.report.printing import print_comparison, print_differences, print_results
        from torso.results.folder import new_run_folder

    if all(name not in known and Path(name).is_dir() for name in methods):
        options = {"--set": sets, "--seeds": seeds > 1, "--out": out, "--resume": resume, "--tensorboard": tensorboard}
        if given := [option for option, value in options.items() if value]:
            raise RequestError(
                f"torso compare of folders runs nothing, so {given[0]} has no effect. Leave it out, or give methods "
                "in place of the folders."
            )
        print_comparison(compare_folders(methods, baseline), as_json)
        return
    names, config = _compared(methods, baseline, known)
    if resume and out is None:
        raise RequestError("--resume needs --out, the folder of the comparison to continue.")
    with new_run_folder(out, "compare") as folder, watching(quiet, tensorboard) as (listener, stop):
        results = run_all(names, config, sets, seeds=seeds, out=folder, resume=resume, listener=listener, stop=stop)
    print_results(results, as_json, [result.as_json() for result in results])
    if not as_json:
        print_differences(compare_folders([result.folder for result in results if result.folder], baseline))
    raise typer.Exit(0 if all(result.ok for result in results) else 1)


def _compared(words: list[str], baseline: str | None, known: Collection[str]) -> tuple[list[str], str | None]:
    """The arguments of `torso compare`, parsed: the methods, and the config file if there is one."""
    names = [word for word in words if not word.endswith(".toml")]
    files = [word for word in words if word.endswith(".toml")]
    if not names or len(files) > 1:
        raise RequestError(f"torso compare takes METHOD… and at most one CONFIG.toml, found: {' '.join(words)}")
    for name in names:
        if name not in known and Path(name).is_dir():
            raise RequestError(f"{name!r} is a folder, not a method. Give methods only, or folders of runs only.")
        if name not in known:
            raise RequestError(
                f"{name!r} is neither a method nor a folder of runs{did_you_mean(name, known)} List the methods: "
                "torso methods. Load your own: --plugin FILE.py"
            )
    if baseline is not None and baseline not in names:
        raise RequestError(f"--baseline {baseline!r} is not among the methods. Accepted: {', '.join(names)}")
    return names, files[0] if files else None
