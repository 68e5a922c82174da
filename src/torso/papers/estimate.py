"""How long a table takes: images that its runs train on, by a rate of the device. An estimate, within a factor of two.

On an H200 the rates are measured ones (bf16, batch 50); networks that were not measured go by their operations. On
another device one second of steps of conv4 says how many operations it does. An accelerator also needs some time for
every step, however few clients are in it: where one client has far more images than the others, that decides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from torso.config import Config
from torso.engine.bench import steps
from torso.methods.starts import Pace
from torso.nets import LinearHead, build, learnable
from torso.nets.flops import step_flops
from torso.papers.files import KINDS
from torso.papers.plan import TRAIN_ANEW
from torso.papers.running import Planned
from torso.papers.sharing import opening_key, training_key
from torso.parallel.packs import CLIENTS, packs, participants
from torso.precision import precision_of
from torso.runs.run import device_named

_H200 = {  # images/s at 10 and at 100 clients (bench/README.md); of the large ones only 10 were measured
    "conv4": (623_000, 1_296_000),
    "mobilenet": (128_000, 205_000),
    "vgg11": (120_000, 120_000),
    "resnet18": (46_500, 46_500),
}
_BATCH, _PROBED = 50, "conv4"
_LEAST = 5  # clients of a stack whose step takes as long as that of one: kernels so small do not fill the device
_TUNED = ("personalized", "id_after", "ood_after", "personal", "new_after", "local")  # measures that train once more


@dataclass(frozen=True)
class Rate:
    """What a device does: images/s of conv4 at 10 and at 100 stacked clients, and of what else was measured."""

    device: str
    measured: dict[str, tuple[float, float]]
    known: bool  # from our measurements, not from a probe
    stacks: int = 0  # clients of several runs that stand in one stack

    def of(self, config: Config, clients: float) -> float:
        """Images a second of the config's training, so many clients at once."""
        body = config.model.body
        low, high = self.measured.get(body, self.measured[_PROBED])
        share = min(max(math.log10(max(clients, 1)) - 1, 0.0), 1.0)  # of the way from 10 to 100
        pace: float = low * (high / low) ** share
        return pace if body in self.measured else pace * image_flops(_PROBED) / image_flops(body)

    def step(self, config: Config) -> float:
        """Seconds of a step of one client, or of a few; 0 where clients are not stacked."""
        pace = min(self.of(config, 10), self.measured[_PROBED][0])  # a lighter network has as many kernels
        return _LEAST * _BATCH / pace if self.stacks else 0.0


def rate_of(name: str) -> Rate:
    device = device_named(name)
    if device.type == "cuda" and "H200" in torch.cuda.get_device_name(device):
        known = {body: (float(low), float(high)) for body, (low, high) in _H200.items()}
        return Rate(torch.cuda.get_device_name(device), known, True, CLIENTS)
    clients = 10 if device.type == "cuda" else 1
    step = steps(_PROBED, clients, _BATCH, precision_of("auto", device), device)
    step()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < 1.0:
        step()
        count += 1
    pace = count * clients * _BATCH / (time.perf_counter() - began)
    said = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Rate(said, {_PROBED: (pace, pace)}, False, CLIENTS if device.type == "cuda" else 0)


@cache
def image_flops(body: str) -> float:
    """Operations of training on one image."""
    image = (1, 28, 28) if body in ("conv3", "rod-mnist") else (3, 32, 32)
    net = build(body, 10, image, LinearHead(), seed=0)
    return step_flops(net, image, _BATCH, learnable(net, net.state_dict())) / _BATCH


def seconds(runs: Sequence[Planned], rate: Rate) -> float:
    """Of a table: training that runs share counts once, and runs that share a stack go step by step together."""
    configs = [run.config for run in runs]
    trained: set[str] = {training_key(config) for config in configs}
    met: set[str] = set()
    total = 0.0
    for pack in packs(configs, rate.stacks):
        beside = sum(participants(configs[place]) for place in pack)
        at_rate = at_least = 0.0
        for config in (configs[place] for place in pack):
            key = training_key(config)
            learned = 0.0 if key in met else trained_on(config, opening_key(config) in trained)
            steps = learned / max(participants(config), 1) * longest(config) / config.train.batch_size
            met.add(key)
            at_rate += (learned + measured_on(config)) / rate.of(config, beside)
            at_least = max(at_least, steps * rate.step(config))
        total += max(at_rate, at_least)
    return total


def longest(config: Config) -> float:
    """How many times as many images as the mean the largest of the clients has, where a Dirichlet draw deals them."""
    data = config.data
    if data.partition != "dirichlet-class" or data.balance:
        return 1.0
    classes = KINDS[data.source].classes if data.source in KINDS else 10
    shares = np.random.default_rng(0).dirichlet([data.alpha] * data.clients, size=classes)
    return float(shares.sum(axis=0).max() * data.clients / classes)


def trained_on(config: Config, begun: bool = False) -> float:
    """Images of the rounds, each time that one is learned from; `begun`: another run has done the first stage."""
    method, train = config.method, config.train
    earlier, rounds = method.start.earlier(), method.start.pace(Pace(train.rounds, train.lr, train.schedule)).rounds
    if earlier is not None and not begun:
        rounds += earlier.rounds or train.rounds
    epochs = sum(phase.epochs or train.local_epochs for phase in method.train if phase.part != "none")
    each = samples(config) / config.data.clients * epochs * (method.step.passes + method.personal.passes)
    on_server = samples(config) * config.data.server_fraction if method.server_data != "none" else 0.0
    return rounds * (participants(config) * each + on_server)


def measured_on(config: Config) -> float:
    """Images of fine-tuning at the end, and of training anew what would have been without a server."""
    epochs = config.train.rounds * config.train.local_epochs * len(TRAIN_ANEW.intersection(config.measure.names))
    if set(config.measure.names) & set(_TUNED):
        epochs += max((config.personalize.epochs, *config.personalize.sweep, 1))
    return float(samples(config) * epochs)


def samples(config: Config) -> int:
    return KINDS[config.data.source].samples if config.data.source in KINDS else 50_000
