"""The request of `torso advise` as a config: from a config file, from data, or from a stand-in for class counts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torso.config import Config, assign_all, read_toml
from torso.data.inventory import read_survey_data
from torso.data.sources import sources
from torso.data.survey import survey
from torso.errors import RequestError
from torso.report.fitting import fitting


def config_of(file: Path | None, data: str, sets: Sequence[str], option: str = "--data") -> Config:
    """The config of a file, or one that fits the data that `option` names; with the keys of --set."""
    if not data:
        return Config.load(file, sets)
    if file is not None:
        raise RequestError(f"{option} {data!r} and {str(file)!r} both name data. Leave one of them out")
    if data in sources and not Path(data).exists():
        return Config.load(None, [f"data.source={data}", *sets])
    if not Path(data).expanduser().exists():
        raise RequestError(
            f"{option} {data!r} is neither a file, a folder nor a data source. List the sources: torso datasets. Your "
            "own data: a folder of images, or a .csv, .jsonl, .parquet or .npz file"
        )
    survey_data = read_survey_data(
        Path(data), Config.load(None, [text for text in sets if text.startswith("data.")]).data
    )
    return Config(**assign_all(fitting(survey_data, survey(survey_data.inventory)), sets))


def config_file(words: Sequence[str]) -> Path | None:
    """The CONFIG.toml of the command line, if there is one."""
    if len(words) > 1:
        raise RequestError(f"torso advise takes at most one CONFIG.toml, found: {' '.join(words)}")
    if words and not words[0].endswith(".toml") and not Path(words[0]).is_file():
        raise RequestError(
            f"{words[0]!r} is not a config file. Accepted: CONFIG.toml. If it is data: --data {words[0]}"
        )
    if words:
        read_toml(Path(words[0]))
        return Path(words[0])
    return None
