"""How many samples one look takes: the answers are the same, whatever it takes at once."""

from __future__ import annotations

import pytest
import torch

from torso import Config
from torso.engine.base import Workspace
from torso.learn import outputs
from torso.learn.outputs import look, samples_per_pass
from torso.measure.accuracy import generic, percent_correct
from torso.measure.calibration import ece_generic
from torso.measure.mixes import generic_as_personal
from torso.nets import Output, set_modes
from torso.nets.compute import apply, samples_independent
from torso.personal.state import State
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, data_of, simulate


def job_of(norm: str) -> Simulation:
    """Four clients with about 40 test images each."""
    config = Config(
        data={
            "source": "synthetic",
            "clients": 4,
            "partition": "iid",
            "synthetic": {"samples": 80, "test_samples": 150, "size": 16},
        },
        model={"body": "conv4", "norm": norm},
        measure={"batch_size": 16},
    )
    return simulate(config, data_of(config))


def workspace_of(job: Simulation) -> Workspace:
    return Workspace.at(job.net, job.federation, "fp32", True, None)


def stacked(job: Simulation, clients: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    rows = {name: tensor.expand(clients, *tensor.shape).clone() for name, tensor in job.model.items()}
    return {
        name: row + 0.3 * torch.randn(row.shape, generator=made) if "head" in name else row
        for name, row in rows.items()
    }


def test_batch_statistics_make_samples_depend_on_each_other() -> None:
    for norm, alone in (("batch", False), ("running", True)):
        job = job_of(norm)
        set_modes(job.net, frozenset())
        assert samples_independent(job.net) is alone


def test_on_cpu_a_look_takes_a_batch() -> None:
    """So that the bits of results stay what they are."""
    job = job_of("running")
    workspace = workspace_of(job)
    assert samples_per_pass(workspace.context, workspace.test_deck([0, 1]), 16) == 16


@pytest.mark.parametrize("many", [16, 64, 1024])
def test_more_at_once_gives_the_same_counts(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    job = job_of("running")
    workspace = workspace_of(job)
    plain = percent_correct(workspace.context, workspace.test_deck([0, 1, 2]), stacked(job, 3), 16)
    monkeypatch.setattr("torso.measure.accuracy.samples_per_pass", lambda context, deck, batch_size: many)
    assert torch.equal(percent_correct(workspace.context, workspace.test_deck([0, 1, 2]), stacked(job, 3), 16), plain)
    assert plain.sum() > 0


@pytest.mark.parametrize("norm", ["batch", "running"])
@pytest.mark.parametrize("many", [3, 100])
def test_batches_of_the_test_set_side_by_side_are_those_one_by_one(
    norm: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each batch has statistics of its own, and where the last one is short."""
    job = job_of(norm)
    workspace, how = workspace_of(job), evaluation_of(job, job.plan[0], State.begin(job.model))
    models = stacked(job, 10)

    def found() -> list[torch.Tensor]:
        takes = (generic, generic_as_personal, ece_generic)
        return [value for take in takes for value in take(workspace, range(10), models, how).values()]

    plain = found()
    monkeypatch.setattr(outputs, "_rows_at_once", lambda context, deck, each: many)
    for one_by_one, together in zip(plain, found(), strict=True):
        torch.testing.assert_close(together, one_by_one)
    assert plain[0].sum() == plain[1].sum() > 0


@pytest.fixture
def small_memory(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A device that holds forty samples of a client at once; the widths that were tried."""
    tried: list[int] = []

    def holds_forty(net: object, tensors: object, x: torch.Tensor, real: torch.Tensor | None = None) -> Output:
        tried.append(x.shape[1])
        if x.shape[1] > 40:
            raise torch.OutOfMemoryError
        return apply(net, tensors, x, real)  # type: ignore[arg-type]

    monkeypatch.setattr(outputs, "apply", holds_forty)
    return tried


def test_what_memory_does_not_hold_is_looked_at_in_halves(small_memory: list[int]) -> None:
    job = job_of("running")
    workspace, tensors = workspace_of(job), stacked(job, 1)
    deck = workspace.test_stretches([0], 150)
    with torch.no_grad():
        ((_, said),) = look(workspace.context, deck.in_order(150, workspace.context.lens), tensors, 150)
        assert small_memory == [150, 75, 37, 38, 75, 37, 38]
        apart = torch.cat(
            [part.logits for _, part in look(workspace.context, deck.in_order(16, workspace.context.lens), tensors)], 1
        )
    torch.testing.assert_close(said.logits, apart)


def test_samples_that_depend_on_each_other_are_not_parted(small_memory: list[int]) -> None:
    job = job_of("batch")
    workspace = workspace_of(job)
    with torch.no_grad(), pytest.raises(torch.OutOfMemoryError):
        list(
            look(
                workspace.context,
                workspace.test_stretches([0], 150).in_order(150, workspace.context.lens),
                stacked(job, 1),
                150,
            )
        )
    assert small_memory == [150]
