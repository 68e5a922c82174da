"""The memory layout of images that go into a module that is not Torso's.

Torso's images are channels-last. On CUDA a module gets them in PyTorch's usual layout, because with channels-last
images cuDNN searches an algorithm for depthwise convolutions again for every shape, which takes seconds. A step that is
recorded once and replayed pays that once, and is then 1.3 to 1.6 times as fast with channels-last images
(bench/foreign.json).
"""

from __future__ import annotations

import threading

from torch import Tensor


class ChannelsLast:
    """A context in which images stay channels-last, in this thread."""

    _inside = threading.local()

    def __enter__(self) -> None:
        ChannelsLast._inside.yes = True

    def __exit__(self, *exc: object) -> None:
        ChannelsLast._inside.yes = False

    @staticmethod
    def here() -> bool:
        """Whether this thread is inside such a context."""
        return getattr(ChannelsLast._inside, "yes", False)


def laid_out(x: Tensor) -> Tensor:
    """Images [n, C, H, W] in the layout in which a module that is not Torso's gets them; any other input unchanged."""
    return x.contiguous() if x.is_cuda and x.ndim == 4 and not ChannelsLast.here() else x
