"""Run folders read for reports. Whatever can be read is taken; everything else becomes a sentence in `problems`.

Nothing here loads torch. A file that is missing, cut short or from another version raises no error: the `Record` lists
it in its `problems`, which reports show with the numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from torso.errors import RequestError
from torso.reading import parse_json, parse_toml
from torso.results.history import HISTORY, read_lines
from torso.results.seal import WAY_OUT, damage

_QUANTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class Scores:
    """One measure in percent: over clients, or a single number if the measure has no clients."""

    mean: float
    std: float
    n: int
    clients: tuple[float, ...] = ()  # NaN: this client has no samples to measure on
    quantiles: tuple[float, ...] = ()  # 5, 25, 50, 75, 95 %, over clients

    @classmethod
    def of(cls, values: Sequence[float]) -> Scores:
        """Mean, population std (spec 9.1) and quantiles over clients; NaN values are left out."""
        known = np.array([v for v in values if not math.isnan(v)])
        if not len(known):
            return cls(math.nan, math.nan, 0, tuple(values))
        quantiles = tuple(float(q) for q in np.percentile(known, _QUANTILES))
        return cls(float(known.mean()), float(known.std()), len(known), tuple(values), quantiles)

    @classmethod
    def parse(cls, found: Any) -> Scores | None:
        """Scores from the JSON that a run writes; None for anything else."""
        try:
            clients = tuple(_percent(v) for v in found.get("clients", ()))
            if clients:
                return cls.of(clients)
            quantiles = tuple(_percent(v) for v in found.get("quantiles") or ())
            mean, std, n = _percent(found["mean"]), _number(found.get("std", 0.0)), int(found.get("n", 1))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            return None
        return cls(mean, std, n, (), quantiles if len(quantiles) == len(_QUANTILES) else ())

    @property
    def known(self) -> bool:
        return not math.isnan(self.mean)

    @property
    def band(self) -> tuple[float, float]:
        """The middle half of the clients (25 to 75 %); mean ± std if the run wrote no quantiles."""
        if self.quantiles:
            return self.quantiles[1], self.quantiles[3]
        return max(0.0, self.mean - self.std), min(100.0, self.mean + self.std)


def _number(value: Any) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is not a number")
    return float(value)


def _percent(value: Any) -> float:
    found = _number(value)
    if found < -1e-3 or found > 100.001:
        raise ValueError(f"{found} is no percentage")
    return found


FILE_FORMAT_SOURCES = ("csv", "folder", "jsonl", "npz", "parquet")
"""Data sources that are named after a file format, so their name does not say which data were used."""


@dataclass(frozen=True)
class Record:
    """What was read of one run folder."""

    folder: Path
    method: str
    seed: int | None
    status: str  # "ok", "failed: …" or "unfinished"
    accuracy: Mapping[str, Scores]
    config: Mapping[str, Any] = field(default_factory=dict)
    history: tuple[Mapping[str, Any], ...] = ()
    result: Mapping[str, Any] = field(default_factory=dict)
    analyses: Mapping[str, Any] = field(default_factory=dict)
    federation: Mapping[str, Any] = field(default_factory=dict)  # federation.json of a run on real machines
    problems: tuple[str, ...] = ()  # a sentence for each thing that could not be read

    @property
    def ok(self) -> bool:
        return self.status == "ok"

    @property
    def name(self) -> str:
        return self.folder.name or str(self.folder)

    @property
    def megabytes(self) -> float | None:
        """Megabytes sent in both directions in the whole run; None if they are unknown."""
        both = [self.cost(key) for key in ("bytes_up", "bytes_down")]
        return None if both[0] is None or both[1] is None else (both[0] + both[1]) / 1e6

    def cost(self, key: str) -> float | None:
        return _amount(self.result.get("cost"), key)

    def seconds(self, key: str) -> float | None:
        return _amount(self.result.get("seconds"), key)

    def setting(self, key: str, default: Any = None) -> Any:
        """The value of a config key, as in `setting("train.lr")`."""
        return _within(self.config, *key.split("."), default=default)

    @property
    def is_federation(self) -> bool:
        """Whether the run was on real machines. Then the data section of its config does not describe clients' data."""
        return bool(self.setting("run.engine") == "flower")

    @property
    def clients(self) -> int:
        """The number of clients, including those that came later; 0 if the folder does not say."""
        names = self.result.get("names", ())
        planned = 0 if self.is_federation else self.setting("data.clients")
        if isinstance(planned, int) and planned:
            return planned
        return len(names) if isinstance(names, list) else 0

    @property
    def came_later(self) -> int:
        """The number of a federation's clients that came after training had begun. They do not train."""
        late = _within(self.federation, "agreement", "newcomers", default=())
        return len(late) if isinstance(late, list) else 0

    @property
    def dataset(self) -> str:
        """The name of the data: the data source, or the file or folder that the source read."""
        source, found = self.setting("data.source"), self.result.get("dataset", "?")
        if self.is_federation and found == "federation":  # the clients' files have no common name
            return "a federation"
        return str(found if self.is_federation or source in (None, *FILE_FORMAT_SOURCES) else source)

    def client_names(self, count: int) -> list[str | int]:
        """The names of `count` clients; their numbers if they have no names."""
        return _words(self.result.get("names"), count)

    def class_names(self, count: int) -> list[str | int]:
        """The names of `count` classes; their numbers if they have no names."""
        return _words(self.result.get("class_names"), count)

    @property
    def rounds(self) -> int | None:
        """The planned number of rounds, from result.json, else from the config."""
        found = self.result.get("rounds", self.setting("train.rounds"))
        return found if isinstance(found, int) else None

    @property
    def toml(self) -> str:
        """The text of config.toml; "" if it cannot be read."""
        try:
            return (self.folder / "config.toml").read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return ""


def _words(found: Any, count: int) -> list[str | int]:
    """`found` if it is a list of `count` names, else the numbers from 0."""
    named = isinstance(found, list) and len(found) == count and all(isinstance(word, str) for word in found)
    return list(found) if named else list(range(count))


def _within(tree: Any, *path: str, default: Any = None) -> Any:
    """The value at a path of keys in a tree; the default if the path ends early."""
    for key in path:
        if not isinstance(tree, Mapping) or key not in tree:
            return default
        tree = tree[key]
    return tree


def _amount(tree: Any, key: str) -> float | None:
    found = tree.get(key) if isinstance(tree, Mapping) else None
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def is_run(folder: Path) -> bool:
    """Whether a folder is a run folder."""
    return (folder / "config.toml").is_file() or (folder / "result.json").is_file()


def find(paths: Iterable[str | Path]) -> list[Path]:
    """The run folders among the paths, and one or two levels below other paths, each once, in order."""
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            what = "is a file" if path.exists() else "does not exist"
            raise RequestError(f"{str(path)!r} {what}. Give run folders, or a folder that contains run folders.")
        below = [path] if is_run(path) else below_of(path)
        if not below:
            raise RequestError(
                f"{str(path)!r} is not a run folder and contains none (a run has config.toml and result.json). "
                "Give run folders, or a folder that contains run folders, such as runs/compare-1."
            )
        found |= {folder.resolve(): folder for folder in below if folder.resolve() not in found}
    return list(found.values())


def below_of(path: Path) -> list[Path]:
    """The run folders one or two levels below a folder."""
    found = []
    for child in sorted(p for p in path.iterdir() if p.is_dir() and not p.name.startswith(".")):
        if is_run(child):
            found.append(child)
        else:
            found += sorted(p for p in child.iterdir() if p.is_dir() and is_run(p))
    return found


def read(folder: Path) -> Record:
    """The record of a run folder: everything that can be read, and a sentence for everything that cannot."""
    problems: list[str] = []
    config = _read_config(folder, problems)
    result = _read_json(folder / "result.json", problems, "unfinished: there is no result.json yet")
    history = _read_history(folder, problems)
    analyses = _read_json(folder / "analyses.json", problems, "")
    federation = _read_json(
        folder / "federation.json", problems, "", sealed=False
    )  # not sealed: it changes when models are handed out
    said = result.get("status")
    status = said if isinstance(said, str) else "unfinished"
    method = result.get("method", _within(config, "method", "name"))
    seed = result.get("seed", _within(config, "run", "seed"))
    if result and not history and result.get("rounds") != 0:
        problems.append("there is no history: curves over rounds leave this run out")
    elif status == "ok" and isinstance(result.get("rounds"), int) and history[-1:] and result["rounds"]:
        last = history[-1]["round"]
        if last < result["rounds"]:
            problems.append(f"history.jsonl ends at round {last} of {result['rounds']}")
    return Record(
        folder=folder,
        method=str(method) if method is not None else folder.name,
        seed=seed if isinstance(seed, int) else None,
        status=status,
        accuracy=_read_accuracy(result, problems),
        config=config,
        history=history,
        result=result,
        analyses=analyses,
        federation=federation,
        problems=tuple(problems),
    )


def _read_config(folder: Path, problems: list[str]) -> dict[str, Any]:
    try:
        return parse_toml((folder / "config.toml").read_text(encoding="utf-8"))
    except FileNotFoundError:
        problems.append("there is no config.toml: only result.json says what this run was")
    except (OSError, ValueError) as error:
        problems.append(f"config.toml cannot be read: {error}")
    return {}


def _read_json(path: Path, problems: list[str], if_missing: str, *, sealed: bool = True) -> dict[str, Any]:
    if sealed and (wrong := damage(path.parent, path.name)):
        problems.append(f"{path.name} {wrong}. It is left out. {WAY_OUT}")
        return {}
    try:
        tree = parse_json(path.read_text(encoding="utf-8"))
        if isinstance(tree, dict):
            return tree
        problems.append(f"{path.name} is not a JSON object: it is left out")
    except FileNotFoundError:
        if if_missing:
            problems.append(if_missing)
    except (OSError, ValueError) as error:
        problems.append(f"{path.name} cannot be read ({error}): it is left out")
    return {}


def _read_history(folder: Path, problems: list[str]) -> tuple[Mapping[str, Any], ...]:
    """The rounds of the history, up to the first broken line."""
    try:
        lines = read_lines(folder)
    except OSError:
        return ()
    found: list[Mapping[str, Any]] = []
    for line in lines:
        if line.round is None:
            after = found[-1]["round"] if found else 0
            what = f"line {line.number} {line.wrong}"
            problems.append(f"{HISTORY} is broken after round {after} ({what}): the rest of it is left out")
            break
        found.append(line.round)
    else:
        if wrong := damage(folder, HISTORY):
            problems.append(f"{HISTORY} {wrong}. It is left out. {WAY_OUT}")
            return ()
    measured = [
        scores for line in found if isinstance(line.get("accuracy"), dict) for scores in line["accuracy"].values()
    ]
    if any(Scores.parse(scores) is None for scores in measured):
        problems.append("history.jsonl has accuracies that are not percentages: they are left out")
    return tuple(found)


def _read_accuracy(result: Mapping[str, Any], problems: list[str]) -> dict[str, Scores]:
    found = result.get("accuracy", {})
    if not isinstance(found, Mapping):
        problems.append("result.json: accuracy is not a JSON object")
        return {}
    parsed = {str(name): Scores.parse(scores) for name, scores in found.items()}
    for name, scores in parsed.items():
        if scores is None:
            problems.append(f"result.json: accuracy of {name} cannot be read")
        elif not scores.known:
            problems.append(f"{name}: no client has samples to measure it on")
    return {name: scores for name, scores in parsed.items() if scores is not None and scores.known}


def names_apart(folders: Sequence[Path]) -> list[str]:
    """The shortest name of each folder that tells it from the others: its own name, if needed with its parents."""
    return [_apart(folder, [other for other in folders if other != folder]) for folder in folders]


def _apart(folder: Path, others: Sequence[Path]) -> str:
    for count in range(1, len(folder.parts) + 1):
        tail = folder.parts[-count:]
        if all(other.parts[-count:] != tail for other in others):
            return Path(*tail).as_posix()
    return str(folder)
