"""`torso advise` from end to end on a few digits, and requests that cannot be meant."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.conftest import Torso

from torso.config import Config
from torso.runs.job import simulate

TINY = (
    "data.clients=6",
    "data.shards=5",
    "train.rounds=3",
    "train.fraction=0.5",
    "train.local_epochs=1",
    "run.workers=1",
)


@pytest.fixture
def tiny(torso: Torso) -> Torso:
    return lambda *words, sets=(): torso("advise", *words, sets=(*TINY, *sets))


def test_a_tournament_ends_in_advice_and_a_config(tiny: Torso, torso: Torso) -> None:
    said = tiny("--rounds", "300", "--methods", "fedper", "--json", "--out", "advised.toml")
    assert said.status == 0, said.err
    found = json.loads(said.out)
    assert found["advice"] in ("fedavg", "fedper")
    assert found["stay"] is (found["advice"] == "fedavg")
    assert found["best"] == "fedper"
    assert found["guess"]["method"] in ("fedavg", found["best"])
    assert found["cost"]["rounds"] <= 300
    assert found["gain_over_fedavg"]["clients"] == 6
    assert {row["stage"] for row in found["tournament"]} == {"one part", "two parts", "three parts"}
    assert {row["method"] for row in found["tournament"]} == {"fedavg", "fedper", "local-only"}
    assert found["parts"] == 3
    config = Config.load("advised.toml")
    assert config.train.lr == found["rates"]["train.lr"]
    assert config.train.rounds == 3
    simulate(config)  # `torso run` takes it
    again = tiny("--rounds", "300", "--methods", "fedper", "--json", "--quiet")
    same = [
        {key: value for key, value in one.items() if key not in ("cost", "file")}
        for one in (found, json.loads(again.out))
    ]
    assert same[0] == same[1]


def test_counts_with_a_stand_in_and_the_table(torso: Torso) -> None:
    Path("counts.csv").write_text("\n".join(f"{20 + k},{20 - k},10" for k in range(6)))
    sets = ("train.rounds=2", "train.fraction=0.5", "train.local_epochs=1", "run.workers=1")
    words = ("--rounds", "300", "--methods", "fedper", "--counts", "counts.csv", "--stand-in", "digits")
    said = torso("advise", *words, sets=sets)
    assert said.status == 0, said.err
    for word in (
        "one part",
        "three parts",
        "fedper",
        "6 clients, 300 training samples, 3 classes",
        "Advice: ",
    ):
        assert word in said.out
    assert "The samples are from digits, dealt with your counts" in said.out
    assert not list(Path().glob("runs"))


def test_counts_alone_tell_something_and_advise_nothing(torso: Torso) -> None:
    Path("counts.csv").write_text("250,250,0\n0,250,250\n250,0,250\n")
    said = torso("advise", "--counts", "counts.csv")
    assert said.status == 0
    assert "label shift 0.33" in said.out
    assert "no method is advised" in said.out
    found = json.loads(torso("advise", "--counts", "counts.csv", "--json").out)
    assert (found["advice"], found["clients"]["clients"], len(found["nearest"])) == (None, 3, 2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--minutes", "1", "--rounds", "5"), "both set the budget"),
        (("--minutes", "0"), "--minutes 0 is out of range"),
        (("--rounds", "0"), "--rounds 0 is out of range"),
        (("--rounds", "20"), "--rounds 20 is too small for these data: the smallest tournament costs"),
        (("--out", "here"), "Accepted: a name that ends in .toml"),
        (("--out", "no/here.toml"), "the folder 'no' does not exist"),
        (("--out", "there.toml"), "exists. Give another name"),
        (("--guess",), "--guess needs --out FILE.toml"),
        (("--stand-in", "digits"), "needs --counts"),
        (("--counts", "c.csv", "--data", "digits"), "--counts and --data"),
        (("--counts", "c.csv", "--out", "new.toml"), "--counts and --out"),
        (("--counts", "c.csv"), "cannot be read"),
        (("--methods", "fedpr"), "did you mean 'fedper'"),
        (("--methods", "fedavg"), "always take part"),
        (("--set", "train.lr=0.1"), "torso advise chooses train.lr itself"),
        (("--set", "method.name=fedper"), "torso advise chooses method.name itself"),
        (("--data", "nowhere"), "is neither a file, a folder nor a data source"),
        (("--data", "digits", "there.toml"), "both name data"),
        (("a.toml", "b.toml"), "at most one CONFIG.toml"),
        (("fedavg",), "'fedavg' is not a config file"),
        (("none.toml",), "does not exist"),
    ],
)
def test_wrong_requests_are_one_line_and_leave_nothing(tiny: Torso, words: tuple[str, ...], said: str) -> None:
    Path("there.toml").write_text("")
    before = sorted(Path().iterdir())
    found = tiny(*words)
    assert (found.status, found.out) == (2, "")
    assert said in found.err
    assert found.err.count("\n") == 1
    assert sorted(Path().iterdir()) == before


def test_a_table_of_ones_own(torso: Torso) -> None:
    """`--data` takes what `torso data look` takes, with the config that fits it."""
    lines = [f"{k % 3},{(k * 7) % 11},{'ab'[k % 2]}" for k in range(120)]
    Path("mine.csv").write_text("\n".join(["x,y,label", *lines]))
    said = torso("advise", "--data", "mine.csv", "--rounds", "1")
    assert said.status == 2
    assert "--rounds 1 is too small" in said.err
