"""JSON and TOML that are damaged or hostile end in one ValueError, and so in one line of a command."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import Torso

from torso import Config, RequestError
from torso.config import assign, parse_value
from torso.reading import parse_json, parse_record, parse_toml

DEEP = 100_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[" * DEEP + "]" * DEEP, "nested too deeply"),
        ('{"a": ' * DEEP + "1" + "}" * DEEP, "nested too deeply"),
        (f'{{"seed": {"9" * 400}}}', "a number of 400 digits"),
        ("9" * 5000, "a number of 5000 digits"),
        ('{"name": "\\ud800"}', "half of a character"),
        ('{"\\uDFFF": 1}', "half of a character"),
        ("{", "Expecting property name"),
    ],
)
def test_json_that_cannot_be_used_is_one_value_error(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_json(text)


def test_a_record_has_no_endless_entries() -> None:
    assert parse_record('{"a": {"b": [{"c": 1}]}}', most=3) == {"a": {"b": [{"c": 1}]}}
    with pytest.raises(ValueError, match="more than 2 named entries"):
        parse_record('{"a": {"b": [{"c": 1}]}}', most=2)


def test_json_that_can_be_used_is_read() -> None:
    assert parse_json('\ufeff{"a": [1, -2.5, null], "b": "\\ud83d\\ude00"}') == {"a": [1, -2.5, None], "b": "😀"}
    assert parse_json(b"12345678901234567890") == 12345678901234567890


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a = " + "[" * DEEP + "]" * DEEP, "nested too deeply"),
        ("a." * 2000 + "b = 1", "nested too deeply"),
        (f"[run]\nseed = {'9' * 400}", "more than 30 digits"),
        (f"a = {'9' * 5000}", "digits"),
        ("a = [{b = 1" + "0" * 30 + "}]", "more than 30 digits"),
        ('a = "\\ud800"', "Escaped character"),
    ],
)
def test_toml_that_cannot_be_used_is_one_line(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        parse_toml(text)
    path = tmp_path / "my.toml"
    path.write_text(text)
    with pytest.raises(RequestError, match=rf"my\.toml' cannot be read as TOML: .*{said}"):
        Config.load(path)


def test_a_config_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_text("[train]\nrounds = 7\n", encoding="utf-8-sig")
    assert Config.load(path).train.rounds == 7


def test_values_of_the_command_line_follow_the_same_rules(torso: Torso) -> None:
    assert parse_value("[" * DEEP) == "[" * DEEP  # no TOML: the text itself
    with pytest.raises(RequestError, match=r"--set .* holds bytes that are no UTF-8 text"):
        assign({}, "data.root=\udcff")
    for value in ("9" * 40, "9" * 5000):
        said = torso("run", "--out", "here", sets=(f"run.seed={value}",))
        assert said.status == 2
        assert said.err.startswith("torso: run.seed = '999")
    assert not Path("here").exists()
