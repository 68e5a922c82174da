"""A module that is not Torso's, through torch.compile.

What stands between products and convolutions (BatchNorm, activations, sums, casts) becomes few kernels, forward and
backward. That takes from ten seconds to a minute, so it is for steps that are recorded once and replayed often.
Results are the same to rounding. `caches.py` says where the kernels are kept: a second run compiles faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

Compile = Literal["auto", "on", "off"]
_WAYS = 64  # in which one piece of code is compiled: other networks, other parts that learn; torch's own limit is 8


class Compiling:
    """Inside, modules of others are compiled. `backend`: torch.compile's; an empty one: they are not."""

    _inside = threading.local()

    def __init__(self, backend: str = "inductor") -> None:
        self.backend = backend

    def __enter__(self) -> None:
        self._before = Compiling.here()
        Compiling._inside.backend = self.backend

    def __exit__(self, *exc: object) -> None:
        Compiling._inside.backend = self._before

    @staticmethod
    def here() -> str:
        """The backend of this thread, or nothing."""
        return getattr(Compiling._inside, "backend", "")


class Compiled:
    """What a body calls its module through. It belongs to one body: a copy has compiled nothing yet."""

    def __init__(self) -> None:
        self._made: dict[str, Callable[[Tensor], Any]] = {}  # by backend

    def __deepcopy__(self, memo: object) -> Compiled:
        return Compiled()

    def __reduce__(self) -> tuple[type[Compiled], tuple[()]]:
        return Compiled, ()

    def __call__(self, module: nn.Module, x: Tensor) -> Any:
        backend = Compiling.here()
        if not backend:
            return module(x)
        if backend not in self._made:
            self._made[backend] = torch.compile(module, backend=backend, dynamic=False)
        with torch._dynamo.config.patch(recompile_limit=_WAYS):
            return self._made[backend](x)
