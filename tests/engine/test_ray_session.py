"""How a Ray of the run's own ends. In a process of its own: Ray ends it, and all tests here share another Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("ray")

BEGIN = """
import os, signal, sys
from pathlib import Path
import ray
from torso.engine.ray_session import Session, starting_apart

os.setpgid(0, 0)
heard = []
signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
with starting_apart():
    quick = {"health_check_initial_delay_ms": 500, "health_check_period_ms": 200, "health_check_failure_threshold": 2}
    small = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 * 2**20}
    made = ray.init("local", log_to_driver=False, _system_config=quick, **small)
session = Session(Path(made.address_info["session_dir"]))
session.set_exit_message("Continue with: torso run again")
"""
IN_ORDER = """
beside = session.folder.with_name("session_of_another")
beside.mkdir(exist_ok=True)
os.killpg(0, signal.SIGTERM)
print(heard, ray.get(ray.remote(lambda: "the worker lives").remote()))
session.end()
print(session.folder.exists(), session.folder.parent.joinpath("session_latest").is_symlink(), beside.exists())
"""
LOST = """
(raylet,) = ray._private.worker._global_node.all_processes["raylet"]
raylet.process.kill()
ray.get(ray.remote(lambda: None).remote())
signal.pause()
"""


def said_by(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        env={**os.environ, "RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short: Ray puts sockets below it, whose names have a limit."""
    with tempfile.TemporaryDirectory(prefix="ray") as name:
        yield Path(name)


def test_sigterm_for_the_whole_group_leaves_ray_alive_and_the_end_removes_its_folder(folder: Path) -> None:
    ended = said_by(IN_ORDER, folder)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["['SIGTERM'] the worker lives", "False False True"]
    assert "Continue with" not in ended.stderr


def test_a_raylet_that_is_killed_ends_the_run_with_one_line_of_ours(folder: Path) -> None:
    ended = said_by(LOST, folder)
    assert ended.returncode != 0
    assert ended.stderr.rstrip().endswith("/logs). Continue with: torso run again")
    assert "Last 20 lines of the Raylet logs" not in ended.stderr + ended.stdout
