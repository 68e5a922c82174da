"""`torso data`: what a person sees, and a run on what was downloaded."""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from tests.conftest import Torso
from tests.data.file_server import Files, serving
from tests.data.test_fetch import closed_port
from tests.data.test_sources import write_idx

from torso.data import fetch_catalogue
from torso.data.fetch_sets import RemoteFile
from torso.report.download_bars import Bars, Lines


@pytest.fixture
def server(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Files]:
    """Has a small MNIST, which the catalogue takes for the official one."""
    folder = tmp_path_factory.mktemp("official")
    write_idx(folder, zipped=True)
    monkeypatch.delenv("TORSO_MIRROR", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    known = fetch_catalogue.DATASETS["mnist"]
    with serving() as files:
        parts = []
        for file in known.files:
            content = (folder / file.name).read_bytes()
            files.content[f"/official/{file.name}"] = files.content[f"/mirror/mnist/{file.name}"] = content
            url = f"{files.url}/official/{file.name}"
            parts.append(RemoteFile(file.name, len(content), (url,), hashlib.sha256(content).hexdigest()))
        monkeypatch.setitem(fetch_catalogue.DATASETS, "mnist", replace(known, files=tuple(parts)))
        yield files


def test_download_and_run(torso: Torso, server: Files) -> None:
    said = torso("data", "get", "mnist")
    assert said.status == 0, said.err
    assert "mnist: data/mnist is checked and ready. Terms: CC BY-SA 3.0 (http://yann.lecun.com" in said.out
    assert said.out.splitlines()[-1] == "Use it: torso run --set data.source=mnist"
    assert "train-images-idx3-ubyte.gz: 100% of 0.0 MB" in said.err
    sets = ("data.source=mnist", "data.partition=iid", "data.clients=2", "train.rounds=1", "model.body=mlp")
    run = torso("run", "--quiet", "--json", sets=sets)
    assert run.status == 0, run.err
    assert len(server.asked) == 4
    assert "mnist: data/mnist was there already" in torso("data", "get", "mnist").out


def test_a_mirror_is_a_copy_of_the_data_folder(torso: Torso, server: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSO_MIRROR", f"{server.url}/mirror")
    said = torso("data", "get", "mnist", "--out", "elsewhere", "--json", "--quiet")
    assert (said.status, said.err) == (0, "")
    assert json.loads(said.out) == [{"name": "mnist", "source": "mnist", "root": "elsewhere/mnist", "downloaded": True}]
    assert {path.rpartition("/")[0] for path, _, _ in server.asked} == {"/mirror/mnist"}
    again = torso("data", "get", "mnist", "--out", "elsewhere")
    assert again.out.splitlines()[-1] == "Use it: torso run --set data.source=mnist --set data.root=elsewhere/mnist"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("mnist", "--from", "http://127.0.0.1:{port}"), "no connection (Connection refused)"),
        (("mnist", "--from", "ftp://x"), "--from = 'ftp://x' is no address."),
        (("mnist", "nist"), "data set 'nist' is unknown; did you mean 'mnist'?"),
        (("imagenet",), "Get it from https://image-net.org/download-images.php"),
    ],
)
def test_refusals_are_one_line_and_leave_nothing(
    torso: Torso, server: Files, words: tuple[str, ...], message: str
) -> None:
    said = torso("data", "get", *(word.format(port=closed_port()) for word in words))
    assert said.status == 2
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert list(Path().iterdir()) == []
    assert server.asked == []


def test_the_list(torso: Torso, server: Files) -> None:
    torso("data", "get", "mnist", "--quiet")
    rows = {row["name"]: row for row in json.loads(torso("data", "list", "--json").out)}
    assert set(rows) == set(fetch_catalogue.DATASETS)
    assert [name for name, row in rows.items() if row["there"]] == ["mnist"]
    assert rows["cifar10"]["MB"] == 170
    shown = torso("data", "get").out
    assert all(name in shown for name in fetch_catalogue.DATASETS)
    assert "https://image-net.org" in shown
    assert max(map(len, shown.splitlines()[:22])) <= 80


def test_lines_tell_quarters_and_bars_what_is_done() -> None:
    console = Console(width=100, record=True, file=io.StringIO(), force_terminal=True)
    lines = Lines(console)
    for done in np.linspace(0, 1000, 101).astype(int).tolist():
        lines.moved("a.bin", 10_000 * done, 10_000_000)
    lines.making("a.npz", 1000, 2000)
    said = [f"a.bin: {part}% of 10.0 MB" for part in (0, 25, 50, 75, 100)]
    assert console.export_text().split("\n")[:-1] == [*said, "making a.npz: 50% of 2,000"]
    with Bars(console) as bars:
        bars.moved("a.bin", 500_000, 1_000_000)
        bars.making("a.npz", 1, 2)
        assert [task.percentage for task in bars.progress.tasks] == [50, 50]


PAGE = Path(__file__).parents[2] / "docs/datasets.md"


def test_the_pages_snippet_works_as_written(
    server: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (snippet,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    exec(snippet, {})
    assert capsys.readouterr().out == "data/mnist\n"
    assert len(list(Path("data/mnist").iterdir())) == 4


def test_the_page_lists_what_there_is() -> None:
    page = PAGE.read_text(encoding="utf-8")
    for data in fetch_catalogue.DATASETS.values():
        counts = f"{data.train:,} / {data.test:,} | {data.size} | {data.classes} | {data.download / 1e6:,.0f}"
        assert f"| `{data.name}` | {data.title} | {counts} | [{data.terms}]({data.page}) |" in page
    assert all(hand.page in page for hand in fetch_catalogue.BY_HAND.values())
