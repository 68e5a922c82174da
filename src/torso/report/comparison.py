"""Several runs as one comparison: grouped by experiment over seeds, and measured against a baseline."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from torso.errors import RequestError, did_you_mean
from torso.report import unheard
from torso.report.privacy import in_words
from torso.report.records import Record, Scores, find, names_apart, read
from torso.report.statistics import Difference, Refused, paired_difference

_HOW = {"workers", "checkpoint_every", "engine", "device", "clients_at_once", "compile", "seed", "ray"}
"""Keys of [run] that say how a run is computed, not what: runs that differ in them are the same experiment."""
_WHEN = {"every", "during", "names", "analyses", "analyses_every"}
"""Keys of [measure] that say what is measured and when; they do not change training."""
_NOT_DATA = {"augment", "normalize"}
"""Keys of [data] that change what a network sees of the same images."""

# measures that a comparison may be about first, in order of preference
HEADLINES = ("personalized", "personal", "initial", "generic_as_personal", "generic")
TITLES = {
    "initial": "initial",
    "personalized": "personalised",
    "without_head": "without head",
    "generic": "generic (G-FL)",
    "generic_as_personal": "generic (P-FL)",
    "personal": "personal (P-FL)",
    "id_before": "ID before",
    "ood_before": "OOD before",
    "id_after": "ID after",
    "ood_after": "OOD after",
    "new_before": "new clients before",
    "new_after": "new clients after",
    "local": "local model",
    "local_only": "trained alone",
    "local_only_best_on_test": "trained alone, best epoch on test data (not fair)",
    "benign": "benign clients",
    "ece_initial": "calibration error, initial",
    "ece_personalized": "calibration error, personalised",
    "ece_generic": "calibration error, generic",
}


def title_of(measure: str) -> str:
    """A measure's name as tables and charts show it."""
    if measure.startswith("personalized@"):
        return f"personalised, {measure.partition('@')[2]} epochs"
    return TITLES.get(measure, measure.replace("_", " "))


def scale_of(measure: str) -> str:
    """The axis label of a measure."""
    return title_of(measure) if measure.startswith("ece_") else f"{title_of(measure)} accuracy"


@dataclass(frozen=True)
class Entry:
    """One experiment with its runs, one for each seed."""

    label: str
    place: int  # position among the entries; it chooses the colour
    runs: tuple[Record, ...]

    @cached_property
    def good(self) -> tuple[Record, ...]:
        """The runs that ended well. Only their numbers count."""
        return tuple(run for run in self.runs if run.ok)

    @property
    def failed(self) -> int:
        return len(self.runs) - len(self.good)

    @property
    def measures(self) -> list[str]:
        """The measures that at least one good run has."""
        return list(dict.fromkeys(name for run in self.good for name in run.accuracy))

    def by_seed(self, measure: str) -> dict[int, Scores]:
        return {
            run.seed: run.accuracy[measure] for run in self.good if measure in run.accuracy and run.seed is not None
        }

    def pooled(self, measure: str) -> Scores | None:
        """Scores over the clients of all seeds together; over seeds if the measure has no clients."""
        found = [run.accuracy[measure] for run in self.good if measure in run.accuracy]
        values = [v for scores in found for v in (scores.clients or (scores.mean,))]
        return Scores.of(values) if values else None

    def average(self, amounts: Iterable[float | None]) -> float | None:
        known = [amount for amount in amounts if amount is not None]
        return sum(known) / len(known) if known else None

    @property
    def megabytes(self) -> float | None:
        return self.average(run.megabytes for run in self.good)

    @property
    def seconds(self) -> float | None:
        return self.average(run.seconds("total") for run in self.good)


@dataclass(frozen=True)
class Comparison:
    """Entries and the one that the others are compared with."""

    entries: tuple[Entry, ...]
    baseline: Entry

    @property
    def runs(self) -> list[Record]:
        return [run for entry in self.entries for run in entry.runs]

    @cached_property
    def measures(self) -> list[str]:
        """All measures: first those of TITLES in its order, then others. Without sweeps of epochs (`name@E`), which a
        chart shows."""
        found = dict.fromkeys(name for entry in self.entries for name in entry.measures if "@" not in name)
        return sorted(found, key=lambda name: list(TITLES).index(name) if name in TITLES else len(TITLES))

    @cached_property
    def headline(self) -> str | None:
        """The measure that the page puts first: of those that the most entries have, the first of HEADLINES."""
        counts = {name: sum(name in entry.measures for entry in self.entries) for name in self.measures}
        most = max(counts.values(), default=0)
        order = [*(name for name in HEADLINES if counts.get(name) == most), *counts]
        return order[0] if order else None

    def difference(self, entry: Entry, measure: str, baseline: Entry | None = None) -> Difference | Refused:
        """The paired difference of an entry to the baseline, or the reason why there is none (e.g. different data)."""
        other = baseline or self.baseline
        ours, theirs = entry.by_seed(measure), other.by_seed(measure)
        if not ours or not theirs:
            return Refused("not measured")
        pairs = [(a, b) for a in entry.good for b in other.good if a.seed == b.seed]
        for a, b in pairs:
            if why := data_differ(a, b):
                return Refused(why)
        return paired_difference(ours, theirs)

    def notes(self) -> list[str]:
        """What a reader must know before reading the numbers: failures, unreadable files, different data, privacy."""
        odd = [*_failures(self.entries), *_problems(self.entries), *_strangers(self)]
        untrained = [f"{each.label}: {said}" for each in self.entries if (said := unheard.in_words(each.good))]
        return [*odd, *untrained, *_private(self.entries)]


def _private(entries: Sequence[Entry]) -> list[str]:
    """The privacy cost of each private entry. Seeds with the same numbers share a sentence."""
    found = [(entry, [in_words(run.result.get("privacy")) for run in entry.runs]) for entry in entries]
    if not any(words for _, each in found for words in each):
        return []
    said = [f"{entry.label}: private, {words}." for entry, each in found for words in dict.fromkeys(each) if words]
    return [*said, "ε covers what clients send. Losses, accuracies and personal models are computed without noise."]


def compare_records(records: Sequence[Record], baseline: str | None = None) -> Comparison:
    """Records grouped and labelled, with a baseline: the one asked for, else fedavg, else the first that succeeded."""
    entries = _entries(records)
    return Comparison(entries, _baseline(entries, baseline))


def compare_folders(paths: Iterable[str | Path], baseline: str | None = None) -> Comparison:
    """The comparison of all runs in these folders."""
    return compare_records([read(folder) for folder in find(paths)], baseline)


def relabelled(comparison: Comparison, labels: Mapping[str, str]) -> Comparison:
    """The comparison with new labels for some entries. `labels`: an old label, or a method that only one entry has →
    the new label."""
    known = [entry.label for entry in comparison.entries]
    methods = [entry.runs[0].method for entry in comparison.entries]
    for name in labels:
        if name not in known and methods.count(name) != 1:
            raise RequestError(
                f"--labels {name!r} is not among the runs{did_you_mean(name, known)} Accepted: {', '.join(known)}"
            )
    entries = tuple(
        replace(entry, label=labels.get(entry.label, labels.get(method, entry.label)))
        for entry, method in zip(comparison.entries, methods, strict=True)
    )
    return Comparison(entries, entries[comparison.entries.index(comparison.baseline)])


def _baseline(entries: Sequence[Entry], asked: str | None) -> Entry:
    if asked is not None:
        for entry in entries:
            if asked in (entry.label, entry.runs[0].method):
                return entry
        labels = [entry.label for entry in entries]
        raise RequestError(
            f"--baseline {asked!r} is not among the runs{did_you_mean(asked, labels)} Accepted: {', '.join(labels)}"
        )
    good = [entry for entry in entries if entry.good] or list(entries)
    return next((entry for entry in good if entry.runs[0].method == "fedavg"), good[0])


def _entries(records: Sequence[Record]) -> tuple[Entry, ...]:
    groups: dict[tuple[str, int], list[Record]] = {}  # by experiment and repetition
    for record in records:
        experiment, repetition = _experiment(record), 0
        while any(run.seed == record.seed for run in groups.get((experiment, repetition), ())):
            repetition += 1  # the same experiment and seed again gets its own row
        groups.setdefault((experiment, repetition), []).append(record)
    labels = _labels([group[0] for group in groups.values()])
    return tuple(
        Entry(label, place, tuple(group))
        for place, (label, group) in enumerate(zip(labels, groups.values(), strict=True))
    )


def _experiment(record: Record) -> str:
    """A key that all seeds of one experiment share."""
    if not record.config:
        return f"{record.method} {record.folder}"
    tree = {name: dict(part) if isinstance(part, dict) else part for name, part in record.config.items()}
    for section, free in (("run", _HOW), ("measure", _WHEN)):
        if isinstance(tree.get(section), dict):
            tree[section] = {key: value for key, value in tree[section].items() if key not in free}
    return json.dumps([record.method, tree], sort_keys=True, default=str)


def _labels(firsts: Sequence[Record]) -> list[str]:
    """The method's name; if several rows have it, also the config keys that differ, or the folder."""
    labels = []
    for record in firsts:
        alike = [other for other in firsts if other.method == record.method]
        if len(alike) == 1:
            labels.append(record.method)
            continue
        keys = differing_keys(alike)[:2]
        mine = flat(record.config)
        labels.append(f"{record.method} ({', '.join(f'{key}={mine.get(key)}' for key in keys) or record.name})")
    names = names_apart([record.folder for record in firsts])
    return [
        label if labels.count(label) == 1 else f"{label} [{name}]" for label, name in zip(labels, names, strict=True)
    ]


def differing_keys(records: Sequence[Record]) -> list[str]:
    """Config keys whose value is not the same in all runs. Seeds and how runs were computed are left out."""
    trees = [flat(record.config) for record in records if record.config]
    keys = dict.fromkeys(key for tree in trees for key in tree)
    free = {f"run.{key}" for key in _HOW} | {f"measure.{key}" for key in _WHEN}
    compared = [key for key in keys if key not in free and not key.startswith("run.ray.")]
    return [key for key in compared if len({json.dumps(t.get(key), default=str) for t in trees}) > 1]


def flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A nested config as one dict with dotted keys, such as `train.lr`."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return found


def data_differ(a: Record, b: Record) -> str:
    """The reason why the clients of two runs cannot be paired; "" if they can."""
    if a is b:
        return ""
    if not a.config or not b.config:
        return "a config.toml is missing, so the data may differ"
    for what, mine, other in (
        ("dataset", a.result.get("dataset"), b.result.get("dataset")),
        ("measure.clients", a.setting("measure.clients"), b.setting("measure.clients")),
        ("measure.among", a.setting("measure.among", "all"), b.setting("measure.among", "all")),
    ):
        if mine != other:
            return f"different data: {what} is {mine} and {other}"
    counts = a.analyses.get("class_counts"), b.analyses.get("class_counts")
    if None not in counts and counts[0] != counts[1]:
        return "different data: the clients hold other classes"
    free = _NOT_DATA | ({"root"} if None not in counts else set())
    left, right = (flat({k: v for k, v in r.setting("data", {}).items() if k not in free}) for r in (a, b))
    for key in left.keys() | right.keys():
        if left.get(key) != right.get(key):
            return f"different data: data.{key} is {left.get(key)} and {right.get(key)}"
    return ""


def _failures(entries: Sequence[Entry]) -> list[str]:
    return [
        f"{entry.label}, seed {run.seed}: {run.status}. Its numbers are left out."
        for entry in entries
        for run in entry.runs
        if not run.ok and run.status != "unfinished"
    ]


def _problems(entries: Sequence[Entry]) -> list[str]:
    return [
        f"{entry.label}{'' if run.seed is None else f', seed {run.seed}'} ({run.name}): {problem}."
        for entry in entries
        for run in entry.runs
        for problem in run.problems
    ]


def _strangers(comparison: Comparison) -> list[str]:
    """A note for each entry whose clients are not the baseline's."""
    found = []
    for entry in comparison.entries:
        reasons = {data_differ(a, b) for a in entry.good for b in comparison.baseline.good if a.seed == b.seed} - {""}
        if reasons:
            found.append(
                f"{entry.label} and {comparison.baseline.label} did not have the same clients "
                f"({sorted(reasons)[0]}): both are shown, but no difference is tested."
            )
    return found


def share_below(ours: Sequence[float], theirs: Sequence[float]) -> tuple[int, int, int]:
    """How many clients (lose, stay equal, gain) from `theirs` to `ours`, of those measured in both."""
    both = [(a, b) for a, b in zip(ours, theirs, strict=True) if not (math.isnan(a) or math.isnan(b))]
    lose, gain = sum(a < b for a, b in both), sum(a > b for a, b in both)
    return lose, len(both) - lose - gain, gain
