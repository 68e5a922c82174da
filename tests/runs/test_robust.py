"""Rounds whose server looks at single uploads: by hand, whoever is missing, on every engine, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.methods.by_hand import BODY, EYE, FIRST, HEAD, SECOND, Data, Model, equal, federated, on, same, sgd
from tests.methods.test_missing import round_without
from tests.methods.tiny import job, play, tiny_parts  # noqa: F401  a fixture
from tests.near import far
from tests.runs import samples
from torch.testing import assert_close
from typer.testing import CliRunner

from torso import Config, RequestError, run
from torso.cli import app
from torso.engine import Batched, Engine, OneByOne
from torso.nets import Tensors, part_names
from torso.personal.state import State
from torso.runs.aggregate import Aggregate
from torso.runs.job import Simulation, simulate
from torso.runs.messages import Schema, Sent
from torso.runs.rounds import TooFewAnswered, play_round
from torso.runs.run import Stopped
from torso.runs.sampling import weights_of
from torso.runs.telling import tell

FIVE = [
    FIRST,
    SECOND,
    Data.of([(1, 0.2)], [1]),
    Data.of([(0.2, 1)], [0]),
    Data.of([(1, 1), (1, 0.4), (1, 0), (0, 1), (0, 0.6)], [0] * 5),
]
RULES = ("median", "trimmed-mean", "krum", "geometric-median", "centred-clipping")


def five(server: Any, **axes: Any) -> Simulation:
    return on(job({"name": "fedavg", "server": server, **axes}, head="eye", lr=0.4), federated(FIVE))


def median(models: Sequence[Model]) -> Model:
    return Model(np.median([m.s for m in models], axis=0), np.median([m.w for m in models], axis=0))


@pytest.mark.parametrize("missing", [set(), {1}, {0, 3}])
def test_the_median_is_over_those_who_came(missing: set[int]) -> None:
    """Two rounds, against NumPy; an even number of them too."""
    theta, task = EYE, five("median")
    state = State.begin(task.model)
    for _ in range(2):
        state, played = round_without(task, missing, state)
        theta = median([sgd(theta, data, 0.4) for k, data in enumerate(FIVE) if k not in missing])
        same(state.model, theta)
        assert played.missing == tuple(sorted(missing))


def test_too_few_for_the_rule_is_a_round_that_has_not_happened() -> None:
    """Krum with f = 1 wants five, and one of the five is missing."""
    task = five("krum")
    with pytest.raises(TooFewAnswered, match=r"^round 1: 4 of 5 clients answered, and method.server = 'krum' needs 5$"):
        round_without(task, {2}, State.begin(task.model))


def test_clip_halves_the_uploads() -> None:
    """From W = 0 at rate 1 both clients learn heads of length √½ and leave the body: with half of that as the bound,
    the mean is half of what it was. A larger bound leaves every bit."""
    free, held, loose = (
        play(job({"name": "fedavg", "server": {"clip": clip}})).model for clip in (0.0, 0.5**0.5 / 2, 1.0)
    )
    assert_close(held[HEAD], free[HEAD] / 2)
    assert equal(loose, free)
    assert torch.equal(held[BODY], free[BODY])


def test_clip_goes_before_any_rule() -> None:
    """FedEXP sees ‖Δ_k‖² of what is left, and a rule on single uploads those themselves: half the median too."""
    free, held = (play(five({"name": "median", "clip": clip})).model for clip in (0.0, 1e-3))
    change = torch.cat([(held[n] - five("median").model[n]).flatten() for n in (BODY, HEAD)])
    assert 0 < change.norm() <= 1e-3 * 6**0.5  # no coordinate of any upload is further than the bound
    assert not equal(free, held)
    task = job({"name": "fedexp", "server": {"clip": 0.5**0.5 / 2, "eps": 1e-9}})
    # Δ₀, Δ₁ orthogonal, each of squared length ⅛: Σ w‖Δ‖² = ⅛, ‖Δ̄‖² = (1/16 + 9/16)/8 = 5/64: η = ⅛ / (10/64) = 0.8 → 1
    assert_close(play(task).model[HEAD], play(job({"name": "fedavg", "server": {"clip": 0.5**0.5 / 2}})).model[HEAD])


def collected(
    task: Simulation, order: Sequence[int], values: Sequence[float], groups: int = 1, start: float = 1.0
) -> Tensors:
    """What the server makes of five uploads, of which each has one number everywhere, as they come in this order."""
    server = State.begin({name: torch.full_like(tensor, start) for name, tensor in task.model.items()}).server
    told = tell(task.plan[0], server, task.roster, range(5), 1, seed=0)
    came = Aggregate(task.plan[0], told, weights_of(task.roster, range(5), "samples"))
    more: Schema = {"model/statistic": (torch.float32, ()), "model/counter": (torch.int64, ())}
    came.terms = replace(came.terms, forms={0: {**came.terms.forms[0], **more}})
    for at in range(0, len(order), groups):
        who = order[at : at + groups]
        mine = torch.tensor([values[k] for k in who])
        model = {n: mine.view(-1, *[1] * t.ndim).expand(-1, *t.shape).clone() for n, t in told.model.items()}
        model["statistic"], model["counter"] = mine.clone(), torch.tensor(who)
        came.take(Sent(1, tuple(who), (1,) * len(who), model, torch.ones(len(who)), torch.tensor([True] * len(who))))
    assert came.close() == pytest.approx(1.0)
    return came.shared(server)


@pytest.mark.parametrize("rule", RULES)
def test_neither_the_order_of_arrival_nor_the_groups_matter(rule: str) -> None:
    task, values = five(rule), (0.3, -1.1, 0.7, 5.0, 0.2)
    first = collected(task, range(5), values)
    parameters = (BODY, HEAD)
    for order, groups in (((4, 2, 0, 1, 3), 1), (range(5), 2), ((3, 4, 0, 1, 2), 5)):
        again = collected(task, order, values, groups)
        assert all(torch.equal(again[name], first[name]) for name in parameters)


def test_what_is_no_parameter_is_averaged_as_ever() -> None:
    """n = 1, 1, 1, 1, 5: the mean of 0, 1, 2, 3 and five times 6 is 4; the median 2. A counter's largest stands."""
    found = collected(five("median"), range(5), (0.0, 1.0, 2.0, 3.0, 6.0))
    assert found["statistic"].item() == pytest.approx(4.0)
    assert found["counter"].item() == 4
    assert torch.equal(found[BODY], torch.full((2,), 2.0))


@pytest.mark.parametrize("rule", RULES)
def test_samples_count_for_the_geometric_median_alone(rule: str) -> None:
    """Five of nine samples are the last client's: its upload stands where they count, and that of the others elsewhere;
    centred clipping goes a fifth of its radius, whoever has how many."""
    found = collected(five(rule), range(5), (0.0, 0.0, 0.0, 0.0, 9.0), start=0.0)[BODY]
    if rule == "geometric-median":
        assert_close(found, torch.full((2,), 9.0), atol=1e-3, rtol=0)
    elif rule == "centred-clipping":
        assert_close(found, torch.full((2,), 0.2 / 6**0.5))
    else:
        assert found.tolist() == [0.0, 0.0]


def test_what_a_hyper_head_shares_is_guarded_too() -> None:
    """The personal branch of Fed-RoD's hyper head travels: one upload of 1e9 must not move it."""
    config = Config(method={"name": "fedrod-hyper", "server": "median"}, data={"clients": 5}, train={"fraction": 1.0})
    task = simulate(config)
    came = Aggregate(task.plan[0], tell(task.plan[0], State.begin(task.model).server, task.roster, [0], 1, 0), {0: 1.0})
    assert set(part_names(task.net, "personal")) <= set(came.parameters)


# engines


def digits(rule: str) -> Simulation:
    sets = (f"method.server={rule}", "train.fraction=0.5", "attack.kind=alie", "attack.kind.z=1.0")
    return simulate(samples.tiny("fedavg", *sets), samples.digits())


def two_rounds(task: Simulation, engine: Engine) -> State:
    state = State.begin(task.model)
    for _ in range(2):
        state, _ = play_round(task.plan[0], state, task.roster, engine, 0)
    return state


@pytest.mark.parametrize("rule", ["mean", *RULES])
def test_any_engine_and_any_number_of_workers(rule: str) -> None:
    """With attackers who look at all others' uploads. Threads give the same bits, a stack the same to rounding."""
    task = digits(rule)
    with OneByOne(task.net, task.federation, workers=1) as engine:
        alone = two_rounds(task, engine)
    with OneByOne(task.net, task.federation, workers=2) as engine:
        assert samples.bits(two_rounds(task, engine)) == samples.bits(alone)
    with Batched(task.net, task.federation, at_once=3) as batched:
        assert far(alone.model, two_rounds(task, batched).model) < 1e-4


@pytest.mark.parametrize("server", ["median", "centred-clipping"])
def test_a_run_under_attack_resumes_bit_for_bit(server: str, tmp_path: Path) -> None:
    sets = (f"method.server={server}", "train.fraction=0.5", "attack.kind=inner-product", "measure.names=generic")
    config, listener = samples.tiny("fedbabu", *sets), samples.StopAfter(2)
    whole = run(config, federation=samples.digits())
    with pytest.raises(Stopped):
        run(config, tmp_path / "run", federation=samples.digits(), listener=listener, stop=listener.stop)
    again = run(config, tmp_path / "run", resume=True, federation=samples.digits())
    assert whole.state is not None
    assert again.state is not None
    assert samples.bits(again.state) == samples.bits(whole.state)


# the page


def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    """In one round, with 20 clients."""
    page = (Path(__file__).parents[2] / "docs" / "robustness.md").read_text(encoding="utf-8").replace("\\\n", "")
    commands = re.findall(r"^\$ torso (.*)$", page, re.MULTILINE)
    assert {name for command in commands for name in re.findall(r"method\.server=(\S+)", command)} == set(RULES)
    for number, command in enumerate(commands):
        few = ("--set=train.rounds=1", "--set=data.clients=20", "--quiet", f"--out={tmp_path / str(number)}")
        done = CliRunner().invoke(app, [*command.split(), *few], catch_exceptions=False)
        assert done.exit_code == 0, f"{command}: {done.output}"


# refusals


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (["method.server=trimmed-mean", "method.server.share=0.5"], "method.server.share = 0.5 is not accepted"),
        (["method.server=trimmed-mean", "method.server.share=0.0"], "method.server.share = 0.0 is not accepted"),
        (["method.server=krum", "method.server.f=-1"], "method.server.f = -1 is not accepted"),
        (["method.server=centred-clipping", "method.server.radius=0.0"], "method.server.radius = 0.0 is not accepted"),
        (["method.server=geometric-median", "method.server.steps=0"], "method.server.steps = 0 is not accepted"),
        (["method.server.clip=-1.0"], "method.server.clip = -1.0 is not accepted"),
        (
            ["method.server=krum", "method.server.f=2", "train.fraction=0.5"],
            "method.server.f = 2 needs 7 participants or more, and a round has 5 (train.fraction = 0.5 of 10 clients). "
            "Expected: a larger train.fraction, or another method.server.f",
        ),
        (["method.server=trimmed-mean"], "method.server.share = 0.2 needs 5 participants or more, and a round has 3"),
        (
            ["method.name=scaffold", "method.server=median"],
            "which nothing bounds. Accepted: client-momentum, head-decay, multi-task, none, proximal",
        ),
        (
            ["method.name=feddyn", "method.server.clip=1.0"],
            "which nothing bounds. Accepted: client-momentum, head-decay, multi-task, none, proximal",
        ),
        (["method.name=mtl", "method.server.clip=1.0"], "method.server.clip = 1.0 bounds what one client adds"),
        (["method.name=local-only", "method.server.clip=1.0"], "act on what travels, and nothing does"),
        (
            ["method.name=fedfomo", "attack.kind=alie"],
            "works on the mean of the uploads, and method.server = 'apart' takes none. Accepted: backdoor, label-flip",
        ),
    ],
)
def test_refusals_name_the_key(sets: list[str], words: str) -> None:
    with pytest.raises(RequestError) as refused:
        simulate(samples.tiny("fedavg", *sets), samples.digits())
    assert words in str(refused.value)
