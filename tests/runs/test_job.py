"""What a run needs to know before it begins is its roster; what needs a test set of the server's says so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from torso import RequestError
from torso.data import Roster
from torso.measure import measures
from torso.measure.analyses import analyses
from torso.runs.job import Simulation, prepare, simulate

from .samples import digits, same_tensors, tiny

NEEDS = {
    "generic_as_personal",
    "personal",
    "local",
    "new_before",
    "new_after",
    "ece_generic",
}  # `generic` is taken on the clients' test data
MEASURES_WITHOUT = (
    "backdoor, backdoor_initial, benign, corrupted_initial, corrupted_personalized, ece_initial, ece_personalized, "
    "generic, id_after, id_before, initial, local_only, local_only_best_on_test, neighbours, ood_after, ood_before, "
    "personalized, shifted_initial, shifted_personalized, test_time, test_time_corrupted, test_time_shifted, "
    "without_head"
)
ALONE = replace(digits().roster, test_samples=0)  # of a server that has no images at all


def test_a_roster_alone_gives_the_job_of_a_simulation() -> None:
    """By hand from numbers: no image, no label."""
    known = digits().roster
    roster = Roster("digits", 10, known.input, np.array(known.sizes), np.array([], dtype=np.int64), 10)
    config = tiny("fedrod-hyper")
    job, there = prepare(config, roster), simulate(config, digits())
    assert not isinstance(job, Simulation)
    assert same_tensors(job.model, there.model)
    assert job.measured_clients == there.measured_clients == tuple(range(10))
    assert (job.rounds, job.device) == (4, torch.device("cpu"))
    assert [(stage.travels, stage.keeps) for stage in job.plan] == [(s.travels, s.keeps) for s in there.plan]


@pytest.mark.parametrize("key", ["names", "during"])
@pytest.mark.parametrize("name", sorted(measures))
def test_measures_on_the_servers_test_set_are_refused_where_it_has_none(name: str, key: str) -> None:
    roster = replace(ALONE, newcomers=np.array([9]))  # so that measures of newcomers have somebody
    attack = ["attack.kind=backdoor"] if measures[name].marked else []
    method = "fedthe" if measures[name].two_heads else "fedbabu"
    config = tiny(method, "measure.names=[]", f"measure.{key}={name}", *attack)
    prepare(config, replace(roster, test_samples=1))
    if name not in NEEDS:
        prepare(config, roster)
        return
    with pytest.raises(RequestError) as caught:
        prepare(config, roster)
    assert str(caught.value) == (
        f"measure.{key} = {name!r} is taken on a test set of the server's own, and it has none. "
        f"Accepted: {MEASURES_WITHOUT}"
    )


@pytest.mark.parametrize("name", sorted(analyses))
def test_analyses_of_it_too(name: str) -> None:
    config = tiny("fedbabu", "measure.names=initial", f"measure.analyses={name}")
    prepare(config, digits().roster)
    if name in ("layer_similarity", "regularization"):
        prepare(config, ALONE)
        return
    with pytest.raises(
        RequestError, match=f"measure.analyses = '{name}' .*Accepted: layer_similarity, regularization$"
    ):
        prepare(config, ALONE)
