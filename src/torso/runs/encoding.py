"""`model.encoder`: a frozen network that turns all samples into features once, before the run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torso import nets
from torso.config import Config, ModelConfig, RunConfig
from torso.data import Dataset, Federation, Input, Samples, Split, Wants
from torso.data.encoded import Encoded, origins_of
from torso.data.images import Labelled
from torso.data.inputs import known
from torso.engine import engines
from torso.engine.base import Features
from torso.engine.feature_files import check_cache
from torso.engine.features_kept import FeatureCache, Where
from torso.errors import RequestError
from torso.learn.encoder import Encoder, check_features
from torso.nets.encoder import messages_name_encoder, wants_of_encoder, weights_of
from torso.results.encoder_file import build_encoder
from torso.runs.devices import device_of


def wanted(config: Config) -> Wants:
    """What samples must look like for a run's network: for its encoder if it has one, else for its body."""
    model = config.model
    if not model.encoder:
        return nets.wants_of(model.body, model.weights)
    weights = weights_of(model.encoder, model.encoder_weights)
    encoding = FrozenEncoder(model.encoder, weights, 0 if weights else config.run.seed, config.run)
    return replace(wants_of_encoder(model.encoder, weights), encoding=encoding)


@dataclass(frozen=True)
class FrozenEncoder:
    """An encoder by its name and weights. Its network is built when it is first needed for a kind of input."""

    name: str
    weights: str  # "": drawn from `seed`
    seed: int
    run: RunConfig = field(compare=False, repr=False)  # says where features are computed and cached
    _made: dict[Input, Encoder] = field(default_factory=dict, init=False, compare=False, repr=False)

    def __reduce__(self) -> Any:
        # without the network: a process that unpickles it reads the weights itself
        return FrozenEncoder, (self.name, self.weights, self.seed, self.run)

    def encoder_of(self, kind: Input) -> Encoder:
        """The encoder's network for a kind of input. The latest one is kept."""
        if kind not in self._made:
            self._made.clear()
            with messages_name_encoder():
                self._made[kind] = build_encoder(self.name, self.weights, kind, self.seed)
        return self._made[kind]

    def encoded(self, dataset: Dataset) -> Dataset:
        """The data set with features, float32 [n, d], in place of samples.

        Each feature is computed once. It is cached in a file for later runs, unless `run.features` is "device" or
        "off"."""
        # an input of plain numbers is normalised by constants of its training samples
        dataset = replace(dataset, input=dataset.kind.fitted([dataset.train.samples]))
        encoder = self.encoder_of(dataset.kind)
        notes: list[str] = []
        found = self._features(encoder, dataset, notes)
        kind = Encoded(
            (encoder.features,),
            raw=known(dataset.kind),
            encoder=self.name,
            weights=self.weights,
            digest=encoder.digest,
        )
        train = self._part(dataset.train, found.train)
        test = self._part(dataset.test, found.test)
        count = len(train) + len(test)
        said = (
            f"model.encoder = {self.name!r} (weights {self.weights or 'random'}) is frozen: {count:,} samples are "
            f"encoded once, as {encoder.features} numbers each, and model.body stands on them"
        )
        remarks = (*dataset.remarks, *notes, said)
        return replace(dataset, train=train, test=test, input=kind, mean=(), std=(), augment="none", remarks=remarks)

    def _features(self, encoder: Encoder, dataset: Dataset, notes: list[str]) -> Features:
        device = device_of(self.run)
        federation = _of_nobody(dataset, device)
        tensors = {name: tensor.to(device) for name, tensor in encoder.tensors.items()}
        kept = FeatureCache(encoder.net, federation, self._where(notes), notes.append)
        with engines["auto"](encoder.net, federation, self.run) as engine:
            found = kept.of(engine, tensors, ["train", "test"])
        if found is None:
            raise RequestError(
                f"model.encoder = {self.name!r}: a feature depends on the other samples of its batch, so it cannot be "
                "computed once. Expected: a body without BatchNorm, or with running statistics"
            )
        return found

    def _where(self, notes: list[str]) -> Where:
        """Where features are kept. Adds a note if the cache folder cannot be written."""
        if self.run.features in ("device", "off"):
            return "device"
        try:
            check_cache()
        except RequestError as error:
            if self.run.features == "disk":
                raise
            notes.append(f"features are not kept for later runs: {error}")
            return "device"
        return "disk"

    def _part(self, part: Labelled, features: Tensor | None) -> Samples:
        assert features is not None
        found = check_features(features, self.name).cpu().numpy()
        return Samples(np.ascontiguousarray(found), part.labels, part.writers, origins_of(part.samples))


def check_given(config: ModelConfig, federation: Federation) -> None:
    """Refuse a federation that was not made with the config's encoder."""
    made_by = federation.input.encoder if isinstance(federation.input, Encoded) else ""
    if made_by != config.encoder:
        raise RequestError(
            f"model.encoder = {config.encoder!r}, and the federation that was given holds "
            f"{federation.input.words}. Give one that was made with this config"
        )


def _of_nobody(dataset: Dataset, device: torch.device) -> Federation:
    """All samples of a data set, as a federation of one client."""

    def split(part: Labelled) -> Split:
        samples = torch.from_numpy(part.samples).to(device)
        labels = torch.from_numpy(part.labels).to(device)
        return Split(samples, labels, torch.arange(len(labels), device=device), np.array([0, len(labels)]))

    nothing = torch.zeros(0, dtype=torch.int64, device=device)
    return Federation(
        name=dataset.name,
        train=split(dataset.train),
        test=split(dataset.test),
        classes=dataset.classes,
        input=dataset.kind,
        augment="none",
        clients=1,
        newcomers=np.array([], dtype=np.int64),
        server_rows=nothing,
        meta_rows=nothing,
    )
