"""Torso's kernels in place of PyTorch's, inside a module that is not Torso's.

Inside a `Substitutes` mode, depthwise and 1×1 convolutions and BatchNorm in training are computed by the kernels of
`kernels/`, in channels-last memory; everything else is PyTorch's own. A mode costs the host some time at each call, so
it is for steps that are recorded once and replayed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from torso.fast import is_fast


class Substitutes(TorchFunctionMode):
    """The same numbers to rounding, for one client."""

    _inside = threading.local()

    def __enter__(self) -> Self:
        Substitutes._inside.yes = True
        return super().__enter__()  # type: ignore[no-untyped-call,no-any-return]

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)  # type: ignore[no-untyped-call]
        Substitutes._inside.yes = False

    @staticmethod
    def here() -> bool:
        """Whether this thread is inside."""
        return getattr(Substitutes._inside, "yes", False)

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _SUBSTITUTES:
            found = _SUBSTITUTES[func](*args, **kwargs)
            if found is not None:
                return found
        return func(*args, **kwargs)


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor | None:
    sides = [_side(value) for value in (weight.shape[2:], stride, padding, dilation)]
    if bias is not None or weight.dtype != torch.float32 or None in sides or sides[3] != 1 or not is_fast(input):
        return None
    kernel, step, edge, _ = sides
    x = input.to(torch.bfloat16) if torch.is_autocast_enabled("cuda") else input
    if groups == x.shape[1] == len(weight) > 1:
        from torso.nets.kernels.depthwise import depthwise

        return depthwise(x, weight[None], step, edge)  # type: ignore[arg-type]
    if (kernel, step, edge, groups) == (1, 1, 0, 1):
        from torso.nets.kernels.conv import pointwise

        return pointwise(x, weight[None].flatten(2))
    return None


def _side(value: Any) -> int | None:
    """The one number of a square; None where it is none."""
    if isinstance(value, int):
        return value
    sides = set(value) if isinstance(value, tuple | list | torch.Size) else set()
    return int(sides.pop()) if len(sides) == 1 else None


def _batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    values = input.numel() // max(input.shape[1], 1)
    if not training or weight is None or bias is None or input.ndim != 4 or values < 2 or not is_fast(input):
        return None
    from torso.nets.kernels.norm import normalise

    out, mean, var = normalise(input, weight[None], bias[None], None, None, None, eps, False, 1)
    with torch.no_grad():
        for buffer, seen in ((running_mean, mean[0]), (running_var, var[0] * (values / (values - 1)))):
            if buffer is not None:
                buffer.lerp_(seen.to(buffer.dtype), momentum)
    return out


_SUBSTITUTES: dict[Callable[..., Any], Callable[..., Tensor | None]] = {
    torch.conv2d: _convolution,
    F.batch_norm: _batch_norm,
}
