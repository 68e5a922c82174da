"""The client program: answers the server's requests. Samples, labels and the client's state stay on this machine.

Its files, in the folder HOME:

runs/RUN/agreed.json            what this client has agreed to: config, agreement, its number, the printed notice
runs/RUN/round-R.*              its state after round R (versions.py)
runs/RUN/known-*.safetensors    tensors from the server that do not change from round to round
models/RUN.safetensors          its personal model, after the run; RUN.json describes it
models/calibrated/              the same model with running statistics, if its BatchNorm uses those of the batch
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from torso.config import Config
from torso.data.clients import checksum
from torso.data.inputs import Pixels
from torso.errors import RequestError, TorsoError
from torso.federation.agreement import Agreement, site_federation
from torso.federation.client_run import ClientRun, MissingTensors
from torso.federation.notice import asks_class_sums, measured, what_leaves
from torso.federation.protocol import PROTOCOL, Reply, ReplyHeader, Request, RequestHeader, failed
from torso.federation.reasons import reason_of
from torso.federation.site_data import SiteData
from torso.federation.versions import ClientStateFiles
from torso.measure.evaluate import Values
from torso.nets import Network
from torso.reading import parse_json, parse_toml
from torso.results.calibration import accuracy, calibrate_client, calibrated_path
from torso.results.files import write_text
from torso.results.model_file import SUFFIX, save_model
from torso.runs.checks import POOLED
from torso.runs.job import prepare
from torso.runs.messages import Message
from torso.runs.site import Site

if TYPE_CHECKING:
    from torso.federation.secure.secure_replies import SecureReplies

Say = Callable[[str], None]


class ClientService:
    """A client: answers requests from its data and its files.

    `folder`: for the client's files. `say`: prints a line for the user of this machine. `sums_only`: refuse runs whose
    server could see single uploads."""

    def __init__(
        self,
        name: str,
        data: SiteData,
        folder: Path,
        device: torch.device,
        say: Say = print,
        *,
        sums_only: bool = False,
    ) -> None:
        self.name, self.data, self.folder, self.device, self.say = name, data, folder, device, say
        self.sums_only = sums_only
        self._runs: dict[str, ClientRun] = {}  # of the last run only: a ClientRun has a copy of the samples
        self._checksum = _checksum(data)
        self._answers: dict[str, Callable[[Request], Reply]] = {
            "who": self._describe,
            "refused": self._refused,
            "agree": self._agree,
            "told": self._told,
            "sums": self._sums,
            "exam": self._exam,
            "pooled": self._pooled,
            "finish": self._finish,
            **dict.fromkeys(("keys", "shares", "unmask"), self._sealing),
        }
        self._sealer: SecureReplies | None = None  # made at the first secure sum

    def answer(self, data: bytes) -> bytes:
        """The bytes of the reply to a request. Errors are reported in the reply; they never end the client."""
        return self._reply(data).encode()

    def _reply(self, data: bytes) -> Reply:
        try:
            request = Request.decode(data)
            if request.header.protocol != PROTOCOL:
                return failed(f"it speaks protocol {PROTOCOL}, and the server {request.header.protocol}")
            return self._answers[request.header.kind](request)
        except MissingTensors as lacks:
            return Reply(ReplyHeader(kind="lacks", lacks=lacks.digests))
        except Exception as error:  # no request may end this client, or make the server wait for its reply
            kind = "" if isinstance(error, TorsoError) else f"{type(error).__name__}: "
            self.say(" ".join(f"could not answer: {kind}{error}".split()))
            return failed(reason_of(error).replace(str(self.folder), "…"))  # the server must not learn paths

    def _describe(self, request: Request) -> Reply:
        description = self.data.description(self.name)
        return Reply(ReplyHeader(kind="described", description=description.model_dump_json()), self.data.moments)

    def _refused(self, request: Request) -> Reply:
        self.say(f"refused: {request.header.reason}")
        return Reply(ReplyHeader(kind="done"))

    def _agree(self, request: Request) -> Reply:
        """Accept the terms of a run, after a notice of what leaves this machine has been printed."""
        header = request.header
        agreed = {
            "config": header.config,
            "agreement": header.agreement,
            "client": header.client,
            "data": self._checksum,
            "base": header.base,
        }
        folder = self._folder(header)
        before = _agreed(folder)
        if before is not None and before["client"] != header.client:
            raise RequestError(f"it is client {before['client']} of this run, and is called {header.client}")
        self._check_data(before)
        client_run = self._prepare(request, folder, agreed)
        notice = what_leaves(client_run.site.job, header.client, self.name)
        if before is None or before["said"] != notice:
            self.say(notice)
            self._say_fit(client_run)
        folder.mkdir(parents=True, exist_ok=True)
        write_text(folder / "agreed.json", json.dumps({**agreed, "said": notice}))
        self._runs = {str(header.run): client_run}
        return Reply(ReplyHeader(kind="agreed"))

    def _say_fit(self, client_run: ClientRun) -> None:
        """Tell the user how this client's images are converted for the model."""
        mine, agreed = self.data.input, client_run.site.job.roster.input
        if mine.shape != agreed.shape and isinstance(agreed, Pixels):
            self.say(f"the model takes {agreed.words}: yours, {mine.words}, are resized and converted")

    def _check_data(self, agreed: dict[str, Any] | None) -> None:
        if agreed is not None and agreed["data"] != self._checksum:
            raise RequestError(
                "its data are not those that it began the run with. Expected: the same until the next run"
            )

    def _prepare(self, request: Request, folder: Path, agreed: dict[str, Any]) -> ClientRun:
        """This client's part of a run: everything is prepared again from the agreed config and agreement.

        The initial weights are drawn from the seed. If their digest differs (pretrained weights), the server sends
        them."""
        try:
            agreement = Agreement.model_validate_json(agreed["agreement"])
            tree = parse_toml(agreed["config"])
        except ValueError as error:
            raise RequestError(f"what the server wants agreed cannot be read: {error}") from None
        tree.setdefault("run", {})["device"] = str(self.device)
        client = int(agreed["client"])
        if agreement.names[client] != self.name:
            raise RequestError(f"client {client} of the run is {agreement.names[client]!r}, and this is {self.name!r}")
        config = Config(**tree)
        if self.sums_only and config.run.flower.secure.kind == "none":
            raise RequestError(
                "this client takes part in secure sums only (--sums-only), and run.flower.secure.kind = 'none'. "
                "Accepted: secagg+"
            )
        job = prepare(config, agreement.roster, self.device, begins=False)
        site = Site(job, site_federation(self.data, agreement, client, self.device), client)
        client_run = ClientRun(site, ClientStateFiles(folder), folder, agreement.classes)
        model = client_run.known(request, "base", agreed["base"], job.model)
        return replace(client_run, site=Site(job.begun(model), site.federation, client))

    def _run_of(self, header: RequestHeader) -> ClientRun:
        """The run of a request; after a restart, it is prepared from agreed.json."""
        run = str(header.run)
        if run not in self._runs:
            folder = self._folder(header)
            agreed = _agreed(folder)
            if agreed is None:
                raise RequestError(f"it has agreed to no run {run}")
            self._check_data(agreed)
            self._runs = {run: self._prepare(Request(header), folder, agreed)}
        return self._runs[run]

    def _training(self, header: RequestHeader) -> ClientRun:
        """The run of a request to training clients. A newcomer refuses it: it has been told that it sends nothing."""
        client_run = self._run_of(header)
        if client_run.site.kind == "newcomer":
            raise RequestError(f"it joined later and does not train: a request {header.kind!r} is not for it")
        return client_run

    def _folder(self, header: RequestHeader) -> Path:
        if header.run is None:
            raise RequestError(f"a request {header.kind!r} names no run")
        return self.folder / "runs" / header.run

    def _told(self, request: Request) -> Reply:
        """Train in a round and reply with the upload."""
        header = request.header
        client_run = self._training(header)
        told = client_run.hear(request)

        def train() -> Message:
            held = client_run.held(header.model_copy(update={"round": told.round}))
            client_run.versions.tidy({header.since, *header.back})
            self.say(f"round {told.round}: training")
            began = time.perf_counter()
            sent, left = client_run.site.visit(told, held)
            client_run.versions.save(told.round, left)  # before the reply: if the reply counts, this state must exist
            seconds = time.perf_counter() - began
            self.say(f"round {told.round}: trained for {seconds:.1f} s, loss {sent.numbers.loss:.4f}")
            return sent

        if client_run.sums_only:
            return self._sealed().visit(client_run.site, header, told, train)
        sent = train()
        return Reply(ReplyHeader(kind="sent", numbers=sent.numbers), sent.tensors)

    def _sealing(self, request: Request) -> Reply:
        """Answer a stage of a secure sum that has no tensors: keys, shares, unmask."""
        client_run = self._training(request.header)
        if not client_run.sums_only:
            raise RequestError(f"a request {request.header.kind!r} is for secure sums, and this run has none")
        return self._sealed().answer(client_run.site, request.header)

    def _sealed(self) -> SecureReplies:
        if self._sealer is None:
            from torso.federation.secure.secure_replies import SecureReplies  # needs Flower

            self._sealer = SecureReplies()
        return self._sealer

    def _sums(self, request: Request) -> Reply:
        client_run = self._training(request.header)
        if not asks_class_sums(client_run.site.job):
            raise RequestError(f"{client_run.site.job.config.method.name} asks for no class sums: they stay here")
        model = client_run.model(request)
        if client_run.sums_only:
            return self._sealed().class_sums(client_run.site, request.header, lambda: client_run.site.class_sums(model))
        return Reply(ReplyHeader(kind="sums"), client_run.site.class_sums(model))

    def _exam(self, request: Request) -> Reply:
        header = request.header
        client_run = self._training(header)
        _check_measures(client_run, header.names)
        values = client_run.site.exam(header.names, client_run.standing(request), client_run.held(header))
        return _values(values)

    def _pooled(self, request: Request) -> Reply:
        client_run = self._training(request.header)
        _check_measures(client_run, (POOLED,))
        return _values(client_run.site.pooled_exam(client_run.model(request)))

    def _finish(self, request: Request) -> Reply:
        """Make this client's own model at the end of the run, and write it to a file with a description."""
        header = request.header
        client_run = self._run_of(header)
        site = client_run.site
        kind, job = site.kind, site.job
        before, after, net = site.make(client_run.standing(request), client_run.held(header))
        assert net.card is not None
        net.card = replace(net.card, client=self.name)
        models = self.folder / "models"
        path = save_model(net, models / f"{header.run}{SUFFIX}")
        calibration = _calibrated(net, path, site)
        about = {
            "run": header.run,
            "client": self.name,
            "number": site.client,
            "method": job.config.method.name,
            "dataset": job.roster.name,
            "kind": kind,
            "round": header.round,
            "taken_part": header.since > 0,
            "classes": list(client_run.classes),
            "accuracy": {"before": before, "after": after, **calibration},
            "finished": time.strftime("%Y-%m-%dT%H:%M:%S"),
        }
        write_text(models / f"{header.run}.json", json.dumps(about, indent=1) + "\n")
        self.say(f"{job.config.method.name} is over: your model is {path} ({_percent(before)} → {_percent(after)})")
        client_run.versions.tidy({header.since})  # the server cannot go back to an earlier round any more
        self._runs = {}
        return Reply(ReplyHeader(kind="done"))


def _calibrated(net: Network, path: Path, site: Site) -> dict[str, Any]:
    """If BatchNorm uses batch statistics: write a second file with statistics of this client's samples.

    Returns the entries for the description, {} if there is no second file."""
    made = calibrate_client(site.federation, net, site.client)
    if made is None:
        return {}
    save_model(made, calibrated_path(path))
    found = accuracy(made, site.federation.test, site.federation.test.rows(site.client))
    return {"calibrated": found, "batch": site.job.config.measure.batch_size}


def _check_measures(client_run: ClientRun, names: Iterable[str]) -> None:
    """Refuse measures that were not in the agreed config: they could reveal more about the samples."""
    wanted = measured(client_run.site.job.config)
    for name in names:
        if name not in wanted:
            raise RequestError(f"{name!r} is no measure of this run. Accepted: {', '.join(wanted)}")


def _checksum(data: SiteData) -> str:
    """A checksum of the client's data. A run must continue with the data that it began with."""
    arrays = (array for part in (data.train, data.test) for array in (part.samples, part.labels))
    return checksum((data.classes, data.input), arrays)


def _agreed(folder: Path) -> dict[str, Any] | None:
    """The content of agreed.json; None if there is no such file."""
    path = folder / "agreed.json"
    try:
        found: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        return found
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise RequestError(f"{path} cannot be read: {error}. Expected: the file as this client wrote it") from None


def _percent(value: float | None) -> str:
    return "no test data" if value is None else f"{value:.1f} %"


def _values(values: Values) -> Reply:
    return Reply(ReplyHeader(kind="values", values={name: tuple(found) for name, found in values.items()}))
