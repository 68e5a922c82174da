"""Network outputs for clients' samples in evaluation mode, batch by batch, and sums of features by class.

G clients at a time, B samples, C classes, d features.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from torso.data.batches import Batch, Deck, Shuffle
from torso.data.token_lens import TokenLens
from torso.learn.recorded_foreign import wider
from torso.learn.task import LocalContext
from torso.nets import Network, Output, Tensors, apply, set_modes
from torso.nets.compute import allows_padding, samples_independent
from torso.precision import computing

_AT_ONCE = 2048 * 3 * 32 * 32  # numbers in the samples of one forward pass that keep an accelerator busy
_FEWEST = 32  # a batch with fewer samples is not halved when memory runs out


def samples_per_pass(context: LocalContext, deck: Deck, batch_size: int) -> int:
    """The number of samples of each client in one forward pass: `batch_size`, or a multiple of it on an accelerator if
    a sample's output does not depend on the other samples. With few small batches an accelerator waits for the host."""
    set_modes(context.net, frozenset())
    batches = _rows_at_once(context, deck, batch_size * len(deck.clients)) if samples_independent(context.net) else 1
    return batch_size * batches


def look(
    context: LocalContext, batches: Iterator[Batch], tensors: Tensors, batch_size: int = 0
) -> Iterator[tuple[Batch, Output]]:
    """Each batch with the network's output in evaluation mode. `batch_size`: the size of a full batch."""
    set_modes(context.net, frozenset())
    for batch in batches:
        with computing("fp32"):
            said = _in_few_widths(context.net, tensors, batch, batch_size)
        yield batch, said


def outputs_by_row(context: LocalContext, deck: Deck, tensors: Tensors, each: int) -> Iterator[tuple[Batch, Output]]:
    """The outputs of one model [1, *] for the rows of a deck, in batches of at most `each` samples of a row. As many
    rows are computed together as keep an accelerator busy. If BatchNorm uses batch statistics, each batch has its
    own."""
    set_modes(context.net, frozenset())
    apart = samples_independent(context.net)
    many = _rows_at_once(context, deck, each) if apart or context.net.body.native else 1
    for first in range(0, len(deck.sizes), many):
        rows = deck.rows(first, first + many)
        for batch in rows.in_order(each, context.lens):
            with computing("fp32"):
                yield batch, _as_rows(context.net, tensors, batch, each, apart)


def _rows_at_once(context: LocalContext, deck: Deck, each: int) -> int:
    """How many times `each` samples one forward pass takes."""
    if not deck.index.is_cuda or isinstance(context.lens, TokenLens):
        return 1  # all texts would be padded to the longest of them
    return max(_AT_ONCE // (max(deck.samples[:1].numel(), 1) * each), 1)


def _as_rows(net: Network, tensors: Tensors, batch: Batch, full: int, apart: bool) -> Output:
    """The output of one model [1, *] for a batch with several rows. `apart`: samples do not depend on each other."""
    rows, samples = batch.labels.shape
    if rows == 1:
        return _in_few_widths(net, tensors, batch, full)
    if not apart:
        return apply(net, {n: t.expand(rows, *t.shape[1:]) for n, t in tensors.items()}, batch.inputs, batch.real)
    said = _in_parts(net, tensors, batch.inputs.flatten(0, 1).unsqueeze(0), None)
    fields = (None if field is None else field.reshape(rows, samples, *field.shape[2:]) for field in said)
    return Output._make(fields)


def _in_few_widths(net: Network, tensors: Tensors, batch: Batch, full: int) -> Output:
    """The output for a batch. cuDNN chooses its kernels again for every new width, which takes longer than computing a
    few more samples. So the last batch of a single client is padded with zeros if that changes no output."""
    x, samples = batch.inputs, batch.labels.shape[1]
    more = wider(samples, full) - samples if samples < full else 0
    alone = len(x) == 1 and batch.real is None
    if not more or net.body.native or not x.is_cuda or not alone or not allows_padding(net, x):
        return _in_parts(net, tensors, x, batch.real)
    said = _in_parts(net, tensors, torch.cat([x, x.new_zeros(1, more, *x.shape[2:])], dim=1), None)
    return Output._make(None if field is None else field[:, :samples] for field in said)


def _in_parts(net: Network, tensors: Tensors, x: Tensor, real: Tensor | None) -> Output:
    """The output for inputs [G, B, …]; computed in two halves if memory runs out and samples do not depend on each
    other."""
    try:
        return apply(net, tensors, x, real)
    except torch.OutOfMemoryError:
        if x.shape[1] < _FEWEST or not samples_independent(net):
            raise
    cut = x.shape[1] // 2
    halves = [
        _in_parts(net, tensors, x[:, part], None if real is None else real[:, part])
        for part in (slice(None, cut), slice(cut, None))
    ]
    fields = (None if None in pair else torch.cat(pair, dim=1) for pair in zip(*halves, strict=True))
    return Output._make(fields)


def all_batches(context: LocalContext, deck: Deck, batch_size: int, order: Shuffle | None) -> Iterator[Batch]:
    """Batches of all samples of a deck, once, without augmentation. `order` shuffles them: with samples in class order,
    the batch statistics of BatchNorm would be skewed (spec 9.3)."""
    if order is None:
        return deck.in_order(batch_size, context.lens)
    return deck.shuffled(batch_size, context.lens, order, 0, None)


def one_hot_labels(batch: Batch, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """The samples' labels as one-hot rows [G, B, C]; rows of padding are zero."""
    member = F.one_hot(batch.labels, classes).to(dtype)
    return member if batch.real is None else member * batch.real.unsqueeze(-1)


@torch.no_grad()
def class_sums(
    context: LocalContext, deck: Deck, tensors: Tensors, batch_size: int, order: Shuffle | None
) -> tuple[Tensor, Tensor]:
    """The sums of features by class [G, C, d] over all samples of a deck, and the numbers of samples [G, C]."""
    clients, device = len(deck.clients), deck.index.device
    total = torch.zeros(clients, context.classes, context.net.body.features, device=device)
    count = torch.zeros(clients, context.classes, device=device)
    many = samples_per_pass(context, deck, batch_size)
    for batch, said in look(context, all_batches(context, deck, many, order), tensors, many):
        member = one_hot_labels(batch, context.classes, said.features.dtype)
        total += member.transpose(1, 2) @ said.features
        count += member.sum(dim=1)
    return total, count
