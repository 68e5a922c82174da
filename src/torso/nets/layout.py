"""In which memory layout images go into a module that is not Torso's.

Torso's images are channels-last. On CUDA a module gets them as PyTorch has them: channels-last, cuDNN looks for a way
to compute depthwise convolutions anew for every shape, which takes seconds. A step that is recorded once and replayed
pays that once, and is then 1.3 to 1.6 times as fast (bench/foreign.json).
"""

from __future__ import annotations

import threading

from torch import Tensor


class ChannelsLast:
    """Inside, images stay as they are stored."""

    _inside = threading.local()

    def __enter__(self) -> None:
        ChannelsLast._inside.yes = True

    def __exit__(self, *exc: object) -> None:
        ChannelsLast._inside.yes = False

    @staticmethod
    def here() -> bool:
        """Whether this thread is inside."""
        return getattr(ChannelsLast._inside, "yes", False)


def laid_out(x: Tensor) -> Tensor:
    """What a module of others is given for images [n, C, H, W]; anything else as it is."""
    return x.contiguous() if x.is_cuda and x.ndim == 4 and not ChannelsLast.here() else x
