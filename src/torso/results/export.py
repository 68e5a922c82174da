"""`torso export`: writes the models of a finished run into a folder, with a page that says how to use them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

from torso.data.sources.arrays import read_npz
from torso.errors import RequestError
from torso.nets import Network
from torso.nets.calibrate import goes_by_batch
from torso.results.calibration import Calibration, calibrate_newcomer, calibrate_own
from torso.results.encoder_file import PREFIX
from torso.results.export_page import page
from torso.results.files import write_text
from torso.results.model_file import FORMATS, save_model
from torso.results.onnx_file import check_can_write
from torso.results.portable import PREPROCESSINGS, Preprocessing
from torso.results.result import Result

PAGE = "README.md"
_NEW = (
    "an .npz file with images (uint8 [n, height, width] or [n, height, width, channels]), or with samples where they "
    "are no images, and labels (integers [n])"
)

Norm = Literal["calibrated", "batch"]
NORMS: tuple[Norm, ...] = ("calibrated", "batch")


@dataclass(frozen=True)
class ExportOptions:
    """The options of an export: in which formats models are written, and how."""

    formats: tuple[str, ...] = ("safetensors",)  # keys of FORMATS
    preprocessing: Preprocessing = "inside"  # whether a program contains the preprocessing
    norm: Norm = "calibrated"  # whether BatchNorm without running statistics gets some, or stays as it was trained
    opset: int | None = None  # of ONNX; None: the default

    @classmethod
    def asked(cls, formats: Sequence[str], preprocessing: str, norm: str, opset: int | None) -> ExportOptions:
        """The options from the words of a command line. One word may name several formats, separated by commas."""
        words = [word.strip() for text in formats for word in text.split(",")] or ["safetensors"]
        for word in words:
            _check_known("--format", word, tuple(FORMATS))
        _check_known("--preprocessing", preprocessing, PREPROCESSINGS)
        _check_known("--norm", norm, NORMS)
        if opset is not None and "onnx" not in words:
            raise RequestError(f"--opset {opset} is of ONNX. Add --format onnx")
        if "onnx" in words:
            check_can_write(opset)
        return cls(tuple(dict.fromkeys(words)), cast(Preprocessing, preprocessing), cast(Norm, norm), opset)


def _check_known(option: str, word: str, known: Sequence[str]) -> None:
    if word not in known:
        raise RequestError(f"{option} {word!r} is unknown. Accepted: {', '.join(known)}")


PLAIN = ExportOptions()


@dataclass(frozen=True)
class Exported:
    """What an export has written."""

    files: list[Path]  # of the models
    page: Path
    calibrations: list[Calibration] = field(default_factory=list)
    note: str = ""  # a remark for the user


def export(
    result: Result,
    out: Path,
    *,
    generic: bool = True,
    clients: Sequence[int] = (),
    personal: bool = True,
    newcomer: Network | None = None,
    newcomer_samples: Any = None,
    form: ExportOptions = PLAIN,
) -> Exported:
    """Write the chosen models into a folder that is empty or does not exist yet; the page is written last.

    `newcomer_samples`: the samples that were given for the new client, to calibrate its model on."""
    calibrations: list[Calibration] = []

    def models() -> Iterator[tuple[str, Network]]:
        for name, client, net in _models(result, generic, clients, personal, newcomer):
            made, done = net, None
            if form.norm == "calibrated" and net is newcomer and newcomer_samples is not None:
                made, done = calibrate_newcomer(name, net, newcomer_samples)
            elif form.norm == "calibrated" and net is not newcomer:
                made, done = calibrate_own(result, name, client, net)
            calibrations.extend([done] if done else [])
            yield name, made

    batch = result.job.config.measure.batch_size if result.job else 0
    note = _not_covered(result, generic, bool(clients) or newcomer is not None, form) if result.privacy else ""
    files = write_models(out, models(), form, batch=batch, more=note)
    return Exported(files, out / PAGE, calibrations, note)


def _not_covered(result: Result, generic: bool, own: bool, form: ExportOptions) -> str:
    """One line that names the exported parts of a private run that were computed without noise; "" if none."""
    job, parts = result.job, list[str]()
    if own:
        parts.append("models of single clients")
    if generic and job and job.keeps_parts:
        parts.append("what the generic model has of parts that stay with clients (their mean)")
    if generic and form.norm == "calibrated" and goes_by_batch(result.network()):
        parts.append("the generic model's BatchNorm statistics, which are of training samples (not with --norm batch)")
    return f"Privacy (ε) does not cover {'; '.join(parts)}. Do not publish that." if parts else ""


def write_models(
    out: Path, models: Iterable[tuple[str, Network]], form: ExportOptions, batch: int = 0, more: str = ""
) -> list[Path]:
    """Write each model in each format, and the page, into a folder that is empty or does not exist yet.

    If anything fails, all files are removed again. `batch`: the largest batch size with which the run measured, or 0.
    `more`: text for the end of the page."""
    check_empty(out)
    existed = out.exists()
    written: list[Path] = []
    last: Network | None = None
    try:
        for name, net in models:
            for kind in form.formats:
                written.append(out / f"{name}{FORMATS[kind]}")
                save_model(net, written[-1], preprocessing=form.preprocessing, opset=form.opset)
            last = net
        if last is None:
            raise RequestError("there is nothing to export: neither the generic model nor a client was asked for.")
        text = page(last, [path.name for path in written], preprocessing=form.preprocessing, batch=batch, more=more)
        write_text(out / PAGE, text)
    except BaseException:
        _remove([*written, out / PAGE, *out.glob(f"{PREFIX}*")], None if existed else out)
        raise
    return written


def _remove(files: Iterable[Path], folder: Path | None) -> None:
    with suppress(OSError):
        for path in files:
            path.unlink(missing_ok=True)
            path.with_name(f".{path.name}.tmp").unlink(missing_ok=True)
        if folder is not None:
            folder.rmdir()


def check_empty(out: Path) -> None:
    try:
        free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    except OSError as error:  # for example, a name that is too long, or a folder without read permission
        raise RequestError(f"--out {str(out)!r} cannot be written: {error.strerror}. Give another folder.") from None
    if not free:
        what = "is not empty" if out.is_dir() else "is a file"
        raise RequestError(f"--out {str(out)!r} {what}. Give a folder that is empty or not there yet.")


def chosen_clients(text: str, clients: int, names: Sequence[str] = ()) -> list[int]:
    """The clients that `--clients` names: `all`, or numbers or names, separated by commas."""
    if text.strip() == "all":
        return list(range(clients))
    if not text.strip():
        return []
    pieces = [text.strip()] if text.strip() in names else [piece.strip() for piece in text.split(",")]
    try:
        return [names.index(piece) if piece in names else int(piece) for piece in pieces]
    except ValueError:
        some = f"names such as {', '.join(names[:3])}, or " if names else ""
        raise RequestError(
            f"--clients {text!r} is no list of clients. Accepted: all, or {some}numbers from 0 to {clients - 1}, "
            "such as 0,3"
        ) from None


def file_name(client: int, names: Sequence[str]) -> str:
    """The file name of a client's model: its own name if that is unique and valid on every system, else `client-K`."""
    words = ["-".join(name.split()) for name in names]
    taken = [word.lower() for word in (*words, "generic", "newcomer")]
    usable = client < len(words) and re.fullmatch(r"\w([\w.-]{0,58}\w)?", words[client])
    return words[client] if usable and taken.count(words[client].lower()) == 1 else f"client-{client}"


def read_samples(path: Path) -> tuple[Any, Any]:
    """The samples and labels of a new client, from an .npz file. Whether they fit the run is checked by the Result."""
    if path.is_dir():
        raise RequestError(
            f"--new {str(path)!r} is a folder. torso personalize RUN --data {path} takes folders of images"
        )
    arrays = read_npz(path, _NEW, parts=())
    what = "samples" if "samples" in arrays else "images"
    missing = [name for name in (what, "labels") if name not in arrays]
    if missing:
        raise RequestError(
            f"{path} has no {', '.join(missing)} (it has {', '.join(arrays) or 'nothing'}). Expected: {_NEW}"
        )
    return arrays[what], arrays["labels"]


def _models(
    result: Result, generic: bool, clients: Sequence[int], personal: bool, newcomer: Network | None
) -> Iterator[tuple[str, int | None, Network]]:
    """The file name, the client (None: generic or newcomer) and the network of each model to export."""
    own = result.networks(clients, personal=personal)  # raises on unknown clients before anything is written
    if generic:
        yield "generic", None, result.network()
    yield from ((file_name(client, result.names), client, net) for client, net in own)
    if newcomer is not None:
        yield "newcomer", None, newcomer
