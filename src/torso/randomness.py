"""Random numbers of a run. Each is a function of (seed, purpose, …); there is no global stream.

On the host they come from a NumPy or torch generator keyed by such a tuple (partitions, participants, initial weights).
On the device they come from `random_bits`: a counter-based hash of (key, counter) in integer tensor operations. So the
shuffles and crops of G clients are one batched operation, with the same bits on every device, engine and number of
workers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as int64: the increment of splitmix64
_MIX_1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MIX_2 = -7723592293110705685  # 0x94D049BB133111EB


def key(seed: int, *purpose: int | str) -> int:
    """A 63-bit key for one purpose. Equal tuples give equal keys on every machine and Python version."""
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def client_keys(before: tuple[int | str, ...], clients: Iterable[int], *after: int | str) -> NDArray[np.int64]:
    """`key(*before, client, *after)` for each client; `before` has at least a seed and one word."""
    head = repr(before)[:-1]  # without the closing bracket
    tail = "".join(f", {each!r}" for each in after)
    texts = (f"{head}, {client!r}{tail})".encode() for client in clients)
    digests = b"".join([hashlib.blake2b(text, digest_size=8).digest() for text in texts])
    return (np.frombuffer(digests, "<u8") >> np.uint64(1)).astype(np.int64)


def numpy_generator(seed: int, *purpose: int | str) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key(seed, *purpose)))


def torch_generator(seed: int, *purpose: int | str) -> torch.Generator:
    return torch.Generator().manual_seed(key(seed, *purpose))


def random_bits(keys: Tensor, count: int) -> Tensor:
    """Random non-negative int64 numbers [*keys.shape, count]: splitmix64 of key + counter (63 bits kept)."""
    counter = torch.arange(1, count + 1, device=keys.device, dtype=torch.int64)
    z = keys.unsqueeze(-1) + counter * _GOLDEN
    z = (z ^ _logical_shift(z, 30)) * _MIX_1
    z = (z ^ _logical_shift(z, 27)) * _MIX_2
    return _logical_shift(z ^ _logical_shift(z, 31), 1)


def _logical_shift(z: Tensor, bits: int) -> Tensor:
    """Shift right and fill with zeros (torch's shift of int64 fills with the sign)."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
