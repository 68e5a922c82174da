"""Aggregate a round's uploads as they come: weighted sums in the order of the participants.

Each upload is checked before it is used (uploads.py). On CPU an upload that is not finite is left out at once. On an
accelerator, reading a flag would mean to wait for the device: there it is replaced by zeros, and `close` reads whose
it was. Single uploads are held only if all of them are needed together: by a server rule that `needs_each`, or by
attackers who collude.

G clients of one message, [*] a tensor's shape, w_k the weight of client k.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.learn.drift import DriftState
from torso.learn.stacked import HostCopy, is_on_host, masked_rows
from torso.nets import Tensors
from torso.personal.store import ClientState, StateHandle
from torso.runs.colluding import colluded
from torso.runs.faults import NOT_FINITE, WRONG_NUMBERS
from torso.runs.messages import Sent, Told
from torso.runs.stage import Stage
from torso.runs.statistics_sums import StatisticsSums, row_of
from torso.runs.uploads import UploadTerms, finite_uploads
from torso.server.robust import clipped_uploads
from torso.server.state import ServerState
from torso.server.statistics import RoundStatistics
from torso.server.sums import add_stacked, add_weighted


@dataclass(frozen=True)
class SecureAggregate:
    """The aggregate of some participants' uploads if single uploads are hidden from the server (secure aggregation)."""

    clients: tuple[int, ...]
    model: Tensors  # [*]: the weighted mean of what travels
    change: Tensors  # [*]: the sum of the changes of the drift corrections' memories
    loss: float  # weighted mean
    statistics: Tensors = field(default_factory=dict)  # [*]: sums or weighted means, as each statistic's rule says


class Aggregate:
    """The sums of one round.

    Weights are applied here and not at the clients, and are normalised over the clients that answered. So a missing
    participant does not bias the mean."""

    def __init__(
        self,
        stage: Stage,
        told: Told,
        weights: Mapping[int, float],
        malicious: frozenset[int] = frozenset(),
        samples: Mapping[int, int] | None = None,
        privacy: Tensors | None = None,
    ) -> None:
        """`weights`: w_k of all participants, in their order. `samples`: the number that each participant declared, if
        any did. `privacy`: the state that the privacy mechanism had after the round before."""
        self.stage = stage
        self.round = told.round
        self.weights = weights
        self.malicious = malicious
        self.terms = UploadTerms.of(stage, told, samples or {})
        rule, drift = stage.method.server, stage.method.drift
        self.parameters = stage.uploaded
        self.colludes = stage.attack.colludes() and not malicious.isdisjoint(weights)
        needs_start = rule.uses_squares or (drift.remembers and not drift.sends)
        self.start = {name: told.model[name] for name in stage.corrected} if needs_start else {}
        self.received = {name: told.model[name] for name in self.parameters} if rule.clip or self.colludes else {}
        self.private = stage.privacy.sum_of(told.model, stage.travels, privacy or {}) if stage.privacy else None
        self.privacy: Tensors = {}  # the state of the privacy mechanism after the round
        self.offers = told.offers
        self.total: Tensors = {}  # Σ_k w_k · shared part; without its parameters if the rule needs each upload
        self.each: dict[int, Tensors] = {}  # client -> these parameters
        self.change: Tensors = {}  # Σ_k of the changes of the drift corrections' memories
        self.squares = torch.zeros(())  # Σ_k w_k · ‖shared parameters − received‖²
        self.uploads: dict[int, Tensors] = {}  # client -> its upload, if the server rule keeps uploads
        self.statistics = StatisticsSums(stage.declared(), stage.method.statistics, rule)
        self.left: dict[int, ClientState | StateHandle] = {}  # client -> its new state, or a handle on it
        self.refused: dict[int, str] = {}  # client whose upload is not used -> what is wrong with it (faults.REFUSED)
        self.burst: set[int] = set()  # the refused clients whose loss is known not to be finite
        self._held: list[Sent] = []  # messages that wait until the colluding attackers can see all of them
        # one entry per message, in the order of the participants; [G] each
        self._clients: list[int] = []
        self._losses: list[Tensor] = []
        self._fine: list[Tensor] = []  # whether an upload is finite
        self._sound: list[Tensor] = []  # whether its numbers are plausible (Terms.sound)
        self._mean: SecureAggregate | None = None
        self._asked: HostCopy | None = None  # losses and flags on their way from the device
        self.as_asked = False  # whether all of these flags are true

    @property
    def holds_uploads(self) -> bool:
        """Whether single uploads are held until all have come. That takes memory for as many models as participants."""
        # uploads that the rule keeps are part of the aggregate anyway, so holding their statistics costs nothing more
        single = not self.stage.method.server.keeps_uploads and self.statistics.holds_single
        return self.stage.method.server.needs_each or self.colludes or single

    @property
    def is_simple(self) -> bool:
        """Whether the round consists of sums alone.

        Then the server can move before it knows whether all uploads are finite."""
        rule = self.stage.method.server
        special = self.private or self._mean is not None
        single = self.holds_uploads or rule.keeps_uploads or self.each or self.refused
        return not special and not single and not self.statistics.declared and bool(self._losses)

    def ask(self, more: Tensor) -> None:
        """Start to copy losses and flags to the host, with one more flag; `close` reads them."""
        first = self._losses[0]
        flags = [each.to(first) for each in (*self._fine, *self._sound, more.reshape(1))]
        self._asked = HostCopy.of(torch.cat([torch.cat(self._losses), *flags]))

    def take(self, sent: Sent) -> None:
        """Add the messages of some participants. Nothing is read from an accelerator."""
        wrong = {client: misfit.kind for client, misfit in self.terms.misfits(sent).items()}
        self.refused |= {**sent.refused, **wrong}
        self.burst |= {client for client, kind in sent.refused.items() if kind == NOT_FINITE}
        if wrong:
            sent = sent.only([place for place, client in enumerate(sent.clients) if client not in wrong])
        if self.colludes:
            self._held.append(sent)
        elif sent.clients:
            self._admit(sent)

    def _admit(self, sent: Sent) -> None:
        """Add the uploads that are finite and plausible."""
        rule = self.stage.method.server
        base = None  # the tensors to which the rule measures the distance of an upload
        if rule.clip:
            base = self.received
        elif rule.uses_squares:
            base = self.start
        rows = self._count(sent, finite_uploads(sent, base))
        if not is_on_host(rows):
            self._add(sent, rows)
        elif bool(rows.all()):
            self._add(sent)
        elif bool(rows.any()):
            self._add(sent.only(_places(rows)))

    def _count(self, sent: Sent, rows: Tensor) -> Tensor:
        """Note who answered. `rows` [G]: whether an upload is finite. Returns [G]: whether it counts."""
        sound = self.terms.sound(sent)
        self._clients += sent.clients
        self._losses.append(sent.loss)
        self._fine.append(rows)
        self._sound.append(sound)
        self.left.update(sent.left)
        return rows & sound

    def take_mean(self, mean: SecureAggregate) -> None:
        """Take the aggregate of all participants at once (secure aggregation)."""
        self._mean = mean
        self.total = dict(mean.model)
        self.change = dict(mean.change)
        self.statistics.combined = dict(mean.statistics)
        self._clients += mean.clients

    def _add(self, sent: Sent, rows: Tensor | None = None) -> None:
        """Add uploads to the sums. `rows` [G]: whether an upload counts; None: all count."""
        if self.private:
            self.private.add(sent.model, rows)
            return
        rule = self.stage.method.server
        if rule.clip:
            parameters = {name: sent.model[name] for name in self.parameters}
            sent = replace(sent, model={**sent.model, **clipped_uploads(parameters, self.received, rule.clip)})
        weights = on_device(sent.loss.device, [self.weights[k] for k in sent.clients])
        self.statistics.add(sent, weights, rows)
        weights = self.statistics.weights_of(sent, weights, rows)
        if rule.keeps_uploads:
            self.uploads |= {k: row_of(sent.model, g) for g, k in enumerate(sent.clients)}
        else:
            averaged = sent.model
            if rule.needs_each:
                apart = {name: sent.model[name] for name in self.parameters}
                self.each |= {k: row_of(apart, g) for g, k in enumerate(sent.clients)}
                averaged = {name: tensor for name, tensor in sent.model.items() if name not in apart}
            add_weighted(self.total, averaged, weights, rows)
            self._add_squares(sent, weights, rows)
            add_stacked(self.change, self._changes(sent), rows)

    @property
    def clients(self) -> tuple[int, ...]:
        """The clients whose uploads are counted, in the order of the participants."""
        return tuple(k for k in self._clients if k not in self.refused) if self.refused else tuple(self._clients)

    def close(self) -> float:
        """Finish the sums when no more uploads will come. Returns the mean loss; NaN if no upload counts.

        Uploads that cannot be counted are left out. Losses and flags are read only now, and in one piece, so that the
        host waits for the device once."""
        if self._mean is not None:
            return self._mean.loss
        for sent in self._colluded():
            self._admit(sent)
        losses = self._leave_out()
        if not losses:
            return math.nan
        loss = float(sum(self.weights[k] * losses[k] for k in self.weights if k in losses))
        answered = 1.0  # the total weight of those who are counted
        if len(losses) < len(self.weights):
            answered = sum(self.weights[k] for k in losses)
            self.statistics.divide_means(answered)
        if self.statistics.weighed is not None or answered != 1.0:
            divisor = answered if self.statistics.weighed is None else self.statistics.weighed
            self.total = {n: t / divisor if t.is_floating_point() else t for n, t in self.total.items()}
            self.squares = self.squares / divisor
        return loss / answered

    def statistics_of(self) -> RoundStatistics:
        """The statistics of the clients that are counted."""
        clients = set(self.clients)
        answered = sum(self.weights[k] for k in self.clients)
        weights = {k: self.weights[k] / answered for k in self.weights if k in clients}
        return self.statistics.finished(self.round, weights)

    def _leave_out(self) -> dict[int, float]:
        """Drop what was held of clients that cannot be counted. Returns the losses of the others."""
        if not self._losses:
            return {}
        if self._asked is None:
            self.ask(torch.zeros_like(self._fine[0][:1]))
        assert self._asked is not None
        read = self._asked.numbers()
        count = len(self._clients)
        losses = dict(zip(self._clients, read[:count], strict=True))
        finite = dict(zip(self._clients, read[count : 2 * count], strict=True))
        sound = dict(zip(self._clients, read[2 * count : 3 * count], strict=True))
        self.as_asked = all(read[count:])
        for client in self._clients:
            if finite[client] and sound[client]:
                continue
            self.refused[client] = WRONG_NUMBERS if finite[client] else NOT_FINITE
            if not math.isfinite(losses.pop(client)):
                self.burst.add(client)
            for held in (self.left, self.each, self.uploads):
                held.pop(client, None)
            self.statistics.leave_out(client)
        return losses

    def shared(self, server: ServerState) -> Tensors:
        """The aggregated shared part: the participants' mean, or what the server rule makes of the single uploads.

        The single uploads are freed."""
        if self.private:
            mean, self.privacy = self.private.release(self.round)
            return mean
        if not self.each or not self.parameters:
            return self.total
        order = [k for k in self.weights if k in self.each]
        uploads = {name: torch.stack([self.each[k].pop(name) for k in order]) for name in self.parameters}
        self.each = {}
        answered = sum(self.weights[k] for k in order)
        weights = on_device(next(iter(uploads.values())).device, [self.weights[k] / answered for k in order])
        old = {name: server.model[name] for name in self.parameters}
        return {**self.total, **self.stage.method.server.combine(server.rule, old, uploads, weights)}

    def _colluded(self) -> Sequence[Sent]:
        """The held messages, with those of the attackers replaced after they have seen all honest ones."""
        finite = [self._finite_part(sent) for sent in self._held if sent.clients]
        self._held = []
        held = [sent for sent in finite if sent.clients]
        hostile = [[g for g, k in enumerate(sent.clients) if k in self.malicious] for sent in held]
        honest = [[g for g, k in enumerate(sent.clients) if k not in self.malicious] for sent in held]
        if not any(hostile) or not any(honest):  # no attacker, or no honest client whose uploads it could use
            return held
        return colluded(self.stage.attack, held, hostile, honest, self.received, self.statistics.declared)

    def _finite_part(self, sent: Sent) -> Sent:
        """The messages that are finite, with which attackers can compute. The others are noted as not finite."""
        rows = finite_uploads(sent)
        if bool(rows.all()):
            return sent
        lost = sent.only(_places(~rows))
        self._count(lost, torch.zeros_like(rows[: len(lost.clients)]))
        return sent.only(_places(rows))

    def _changes(self, sent: Sent) -> Tensors:
        """The change of the participants' memories [G, *], as they sent it or as it follows from their models."""
        drift = self.stage.method.drift
        if not drift.remembers or drift.sends:
            return sent.drift
        return drift.change(DriftState(self.start, {name: sent.model[name] for name in self.start}))

    def _add_squares(self, sent: Sent, weights: Tensor, counted: Tensor | None) -> None:
        if not self.stage.method.server.uses_squares:
            return
        # on CPU client by client, so that the sum has the same bits whatever the size of the stack
        on_cpu = weights.device.type == "cpu"
        groups = [slice(g, g + 1) for g in range(len(weights))] if on_cpu else [slice(None)]
        for group in groups:
            total = torch.zeros_like(weights[group])
            for name, start in self.start.items():
                total += (sent.model[name][group] - start).reshape(len(total), -1).square().sum(dim=1)
            total = masked_rows(total, None if counted is None else counted[group])
            self.squares = self.squares + (weights[group] * total).sum()


def _places(rows: Tensor) -> list[int]:
    """The indices at which flags [G] are true."""
    return [place for place, true in enumerate(rows.tolist()) if true]
