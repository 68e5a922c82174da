"""An estimate of how long runs take, within a factor of two: images that they train on, divided by the device's rate.

On an H200 the rates of some networks were measured (bf16, batch 50); for other networks they are scaled by operations.
On another device, steps of conv4 for a fraction of a second give the rate. A step on an accelerator takes a minimal
time, even with few clients. This time decides if one client has far more images than the others.
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
from torso.data.inputs import Floats, as_input
from torso.data.tokenizers import WordTokenizer
from torso.data.tokens import Tokens
from torso.engine.bench import steps
from torso.methods.starts import TrainingPlan
from torso.nets import LinearHead, build, learnable, wants_of
from torso.nets.flops import step_flops
from torso.papers.experiments.datasets import KNOWN
from torso.papers.experiments.reuse import TRAIN_ANEW, opening_key, training_key
from torso.papers.experiments.runner import NamedConfig
from torso.parallel.packs import CLIENTS, packs, participants
from torso.precision import precision_of
from torso.runs.devices import device_named

_H200 = {  # images/s at 10 and at 100 clients (bench/README.md); the large networks were measured only at 10
    "conv4": (623_000, 1_296_000),
    "mobilenet": (128_000, 205_000),
    "vgg11": (120_000, 120_000),
    "resnet18": (46_500, 46_500),
}
_TRIED = 0.3  # seconds of steps that measure this machine's rate: enough for a factor of two
_BATCH, _PROBED = 50, "conv4"
_TOKENS, _VOCABULARY = 64, 30_000  # of a text
_FEATURES = 512  # of a sample from an encoder: MiniLM has 384, EfficientNet-lite0 1280
_LEAST = 5  # a step of this many stacked clients takes as long as that of one client: the device is not full
_TUNED = ("personalized", "id_after", "ood_after", "personal", "new_after", "local")  # measures that train again


@dataclass(frozen=True)
class Rate:
    """Images/s of a device: of conv4 and of other measured networks, at 10 and at 100 stacked clients."""

    device: str
    measured: dict[str, tuple[float, float]]
    known: bool  # measured in bench/, not on this machine now
    stacks: int = 0  # how many clients of several runs share a stack; 0: runs are not stacked

    def of(self, config: Config, clients: float) -> float:
        """Images/s of the config's training with this many clients at once."""
        body = config.model.body
        low, high = self.measured.get(body, self.measured[_PROBED])
        share = min(max(math.log10(max(clients, 1)) - 1, 0.0), 1.0)  # of the way from 10 to 100
        pace: float = low * (high / low) ** share
        if body in self.measured:
            return pace
        flops = sample_flops(body, config.data.size, bool(config.data.csv.text), bool(config.model.encoder))
        return pace * sample_flops(_PROBED) / flops

    def step(self, config: Config) -> float:
        """Seconds of a step with one or a few clients; 0 if clients are not stacked."""
        pace = min(self.of(config, 10), self.measured[_PROBED][0])  # a lighter network has as many kernels
        return _LEAST * _BATCH / pace if self.stacks else 0.0


def rate_of(name: str) -> Rate:
    """The rate of a device: the measured one of an H200, else from a few steps on it."""
    device = device_named(name)
    if device.type == "cuda" and "H200" in torch.cuda.get_device_name(device):
        known = {body: (float(low), float(high)) for body, (low, high) in _H200.items()}
        return Rate(torch.cuda.get_device_name(device), known, True, CLIENTS)
    clients = 10 if device.type == "cuda" else 1
    step = steps(_PROBED, clients, _BATCH, precision_of("auto", device), device)
    step()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < _TRIED:
        step()
        count += 1
    pace = count * clients * _BATCH / (time.perf_counter() - began)
    said = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Rate(said, {_PROBED: (pace, pace)}, False, CLIENTS if device.type == "cuda" else 0)


@cache
def sample_flops(body: str, size: int = 0, text: bool = False, encoded: bool = False) -> float:
    """Floating-point operations of training on one sample: an image with `size` pixels a side (0: as the data sets
    here have), a text, or the features of an encoder."""
    image = (1, 28, 28) if body in ("conv3", "rod-mnist", "rod-mnist-dropout") else (3, size or 32, size or 32)
    words = wants_of(body).tokenizer or WordTokenizer(_VOCABULARY)
    input = Tokens(min(_TOKENS, words.length), words.vocabulary, words.pad) if text else as_input(image)
    input = Floats((_FEATURES,)) if encoded else input
    net = build(body, 10, input, LinearHead(), seed=0)
    return step_flops(net, input, _BATCH, learnable(net, net.state_dict())) / _BATCH


def seconds(runs: Sequence[NamedConfig], rate: Rate) -> float:
    """Seconds of all runs. A training that runs share counts once. Runs in one stack take their steps together."""
    configs = [run.config for run in runs]
    keys = [training_key(config) for config in configs]
    trained = set(keys)
    met: set[str] = set()
    total = 0.0
    for pack in packs(configs, rate.stacks):
        beside = sum(participants(configs[place]) for place in pack)
        at_rate = at_least = 0.0
        for config, key in ((configs[place], keys[place]) for place in pack):
            learned = 0.0 if key in met else trained_on(config, opening_key(config) in trained)
            steps = learned / max(participants(config), 1) * longest(config) / config.train.batch_size
            met.add(key)
            at_rate += (learned + measured_on(config)) / rate.of(config, beside)
            at_least = max(at_least, steps * rate.step(config))
        total += max(at_rate, at_least)
    return total


def longest(config: Config) -> float:
    """The size of the largest client over the mean size, with a Dirichlet partition; 1 with other partitions."""
    data = config.data
    if data.partition != "dirichlet-class" or data.balance:
        return 1.0
    classes = KNOWN[data.source].classes if data.source in KNOWN else 10
    shares = np.random.default_rng(0).dirichlet([data.alpha] * data.clients, size=classes)
    return float(shares.sum(axis=0).max() * data.clients / classes)


def trained_on(config: Config, begun: bool = False) -> float:
    """How many images all rounds train on, with repetitions. `begun`: another run has done the first stage."""
    method, train = config.method, config.train
    earlier = method.start.earlier()
    rounds = method.start.training_plan(TrainingPlan(train.rounds, train.lr, train.schedule)).rounds
    if earlier is not None and not begun:
        rounds += earlier.rounds or train.rounds
    epochs = sum(phase.epochs or train.local_epochs for phase in method.train if phase.part != "none")
    each = samples(config) / config.data.clients * epochs * (method.step.passes + method.personal.passes)
    on_server = samples(config) * config.data.server_fraction if method.server_data != "none" else 0.0
    return rounds * (participants(config) * each + on_server)


def measured_on(config: Config) -> float:
    """How many images the measures train on: fine-tuning at the end, and measures that train clients from the start."""
    epochs = config.train.rounds * config.train.local_epochs * len(TRAIN_ANEW.intersection(config.measure.names))
    if set(config.measure.names) & set(_TUNED):
        epochs += max((config.personalize.epochs, *config.personalize.sweep, 1))
    return float(samples(config) * epochs)


def samples(config: Config) -> int:
    """The size of the training set; 50,000 if it is not known."""
    return KNOWN[config.data.source].samples if config.data.source in KNOWN else 50_000


def duration(seconds: float) -> str:
    """A rounded time in words: `40 s`, `12 min`, `3.5 h`, `4 days`, `2.5 years`."""
    for size, unit in ((365 * 86400.0, "years"), (86400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}" if seconds < 100 * size else f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 1):.0f} s"
