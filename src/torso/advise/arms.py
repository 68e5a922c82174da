"""How arms are run: their configs, their costs, and the outcomes of their runs."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field

import numpy as np

from torso.advise.candidates import ALONE, FEDAVG, nearest_rate
from torso.advise.choice import Arm, Outcome, Tuning, gain
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
from torso.runs.events import Stop
from torso.runs.remeasure import measured_again
from torso.runs.run import Stopped

PATHS = (0.006, 0.06, 0.6)  # rate × steps in an epoch of fine-tuning: the second, then the first or the third
EPOCHS = (1, 3)  # epochs of fine-tuning that are tried at each rate
MOST = 200  # clients that are measured at most
ALONE_LEAST = 8  # clients that train alone at least, if there are so many


@dataclass(frozen=True)
class Entry:
    """An arm and how it is fine-tuned for measuring: one rate, several numbers of epochs."""

    arm: Arm
    lr: float  # personalize.lr
    epochs: tuple[int, ...]


@dataclass
class ArmRunner:
    """Runs arms with the user's config."""

    config: Config
    stop: Stop
    told: Callable[[str], None] = lambda text: None  # gets lines of progress
    training: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # the clients that train
    size: float = 1.0  # median number of training samples of a client

    def config_of(self, entry: Entry, rounds: int, seed: int) -> Config:
        """The config of a run of this entry."""
        arm = entry.arm
        sets = [*arm.candidate.sets, f"train.lr={arm.rate}", f"train.rounds={rounds}", f"run.seed={seed}"]
        sets += ['measure.names=["personalized"]', "measure.every=0", f"measure.clients={MOST}"]
        sets += ["measure.analyses=[]", "personalize.sweep=[]"]
        config = self.config.but(*sets)
        return with_tuning(config, entry.lr, entry.epochs) if tuned(config) else config

    @property
    def rates_of_tuning(self) -> tuple[float, ...]:
        """The values of personalize.lr that may be tried, from small to large: smaller if an epoch has many steps."""
        batch = self.config.personalize.batch_size or self.config.train.batch_size
        return tuple(nearest_rate(path / max(math.ceil(self.size / batch), 1)) for path in PATHS)

    @property
    def rate_of_tuning(self) -> float:
        """The value of personalize.lr that is tried first."""
        return self.rates_of_tuning[1]

    def first(self, arm: Arm) -> Entry:
        """The entry of an arm on the first part: the middle rate of fine-tuning."""
        return Entry(arm, self.rate_of_tuning, EPOCHS)

    @property
    def participants(self) -> int:
        """The number of clients in a round."""
        return max(math.floor(len(self.training) * self.config.train.fraction + 1e-9), 1)

    def weight(self, arm: Arm) -> float:
        """The cost of a round of this arm, in rounds of FedAvg."""
        if arm.candidate is ALONE:
            return len(self.alone(self.config.run.seed)) / self.participants
        ours, fedavg = (self._counted(one) for one in (arm, Arm(FEDAVG, arm.rate)))
        return trained_on(ours) / trained_on(fedavg)

    def _counted(self, arm: Arm) -> Config:
        """The arm's config with the true number of training clients, from which costs are estimated."""
        config = self.config_of(self.first(arm), self.config.train.rounds, 0)
        dealt = config.data.model_copy(update={"clients": len(self.training), "new_clients": 0})
        return config.model_copy(update={"data": dealt})

    def measuring(self, epochs: float) -> float:
        """The cost of measuring one arm after so many epochs of fine-tuning, in rounds of FedAvg."""
        measured = min(len(self.training), MOST)
        return measured * epochs / (self.participants * self.config.train.local_epochs)

    def alone(self, seed: int) -> Ints:
        """The clients that train alone: some of those that are measured, so that they cost about twice what FedAvg
        costs."""
        known = self.training
        if len(known) > MOST:  # drawn as in a run (Job.measured_clients)
            known = np.sort(numpy_generator(seed, "measured").choice(known, MOST, replace=False))
        count = min(max(2 * self.participants, ALONE_LEAST), len(known))
        return known[np.linspace(0, len(known) - 1, count).round().astype(np.int64)]

    def compete(self, arms: Sequence[Arm], rounds: int, seed: int, data: Federation) -> tuple[list[Outcome], bool]:
        """The outcomes of the arms on the first part, also with a larger or a smaller rate of fine-tuning. The flag is
        False if time was up before all runs had ended."""
        found: list[Outcome] = []
        return found, self._run([self.first(arm) for arm in arms], rounds, seed, data, found, tune_more=True)

    def again(self, entries: Sequence[Entry], rounds: int, seed: int, data: Federation) -> tuple[list[Outcome], bool]:
        """The outcomes of the entries on a later part. Training alone runs last and for some of the clients only. The
        flag is False if time was up before all other runs had ended."""
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
        """Run the entries together and append their outcomes to `found`. False: time was up before all had ended."""
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
        """The outcomes of the same models, fine-tuned at other rates: at the smaller one, and at the larger one if more
        epochs at the middle rate help clearly and more than the smaller rate."""
        if len(outcomes) < 2:  # personal models are not fine-tuned
            return []
        smaller, _, larger = self.rates_of_tuning
        found = self._tuned_at(smaller, entry, config, end)
        fewest, most = min(outcomes, key=_epochs), max(outcomes, key=_epochs)
        more_helps = gain(most.scores, fewest.scores)
        if more_helps and more_helps.clear and all(one.mean <= most.mean for one in found):
            found += self._tuned_at(larger, entry, config, end)
        return found

    def _tuned_at(self, rate: float, entry: Entry, config: Config, end: Result) -> list[Outcome]:
        """The outcomes of the same models at another rate of fine-tuning; none if time is up."""
        if rate == entry.lr or end.models is None or self.stop.asked:
            return []
        again = measured_again(end, with_tuning(config, rate, entry.epochs))
        return scored(Entry(entry.arm, rate, entry.epochs), again, end.job.measured_clients)


def _epochs(outcome: Outcome) -> int:
    return outcome.tuning.epochs


def tuned(config: Config) -> bool:
    """Whether personal models of this config are fine-tuned."""
    return bool(config.personalize.part != "method" or config.method.personal.phases)


def with_tuning(config: Config, lr: float, epochs: Sequence[int]) -> Config:
    """The config with fine-tuning at this rate, measured after each number of epochs."""
    *sweep, last = epochs
    return config.but(f"personalize.lr={lr}", f"personalize.epochs={last}", f"personalize.sweep={json.dumps(sweep)}")


def outcomes_of(entry: Entry, end: Result | Exception) -> list[Outcome]:
    """The outcomes of a run, one for each number of epochs; a single one without scores if the run failed. Errors that
    are not a failure of training are raised."""
    if isinstance(end, Exception):
        failed_in_training = isinstance(end, TorsoError | RuntimeError) and not isinstance(end, RequestError)
        if not failed_in_training:
            raise end
        return [Outcome(entry.arm, Tuning(), (), str(end))]
    if not end.ok:
        return [Outcome(entry.arm, Tuning(), (), end.status)]
    if not tuned(end.job.config):
        entry = Entry(entry.arm, 0.0, (0,))
    return scored(entry, end.accuracy, end.job.measured_clients)


def scored(entry: Entry, accuracies: Mapping[str, Accuracy], clients: Sequence[int]) -> list[Outcome]:
    """An outcome for each number of epochs of fine-tuning, from the measures of one run."""
    found = []
    for name, accuracy in accuracies.items():
        if name.partition("@")[0] != "personalized":
            continue
        epochs = int(name.partition("@")[2] or entry.epochs[-1])  # "personalized" itself is after the last epoch
        scores = {k: value for k, value in zip(clients, accuracy.clients, strict=True) if value is not None}
        found.append(Outcome(entry.arm, Tuning(entry.lr, epochs), (scores,)))
    return found
