"""A module that is not Torso's through torch.compile: the same steps, and as it is where it cannot be compiled.

Here torch.compile traces forward and backward and runs them by PyTorch's own kernels (`aot_eager`): to generate code
takes a minute on CPU. What Inductor makes of it is tested where there is CUDA.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.learn.replaying import Replaying
from tests.learn.test_recorded_foreign import Dropping, HalfFrozen, Normed, Plain, batches, steps
from tests.learn.test_recorded_foreign import begun as begun_in_double
from torch import Tensor, nn

from torso.data.batches import Batch, Deck
from torso.learn import recorded_foreign
from torso.learn.gradients import Gradients, gradients, leading_gradients
from torso.learn.recorded import Graph
from torso.learn.recorded_foreign import ForeignRecorder, Step
from torso.nets import Network, Tensors, learnable, set_modes, skeleton, split
from torso.nets.compiled import Compiling

pytestmark = pytest.mark.xdist_group("programs")  # torch's exporters and compiler take seconds to load: in one worker

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA")


def begun(kind: type[nn.Module], device: str = "cpu", size: int = 12) -> tuple[Network, Tensors, Deck]:
    torch.manual_seed(0)
    module = kind()
    _, start, deck = begun_in_double(kind(), device, size)
    whole = split(module.float())
    net = skeleton(whole)
    set_modes(net, tuple(n for n in start if n not in net.frozen))
    return net, {n: t.to(device)[None] for n, t in whole.state_dict().items()}, deck


def dealt(deck: Deck, epoch: int) -> Iterator[Batch]:
    return (replace(batch, inputs=batch.inputs.float()) for batch in batches(deck, epoch))


def trained(net: Network, tensors: Tensors, deck: Deck, take: Gradients) -> list[float]:
    """Two epochs of two full batches and one of two samples; the losses."""
    return steps(net, tensors, deck, take, (batch for epoch in range(2) for batch in dealt(deck, epoch)))


class OnCpu(ForeignRecorder):
    """Records on a machine without CUDA, and notes by what each recording was compiled."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.backends: list[str] = []

    def _warm_up(self, step: Step) -> None:
        self._try(step)

    def _captured(self, step: Step) -> tuple[Graph, tuple[Tensors, Tensor]]:
        backend = self._backend
        self.backends.append(backend)

        def run() -> tuple[Tensors, Tensor]:
            with Compiling(backend):
                return step()

        before = {n: t.clone() for n, t in self._here.items()}
        grads, total = run()
        for name, tensor in before.items():  # a graph is recorded, not run
            self._here[name].copy_(tensor)
        first = {n: g.clone() for n, g in grads.items()}, total.clone()
        return Replaying(run, first), first


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_foreign, "_no_waiting", nullcontext)
    monkeypatch.setattr(recorded_foreign, "_BACKEND", "aot_eager")


@pytest.mark.parametrize("kind", [Normed, Plain, HalfFrozen])
def test_compiled_gradients_are_the_gradients(kind: type[nn.Module]) -> None:
    """In float32; running statistics and counters move as they do without."""
    net, start, deck = begun(kind)
    plain, compiled = ({n: t.clone() for n, t in start.items()} for _ in range(2))

    def take(*given: Any) -> tuple[Tensors, Tensor]:
        with Compiling("aot_eager"):
            return leading_gradients(*given)

    wanted = trained(net, plain, deck, leading_gradients)
    torch._dynamo.utils.counters.clear()
    found = trained(net, compiled, deck, take)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2  # two widths
    assert not torch._dynamo.utils.counters["graph_break"]
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(compiled, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("compiles", "backends"),
    [("on", ["aot_eager", ""]), ("off", ["", ""]), ("auto", ["", "", "aot_eager"])],
)
def test_full_batches_are_compiled_when_it_pays(
    compiles: Any, backends: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrow ones are not, and are recorded when their width comes again."""
    monkeypatch.setitem(recorded_foreign._FIRST, "auto", 3)  # the fourth step of a full batch
    net, start, deck = begun(Normed)
    plain = {n: t.clone() for n, t in start.items()}
    wanted = trained(net, plain, deck, leading_gradients)
    recorder = OnCpu(gradients, compiles=compiles)
    home = recorder.home(start, 5)
    found = trained(net, home, deck, recorder.gradients)
    assert (sorted(recorder.backends), recorder.uncompiled, recorder.refused) == (sorted(backends), "", "")
    assert len(recorder._recordings) == 2  # the one before is dropped
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(home, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("on_cpu")
def test_what_cannot_be_compiled_is_recorded_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded_foreign, "_BACKEND", "a compiler that is not here")
    net, start, deck = begun(Normed)
    plain = {n: t.clone() for n, t in start.items()}
    wanted = trained(net, plain, deck, leading_gradients)
    recorder = OnCpu(gradients, compiles="on")
    home = recorder.home(start, 5)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = trained(net, home, deck, recorder.gradients)
    told = [str(one.message) for one in heard if "torch.compile" in str(one.message)]
    assert len(told) == 1
    assert told[0].startswith("Normed trains without torch.compile: ")
    assert "\n" not in told[0]
    assert recorder.backends == ["", ""]
    assert not recorder.refused
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(home, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("on_cpu")
def test_what_draws_is_not_compiled() -> None:
    """It would draw other numbers than without."""
    net, start, deck = begun(Dropping)
    recorder = OnCpu(gradients, compiles="on")
    recorder._whole = True
    assert recorder._backend_for(net, learnable(net, start), next(dealt(deck, 0))) == ""


def test_another_recorder_compiles_as_the_first() -> None:
    made = ForeignRecorder(gradients, compiles="off").another()
    assert isinstance(made, ForeignRecorder)
    assert made.compiles == "off"


@needs_cuda
@pytest.mark.parametrize("kind", [Normed, Plain, HalfFrozen])
def test_compiled_and_recorded_steps_are_the_steps(kind: type[nn.Module]) -> None:
    net, start, deck = begun(kind, "cuda")
    recorder = ForeignRecorder(gradients, frozen=net.frozen, compiles="on")
    for _ in range(2):
        plain = {n: t.clone() for n, t in start.items()}
        wanted = trained(net, plain, deck, leading_gradients)
        home = recorder.home(start, 5)
        found = trained(net, home, deck, recorder.gradients)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(home, plain, rtol=1e-3, atol=1e-4)
    assert (recorder.uncompiled, recorder.refused) == ("", "")
