"""Recordings of several plain steps, so that an epoch of stacked clients takes few launches.

Everything that a step needs is in fixed memory (`Recorder.place`): tensors and velocities, learning rates, the anchor
of drift corrections, and the epoch's batches as numbers (data/deals.py). Gathering the samples, the gradients and the
step of SGD are recorded together, for 1, 2, 4 or 8 steps; a short epoch of equal clients is one recording. When clients
run out of samples, recordings of fewer clients are used, and a client in the stack without samples keeps its weights.

G clients, of which the first R are computed; B samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.data.augment import Lens
from torso.data.batches import Batch
from torso.data.deals import Deal, DealShape, samples_per_step
from torso.fast import is_fast
from torso.learn.drift import DriftState, NoDrift
from torso.learn.factored_step import factored_step
from torso.learn.recorded import Recordable, Recorder, clients_to_record
from torso.learn.sgd import Sgd
from torso.learn.stacked import is_one_for_all
from torso.learn.steps import Learner, Plain
from torso.learn.task import LocalTask
from torso.nets import Tensors
from torso.nets.stacked_linear import Casts

_MOST = 8  # steps of a recording


def can_record_epoch(learner: Learner, task: LocalTask) -> bool:
    """Whether the phase's steps can be recorded together: they must need nothing from the host."""
    recorder, settings, net, lens = task.context.recorder, learner.settings, learner.net, task.context.lens
    return (
        recorder is not None
        and recorder.joins_steps
        and type(settings.step) is Plain
        and not (settings.has_foreign_step or settings.has_foreign_drift or settings.objective.teachers)
        and net.body.native
        and net.body.keyed_by in (False, "device")
        and type(lens).widths is Lens.widths
        and task.deck.samples.device == task.deck.labels.device
        and not any(isinstance(rate, Tensor) for rate in learner.rates.values())
        and (learner.anchor is None or isinstance(learner.anchor.participants, int))
        and recorder.holds(learner.tensors)
    )


def recorded_epoch(learner: Learner, task: LocalTask, number: int) -> None:
    """Train an epoch of a task, with the result of `Plain.epoch`."""
    recorder = task.context.recorder
    assert recorder is not None
    deck, context = task.deck, task.context
    used = deck.used(task.settings.batch_size, context.skip_single)
    if not max(used):
        return
    width = min(task.settings.batch_size, max(deck.sizes))
    form = DealShape.of(deck, width, context.change.random, bool(context.net.body.keyed_by))
    filled = samples_per_step(used, form)
    deal: Deal = recorder.made(("deal", form), lambda: Deal.room(form, deck.index.device))
    deal.fill(deck, form, task.shuffle, number, filled)
    recorder.play(("deal", form), lambda: Recordable(lambda: deal.deal(form), lambda: deal.deal(form)))
    replays = _EpochReplay(learner, task, recorder, deal)
    replays.begin()
    for start, steps, rows, masked in blocks(filled):
        replays.go(start, steps, rows, masked)
    replays.end()


def blocks(filled: NDArray[np.int64]) -> Iterator[tuple[int, int, int, bool]]:
    """The steps of an epoch in blocks, one for each replay: the first step, the number of steps, the number of clients,
    and whether some of these lack samples. `filled` [G, S]: samples by client and step; clients with the most steps
    stand first."""
    clients, width = len(filled), filled.max(initial=0)
    leads = np.count_nonzero(filled, axis=0).tolist()
    kinds = []
    for step, lead in enumerate(leads):
        if lead:
            rows = clients_to_record(lead, clients)
            kinds.append((rows, bool((filled[:rows, step] < width).any())))
    if kinds and len(set(kinds)) == 1 and len(kinds) <= _MOST:  # equal clients: the epoch is one recording
        yield 0, len(kinds), *kinds[0]
        return
    start = 0
    while start < len(kinds):
        alike = next((n for n, kind in enumerate(kinds[start:]) if kind != kinds[start]), len(kinds) - start)
        steps = min(1 << (alike.bit_length() - 1), _MOST)
        yield start, steps, *kinds[start]
        start += steps


@dataclass
class _EpochReplay:
    """The replays of one epoch."""

    learner: Learner
    task: LocalTask
    recorder: Recorder
    deal: Deal

    def begin(self) -> None:
        """Copy everything that is new in this visit or phase into fixed memory."""
        learner = self.learner
        self.counts = self.recorder.place("counts", learner.counts)
        self.counts.copy_(learner.counts)
        clients, device = len(learner.loss), learner.loss.device
        self.met = self.recorder.made(("met", clients), lambda: torch.zeros(2, clients, device=device))
        self.met.zero_()
        values = sorted(set(map(float, learner.rates.values())))
        self.rates = self._settled("rates", values)
        self.groups = tuple(values.index(float(learner.rates[n])) if n in learner.rates else -1 for n in learner.names)
        self._velocities()
        self.anchor = self._anchored()
        self.key = self._key()

    def _settled(self, what: str, values: Sequence[float]) -> Tensor:
        """Numbers of the host in fixed memory. They are copied to the device only if they have changed."""
        like, recorder = self.learner.tensors[self.learner.names[0]], self.recorder
        key = what, len(values), like.dtype
        held = recorder.made(key, lambda: torch.zeros(len(values), dtype=like.dtype, device=like.device))
        if recorder.noted.get(key) != tuple(values):
            held.copy_(torch.tensor(values, dtype=like.dtype), non_blocking=True)
            recorder.noted[key] = tuple(values)
        return held

    def _velocities(self) -> None:
        """Move the learner's velocities to fixed memory; new velocities are zero."""
        sgd, tensors = self.learner.sgd, self.learner.tensors
        if not sgd.momentum:
            return
        homes = {n: self.recorder.place(f"velocity {n}", tensors[n]) for n in self.learner.names}
        if fresh := [home for n, home in homes.items() if n not in sgd.velocity]:
            torch._foreach_zero_(fresh)
        for name in sgd.velocity.keys() & homes.keys():
            if sgd.velocity[name] is not homes[name]:
                homes[name].copy_(sgd.velocity[name])
        sgd.velocity |= homes

    def _anchored(self) -> DriftState | None:
        """The anchor of drift corrections in fixed memory; None if the correction does not use it."""
        anchor = self.learner.anchor
        if anchor is None or type(self.learner.settings.drift) is NoDrift:
            return None

        def held(kind: str, tensors: Tensors) -> Tensors:
            there = {n: t for n, t in tensors.items() if n in self.learner.tensors}
            homes = {n: self.recorder.place(f"{kind} {n}", t) for n, t in there.items()}
            for name, home in homes.items():
                home.copy_(there[name])
            return homes

        start, own, shared = (held(kind, getattr(anchor, kind)) for kind in ("start", "own", "shared"))
        return DriftState(start, {}, own, shared, anchor.participants)

    def _key(self) -> tuple[object, ...]:
        """Everything that a recording depends on, except the numbers of clients and steps."""
        learner, task, settings = self.learner, self.task, self.learner.settings
        context, deck, sgd, anchor = task.context, task.deck, learner.sgd, self.anchor
        switches = torch.get_float32_matmul_precision(), context.precision, is_fast(learner.loss)
        stored = (deck.samples.data_ptr(), deck.samples.shape, deck.labels.data_ptr())
        network = (id(learner.net), learner.moving, tuple(learner.tensors), learner.names, self.groups)
        held = anchor and (*map(_shapes, (anchor.start, anchor.own, anchor.shared)), anchor.participants)
        numbers = (
            self.rates.shape,
            self.rates.dtype,
            sgd.momentum,
            sgd.weight_decay,
            self.counts.shape,
            self.deal.sample_picks.shape[2:],
        )
        return (
            network,
            settings.objective,
            settings.drift,
            held,
            numbers,
            context.training_lens,
            context.change,
            switches,
            stored,
        )

    def go(self, start: int, steps: int, rows: int, masked: bool) -> None:
        """Do some steps of the first `rows` clients, by a recording that is made if there is none."""
        sample_picks = self.deal.sample_picks[start : start + steps, :, :rows]
        step_facts = self.deal.step_facts[start : start + steps, :, :rows]
        window = self.recorder.place("picks", sample_picks), self.recorder.place("facts", step_facts)
        window[0].copy_(sample_picks)
        window[1].copy_(step_facts)
        key = self.key, steps, rows, masked
        self.recorder.play(key, lambda: self._play(window, steps, rows, masked))

    def _play(self, window: tuple[Tensor, Tensor], steps: int, rows: int, masked: bool) -> Recordable:
        learner, batch = self._first(rows), self._batches(window, masked)
        loss, met = self.met[:, :rows]

        def run() -> None:
            casts: Casts = {}
            for step in range(steps):
                loss.add_(factored_step(learner, batch(step), casts))
                met.add_(window[1][step, 0])

        def warm_up() -> None:
            """Two steps on copies."""
            sgd = Sgd(learner.sgd.momentum, learner.sgd.weight_decay)
            sgd.velocity = {n: v.clone() for n, v in learner.sgd.velocity.items()}
            copies = {n: t if is_one_for_all(t) else t.clone() for n, t in learner.tensors.items()}
            dry = replace(learner, tensors=copies, sgd=sgd)
            casts: Casts = {}
            for _ in range(2):
                factored_step(dry, batch(0), casts)

        return Recordable(run, warm_up)

    def _first(self, rows: int) -> Learner:
        """A learner for the first clients, with its tensors in fixed memory."""
        learner = self.learner
        tensors = {n: t[:rows] for n, t in learner.tensors.items()}
        sgd = Sgd(learner.sgd.momentum, learner.sgd.weight_decay)
        sgd.velocity = {n: learner.sgd.velocity[n][:rows] for n in learner.names if learner.sgd.momentum}
        groups = zip(learner.names, self.groups, strict=True)
        return replace(
            learner,
            counts=self.counts[:rows],
            tensors=tensors,
            rates={n: self.rates[group] for n, group in groups if group >= 0},
            sgd=sgd,
            anchor=None if self.anchor is None else self.anchor.of_places(slice(rows), self.learner.tensors),
            start={},
            notes={},
            take=self.recorder.compute,
        )

    def _batches(self, window: tuple[Tensor, Tensor], masked: bool) -> Callable[[int], Batch]:
        """The function that makes the batch of a step from its numbers on the device."""
        sample_picks, step_facts = window
        context, deck = self.task.context, self.task.deck
        samples, labels, lens, change = deck.samples, deck.labels, context.training_lens, context.change
        keyed = bool(context.net.body.keyed_by)
        places = torch.arange(sample_picks.shape[-1], device=sample_picks.device)

        def batch(step: int) -> Batch:
            index, bits = sample_picks[step]
            filled, keys = step_facts[step]
            real = (places < filled.unsqueeze(-1)).float() if masked else None
            inputs = lens.look(samples, index, change, bits if change.random else None)
            active = filled > 0 if masked else None
            return Batch(inputs, labels[index], real, active, keys=keys if keyed else None)

        return batch

    def end(self) -> None:
        """Add the epoch's losses and numbers of samples to the learner's."""
        self.learner.loss, self.learner.met = self.learner.loss + self.met[0], self.learner.met + self.met[1]


def _shapes(tensors: Tensors) -> tuple[tuple[str, torch.Size], ...]:
    return tuple((name, tensor.shape) for name, tensor in tensors.items())
