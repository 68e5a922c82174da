"""One thread: the tensors are small, and threads that wait for each other on a busy machine take minutes. One Ray.

And the CPU, on machines with an accelerator too: what is written out here is of a CPU. TORSO_TEST_CUDA=1
(`make test-cuda`) leaves the accelerator to the tests that are about it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

if os.environ.get("TORSO_TEST_CUDA") != "1":
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of the commands that tests start, too


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray with room for three workers, started once for all tests that want it (they are one group for xdist)."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray

    ray.init("local", num_cpus=3, object_store_memory=100 * 2**20, log_to_driver=False)
    yield
    ray.shutdown()
