"""Processes end in order, whoever ends them."""

from __future__ import annotations

import os
import signal

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from torso.federation.flower.children import terminated_as_interrupted  # noqa: E402


def test_a_service_manager_ends_a_process_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        signal.pause()
    assert signal.getsignal(signal.SIGTERM) == before
