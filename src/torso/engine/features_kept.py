"""The cache of a run's features: in memory as long as the samples are, or in files."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from torso.data import Federation, Split
from torso.engine.base import Engine, Features
from torso.engine.batched import Batched, free_bytes
from torso.engine.feature_files import FeatureFile, body_digest, digest_of, file_key
from torso.engine.feature_space import SplitName, compute, probe, same
from torso.errors import RunFailed
from torso.nets import Network, Tensors

Where = Literal["auto", "device", "disk"]
_SHARE = 0.5  # share of the free memory that features may take
_PROBED = 16  # samples whose features are computed again and compared before cached features are used
_kept = WeakIdKeyDictionary()
"""Samples tensor -> (checksum of the body, its features). So runs on the same data share features."""


@dataclass
class FeatureCache:
    """The features of a federation's samples under a network's body. If the body changes, they are computed again.

    `note` gets messages for the user."""

    net: Network
    federation: Federation
    where: Where
    note: Callable[[str], None]
    _last: tuple[Tensors, str] | None = field(default=None, init=False)  # the latest body and its checksum
    # split -> the body's checksum and the features; the body may be an earlier one
    _found: dict[SplitName, tuple[str, Tensor]] = field(default_factory=dict, init=False)
    _refused: bool = field(default=False, init=False)  # a feature depends on other samples, so none can be cached

    def of(self, engine: Engine, model: Tensors, splits: Sequence[SplitName]) -> Features | None:
        """The features under a model's body, of at least the splits asked for.

        None if a feature depends on more than its sample, so that features cannot be cached."""
        body = {name: tensor for name, tensor in model.items() if name.startswith("body.")}
        digest = self._digest(body)
        for name in splits:
            if self._found.get(name, ("",))[0] != digest and not self._refused:
                self._found.pop(name, None)  # free its memory before new features are made
                self._refused = not self._find(engine, body, digest, name)
        if self._refused:
            return None
        found = {name: features for name, (of, features) in sorted(self._found.items()) if of == digest}
        return Features(f"{digest} {', '.join(found)}", self.net.body.features, **found)

    @property
    def _structure(self) -> str:
        """A text that tells what the body computes with its tensors.

        It has the body's repr, plain attributes of its layers that the repr may leave out (the scale of adapters, for
        example), and a checksum of buffers that are not in the state_dict."""
        body = self.net.body
        attributes = [
            (layer_name, key, value)
            for layer_name, layer in body.named_modules()
            for key, value in vars(layer).items()
            if _matters(key, value)
        ]
        held = body.state_dict().keys()
        hidden = [buffer for name, buffer in body.named_buffers() if name not in held]
        return f"{body!r} {attributes} {digest_of(hidden)}"

    def _digest(self, body: Tensors) -> str:
        """The checksum of a body. For the same tensor objects as last time, it is not computed again."""
        if self._last is None or not _is(self._last[0], body):
            self._last = body, body_digest(body)
        return self._last[1]

    def _find(self, engine: Engine, body: Tensors, digest: str, name: SplitName) -> bool:
        """Find or compute the features of a split. False if they cannot be cached."""
        samples = getattr(self.federation, name).samples
        if not len(samples):
            self._found[name] = digest, samples.new_empty(0, self.net.body.features, dtype=torch.float32)
            return True
        key = f"{digest} {self._structure} {self.federation.input!r}"
        known = _kept.pop(samples, None)  # type: ignore[no-untyped-call]
        rows = torch.linspace(0, len(samples) - 1, min(_PROBED, len(samples))).long().tolist()
        probed = probe(engine, body, name, rows)
        if not probed.fixed:
            self.note("features are computed every time: a feature depends on the other samples of its batch")
            return False
        if known is not None and known[0] == key and same(known[1][rows].cpu(), probed.features):
            found = known[1]
        else:
            known = None
            found = self._made(engine, body, digest, name, rows, probed.features)
        _kept[samples], self._found[name] = (key, found), (digest, found)
        return True

    def _made(
        self, engine: Engine, body: Tensors, digest: str, name: SplitName, rows: Sequence[int], probed: Tensor
    ) -> Tensor:
        split: Split = getattr(self.federation, name)
        shape, device = (len(split.samples), self.net.body.features), self.federation.device
        room = 4 * shape[0] * shape[1] <= _SHARE * memory_left(device)
        if self.where == "device" or (self.where == "auto" and room):
            found = _memory(shape, device)
            compute(engine, body, name, found)
            return found
        file = FeatureFile(self._name(split, digest), shape)
        mapped, wrong = file.read()
        if mapped is not None and not same(mapped[torch.tensor(rows)], probed):
            mapped, wrong = None, "the body now gives other features for its samples"
        if wrong:
            self.note(f"the features in {file.folder} are computed again: {wrong}")
        if mapped is None:
            mapped = self._written(engine, body, name, file)
        return mapped.to(device, copy=True) if room else mapped

    def _written(self, engine: Engine, body: Tensors, name: SplitName, file: FeatureFile) -> Tensor:
        new = file.new()
        try:
            compute(engine, body, name, new.features)
        except BaseException:
            new.drop()
            raise
        new.keep()
        return new.features

    def _name(self, split: Split, digest: str) -> str:
        return file_key(
            body=digest,
            structure=self._structure,
            samples=digest_of([split.samples]),
            input=repr(self.federation.input),
            precision="fp32",
        )


def _matters(name: str, value: object) -> bool:
    """Whether a layer's attribute is a plain value that its output may depend on."""
    plain = isinstance(value, bool | int | float | str)
    # the excluded ones are set while the network runs
    return plain and name not in ("training", "draws", "draws_there", "vmaps", "once")


def _memory(shape: tuple[int, int], device: torch.device) -> Tensor:
    try:
        return torch.empty(shape, device=device)
    except (torch.OutOfMemoryError, RuntimeError):  # a RuntimeError on CPU
        needed = 4 * shape[0] * shape[1] / 2**30
        raise RunFailed(
            f"run.features = 'device': {shape[0]} features of {shape[1]} numbers need {needed:.1f} GiB, which {device} "
            "does not have. Accepted: auto, disk, off"
        ) from None


def _is(one: Tensors, other: Tensors) -> bool:
    """Whether two models hold the same tensor objects. A server's step passes on the objects it does not update."""
    return one.keys() == other.keys() and all(one[name] is other[name] for name in one)


def memory_left(device: torch.device) -> int:
    """The free memory of a device, in bytes."""
    if device.type == "cuda":
        return free_bytes(device, Batched.company)
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            (line,) = (line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError):  # not Linux
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**32
