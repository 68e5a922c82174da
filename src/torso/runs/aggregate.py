"""What the server makes of a round's messages as they come: sums in the order of the participants.

Single uploads are held where somebody looks at all of them: a server rule that `needs_each`, attackers who collude.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from torso.data.batches import on_device
from torso.errors import RunFailed
from torso.learn.attacks import put
from torso.learn.drift import Local
from torso.nets import Tensors
from torso.personal.store import ClientState, Elsewhere
from torso.runs.messages import Sent, Told
from torso.runs.stages import Stage
from torso.server.robust import clipped
from torso.server.state import ServerState
from torso.server.sums import add_stacked, add_weighted


@dataclass(frozen=True)
class MeanSent:
    """What some participants sent, where nobody sees single uploads (secure aggregation)."""

    clients: tuple[int, ...]
    model: Tensors  # [*]: the mean of what travels, weighted
    change: Tensors  # [*]: the sum of the changes of what their drift corrections remember
    loss: float  # weighted mean


class Aggregate:
    """The sums of one round. Weights are applied here, where the sum is made, and by who really came: a participant
    that is missing does not bias the mean."""

    def __init__(
        self, stage: Stage, told: Told, weights: Mapping[int, float], malicious: frozenset[int] = frozenset()
    ) -> None:
        self.stage, self.round, self.weights, self.malicious = stage, told.round, weights, malicious
        rule, drift = stage.method.server, stage.method.drift
        self.parameters = stage.uploaded
        self.colludes = stage.attack.colludes() and not malicious.isdisjoint(weights)
        looks_back = rule.uses_squares or (drift.remembers and not drift.sends)
        self.start = {name: told.model[name] for name in stage.corrected} if looks_back else {}
        self.received = {name: told.model[name] for name in self.parameters} if rule.clip or self.colludes else {}
        self.offers = told.offers
        self.total: Tensors = {}  # Σ_k w_k · shared part; without the parameters where the rule needs each upload
        self.each: dict[int, Tensors] = {}  # those, by client
        self.change: Tensors = {}  # Σ_k of the change of what the drift corrections remember
        self.squares = torch.zeros(())  # Σ_k w_k · ‖shared parameters − received‖²
        self.uploads: dict[int, Tensors] = {}  # of single clients, where the server rule keeps them
        self.told: dict[int, tuple[Tensor, Tensor]] = {}  # by client: whose models it was offered, and what it says
        self.left: dict[int, ClientState | Elsewhere] = {}  # what clients go on with, or handles on it
        self._held: list[Sent] = []  # until the attackers know them all
        self._clients: list[int] = []
        self._losses: list[Tensor] = []
        self._finite: list[Tensor] = []
        self._mean: MeanSent | None = None

    @property
    def holds_uploads(self) -> bool:
        """Whether single uploads are held until all have come: memory for as many models as there are participants."""
        return self.stage.method.server.needs_each or self.colludes

    def take(self, sent: Sent) -> None:
        """Add the messages of some participants; nothing is read from the device."""
        self._clients += sent.clients
        self._losses.append(sent.loss)
        self._finite.append(sent.finite)
        self.left.update(sent.left)
        if self.colludes:
            self._held.append(sent)
        else:
            self._add(sent)

    def take_mean(self, mean: MeanSent) -> None:
        """The participants at once, where single uploads are nobody's."""
        self._mean, self.total, self.change = mean, dict(mean.model), dict(mean.change)
        self._clients += mean.clients

    def _add(self, sent: Sent) -> None:
        rule = self.stage.method.server
        if rule.clip:
            parameters = {name: sent.model[name] for name in self.parameters}
            sent = replace(sent, model={**sent.model, **clipped(parameters, self.received, rule.clip)})
        weights = on_device(sent.loss.device, [self.weights[k] for k in sent.clients])
        if rule.keeps_uploads:
            self.uploads |= {k: _row(sent.model, g) for g, k in enumerate(sent.clients)}
        else:
            averaged = sent.model
            if rule.needs_each:
                apart = {name: sent.model[name] for name in self.parameters}
                self.each |= {k: _row(apart, g) for g, k in enumerate(sent.clients)}
                averaged = {name: tensor for name, tensor in sent.model.items() if name not in apart}
            add_weighted(self.total, averaged, weights)
            self._add_squares(sent, weights)
            add_stacked(self.change, self._changes(sent))
        if sent.scores is not None:
            for k, scores in zip(sent.clients, sent.scores, strict=True):
                self.told[k] = on_device(scores.device, self.offers[k]).long(), scores

    @property
    def clients(self) -> tuple[int, ...]:
        """Those who came, in the order of the participants."""
        return tuple(self._clients)

    def close(self) -> float:
        """All have come, or will not: check what came, and give its mean loss.

        Losses are read once, when everything has been asked of the device; a non-finite one ends the run (spec 3.7)."""
        if self._mean is not None:
            return self._mean.loss
        values = torch.cat(self._losses).tolist() if self._losses else []
        losses = dict(zip(self._clients, values, strict=True))
        for client, loss in sorted(losses.items()):
            if not math.isfinite(loss):
                raise RunFailed(f"non-finite loss in round {self.round}, client {client}")
        if not _all(self._finite):
            raise RunFailed(f"non-finite weights after round {self.round}")
        for sent in self._colluded():
            self._add(sent)
        loss = float(sum(self.weights[k] * losses[k] for k in self.weights if k in losses))
        if len(losses) == len(self.weights) or not losses:
            return loss
        came = sum(self.weights[k] for k in losses)  # the mean is over those who answered
        self.total = {n: t / came if t.is_floating_point() else t for n, t in self.total.items()}
        self.squares = self.squares / came
        return loss / came

    def shared(self, server: ServerState) -> Tensors:
        """What stands for the participants' shared part: their mean, or what the server rule makes of the single
        uploads, which are gone afterwards."""
        if not self.each:
            return self.total
        order = [k for k in self.weights if k in self.each]
        uploads = {name: torch.stack([self.each[k].pop(name) for k in order]) for name in self.parameters}
        self.each = {}
        came = sum(self.weights[k] for k in order)
        weights = on_device(next(iter(uploads.values())).device, [self.weights[k] / came for k in order])
        old = {name: server.model[name] for name in self.parameters}
        return {**self.total, **self.stage.method.server.combine(server.rule, old, uploads, weights)}

    def _colluded(self) -> Sequence[Sent]:
        """The messages as they arrive when the attackers have seen those of all others."""
        held, self._held = self._held, []
        hostile = [[g for g, k in enumerate(sent.clients) if k in self.malicious] for sent in held]
        honest = [[g for g, k in enumerate(sent.clients) if k not in self.malicious] for sent in held]
        if not any(hostile) or not any(honest):  # nobody lies, or nobody is there to lie about
            return held
        change = {
            name: torch.cat([sent.model[name][places] for sent, places in zip(held, honest, strict=True)]) - received
            for name, received in self.received.items()
        }
        lie = self.stage.attack.together(change, sum(map(len, hostile)))
        false = {name: self.received[name] + said for name, said in lie.items()}
        return [
            replace(sent, model={**sent.model, **{n: put(sent.model[n], places, f) for n, f in false.items()}})
            for sent, places in zip(held, hostile, strict=True)
        ]

    def _changes(self, sent: Sent) -> Tensors:
        """The change of the participants' memories: as they sent it, or as it follows from their models."""
        drift = self.stage.method.drift
        if not drift.remembers or drift.sends:
            return sent.drift
        return drift.change(Local(self.start, {name: sent.model[name] for name in self.start}))

    def _add_squares(self, sent: Sent, weights: Tensor) -> None:
        if not self.stage.method.server.uses_squares:
            return
        on_cpu = weights.device.type == "cpu"
        for rows in range(len(weights)) if on_cpu else [slice(None)]:
            mine = slice(rows, rows + 1) if isinstance(rows, int) else rows
            total = torch.zeros_like(weights[mine])
            for name, start in self.start.items():
                total += (sent.model[name][mine] - start).reshape(len(total), -1).square().sum(dim=1)
            self.squares = self.squares + (weights[mine] * total).sum()


def _all(truths: Sequence[Tensor]) -> bool:
    """Whether all of them are true; those on a device are read at once."""
    there = [truth for truth in truths if truth.device.type != "cpu"]
    return all(bool(truth) for truth in truths if truth.device.type == "cpu") and (
        not there or bool(torch.stack(there).all())
    )


def _row(stacked: Tensors, place: int) -> Tensors:
    """One client's tensors, in memory of their own where they stand among others'."""
    return {n: t[0] if len(t) == 1 and not t._is_view() else t[place].clone() for n, t in stacked.items()}
