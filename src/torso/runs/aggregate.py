"""What the server makes of a round's messages as they come: sums in the order of the participants.

Each upload is checked before it is used (uploads.py). On CPU one that is not finite is left out where it comes; on a
device, where reading a truth would mean to wait, it is replaced by zeros, and `close` reads who that was.
Single uploads are held where somebody looks at all of them: a server rule that `needs_each`, attackers who collude.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from torso.data.sending import on_device
from torso.learn.drift import Local
from torso.learn.stacked import Reading, free_to_read, spared
from torso.nets import Tensors
from torso.personal.store import ClientState, Elsewhere
from torso.runs.colluding import colluded
from torso.runs.faults import NOT_FINITE, WRONG_NUMBERS
from torso.runs.gathered import Gathered, row_of
from torso.runs.messages import Sent, Told
from torso.runs.stage import Stage
from torso.runs.uploads import Terms, fine
from torso.server.robust import clipped
from torso.server.state import ServerState
from torso.server.statistics import RoundStatistics
from torso.server.sums import add_stacked, add_weighted


@dataclass(frozen=True)
class MeanSent:
    """What some participants sent, where nobody sees single uploads (secure aggregation)."""

    clients: tuple[int, ...]
    model: Tensors  # [*]: the mean of what travels, weighted
    change: Tensors  # [*]: the sum of the changes of what their drift corrections remember
    loss: float  # weighted mean
    statistics: Tensors = field(default_factory=dict)  # [*]: sums and weighted means, as their rules say


class Aggregate:
    """The sums of one round. Weights are applied here, where the sum is made, and by who really came: a participant
    that is missing does not bias the mean."""

    def __init__(
        self,
        stage: Stage,
        told: Told,
        weights: Mapping[int, float],
        malicious: frozenset[int] = frozenset(),
        samples: Mapping[int, int] | None = None,
        privacy: Tensors | None = None,
    ) -> None:
        """`samples`: how many each participant has declared; None: nobody has. `privacy`: what the mechanism of privacy
        goes on with, where there is one."""
        self.stage, self.round, self.weights, self.malicious = stage, told.round, weights, malicious
        self.terms = Terms.of(stage, told, samples or {})
        rule, drift = stage.method.server, stage.method.drift
        self.parameters = stage.uploaded
        self.colludes = stage.attack.colludes() and not malicious.isdisjoint(weights)
        looks_back = rule.uses_squares or (drift.remembers and not drift.sends)
        self.start = {name: told.model[name] for name in stage.corrected} if looks_back else {}
        self.received = {name: told.model[name] for name in self.parameters} if rule.clip or self.colludes else {}
        self.private = stage.privacy.sum_of(told.model, stage.travels, privacy or {}) if stage.privacy else None
        self.privacy: Tensors = {}  # what the mechanism of privacy goes on with after the round
        self.offers = told.offers
        self.total: Tensors = {}  # Σ_k w_k · shared part; without the parameters where the rule needs each upload
        self.each: dict[int, Tensors] = {}  # those, by client
        self.change: Tensors = {}  # Σ_k of the change of what the drift corrections remember
        self.squares = torch.zeros(())  # Σ_k w_k · ‖shared parameters − received‖²
        self.uploads: dict[int, Tensors] = {}  # of single clients, where the server rule keeps them
        self.gathered = Gathered(stage.declared(), stage.method.statistics, rule)
        self.left: dict[int, ClientState | Elsewhere] = {}  # what clients go on with, or handles on it
        self.refused: dict[int, str] = {}  # whose uploads are not used: what is wrong with them
        self.burst: set[int] = set()  # those of them whose loss is not finite, as far as anybody can tell
        self._held: list[Sent] = []  # until the attackers know them all
        self._clients: list[int] = []
        self._losses: list[Tensor] = []
        self._fine: list[Tensor] = []
        self._sound: list[Tensor] = []
        self._mean: MeanSent | None = None
        self._asked: Reading | None = None
        self.as_asked = False  # whether all that was asked for is finite

    @property
    def holds_uploads(self) -> bool:
        """Whether single uploads are held until all have come: memory for as many models as there are participants."""
        kept = self.stage.method.server.keeps_uploads  # that travels on with the sum anyway
        single = not kept and self.gathered.holds_single
        return self.stage.method.server.needs_each or self.colludes or single

    @property
    def is_simple(self) -> bool:
        """Whether nothing but the sums makes the round, so that the server can move before it knows whether all that
        was sent is finite."""
        rule, special = self.stage.method.server, self.private or self._mean is not None
        single = self.holds_uploads or rule.keeps_uploads or self.each or self.refused
        return not special and not single and not self.gathered.declared and bool(self._losses)

    def ask(self, more: Tensor) -> None:
        """Have losses and truths sent to the host, and one truth more; `close` reads them."""
        first = self._losses[0]
        numbers = [torch.cat(self._losses), *(each.to(first) for each in (*self._fine, *self._sound, more.reshape(1)))]
        self._asked = Reading.of(torch.cat(numbers))

    def take(self, sent: Sent) -> None:
        """Add the messages of some participants; nothing is read from the device."""
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
        rule = self.stage.method.server
        rows = fine(sent, self.received if rule.clip else self.start if rule.uses_squares else None)
        rows = self._count(sent, rows)
        if not free_to_read(rows):
            self._add(sent, rows)
        elif bool(rows.all()):
            self._add(sent)
        elif bool(rows.any()):
            self._add(sent.only(_places(rows)))

    def _count(self, sent: Sent, rows: Tensor) -> Tensor:
        """Who came, and of the `rows` [G] that are finite those that count."""
        sound = self.terms.sound(sent)
        self._clients += sent.clients
        self._losses.append(sent.loss)
        self._fine.append(rows)
        self._sound.append(sound)
        self.left.update(sent.left)
        return rows & sound

    def take_mean(self, mean: MeanSent) -> None:
        """The participants at once, where single uploads are nobody's."""
        self._mean, self.total, self.change = mean, dict(mean.model), dict(mean.change)
        self.gathered.combined = dict(mean.statistics)
        self._clients += mean.clients

    def _add(self, sent: Sent, rows: Tensor | None = None) -> None:
        """`rows` [G]: those that count; None: all do."""
        if self.private:
            self.private.add(sent.model, rows)
            return
        rule = self.stage.method.server
        if rule.clip:
            parameters = {name: sent.model[name] for name in self.parameters}
            sent = replace(sent, model={**sent.model, **clipped(parameters, self.received, rule.clip)})
        weights = on_device(sent.loss.device, [self.weights[k] for k in sent.clients])
        self.gathered.add(sent, weights, rows)
        weights = self.gathered.weights_of(sent, weights, rows)
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
        """The clients that came and are counted, in the order of the participants."""
        return tuple(k for k in self._clients if k not in self.refused) if self.refused else tuple(self._clients)

    def close(self) -> float:
        """All have come, or will not: leave out who cannot be counted, and give the mean loss of the others; NaN where
        there are none.

        Losses and truths are read once, when everything has been asked of the device."""
        if self._mean is not None:
            return self._mean.loss
        for sent in self._colluded():
            self._admit(sent)
        losses = self._leave_out()
        if not losses:
            return math.nan
        loss = float(sum(self.weights[k] * losses[k] for k in self.weights if k in losses))
        came = 1.0
        if len(losses) < len(self.weights):
            came = sum(self.weights[k] for k in losses)  # the mean is over those who answered
            self.gathered.divide_means(came)
        if self.gathered.weighed is not None or came != 1.0:
            share = came if self.gathered.weighed is None else self.gathered.weighed
            self.total = {n: t / share if t.is_floating_point() else t for n, t in self.total.items()}
            self.squares = self.squares / share
        return loss / came

    def statistics_of(self) -> RoundStatistics:
        """The statistics of those who came."""
        came = sum(self.weights[k] for k in self.clients)
        weights = {k: self.weights[k] / came for k in self.weights if k in set(self.clients)}
        return self.gathered.came(self.round, weights)

    def _leave_out(self) -> dict[int, float]:
        """The losses of the clients that are counted; of the others nothing is left."""
        if not self._losses:
            return {}
        if self._asked is None:
            self.ask(torch.zeros_like(self._fine[0][:1]))
        assert self._asked is not None
        read, count = self._asked.numbers(), len(self._clients)
        parts = (read[first : first + count] for first in (0, count, 2 * count))
        losses, finite, sound = (dict(zip(self._clients, each, strict=True)) for each in parts)
        self.as_asked = all(read[count:])
        for client in (k for k in self._clients if not (finite[k] and sound[k])):
            self.refused[client] = WRONG_NUMBERS if finite[client] else NOT_FINITE
            if not math.isfinite(losses.pop(client)):
                self.burst.add(client)
            for held in (self.left, self.each, self.uploads):
                held.pop(client, None)
            self.gathered.leave_out(client)
        return losses

    def shared(self, server: ServerState) -> Tensors:
        """What stands for the participants' shared part: their mean, or what the server rule makes of the single
        uploads, which are gone afterwards."""
        if self.private:
            mean, self.privacy = self.private.release(self.round)
            return mean
        if not self.each or not self.parameters:
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
        finite, self._held = [self._finite_part(sent) for sent in self._held if sent.clients], []
        held = [sent for sent in finite if sent.clients]
        hostile = [[g for g, k in enumerate(sent.clients) if k in self.malicious] for sent in held]
        honest = [[g for g, k in enumerate(sent.clients) if k not in self.malicious] for sent in held]
        if not any(hostile) or not any(honest):  # nobody lies, or nobody is there to lie about
            return held
        return colluded(self.stage.attack, held, hostile, honest, self.received, self.gathered.declared)

    def _finite_part(self, sent: Sent) -> Sent:
        """Of messages, those that attackers can compute with; the others are counted as what they are."""
        rows = fine(sent)
        if bool(rows.all()):
            return sent
        lost = sent.only(_places(~rows))
        self._count(lost, torch.zeros_like(rows[: len(lost.clients)]))
        return sent.only(_places(rows))

    def _changes(self, sent: Sent) -> Tensors:
        """The change of the participants' memories: as they sent it, or as it follows from their models."""
        drift = self.stage.method.drift
        if not drift.remembers or drift.sends:
            return sent.drift
        return drift.change(Local(self.start, {name: sent.model[name] for name in self.start}))

    def _add_squares(self, sent: Sent, weights: Tensor, counted: Tensor | None) -> None:
        if not self.stage.method.server.uses_squares:
            return
        on_cpu = weights.device.type == "cpu"
        for rows in range(len(weights)) if on_cpu else [slice(None)]:
            mine = slice(rows, rows + 1) if isinstance(rows, int) else rows
            total = torch.zeros_like(weights[mine])
            for name, start in self.start.items():
                total += (sent.model[name][mine] - start).reshape(len(total), -1).square().sum(dim=1)
            total = spared(total, None if counted is None else counted[mine])
            self.squares = self.squares + (weights[mine] * total).sum()


def _places(rows: Tensor) -> list[int]:
    """The places at which truths [G] are true."""
    return [place for place, true in enumerate(rows.tolist()) if true]
