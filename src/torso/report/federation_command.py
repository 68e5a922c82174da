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
    help="Clients on machines of their own, each with its own data; needs the package flwr (the extra flower).",
    no_args_is_help=True,
)


def add_to(app: typer.Typer) -> None:
    """Give the command line its commands."""
    app.add_typer(_app, name="federation")


def _say(text: str) -> None:
    Console(stderr=True).print(text, soft_wrap=True, highlight=False, markup=False)


def _warn(text: str) -> None:
    Console(stderr=True).print(f"[bold red]INSECURE:[/] [red]{text}", soft_wrap=True, highlight=False)


@_app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder.")],
    host: Annotated[str, typer.Option(help="Where clients find the server: a host name or an IP address.")],
    port: Annotated[int, typer.Option(help="The one port that has to be open on the server.")] = 9092,
    names: Annotated[
        list[str], typer.Option("--also", metavar="HOST", help="A further name that the certificate is good for.")
    ] = [],  # noqa: B006  typer copies it
    config: Annotated[Path | None, typer.Option(metavar="CONFIG.toml", help="The run; default: a small one.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="No TLS and no keys: for trials only.")] = False,
) -> None:
    """Write a federation: certificates for a trial, settings of the server and of clients, a config, a page."""
    _needs_flower()
    from torso.federation.folder import init as write

    place = write(folder, host, port, names, insecure, config)
    if insecure:
        Console(stderr=True).print(
            "[bold red]INSECURE: no TLS, no authentication. Anybody who reaches the port may join."
        )
    print(f"{place.path}: a federation at {place.clients.server}. What to do next: {place.path / 'README.md'}")


@_app.command()
def serve(folder: Folder) -> None:
    """Run the server until Ctrl-C; clients connect to it, and runs go over it."""
    _needs_flower()
    from torso.federation.flower.serve import serve as forever
    from torso.federation.folder import ServerPlace

    forever(ServerPlace.open(folder))


@_app.command()
def key(folder: Client, name: Name) -> None:
    """Make this client's key. The private half never leaves this machine; send the other to the server's operator."""
    _needs_flower()
    from torso.federation.folder import ClientPlace
    from torso.federation.keys import fingerprint, make_key, public_key

    public = make_key(ClientPlace.open(folder), name)
    print(f"{public}: send this file to the server's operator, who admits it. To compare by telephone:")
    print(fingerprint(public_key(public)))


@_app.command()
def admit(
    folder: Folder,
    public: Annotated[Path, typer.Argument(metavar="NAME.pub", help="The public key that a client has sent.")],
    name: Annotated[str, typer.Option(help="The client's name; default: that of the file.")] = "",
) -> None:
    """Let a client in, by its public key; the server must be running."""
    _needs_flower()
    from torso.federation.flower.control import admit as let_in
    from torso.federation.folder import ServerPlace

    found = let_in(ServerPlace.open(folder), public, name or public.stem)
    print(f"{found.name} is admitted, with the key {found.fingerprint}")


@_app.command()
def revoke(folder: Folder, name: Annotated[str, typer.Argument(metavar="NAME", help="The client's name.")]) -> None:
    """Let a client in no more; it is cut off at once, and its key is good for nothing from then on."""
    _needs_flower()
    from torso.federation.flower.control import revoke as shut_out
    from torso.federation.folder import ServerPlace

    shut_out(ServerPlace.open(folder), name)
    print(f"{name} is revoked: it is cut off, and its key is not let in again.")


@_app.command()
def join(
    folder: Client,
    name: Name,
    data: Annotated[Path, typer.Option(metavar="PATH", help="This client's samples: a folder, .npz or .csv.")],
    sets: Sets = [],  # noqa: B006
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N.")] = "auto",
    threads: Annotated[
        int,
        typer.Option(min=1, help="CPU threads. With 1 the bits are those of a simulation; with more they may differ."),
    ] = 1,
    sums_only: Annotated[
        bool, typer.Option("--sums-only", help="Take no part in runs without secure aggregation.")
    ] = False,
    plugin: Plugins = [],  # noqa: B006
) -> None:
    """Take part in runs with this machine's data until Ctrl-C. What a run will send is printed when it begins."""
    _needs_flower()
    load_plugins(plugin)
    import torch

    from torso.config import Config
    from torso.federation.flower.client import FlowerClientLink
    from torso.federation.folder import ClientPlace
    from torso.federation.home import Home
    from torso.federation.keys import check_name
    from torso.federation.site_data import read_site
    from torso.federation.words import what_columns_tell
    from torso.nets import wants_of
    from torso.runs.devices import device_named
    from torso.signals import terminated_as_interrupted

    strange = [text for text in sets if not text.strip().startswith(("data.", "model.body", "model.weights"))]
    if strange:
        raise RequestError(
            f"--set {strange[0]!r}: a client sets how its data are read. Accepted: keys of data.*, and model.body and "
            "model.weights of the run where these say how (a tokenizer)"
        )
    place = ClientPlace.open(folder)
    own = Config.load(None, sets)
    found = read_site(data, own.data, check_name(name), wants_of(own.model.body, own.model.weights))
    torch.set_num_threads(threads)
    for remark in filter(None, (*found.remarks, what_columns_tell(found.told.columns))):
        _say(remark)
    (place.path / name).mkdir(mode=0o700, exist_ok=True)  # what it will hold is nobody else's business
    home = Home(name, found, place.path / name, device_named(device), _say, sums_only=sums_only)
    with terminated_as_interrupted(), FlowerClientLink(place, name, _say) as link:
        if place.insecure:
            _warn("no TLS, no authentication: whoever is in between can read and change everything.")
        _say(
            f"{name} is connected to {place.settings.server} with {len(found.train)} training and {len(found.test)} "
            f"test samples of {len(found.classes)} class{'es' * (len(found.classes) != 1)}. Ctrl-C ends it."
        )
        try:
            link.serve(home.answer)
        except KeyboardInterrupt:
            _say(f"{name} has left. What it holds is in {home.folder}: with it, it can come back to a run.")
            raise typer.Exit from None


@_app.command()
def status(folder: Folder, as_json: Json = False) -> None:
    """Say which clients are there, with how many samples."""
    _needs_flower()
    from torso.federation.flower.server import FlowerServerLink
    from torso.federation.folder import ServerPlace
    from torso.federation.status import status_of
    from torso.report.printing import print_list

    place = ServerPlace.open(folder)
    try:
        with FlowerServerLink(place) as link:
            rows = status_of(place, link)
    except InUse:
        rows = status_of(place, None)
    if not rows and not as_json:
        print("no client is admitted yet: torso federation admit")
        return
    shown = rows if as_json else [{key: row[key] for key in row if key not in ("input", "said")} for row in rows]
    print_list(shown, as_json)


@_app.command()
def models(
    folder: Client,
    name: Annotated[str, typer.Option(help="Of this client alone.")] = "",
    as_json: Json = False,
) -> None:
    """List the personal models that this machine has; `torso export DIR/NAME --out …` hands the newest out."""
    from torso.federation.folder import ClientPlace
    from torso.federation.models import is_home, models_of
    from torso.report.printing import print_list

    place = ClientPlace.open(folder)
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
        print(f"no run has ended here yet ({place.path}).")
        return
    print_list(rows, as_json)
    if not as_json:
        print(f"accuracy on the client's own test data. To take one out: torso export {folder}/NAME --out DIR")


def _rounded(percent: float | None) -> float | str:
    return "" if percent is None else round(percent, 1)


@_app.command()
def split(
    out: Annotated[Path, typer.Option(metavar="DIR", help="A new folder.")],
    config: Annotated[
        Path | None,
        typer.Argument(metavar="[CONFIG.toml]", help="A run that can be simulated; left out: the defaults."),
    ] = None,
    sets: Sets = [],  # noqa: B006
    as_json: Json = False,
) -> None:
    """Write the clients of a simulated run as files, one each, so that the same federation can be tried for real."""
    from torso.config import Config
    from torso.federation.split import split as write

    written = write(Config.load(config, sets), out)
    if as_json:
        print(json.dumps({"clients": [str(path) for path in written], "config": str(out / "config.toml")}))
        return
    print(f"{out}: {len(written)} clients ({written[0].name} …), config.toml, and test.npz for a server that wants it.")


@_app.command()
def run(
    config: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG.toml|DIR",
            help="A config, or a federation's folder: with the config in there, or with that of the run to resume.",
        ),
    ],
    at: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The federation's folder; default: where the config lies, or here."),
    ] = None,
    sets: Sets = [],  # noqa: B006
    out: RunOut = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue from the newest whole checkpoint, or hand out models once more."),
    ] = False,
    test: Annotated[
        Path | None, typer.Option(metavar="PATH", help="A test set of the server's own, for the generic model.")
    ] = None,
    plugin: Plugins = [],  # noqa: B006
    tensorboard: TensorBoard = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Train with the clients that are there, and print the result. Run it on the server's machine."""
    _needs_flower()
    load_plugins(plugin)
    from torso.config import Config
    from torso.federation.flower.server import FlowerServerLink
    from torso.federation.folder import ServerPlace
    from torso.federation.run import run_federation, test_set
    from torso.report.printing import print_results
    from torso.results.folder import own_folder

    if resume and out is None:
        raise RequestError("--resume needs --out, the folder of the run to continue.")
    place = ServerPlace.open(_federation_of(config, at))
    if config.is_dir():
        config = (out if resume and out is not None else config) / "config.toml"
    experiment = Config.load(config, sets)
    link = FlowerServerLink(place)
    name = f"{experiment.method.name}-federation"
    with own_folder(out, name) as folder, watching(quiet, tensorboard) as (listener, stop):
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
    """The federation that a config is for: the one that is named, that it lies in, or that one stands in."""
    if at is not None:
        return at
    lies_in = config if config.is_dir() else config.parent
    return lies_in if (lies_in / "server").is_dir() else Path()


def _needs_flower() -> None:
    """Say which package is missing before anything else goes wrong."""
    import os
    from importlib.util import find_spec

    if find_spec("flwr") is None:
        raise RequestError("a real federation runs over Flower, which is not installed. Install it: torso[flower]")
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")  # nothing is told to anybody but the federation
