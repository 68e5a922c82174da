"""What the server of MoFedSAM and FedCM takes for the mean gradient: the way of the participants over lr × steps."""

from __future__ import annotations

import pytest
import torch

from torso.config import Config
from torso.engine import OneByOne
from torso.nets import smallest_map
from torso.personal.state import State
from torso.runs.job import simulate
from torso.runs.rounds import play_round

LR = 0.01
CLIENTS = 2


def config(*sets: str) -> Config:
    return Config.load(
        None,
        [
            *("method.drift=client-momentum", "method.drift.beta=1.0"),  # beta = 1: clients take plain steps
            *("data.source=synthetic", "data.synthetic.size=4", "data.synthetic.samples=26", "data.partition=iid"),
            *("data.synthetic.classes=2", "data.synthetic.test_samples=10", f"data.clients={CLIENTS}"),
            *("model.body=resnet8", f"train.lr={LR}", "train.local_epochs=1", "train.momentum=0"),
            *("train.fraction=1.0", "train.batch_size=4", *sets),
        ],
    )


@pytest.mark.parametrize(
    ("sets", "steps"),
    [
        ((), 3),  # of 13 samples in batches of 4 the last is one alone, and BatchNorm cannot take it (spec 12.2)
        (("method.meta_data=true", "data.meta_per_class=3"), 5),  # with 6 samples of the server's there are 19
    ],
)
def test_only_steps_that_were_taken_are_counted(sets: tuple[str, ...], steps: int) -> None:
    job = simulate(config(*sets))
    stage, start = job.stage(1), State.begin(job.model)
    assert smallest_map(job.net, job.roster.input) == 1
    with OneByOne(job.net, job.federation, workers=1) as engine:
        after, _ = play_round(stage, start, job.roster, engine, seed=0)
    for name in stage.corrected:
        way = start.model[name] - after.model[name]
        torch.testing.assert_close(after.server.drift[name], way / (LR * steps))
