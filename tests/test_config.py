"""The config: defaults, TOML and back, `--set`, and the messages for a wrong key, type or value."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torso import Config, RequestError
from torso.config import describe_keys, parse_value
from torso.learn.drift import NoDrift, Proximal
from torso.learn.phases import Phase
from torso.methods import Fresh, Share, methods
from torso.personal import FineTune

few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def written(config: Config, folder: Path) -> Config:
    path = folder / "config.toml"
    path.write_text(config.as_toml(), encoding="utf-8")
    return Config.load(path)


def refusal(*sets: str) -> str:
    """The error message for these overrides."""
    with pytest.raises(RequestError) as caught:
        Config.load(None, sets)
    return str(caught.value)


# what a config is


def test_the_defaults_are_fedavg_on_fifty_digit_clients() -> None:
    config = Config()
    assert (config.data.source, config.data.clients, config.data.partition, config.data.shards) == (
        "digits",
        50,
        "shards",
        2,
    )
    assert (config.method.name, config.model.body, config.run.seed) == ("fedavg", "mlp", 0)
    assert (config.train.lr, config.train.momentum, config.train.schedule) == (0.1, 0.9, "step-half-3q")
    assert config == Config.load() == Config.load(None, [])


def test_keywords_and_overrides_are_the_same_words() -> None:
    by_keyword = Config(train={"lr": 0.5}, method={"name": "fedper", "drift": {"name": "proximal", "mu": 2.0}})
    by_set = Config.load(None, ["train.lr=0.5", "method.name=fedper", "method.drift=proximal", "method.drift.mu=2"])
    assert by_keyword == by_set
    assert Config(method="fedbabu") == Config(method=methods["fedbabu"]) == Config.load(None, ["method.name=fedbabu"])


def test_every_key_of_the_issue_exists() -> None:
    keys = """data.source data.root data.clients data.partition data.shards data.alpha data.test_shards data.augment
    data.server_fraction model.body model.head_init train.rounds train.local_epochs train.fraction train.batch_size
    train.lr train.momentum train.weight_decay train.schedule train.head_lr_factor train.weighting personalize.part
    personalize.epochs personalize.lr measure.every measure.names run.seed run.device run.engine run.checkpoint_every"""
    assert set(keys.split()) <= set(describe_keys())


# TOML and back


@few
@given(
    lr=st.floats(1e-12, 1e12),
    momentum=st.floats(0, 1, exclude_max=True),
    fraction=st.floats(0, 1, exclude_min=True),
    alpha=st.floats(1e-300, 1e300),
    seed=st.integers(0, 2**63 - 1),
    rounds=st.integers(1, 10**9),
    root=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    sweep=st.lists(st.integers(0, 100), max_size=4),
    balance=st.booleans(),
)
def test_numbers_and_texts_survive_config_toml(
    tmp_path: Path,
    lr: float,
    momentum: float,
    fraction: float,
    alpha: float,
    seed: int,
    rounds: int,
    root: str,
    sweep: list[int],
    balance: bool,
) -> None:
    config = Config(
        data={"root": root, "alpha": alpha, "balance": balance},
        train={"lr": lr, "momentum": momentum, "fraction": fraction, "rounds": rounds},
        personalize={"sweep": sweep},
        run={"seed": seed},
    )
    assert written(config, tmp_path) == config


@few
@given(
    name=st.sampled_from(sorted(methods)),
    train=st.sampled_from(["", "method.train=head", "method.train=blocks:2", "method.train=[{part='body', lr=0.5}]"]),
    drift=st.sampled_from(["", "method.drift=none", "method.drift=proximal"]),
    share=st.sampled_from(["", "method.share=body", "method.share.rest=reset", "method.share.frozen=once"]),
    start=st.sampled_from(["", "method.start=fresh", "method.start=finished"]),
    rest=st.sampled_from(["", "method.server_data=body", "method.shared_momentum=true"]),
)
def test_every_preset_and_every_axis_survive_config_toml(
    tmp_path: Path, name: str, train: str, drift: str, share: str, start: str, rest: str
) -> None:
    config = Config.load(None, [f"method.name={name}", *filter(None, [train, drift, share, start, rest])])
    assert config.method.name == name
    assert written(config, tmp_path) == config


def test_but_changes_only_what_it_names() -> None:
    config = Config.load(None, ["train.lr=0.3", "method.name=fedper"])
    other = config.but("method.name=fedbabu", "run.seed=7")
    assert (other.method, other.run.seed, other.train.lr) == (methods["fedbabu"], 7, 0.3)
    assert (config.method, config.run.seed) == (methods["fedper"], 0)


# --set


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("1e-3", 1e-3),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("['initial']", ["initial"]),
        ('"quoted"', "quoted"),
        ("digits", "digits"),
        ("blocks:2", "blocks:2"),
        ("/some/where", "/some/where"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_a_value_is_toml_where_it_can_be_and_text_elsewhere(text: str, value: object) -> None:
    found = parse_value(text)
    assert found == value
    assert type(found) is type(value)


def test_overrides_apply_in_order_over_the_file(tmp_path: Path) -> None:
    path = tmp_path / "some.toml"
    path.write_text('method = "fedper"\n[train]\nlr = 0.5\nrounds = 3\n')
    config = Config.load(path, ["train.lr=0.1", "train.lr=0.2", "method.drift=proximal"])
    assert (config.train.lr, config.train.rounds) == (0.2, 3)
    assert config.method == methods["fedper"].but(drift=Proximal())


def test_an_axis_is_replaced_and_then_adjusted() -> None:
    assert Config.load(None, ["method.drift=proximal"]).method.drift == Proximal()
    both = Config.load(None, ["method.name=fedbabu", "method.drift=proximal", "method.drift.mu=0.5"])
    assert both.method == methods["fedbabu"].but(drift=Proximal(0.5))


def test_an_option_alone_adjusts_the_preset() -> None:
    assert Config.load(None, ["method.name=fedprox", "method.drift.mu=3"]).method.drift == Proximal(3.0)
    start = Config.load(None, ["method.name=lg-fedavg", "method.start.lr=0.01"]).method.start
    assert (start.lr, start.rounds) == (0.01, 0.25)  # type: ignore[attr-defined]


def test_a_new_preset_starts_anew_and_comes_before_other_overrides() -> None:
    config = Config.load(None, ["method.drift=proximal", "method.name=fedbabu"])
    assert config.method == methods["fedbabu"].but(drift=Proximal())
    assert Config.load(None, ["method.name=lg-fedavg"]).but("method.name=fedavg").method.start == Fresh()


def test_share_takes_a_part_and_then_its_options() -> None:
    assert Config.load(None, ["method.share=body"]).method.share == Share("body")
    config = Config.load(None, ["method.share=body", "method.share.rest=reset"])
    assert config.method.share == Share("body", rest="reset")
    assert Config.load(None, ["method.name=fedper", "method.share.rest=reset"]).method == methods["fedper"].but(
        share=Share("body", rest="reset")
    )


def test_phases_come_as_a_part_or_as_a_list() -> None:
    assert Config.load(None, ["method.train=body"]).method.train == (Phase("body"),)
    listed = Config.load(None, ['method.train=[{part="head", epochs=3}, {part="body", lr=0.1}]'])
    assert listed.method.train == (Phase("head", 3), Phase("body", lr=0.1))
    assert Config.load(None, ["method.personal.phases=head"]).method.personal == FineTune((Phase("head"),))


def test_an_axis_can_be_switched_off() -> None:
    assert Config.load(None, ["method.name=fedprox", "method.drift=none"]).method.drift == NoDrift()


# what wrong input gets: key, value, what would do


@pytest.mark.parametrize(
    ("override", "words"),
    [
        # keys
        ("trian.lr=1", ["trian is not a key; did you mean 'train'?", "data, measure, method"]),
        ("self.lr=1", ["self is not a key.", "Keys here: attack, data"]),
        ("train.epochs=1", ["train.epochs is not a key; did you mean 'local_epochs'?", "batch_size"]),
        ("data.synthetic.sampels=1", ["data.synthetic.sampels is not a key; did you mean 'samples'?"]),
        ("method.drfit=proximal", ["method.drfit is not a key; did you mean 'drift'?"]),
        ("method.drift.mu=1", ["not a key. method.drift = 'none' has no options. method.drift = 'proximal' or "]),
        ("method.share.parts=body", ["method.share.parts is not a key; did you mean 'part'?", "rest, frozen"]),
        ("train.lr.x=1", ["train.lr = {'x': 1}", "valid number"]),
        # types
        ("train.rounds=many", ["train.rounds = 'many'", "valid integer"]),
        ("train.rounds=2.5", ["train.rounds = 2.5", "integer"]),
        ("train.lr=[1]", ["train.lr = [1]", "valid number"]),
        ("data.source=3", ["data.source = 3", "valid string"]),
        ("data.balance=perhaps", ["data.balance = 'perhaps'", "boolean"]),
        ("measure.names=5", ["measure.names = 5", "a list"]),
        ("personalize.sweep=[1, 'a']", ["personalize.sweep.1 = 'a'", "integer"]),
        ("personalize.sweep=0.5", ["personalize.sweep = 0.5", "a list"]),
        ("method.name=3", ["method.name = 3"]),
        ("method.drift=3", ["method.drift = 3", "none, proximal"]),
        ("method.train=3", ["method.train = 3"]),
        ("method.shared_momentum=7", ["method.shared_momentum = 7", "boolean"]),
        ("method.drift={name='proximal', mu='much'}", ["method.drift.mu = 'much'", "valid number"]),
        # values
        ("train.fraction=0", ["train.fraction = 0", "greater than 0"]),
        ("train.fraction=1.01", ["train.fraction = 1.01", "less than or equal to 1"]),
        ("train.fraction=nan", ["train.fraction = nan"]),
        ("train.lr=-0.1", ["train.lr = -0.1", "greater than 0"]),
        ("train.lr=nan", ["train.lr = nan", "finite"]),
        ("train.lr=inf", ["train.lr = inf", "finite"]),
        ("train.momentum=1", ["train.momentum = 1", "less than 1"]),
        ("train.momentum=nan", ["train.momentum = nan"]),
        ("train.rounds=0", ["train.rounds = 0", "greater than or equal to 1"]),
        ("data.clients=-1", ["data.clients = -1", "greater than or equal to 0"]),
        ("data.server_fraction=1.5", ["data.server_fraction = 1.5"]),
        ("run.seed=-1", ["run.seed = -1"]),
        ("train.weighting=sample", ["train.weighting = 'sample'", "'samples' or 'uniform'"]),
        ("personalize.part=3", ["personalize.part = 3", "valid string"]),
        ("method.share.rest=keep", ["method.share.rest = 'keep'", "'persist' or 'reset'"]),
        ("method.train=[]", ["method.train", "nothing to train", "blocks:J"]),
        ("method.train=[{part='body', lr=-1}]", ["method.train.0.lr = -1", "greater than or equal to 0"]),
        ("method.start={name='finished', rounds=0}", ["method.start.rounds = 0", "greater than 0"]),
        ("method.start={name='finished', lr=-1}", ["method.start.lr = -1", "greater than or equal to 0"]),
        ("method.drift={name='proximal', mu=nan}", ["method.drift.mu = nan", "finite"]),
        ("train.rounds=true", ["train.rounds = True", "integer"]),
        ("data.clients=10.0", ["data.clients = 10.0", "integer"]),
        ("data.balance=yes", ["data.balance = 'yes'", "boolean"]),
        ('measure.during=["intial"]', ["measure.during = 'intial'", "'initial'"]),
        # names
        (
            "method.name=fedbabble",
            ["method.name = 'fedbabble' is unknown; did you mean 'fedbabu'?", "`torso methods` lists"],
        ),
        ("method.drift=proximate", ["method.drift = 'proximate' is unknown; did you mean 'proximal'?"]),
        ("method.drift.name=proximate", ["method.drift = 'proximate' is unknown; did you mean 'proximal'?"]),
        (
            "model.body=conv5",
            [
                "model.body = 'conv5' is unknown; did you mean 'conv",
                "Accepted: conv3, conv4",
                "or what a module registers that --plugin MODULE",
            ],
        ),
        ("model.head_init=default2", ["model.head_init = 'default2' is unknown; did you mean 'default'?"]),
        ("data.source=digit", ["data.source = 'digit' is unknown; did you mean 'digits'?", "cifar10"]),
        ("data.partition=shard", ["data.partition = 'shard' is unknown; did you mean 'shards'?", "iid"]),
        ("data.augment=crop-flop", ["data.augment = 'crop-flop' is unknown; did you mean 'crop-flip'?"]),
        ("train.schedule=cosin", ["train.schedule = 'cosin' is unknown; did you mean 'cosine'?", "const"]),
        ("measure.names=['initail']", ["measure.names = 'initail' is unknown; did you mean 'initial'?", "generic"]),
        ("measure.during=['generc']", ["'generc' is unknown; did you mean 'generic'?"]),
        ("run.engine=aut", ["run.engine = 'aut' is unknown; did you mean 'auto'?"]),
        # syntax
        ("train.lr", ["--set 'train.lr' is not KEY=VALUE", "Example: --set train.lr=0.1"]),
        ("method=fedbabu", ["Example: --set method.name=fedbabu"]),
        ("lr=0.1", ["--set 'lr=0.1' is not KEY=VALUE"]),
        (".lr=0.1", ["is not KEY=VALUE"]),
        ("=0.1", ["is not KEY=VALUE"]),
        ("", ["is not KEY=VALUE"]),
    ],
)
def test_a_wrong_override_is_told_the_key_the_value_and_what_would_do(override: str, words: list[str]) -> None:
    message = refusal(override)
    for word in words:
        assert word in message
    assert "\n" not in message
    assert "pydantic" not in message


def test_a_key_below_a_value_says_that_it_is_a_value() -> None:
    message = refusal("train.lr=0.1", "train.lr.x=1")
    assert message == "--set 'train.lr.x=1': train.lr is a value, not a table with keys."


def test_several_problems_are_counted() -> None:
    assert "(and 1 more mistake)" in refusal("train.lr=-1", "train.rounds=0")
    assert "(and 2 more mistakes)" in refusal("train.lr=-1", "train.rounds=0", "data.clients=-1")


def test_a_key_without_its_section_is_told_the_section(tmp_path: Path) -> None:
    path = tmp_path / "flat.toml"
    path.write_text("lr = 0.1")
    with pytest.raises(RequestError, match=r"lr is not a key; did you mean 'train\.lr' or 'personalize\.lr'\? Keys"):
        Config.load(path)


@pytest.mark.parametrize("tree", [{"train": 3}, {"method": 3}, {"method": {"train": {"lr": 1}}}, {"model": []}])
def test_a_table_of_another_kind_is_refused(tree: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "odd.toml"
    path.write_text(tomli_w.dumps(tree))
    with pytest.raises(RequestError, match=next(iter(tree))):
        Config.load(path)


@few
@given(st.text(max_size=30))
def test_any_override_is_a_config_or_a_request_error(text: str) -> None:
    for override in (text, f"train.lr={text}", f"method.{text}", f"method.drift={text}"):
        with suppress(RequestError):
            Config.load(None, [override])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"no\.toml' does not exist. Give a TOML file, or leave it out"):
        Config.load(tmp_path / "no.toml")


@pytest.mark.parametrize("content", [b"[train\nlr = 1", b"\xff\xfe\x00", b"a = 1\na = 2"])
def test_a_file_that_is_not_toml_is_named(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"broken\.toml' cannot be read as TOML: ") as refused:
        Config.load(path)
    assert "codec" not in str(refused.value)
    with pytest.raises(RequestError, match="cannot be read as TOML"):
        Config.load(tmp_path)  # a folder


def test_a_wrong_keyword_is_a_request_error_too() -> None:
    with pytest.raises(RequestError, match=r"train\.lr = -1 is not accepted"):
        Config(train={"lr": -1})
    with pytest.raises(RequestError, match="trian is not a key; did you mean 'train'"):
        Config(trian={})
    with pytest.raises(RequestError, match="method = 3 is neither a name nor a table"):
        Config(method=3)


@pytest.mark.parametrize("text", ["0,1", "0, 1", "[0, 1]"])
def test_a_list_of_numbers_may_be_given_with_commas(text: str) -> None:
    assert Config.load(None, [f"personalize.sweep={text}"]).personalize.sweep == (0, 1)
    assert Config.load(None, ["personalize.sweep=3"]).personalize.sweep == (3,)
