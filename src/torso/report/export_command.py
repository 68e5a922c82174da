"""`torso export`: parse, call, print."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torso.errors import RequestError
from torso.plugins import Plugins, load_plugins
from torso.report.options import ChangedData, DataRoot, Json

if TYPE_CHECKING:
    from torso.results.export import Exported, ExportOptions


def add_to(app: typer.Typer) -> None:
    """Give the command line its command."""
    app.command()(export)


def export(
    folder: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run, or of a client.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the models go: an empty or new folder.")],
    clients: Annotated[
        str,
        typer.Option("--clients", "--client", help="Clients whose models are written: all, names, or numbers (0,3)."),
    ] = "",
    generic: Annotated[
        bool, typer.Option("--generic", help="Write the generic model; the default if no client is named.")
    ] = False,
    held: Annotated[bool, typer.Option("--held", help="Write the clients' models before personalisation.")] = False,
    new: Annotated[
        Path | None,
        typer.Option(metavar="DATA.npz", help="Make a model for a new client from its images (or samples) and labels."),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=0, help="Epochs of training for --new; default: as in the run.")
    ] = None,
    data_root: DataRoot = None,
    accept_changed_data: ChangedData = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N; default: run.device of the run.")] = "",
    formats: Annotated[
        list[str],
        typer.Option("--format", help="safetensors (the default), onnx, torch-export; separate several by commas."),
    ] = [],  # noqa: B006  typer copies it
    preprocessing: Annotated[
        str,
        typer.Option(help="inside: ONNX and torch.export files take raw samples; beside: prepared samples."),
    ] = "inside",
    norm: Annotated[
        str,
        typer.Option(
            help="calibrated: BatchNorm gets running statistics from training data if it has none; batch: no change."
        ),
    ] = "calibrated",
    opset: Annotated[int | None, typer.Option(help="ONNX opset; default: 20.")] = None,
    plugin: Plugins = [],  # noqa: B006  typer copies it
    as_json: Json = False,
) -> None:
    """Write the models of a finished run as files (safetensors, ONNX, torch.export), with a page on their use."""
    load_plugins(plugin)
    from torso.results.export import ExportOptions, check_empty, chosen_clients, read_samples
    from torso.results.export import export as write
    from torso.runs.load import load

    check_empty(out)  # fails early, before data are read
    form = ExportOptions.asked(formats, preprocessing, norm, opset)
    of_federation = _of_federation(folder, out, form, plain=not (clients or held or new))
    if of_federation is not None:
        _tell(out, of_federation, as_json)
        return
    if epochs is not None and new is None:
        raise RequestError(f"--epochs {epochs} is only for a new client. Give its data too. Example: --new data.npz")
    samples = read_samples(new) if new else None
    result = load(folder, data_root=data_root, device=device, accept_changed_data=accept_changed_data)
    exported = write(
        result,
        out,
        generic=generic or not (clients or new),
        clients=chosen_clients(clients, result.job.federation.clients if result.job else 0, result.names),
        personal=not held,
        newcomer=result.newcomer(*samples, epochs=epochs) if samples else None,
        newcomer_samples=samples[0] if samples else None,
        form=form,
    )
    _tell(out, exported, as_json)


def _of_federation(folder: Path, out: Path, form: ExportOptions, plain: bool) -> Exported | None:
    """The exported model of a real federation's folder, at a client or on the server; None for any other folder.

    `plain`: no option asks for the models of certain clients. A federation's folder holds one model only."""
    from torso.federation.models import export_generic, export_own, is_home, is_served

    if not (is_home(folder) or is_served(folder)):
        return None
    if not plain:
        raise RequestError(
            f"{str(folder)!r} belongs to a real federation and holds one model. Other clients' models are only on "
            "their own machines. Leave --clients, --held and --new out."
        )
    if is_home(folder):
        return export_own(folder, out, form=form)
    return export_generic(folder, out, form=form)


def _tell(out: Path, exported: Exported, as_json: bool) -> None:
    from torso.results.calibration import lines

    files, models = exported.files, len({path.stem for path in exported.files})
    if as_json:
        done = [asdict(one) for one in exported.calibrations]
        print(json.dumps({"page": str(exported.page), "models": [str(path) for path in files], "calibrated": done}))
        return
    size = sum(path.stat().st_size for path in files) / 1e6
    in_files = "" if len(files) == models else f" in {len(files)} files"
    print(f"{out}: {models} model{'' if models == 1 else 's'}{in_files}, {size:.2f} MB. Use: {exported.page}")
    for line in (*lines(exported.calibrations), exported.note):
        if line:
            print(line)
