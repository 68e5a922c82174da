"""Recorded gradients are the gradients, whatever was recorded before; no step waits for the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from torso.data.augment import PixelLens, augmentations
from torso.data.batches import Batch, Deck, Shuffle
from torso.data.inputs import Floats, Input, Pixels, Tokens
from torso.learn.drift import Drift, DriftState, NoDrift, Proximal
from torso.learn.gradients import gradients
from torso.learn.local import learn
from torso.learn.objectives import CrossEntropy
from torso.learn.phases import Phase, local_phases
from torso.learn.recorded import Recorder, _room_for, clients_to_record
from torso.learn.sgd import Sgd
from torso.learn.steps import LocalSettings
from torso.learn.task import LocalContext, LocalTask
from torso.nets import LinearHead, Network, Tensors, build, learnable, set_modes, skeleton

needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need CUDA")
SIZES = (23, 8, 3)


def federation(body: str) -> tuple[Network, Tensors, Deck]:
    whole = build(body, 4, (3, 16, 16), LinearHead(), seed=0)
    tensors = {n: t.cuda().expand(len(SIZES), *t.shape).contiguous() for n, t in whole.state_dict().items()}
    draw = torch.Generator("cuda").manual_seed(0)
    images = torch.randint(0, 256, (sum(SIZES), 16, 16, 3), dtype=torch.uint8, device="cuda", generator=draw)
    rows = list(torch.arange(sum(SIZES), device="cuda").split(SIZES))
    return skeleton(whole), tensors, Deck.of(images, torch.arange(sum(SIZES), device="cuda") % 4, rows, range(3))


def distance(found: Tensor, wanted: Tensor, start: Tensor) -> float:
    """How far two ends are from each other, for the way to them."""
    return float((found - wanted).norm() / (wanted - start).norm().clamp(min=1e-6))


def batches(deck: Deck, epochs: int, lens: PixelLens | None = None) -> Iterator[Batch]:
    lens = lens or PixelLens.of((0.5,) * 3, (0.25,) * 3, torch.device("cuda"))
    for epoch in range(epochs):
        yield from deck.shuffled(5, lens, Shuffle(0, "test", 0), epoch, augmentations["crop-flip"])


@needs_cuda
@pytest.mark.parametrize(
    ("body", "dtype", "close", "at_home"),
    [
        ("conv4", torch.float32, 2e-2, True),
        ("conv4", torch.float64, 1e-9, False),
        ("resnet8", torch.float64, 1e-9, True),
    ],
)
def test_ragged_epochs(body: str, dtype: torch.dtype, close: float, at_home: bool) -> None:
    """Three clients of which one has five batches and one has one; twice, as two visits with the same recordings.

    Recordings are of more clients than have samples, and kernels may add in another order for them. In float64 nothing
    is left of it. In float32 a ReLU at its edge falls to either side, which changes some weights by more than rounding:
    there the whole of a tensor is compared with how far it has moved."""
    net, start, deck = federation(body)
    start = {n: t.to(dtype) if t.is_floating_point() else t for n, t in start.items()}
    names, counts, recorder = learnable(net, start), deck.class_counts(4), Recorder(gradients)
    set_modes(net, tuple(start))
    for _ in range(2):
        ends = []
        for take in (gradients, recorder.gradients):
            tensors = {n: t.clone() for n, t in start.items()}
            if at_home and take is not gradients:
                tensors = recorder.home(tensors, 5)
            sgd = Sgd(0.9, 1e-3)
            for dealt in batches(deck, 2):
                batch = replace(dealt, inputs=dealt.inputs.to(dtype))
                grads, total = take(net, tensors, names, batch, CrossEntropy(), counts)
                assert len(total) >= (batch.lead or 3)
                sgd.step(tensors, grads, dict.fromkeys(names, 0.01), batch.active, batch.lead)
            ends.append({n: t.clone() for n, t in tensors.items()})
        plain, recorded = ends
        for name, tensor in plain.items():
            if dtype == torch.float64 or not tensor.is_floating_point():
                torch.testing.assert_close(recorded[name], tensor, rtol=close, atol=close / 10, msg=name)
            else:
                assert distance(recorded[name], tensor, start[name]) < close, name


@pytest.mark.parametrize("clients", [1, 2, 7, 10, 100, 128])
def test_few_recordings_serve_any_number_of_clients(clients: int) -> None:
    rungs = [clients_to_record(lead, clients) for lead in range(1, clients + 1)]
    assert rungs == sorted(rungs)
    assert all(lead <= made <= clients and made <= 1.5 * lead + 1 for lead, made in enumerate(rungs, start=1))
    assert len(set(rungs)) <= 2 * clients.bit_length()


def task(
    body: str, epochs: int, drift: Drift, recorder: Recorder | None
) -> tuple[LocalTask, Tensors, DriftState | None]:
    """Three clients on the device in two local_phases, with rates of their own for body and head."""
    net, start, deck = federation(body)
    lens = PixelLens.of((0.5,) * 3, (0.25,) * 3, torch.device("cuda"))
    context = LocalContext(net, 4, lens, augmentations["crop-flip"], False, recorder=recorder)
    plan = local_phases(net, (Phase("all", 1), Phase("head", epochs)), epochs, 0.01, head_factor=0.5)
    settings = LocalSettings(5, 0.9, 1e-3, drift=drift)
    anchor = None if type(drift) is NoDrift else DriftState({n: start[n][0] + 0.01 for n in learnable(net, start)}, {})
    return LocalTask(context, deck, plan, settings, Shuffle(0, "test", 0)), start, anchor


@needs_cuda
@pytest.mark.parametrize(
    ("body", "drift", "exact"),
    [
        ("conv4", NoDrift(), True),
        ("conv4", NoDrift(), False),
        ("conv4", Proximal(0.1), True),
        ("resnet8", NoDrift(), True),
        ("mlp", Proximal(0.1), True),
        ("mlp", NoDrift(), False),
    ],
)
def test_several_steps_in_one_recording(body: str, drift: Drift, exact: bool, request: pytest.FixtureRequest) -> None:
    """Whole visits, twice, of clients that fall out one after the other; exact: in float64, with plain PyTorch."""
    if exact:
        request.getfixturevalue("double")
    recorder, ends = Recorder(gradients), []
    for made in (None, recorder, recorder):
        asked, start, anchor = task(body, 2, drift, made)
        ends.append(learn(asked, start, anchor))
    assert recorder._plays
    assert not recorder._recordings
    plain, *recorded = ends
    for found in recorded:
        torch.testing.assert_close(found.loss, plain.loss, rtol=1e-2, atol=1e-3)
        for name, tensor in plain.tensors.items():
            if not tensor.is_floating_point():
                assert torch.equal(found.tensors[name], tensor), name
            else:
                near = distance(found.tensors[name], tensor, start[name])
                assert near < (1e-6 if exact else 3e-2), (name, near)


@needs_cuda
def test_a_visit_of_several_steps_waits_for_nothing() -> None:
    recorder = Recorder(gradients)
    asked, start, anchor = task("conv4", 2, NoDrift(), recorder)
    for _ in range(2):
        learn(asked, start, anchor)
    torch.cuda.set_sync_debug_mode("error")
    try:
        learn(asked, start, anchor)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    recorder.forget()
    learn(asked, start, anchor)


@needs_cuda
def test_nothing_waits() -> None:
    net, tensors, deck = federation("conv4")
    names, counts, recorder, sgd = learnable(net, tensors), deck.class_counts(4), Recorder(gradients), Sgd(0.9, 0.0)
    set_modes(net, names)
    tensors = recorder.home(tensors, 5)
    lens = PixelLens.of((0.5,) * 3, (0.25,) * 3, torch.device("cuda"))

    def epoch() -> None:
        for batch in batches(deck, 1, lens):
            grads, _ = recorder.gradients(net, tensors, names, batch, CrossEntropy(), counts)
            sgd.step(tensors, grads, dict.fromkeys(names, 0.01), batch.active, batch.lead)

    epoch()  # compiles and records
    torch.cuda.set_sync_debug_mode("error")
    try:
        epoch()
    finally:
        torch.cuda.set_sync_debug_mode("default")


@needs_cuda
def test_what_was_forgotten_is_recorded_again() -> None:
    """Also while somebody still holds what the last recording gave."""
    net, start, deck = federation("conv4")
    names, counts, recorder = learnable(net, start), deck.class_counts(4), Recorder(gradients)
    set_modes(net, names)
    batch = next(batches(deck, 1))
    first, _ = recorder.gradients(net, recorder.home(start, 5), names, batch, CrossEntropy(), counts)
    wanted = {n: g.clone() for n, g in first.items()}
    recorder.forget()
    again, _ = recorder.gradients(net, recorder.home(start, 5), names, batch, CrossEntropy(), counts)
    for name, grad in wanted.items():
        torch.testing.assert_close(again[name], grad, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.parametrize("kind", [Pixels(3, 4, 5), Pixels(1, 4, 5), Floats((6,)), Floats((2, 3)), Tokens(7, 9)])
def test_room_for_wider_batches_has_each_sample_as_it_lies(kind: Input) -> None:
    """Images are channels-last, whatever the width; other samples lie as they are."""
    stored = torch.zeros(4, 4, 5, kind.shape[0]) if isinstance(kind, Pixels) else torch.zeros(4, *kind.shape)
    index = torch.zeros(2, 3, dtype=torch.int64)
    seen = kind.lens(torch.device("cpu")).look(stored.to(kind.stored), index)
    context = _room_for(Batch(seen, index), 5, masked=True)
    assert (context.inputs.shape, context.inputs.dtype) == ((2, 5, *kind.shape), kind.given)
    assert context.inputs.stride()[1:] == seen.stride()[1:]
    assert context.inputs.stride(0) == 5 * seen.stride(1)
    assert not context.inputs.any()


@needs_cuda
@pytest.mark.parametrize(
    ("body", "kind"),
    [("mlp", Floats((6,), (1.0,) * 6, (2.0,) * 6)), ("embedding-mean", Tokens(7, 9)), ("transformer", Tokens(7, 9))],
)
def test_rows_and_sequences_are_recorded_too(body: str, kind: Input) -> None:
    device, sizes = torch.device("cuda"), (23, 8, 3)
    whole = build(body, 4, kind, LinearHead(), seed=0)
    start = {n: t.to(device).expand(3, *t.shape).contiguous() for n, t in whole.state_dict().items()}
    rows = list(torch.arange(sum(sizes), device=device).split(sizes))
    samples = kind.example(sum(sizes)).to(device, kind.stored)
    deck = Deck.of(samples, torch.arange(sum(sizes), device=device) % 4, rows, range(3))
    net = skeleton(whole)
    names, counts, recorder = learnable(net, start), deck.class_counts(4), Recorder(gradients)
    set_modes(net, tuple(start))
    home = recorder.home(start, 5)
    for batch in deck.shuffled(5, kind.lens(device), Shuffle(0, "test", 0), 0, None):
        wanted, _ = gradients(net, start, names, batch, CrossEntropy(), counts)
        found, _ = recorder.gradients(net, home, names, batch, CrossEntropy(), counts)
        for name in names:
            rows_there = len(found[name])
            torch.testing.assert_close(found[name], wanted[name][:rows_there], atol=1e-5, rtol=1e-3)
