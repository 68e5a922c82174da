"""The command line as a newcomer meets it: what a word means, lists that fit, plugins that fail, the doctor, help."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from rich.console import Console
from tests.conftest import Torso
from typer.testing import CliRunner

from torso.cli import app
from torso.errors import RequestError
from torso.learn.drift import drifts
from torso.methods import methods
from torso.papers.experiments.datasets import DATASETS
from torso.plugins import load_plugins
from torso.report import doctor as doctors
from torso.report import methods_list
from torso.report.run_request import run_request

TINY = ("data.clients=10", "train.rounds=1", "train.local_epochs=1", "personalize.epochs=1", "run.workers=1")


# torso run METHOD


def asked(*words: str, sets: tuple[str, ...] = ()) -> tuple[Path | None, list[str], list[str]]:
    notes: list[str] = []
    return (*run_request(words, sets, notes.append), notes)


def test_a_word_is_a_file_if_there_is_one_and_a_method_if_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert asked() == (None, [], [])
    assert asked("fedbabu", sets=("train.lr=1",)) == (None, ["method.name=fedbabu", "train.lr=1"], [])
    assert asked("mine.toml") == (Path("mine.toml"), [], [])  # that it is missing is said when it is read
    Path("mine").write_text("")
    assert asked("mine", "fedbabu") == (Path("mine"), ["method.name=fedbabu"], [])
    Path("fedbabu").write_text("")
    config, sets, (note,) = asked("fedbabu")
    assert (config, sets) == (Path("fedbabu"), [])
    assert "is a file, so it is read as a config" in note
    Path("fedper").mkdir()
    assert asked("fedper")[1] == ["method.name=fedper"]  # a folder is no config


@pytest.mark.parametrize(
    ("words", "sets", "said"),
    [
        (["fedbabuu"], (), "'fedbabuu' is neither a file nor a method; did you mean 'fedbabu'?"),
        (["fedavg", "fedbabu"], (), "torso compare METHOD"),
        (["a.toml", "b.toml"], (), "at most one METHOD and one CONFIG.toml"),
        (["fedavg"], ("method.name=fedper",), "named twice: 'fedavg' and --set method.name=fedper"),
        (["."], (), "'.' is a folder without a run (no config.toml). If it contains data, make a config for"),
    ],
)
def test_words_that_cannot_be_meant(words: list[str], sets: tuple[str, ...], said: str) -> None:
    with pytest.raises(RequestError, match=re.escape(said)):
        asked(*words, sets=sets)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fedavg", "fedbabuu"], "'fedbabuu' is neither a method nor a folder of runs; did you mean 'fedbabu'?"),
        (["nowhere/runs"], "'nowhere/runs' is neither a method nor a folder of runs. List the methods: torso methods."),
        (["fedavg", "."], "'.' is a folder, not a method. Give methods only, or folders of runs only."),
        (["fedavg", "--resume"], "--resume needs --out, the folder of the comparison to continue."),
        ([".", "--set", "train.lr=1"], "torso compare of folders runs nothing, so --set has no effect."),
        ([".", "--seeds", "2"], "runs nothing, so --seeds has no effect."),
    ],
)
def test_words_that_cannot_be_compared(words: list[str], said: str, torso: Torso) -> None:
    refused = torso("compare", *words, "--quiet")
    assert (refused.status, refused.out) == (2, "")
    assert said in refused.err
    assert not Path("runs").exists()


def test_run_takes_the_name_of_a_method(torso: Torso) -> None:
    said = torso("run", "fedbabu", "--quiet", "--json", "--out", "here", sets=TINY)
    assert (said.status, json.loads(said.out)["method"]) == (0, "fedbabu")


# the list of methods


@pytest.mark.parametrize("long", [False, True])
def test_methods_fit_into_80_columns_without_broken_words(
    long: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        methods_list, "Console", lambda: Console(width=80, force_terminal=True, color_system=None, file=sys.stdout)
    )
    methods_list.print_methods(long)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    if long:
        words = {word for line in lines for word in line.split()}
        assert {"train=body", "objective=balanced-softmax", "server_data=all"} <= words
    else:
        names = [line.split()[0] for line in lines if line.startswith("  ")]
        assert sorted(names) == sorted(methods)  # one line each
        assert len(lines) < len(methods) + 15
        assert lines[0] == "FedBABU (Oh 2022)"


# plugins


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(path: Path, text: str) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_a_plugin_is_a_module_or_a_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods, "from-a-path", methods["fedavg"])  # so that it is forgotten in the end
    del methods["from-a-path"]
    text = "from torso.methods import methods\nmethods['from-a-path'] = methods['fedper']\n"
    load_plugins([write(folder / "deep" / "by_path.py", text)])
    assert methods.pop("from-a-path") is methods["fedper"]
    write(folder / "by_name.py", text)
    load_plugins(["by_name"])
    assert "from-a-path" in methods


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import os\n\nimport no_such_thing\n", "ModuleNotFoundError: No module named 'no_such_thing' ({}, line 3)"),
        ("x = 1\nx = = 2\n", "SyntaxError: invalid syntax ({}, line 2)"),
        ("import json\njson.loads('{{')\n", "line 2)"),
        ("def f():\n    return 1 / 0\n\nf()\n", "ZeroDivisionError: division by zero ({}, line 2)"),
        ("import sys\nsys.exit(0)\n", "calls sys.exit ({}, line 2). A plugin only registers things"),
    ],
    ids=["import", "syntax", "in a library", "in a function", "exit"],
)
def test_what_is_wrong_in_a_plugin_is_said_with_file_and_line(text: str, said: str, folder: Path) -> None:
    path = write(folder / "wrong_plugin.py", text)
    for name in (path, "wrong_plugin"):
        with pytest.raises(RequestError, match=re.escape(said.format(path))) as error:
            load_plugins([name])
        assert "\n" not in str(error.value)


def test_a_name_that_is_taken_says_by_whom(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(drifts, "pulled", drifts["none"])  # so that it is forgotten in the end
    del drifts["pulled"]
    mine = "from torso.learn.drift import Drift, drifts\n@drifts.register({!r})\nclass Mine(Drift):\n    ...\n"
    own = write(folder / "own_drift.py", mine.format("scaffold"))
    with pytest.raises(
        RequestError, match=r"method\.drift = 'scaffold' is registered already, by Torso\. Choose another"
    ):
        load_plugins([own])
    load_plugins([write(folder / "first_drift.py", mine.format("pulled"))])
    with pytest.raises(RequestError, match=r"'pulled' is registered already, by the module 'first_drift'"):
        load_plugins([write(folder / "second_drift.py", mine.format("pulled"))])
    again = "from torso.methods import Method, methods\nmethods.register('fedavg')(lambda: Method())\n"
    with pytest.raises(RequestError, match=r"method\.name = 'fedavg' is registered already, by Torso\."):
        load_plugins([write(folder / "own_method.py", again)])


def test_a_plugin_that_ends_the_process_ends_it_with_2(torso: Torso) -> None:
    Path("leaves.py").write_text("import sys\nsys.exit(0)\n")
    said = torso("run", "--plugin", "leaves.py", "--out", "here")
    assert (said.status, said.err.count("\n")) == (2, 1)
    assert "calls sys.exit" in said.err
    assert not Path("here").exists()


def test_paths_that_cannot_be_plugins(folder: Path) -> None:
    for name, said in (
        ("missing.py", "there is no such file"),
        (write(folder / "my-plugin.py", ""), "'my-plugin' cannot be a module"),
        (write(folder / "json.py", ""), "the name 'json' belongs to another module"),
        ("no_such_plugin", "no module of this name can be imported. Give the path of its file"),
    ):
        with pytest.raises(RequestError, match=said):
            load_plugins([name])


# the doctor


def test_the_doctor_looks_everything_up(torso: Torso, monkeypatch: pytest.MonkeyPatch) -> None:
    said = torso("doctor", "--json")
    found = json.loads(said.out)
    assert (said.status, found["ok"], found["problems"]) == (0, True, [])
    assert {"torso", "python", "torch", "numpy"} <= set(found["versions"])
    assert found["devices"][0]["name"] == "cpu"
    assert found["data"]["sets"].keys() == DATASETS.keys()
    assert found["machine"]["cores"] >= 1
    plain = torso("doctor")
    assert plain.status == 0
    for word in ("versions", "devices", "threads", "memory", "disk", "data", "extras", "Torso can run here."):
        assert word in plain.out


def test_the_doctor_names_what_is_broken_and_what_is_missing(torso: Torso, monkeypatch: pytest.MonkeyPatch) -> None:
    wants = ["numpy>=999", "torso-lacks-this>=2,<3", 'no-such-package>=1; extra == "vision"']
    monkeypatch.setattr(doctors.metadata, "requires", lambda name: wants)
    monkeypatch.setenv("TORSO_DATA", "nowhere")
    said = torso("doctor", "--json")
    found = json.loads(said.out)
    assert (said.status, found["ok"]) == (1, False)
    assert any("torso-lacks-this is not installed" in problem for problem in found["problems"])
    assert any(re.match(r"numpy is .*, but Torso needs >=999", problem) for problem in found["problems"])
    (vision,) = found["extras"]
    assert (vision["name"], vision["present"], vision["absent"]) == ("vision", False, ["no-such-package"])
    assert any("TORSO_DATA is 'nowhere'" in lack for lack in found["missing"])
    plain = " ".join(torso("doctor").out.split())
    assert "vision: absent, lacks no-such-package; for networks of torchvision and timm" in plain
    assert "pip install 'torso[vision]'" in plain


# help and completion


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, (*path, name))


def test_every_page_of_help_opens_and_explains_its_arguments() -> None:
    for path in commands(typer.main.get_command(app)):
        page = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
        assert page.exit_code == 0, path
        assert "<bool>" not in page.output, path
        assert max(map(len, page.output.splitlines())) <= 80, path
    run = CliRunner().invoke(app, ["run", "--help"], env={"COLUMNS": "80"}).output
    assert "A method, a config file, or both" in " ".join(run.replace("│", " ").split())


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_can_be_shown(shell: str, torso: Torso, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: shell, raising=False)
    monkeypatch.setattr("shellingham.detect_shell", lambda *args: (shell, f"/bin/{shell}"))
    said = torso("--show-completion")
    assert said.status == 0
    assert "_TORSO_COMPLETE=complete_" in said.out


def test_completion_completes_and_python_m_torso_is_torso(tmp_path: Path) -> None:
    """In a process of its own: the shell asks by environment. Nothing heavy is loaded."""
    asks = {"_TORSO_COMPLETE": "complete_bash", "COMP_WORDS": "torso met", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "torso"],
        env={**os.environ, **asks},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["methods"]
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
