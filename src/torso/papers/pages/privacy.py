"""The measured part of docs/privacy.md, made from docs/privacy/*.json and docs/privacy/audits/*.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from torso.config import Config
from torso.papers.experiments.datasets import caveats_of
from torso.papers.experiments.provenance import machines_and_versions
from torso.papers.experiments.result_files import Record
from torso.papers.pages.curves import by_setting
from torso.papers.pages.pretrained import network, point_of, spread, tried
from torso.papers.pretrained import records
from torso.papers.pretrained.answers import accuracies
from torso.papers.pretrained.definition import Evidence, load
from torso.papers.privacy.definition import AUDITS, FILE
from torso.report.charts.drawing import WIDTH, Dots, Line
from torso.report.charts.palette import series_role
from torso.report.charts.panels import Axis, End, Panel, Plot, room_for
from torso.report.charts.svg import standing_alone, to_svg
from torso.report.docs import table as markdown
from torso.report.summary import counted

FOLDER, PAGE = "privacy", "privacy.md"
BEGIN, END = "<!-- measured: begin (python -m torso.papers.docs) -->", "<!-- measured: end -->"
WHOLE, ALONE = "FedAvg: the whole model", "Local only: nothing"
ORDER = ("0", "2", "8", "∞")  # the values of ε, as pictures have them from left to right
MEASURES = {
    "personalized": "Personal accuracy: each client's own model, tuned on its own data, on its own test data",
    "generic": "Generic accuracy: the one model of all clients on the whole test set",
}
Audit = Mapping[str, Any]


class Cells:
    """The results on one data set, and their pictures."""

    def __init__(self, dataset: str, cells: Mapping[tuple[str, str], Record]) -> None:
        self.dataset, self.cells = dataset, cells  # by (label of the method, ε)
        self.labels = list(dict.fromkeys(label for label, _ in cells))
        self.pictures: dict[str, str] = {}

    def lines(self) -> Iterator[str]:
        yield f"### {self.dataset}"
        yield ""
        yield from self._setting()
        for measure, words in MEASURES.items():
            there = self._there(measure)
            rows: list[dict[str, object]] = [
                {
                    "method: what is shared": label,
                    **{f"ε = {e}": self._cell(label, e, measure) for e in reversed(there)},
                }
                for label in self._measured(measure)
            ]
            if rows:
                yield f"{words}, in %, mean ± standard deviation over seeds:"
                yield ""
                yield markdown(rows)
                yield ""
                yield from self._picture(measure, words, there)
        yield from self._differences()
        yield from self._choices()

    def _setting(self) -> Iterator[str]:
        config = next(iter(self.cells.values()))["config"]
        bodies = "; ".join(dict.fromkeys(network(cell["config"]) for cell in self.cells.values()))
        usual = Config().train
        samples = config.get("train.batch_size", usual.batch_size)
        epochs = config.get("train.local_epochs", usual.local_epochs)
        yield f"There are {config['data.clients']:,} clients with images of about two classes each. A client takes part"
        yield f"in a round with probability {config['train.fraction']:g}. It trains for {epochs} epochs with batches of"
        yield f"{samples}. Bodies: {bodies}."
        yield "ε = ∞: training without clip and noise. ε = 0: a client that shares nothing."
        yield ""

    def _values(self, label: str, epsilon: str, measure: str) -> list[float]:
        cell = self.cells.get((label, epsilon))
        return accuracies(cell, measure) if cell else []

    def _there(self, measure: str) -> list[str]:
        return [e for e in ORDER if any(self._values(label, e, measure) for label in self.labels)]

    def _measured(self, measure: str) -> list[str]:
        return [label for label in self.labels if any(self._values(label, e, measure) for e in ORDER)]

    def _cell(self, label: str, epsilon: str, measure: str) -> str:
        cell = self.cells.get((label, epsilon))
        return spread(self._values(label, epsilon, measure), len(cell["runs"])) if cell else "–"

    def _picture(self, measure: str, words: str, there: Sequence[str]) -> Iterator[str]:
        if len(there) < 2:
            return
        shown = self._measured(measure)
        values = {label.partition(":")[0]: [self._values(label, e, measure) for e in there] for label in shown}
        name, kind = f"{self.dataset.lower()}-{measure}", words.partition(":")[0].lower()
        about = f"{self.dataset}: {kind} against ε"
        self.pictures[name] = by_setting(values, [self.labels.index(label) for label in shown], there, about, "ε")
        yield f"![{about}]({FOLDER}/{name}.svg)"
        yield ""

    def _differences(self) -> Iterator[str]:
        """Sentences that compare personal accuracy with sharing a whole model at the same ε, and with sharing
        nothing."""
        alone = self._values(ALONE, "0", "personalized")
        for epsilon in ("8", "2"):
            found = {label: self._values(label, epsilon, "personalized") for label in self.labels}
            found = {label: values for label, values in found.items() if values}
            others = {label: values for label, values in found.items() if label != WHOLE}
            if others and WHOLE in found:
                yield f"- Personal accuracy at ε = {epsilon}, against FedAvg: {_points(others, found[WHOLE])}."
            if found and alone:
                yield f"- Personal accuracy at ε = {epsilon}, against sharing nothing: {_points(found, alone)}."
        yield ""

    def _choices(self) -> Iterator[str]:
        rows: list[dict[str, object]] = []
        for (label, epsilon), cell in self.cells.items():
            run = next(iter(cell["runs"].values()))
            spent = run.get("privacy", {})
            rows.append(
                {
                    "method": label.partition(":")[0],
                    "ε": epsilon,
                    "seeds": len(cell["runs"]),
                    "rounds": run["history"][-1][0] if "generic" in run["accuracy"] else cell["config"]["train.rounds"],
                    "δ": f"{spent['delta']:.2g}" if spent else "",
                    "noise": f"{spent['noise']:.3g}" if spent else "",
                    "chosen": point_of(cell.get("chosen", {})),
                    "tried: accuracy on validation data": ", ".join(tried(one) for one in cell["tuning"]),
                }
            )
        yield "The runs. Noise is the multiplier that the budget needs:"
        yield ""
        yield markdown(rows)
        yield ""


class Part:
    """The measured part of the page and its pictures. What has not been run is left out."""

    def __init__(self, cells: Mapping[str, Record], audits: Sequence[Audit], evidence: Evidence | None = None) -> None:
        self.known = evidence or load(FILE)
        found: dict[str, dict[tuple[str, str], Record]] = {}
        for method, planned in self.known.methods.items():
            for setting, dealt in self.known.settings.items():
                cell = cells.get(f"{setting}-{method}")
                if cell is not None and cell["runs"]:
                    found.setdefault(dealt.dataset, {})[planned.label, str(dealt.keys["epsilon"])] = cell
        self.datasets = [Cells(name, held) for name, held in sorted(found.items())]
        self.audits = sorted(audits, key=lambda one: (one["refuted"], one["claimed"], one["sees"]))
        self.pictures: dict[str, str] = {}

    def text(self) -> str:
        parts = (self._accuracy(), self._audits(), self._again())
        return "\n".join(line for part in parts for line in part).rstrip() + "\n"

    def _accuracy(self) -> Iterator[str]:
        yield "## What it costs, and what personal heads buy"
        yield ""
        if not self.datasets:
            yield "Nothing has been run yet."
            yield ""
            return
        for one in self.datasets:
            yield from one.lines()
            self.pictures |= one.pictures
        runs = [run for one in self.datasets for cell in one.cells.values() for run in cell["runs"].values()]
        files = dict.fromkeys(run["data"]["file"] for run in runs)
        yield from (f"- {text}" for text in (*self.known.caveats, *machines_and_versions(runs), *caveats_of(files)))
        yield ""

    def _audits(self) -> Iterator[str]:
        yield "## Audited"
        yield ""
        if not self.audits:
            yield "Nothing has been run yet."
            yield ""
            return
        first = self.audits[0]
        yield "An accountant proves an upper bound of ε, but a bug in the mechanism would not show. `torso audit` puts"
        yield "canaries into many runs: clients that send a random direction as long as the clip, or nothing. How well"
        yield "the two kinds can be distinguished bounds ε from below, and the noise from above."
        yield ""
        yield "<!-- not run: takes minutes -->"
        yield "```console"
        yield "$ torso audit fedbabu --set privacy.epsilon=8 --runs 256"
        yield "```"
        yield ""
        yield markdown([_row(found) for found in self.audits])
        yield ""
        self.pictures["audits"] = audited(self.audits)
        yield f"![Audited against claimed ε]({FOLDER}/audits.svg)"
        yield ""
        yield "- **ε ≥** is a lower bound at the same δ, whatever the noise is. A few canaries cannot prove a large ε"
        yield "  at a small δ. So this bound lies well below the claim, even if the claim is tight."
        yield "- **noise ≤** is an upper bound of the noise multiplier, with the ε that the accountant computes from"
        yield "  it. It assumes Gaussian noise on a Poisson sample and uses all δ. This bound finds wrong claims."
        yield f"- Both bounds hold together with a confidence of {first['confidence']:.0%}: Clopper and Pearson's"
        yield "  intervals on one half of the canaries, with thresholds from the other half."
        yield "- The canaries of a run count as independent, since they are drawn, sampled and directed independently."
        yield "  With several canaries in a run this is an assumption, because they share the run's noise."
        yield "  `--canaries 1` does not need it, and takes as many times more runs."
        yield from (f"- {text}" for text in _what_ran(self.audits))
        if any(found["refuted"] for found in self.audits):
            yield "- The refuted claim is wrong on purpose: it claims one and a half times the noise that the run adds."
        yield ""

    def _again(self) -> Iterator[str]:
        yield "### Run it again"
        yield ""
        yield "<!-- not run: needs data, and an accelerator -->"
        yield "```console"
        yield "$ bench/privacy.sh OUT 480 --data-root DIR"
        yield "$ python -m torso.papers.docs"
        yield "```"


def _points(values: Mapping[str, Sequence[float]], base: Sequence[float]) -> str:
    """`FedBABU +6.3, FedPer +14.9 points`: differences of the means over seeds."""
    said = [f"{label.partition(':')[0]} {fmean(own) - fmean(base):+.1f}" for label, own in values.items()]
    return f"{', '.join(said)} points"


def _row(found: Audit) -> dict[str, object]:
    claim, most = found["claim"], found["noise_at_most"]
    return {
        "claimed": f"ε ≤ {found['claimed']:.2f}",
        "δ": f"{claim['delta']:.1g}",
        "noise claimed": f"{claim['noise']:.3g}",
        "audited": f"ε ≥ {found['epsilon']:.2f}",
        "noise": "no bound" if most is None else f"≤ {most:.3g}: ε = {found['epsilon_of_noise']:.2f}",
        "sees": "every model" if found["sees"] == "all" else "the last model",
        "runs × canaries": f"{found['runs']} × {found['canaries']}",
        "verdict": "**refuted**" if found["refuted"] else "stands",
    }


def _what_ran(audits: Sequence[Audit]) -> list[str]:
    """What the audits ran: a line for each kind of run, with the noise that its rows of the table claim."""
    kinds: dict[tuple[str, str], list[Audit]] = {}
    for found in audits:
        run, claim = found["setting"], found["claim"]
        what = (
            f"{run['method']}, {run['model']} on {run['data']}, {run['clients']} clients, {claim['rounds']} rounds "
            f"with probability {claim['rate']:g}, {counted(run['parameters'], 'number')} that travel"
        )
        kinds.setdefault((what, f"{run['device']}, {{:.0f}} s for {found['runs']} runs"), []).append(found)
    rows = [", ".join(f"{found['claim']['noise']:g}" for found in some) for some in kinds.values()]
    several = [f" (noise claimed {noises})" if len(kinds) > 1 else "" for noises in rows]
    return [
        f"{what}{named}; {where.format(max(found['setting']['seconds'] for found in some))}."
        for ((what, where), some), named in zip(kinds.items(), several, strict=True)
    ]


def audited(audits: Sequence[Audit]) -> str:
    """An svg of audited against claimed ε. A point above the diagonal refutes the claim."""
    most = 1.1 * max(max(found["claimed"], found["epsilon_of_noise"]) for found in audits)
    names = ("claimed", "of the noise bound", "lower bound", "last model alone", "a wrong claim")
    panel = Panel(
        *(40, 30, WIDTH - room_for(names), 290, (0.0, most), (0.0, most)),
        across=Axis("claimed ε"),
        up=Axis("audited ε"),
        ends=[],
    )
    panel.add(Line([(0, 0), (most, most)], "faint", 1, (3.0, 3.0)))
    panel.ends.append(End(most, most, names[0], "muted"))
    right = [found for found in audits if not found["refuted"]]
    series = (
        [(found["claimed"], found["epsilon_of_noise"]) for found in right if found["sees"] == "all"],
        [(found["claimed"], found["epsilon"]) for found in right if found["sees"] == "all"],
        [(found["claimed"], found["epsilon_of_noise"]) for found in right if found["sees"] == "last"],
        [(found["claimed"], found["epsilon_of_noise"]) for found in audits if found["refuted"]],
    )
    for place, points in enumerate(series):
        if points:
            role, name = series_role(place), names[place + 1]
            panel.add(Line(points, role, 2), Dots([(x, y, f"{name}: {y:.2f}") for x, y in points], role, 3.4, 1))
            panel.ends.append(End(*points[-1], name, role))
    return standing_alone(to_svg(Plot(350, [panel]).drawing(), "Audited against claimed ε"), WIDTH, 350)


def read(folder: Path) -> Part:
    """The measured part, from the json files of a folder."""
    audits = [json.loads(path.read_text("utf-8")) for path in sorted((folder / AUDITS).glob("*.json"))]
    return Part(records.read(folder), audits)


def write(docs: Path) -> None:
    """Write the pictures, and the part between its marks in the page; at its end if the page has no marks yet."""
    page, folder = docs / PAGE, docs / FOLDER
    if not page.is_file():
        return
    part = read(folder)
    page.write_text(placed(page.read_text("utf-8"), part.text()), encoding="utf-8")
    folder.mkdir(exist_ok=True)
    for path in folder.glob("*.svg"):
        if path.stem not in part.pictures:
            path.unlink()
    for name, svg in part.pictures.items():
        (folder / f"{name}.svg").write_text(svg, encoding="utf-8")


def placed(page: str, part: str) -> str:
    """The page with the measured part made again."""
    before, begun, rest = page.partition(BEGIN)
    after = rest.partition(END)[2] if begun else "\n"
    return f"{before.rstrip()}\n\n{BEGIN}\n\n{part}\n{END}{after}"
