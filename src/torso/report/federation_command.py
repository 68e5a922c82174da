"""`torso federation …`: parse, call, print."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torso.errors import InUse, RequestError
from torso.plugins import Plugins, load_plugins
from torso.report.options import Json, Quiet, RunOut, Sets, TensorBoard
from torso.report.watching import watching

Folder = Annotated[Path, typer.Argument(metavar="DIR", help="The federation's folder, as `init` made it.")]
Client = Annotated[Path, typer.Argument(metavar="DIR", help="This machine's copy of the folder `client`.")]
Name = Annotated[str, typer.Option(help="The client's name, such as clinic-3.")]

_app = typer.Typer(
    help="Run a real federation: each client has its own machine and data. Needs the package flwr (the extra flower).",
    no_args_is_help=True,
)


def add_to(app: typer.Typer) -> None:
    """Give the command line its commands."""
    app.add_typer(_app, name="federation")


def _say(text: str) -> None:
    Console(stderr=True).print(text, soft_wrap=True, highlight=False, markup=False)


def _warn_insecure(text: str) -> None:
    Console(stderr=True).print(f"[bold red]INSECURE:[/] [red]{text}", soft_wrap=True, highlight=False)


@_app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    host: Annotated[str, typer.Option(help="Address of the server for its clients: a host name or an IP address.")],
    port: Annotated[int, typer.Option(help="The only port that must be open on the server.")] = 9092,
    names: Annotated[
        list[str], typer.Option("--also", metavar="HOST", help="Another name of the server for its certificate.")
    ] = [],  # noqa: B006  typer copies it
    config: Annotated[
        Path | None, typer.Option(metavar="CONFIG.toml", help="Config of the run; default: a small example.")
    ] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: only for trials.")] = False,
) -> None:
    """Write the folder of a federation: certificates for a trial, settings of server and clients, a config, a guide."""
    _needs_flower()
    from torso.federation.folder import init as write

    place = write(folder, host, port, names, insecure, config)
    if insecure:
        Console(stderr=True).print(
            "[bold red]INSECURE: no TLS, no authentication. Every machine that reaches the port may join."
        )
    print(f"{place.path}: a federation at {place.clients.server}. What to do next: {place.path / 'README.md'}")


@_app.command()
def serve(folder: Folder) -> None:
    """Run the server until Ctrl-C. Clients and `torso federation run` connect to it."""
    _needs_flower()
    from torso.federation.flower.serve import serve as forever
    from torso.federation.folder import ServerFolder

    forever(ServerFolder.open(folder))


@_app.command()
def key(folder: Client, name: Name) -> None:
    """Make this client's key pair. The private key stays here; send the public one to the server's operator."""
    _needs_flower()
    from torso.federation.folder import ClientFolder
    from torso.federation.keys import fingerprint, make_key, public_key

    public = make_key(ClientFolder.open(folder), name)
    print(f"{public}: send this file to the server's operator, who admits it. Compare its fingerprint by telephone:")
    print(fingerprint(public_key(public)))


@_app.command()
def admit(
    folder: Folder,
    public: Annotated[Path, typer.Argument(metavar="NAME.pub", help="The client's public key.")],
    name: Annotated[str, typer.Option(help="The client's name; default: that of the file.")] = "",
) -> None:
    """Admit a client by its public key. The server must be running."""
    _needs_flower()
    from torso.federation.flower.control import admit as let_in
    from torso.federation.folder import ServerFolder

    found = let_in(ServerFolder.open(folder), public, name or public.stem)
    print(f"{found.name} is admitted, with the key {found.fingerprint}")


@_app.command()
def revoke(folder: Folder, name: Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")]) -> None:
    """Remove a client: it is disconnected at once, and its key is refused from then on."""
    _needs_flower()
    from torso.federation.flower.control import revoke as shut_out
    from torso.federation.folder import ServerFolder

    shut_out(ServerFolder.open(folder), name)
    print(f"{name} is revoked: it is disconnected, and its key is refused from now on.")


@_app.command()
def join(
    folder: Client,
    name: Name,
    data: Annotated[Path, typer.Option(metavar="PATH", help="This client's samples: a folder, .npz or .csv.")],
    sets: Sets = [],  # noqa: B006
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    threads: Annotated[
        int,
        typer.Option(min=1, help="CPU threads. With 1 the result has the bits of a simulation; with more it may not."),
    ] = 1,
    sums_only: Annotated[bool, typer.Option("--sums-only", help="Refuse runs without secure aggregation.")] = False,
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Take part in runs with this machine's data until Ctrl-C. When a run begins, this prints what it will send."""
    _needs_flower()
    load_plugins(plugin)
    import torch

    from torso.config import Config
    from torso.federation.client_service import ClientService
    from torso.federation.flower.client import FlowerClientLink
    from torso.federation.folder import ClientFolder
    from torso.federation.keys import check_name
    from torso.federation.notice import what_columns_tell
    from torso.federation.site_data import read_site
    from torso.nets import wants_of
    from torso.runs.devices import device_named
    from torso.signals import terminated_as_interrupted

    refused = [text for text in sets if not text.strip().startswith(("data.", "model.body", "model.weights"))]
    if refused:
        raise RequestError(
            f"--set {refused[0]!r}: a client sets only how its data are read. Accepted: keys of data.*, and model.body "
            "and model.weights if the run's network has a tokenizer"
        )
    place = ClientFolder.open(folder)
    own = Config.load(None, sets)
    found = read_site(data, own.data, check_name(name), wants_of(own.model.body, own.model.weights))
    torch.set_num_threads(threads)
    for remark in filter(None, (*found.remarks, what_columns_tell(found.told.columns))):
        _say(remark)
    (place.path / name).mkdir(mode=0o700, exist_ok=True)  # only this user may read what the client will hold
    home = ClientService(name, found, place.path / name, device_named(device), _say, sums_only=sums_only)
    with terminated_as_interrupted(), FlowerClientLink(place, name, _say) as link:
        if place.insecure:
            _warn_insecure("no TLS, no authentication: every machine in between can read and change everything.")
        _say(
            f"{name} is connected to {place.settings.server} with {len(found.train)} training and {len(found.test)} "
            f"test samples of {len(found.classes)} class{'es' * (len(found.classes) != 1)}. Ctrl-C ends it."
        )
        try:
            link.serve(home.answer)
        except KeyboardInterrupt:
            _say(f"{name} has left. Its state is in {home.folder}. With it, the client can return to a run.")
            raise typer.Exit from None


@_app.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """List the clients: who is connected, with how many samples."""
    _needs_flower()
    from torso.federation.flower.server import FlowerServerLink
    from torso.federation.folder import ServerFolder
    from torso.federation.status import status_of
    from torso.report.printing import print_list

    place = ServerFolder.open(folder)
    try:
        with FlowerServerLink(place) as link:
            rows = status_of(place, link)
    except InUse:
        rows = status_of(place, None)
    if not rows and not as_json:
        print("no client is admitted yet. Admit one: torso federation admit")
        return
    shown = rows if as_json else [{key: row[key] for key in row if key not in ("input", "said")} for row in rows]
    print_list(shown, as_json)


@_app.command()
def models(
    folder: Client,
    name: Annotated[str, typer.Option(help="Only the models of this client.")] = "",
    as_json: Json = False,
) -> None:
    """List the personal models on this machine. `torso export DIR/NAME --out …` writes the newest as files."""
    from torso.federation.folder import ClientFolder
    from torso.federation.models import is_home, models_of
    from torso.report.printing import print_list

    place = ClientFolder.open(folder)
    homes = sorted(path for path in place.path.iterdir() if is_home(path) and (not name or path.name == name))
    rows = [
        {
            "client": home.name,
            "method": model.about["method"],
            "rounds": model.about["round"],
            "before %": _rounded(model.about["accuracy"]["before"]),
            "after %": _rounded(model.about["accuracy"]["after"]),
            "finished": model.about["finished"],
            **({"file": str(model.path), "classes": model.about["classes"]} if as_json else {}),
        }
        for home in homes
        for model in models_of(home)
    ]
    if not rows and not as_json:
        print(f"{place.path} holds no model: no run has ended here yet.")
        return
    print_list(rows, as_json)
    if not as_json:
        print(f"Accuracy is on the client's own test data. To export a model: torso export {folder}/NAME --out DIR")


def _rounded(percent: float | None) -> float | str:
    return "" if percent is None else round(percent, 1)


@_app.command()
def split(
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder.")],
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="Config of a simulated run; default: all defaults."),
    ] = None,
    sets: Sets = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Write each client of a simulated run as a file, to try the same federation on real machines."""
    from torso.config import Config
    from torso.federation.split import split as write

    written = write(Config.load(config, sets), out)
    if as_json:
        print(json.dumps({"clients": [str(path) for path in written], "config": str(out / "config.toml")}))
        return
    print(f"{out}: {len(written)} clients ({written[0].name} …), config.toml, and test.npz, a test set for the server.")


@_app.command()
def run(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG.toml|DIR",
            help="A config; or a federation's folder, whose config.toml is used (with --resume: that of the run).",
        ),
    ],
    at: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The federation's folder; default: the config's folder, else the current one."
        ),
    ] = None,
    sets: Sets = [],  # noqa: B006
    out: RunOut = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Continue from the newest complete checkpoint. After the last round: hand out the models again.",
        ),
    ] = False,
    test: Annotated[
        Path | None, typer.Option(metavar="PATH", help="The server's own test set, for the generic model.")
    ] = None,
    plugin: Plugins = [],  # noqa: B006
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train with the connected clients and print the result. Run it on the server's machine."""
    _needs_flower()
    load_plugins(plugin)
    from torso.config import Config
    from torso.federation.flower.server import FlowerServerLink
    from torso.federation.folder import ServerFolder
    from torso.federation.run import run_federation, test_set
    from torso.report.printing import print_results
    from torso.results.folder import new_run_folder

    if resume and out is None:
        raise RequestError("--resume needs --out, the folder of the run to continue.")
    place = ServerFolder.open(_federation_of(config, at))
    if config.is_dir():
        config = (out if resume and out is not None else config) / "config.toml"
    experiment = Config.load(config, sets)
    link = FlowerServerLink(place)
    name = f"{experiment.method.name}-federation"
    with new_run_folder(out, name) as folder, watching(quiet, tensorboard) as (listener, stop):
        result = run_federation(
            experiment,
            link,
            folder,
            resume=resume,
            listener=listener,
            stop=stop,
            say=listener.note if not quiet else (lambda _: None),
            server_data=None if test is None else test_set(test, experiment),
            describe=place.private / "clients.json",
            command=f"torso federation run --at {shlex.quote(str(place.path))}",
        )
    print_results([result], as_json, result.as_json())
    raise typer.Exit(0 if result.ok else 1)


def _federation_of(config: Path, at: Path | None) -> Path:
    """The folder of the federation: the one given by --at, else the config's folder, else the current folder."""
    if at is not None:
        return at
    beside_config = config if config.is_dir() else config.parent
    return beside_config if (beside_config / "server").is_dir() else Path()


def _needs_flower() -> None:
    """Refuse with a hint if Flower is not installed, and turn off its telemetry."""
    import os
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise RequestError(
            "a real federation needs Flower, which is not installed. Install it with: pip install 'torso[flower]'"
        )
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # no data leave the federation
