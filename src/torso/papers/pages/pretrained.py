"""docs/pretrained.md, made from docs/pretrained/*.json: FedNCM's methods on bodies that were trained on other data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from torso.config import Config
from torso.papers.experiments.datasets import caveats_of
from torso.papers.experiments.provenance import machines_and_versions
from torso.papers.experiments.result_files import Record
from torso.papers.pages.curves import by_setting, curve, over_everything
from torso.papers.pretrained import records
from torso.papers.pretrained.answers import accuracies, mean_over_seeds, published
from torso.papers.pretrained.definition import Evidence, Setting, load
from torso.report.docs import table as markdown
from torso.report.summary import counted

FOLDER, PAGE = "pretrained", "pretrained.md"
DRAWN = {"FedNCM": 0, "LP": 1, "FT": 2, "FedNCM+FT": 3, "Random": 4}  # methods in pictures → place of their colour
THEIRS = ("SqueezeNet", "ResNet18")  # the paper's bodies
Cells = Mapping[str, Record]

_HEAD = """# Bodies trained elsewhere

FedNCM (Legate et al. 2023) asks how a federation should use a body that was trained on other data. It compares:

- **FedNCM**: makes the head from class means, in one exchange.
- **LP**: trains the head alone.
- **FT**: trains everything.
- **FedNCM+FT**: starts FT at FedNCM's head.

This page has their results with pre-trained bodies, beside the paper's numbers. [Do the papers' claims \
hold?](reproduction/claims.md) has the verdicts.
"""
_AGAIN = """## Run it again

<!-- not run: needs data, and an accelerator -->
```console
$ python -m torso.papers.pretrained --data-root DIR --seconds 500
$ python -m torso.papers.docs
```

The first command runs the blocks of `src/torso/papers/pretrained/pretrained.toml` in their order until time is up. \
The same command continues where it stopped. Every method in a setting has a json file in `docs/pretrained`. It has \
the config, the rates that were tried, and for each seed the accuracy over rounds, bytes, forward passes, versions, \
machine, and the SHA-256 of the data. The second command makes this page from them.
"""


class Page:
    """The page and its pictures. A section in which nothing has been run is left out."""

    def __init__(self, cells: Cells, evidence: Evidence | None = None) -> None:
        self.known = evidence or load()
        run = {name: cell for name, cell in cells.items() if cell["runs"]}
        found = {(cell["setting"], cell["method"]): cell for cell in run.values()}
        places = [(setting, method) for setting in self.known.settings for method in self.known.methods]
        self.cells = {place: found[place] for place in places if place in found}
        self.settings = {n: s for n, s in self.known.settings.items() if any(n == at for at, _ in self.cells)}
        self.pictures: dict[str, str] = {}

    def text(self) -> str:
        if not self.cells:
            return "\n".join([_HEAD, "Nothing has been run yet.", "", _AGAIN])
        parts = (self._first(), self._tasks(), self._rows("alpha"), self._rows("local_epochs"))
        more = (self._texts(), self._bodies(), self._rates(), self._how())
        return "\n".join([_HEAD, *(line for part in (*parts, *more) for line in part), _AGAIN])

    def _having(self, key: str) -> dict[str, Setting]:
        return {name: setting for name, setting in self.settings.items() if key in setting.keys}

    def _methods(self, settings: Mapping[str, Setting]) -> list[str]:
        return [name for name in self.known.methods if any((at, name) in self.cells for at in settings)]

    def _label(self, method: str) -> str:
        planned = self.known.methods[method]
        return planned.label + (f", {planned.optimizer}" if planned.optimizer != "FedAvg" else "")

    def _first(self) -> Iterator[str]:
        """Every method in every setting of images: accuracy, and the paper's."""
        settings = self._having("alpha")
        if not settings:
            return
        yield "## What came out"
        yield ""
        yield f"Body: {self._networks(settings)}. A cell is the accuracy of the generic model on the whole test set,"
        yield "in %: mean ± standard deviation over seeds. In brackets: the paper's numbers with its bodies, SqueezeNet"
        yield "1.1 / ResNet18 (weights: ImageNet, 224×224 pixels)."
        yield ""
        yield markdown(
            [
                {
                    "method": self._label(method),
                    **{setting.title: self._cell(name, method) for name, setting in settings.items()},
                }
                for method in self._methods(settings)
            ]
        )
        yield ""
        yield from self._differences(settings)
        yield from self._costs(settings)

    def _networks(self, settings: Mapping[str, Setting]) -> str:
        """The bodies of these settings in words. Bodies with random weights are named only if there are no others."""
        found = [network(cell["config"]) for (at, _), cell in self.cells.items() if at in settings]
        return "; ".join(dict.fromkeys(name for name in found if "random weights" not in name)) or "random weights"

    def _cell(self, setting: str, method: str, measure: str = "generic") -> str:
        cell = self.cells.get((setting, method))
        numbers = published(self.known.settings[setting], self.known.methods[method]) if measure == "generic" else {}
        theirs = " / ".join(f"{numbers[name]:.1f}" if name in numbers else "–" for name in THEIRS) if numbers else ""
        return (spread(accuracies(cell, measure), len(cell["runs"])) if cell else "–") + f" ({theirs})" * bool(theirs)

    def _differences(self, settings: Mapping[str, Setting]) -> Iterator[str]:
        """One sentence for each setting: what the class means add to fine-tuning."""
        for name, setting in settings.items():
            both = [self.cells.get((name, method)) for method in ("fedncm-ft", "ft")]
            if both[0] and both[1] and (found := paired(both[0], both[1])):
                yield f"- {setting.title}: FedNCM+FT minus FT is {fmean(found):+.1f} points ({_seeds(len(found))})."
        yield ""

    def _costs(self, settings: Mapping[str, Setting]) -> Iterator[str]:
        name, setting = next(iter(settings.items()))
        rows: list[dict[str, object]] = []
        for method in self._methods({name: setting}):
            cell = self.cells[name, method]
            sent = mean_over_seeds(cell, "bytes_up") + mean_over_seeds(cell, "bytes_down")
            rows.append(
                {
                    "method": self._label(method),
                    "accuracy": spread(accuracies(cell), len(cell["runs"])),
                    "rounds": max(
                        (run["history"][-1][0] for run in cell["runs"].values() if run["history"]), default=0
                    ),
                    "megabytes": f"{sent / 1e6:,.1f}",
                    "forward passes": f"{mean_over_seeds(cell, 'forward_passes'):,.0f}",
                }
            )
        yield f"What it costs ({setting.title}). Bytes are of all clients, in both directions, without the weights that"
        yield "all clients have before the first round. A backward pass counts as two forward passes."
        yield ""
        yield markdown(rows)
        yield ""

    def _tasks(self) -> Iterator[str]:
        """The paper's figure 1, for each setting."""
        drawn = [(name, setting) for name, setting in self._having("alpha").items() if self._course(name, setting)]
        if not drawn:
            return
        yield "## Accuracy over rounds, bytes and computation"
        yield ""
        yield "This is the paper's figure 1. The band is the range over seeds. Class means alone are one point;"
        yield "FedNCM+FT begins there. Bytes and passes have a logarithmic scale."
        yield ""
        for name, setting in drawn:
            yield f"![{setting.title}: accuracy over rounds, megabytes and forward passes]({FOLDER}/{name}.svg)"
            yield ""

    def _course(self, name: str, setting: Setting) -> bool:
        """Draw the picture of a setting over rounds. False if no method has more than one point."""
        means = self.cells.get((name, "fedncm"))
        found = [
            curve(self._label(m), DRAWN[label], self.cells[name, m], means if m.startswith("fedncm-") else None)
            for m in self._methods({name: setting})
            if (label := self._label(m)) in DRAWN
        ]
        curves = [one for one in found if one is not None]
        if any(len(one.points) > 1 for one in curves):
            self.pictures[name] = over_everything(curves, f"{setting.title}: accuracy over rounds, bytes and passes")
        return name in self.pictures

    def _rows(self, key: str) -> Iterator[str]:
        """The section that is one of the paper's figures 2 to 4: accuracy by a key of the settings."""
        figure, title, words = {
            "alpha": (3, "Heterogeneity", "α (small: clients have few classes)"),
            "local_epochs": (4, "Local epochs", "local epochs"),
            "per_class": (2, "Few texts", "examples of each class"),
        }[key]
        groups: dict[str, dict[str, Setting]] = {}
        for name, setting in self._having(key).items():
            others = {k: v for k, v in setting.keys.items() if k != key}
            groups.setdefault(f"{setting.dataset} {others}", {})[name] = setting
        chosen = [group for group in groups.values() if self._compared(group)]
        if not chosen:
            return
        yield f"## {title}"
        yield ""
        yield f"This is the paper's figure {figure}."
        yield ""
        for group in chosen:
            name = f"{key.replace('_', '-')}-{next(iter(group)).partition('-')[0]}"
            self.pictures[name] = self._picture(group, key, words)
            yield f"![{next(iter(group.values())).dataset}: accuracy by {words}]({FOLDER}/{name}.svg)"
            yield ""

    def _compared(self, group: Mapping[str, Setting]) -> bool:
        """Whether a method of the pictures has been run in two of the settings."""
        methods = [m for m in self._methods(group) if self._label(m) in DRAWN]
        return any(sum((name, m) in self.cells for name in group) > 1 for m in methods)

    def _picture(self, group: Mapping[str, Setting], key: str, words: str) -> str:
        ordered = sorted(group, key=lambda name: float(group[name].keys[key]))
        values = {
            label: [accuracies(self.cells[name, m]) if (name, m) in self.cells else [] for name in ordered]
            for m in self._methods(group)
            if (label := self._label(m)) in DRAWN and sum((name, m) in self.cells for name in ordered) > 1
        }
        names = [f"{group[name].keys[key]:g}" for name in ordered]
        return by_setting(values, [DRAWN[label] for label in values], names, f"accuracy by {words}", words)

    def _texts(self) -> Iterator[str]:
        settings = self._having("per_class")
        if not settings:
            return
        yield from list(self._rows("per_class")) or ["## Few texts", ""]
        yield "The paper gives no numbers for it. Its encoder is DistilBERT; ours is a sentence encoder, MiniLM-L6."
        yield ""
        rows: list[dict[str, object]] = [
            {"method": self._label(m), **{s.title: self._cell(n, m) for n, s in settings.items()}}
            for m in self._methods(settings)
        ]
        yield markdown(rows)
        yield ""

    def _bodies(self) -> Iterator[str]:
        settings = self._having("body")
        if not settings:
            return
        measures = next(iter(settings.values())).measures
        words = {"generic": "generic", "personalized": "personal", "new_before": "new client", "new_after": "…, tuned"}
        yield "## Where the body comes from"
        yield ""
        yield "The clients have half of CIFAR-100. The body begins at random weights, at weights trained on the other"
        yield "half, or at ImageNet's. Generic: one model on the whole test set. Personal: the client's own model on"
        yield "its own test data. New client: clients that never trained, before and after they tune the model."
        yield ""
        yield markdown(
            [
                {
                    "body": setting.title,
                    "method": self._label(method),
                    **{words.get(measure, measure): self._cell(name, method, measure) for measure in measures},
                }
                for method in self._methods(settings)
                for name, setting in settings.items()
                if (name, method) in self.cells
            ]
        )
        yield ""

    def _rates(self) -> Iterator[str]:
        rows: list[dict[str, object]] = [
            {
                "setting": self.known.settings[setting].title,
                "method": self._label(method),
                "tried: accuracy on validation data": ", ".join(tried(one) for one in cell["tuning"]),
                "chosen": point_of(cell["chosen"]),
            }
            for (setting, method), cell in self.cells.items()
            if cell["tuning"] and setting in self.known.settings and method in self.known.methods
        ]
        if rows:
            yield "## Rates"
            yield ""
            yield f"Rates are chosen at seed 0 on {self.known.validation:.0%} of every client's training samples, in"
            yield f"{self.known.tuning:.0%} of the rounds. A rate at the end of its list may not be the best one."
            yield ""
            yield markdown(rows)
            yield ""

    def _how(self) -> Iterator[str]:
        runs = [run for cell in self.cells.values() for run in cell["runs"].values()]
        seeds = sorted({len(cell["runs"]) for cell in self.cells.values()})
        networks = dict.fromkeys(network(cell["config"]) for cell in self.cells.values())
        files = {run["data"]["file"]: run["data"]["sha256"] for run in runs}
        yield "## How it was run"
        yield ""
        said = [
            f"Bodies: {'; '.join(networks)}.",
            *self.known.caveats,
            *machines_and_versions(runs),
            f"Seeds: {' or '.join(map(str, seeds))}.",
            *(f"SHA-256 of {name}: {found}." for name, found in files.items() if found),
            *caveats_of(files),
        ]
        yield from (f"- {text}" for text in said)
        yield ""


def spread(values: Sequence[float], seeds: int) -> str:
    """`85.1 ± 0.4`, with ✗ and a count if seeds diverged. `values`: of the seeds that did not."""
    lost = f" ✗ {seeds - len(values)} of {seeds} diverged" if len(values) < seeds else ""
    if not values:
        return lost.strip()
    return f"{fmean(values):.1f}" + (f" ± {stdev(values):.1f}" if len(values) > 1 else "") + lost


def paired(better: Record, worse: Record) -> list[float]:
    """Differences in generic accuracy at the seeds that both have."""
    one, other = _generic_by_seed(better), _generic_by_seed(worse)
    return [one[seed] - other[seed] for seed in one if seed in other]


def _generic_by_seed(record: Record) -> dict[str, float]:
    """Seed → generic accuracy, for the seeds that did not diverge."""
    return {seed: run["accuracy"]["generic"] for seed, run in record["runs"].items() if run["status"] == "ok"}


def point_of(point: Mapping[str, float]) -> str:
    """A choice of rates: `train.lr 0.1, personalize.lr 0.01`."""
    return ", ".join(f"{key} {value:g}" for key, value in point.items())


def tried(one: Mapping[str, Any]) -> str:
    """A choice of rates with its accuracies on validation data: `train.lr 0.1: 46.5 / 9.2`."""
    found = one["validation"]
    return f"{point_of(one['point'])}: " + (" / ".join(f"{v:.1f}" for v in found.values()) if found else "✗")


def network(config: Mapping[str, object]) -> str:
    """`efficientnet-lite0 (weights imagenet, 64×64)`."""
    size, weights = config.get("data.size"), config.get("model.weights")
    about = [f"weights: {weights}" if weights else "random weights", *([f"{size}×{size} pixels"] if size else [])]
    return f"{config.get('model.body', Config().model.body)} ({', '.join(about)})"


def _seeds(count: int) -> str:
    return counted(count, "seed")


def write(docs: Path) -> None:
    """Write the page and its pictures."""
    page = Page(records.read(docs / FOLDER))
    (docs / PAGE).write_text(page.text(), encoding="utf-8")
    for path in (docs / FOLDER).glob("*.svg"):
        if path.stem not in page.pictures:
            path.unlink()
    for name, svg in page.pictures.items():
        (docs / FOLDER / f"{name}.svg").write_text(svg, encoding="utf-8")
