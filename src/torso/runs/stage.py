"""A stage: rounds of one method on one network. It says which tensors train, travel and stay, and at which rate."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from torso.config import TrainConfig
from torso.data import Input
from torso.learn.attacks import Attack, NoAttack
from torso.learn.phases import LocalPhase, Phase, local_phases, moved_by
from torso.learn.schedule import schedules
from torso.learn.steps import LocalSettings
from torso.methods import Method
from torso.nets import Network, learnable, part_names, smallest_map
from torso.runs.privacy import Privacy
from torso.server import NoStatistics
from torso.server.statistics import Declared


@dataclass(frozen=True)
class Stage:
    """A method worked out for one network: consecutive rounds of a run that are played in the same way."""

    method: Method
    net: Network
    train: TrainConfig
    first: int  # the number of the stage's first round in the run (from 1)
    rounds: int  # the number of rounds; the schedule counts these
    lr: float
    schedule: str
    attack: Attack = field(default_factory=NoAttack)  # what malicious clients do (spec 9.6)
    privacy: Privacy | None = None  # the protection of what travels; None: no protection

    @property
    def last(self) -> int:
        """The number of the stage's last round in the run."""
        return self.first + self.rounds - 1

    def rate(self, round: int) -> float:
        """The learning rate of a round."""
        return self.lr * schedules[self.schedule](round - self.first + 1, self.rounds, self.train.decay)

    def plan(self, round: int) -> tuple[LocalPhase, ...]:
        """The local phases of a participant in this round."""
        return self.local_phases(self.method.train, round, self.train.local_epochs)

    def server_plan(self, round: int) -> tuple[LocalPhase, ...]:
        """The phases of the server on its own data after the round: one epoch (spec 3.3)."""
        return self.local_phases((Phase(self.method.server_data),), round, 1)

    def local_phases(self, plan: tuple[Phase, ...], round: int, epochs: int) -> tuple[LocalPhase, ...]:
        """The phases of a plan with the round's rate. Cached for each rate, since a run asks several times a round."""
        key = plan, self.rate(round), epochs
        if key not in self._local_phases:
            self._local_phases[key] = local_phases(self.net, plan, epochs, self.rate(round), self.train.head_lr_factor)
        return self._local_phases[key]

    @cached_property
    def _local_phases(self) -> dict[object, tuple[LocalPhase, ...]]:
        return {}

    def skips_single(self, input: Input) -> bool:
        """Whether a client skips a last batch of one sample (spec 12.2)."""
        if input not in self._skips:
            self._skips[input] = smallest_map(self.net, input) == 1
        return self._skips[input]

    @cached_property
    def _skips(self) -> dict[Input, bool]:
        return {}

    @cached_property
    def moving(self) -> frozenset[str]:
        """The tensors that clients or the server change in this stage."""
        by_server = moved_by(self.server_plan(self.first)) if self.method.server_data != "none" else frozenset()
        return moved_by(self.plan(self.first)) | by_server

    @cached_property
    def travels(self) -> frozenset[str]:
        """The shared tensors that change. A frozen head is known to all clients and does not travel (spec 4.1)."""
        return self.moving & frozenset(part_names(self.net, self.method.share.part))

    @cached_property
    def corrected(self) -> tuple[str, ...]:
        """The parameters that travel, on which drift corrections and server rules act.

        Running statistics are not among them, nor is a personal branch that travels: both are averaged (spec 6.4)."""
        return learnable(self.net, sorted(self.travels - frozenset(part_names(self.net, "personal"))))

    @cached_property
    def uploaded(self) -> tuple[str, ...]:
        """All parameters that travel, with a personal branch: what attackers replace and robust rules guard."""
        return learnable(self.net, sorted(self.travels))

    @cached_property
    def keeps(self) -> frozenset[str]:
        """The tensors that a client keeps between its visits."""
        moved = moved_by(self.plan(self.first))
        if self.method.server.keeps_uploads:
            return moved
        return frozenset() if self.method.share.rest == "reset" else moved - self.travels

    def declared(self, offered: int = 1, round: int | None = None) -> Declared:
        """The statistics that a participant sends in addition to its model in a round (None: in any round).

        `offered`: the number of other clients' models that it is sent (spec 5.6)."""
        of_personal = self.method.personal.declares(offered)
        if type(self.method.statistics) is NoStatistics or not self.gathers(round):
            return of_personal
        return {**self.method.statistics.declares(self.net, self.net.classes), **of_personal}

    def gathers(self, round: int | None) -> bool:
        """Whether statistics are sent in a round (None: in any). Some are sent only in the stage's first round."""
        return not self.method.statistics.once or round in (None, self.first)

    @property
    def meets(self) -> bool:
        """Whether clients and server communicate in the stage's rounds."""
        return bool(self.travels or self.declared())

    @property
    def uses_meta(self) -> bool:
        """Whether clients need the server's balanced samples."""
        return self.method.meta_data or self.method.step.uses_meta

    def settings(self) -> LocalSettings:
        """The settings of a participant's local training."""
        return LocalSettings(
            batch_size=self.train.batch_size,
            momentum=self.train.momentum,
            weight_decay=self.train.weight_decay,
            objective=self.method.objective,
            drift=self.method.drift,
            step=self.method.step,
            shared_momentum=self.method.shared_momentum,
        )
