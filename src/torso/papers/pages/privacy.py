"""The measured part of docs/privacy.md, made from docs/privacy/*.json and docs/privacy/audits/*.json."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

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
ORDER = ("0", "2", "8", "∞")  # of ε in pictures
MEASURES = {
    "personalized": "Personal accuracy: each client's own model, tuned on its own data, on its own test data",
    "generic": "Generic accuracy: the one model of all clients on the whole test set",
}
Audit = Mapping[str, Any]


class Part:
    """The measured part and its pictures; what has not been run is left out."""

    def __init__(self, cells: Mapping[str, Record], audits: Sequence[Audit], evidence: Evidence | None = None) -> None:
        self.known = evidence or load(FILE)
        settings, methods = self.known.settings, self.known.methods
        self.cells: dict[tuple[str, str], Record] = {}  # by (label of the method, ε)
        for method, planned in methods.items():
            for setting, dealt in settings.items():
                cell = cells.get(f"{setting}-{method}")
                if cell is not None and cell["runs"]:
                    self.cells[planned.label, str(dealt.keys["epsilon"])] = cell
        self.labels = list(dict.fromkeys(label for label, _ in self.cells))
        self.audits = sorted(audits, key=lambda found: (found["refuted"], found["claimed"]))
        self.pictures: dict[str, str] = {}

    def text(self) -> str:
        parts = (self._accuracy(), self._audits(), self._again())
        return "\n".join(line for part in parts for line in part).rstrip() + "\n"

    def _accuracy(self) -> Iterator[str]:
        yield "## What it costs, and what personal heads buy"
        yield ""
        if not self.cells:
            yield "Nothing has been run yet."
            yield ""
            return
        yield from self._setting()
        for measure, words in MEASURES.items():
            there = [e for e in reversed(ORDER) if any(self._values(label, e, measure) for label in self.labels)]
            rows: list[dict[str, object]] = [
                {"method: what is shared": label, **{f"ε = {e}": self._cell(label, e, measure) for e in there}}
                for label in self.labels
                if any(self._values(label, e, measure) for e in there)
            ]
            if not rows:
                continue
            yield f"{words}, in %, mean ± standard deviation over seeds:"
            yield ""
            yield markdown(rows)
            yield ""
            yield from self._picture(measure, words)
        yield from self._noise()
        yield from self._caveats()

    def _setting(self) -> Iterator[str]:
        config = next(iter(self.cells.values()))["config"]
        usual = config.get("train.rounds")
        bodies = "; ".join(dict.fromkeys(network(cell["config"]) for cell in self.cells.values()))
        yield f"CIFAR-10 dealt to {config['data.clients']:,} clients, each of which takes part in a round with chance"
        yield f"{config['train.fraction']:g}. Bodies: {bodies}. ε = ∞ is training without clip and noise, ε = 0 is a"
        yield "client that shares nothing. " + ("Rounds, noise and clip are in the table below." if usual else "")
        yield ""

    def _values(self, label: str, epsilon: str, measure: str) -> list[float]:
        cell = self.cells.get((label, epsilon))
        return accuracies(cell, measure) if cell else []

    def _cell(self, label: str, epsilon: str, measure: str) -> str:
        cell = self.cells.get((label, epsilon))
        return spread(self._values(label, epsilon, measure), len(cell["runs"])) if cell else "–"

    def _picture(self, measure: str, words: str) -> Iterator[str]:
        there = [e for e in ORDER if any(self._values(label, e, measure) for label in self.labels)]
        values = {
            label.partition(":")[0]: [self._values(label, e, measure) for e in there]
            for label in self.labels
            if any(self._values(label, e, measure) for e in there)
        }
        places = [place for place, label in enumerate(self.labels) if label.partition(":")[0] in values]
        if len(there) > 1:
            about = f"{words.partition(':')[0]} against ε"
            self.pictures[f"accuracy-{measure}"] = by_setting(values, places, there, about, "ε")
            yield f"![{about}]({FOLDER}/accuracy-{measure}.svg)"
            yield ""

    def _noise(self) -> Iterator[str]:
        rows: list[dict[str, object]] = []
        for (label, epsilon), cell in self.cells.items():
            run = next(iter(cell["runs"].values()))
            spent = run.get("privacy", {})
            rows.append(
                {
                    "method": label.partition(":")[0],
                    "ε": epsilon,
                    "seeds": len(cell["runs"]),
                    "rounds": run["history"][-1][0] if run["history"] else cell["config"].get("train.rounds", ""),
                    "δ": f"{spent['delta']:.2g}" if spent else "",
                    "noise": f"{spent['noise']:.3g}" if spent else "",
                    "chosen on validation data": point_of(cell.get("chosen", {})),
                    "tried: accuracy": ", ".join(tried(one) for one in cell["tuning"]),
                }
            )
        yield "What was run:"
        yield ""
        yield markdown(rows)
        yield ""

    def _caveats(self) -> Iterator[str]:
        runs = [run for cell in self.cells.values() for run in cell["runs"].values()]
        files = dict.fromkeys(run["data"]["file"] for run in runs)
        said = (*self.known.caveats, *machines_and_versions(runs), *caveats_of(files))
        yield from (f"- {text}" for text in said)
        yield ""

    def _audits(self) -> Iterator[str]:
        yield "## Audited"
        yield ""
        if not self.audits:
            yield "Nothing has been run yet."
            yield ""
            return
        first = self.audits[0]
        yield "An accountant proves that ε is at most so large; a bug in the mechanism would not show. `torso audit`"
        yield "puts canaries into many runs: clients that send a random direction as long as the clip, or nothing. How"
        yield "well the two kinds can be told apart bounds ε from below, and the noise from above."
        yield ""
        yield markdown([_row(found) for found in self.audits])
        yield ""
        self.pictures["audits"] = audited(self.audits)
        yield f"![Audited against claimed ε]({FOLDER}/audits.svg)"
        yield ""
        yield "- ε ≥: a lower bound at the same δ that assumes nothing of the mechanism. Few canaries cannot prove a"
        yield "  large ε at a small δ: so it lies well below the claim even where that is tight."
        yield "- noise ≤: an upper bound of the noise multiplier. It assumes Gaussian noise on a Poisson sample and"
        yield "  looks at all δ. Beside it: what the accountant says of that much noise. This one catches wrong claims."
        yield f"- Both bounds hold together with a confidence of {first['confidence']:.0%}: Clopper and Pearson's"
        yield "  intervals on one half of the canaries, thresholds from the other. The canaries of one run count as"
        yield "  independent: they are drawn, sampled and directed independently."
        yield f"- {_what(first)}"
        if any(found["refuted"] for found in self.audits):
            yield "- The refuted claim is wrong on purpose: it counts half as much noise again as the run adds."
        yield ""

    def _again(self) -> Iterator[str]:
        yield "### Run it again"
        yield ""
        yield "<!-- not run: needs data, and an accelerator -->"
        yield "```console"
        yield "$ bench/privacy.sh OUT 480 --data-root DIR"
        yield "$ python -m torso.papers.docs"
        yield "```"


def _row(found: Audit) -> dict[str, object]:
    claim, most = found["claim"], found["noise_at_most"]
    return {
        "claimed": f"ε ≤ {found['claimed']:.2f}",
        "δ": f"{claim['delta']:.1g}",
        "noise claimed": f"{claim['noise']:.3g}",
        "audited": f"ε ≥ {found['epsilon']:.2f}",
        "noise": "any" if most is None else f"≤ {most:.3g}: ε = {found['epsilon_of_noise']:.2f}",
        "sees": "every model" if found["sees"] == "all" else "the last model",
        "runs × canaries": f"{found['runs']} × {found['canaries']}",
        "verdict": "**refuted**" if found["refuted"] else "stands",
    }


def _what(found: Audit) -> str:
    run, claim = found["setting"], found["claim"]
    return (
        f"{run['method']}, {run['model']} on {run['data']}, {run['clients']} clients, {claim['rounds']} rounds with "
        f"chance {claim['rate']:g}, {counted(run['parameters'], 'number')} that travel; {run['device']}, "
        f"{run['seconds']:.0f} s for {found['runs']} runs."
    )


def audited(audits: Sequence[Audit]) -> str:
    """Claimed ε across, audited ε up; what lies above the diagonal refutes the claim."""
    most = 1.1 * max(max(found["claimed"], found["epsilon_of_noise"]) for found in audits)
    names = ("claimed", "of the noise bound", "lower bound")
    panel = Panel(
        *(40, 30, WIDTH - room_for(names), 290, (0.0, most), (0.0, most)),
        across=Axis("claimed ε"),
        up=Axis("audited ε"),
        ends=[],
    )
    panel.add(Line([(0, 0), (most, most)], "faint", 1, (3.0, 3.0)))
    panel.ends.append(End(most, most, names[0], "muted"))
    right = [found for found in audits if not found["refuted"]]
    for place, key in ((0, "epsilon_of_noise"), (1, "epsilon")):
        role, name = series_role(place), names[1 + place]
        points = [(found["claimed"], found[key]) for found in right]
        if points:
            panel.add(Line(points, role, 2), Dots([(x, y, f"{name}: {y:.2f}") for x, y in points], role, 3.4, 1))
            panel.ends.append(End(*points[-1], name, role))
    for found in audits:
        if found["refuted"]:
            x, y = found["claimed"], max(found["epsilon_of_noise"], found["epsilon"])
            panel.add(Dots([(x, y, f"refuted: {y:.2f} above the claim {x:.2f}")], series_role(3), 4.2, 1))
            panel.ends.append(End(x, y, "a wrong claim", series_role(3)))
    return standing_alone(to_svg(Plot(350, [panel]).drawing(), "Audited against claimed ε"), WIDTH, 350)


def read(folder: Path) -> Part:
    audits = [json.loads(path.read_text("utf-8")) for path in sorted((folder / AUDITS).glob("*.json"))]
    return Part(records.read(folder), audits)


def write(docs: Path) -> None:
    """Write the part between its marks, at the end of the page where it has none yet, and the pictures."""
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
    before, begun, rest = page.partition(BEGIN)
    after = rest.partition(END)[2] if begun else "\n"
    return f"{before.rstrip()}\n\n{BEGIN}\n\n{part}\n{END}{after}"
