"""The notebooks run from top to bottom, as a reader would run them, each in an empty folder."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import matplotlib as mpl
import pytest
from tests.docs.blocks import ROOT
from tests.docs.test_pages import registries  # noqa: F401  a fixture

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.py"))


@pytest.fixture(scope="module")
def reader() -> Iterator[ModuleType]:
    """docs/hooks/notebooks.py, which the site uses, too."""
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "docs" / "hooks" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["notebooks"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["notebooks"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.usefixtures("registries")
def test_a_notebook_runs(path: Path, reader: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = reader.read(path)
    with mpl.rc_context({"backend": "agg"}):
        outputs = reader.run(cells)
    assert any(outputs)
    page = reader.page(cells, outputs, path.name)
    assert page.startswith("# ")
    assert all(output in page for output in outputs)
    if path.stem == "own_method":
        assert "True" in outputs  # μ = 0 is FedBABU, bit for bit


def test_cells_are_told_apart(reader: ModuleType) -> None:
    script = "import os\n# %% [markdown]\n# # Title\n#\n# Text\n\n# %%\nx = 1\nx + 1\n# %%\nprint(x)\n"
    cells = reader.cells(script)
    assert [(cell.text, cell.markdown) for cell in cells] == [
        ("# Title\n\nText", True),
        ("x = 1\nx + 1", False),
        ("print(x)", False),
    ]
    assert reader.run(cells) == ["", "2", "1"]
