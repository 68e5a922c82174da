"""Processes end in order, whoever ends them."""

from __future__ import annotations

import signal

import pytest

pytest.importorskip("flwr", reason="the extra flower is not installed")

from torso.federation.flower.children import terminated_as_interrupted


def test_a_service_manager_ends_a_process_as_ctrl_c_does() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), terminated_as_interrupted():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
