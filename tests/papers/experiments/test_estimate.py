"""How much a table trains on, by hand; no test of how long that takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from torso.config import Config
from torso.papers.experiments.estimate import Rate, duration, longest, measured_on, sample_flops, seconds, trained_on
from torso.papers.tables.plan import plan
from torso.papers.tables.published import recipe
from torso.parallel.packs import participants

RATE = Rate("a device", {"conv4": (1000.0, 4000.0)}, known=True)


def _config(method: str, *more: str) -> Config:
    only = ",".join((f"method={method}", "shards=2", *more))
    (run, *_) = plan(recipe("fedbabu/13"), only).runs
    return run.config


PART = ("fraction=0.1", "local_epochs=10")


@pytest.mark.parametrize(
    ("method", "images"),
    [
        ("fedavg", 32 * 10 * 500 * 10),  # rounds × clients × images × epochs
        ("ditto", 32 * 10 * 500 * 20),  # its second model learns as often
        ("fedrep", 32 * 10 * 500 * 11),  # ten epochs of the head, one of the body
        ("lg-fedavg", 40 * 10 * 500 * 10),  # a quarter of the rounds after FedAvg's
    ],
)
def test_images_of_a_run(method: str, images: int) -> None:
    config = _config(method, *PART)
    assert trained_on(config) == images
    assert measured_on(config) == 5 * 50_000


def test_local_only_and_a_begun_run() -> None:
    alone = _config("local-only", "variant=none")
    assert (participants(alone), trained_on(alone), measured_on(alone)) == (100, 100 * 500 * 160, 0)
    assert measured_on(alone.but('measure.names=["local_only_best_on_test"]')) == trained_on(alone)
    assert trained_on(_config("lg-fedavg", *PART), begun=True) == 8 * 10 * 500 * 10
    central = plan(recipe("fedbabu/9"), "shards=10,method=centralized").runs[0].config
    assert (participants(central), trained_on(central)) == (0, 10 * 50_000)


def test_training_that_runs_share_counts_once() -> None:
    """Table 4 tunes three parts of each model: three runs, one training."""
    one, three = (
        plan(recipe("fedbabu/4"), f"method=fedavg,shards=10,local_epochs=10{part}").runs
        for part in (",finetune_part=full", "")
    )
    assert (len(one), len(three)) == (1, 3)
    pace = RATE.of(one[0].config, 10)
    assert seconds(three, RATE) * pace == pytest.approx(seconds(one, RATE) * pace + 2 * 250_000)


def test_a_rate_goes_by_stacked_clients_and_by_operations() -> None:
    config = _config("fedavg", *PART)  # ten participants
    assert RATE.of(config, 10) == pytest.approx(1000)
    assert RATE.of(config, 100) == pytest.approx(4000)
    assert RATE.of(config, 32) == pytest.approx(1000 * 4**0.5, rel=0.01)
    other = RATE.of(config.but("model.body=vgg11"), 10)
    assert other == pytest.approx(1000 * sample_flops("conv4") / sample_flops("vgg11"))


def test_a_time_is_said_in_words() -> None:
    assert [duration(s) for s in (0.2, 60, 150, 9000, 5 * 86400)] == ["1 s", "60 s", "2.5 min", "2.5 h", "5 days"]
    assert duration(900 * 86400) == "2.5 years"


def test_small_runs_beside_each_other_go_at_the_rate_of_many() -> None:
    runs = plan(recipe("fedbabu/13"), "method=fedavg,fraction=0.1,local_epochs=10", seeds=4).runs  # 12 of 10 clients
    together = replace(RATE, stacks=128)
    assert seconds(runs, RATE) / seconds(runs, together) == pytest.approx(4)


def test_one_client_with_most_of_the_images_decides_where_clients_are_stacked() -> None:
    """Fed-RoD's Dirichlet clients: as many steps as the largest has, whatever else is in them."""
    (run,) = plan(recipe("fedrod/8"), "method=fedavg,alpha=0.1,variant=plain-draw").runs
    config = run.config
    times = longest(config)
    assert 2 < times < 10  # of 20 clients
    steps = 100 * 5 * 2500 * times / 40  # rounds × epochs × images of the largest, in batches
    assert seconds([run], replace(RATE, stacks=128)) == pytest.approx(
        max(steps * 5 * 50 / 1000, (100 * 8 * 5 * 2500 + 5 * 50_000) / RATE.of(config, 8))
    )
    assert longest(_config("fedavg", *PART)) == 1.0


def test_a_pack_goes_step_by_step_together() -> None:
    runs = plan(recipe("fedrod/8"), "method=fedavg,variant=none", seeds=2).runs
    rate = Rate("a device", {"conv4": (1000.0, 1e9)}, known=True, stacks=128)
    assert seconds(runs, rate) == pytest.approx(max(seconds([run], rate) for run in runs))


def test_texts_and_larger_images_have_operations_of_their_own() -> None:
    """A text of 64 tokens: the body of `embedding-mean` is a table without operations, so the head's remain. A
    convolution's operations grow with the pixels."""
    assert sample_flops("transformer", text=True) > sample_flops("embedding-mean", text=True) > 0
    assert sample_flops("mlp", text=True, encoded=True) == sample_flops("mlp", encoded=True) > 0  # features, not texts
    assert sample_flops("resnet8", 64) == pytest.approx(4 * sample_flops("resnet8"), rel=0.01)
