"""Calls a module that is not Torso's through torch.compile, if the caller asks for it (`Compiling`).

The compiler fuses the operations between products and convolutions (BatchNorm, activations, sums, casts) into few
kernels, forward and backward. That takes from ten seconds to a minute, so it pays for steps that are recorded once and
replayed often. Results are the same to rounding. `caches.py` says where the kernels are stored: a second run compiles
faster.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn

Compile = Literal["auto", "on", "off"]
_VARIANTS = 64  # of one piece of code, for other networks and other parts that learn; torch's default limit is 8


class Compiling:
    """A context in which modules that are not Torso's are compiled, in this thread.

    `backend`: that of torch.compile; "": modules are not compiled."""

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
        """The backend in the context of this thread; "" outside of one."""
        return getattr(Compiling._inside, "backend", "")


class Compiled:
    """Calls a body's module, compiled if `Compiling` says so. It belongs to one body; a copy starts empty."""

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
        with torch._dynamo.config.patch(recompile_limit=_VARIANTS):
            return self._made[backend](x)
