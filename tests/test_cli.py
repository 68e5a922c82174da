"""The command line through its entry point: what is printed where, exit statuses, plugins, and bad input."""

from __future__ import annotations

import gzip
import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.conftest import Said, Torso

from torso import cli
from torso.data import partitions, sources
from torso.methods import methods
from torso.nets import bodies
from torso.nets.bodies import families

TINY = (
    "data.clients=10",
    "train.rounds=2",
    "train.fraction=0.3",
    "train.local_epochs=1",
    "personalize.epochs=1",
    "run.workers=1",
)


@pytest.fixture
def tiny(torso: Torso) -> Torso:
    return lambda *words, sets=(): torso(*words, sets=(*TINY, *sets))


# run


def test_run_prints_a_line_per_round_and_then_the_table(tiny: Torso, tmp_path: Path) -> None:
    said = tiny("run", "--out", "here")
    assert said.status == 0
    lines = said.err.splitlines()
    assert lines[0] == "fedavg seed 0: 2 rounds, 10 clients, folder here"
    assert lines[1].startswith("fedavg seed 0: round 1/2  3 clients  loss ")
    assert lines[2].startswith("fedavg seed 0: round 2/2  3 clients  loss ")
    assert lines[3].startswith("fedavg seed 0: ok  initial ")
    assert len(lines) == 4
    for word in ("method", "initial", "personalised", "without head", "generic", "MB", "seconds", "±"):
        assert word in said.out
    assert "fedavg seed 0: here" in said.out
    assert (tmp_path / "here" / "result.json").exists()


def test_quiet_says_nothing_on_the_way_and_json_is_all_there_is(tiny: Torso) -> None:
    said = tiny("run", "--out", "here", "--quiet", "--json")
    assert (said.status, said.err) == (0, "")
    assert json.loads(said.out) == json.loads(Path("here/result.json").read_text())


def test_json_leaves_progress_on_the_other_stream(tiny: Torso) -> None:
    said = tiny("run", "--out", "here", "--json")
    assert json.loads(said.out)["status"] == "ok"
    assert "round 2/2" in said.err


def test_without_out_the_next_free_folder_is_taken(tiny: Torso) -> None:
    for _ in range(2):
        assert tiny("run", "--quiet", sets=("method.name=local-only", "train.rounds=1")).status == 0
    assert sorted(p.name for p in Path("runs").iterdir()) == ["local-only-digits-1", "local-only-digits-2"]


def test_a_config_file_and_overrides(torso: Torso) -> None:
    Path("mine.toml").write_text("\n".join([*TINY, "method.name = 'fedbabu'"]))
    said = torso("run", "mine.toml", "--quiet", "--json", "--out", "here", sets=("run.seed=5",))
    assert (json.loads(said.out)["method"], json.loads(said.out)["seed"]) == ("fedbabu", 5)


def test_resume_needs_only_the_folder(tiny: Torso, torso: Torso) -> None:
    first = tiny("run", "--quiet", "--json", "--out", "here")
    (Path("here") / "result.json").unlink()
    again = torso("run", "--resume", "--json", "--out", "here")
    assert again.status == 0
    assert "continuing after round 2, from here/checkpoints/round-000002.json" in again.err
    spent = ("seconds", "peak_memory_bytes")
    same = [{k: v for k, v in json.loads(said.out).items() if k not in spent} for said in (first, again)]
    assert same[0] == same[1]


def test_a_failed_run_exits_1_and_says_why(tiny: Torso) -> None:
    said = tiny("run", "--quiet", "--out", "here", sets=("train.lr=1e30",))
    assert (said.status, said.err) == (1, "")
    assert re.search(r"fedavg seed 0 failed: non-finite loss in round 1, client \d+ \(.* smaller train\.lr\)", said.out)
    assert json.loads(Path("here/result.json").read_text())["status"].startswith("failed: non-finite loss in round 1")
    assert tiny("run", "--quiet", "--json", "--out", "json", sets=("train.lr=1e30",)).status == 1


# compare and the lists


def test_compare_prints_one_table(tiny: Torso) -> None:
    said = tiny("compare", "fedavg", "fedbabu", "--out", "here", "--quiet")
    assert (said.status, said.err) == (0, "")
    assert said.out.index("fedavg ") < said.out.index("fedbabu ")
    assert "fedbabu seed 0: here/fedbabu-seed0" in said.out


def test_compare_as_json_over_seeds_with_a_config_file(torso: Torso) -> None:
    Path("mine.toml").write_text("\n".join(TINY))
    said = torso("compare", "fedavg", "fedper", "mine.toml", "--seeds", "2", "--json", "--quiet", "--out", "here")
    found = [(tree["method"], tree["seed"], tree["rounds"]) for tree in json.loads(said.out)]
    assert found == [("fedavg", 0, 2), ("fedper", 0, 2), ("fedavg", 1, 2), ("fedper", 1, 2)]


@pytest.mark.parametrize(
    ("command", "registry"),
    [("methods", methods), ("models", bodies), ("datasets", sources), ("partitions", partitions)],
)
def test_what_exists_is_listed_from_the_registries(command: str, registry: dict[str, Any], torso: Torso) -> None:
    said = torso(command, "--json")
    assert (said.status, said.err) == (0, "")
    rows = json.loads(said.out)
    others = [f"{family}/NAME" for family in families] if registry is bodies else []  # of other libraries
    assert [row["name"] for row in rows] == [*sorted(registry), *others]
    assert all(row["about"] for row in rows)
    plain = torso(command)
    assert plain.status == 0
    assert all(name in plain.out for name in registry)


def test_version(torso: Torso) -> None:
    assert torso("--version").out == "0.1.0\n"


# plugins


PLUGIN = dedent('''
    import numpy as np

    from torso.data import partitions, sources
    from torso.data.images import Dataset, Images
    from torso.data.partitions import Partition
    from torso.data.rows import Rows
    from torso.learn.phases import Phase
    from torso.methods import methods
    from torso.methods.method import method
    from torso.nets import Body, bodies
    from torso.nets.blocks import Dense


    @methods.register("my-method")
    def my_method():
        """The head first, then everything."""
        return method(train=[Phase("head"), Phase("all", epochs=1)], share="body")


    @methods.register("my-bomb")
    def my_bomb():
        """Diverges at once."""
        return method(train=[Phase("all", lr=1e30)])


    @bodies.register("my-body")
    def my_body(channels, height, width):
        """One hidden layer."""
        return Body([Dense(channels * height * width, 16)], 16)


    @sources.register("my-source")
    def my_source(options, seed):
        """Bright and dark images."""
        labels = np.arange(200) % 2
        images = np.broadcast_to((labels * 200)[:, None, None, None], (200, 4, 4, 1)).astype(np.uint8)
        half = Images(images, labels)
        return Dataset("my-source", half, half, classes=2)


    @partitions.register("my-partition")
    def my_partition(dataset, options, seed):
        """Every tenth image to the same client."""
        owner = np.arange(len(dataset.train)) % options.clients
        return Partition(Rows.from_owner(owner, options.clients), Rows.from_owner(owner, options.clients))
''')


@pytest.fixture
def plugin(torso: Torso, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A module in the current folder; what it registers is forgotten afterwards."""
    Path("my_plugin.py").write_text(PLUGIN)
    kept = [(registry, dict(registry)) for registry in (methods, bodies, sources, partitions)]
    yield "my_plugin"
    sys.modules.pop("my_plugin", None)
    for registry, before in kept:
        registry.clear()
        registry.update(before)  # type: ignore[arg-type]


MINE = ("model.body=my-body", "data.source=my-source", "data.partition=my-partition")


def test_a_plugin_brings_a_method_a_network_a_source_and_a_partition(plugin: str, tiny: Torso) -> None:
    said = tiny("run", "--plugin", plugin, "--quiet", "--json", "--out", "h", sets=("method.name=my-method", *MINE))
    assert (said.status, said.err) == (0, "")
    result = json.loads(said.out)
    assert (result["method"], result["dataset"], result["model"]) == ("my-method", "my-source", "my-body")
    assert len(result["accuracy"]["initial"]["clients"]) == 10


def test_a_plugin_is_listed(plugin: str, torso: Torso) -> None:
    for command, name, about in [
        ("methods", "my-method", "The head first, then everything."),
        ("models", "my-body", "One hidden layer."),
        ("datasets", "my-source", "Bright and dark images."),
        ("partitions", "my-partition", "Every tenth image to the same client."),
    ]:
        rows = {row["name"]: row for row in json.loads(torso(command, "--json", "--plugin", plugin).out)}
        assert rows[name]["about"] == about


def test_a_comparison_with_a_failing_method_runs_the_others_and_prints_the_table(plugin: str, tiny: Torso) -> None:
    said = tiny("compare", "my-bomb", "fedavg", "--plugin", plugin, "--quiet", "--out", "here")
    assert (said.status, said.err) == (1, "")
    assert "my-bomb seed 0 failed: non-finite loss in round 1, client " in said.out
    assert "±" in next(line for line in said.out.splitlines() if line.strip().startswith("fedavg "))
    assert json.loads(Path("here/fedavg-seed0/result.json").read_text())["status"] == "ok"


def test_a_plugin_that_is_not_there_is_named(torso: Torso) -> None:
    said = torso("methods", "--plugin", "no_such_plugin")
    assert said.status == 2
    assert "--plugin 'no_such_plugin': no module of this name can be imported" in said.err


# bad input: exit 2, one message on stderr, nothing written


def assert_refused(said: Said, *words: str) -> None:
    assert said.status == 2
    assert said.out == ""
    assert said.err.startswith("torso: ")
    assert said.err.count("\n") == 1
    for word in words:
        assert word in said.err


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("train.leraning_rate=1", ["train.leraning_rate is not a key", "Keys here: batch_size"]),
        ("train.round=1", ["train.round is not a key; did you mean 'rounds'?"]),
        ("train.rounds=ten", ["train.rounds = 'ten'", "valid integer"]),
        ("train.fraction=0", ["train.fraction = 0", "greater than 0"]),
        ("train.fraction=1.5", ["train.fraction = 1.5", "less than or equal to 1"]),
        (
            "method.name=fedbabuu",
            ["method.name = 'fedbabuu' is unknown; did you mean 'fedbabu'?", "`torso methods` lists"],
        ),
        ("model.body=[bold]", ["model.body", "[bold]"]),
        ("data.clients=7", ["data.shards = 2: 7 × 2 shards do not divide among 10 classes. Accepted: 10"]),
        ("data.clients=5000", ["data.clients = 5000", "1 to 1"]),
        ("data.new_clients=10", ["data.new_clients = 10", "0 to 9"]),
        ("train.batch_size=99999999999999999999", ["train.batch_size = 99999999999999999999", "equal to 1000000000"]),
        ("run.seed=99999999999999999999", ["run.seed = 99999999999999999999", "less than 9223372036854775808"]),
        ("personalize.sweep=0,x", ["personalize.sweep.1 = 'x'", "valid integer"]),
        ("data.validation=0.001", ["data.validation = 0.001 holds nothing out", "Accepted: 0.0069 or more"]),
        ("train.lr", ["--set 'train.lr' is not KEY=VALUE"]),
    ],
)
def test_a_wrong_key_type_or_value(override: str, words: list[str], tiny: Torso) -> None:
    assert_refused(tiny("run", "--out", "here", sets=(override,)), *words)
    assert not Path("here").exists()
    assert not Path("runs").exists()


def test_more_shards_than_samples(tiny: Torso) -> None:
    said = tiny("run", "--out", "here", sets=("data.partition=shards-sorted", "data.shards=200"))
    assert_refused(
        said, "data.shards = 200 with data.clients = 10: ", "Accepted: data.shards up to ", "data.clients up to "
    )
    assert not Path("here").exists()


def save_npz(path: str, **changes: Any) -> None:
    labels = np.arange(40) % 4
    images = np.zeros((40, 8, 8), np.uint8)
    arrays = {"train_images": images, "train_labels": labels, "test_images": images, "test_labels": labels}
    np.savez(path, **{**arrays, **changes})


NPZ = ("data.source=npz", "data.root=data.npz")


def test_a_missing_data_file(tiny: Torso) -> None:
    assert_refused(
        tiny("run", "--out", "here", sets=NPZ), "data.root = 'data.npz' does not exist in '/", "train_images"
    )
    assert list(Path().iterdir()) == []


def test_a_truncated_data_file(tiny: Torso) -> None:
    save_npz("data.npz")
    whole = Path("data.npz").read_bytes()
    Path("data.npz").write_bytes(whole[: len(whole) // 2])
    assert_refused(tiny("run", "--out", "here", sets=NPZ), "data.npz cannot be read, it may be damaged")
    assert not Path("here").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"test_labels": np.full(40, 9)},
            ["(data.root = 'data.npz'): test label 9 (image 0) is not a class. Expected: 0 to 3"],
        ),
        ({"test_images": np.zeros((40, 9, 9), np.uint8)}, ["train images are 8×8", "but test images 9×9"]),
        (
            {"train_labels": np.array([0] * 37 + [1, 2, 3])},
            ["data.partition = 'shards' leaves client ", "without training samples", "40 samples in all"],
        ),
    ],
    ids=["label out of range", "two sizes", "an empty client"],
)
def test_data_that_cannot_be_used(changes: dict[str, Any], words: list[str], tiny: Torso) -> None:
    save_npz("data.npz", **changes)
    assert_refused(tiny("run", "--out", "here", sets=NPZ), *words)
    assert [p.name for p in Path().iterdir()] == ["data.npz"]


def test_a_truncated_idx_file(tiny: Torso) -> None:
    header = (0x0803).to_bytes(4, "big") + b"".join(n.to_bytes(4, "big") for n in (100, 28, 28))
    Path("train-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + bytes(5000)))
    said = tiny("run", "--out", "here", sets=("data.source=fashion-mnist", "data.root=."))
    assert_refused(said, "train-images-idx3-ubyte.gz is damaged", "78400 bytes, but 5000 follow")
    assert not Path("here").exists()


def test_image_files_of_two_sizes(tiny: Torso) -> None:
    for split in ("train", "test"):
        for name, side in (("a", 8), ("b", 9)):
            folder = Path("images") / split / name
            folder.mkdir(parents=True)
            Image.new("L", (side, side)).save(folder / "0.png")
    said = tiny("run", "--out", "here", sets=("data.source=folder", "data.root=images"))
    assert_refused(said, "images/test/b/0.png is 9×9 but images/test/a/0.png is 8×8")
    assert not Path("here").exists()


def test_an_out_that_is_in_use(tiny: Torso) -> None:
    Path("here").mkdir()
    Path("here/config.toml").write_text("# precious\n")
    assert_refused(tiny("run", "--out", "here"), "--out 'here' already holds a run")
    assert_refused(tiny("compare", "fedavg", "--out", "here/config.toml"), "here/config.toml")
    assert [p.name for p in Path("here").iterdir()] == ["config.toml"]
    assert Path("here/config.toml").read_text() == "# precious\n"


def test_a_resumption_of_something_else(tiny: Torso, torso: Torso) -> None:
    tiny("run", "--out", "here", "--quiet")
    Path("here/result.json").unlink()
    said = torso("run", "here/config.toml", "--resume", "--out", "here", sets=("train.lr=0.5",))
    assert_refused(said, "the run in 'here' has another config: train.lr was 0.1, now 0.5")
    note = Path("here/checkpoints/round-000002.json")
    note.write_text(note.read_text().replace("0", "1"))
    said = torso("run", "--resume", "--out", "here")
    assert_refused(said, "no whole checkpoint in 'here/checkpoints': round-000002.json is damaged")
    assert not Path("here/result.json").exists()
    assert_refused(torso("run", "--resume"), "--resume needs --out")
    assert_refused(torso("run", "--resume", "--out", "nowhere"), "--resume: 'nowhere' holds no run")


def test_config_files_and_methods_that_are_not_there(tiny: Torso, torso: Torso) -> None:
    assert_refused(tiny("run", "no.toml", "--out", "here"), "config 'no.toml' does not exist")
    Path("bad.toml").write_text("[train")
    assert_refused(tiny("run", "bad.toml", "--out", "here"), "config 'bad.toml' cannot be read as TOML")
    assert_refused(tiny("compare", "fedavg", "fedbab", "--out", "here"), "did you mean 'fedbabu'?")
    assert_refused(torso("compare", "a.toml", "b.toml"), "torso compare takes METHOD… and at most one CONFIG.toml")
    assert torso("compare", "fedavg", "--seeds", "0").status == 2
    assert torso("rum").status == 2
    assert not Path("here").exists()


# torch waits until it is needed


HELP = "import sys, torso.cli\nsys.argv = ['torso', '--help']\ntry: torso.cli.main()\nexcept SystemExit: pass"


@pytest.mark.parametrize("code", ["import torso", "import torso.cli", HELP])
def test_torch_is_not_imported_before_it_is_needed(code: str) -> None:
    script = f"{code}\nimport sys\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


def test_a_terminal_that_knows_ascii_only_gets_question_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`torso attacks` says μ − zσ; a run would have failed when its table is printed, after hours."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    monkeypatch.setattr(sys, "argv", ["torso", "attacks"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert b"? ? z?" in written.getvalue()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("run --rounds 5", "no such option '--rounds'. It is a key: --set train.rounds=VALUE. See: torso run -h"),
        ("compare fedavg --seeds 0", "invalid value for '--seeds': 0 is not in the range x>=1. See: torso compare -h"),
        ("methods show", "missing argument 'NAME'. See: torso methods show -h"),
        ("runn", "no such command 'runn'. Did you mean 'run'? See: torso -h"),
    ],
)
def test_wrong_words_are_told_in_one_line(torso: Torso, words: str, line: str) -> None:
    said = torso(*words.split())
    assert (said.status, said.out, said.err) == (2, "", f"torso: {line}\n")


def test_python_dash_m_is_the_same_command(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "torso", "run", "--set", "train.lr=-1", "--out", str(tmp_path / "here")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "torso: train.lr = -1 is not accepted: input should be greater than 0.\n"
    assert not (tmp_path / "here").exists()
