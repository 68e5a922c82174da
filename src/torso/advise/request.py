"""What `torso advise` is asked about: a config, data that lie somewhere, or class counts with a stand-in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torso.config import Config, assign_all, read_toml
from torso.data.inventory import take_stock
from torso.data.sources import sources
from torso.data.survey import survey
from torso.errors import RequestError
from torso.report.fitting import fitting


def config_of(file: Path | None, data: str, sets: Sequence[str], option: str = "--data") -> Config:
    """The config of a file, or that which fits the data that `option` names; then what --set says."""
    if not data:
        return Config.load(file, sets)
    if file is not None:
        raise RequestError(f"{option} {data!r} and {str(file)!r} both say which data. Leave one of them out")
    if data in sources and not Path(data).exists():
        return Config.load(None, [f"data.source={data}", *sets])
    if not Path(data).expanduser().exists():
        raise RequestError(
            f"{option} {data!r} is neither a file or folder nor a data source. Sources: torso datasets. Your own data: "
            "a folder of images, a .csv, .jsonl, .parquet or .npz file"
        )
    stock = take_stock(Path(data), Config.load(None, [text for text in sets if text.startswith("data.")]).data)
    return Config(**assign_all(fitting(stock, survey(stock.inventory)), sets))


def config_file(words: Sequence[str]) -> Path | None:
    """At most one CONFIG.toml."""
    if len(words) > 1:
        raise RequestError(f"torso advise takes one CONFIG.toml at most, found: {' '.join(words)}")
    if words and not words[0].endswith(".toml") and not Path(words[0]).is_file():
        raise RequestError(f"{words[0]!r} is no config file. Accepted: CONFIG.toml, or data by --data {words[0]}")
    if words:
        read_toml(Path(words[0]))
        return Path(words[0])
    return None
