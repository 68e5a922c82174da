"""The wheel: built, installed into an empty folder and used from there, beside nothing but third-party packages."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import torso

ROOT = Path(__file__).parents[1]
SOURCE = Path(torso.__file__).parent
USED = """
import json, sys
from pathlib import Path
import torso
from torso.papers.tables.published import names
result = torso.run({"method": "fedbabu", "data": {"clients": 10}, "train": {"rounds": 1}}, "run")
from torch import nn
mine = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 10))
torso.run({"method": "fedloge", "data": {"clients": 5}, "train": {"rounds": 1}}, model=mine)
heavy = ("torch._dynamo", "sklearn", "scipy", "pandas", "matplotlib", "ray", "flwr")
loaded = [name for name in heavy if name in sys.modules]
from torso.report.write import report
report(["run"], Path("page.html"), None, "")
print(json.dumps({"file": torso.__file__, "status": result.status, "loaded": loaded, "tables": len(names())}))
"""


def run(*words: str | Path, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, cwd=cwd, env={**os.environ, **env}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left beside the sources."""
    pytest.importorskip("setuptools")
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "copy"
    shutil.copytree(SOURCE, copy / "src" / "torso", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy / name)
    words = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", folder)
    run(sys.executable, *words, copy, cwd=folder, PIP_DISABLE_PIP_VERSION_CHECK="1")
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    target = wheel.parent / "installed"
    words = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-compile", "--target", target, wheel)
    run(sys.executable, *words, cwd=wheel.parent, PIP_DISABLE_PIP_VERSION_CHECK="1")
    return target


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("torso/")}
    here = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    assert packed == {f"torso/{path.relative_to(SOURCE).as_posix()}" for path in here}


def test_the_command_works_from_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = run(installed / "bin" / "torso", "doctor", "--json", cwd=tmp_path, PYTHONPATH=str(installed))
    found = json.loads(done.stdout)
    assert found["ok"], found["problems"]
    assert found["versions"]["torso"] == torso.__version__
    extras = {row["name"]: row for row in found["extras"]}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras) == set(declared) - {"dev"}, "dev is made of the others"
    assert {"vision", "text", "flower", "ray", "plot", "tensorboard", "zoo"} <= set(declared)
    assert all(row["for"] for name, row in extras.items() if name in ("vision", "text", "flower", "ray"))


def test_the_package_works_from_an_empty_folder_and_loads_no_more_than_it_needs(
    installed: Path, tmp_path: Path
) -> None:
    """Runs on digits, one with a network of the user's own, need neither scikit-learn nor torch's compiler, which take
    a second each to load."""
    done = run(sys.executable, "-c", USED, cwd=tmp_path, PYTHONPATH=str(installed))
    found = json.loads(done.stdout)
    assert Path(found["file"]).is_relative_to(installed)
    assert found["status"] == "ok"
    assert found["loaded"] == []
    assert found["tables"] > 40
    assert "</html>" in (tmp_path / "page.html").read_text(encoding="utf-8")
