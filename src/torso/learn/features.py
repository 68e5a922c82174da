"""Features that are computed once: of all samples for a frozen body, or of the samples of one head-only phase.

If nothing before the head is random or trains, the head gets the same features in every epoch. The features are then
stored in place of the samples, in the same order, with a body that passes them on to the same head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from torso.data.augment import Augmentation, FeatureLens, Lens
from torso.data.batches import Deck
from torso.learn.phases import LocalPhase
from torso.learn.steps import Plain
from torso.learn.task import LocalTask
from torso.nets import Body, Network, Tensors, apply, set_modes
from torso.precision import computing


def goes_by_batch(net: Network) -> bool:
    """Whether BatchNorm uses the statistics of the batch in evaluation too, so that features depend on the batch."""
    return any(isinstance(m, _BatchNorm) and m.running_mean is None for m in net.body.modules())


def passing_on(net: Network, size: int) -> Network:
    """A network with the same head, whose body passes on features of this size."""
    return Network(Body((), size), net.head)


@torch.no_grad()
def features_of(net: Network, tensors: Tensors, samples: Tensor, lens: Lens, batch: int) -> Tensor:
    """Features [n, d] of stored samples [n, *] for a body's tensors [*], computed as in evaluation.

    On an accelerator all batches have the same size, because a library may choose another algorithm for another size.
    If memory runs out, the batches become smaller. Sequences are sorted by length, so that padding costs little."""
    body = Network(net.body, nn.Identity(), net.input)
    stacked = {name: tensor[None] for name, tensor in tensors.items() if name.startswith("body.")}
    set_modes(body, frozenset())
    size = max(batch if samples.is_cuda else min(batch, len(samples)), 1)
    by_length = lens.by_length(samples)
    order = torch.arange(len(samples), device=samples.device) if by_length is None else by_length
    while True:
        try:
            with computing("fp32"):
                parts = list(_by_batch(body, stacked, samples, lens, order, size))
            found = torch.cat([samples.new_empty(0, net.body.features, dtype=torch.float32), *parts])
            return torch.empty_like(found).index_copy_(0, order, found)
        except torch.OutOfMemoryError:
            if size == 1:
                raise
            size = -(-size // 2)
            torch.cuda.empty_cache()


def _by_batch(
    body: Network, tensors: Tensors, samples: Tensor, lens: Lens, order: Tensor, size: int
) -> Iterator[Tensor]:
    """Features of `size` samples at a time, in the given order. On an accelerator the last batch is filled up."""
    columns = lens.widths(samples, order[None], size)
    for number, start in enumerate(range(0, len(order), size)):
        places = order[start : start + size]
        count = len(places)
        if samples.is_cuda:
            places = F.pad(places, (0, size - count))  # with the first sample
        cut = samples if columns is None else samples[:, : columns[number]]
        inputs = lens.look(cut, places[None])
        if inputs.is_cuda and not body.body.native:
            inputs = inputs.contiguous()  # the memory layout that a plain loop over images would have
        yield apply(body, tensors, inputs).features[0, :count].float()


def are_fixed(task: LocalTask, phase: LocalPhase, learning: tuple[str, ...]) -> bool:
    """Whether the phase's features are the same in every epoch, and the phase has more than one epoch.

    False if images are augmented, if BatchNorm uses statistics of the batch, if the loss compares with other models, or
    if the step or the body is not Torso's own plain one and might do anything."""
    context, net = task.context, task.context.net
    return (
        phase.epochs > 1
        and not context.on_features
        and max(task.deck.sizes) > 0
        and not any(name.startswith("body.") for name in (*phase.moving, *learning))
        and net.body.native
        and not goes_by_batch(net)
        and not context.change.random
        and task.meta is None
        and type(task.settings.step) is Plain
        and not task.settings.objective.teachers
    )


@torch.no_grad()
def on_features(task: LocalTask, phase: LocalPhase, tensors: Tensors) -> LocalTask:
    """The same task with the samples replaced by their features [G, n, d], computed with the body in `tensors`."""
    context, deck = task.context, task.deck
    set_modes(context.net, phase.moving)
    batches = deck.in_order(task.settings.batch_size, context.lens)
    features = torch.cat([apply(context.net, tensors, batch.inputs, batch.real).features for batch in batches], dim=1)
    clients, samples, size = features.shape
    places = torch.arange(clients * samples, device=features.device).view(clients, samples)
    return replace(
        task,
        context=replace(context, net=passing_on(context.net, size), lens=FeatureLens(), change=Augmentation()),
        deck=Deck(features.reshape(-1, size), deck.labels[deck.index].flatten(), places, deck.sizes, deck.clients),
    )
