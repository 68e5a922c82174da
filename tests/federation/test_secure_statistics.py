"""Statistics under the mask: their sums and means are those of a run in the open, up to the rounding of fixed point."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.federation.absent import absent
from tests.federation.at_home import Wire, homes_of
from tests.runs.samples import tiny

pytest.importorskip("flwr", reason="the extra flower is not installed")

from tests.federation.test_secure_run import SECURE, SETS, message, roster_of, secured, summed, worked_out

import torso
from torso import Config
from torso.errors import RequestError
from torso.federation.protocol import RequestHeader
from torso.federation.run import run_federation
from torso.federation.secure.contents import RoundContents, scale_of
from torso.federation.secure.vector import CLIPPED, Slot, VectorLayout
from torso.nets import Tensors
from torso.runs.aggregate import Aggregate
from torso.runs.job import Job, prepare, simulate
from torso.server.statistics import RoundStatistics

MASKED = ("fedproto", "feddbe", "pfedfda", "creff", "fedthe", "fedas")  # a sum or a mean of what clients send
CLIENTS = 4


@contextmanager
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[RoundStatistics]]:
    """What the server combines, round by round."""
    found: list[RoundStatistics] = []
    honest = Aggregate.statistics_of

    def heard(self: Aggregate) -> RoundStatistics:
        found.append(honest(self))
        return found[-1]

    with monkeypatch.context() as patch:
        patch.setattr(Aggregate, "statistics_of", heard)
        yield found


def bounds(job: Job, config: Config, clients: tuple[int, ...]) -> dict[str, float]:
    """By how much sums of so many clients' numbers may be off: a step each, divided as the mean is."""
    options, scale = config.run.flower.secure, scale_of(job.roster)
    whole = sum(job.roster.sizes_of(clients).tolist()) / scale
    found = {}
    for name, each in job.stage(1).declared().items():
        step = 2 * options.clip**each.power / 2**options.bits
        times = 1 / whole if each.rule == "mean" else scale if each.over_samples else 1.0
        found[name] = 0.0 if each.numbers == "count" else len(clients) * step * times
    return found


def assert_within(secure: RoundStatistics, plain: RoundStatistics, job: Job, config: Config) -> None:
    assert secure.clients == plain.clients
    assert secure.combined.keys() == plain.combined.keys()
    for name, bound in bounds(job, config, plain.clients).items():
        wanted = plain.combined[name]
        assert float(wanted.abs().max()) > 10 * bound, f"{name}: nothing is shown"
        rounding = 1e-6 * float(wanted.abs().max())  # of float32, in which the sum in the open is taken
        assert float((secure.combined[name] - wanted).abs().max()) <= bound + rounding, name


@pytest.mark.parametrize("method", MASKED)
def test_sums_and_means_are_those_in_the_open(method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And counts to the number: they are whole."""
    config = tiny(method, *SETS)
    with listening(monkeypatch) as plain:
        torso.run(config, tmp_path / "simulated")
    with listening(monkeypatch) as masked:
        heard = secured(method, tmp_path)
    assert heard.result.ok
    assert len(masked) == len(plain) == 1
    assert_within(masked[0], plain[0], simulate(config), config.but(SECURE))
    in_round = [reply for header, reply in heard.replies if header.sealing is not None]
    assert all(reply.header.numbers is None and reply.tensors.keys() <= {"vector"} for reply in in_round)
    (told,) = (text for text in heard.printed if "What this machine sends" in text)
    assert "all masked: the server can open the sum over the participants, and no part of it" in told
    assert "which tell of its classes" not in told


def test_clients_may_leave_at_each_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Round 1: before keys; 2: before shares; 3: before its vector; 4: before it unmasks. With λ = 0 nobody's training
    depends on what the server tells, so that all rounds in the open and under the mask have the same sums."""
    leaves = {1: ("keys", 0), 2: ("shares", 1), 3: ("told", 2), 4: ("unmask", 3)}
    config, played = tiny("fedproto", *SETS, "train.rounds=4", "method.objective.lam=0"), list[int]()

    def lost(name: str, header: RequestHeader) -> str:
        if header.kind == "keys" and name == "client-3":  # once in a round; replies come in reverse
            played.append(len(played) + 1)
        kind, client = leaves.get(len(played), ("", 0))
        return "back" if (header.kind, name) == (kind, f"client-{client}") else ""

    with listening(monkeypatch) as plain:
        torso.run(config, tmp_path / "simulated", engine=absent({1: {0}, 2: {1}, 3: {2}}))
    with listening(monkeypatch) as masked:
        wire = Wire(homes_of(config, tmp_path / "homes"), lost)
        assert run_federation(config.but(SECURE), wire, tmp_path / "real", say=lambda _: None).ok
    lines = [json.loads(line) for line in (tmp_path / "real" / "history.jsonl").read_text().splitlines()]
    assert [line.get("missing", []) for line in lines] == [[0], [1], [2], []]
    job = simulate(config)
    assert [came.clients for came in masked] == [(1, 2, 3), (0, 2, 3), (0, 1, 3), (0, 1, 2, 3)]
    for secure, wanted in zip(masked, plain, strict=True):
        assert_within(secure, wanted, job, config.but(SECURE))


def say(contents: RoundContents, client: int, samples: int, statistics: Tensors, change: float = 0.0) -> object:
    model = contents.told.model
    tensors = {f"model/{n}": model[n] + change for n in contents.averaged}
    return message(client, samples, 0.0, {**tensors, **{f"said/{n}": t for n, t in statistics.items()}})


def test_means_by_hand() -> None:
    """Clients with 1 and 3 samples send 2 and 6: the mean is ¼·2 + ¾·6 = 5, uniformly 4."""
    for weighting, wanted in (("samples", 5.0), ("uniform", 4.0)):
        job, contents = worked_out("fedthe", f"train.weighting={weighting}")
        like = torch.ones(contents.statistics.declared["centre"].shape)
        sent = [say(contents, k, n, {"centre": x * like}) for k, n, x in ((0, 1, 2.0), (1, 3, 6.0))]
        found = contents.mean(summed(contents, job, sent), (0, 1), job.roster, scale_of(job.roster))  # type: ignore[arg-type]
        torch.testing.assert_close(found.statistics["centre"], wanted * like)


def test_models_weigh_by_a_statistic_by_hand() -> None:
    """Changes 1 and 2 of clients whose traces are 3 and 1: (3·1 + 1·2)/4, whatever their samples; traces add up to 4.
    Two digits: the sum goes through the fixed point of range 8⁶ and is off by less than a step of 2·8⁶/2⁴⁴ each."""
    job, contents = worked_out("fedas")
    cases = ((0, 1, 3.0, 1.0), (1, 3, 1.0, 2.0))
    sent = [say(contents, k, n, {"fisher": torch.tensor(s)}, change) for k, n, s, change in cases]
    scale, draw = scale_of(job.roster), np.random.default_rng(0)
    vectors = [contents.form.encode(contents.values(each, scale), draw) for each in sent]  # type: ignore[arg-type]
    opened = contents.form.decode(vectors[0] + vectors[1], 2)
    found = contents.mean(opened, (0, 1), job.roster, scale)
    assert int(opened[CLIPPED]) == 0
    assert float(found.statistics["fisher"]) == pytest.approx(4.0, abs=2 * 2 * 8**5 / 2**44)
    for name in contents.averaged:
        wanted = contents.told.model[name] + 1.25
        torch.testing.assert_close(found.model[name], wanted, rtol=1e-6, atol=2 * 2 * 8**6 / 2**44)


def test_clients_that_know_all_weigh_alike() -> None:
    """Traces of 0 count as the smallest that can be told, so the mean of changes 1 and 2 is 1.5."""
    job, contents = worked_out("fedas")
    sent = [say(contents, k, n, {"fisher": torch.zeros(())}, change) for k, n, change in ((0, 1, 1.0), (1, 3, 2.0))]
    found = contents.mean(summed(contents, job, sent), (0, 1), job.roster, scale_of(job.roster))  # type: ignore[arg-type]
    name = contents.averaged[0]
    torch.testing.assert_close(found.model[name], contents.told.model[name] + 1.5)


def test_two_digits_by_hand() -> None:
    """L = 256, R = 128: steps of 1/256 between −128 and 128. 1.5 is 129.5·256 = 33152 = 129·256 + 128; 128 is 256·256,
    whose first digit is 256. Their sum is 129.5."""
    form = VectorLayout((Slot("x", (2,), 128.0, digits=2),), bits=8)
    assert form.size == 5
    first, second = (
        form.encode({"x": torch.tensor(x, dtype=torch.float64)}, np.random.default_rng(0))
        for x in ([1.5, -128.0], [128.0, 0.25])
    )
    assert first.tolist() == [129, 0, 128, 0, 0]
    assert second.tolist() == [256, 128, 0, 64, 0]
    assert form.decode(first + second, clients=2)["x"].tolist() == [129.5, -127.75]


def test_what_mixes_models_of_single_clients_is_refused_by_name() -> None:
    config = tiny("fedpac", *SETS, SECURE, "run.engine=flower")
    with pytest.raises(RequestError, match=r"'mixed-heads' needs what single clients send \(its head, the spread of"):
        prepare(config, roster_of(4))
    with pytest.raises(RequestError, match=r"method.server = 'apart' needs single uploads"):
        prepare(tiny("fedamp", *SETS, SECURE, "run.engine=flower"), roster_of(4))
    assert prepare(tiny("fedloge", *SETS, SECURE, "run.engine=flower"), roster_of(4))  # nothing more travels
