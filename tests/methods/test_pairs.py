"""Any choice on one axis goes with any choice on another, or is refused with the reason.

Every pair of choices, in turn with the whole network learning (FedAvg) and with the body alone (FedBABU), so that every
choice meets both, plays two rounds on a small ragged federation: all numbers finite, frozen parts untouched, shared
parts equal on all clients, and a run that stops after the first round and is read back from its checkpoint ends in the
same bits.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.runs.samples import assert_same_state

from torso import Config
from torso.data import Federation
from torso.engine import OneByOne, Workspace
from torso.errors import RequestError
from torso.learn.objectives import BalancedSoftmax
from torso.methods import AXES, Method, Share
from torso.nets import Tensors, part_names
from torso.personal import Fomo, Kept
from torso.personal.state import State
from torso.results.checkpoint import load_newest, save
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import play_round
from torso.runs.stage import Stage

SEED = 3
SINGLE_UPLOADS = ("median", "centred-clipping")
ON_THE_PATH_OF_OTHERS = {"simplex", "sam", "scaled-head"}  # tested by themselves
REFUSED_WITH_OTHERS = {"realigned", "gaussian-head"}  # they need a head, or statistics, of their own


def choices(axis: str) -> dict[str, Any]:
    """Every registered choice of an axis, and the variants that take other paths through the code."""
    known = {name: cls() for name, cls in AXES[axis].items()}
    if (
        axis == "server"
    ):  # of rules on single uploads, which differ in one function, one without a state and one with it
        known = {name: rule for name, rule in known.items() if not rule.needs_each or name in SINGLE_UPLOADS}
        known["fedbuff"] = AXES["server"]["fedbuff"](buffer=2)
    known = {name: choice for name, choice in known.items() if name not in ON_THE_PATH_OF_OTHERS | REFUSED_WITH_OTHERS}
    if axis == "head":
        known["dual-hyper"] = AXES["head"]["dual"](personal="hyper")
    if axis == "personal":
        known |= {"kept-last": Kept(refresh="last-visit"), "fomo": Fomo(models=2, explore=1.0)}
    return known


CHOICES = {axis: choices(axis) for axis in ("drift", "server", "head", "personal", "step")}
PARTS = ("all", "body")
PAIRS = [
    pytest.param({one: a, other: b}, PARTS[(i + j) % 2], id=f"{one}={a}-{other}={b}-{PARTS[(i + j) % 2]}")
    for one, other in combinations(CHOICES, 2)
    for i, a in enumerate(CHOICES[one])
    for j, b in enumerate(CHOICES[other])
]
HELD_BY_THE_RECEIVED_MODEL = {"proximal", "scaffold", "dynamic", "client-momentum", "head-decay"}  # or like them


@cache
def federation() -> Federation:
    return simulate(_config(Method())).federation


def _config(method: Method) -> Config:
    synthetic = {"classes": 3, "samples": 60, "test_samples": 12, "size": 4}
    return Config(
        method=method,
        data={
            "source": "synthetic",
            "clients": 4,
            "partition": "dirichlet-class",
            "alpha": 0.5,
            "synthetic": synthetic,
        },
        train={"rounds": 2, "local_epochs": 1, "fraction": 0.5, "batch_size": 8, "lr": 0.05, "momentum": 0.5},
        run={"seed": SEED},
    )


def method_of(pair: dict[str, str], part: str) -> Method:
    axes = {axis: CHOICES[axis][name] for axis, name in pair.items()}
    if pair.get("step") == "meta-weighted":  # it weighs the balanced soft-max
        axes["objective"] = BalancedSoftmax()
    train = "body" if part == "body" else "all"
    return Method(share=Share(train), **axes).but(train=train) if part == "body" else Method(**axes)


def refused(pair: dict[str, str]) -> str:
    """With which words, or nothing."""
    server, drift = pair.get("server"), pair.get("drift")
    if server == "apart" and drift in HELD_BY_THE_RECEIVED_MODEL:
        return "averages nothing"
    if server == "fedbuff" and drift in ("scaffold", "dynamic", "multi-task", "client-momentum"):
        return "began at different models"
    if server == "fedbuff" and pair.get("personal") == "fomo":
        return "compares the models of a round's participants"
    return "nothing bounds" if server in SINGLE_UPLOADS and drift in ("scaffold", "dynamic") else ""


@pytest.mark.parametrize(("pair", "part"), PAIRS)
def test_a_pair_of_choices_plays_two_rounds(pair: dict[str, str], part: str, tmp_path: Path) -> None:
    if words := refused(pair):
        with pytest.raises(RequestError, match=words):
            simulate(_config(method_of(pair, part)), federation())
        return
    job = simulate(_config(method_of(pair, part)), federation())
    stage, (_, second) = job.plan[0], resumes(job, tmp_path)
    asked = _asked(job, second)
    assert_sound(job, stage, second, asked[-1])
    how = evaluation_of(job, stage, second.reported)
    assert how.own(*asked).keys() >= second.model.keys()


def test_every_choice_meets_both_parts() -> None:
    met = {(axis, name, part) for pair, part in (row.values for row in PAIRS) for axis, name in pair.items()}
    assert met == {(axis, name, part) for axis, names in CHOICES.items() for name in names for part in PARTS}


def _asked(job: Simulation, state: State) -> tuple[Workspace, list[int], Tensors]:
    workspace, everybody = Workspace.at(job.net, job.federation).holding(state.clients), list(range(job.roster.clients))
    return workspace, everybody, workspace.models(state.model, everybody)


def assert_sound(job: Simulation, stage: Stage, state: State, held: Tensors) -> None:
    """`held`: the model as each client has it."""
    kept = [state.clients.of_kind(kind) for kind in ("kept", "memory", "own", "notes")]
    kept += [state.server.uploads, state.server.of_clients]
    every = [state.model, state.server.rule, state.server.drift, *(own for kind in kept for own in kind.values())]
    assert all(bool(torch.isfinite(t).all()) for tensors in every for t in tensors.values())
    frozen = set(job.model) - stage.moving
    assert frozen >= (set(part_names(job.net, "head")) if stage.method.train[0].part == "body" else set())
    for name in frozen:
        assert torch.equal(state.model[name], job.model[name])
        assert all(torch.equal(row, job.model[name]) for row in held[name])
        assert not any(name in own for kind in kept[:3] for own in kind.values())
    if not stage.method.server.keeps_uploads:
        for name in stage.travels:
            assert all(torch.equal(row, state.model[name]) for row in held[name])
    assert any(not torch.equal(state.model[n], job.model[n]) for n in stage.moving) or stage.method.server.keeps_uploads


def resumes(job: Simulation, folder: Path) -> tuple[State, State]:
    """The states after a round and after two; the second has the same bits when it begins at a checkpoint of the
    first."""
    stage = job.plan[0]
    with OneByOne(job.net, job.federation, workers=1) as engine:
        first, _ = play_round(stage, State.begin(job.model), job.roster, engine, SEED)
        second, _ = play_round(stage, first, job.roster, engine, SEED)
        save(folder, first, "the same config")
        read = load_newest(folder, job.model, "the same config")
        assert read is not None
        assert_same_state(second, play_round(stage, read.state, job.roster, engine, SEED)[0])
    return first, second
