"""Runs an experiment over a real federation: `torso federation run`, on the server."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from pydantic import ValidationError

from torso.config import Config
from torso.data import Federation, Roster
from torso.data.clients import SOURCE
from torso.engine import OneByOne
from torso.errors import RequestError
from torso.federation.agreement import Agreement, server_federation
from torso.federation.connected_clients import ConnectedClients
from torso.federation.participation_log import ParticipationLog
from torso.federation.privacy import with_secret
from torso.federation.remote_calls import FinishCall
from torso.federation.remote_engine import RemoteEngine
from torso.federation.site_data import read_test
from torso.federation.status import note_descriptions
from torso.federation.transport import ServerLink
from torso.learn.attacks import NoAttack
from torso.measure import measures
from torso.nets.bodies import GIVEN, wants_of
from torso.reading import parse_json
from torso.results.checkpoint import rounds_of
from torso.results.files import write_text
from torso.results.folder import RunFolder
from torso.results.result import Result
from torso.runs.checks import POOLED
from torso.runs.evaluation import LastVisit, evaluation_of
from torso.runs.events import Listener, Stop
from torso.runs.job import Job, prepare
from torso.runs.loop import play
from torso.runs.run import Stopped

AGREED = "federation.json"
Say = Callable[[str], None]
ServerData = Callable[[Agreement], Federation]
"""A function: agreement → the server's data, which are a test set and no sample of a client."""


def test_set(path: Path, config: Config) -> ServerData:
    """The server's test set, from a file or folder."""
    found = read_test(path, config.data, wants_of(config.model.body, config.model.weights))
    return lambda agreement: server_federation(found, agreement, torch.device("cpu"))


test_set.__test__ = False  # type: ignore[attr-defined]  # pytest must not collect it


@dataclass(frozen=True)
class FederationFile:
    """The content of federation.json in the run folder."""

    run: str  # id of the run
    agreement: Agreement
    delivered: tuple[str, ...] = ()  # names of the clients that have made their own model

    def write(self, folder: Path) -> None:
        tree = {"run": self.run, "delivered": list(self.delivered), "agreement": self.agreement.model_dump(mode="json")}
        write_text(folder / AGREED, json.dumps(tree, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> FederationFile:
        path = folder / AGREED
        try:
            tree = parse_json(path.read_text(encoding="utf-8"))
            agreement = Agreement.model_validate_json(json.dumps(tree["agreement"]))
            return cls(str(tree["run"]), agreement, tuple(map(str, tree["delivered"])))
        except FileNotFoundError:
            begun = (folder / "config.toml").exists()  # a run that was killed before this file, or a simulation
            advice = "Delete the folder, or give another --out, and leave" if begun else "Leave"
            raise RequestError(
                f"--resume: {str(folder)!r} holds no run of a federation (no {AGREED}). "
                f"{advice} --resume out to start one."
            ) from None
        except (OSError, ValueError, KeyError, TypeError, ValidationError) as error:
            raise RequestError(f"{path} cannot be read: {error}") from None


def run_federation(
    config: Config,
    link: ServerLink,
    out: Path,
    *,
    resume: bool = False,
    listener: Listener | None = None,
    stop: Stop | None = None,
    say: Say = print,
    server_data: ServerData | None = None,
    describe: Path | None = None,
    command: str = "torso federation run",
) -> Result:
    """Train, measure and record one experiment with clients that hold their own data.

    `server_data`: the server's test set (`test_set`). `describe`: a file for the descriptions of the clients.
    `command`: the command that continues the run, for messages.
    With `resume` on a finished run, clients that were absent at its end make their models now."""
    config = for_federation(config)
    stop = stop or Stop()
    federation_file = FederationFile.read(out) if resume else None
    prepared = _PreparedRun.of(config, federation_file.agreement, server_data) if federation_file else None
    # checked before waiting for clients
    folder = RunFolder.check(out, prepared.job.config if prepared else config, resume)
    with link:
        clients = ConnectedClients(link, config, federation_file.run if federation_file else uuid.uuid4().hex, say)
        options = config.run.flower
        least = 1 if folder.finished else config.train.min_clients  # a finished run waits for any client without model
        wanted = 1 if folder.finished else options.clients or least
        clients.gather(wanted, least, options.wait, lambda: _raise_if_stopped(stop))
        if describe is not None:
            note_descriptions(describe, [description for description, _ in clients.described.values()])
        if federation_file is None or prepared is None:
            federation_file = FederationFile(clients.run, clients.agree())
            prepared = _PreparedRun.of(config, federation_file.agreement, server_data)
        clients.agreement = federation_file.agreement
        job = prepared.job
        if job.privacy:
            job.privacy.settle()
        for remark in (*prepared.left_out, *_about_sums(job)):
            say(remark)
        folder = RunFolder.check(out, job.config, resume)
        if not resume:
            folder.create()
            federation_file.write(out)
        job = with_secret(job, out, resume)
        book = ParticipationLog(federation_file.run)
        record = _FederationFileWriter(out, federation_file)
        clients.changed = record.agreed
        with folder.held():
            clients.send_terms(job)
            own_data = prepared.own_data
            local = OneByOne(job.net, own_data, workers=1) if own_data is not None else None
            times = (options.deadline, options.wait)
            with _engine(job)(job, link, clients, book, *times, local, lambda: stop.asked) as engine:
                _restore(book, folder, job)
                if folder.finished:
                    result = Result.read(out)
                else:
                    result = play(job, engine, folder, resume, listener, stop, command)
                if result.ok:
                    missing = deliver(job, engine, clients, book, folder, record)
                    for note in engine.repaired():
                        say(note)
                    if missing:
                        again = f"{command} {out / 'config.toml'} --out {out} --resume"
                        say(f"without a model yet: {', '.join(missing)}. When they are there: {again}")
        return result


def _engine(job: Job) -> type[RemoteEngine]:
    """The class of the engine: with secure sums or without."""
    if job.config.run.flower.secure.kind == "none":
        return RemoteEngine
    from torso.federation.secure.secure_engine import SecureRemoteEngine  # needs Flower

    return SecureRemoteEngine


def _about_sums(job: Job) -> list[str]:
    """Remarks about secure sums for the operator of the server."""
    if job.config.run.flower.secure.kind == "none":
        return []
    return ["the server opens sums over the participants only (SecAgg+); a checkpoint is written after every round"]


def _raise_if_stopped(stop: Stop) -> None:
    if stop.asked:
        raise Stopped("stopped while clients were waited for: nothing has changed")


@dataclass(frozen=True)
class _PreparedRun:
    """A run that is ready to begin: everything that follows from the config and the agreement."""

    job: Job
    own_data: Federation | None  # of the server
    left_out: list[str]  # remarks about measures that are left out

    @classmethod
    def of(cls, config: Config, agreement: Agreement, server_data: ServerData | None) -> _PreparedRun:
        own_data = server_data(agreement) if server_data else None
        test_samples = len(own_data.test.labels) if own_data else 0
        job, left_out = fitted(config, replace(agreement.roster, test_samples=test_samples))
        return cls(job, own_data, left_out)


class _FederationFileWriter:
    """Writes federation.json again after every change."""

    def __init__(self, folder: Path, federation_file: FederationFile) -> None:
        self.folder, self.federation_file = folder, federation_file

    def agreed(self, agreement: Agreement) -> None:
        self._write(replace(self.federation_file, agreement=agreement))

    def delivered(self, name: str) -> None:
        self._write(replace(self.federation_file, delivered=(*self.federation_file.delivered, name)))

    def _write(self, federation_file: FederationFile) -> None:
        self.federation_file = federation_file
        federation_file.write(self.folder)


def for_federation(config: Config) -> Config:
    """The config with `run.engine = flower`; RequestError if a real federation cannot run it."""
    method = config.method
    refusals = {
        f"attack.kind = {config.attack.kind!r} is for simulations: real clients attack by themselves. Accepted: none": (
            not isinstance(config.attack.chosen, NoAttack)
        ),
        f"data.server_fraction = {config.data.server_fraction} deals samples of clients to the server. Accepted: 0": (
            config.data.server_fraction > 0
        ),
        f"data.new_clients = {config.data.new_clients}: in a real federation, new clients join later. Accepted: 0": (
            config.data.new_clients > 0
        ),
        f"method.server_data = {method.server_data!r} trains on samples that the server has, and it has none. "
        "Accepted: none": method.server_data != "none",
        f"method {method.name!r} has clients train on samples that the server gives to everybody, and it has none. "
        "Accepted: methods without method.meta_data and meta steps": method.meta_data or method.step.uses_meta,
        f"measure.analyses = {list(config.measure.analyses)} look at samples of all clients. Accepted: none": bool(
            config.measure.analyses
        ),
        f"measure.every = {config.measure.every} shows clients models of rounds that are not on disk yet, and a private"
        " round must not be played twice. Accepted with privacy: 0": config.privacy.on and config.measure.every > 0,
        f"model.body = {config.model.body!r} is a module of a program, which does not travel. Accepted: names of "
        "networks that all machines have": config.model.body.startswith(GIVEN),
        f"model.encoder = {config.model.encoder!r}: the clients of a real federation do not encode their samples. Give "
        "each its features as numbers (torso federation split writes such files), or set model.body to the encoder "
        "with method.name = lp or fedncm": bool(config.model.encoder),
        f"data.source = {SOURCE!r} is for clients that a program hands over": config.data.source == SOURCE,
    }
    for reason, wrong in refusals.items():
        if wrong:
            raise RequestError(reason)
    # A checkpoint after every round, so that no round is repeated after a crash. A private round that is repeated costs
    # privacy that is not accounted for. A round of secure sums that is repeated with other participants reveals single
    # uploads: they are the difference of the two sums.
    once = config.privacy.on or config.run.flower.secure.kind != "none"
    return config.but("run.engine=flower", *(["run.checkpoint_every=1"] if once else []))


def fitted(config: Config, roster: Roster) -> tuple[Job, list[str]]:
    """The job without the measures that a real federation cannot take, and a remark about each of these."""
    without_measures = config.but("measure.names=[]", "measure.during=[]")
    keeps = prepare(without_measures, roster).keeps_parts
    reasons: dict[str, str] = {}
    for name in dict.fromkeys((*config.measure.names, *config.measure.during)):
        measure = measures[name]
        if measure.of == "newcomers":
            reasons[name] = "newcomers are measured where they are"
        elif measure.of == "mixes":
            reasons[name] = "it would take the class counts of clients"
        elif measure.whole_test and measure.of != "server":
            reasons[name] = "it is taken of clients, on a test set that they do not have"
        elif measure.whole_test and not roster.test_samples and name != POOLED:
            reasons[name] = "the server has no test set"
        elif measure.of == "server" and keeps:
            reasons[name] = f"{config.method.name} keeps parts of the model at its clients, and they stay there"
    kept = {
        key: [name for name in names if name not in reasons]
        for key, names in (("names", config.measure.names), ("during", config.measure.during))
    }
    lists = [f"measure.{key}={json.dumps(names)}" for key, names in kept.items()]
    left_out = [f"{name} is not measured: {reason}" for name, reason in reasons.items()]
    return prepare(config.but(*lists), roster), left_out


def _restore(book: ParticipationLog, folder: RunFolder, job: Job) -> None:
    """Fill the book from the run's history, up to the newest checkpoint."""
    found = folder.newest(job.model)
    done = found.state.round if found else 0
    for line in folder.history():
        if line["round"] <= done:
            book.counted(line["round"], line["participants"])
    book.checkpoints = lambda: rounds_of(folder.path / "checkpoints")


def deliver(
    job: Job,
    engine: RemoteEngine,
    clients: ConnectedClients,
    book: ParticipationLog,
    folder: RunFolder,
    record: _FederationFileWriter,
) -> list[str]:
    """Let every client that is there make its own model, newcomers too. Returns the names of those without a model."""
    found = folder.newest(job.model)
    assert found is not None
    state = found.state
    visit = evaluation_of(job, job.stage(state.round), state).visit
    assert isinstance(visit, LastVisit)
    call = FinishCall(job, book, visit)
    waiting = [client for client in clients.by_client() if clients.name(client) not in record.federation_file.delivered]
    for client, made in engine.ask(call, waiting):
        if made:
            record.delivered(clients.name(client))
    return [name for name in record.federation_file.agreement.names if name not in record.federation_file.delivered]
