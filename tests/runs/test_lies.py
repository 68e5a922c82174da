"""Attackers lie in what they send beside weights: what each says, what is refused, and what robust rules make of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from tests.methods import tiny
from tests.methods.test_pairs import SEED
from tests.methods.tiny import tiny_parts  # noqa: F401  a fixture
from tests.runs.samples import digits
from tests.runs.samples import tiny as config_of

from torso.engine import OneByOne
from torso.errors import RequestError
from torso.learn.attacks import Attack, attacks
from torso.learn.tamper import Tamper
from torso.learn.task import LocalResult
from torso.methods import AXES, methods
from torso.nets import Network, Tensors
from torso.personal import Personal, VisitStart, personals
from torso.personal.state import State
from torso.runs import aggregate
from torso.runs.aggregate import Aggregate
from torso.runs.job import simulate
from torso.runs.messages import Sent
from torso.runs.rounds import play_round
from torso.runs.telling import tell
from torso.runs.uploads import RefusedUpload, UploadTerms
from torso.server import servers
from torso.server.state import ServerState
from torso.server.statistics import Declared, ServerView, Statistic, Statistics, VisitEnd

# what each attack says: x may be any number, n counts, s is not negative


SAID = {"x": torch.tensor([[1.0, -2.0], [3.0, -5.0]]), "n": torch.tensor([[2.0], [3.0]]), "s": torch.tensor([1.0, 2.0])}
NUMBERS = {"x": "any", "n": "count", "s": "not negative"}


def lies(attack: Attack, received: Tensors | None = None, said: Tensors | None = None) -> Tensors:
    tamper = Tamper(attack, (), participants=5, seed=0, round=1)
    numbers = NUMBERS if said is None else dict.fromkeys(said, "any")
    return tamper.said(received or {}, said or SAID, numbers, (4, 7), frozenset({7}))


@pytest.mark.parametrize(
    ("attack", "x", "n", "s"),
    [
        (attacks["sign-flip"](factor=0.5), [-1.5, 2.5], 2.0, 1.0),  # ½·3 samples are 1.5, which rounds to the even 2
        (attacks["model-replacement"](), [15.0, -25.0], 15.0, 10.0),
        (attacks["not-finite"](), [math.nan, math.nan], math.nan, math.nan),
        (attacks["label-flip"](), [3.0, -5.0], 3.0, 2.0),  # its statistics follow from its labels
        (attacks["alie"](), [3.0, -5.0], 3.0, 2.0),  # colluders lie when they have seen the others'
    ],
    ids=["sign-flip", "model-replacement", "not-finite", "label-flip", "alie"],
)
def test_what_an_attacker_says_by_hand(attack: Attack, x: list[float], n: float, s: float) -> None:
    """The second of two clients lies; the first does not."""
    found = lies(attack)
    torch.testing.assert_close(found["x"], torch.tensor([[1.0, -2.0], x]), equal_nan=True)
    torch.testing.assert_close(found["n"], torch.tensor([[2.0], [n]]), equal_nan=True)
    torch.testing.assert_close(found["s"], torch.tensor([1.0, s]), equal_nan=True)


def test_noise_has_the_spread_of_each_statistic_by_itself() -> None:
    """10,000 numbers of spread 2 around 100, beside others a thousand times as large."""
    wide = 100 + 2 * torch.randn(2, 10_000, generator=torch.Generator().manual_seed(0))
    found = lies(attacks["random-updates"](), said={"x": wide, "y": 1000 * wide})
    assert float(found["x"][1].mean()) == pytest.approx(0, abs=0.1)  # 5 standard errors of 0.02
    assert float(found["x"][1].std()) == pytest.approx(float(wide[1].std()), rel=0.05)
    assert not torch.allclose(found["y"][1] / 1000, found["x"][1]), "each has noise of its own"
    assert torch.equal(found["x"][0], wide[0])


def test_a_head_that_is_sent_as_a_statistic_is_a_change_of_what_was_received() -> None:
    """FedPAC's: received 1, learned 3, so the sign-flipped upload is 1 − 2."""
    found = lies(attacks["sign-flip"](), {"head": torch.ones(2, 1)}, {"head": torch.tensor([[2.0], [3.0]])})
    assert found["head"].tolist() == [[2.0], [-1.0]]


# what the server makes of it


@dataclass(frozen=True)
class Told(Statistics):
    """A sum, a mean and a count."""

    def declares(self, net: Network, classes: int) -> Declared:
        return {
            "sum": Statistic((), "a number"),
            "mean": Statistic((), "another one", "mean"),
            "count": Statistic((), "a count", numbers="count"),
        }

    def of_clients(self, at: VisitEnd) -> Tensors:
        ones = torch.ones(len(at.task.deck.clients), device=at.task.deck.index.device)
        return {"sum": ones, "mean": 2 * ones, "count": 3 * ones}

    def combine(self, held: ServerView, came: Any) -> ServerView:
        return replace(held, shared=dict(came.combined))


@pytest.fixture(autouse=True)
def _told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(AXES["statistics"], "told", Told)


def message(model: Tensors, client: int, numbers: Sequence[float]) -> Sent:
    said = {name: torch.tensor([number]) for name, number in zip(("sum", "mean", "count"), numbers, strict=True)}
    stacked = {name: tensor[None] for name, tensor in model.items()}
    return Sent(1, (client,), (1 + 2 * client,), stacked, torch.ones(1), torch.tensor([True]), said=said)


def taken(
    numbers: Sequence[Sequence[float]], attack: str = "none", malicious: set[int] | None = None, **axes: Any
) -> Aggregate:
    """The sums of a round in which client k sends the k-th numbers; all weigh the same."""
    task = tiny.job(methods["fedavg"].but(statistics=Told(), **axes))
    stage, clients = replace(task.plan[0], attack=attacks[attack]()), tuple(range(len(numbers)))
    told = tell(stage, ServerState(task.model), task.roster, (0, 1), 1, seed=0)
    came = Aggregate(stage, told, dict.fromkeys(clients, 1 / len(clients)), frozenset(malicious or ()))
    for client, some in enumerate(numbers):
        came.take(message(task.model, client, some))
    came.close()
    return came


def combined(came: Aggregate) -> list[float]:
    found = came.statistics_of().combined
    return [float(found[name]) for name in ("sum", "mean", "count")]


LIAR = (1e9, -1e9, 1e6)


@pytest.mark.parametrize(
    ("server", "wanted"),
    [
        (servers["median"](), [5 * 3.0, 20.0, 5 * 4.0]),
        (servers["trimmed-mean"](share=0.2), [5 * 3.0, 20.0, 5 * 4.0]),
        (servers["mean"](), [1e9 + 10, -2e8 + 20, 1e6 + 14]),
    ],
    ids=["median", "trimmed-mean", "mean"],
)
def test_robust_rules_guard_statistics(server: Any, wanted: list[float]) -> None:
    """Of 1, 2, 3, 4 and a liar's 10⁹ the median is 3, and so is the mean without both ends; a sum is five times that.
    Of −10⁹, 10, 20, 30, 40 they are 20; counts are 2, 3, 4, 5 and 10⁶."""
    honest = [(1.0 + k, 10.0 + 10 * k, 2.0 + k) for k in range(4)]
    assert combined(taken([*honest, LIAR], server=server)) == pytest.approx(wanted)


def test_the_geometric_median_takes_each_statistic_by_itself() -> None:
    """On a line it is the median of the weights."""
    honest = [(1.0 + k, 10.0 + 10 * k, 2.0 + k) for k in range(4)]
    found = combined(taken([*honest, LIAR], server=servers["geometric-median"]()))
    assert found == pytest.approx([15.0, 20.0, 20.0], rel=1e-3)


def test_colluders_lie_about_statistics_by_hand() -> None:
    """−½ times the mean of the honest: sums 2 and 4, so −1.5; means 6 and 10, so −4; counts 3 and 5, so |−2|."""
    came = taken([(2.0, 6.0, 3.0), (4.0, 10.0, 5.0), (9.0, 9.0, 9.0)], "inner-product", {2})
    assert combined(came) == pytest.approx([2 + 4 - 1.5, (6 + 10 - 4) / 3, 3 + 5 + 2])


@pytest.mark.parametrize("count", [-1.0, 1.5])
@pytest.mark.parametrize("waits", [True, False])
@pytest.mark.parametrize("rule", ["mean", "median"])
def test_numbers_that_cannot_be_are_left_out_and_named(
    count: float, waits: bool, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody waits for a device, too."""
    monkeypatch.setattr(aggregate, "is_on_host", lambda tensor: waits)
    came = taken([(1.0, 2.0, 3.0), (1.0, 2.0, count), (3.0, 4.0, 5.0)], server=servers[rule]())
    assert came.refused == {1: "wrong numbers"}
    assert came.clients == (0, 2)
    assert combined(came) == pytest.approx([4.0, 3.0, 8.0])


def test_what_is_not_finite_is_called_that() -> None:
    assert taken([(1.0, 2.0, 3.0), (-1.0, 2.0, -math.inf)]).refused == {1: "not finite"}


def test_a_message_of_a_real_client_is_refused_in_words() -> None:
    task = tiny.job(methods["fedavg"].but(statistics=Told()))
    told = tell(task.plan[0], ServerState(task.model), task.roster, (0, 1), 1, seed=0)
    terms = UploadTerms.of(task.plan[0], told, {})
    assert terms.checked(message(task.model, 1, (1.0, 2.0, 3.0)).message(), 1)
    with pytest.raises(RefusedUpload, match=r"Expected: count whole and not negative") as refused:
        terms.checked(message(task.model, 1, (1.0, 2.0, -3.0)).message(), 1)
    assert refused.value.kind == "wrong numbers"


# whole runs


def under(attack: str, method: str, *sets: str) -> tuple[State, Any]:
    """A round of ten clients, three of which attack."""
    kind = (f"attack.kind={attack}", "attack.fraction=0.3") if attack else ()
    config = config_of(method, *kind, "train.fraction=1.0", *sets)
    task = simulate(config) if any(each.startswith("data.") for each in sets) else simulate(config, digits())
    with OneByOne(task.net, task.federation, workers=1) as engine:
        return play_round(task.plan[0], State.begin(task.model), task.roster, engine, SEED)


def statistics(attack: str, method: str, *sets: str) -> Tensors:
    return under(attack, method, *sets)[0].server.statistics


@pytest.mark.parametrize("attack", ["sign-flip", "model-replacement", "random-updates", "inner-product", "label-flip"])
def test_class_means_of_fedproto_are_attacked(attack: str) -> None:
    honest, hostile = statistics("", "fedproto"), statistics(attack, "fedproto")
    assert float((hostile["means"] - honest["means"]).norm() / honest["means"].norm()) > 0.01
    assert bool(hostile["means"].isfinite().all())


def test_a_median_brings_class_means_back() -> None:
    """All ten clients have nearly all classes; three lie, ten times as large as what they have."""
    sets = ("data.partition=iid", "attack.kind.factor=10.0")
    honest = statistics("", "fedproto", sets[0])["means"]
    plain, guarded = (
        statistics("sign-flip", "fedproto", *sets, f"method.server={rule}")["means"] for rule in ("mean", "median")
    )
    assert float((plain - honest).norm() / honest.norm()) > 1
    assert float((guarded - honest).norm() / honest.norm()) < 0.5


def test_statistics_that_are_not_finite_are_left_out_and_named() -> None:
    state, played = under("not-finite", "fedproto")
    assert len(played.why) == 3
    assert set(played.why.values()) == {"not finite"}
    assert all(bool(t.isfinite().all()) for t in state.server.statistics.values())


def test_clients_keep_what_they_made_of_honest_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a liar makes of its own statistics is that of no attack."""

    @dataclass(frozen=True)
    class Keeper(Personal):
        @property
        def keeps(self) -> bool:
            return True

        def after(self, at: VisitStart, learned: LocalResult) -> Tensors:
            return {"body.blocks.0.weight": at.said["mean"]}

    monkeypatch.setitem(personals, "keeper", Keeper)
    honest, hostile = (under(attack, "feddbe", "method.personal=keeper")[0] for attack in ("", "sign-flip"))
    for client in range(10):
        (own,), (same,) = (state.clients[client].own.values() for state in (hostile, honest))
        assert torch.equal(own, same)


@pytest.mark.parametrize(
    ("method", "sets", "words"),
    [
        ("fedas", ["method.server=median"], "has the server weigh models by 'fisher', which nothing bounds"),
        ("fedpac", ["method.server=median"], "has the server use each client's own 'head."),
        ("fedthe", ["method.server=krum"], "Accepted: geometric-median, median, trimmed-mean, mean without a clip"),
        ("fedthe", ["method.server.clip=1.0"], "method.server = 'mean' with a clip bounds what one upload can do"),
    ],
)
def test_what_no_rule_can_guard_is_refused_by_name(method: str, sets: list[str], words: str) -> None:
    with pytest.raises(RequestError) as refused:
        simulate(config_of(method, *sets, "train.fraction=1.0"), digits())
    assert words in str(refused.value)


PRIVATE = ("privacy.noise=1.0", "privacy.clip=1.0", "train.min_clients=1")


@pytest.mark.parametrize(
    ("method", "words"),
    [
        ("fedproto", "(class sums, class counts), which privacy does not cover"),
        ("fedas", "(the trace of its Fisher information), which privacy does not cover"),
        ("fedamp", "looks at single uploads"),
    ],
)
def test_privacy_refuses_what_it_does_not_cover(method: str, words: str) -> None:
    with pytest.raises(RequestError) as refused:
        simulate(config_of(method, *PRIVATE), digits())
    assert words in str(refused.value)


def test_privacy_covers_what_is_made_of_the_noised_sum() -> None:
    """FedLoGe's statistics send nothing; its generic head is made of the broadcast one, in a round without clients too:
    then noise alone has moved it."""
    task = simulate(config_of("fedloge", *PRIVATE, "train.fraction=0.001"), digits())
    with OneByOne(task.net, task.federation, workers=1) as engine:
        state, played = play_round(task.plan[0], State.begin(task.model), task.roster, engine, SEED)
    assert not played.participants
    rows = state.reported.model["head.classifier.weight"]
    torch.testing.assert_close(rows.norm(dim=-1), torch.full((10,), 1.7))
    torch.testing.assert_close(rows / 1.7, torch.nn.functional.normalize(state.model["head.auxiliary.weight"], dim=-1))
