"""Steps of a module that is not Torso's, recorded: those that it takes without, and it goes on where it cannot be."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.data.augment import PixelLens
from torso.data.batches import Batch, Deck, Shuffle
from torso.learn.gradients import Gradients, gradients, leading_gradients
from torso.learn.objectives import CrossEntropy
from torso.learn.recorded_foreign import ForeignRecorder, wider
from torso.learn.sgd import Sgd
from torso.nets import Network, Tensors, learnable, set_modes, skeleton, split

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA")


class Normed(nn.Module):
    """Convolutions, of which one is depthwise, and BatchNorm with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8)
        self.deep, self.fc = nn.Conv2d(8, 8, 3, groups=8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.deep(self.norm(self.first(x)).relu()).relu()
        return self.fc(self.drop(x.mean((2, 3))))  # type: ignore[no-any-return]

    def drop(self, x: Tensor) -> Tensor:
        return x


class Dropping(Normed):
    """Random numbers with and without a generator of their own."""

    def drop(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return F.dropout(x, 0.5) * (torch.rand(len(x), 1, dtype=x.dtype, device=x.device) + 0.5)


class Plain(nn.Module):
    """No BatchNorm, so padding harms nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.fc = nn.Conv2d(3, 8, 3), nn.LayerNorm(8), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.norm(self.conv(x).relu().mean((2, 3))))  # type: ignore[no-any-return]


class HalfFrozen(Normed):
    def __init__(self) -> None:
        super().__init__()
        self.first.requires_grad_(False)
        self.norm.requires_grad_(False)


class Waits(Normed):
    """It looks at its numbers."""

    def drop(self, x: Tensor) -> Tensor:
        return x if float(x.sum()) > 0 else -x


class Peeks(Dropping):
    """It waits for the device where there is one."""

    def drop(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            x.sum().item()
        return super().drop(x)


class Stops(Dropping):
    """It waits in a way that only shows while it is recorded."""

    def drop(self, x: Tensor) -> Tensor:
        if x.is_cuda:
            torch.cuda.synchronize()
        return super().drop(x)


class Changes(Normed):
    """It is another function at every call."""

    calls = 0

    def drop(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.calls


def begun(module: nn.Module, device: str, size: int = 23) -> tuple[Network, Tensors, Deck]:
    whole = split(module.double())
    tensors = {n: t.to(device)[None] for n, t in whole.state_dict().items()}
    images = torch.randint(0, 256, (size, 8, 8, 3), dtype=torch.uint8, device=device)
    labels = torch.arange(size, device=device) % 4
    net = skeleton(whole)
    set_modes(net, tuple(n for n in tensors if n not in net.frozen))
    return net, tensors, Deck.of(images, labels, [torch.arange(size, device=device)], [0])


def batches(deck: Deck, epoch: int) -> Iterator[Batch]:
    lens = PixelLens.of((0.5,) * 3, (0.25,) * 3, deck.index.device)
    for batch in deck.shuffled(5, lens, Shuffle(0, "test", 0), epoch, None, keyed=True):
        yield replace(batch, inputs=batch.inputs.double())


def trained(net: Network, tensors: Tensors, deck: Deck, take: Gradients) -> list[float]:
    """Three epochs, the last batch of each of three samples; the losses."""
    return steps(net, tensors, deck, take, (batch for epoch in range(3) for batch in batches(deck, epoch)))


def steps(net: Network, tensors: Tensors, deck: Deck, take: Gradients, met: Iterable[Batch]) -> list[float]:
    """A step for each batch; the losses."""
    names, sgd, losses = learnable(net, tensors), Sgd(0.9, 1e-3), []
    for batch in met:
        grads, total = take(net, tensors, names, batch, CrossEntropy(), deck.class_counts(4))
        sgd.step(tensors, grads, dict.fromkeys(names, 0.05))
        losses.append(float(total))
    return losses


@needs_cuda
@pytest.mark.parametrize("module", [Normed, Dropping, Plain, HalfFrozen])
def test_recorded_steps_are_the_steps(module: type[nn.Module]) -> None:
    """Two visits, the second with what the first has recorded; nobody draws from torch's own random numbers."""
    torch.manual_seed(0)
    net, start, deck = begun(module(), "cuda")
    recorder, before = ForeignRecorder(gradients, frozen=net.frozen), torch.cuda.get_rng_state()
    for _ in range(2):
        plain = {n: t.clone() for n, t in start.items()}
        wanted = trained(net, plain, deck, leading_gradients)
        recorded = recorder.home(start, 5)
        found = trained(net, recorded, deck, recorder.gradients)
        torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)
        for name, tensor in plain.items():
            torch.testing.assert_close(recorded[name], tensor, rtol=1e-7, atol=1e-8, msg=name)
    assert not recorder.refused
    assert len(recorder._recordings) == 2  # full batches, and those of three
    assert torch.equal(torch.cuda.get_rng_state(), before)


@needs_cuda
def test_a_stack_under_vmap_is_recorded() -> None:
    """Three clients of different sizes: those that run out of samples are padded, or left out at the end."""
    torch.manual_seed(0)
    net, one, deck = begun(Plain(), "cuda", size=30)
    start = {n: torch.cat([t, 1.1 * t, 0.9 * t]) for n, t in one.items()}
    rows = [torch.arange(0, 13), torch.arange(13, 20), torch.arange(20, 30)]
    deck = Deck.of(deck.samples, deck.labels, [r.cuda() for r in rows], [0, 1, 2])
    recorder = ForeignRecorder(gradients)
    plain = {n: t.clone() for n, t in start.items()}
    recorded = recorder.home(start, 5)
    names, counts = learnable(net, start), deck.class_counts(4)
    for epoch in range(2):
        for batch in batches(deck, epoch):
            wanted, losses = gradients(net, plain, names, batch, CrossEntropy(), counts)
            found, seen = recorder.gradients(net, recorded, names, batch, CrossEntropy(), counts)
            torch.testing.assert_close(seen, losses[: len(seen)], rtol=1e-8, atol=1e-8)
            for name in names:
                torch.testing.assert_close(
                    found[name], wanted[name][: len(found[name])], rtol=1e-7, atol=1e-9, msg=name
                )
    assert recorder._recordings
    assert not recorder.refused


@needs_cuda
@pytest.mark.parametrize("module", [Normed, Dropping, HalfFrozen])
def test_steps_of_images_are_the_steps(module: type[nn.Module]) -> None:
    """One batch in float32, full and not: gradients, and how running statistics move."""
    torch.manual_seed(0)
    net, start, deck = begun(module(), "cuda", size=8)
    start = {n: t.float() if t.is_floating_point() else t for n, t in start.items()}
    names, counts = learnable(net, start), deck.class_counts(4)
    recorder = ForeignRecorder(gradients, frozen=net.frozen)
    for epoch in range(2):
        for dealt in batches(deck, epoch):
            batch, home = replace(dealt, inputs=dealt.inputs.float()), recorder.home(start, 5)
            plain = {n: t.clone() for n, t in start.items()}
            wanted, loss = leading_gradients(net, plain, names, batch, CrossEntropy(), counts)
            found, total = recorder.gradients(net, home, names, batch, CrossEntropy(), counts)
            torch.testing.assert_close(total, loss, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
            torch.testing.assert_close(home, plain, rtol=1e-4, atol=1e-6)
    assert not recorder.refused


@needs_cuda
@pytest.mark.parametrize(("module", "told"), [(Waits, 0), (Peeks, 1), (Stops, 1)])
def test_what_cannot_be_recorded_goes_on(module: type[nn.Module], told: int) -> None:
    """With the results that it has without, random numbers too, and one word about it. Nobody knows beforehand what a
    module does that looks at its numbers, so that one is not even tried."""
    torch.manual_seed(0)
    net, start, deck = begun(module(), "cuda")
    plain = {n: t.clone() for n, t in start.items()}
    wanted = trained(net, plain, deck, leading_gradients)
    recorder = ForeignRecorder(gradients)
    home = recorder.home(start, 5)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        found = trained(net, home, deck, recorder.gradients)
    words = [str(one.message).split(":")[0] for one in heard if "CUDA graphs" in str(one.message)]
    assert words == [f"{module.__name__} trains without CUDA graphs, kernel by kernel"] * told
    assert bool(recorder.refused) == bool(told)
    assert not recorder._recordings
    torch.testing.assert_close(found, wanted, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(home, plain, rtol=1e-7, atol=1e-8)
    assert torch.rand(3, device="cuda").shape == (3,)  # torch's generator is not left in a recording
    again = ForeignRecorder(gradients)
    other, tensors, others = begun(Normed(), "cuda")
    trained(other, again.home(tensors, 5), others, again.gradients)
    assert not again.refused


@needs_cuda
def test_a_replay_that_gives_another_loss_is_not_used() -> None:
    net, start, deck = begun(Changes(), "cuda")
    recorder = ForeignRecorder(gradients)
    with pytest.warns(UserWarning, match="a replay gives another loss"):
        trained(net, recorder.home(start, 5), deck, recorder.gradients)


@needs_cuda
def test_nothing_waits() -> None:
    net, start, deck = begun(Dropping(), "cuda")
    names, counts, recorder = learnable(net, start), deck.class_counts(4), ForeignRecorder(gradients)
    home = recorder.home(start, 5)
    for epoch in range(3):  # the third replays all
        dealt = list(batches(deck, epoch))
        torch.cuda.set_sync_debug_mode("error" if epoch == 2 else "default")
        try:
            for batch in dealt:
                recorder.gradients(net, home, names, batch, CrossEntropy(), counts)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert len(recorder._recordings) == 2


@pytest.mark.parametrize(
    ("module", "widths"),
    [
        (Normed, [20, 0, 0, 7, 0, 7, 20]),  # a narrow batch is recorded when its width comes again
        (Plain, [20, 10, 5, 10, 20, 10, 20]),  # few widths, padded
        (Dropping, [20, 0, 0, 7, 0, 7, 20]),  # padding would shift what is drawn
    ],
)
def test_widths(module: type[nn.Module], widths: list[int]) -> None:
    net, start, _ = begun(module(), "cpu")
    recorder = ForeignRecorder(gradients)
    recorder.home(start, 20)
    met = [20, 7, 3, 7, 19, 7, 20]
    asked = [Batch(torch.zeros(1, width, 3, 8, 8).double(), torch.zeros(1, width), keys=(1,)) for width in met]
    assert [recorder._width_for(net, batch) for batch in asked] == widths


def test_few_narrow_widths_are_recorded() -> None:
    net, start, _ = begun(Normed(), "cpu")
    recorder = ForeignRecorder(gradients)
    recorder.home(start, 40)
    asked = [Batch(torch.zeros(1, width, 3, 8, 8).double(), torch.zeros(1, width)) for width in range(1, 40)]
    for batch in asked:
        recorder._width_for(net, batch)
    found = [recorder._width_for(net, batch) for batch in asked]
    assert found == [*range(1, 13), *[0] * 27]
    assert [recorder._width_for(net, batch) for batch in asked] == found


def test_padded_widths_are_few_and_wide_enough() -> None:
    found = [wider(width, 50) for width in range(1, 51)]
    assert all(width <= made for width, made in enumerate(found, start=1))
    assert sorted(set(found)) == [13, 26, 39, 50]
