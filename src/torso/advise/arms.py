"""An arm as runs: its config, what it costs, and what its results say."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from torso.advise.candidates import ALONE, FEDAVG, near
from torso.advise.choice import Arm, Outcome, Tuning
from torso.advise.parts import only
from torso.config import Config
from torso.data import Federation
from torso.data.images import Ints
from torso.errors import RequestError, TorsoError
from torso.measure import Accuracy
from torso.papers.experiments.estimate import trained_on
from torso.parallel.together import run_together
from torso.randomness import numpy_generator
from torso.results.result import Result
from torso.runs.again import measured_again
from torso.runs.events import Stop
from torso.runs.run import Stopped

PATHS = (0.06, 0.6)  # rate × steps of an epoch of fine-tuning: the larger one where more epochs of the smaller one help
EPOCHS = (1, 3)  # of fine-tuning that are tried, at each rate
MOST = 200  # clients that are measured
ALONE_LEAST = 8  # clients that train alone, where there are so many


@dataclass(frozen=True)
class Entry:
    """An arm with the fine-tuning that it is measured with: one rate, several numbers of epochs."""

    arm: Arm
    lr: float
    epochs: tuple[int, ...]


@dataclass
class Stable:
    """The user's config, and how arms are run with it."""

    config: Config
    stop: Stop
    told: Callable[[str], None] = lambda text: None
    training: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # the clients that train
    size: float = 1.0  # median training samples of a client

    def config_of(self, entry: Entry, rounds: int, seed: int) -> Config:
        arm = entry.arm
        sets = [*arm.candidate.sets, f"train.lr={arm.rate}", f"train.rounds={rounds}", f"run.seed={seed}"]
        sets += ['measure.names=["personalized"]', "measure.every=0", f"measure.clients={MOST}"]
        sets += ["measure.analyses=[]", "personalize.sweep=[]"]
        config = self.config.but(*sets)
        return with_tuning(config, entry.lr, entry.epochs) if tuned(config) else config

    @property
    def rates_of_tuning(self) -> tuple[float, ...]:
        """personalize.lr: smaller where an epoch has many steps."""
        batch = self.config.personalize.batch_size or self.config.train.batch_size
        return tuple(near(path / max(math.ceil(self.size / batch), 1)) for path in PATHS)

    def first(self, arm: Arm) -> Entry:
        """As it is measured at first, in the tournament."""
        return Entry(arm, self.rates_of_tuning[0], EPOCHS)

    @property
    def participants(self) -> int:
        return max(math.floor(len(self.training) * self.config.train.fraction + 1e-9), 1)

    def weight(self, arm: Arm) -> float:
        """What a round of the arm costs, in rounds of FedAvg."""
        if arm.candidate is ALONE:
            return len(self.alone(self.config.run.seed)) / self.participants
        ours, fedavg = (self._counted(one) for one in (arm, Arm(FEDAVG, arm.rate)))
        return trained_on(ours) / trained_on(fedavg)

    def _counted(self, arm: Arm) -> Config:
        """With the number of clients that there really are."""
        config = self.config_of(self.first(arm), self.config.train.rounds, 0)
        dealt = config.data.model_copy(update={"clients": len(self.training), "new_clients": 0})
        return config.model_copy(update={"data": dealt})

    def measuring(self, epochs: float) -> float:
        """What it costs to measure one arm after so many epochs of fine-tuning, in rounds of FedAvg."""
        measured = min(len(self.training), MOST)
        return measured * epochs / (self.participants * self.config.train.local_epochs)

    def alone(self, seed: int) -> Ints:
        """Clients that train alone: about as many as cost twice what FedAvg costs, of those that are measured."""
        known = self.training
        if len(known) > MOST:  # as a run draws them (Job.measured_clients)
            known = np.sort(numpy_generator(seed, "measured").choice(known, MOST, replace=False))
        count = min(max(2 * self.participants, ALONE_LEAST), len(known))
        return known[np.linspace(0, len(known) - 1, count).round().astype(np.int64)]

    def compete(self, arms: Sequence[Arm], rounds: int, seed: int, data: Federation) -> tuple[list[Outcome], bool]:
        """What the arms reach, with the larger rate of fine-tuning where that may help; False where time was up before
        all of them had ended."""
        found: list[Outcome] = []
        return found, self._run([self.first(arm) for arm in arms], rounds, seed, data, found, tune_more=True)

    def again(self, entries: Sequence[Entry], rounds: int, seed: int, data: Federation) -> tuple[list[Outcome], bool]:
        """What the entries reach; False where time was up before all but training alone had ended, which takes place
        for some of the clients."""
        found: list[Outcome] = []
        together = [entry for entry in entries if entry.arm.candidate is not ALONE]
        apart = [entry for entry in entries if entry.arm.candidate is ALONE]
        ended = self._run(together, rounds, seed, data, found)
        if ended:
            self._run(apart, rounds, seed, only(data, self.alone(seed)), found)
        return found, ended

    def _run(
        self,
        entries: Sequence[Entry],
        rounds: int,
        seed: int,
        data: Federation,
        found: list[Outcome],
        tune_more: bool = False,
    ) -> bool:
        configs = [self.config_of(entry, rounds, seed) for entry in entries]
        ends = run_together(configs, [None] * len(entries), stop=self.stop, data=lambda _: data)
        try:
            with closing(ends):
                for done, (place, end) in enumerate(ends, 1):
                    outcomes = outcomes_of(entries[place], end)
                    found += outcomes
                    if tune_more and isinstance(end, Result):
                        found += self._tuned_more(entries[place], configs[place], end, outcomes)
                    self.told(f"{done} of {len(entries)} runs of {rounds} rounds")
        except Stopped:
            return False
        return True

    def _tuned_more(self, entry: Entry, config: Config, end: Result, outcomes: Sequence[Outcome]) -> list[Outcome]:
        """The same models, fine-tuned at the larger rate; only where more epochs of the smaller one were better."""
        best = max(outcomes, key=lambda one: (one.mean, -one.tuning.epochs))
        larger = self.rates_of_tuning[-1]
        if best.tuning.epochs < entry.epochs[-1] or larger == entry.lr or end.models is None or self.stop.asked:
            return []
        more = Entry(entry.arm, larger, entry.epochs)
        return scored(more, measured_again(end, with_tuning(config, more.lr, more.epochs)), end.job.measured_clients)


def tuned(config: Config) -> bool:
    """Whether the method's own models are fine-tuned."""
    return bool(config.personalize.part != "method" or config.method.personal.phases)


def with_tuning(config: Config, lr: float, epochs: Sequence[int]) -> Config:
    """Fine-tuned at this rate, and measured after each number of epochs."""
    *sweep, last = epochs
    return config.but(f"personalize.lr={lr}", f"personalize.epochs={last}", f"personalize.sweep={json.dumps(sweep)}")


def outcomes_of(entry: Entry, end: Result | Exception) -> list[Outcome]:
    """One for each number of epochs; without scores where the run has failed."""
    if isinstance(end, RequestError) or (isinstance(end, Exception) and not isinstance(end, TorsoError | RuntimeError)):
        raise end
    if isinstance(end, Exception) or not end.ok:
        return [Outcome(entry.arm, Tuning(), (), str(end) if isinstance(end, Exception) else end.status)]
    if not tuned(end.job.config):
        entry = Entry(entry.arm, 0.0, (0,))
    return scored(entry, end.accuracy, end.job.measured_clients)


def scored(entry: Entry, accuracies: Mapping[str, Accuracy], clients: Sequence[int]) -> list[Outcome]:
    """The outcome of each number of epochs."""
    found = []
    for name, accuracy in accuracies.items():
        if name.partition("@")[0] != "personalized":
            continue
        epochs = int(name.partition("@")[2] or entry.epochs[-1])
        scores = {k: value for k, value in zip(clients, accuracy.clients, strict=True) if value is not None}
        found.append(Outcome(entry.arm, Tuning(entry.lr, epochs), (scores,)))
    return found
