"""An estimate of how long the blocks take, from a rate: trained images a second."""

from __future__ import annotations

from collections.abc import Sequence

from torso.errors import RequestError
from torso.papers.experiments.estimate import duration
from torso.papers.pretrained.cells import Plan, Trial
from torso.papers.pretrained.definition import Block

LOOK = 3.0  # a forward pass alone is this many times faster than a training step
OVERHEAD = 1.5  # seconds of a run on an accelerator before and after its rounds
CHEAP = ("lp", "mlp-head")  # features are computed once: one pass


def images(plan: Plan, trial: Trial) -> float:
    """How many images a run trains on. Images that are only evaluated count less."""
    config, setting = trial.config, plan.evidence.settings.get(trial.cell.setting)
    samples = (setting.samples if setting else 50_000) * (1.0 - config.data.server_fraction)
    looked = samples / LOOK
    if trial.kind == "body":
        return samples * config.train.rounds
    if config.method.name in CHEAP or not plan.method(trial.cell).rounds:
        return looked
    looks = config.train.rounds // config.measure.every if config.measure.every else 1
    trained = samples * config.train.fraction * config.train.local_epochs * config.train.rounds
    return trained + looks * 10_000 / LOOK


def seconds(plan: Plan, block: Block, rate: float) -> tuple[int, float]:
    """How many runs a block has from the start, and how many seconds they take."""
    trials = plan.bodies(block)
    for cell in plan.cells(block):
        trials += plan.tuning(cell)
        trials += [plan.final(cell, plan.points(cell)[0], seed) for seed in range(block.seeds)]
    return len(trials), sum(images(plan, trial) / rate + OVERHEAD for trial in trials)


def print_estimate(plan: Plan, blocks: Sequence[Block], rate: float) -> None:
    """Print the time of each block, and the sum with the blocks before it."""
    total = 0.0
    for block in blocks:
        try:
            runs, took = seconds(plan, block, rate)
        except RequestError as error:
            print(f"{block.name}: cannot run here: {error}")
            continue
        total += took
        print(f"{block.name}: {runs} runs, {took:.0f} s; {duration(total)} with those before")
