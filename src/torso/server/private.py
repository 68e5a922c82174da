"""Client-level differential privacy: the noised mean that the server computes from a round's uploads.

Every client's change Δ_k = θ_k − θ, all tensors that travel as one vector, is clipped to the length S. The changes are
added up, noise N(0, z²S²) is added to the sum, and the sum is divided by the expected number of participants m = q·N.
It is not divided by the number of uploads: so one client changes the sum by at most S, whichever others take part.

G clients, * a tensor's shape.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from torso.learn.stacked import client_norms, per_client
from torso.nets import Tensors
from torso.server.robust import minus
from torso.server.sums import add_stacked

CLIP = "clip"
_TINY = 1e-12  # shorter lengths are not exact: the squares underflow in float32


@dataclass(frozen=True)
class Mechanism:
    """The Gaussian mechanism of private rounds: clipping, noise, and the adaptation of the clipping length S."""

    noise: float  # multiplier z of a whole round
    clip: float  # S; its first value if S adapts
    expected: float  # m, the expected number of participants
    key: bytes  # secret from which the noise is drawn
    binds: bool = False  # whether noise also depends on the sum: repeated rounds share noise only if uploads are equal
    quantile: float = 0.0  # > 0: S follows this quantile of the lengths (Andrew et al. 2021)
    rate: float = 0.2  # learning rate of log S
    count_noise: float = 0.0  # std of the noise on the centred count of clients within S

    @property
    def adapts(self) -> bool:
        """Whether S changes from round to round."""
        return self.quantile > 0

    @property
    def update_noise(self) -> float:
        """The multiplier for the updates. If a count is released too, both releases together cost as much privacy as
        one with multiplier z (Andrew et al. 2021, Theorem 1)."""
        if not self.adapts or not self.noise:
            return self.noise
        return float((self.noise**-2 - (2 * self.count_noise) ** -2) ** -0.5)

    def bound(self, state: Tensors) -> float:
        """S of the next round."""
        return float(state[CLIP]) if CLIP in state else self.clip

    def mark(self, round: int, total: Tensors) -> str:
        """The key from which the noise of a round is drawn."""
        return f"{round} {digest(total)}" if self.binds else str(round)

    def next_state(self, bound: float, within: float, mark: str) -> Tensors:
        """The state after a round: S ← S · exp(−rate · (b̃ − quantile)), with b̃ the noised share of clients within S,
        from `within` = Σ(b_k − ½)."""
        if not self.adapts:
            return {}
        drawn = float(normals(self.key, f"count {mark}", 1)[0])
        share = (within + self.count_noise * drawn) / self.expected + 0.5
        grows = min(self.rate * (self.quantile - share), 50.0)  # a huge count_noise must not overflow
        return {CLIP: torch.tensor(bound * math.exp(grows), dtype=torch.float64)}

    def released(self, total: Tensors, bound: float, mark: str) -> Tensors:
        """The mean change: (sum + noise) / m."""
        std = self.update_noise * bound
        if not std:
            return {name: tensor / self.expected for name, tensor in total.items()}
        noise = normal_like(self.key, f"update {mark}", total)
        return {name: (tensor + std * noise[name]) / self.expected for name, tensor in total.items()}


class PrivateSum:
    """The sum of the clipped changes of one round. `start` [*]: what the server sent to the participants; `variances`:
    names of tensors in it that must not become negative by the noise."""

    def __init__(
        self, mechanism: Mechanism, state: Tensors, start: Tensors, variances: Collection[str] = frozenset()
    ) -> None:
        self.mechanism, self.start, self.variances = mechanism, start, variances
        self.bound = mechanism.bound(state)
        self.total: Tensors = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
        self.within: list[Tensor] = []  # Σ(b_k − ½) of each group; read once, at the end

    def add(self, uploads: Tensors, counted: Tensor | None = None) -> None:
        """Add the uploads of G clients, without waiting for the device. `counted` [G]: which clients count; None:
        all."""
        theirs = {name: uploads[name] for name in self.start}
        if counted is not None:
            theirs = {n: torch.where(per_client(counted, t), t, self.start[n]) for n, t in theirs.items()}
        changes, inside = clipped_changes(theirs, self.start, self.bound)
        add_stacked(self.total, changes)
        centred = inside.to(torch.float32) - 0.5
        self.within.append((centred if counted is None else torch.where(counted, centred, 0.0)).sum())

    def release(self, round: int) -> tuple[Tensors, Tensors]:
        """The private replacement of the participants' mean [*], and the next state of the mechanism."""
        mark = self.mechanism.mark(round, self.total)
        change = self.mechanism.released(self.total, self.bound, mark)
        within = float(torch.stack(self.within).sum()) if self.within and self.mechanism.adapts else 0.0
        mean = {name: tensor + change[name] for name, tensor in self.start.items()}
        mean |= {name: mean[name].clamp(min=0) for name in mean if name in self.variances}
        return mean, self.mechanism.next_state(self.bound, within, mark)


def noised_directions(mechanism: Mechanism, parts: Iterable[Tensor], mark: str) -> Tensor | None:
    """Σ_k v_k/‖v_k‖ + N(0, z²) over all clients' tensors v_k, given as groups [G, *]; None without clients.

    Each term has length one, so that one client changes the sum by at most one. A tensor whose length is not finite, or
    too small to be exact, counts as zero."""
    total: Tensors = {}
    for part in parts:
        long = client_norms({"": part})
        usable = per_client((long > _TINY) & long.isfinite(), part)
        add_stacked(total, {"": torch.where(usable, part * per_client(1 / long, part), torch.zeros_like(part))})
    if not total:
        return None
    purpose = f"exchange {mark} {digest(total)}" if mechanism.binds else f"exchange {mark}"
    noise = normal_like(mechanism.key, purpose, total)[""] if mechanism.noise else 0.0
    return total[""] + mechanism.noise * noise


def clipped_changes(uploads: Tensors, start: Tensors, bound: float) -> tuple[Tensors, Tensor]:
    """Δ_k · min(1, S/‖Δ_k‖) of each upload [G, *], and whether it was within S [G]."""
    changes = minus(uploads, start)
    long = client_norms(changes)
    share = torch.where(long > bound, bound / long, torch.ones_like(long))
    return {name: tensor * per_client(share, tensor) for name, tensor in changes.items()}, long <= bound


def normal_like(key: bytes, purpose: str, like: Tensors) -> Tensors:
    """Standard normal numbers in the shapes of these tensors, drawn in the order of their names."""
    names = sorted(like)
    drawn = normals(key, purpose, sum(like[name].numel() for name in names)).astype(np.float32)
    pieces = np.split(drawn, np.cumsum([like[name].numel() for name in names])[:-1])
    return {
        name: torch.from_numpy(piece.copy()).view(like[name].shape).to(like[name].device, like[name].dtype)
        for name, piece in zip(names, pieces, strict=True)
    }


def normals(key: bytes, purpose: str, count: int) -> NDArray[np.float64]:
    """Standard normal numbers from SHAKE-256 of key and purpose (Box and Muller). Without the key they cannot be
    distinguished from fresh ones. torch's own generator has only 2³² seeds, and an attacker can try them all."""
    half = (count + 1) // 2
    stream = hashlib.shake_256(len(key).to_bytes(8, "little") + key + purpose.encode()).digest(16 * half)
    bits = np.frombuffer(stream, dtype="<u8") >> np.uint64(11)
    radius = np.sqrt(-2 * np.log((bits[:half] + 1.0) * 2.0**-53))
    angle = bits[half:] * (2.0**-53 * 2 * math.pi)
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def digest(tensors: Mapping[str, Tensor]) -> str:
    """A hash of tensors that is equal if and only if names and bits are equal."""
    whole = hashlib.sha256()
    for name in sorted(tensors):
        whole.update(name.encode())
        whole.update(tensors[name].detach().cpu().contiguous().numpy().tobytes())
    return whole.hexdigest()
