"""An arm as runs: its config, what it costs, and what its results say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from torso.advise.candidates import ALONE, FEDAVG, near
from torso.advise.choice import Arm, Outcome
from torso.advise.parts import only
from torso.config import Config
from torso.data import Federation
from torso.data.images import Ints
from torso.errors import RequestError, TorsoError
from torso.papers.experiments.estimate import trained_on
from torso.parallel.together import run_together
from torso.randomness import numpy_generator
from torso.results.result import Result
from torso.runs.events import Stop
from torso.runs.run import Stopped

TUNED_PATH = 0.05  # rate × steps of an epoch of fine-tuning; how many epochs is chosen by the tournament
EARLY, LATE = (1, 2), (1, 2, 5)  # epochs of fine-tuning that are tried, in heats and later
MOST_EARLY, MOST_LATE = 64, 200  # clients that are measured
ALONE_LEAST = 8  # clients that train alone, where there are so many


@dataclass(frozen=True)
class Look:
    """How runs are measured: after which epochs of fine-tuning, and on how many clients at most."""

    epochs: tuple[int, ...]
    clients: int
    generic: bool = False


HEATS, FINAL = Look(EARLY, MOST_EARLY), Look(LATE, MOST_LATE)


@dataclass
class Stable:
    """The user's config, and how arms are run with it."""

    config: Config
    stop: Stop
    told: Callable[[str], None] = lambda text: None
    training: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # the clients that train
    size: float = 1.0  # median training samples of a client

    def config_of(self, arm: Arm, rounds: int, seed: int, look: Look) -> Config:
        sets = [*arm.candidate.sets, f"train.lr={arm.rate}", f"train.rounds={rounds}", f"run.seed={seed}"]
        names = ["personalized", "generic"] if look.generic else ["personalized"]
        sets += [f"measure.names={json.dumps(names)}", "measure.every=0", f"measure.clients={look.clients}"]
        sets += ["measure.analyses=[]", "personalize.sweep=[]"]
        config = self.config.but(*sets)
        if not tuned(config):
            return config
        *sweep, last = look.epochs
        return config.but(
            f"personalize.lr={self.tuned_at}", f"personalize.epochs={last}", f"personalize.sweep={json.dumps(sweep)}"
        )

    @property
    def tuned_at(self) -> float:
        """personalize.lr: smaller where an epoch has many steps."""
        batch = self.config.personalize.batch_size or self.config.train.batch_size
        return near(TUNED_PATH / max(math.ceil(self.size / batch), 1))

    @property
    def participants(self) -> int:
        return max(math.floor(len(self.training) * self.config.train.fraction + 1e-9), 1)

    def weight(self, arm: Arm) -> float:
        """What a round of the arm costs, in rounds of FedAvg."""
        if arm.candidate is ALONE:
            return len(self.alone(self.config.run.seed, MOST_LATE)) / self.participants
        ours, fedavg = (self._counted(one) for one in (arm, Arm(FEDAVG, arm.rate)))
        return trained_on(ours) / trained_on(fedavg)

    def _counted(self, arm: Arm) -> Config:
        """With the number of clients that there really are."""
        config = self.config_of(arm, self.config.train.rounds, 0, HEATS)
        dealt = config.data.model_copy(update={"clients": len(self.training), "new_clients": 0})
        return config.model_copy(update={"data": dealt})

    def measuring(self, look: Look) -> float:
        """What it costs to measure one arm, in rounds of FedAvg."""
        measured = min(len(self.training), look.clients)
        return measured * look.epochs[-1] / (self.participants * self.config.train.local_epochs)

    def alone(self, seed: int, most: int) -> Ints:
        """Clients that train alone: about as many as cost twice what FedAvg costs, of those that are measured."""
        known = self.training
        if most < len(known):  # as a run draws them (Job.measured_clients)
            known = np.sort(numpy_generator(seed, "measured").choice(known, most, replace=False))
        count = min(max(2 * self.participants, ALONE_LEAST), len(known))
        return known[np.linspace(0, len(known) - 1, count).round().astype(np.int64)]

    def run(
        self, arms: Sequence[Arm], rounds: int, seed: int, look: Look, federation: Federation
    ) -> tuple[list[Outcome], bool]:
        """What the arms reach; False where time was up before all of them had ended."""
        found: list[Outcome] = []
        apart = only(federation, self.alone(seed, look.clients))
        for group, data in (
            ([arm for arm in arms if arm.candidate is not ALONE], federation),
            ([arm for arm in arms if arm.candidate is ALONE], apart),
        ):
            if not self._run(group, rounds, seed, look, data, found):
                return found, False
        return found, True

    def _run(
        self, arms: Sequence[Arm], rounds: int, seed: int, look: Look, data: Federation, found: list[Outcome]
    ) -> bool:
        configs = [self.config_of(arm, rounds, seed, look) for arm in arms]
        ends = run_together(configs, [None] * len(arms), stop=self.stop, data=lambda _: data)
        try:
            with closing(ends):
                for done, (place, end) in enumerate(ends, 1):
                    found += outcomes_of(arms[place], end, look)
                    self.told(f"{done} of {len(arms)} runs of {rounds} rounds")
        except Stopped:
            return False
        return True


def tuned(config: Config) -> bool:
    """Whether the method's own models are fine-tuned."""
    return bool(config.personalize.part != "method" or config.method.personal.phases)


def outcomes_of(arm: Arm, end: Result | Exception, look: Look) -> list[Outcome]:
    """One for each number of epochs; without scores where the run has failed."""
    if isinstance(end, RequestError) or (isinstance(end, Exception) and not isinstance(end, TorsoError | RuntimeError)):
        raise end
    if isinstance(end, Exception) or not end.ok:
        return [Outcome(arm, 0, {}, str(end) if isinstance(end, Exception) else end.status)]
    last, clients = look.epochs[-1], end.job.measured_clients
    generic = end.accuracy["generic"].mean if "generic" in end.accuracy else None
    found = []
    for name, accuracy in end.accuracy.items():
        if name.partition("@")[0] != "personalized":
            continue
        epochs = int(name.partition("@")[2] or last) if tuned(end.job.config) else 0
        scores = {k: value for k, value in zip(clients, accuracy.clients, strict=True) if value is not None}
        found.append(Outcome(arm, epochs, scores, generic=generic))
    return found
