"""What a finished run leaves is sealed, and each line of a history has a checksum: what was changed is named."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from tests.conftest import Torso
from tests.runs.samples import StopAfter, history_of, tiny

import torso as library
from torso import RequestError, Result
from torso.report.records import read
from torso.results.folder import RunFolder
from torso.results.history import line_of
from torso.runs.run import Stopped

CONFIG = tiny("fedper", "train.rounds=3", "measure.names=initial")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run in `done`, and one in `half` that was stopped after two rounds."""
    place = tmp_path_factory.mktemp("made")
    assert library.run(CONFIG, place / "done").ok
    listener = StopAfter(2)
    with pytest.raises(Stopped):
        library.run(CONFIG, place / "half", listener=listener, stop=listener.stop)
    return place


@pytest.fixture
def done(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "done", tmp_path / "done"))


@pytest.fixture
def half(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "half", tmp_path / "half"))


def a_digit_less(path: Path) -> None:
    path.write_text(re.sub(r'("mean": \d)\d', r"\1", path.read_text(), count=1))


def test_a_changed_result_is_believed_by_nobody(done: Path, torso: Torso) -> None:
    a_digit_less(done / "result.json")
    for ask in (lambda: Result.read(done), lambda: library.load(done), lambda: library.run(CONFIG, done, resume=True)):
        with pytest.raises(
            RequestError, match=r"result\.json' was changed after the run had ended.* delete seal\.json"
        ):
            ask()
    record = read(done)
    assert record.accuracy == {}
    assert any("result.json was changed after the run had ended" in problem for problem in record.problems)
    said = torso("report", str(done), "--out", "page.html")
    assert "result.json was changed after the run had ended" in said.err
    (done / "seal.json").unlink()
    assert Result.read(done).ok  # as somebody has asked for


def test_every_sealed_file_is_named_by_the_report(done: Path) -> None:
    (done / "analyses.json").write_text("{}\n")
    lines = (done / "history.jsonl").read_text().splitlines(keepends=True)
    (done / "history.jsonl").write_text("".join(lines[:-1]))
    record = read(done)
    assert record.accuracy  # of the result, which is whole
    assert (record.history, dict(record.analyses)) == ((), {})
    assert [problem.split(":")[0] for problem in record.problems[:2]] == [
        "history.jsonl was changed after the run had ended",
        "analyses.json was changed after the run had ended",
    ]
    with pytest.raises(RequestError, match=r"analyses\.json' was changed after the run had ended"):
        Result.read(done)
    (done / "analyses.json").unlink()
    with pytest.raises(RequestError, match=r"analyses\.json' is missing, and seal\.json lists it"):
        Result.read(done)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": 3}', "[" * 100_000])
def test_a_damaged_seal_is_named(text: str, done: Path) -> None:
    (done / "seal.json").write_text(text)
    with pytest.raises(RequestError, match=r"result\.json' cannot be checked, since seal\.json is damaged"):
        Result.read(done)


def test_the_report_names_the_line_that_was_changed(done: Path) -> None:
    lines = (done / "history.jsonl").read_text().splitlines()
    lines[1] = lines[1].replace('"loss": ', '"loss": 1')
    (done / "history.jsonl").write_text("\n".join(lines) + "\n")
    record = read(done)
    assert len(record.history) == 1
    assert any(
        "broken after round 1 (line 2 was changed: its checksum does not match)" in told for told in record.problems
    )


def test_a_resumed_run_names_the_line_that_was_changed(half: Path, made: Path) -> None:
    lines = (half / "history.jsonl").read_text().splitlines()
    lines[0] = re.sub(r'("loss": \d)\.', r"\g<1>0.", lines[0])
    (half / "history.jsonl").write_text("\n".join(lines) + "\n")
    seen = StopAfter(99)
    assert library.run(CONFIG, half, resume=True, listener=seen).ok
    assert seen.began.endswith("history.jsonl, line 1 was changed: its checksum does not match, passed over")
    assert history_of(half) == history_of(made / "done")[1:]


def test_of_many_mutated_histories_none_is_taken_over_in_silence(half: Path) -> None:
    """One byte of a line is changed, or a line is gone, doubled or moved."""
    path, rng = half / "history.jsonl", random.Random(0)
    before = path.read_text()
    first, second = before.splitlines()
    moved = [f"{second}\n", f"{first}\n{first}\n{second}\n", f"{second}\n{first}\n"]
    for _ in range(300):
        place = rng.randrange(len(before))
        moved.append(before[:place] + chr(rng.randrange(32, 127)) + before[place + 1 :])
    for text in moved:
        path.write_text(text)
        folder = RunFolder(half, CONFIG)
        cut = not text.endswith("\n")  # as a killed run leaves it
        assert text == before or folder.broken() or (cut and len(folder.history()) == 1), text


def test_lines_of_an_older_version_are_read_and_get_checksums(half: Path, made: Path) -> None:
    path = half / "history.jsonl"
    plain = [json.dumps({k: v for k, v in json.loads(line).items() if k != "check"}) for line in path.open()]
    path.write_text("\n".join(plain) + "\n")
    seen = StopAfter(99)
    assert library.run(CONFIG, half, resume=True, listener=seen).ok
    assert "passed over" not in seen.began
    assert history_of(half) == history_of(made / "done")
    assert all('"check": "' in line for line in path.open())


def test_a_checksum_is_of_the_line_as_it_stands() -> None:
    line = line_of({"round": 1, "loss": float("nan"), "name": "é"})
    assert line == line_of(json.loads(line))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("result.json", "[" * 100_000),
        ("result.json", '{"seed": ' + "9" * 400 + "}"),
        ("analyses.json", '{"a": "\\ud800"}'),
        ("config.toml", "a = " + "[" * 100_000),
        ("config.toml", f"[run]\nseed = {'9' * 400}"),
        ("history.jsonl", "[" * 100_000 + "\n"),
    ],
)
def test_files_that_no_reader_can_take_end_in_one_line(name: str, text: str, done: Path, torso: Torso) -> None:
    (done / "seal.json").unlink()
    (done / name).write_text(text)
    for words in (["report", str(done), "--out", "page.html"], ["export", str(done), "--out", "models"]):
        said = torso(*words)
        assert said.status in (0, 2)
        assert "Traceback" not in said.err
        if words[0] == "report" or name != "history.jsonl":
            assert name in said.err
    if name != "history.jsonl":
        assert torso("run", "--out", str(done), "--resume").status == 2


@pytest.mark.parametrize(
    "change",
    [{"seed": "zero"}, {"cost": {"bytes_up": "much"}}, {"accuracy": {"initial": {"mean": "high"}}}, {"status": 1}],
)
def test_words_where_numbers_belong_are_refused(change: dict[str, object], done: Path) -> None:
    (done / "seal.json").unlink()
    tree = json.loads((done / "result.json").read_text())
    (done / "result.json").write_text(json.dumps(tree | change))
    with pytest.raises(RequestError, match=r"result\.json' is not the result of a run"):
        Result.read(done)
