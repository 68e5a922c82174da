"""Company in a stack changes nothing for strategies with a memory, and what their corner cases come to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from torch.testing import assert_close

from torso.engine import Workspace
from torso.errors import RequestError
from torso.learn.objectives import BalancedSoftmax
from torso.nets import LinearHead
from torso.runs.evaluation import evaluation_of

from .by_hand import Data, federated, last, on
from .test_meta import CLIENTS, ROWS, prepared
from .tiny import job


def test_padding_with_a_foreign_label() -> None:
    """Row 0, which pads, has class 0; client 1 lacks it, so its balanced loss there is infinite, and is shorter."""
    clients = [Data.of([(1, 0), (1, 0.2), (0.8, 0), (1, 0.6)], [0, 0, 1, 1]), Data.of([(0, 1), (0.4, 1)], [1, 1])]
    task = on(job("fedrod-meta-bsm", head="eye"), federated(clients, (0, 2)))
    alone, together = last(task, 2), last(task, 2, at_once=2)
    for name in alone.model:
        assert_close(alone.model[name], together.model[name])


def test_meta_batches_do_not_depend_on_company() -> None:
    """Batches of one: client 0 has four an epoch, client 1 three; D_meta has four."""
    task = on(job("fedrod-meta-bsm", head="eye", batch_size=1, local_epochs=2), federated(CLIENTS, ROWS))
    alone, together = last(task, 1), last(task, 1, at_once=2)
    for k in (0, 1):
        for name in alone.clients[k].notes:
            assert_close(alone.clients[k].notes[name], together.clients[k].notes[name])


def test_gamma_of_the_objective_in_weighted_meta_loss() -> None:
    """γ = 0.5 · 1.4 must be γ = 1 · 0.7."""
    step, learner, batch, meta, _ = prepared(LinearHead(), "weighted")
    plain = step.meta_objective(learner, learner.notes, batch, meta)
    learner.settings = replace(learner.settings, objective=BalancedSoftmax(0.5))
    half = step.meta_objective(learner, {**learner.notes, "gamma": 2 * learner.notes["gamma"]}, batch, meta)
    assert_close(half, plain)


def test_weighing_a_soft_max_without_balance_is_refused() -> None:
    """γ = 0 is cross-entropy over all classes (spec 6.1), which there is no γ of the client to multiply."""
    with pytest.raises(RequestError, match="gamma above 0"):
        job({"name": "fedrod-meta-bsm", "objective": {"gamma": 0.0}})


def test_forward_passes_of_held_out() -> None:
    """4 + 4 samples, a fifth of 4 is none: all are trained on, 3 passes each."""
    task = on(job("fedfomo", head="eye"), federated([Data.of([(1, 0)] * 4, [0] * 4)] * 2))
    assert last(task).cost.forward_passes == 8 * 3


def test_kept_with_mtl_does_not_depend_on_grouping() -> None:
    task = job({"name": "mtl", "drift": {"lam1": 0.4, "lam2": 0.0}, "personal": "kept"}, head="eye")
    state = last(task, 2)
    workspace = Workspace.at(task.net, task.federation)
    how = evaluation_of(task, task.plan[0], state)
    both = how.own(workspace, (0, 1), workspace.holding(state.clients).models(state.model, (0, 1)))
    for k in (0, 1):
        one = how.own(workspace, (k,), workspace.holding(state.clients).models(state.model, (k,)))
        assert_close(one["head.weight"][0], both["head.weight"][k])
