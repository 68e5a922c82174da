"""A comparison in sentences: what was run, which method is best and how sure that is, which clients lose, the cost."""

from __future__ import annotations

from collections.abc import Sequence

from torso.measure.fairness import worst
from torso.report.charts.clients import gain_pair
from torso.report.comparison import Comparison, Entry, share_below, title_of
from torso.report.statistics import Difference


def listed(words: Sequence[str], most: int = 4) -> str:
    """Words as a list in a sentence: `a, b and c`, or `a, b, c, d and 7 more`."""
    if len(words) > most + 1:
        words = [*words[:most], f"{len(words) - most} more"]
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def counted(count: int, noun: str) -> str:
    """A number with its noun: `1 setting`, `2 settings`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def heading(comparison: Comparison) -> str:
    """Methods and data sets, such as `fedavg and fedbabu on digits`."""
    datasets = list(dict.fromkeys(run.dataset for run in comparison.runs))
    return f"{listed([entry.label for entry in comparison.entries])} on {listed(datasets)}"


_DETAILS = {"shards": ("shards", "{} shards each"), "dirichlet": ("alpha", "α = {}")}
"""Kind of partition → its main key, and the words for that key's value."""


def setting(comparison: Comparison) -> str:
    """What all runs share, such as `50 clients · shards, 2 shards each · conv3 · 30 rounds · seeds 0 and 1`."""
    runs = comparison.runs

    def one(key: str) -> object | None:
        """The value of a key, if all runs have the same."""
        values = {str(run.setting(key)): run.setting(key) for run in runs}
        return next(iter(values.values())) if len(values) == 1 else None

    kind, rounds = one("data.partition"), one("train.rounds")
    if any(run.is_federation for run in runs):
        kind = "real machines" if all(run.is_federation for run in runs) else None
    counts = {run.clients for run in runs}
    clients = counts.pop() if len(counts) == 1 else 0
    key, said = _DETAILS.get(str(kind).split("-")[0], ("", ""))
    value = one(f"data.{key}") if key else None
    parts = [
        counted(clients, "client") if clients else "",
        str(kind or "") if value is None else f"{kind}, {said.format(value)}",
        str(one("model.body") or ""),
        f"{rounds} rounds" if rounds else "",
        _seeds(comparison),
    ]
    return " · ".join(part for part in parts if part)


def _seeds(comparison: Comparison) -> str:
    seeds = sorted({run.seed for run in comparison.runs if run.seed is not None})
    if not seeds:
        return ""
    return f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds], 6)}"


def sentences(comparison: Comparison) -> list[str]:
    """The summary of a comparison, sentence by sentence."""
    measure = comparison.headline
    ranked = _ranked(comparison, measure) if measure else []
    if measure is None or not ranked:
        return ["No run has a result yet, so there is nothing to compare."]
    said = [
        _best(comparison, measure, ranked),
        _worst_off(measure, ranked),
        _losers(comparison),
        _generic(comparison, measure),
    ]
    return [sentence for sentence in [*said, _cost(comparison)] if sentence]


def _ranked(comparison: Comparison, measure: str) -> list[tuple[float, Entry]]:
    """(mean, entry) of those that have the measure, the best first."""
    found = [(scores.mean, entry) for entry in comparison.entries if (scores := entry.pooled(measure))]
    return sorted(found, key=lambda pair: -pair[0])


def _best(comparison: Comparison, measure: str, ranked: list[tuple[float, Entry]]) -> str:
    mean, best = ranked[0]
    scores = best.pooled(measure)
    over = f" over {scores.n} client results" if scores and scores.n > 1 else ""
    if len(ranked) == 1:
        spread = f" ± {scores.std:.1f}" if scores and scores.n > 1 else ""
        return f"{best.label}: {title_of(measure)} accuracy {mean:.1f}{spread}%{over}."
    said = f"{best.label} has the highest {title_of(measure)} accuracy: {mean:.1f}% on average{over}"
    if best is not comparison.baseline:
        said += _against(comparison, best, measure)
    close = [e for _, e in ranked[1:] if _not_clear(comparison, best, e, measure)]
    if close:
        verb = "is" if len(close) == 1 else "are"
        said += f". {listed([e.label for e in close])} {verb} not clearly below it"
    return said + "."


def _against(comparison: Comparison, entry: Entry, measure: str) -> str:
    d = comparison.difference(entry, measure)
    if not isinstance(d, Difference):
        return f" (not tested against {comparison.baseline.label}: {d.reason})"
    side = "above" if d.mean >= 0 else "below"
    interval = f" (95% interval {d.low:.1f} to {d.high:.1f})" if d.low is not None else ""
    return f", {abs(d.mean):.1f} points {side} {comparison.baseline.label}{interval}".replace("-", "−")


def _not_clear(comparison: Comparison, best: Entry, other: Entry, measure: str) -> bool:
    d = comparison.difference(best, measure, other)
    return isinstance(d, Difference) and not d.clear


def _worst_off(measure: str, ranked: list[tuple[float, Entry]]) -> str:
    """The method whose worst tenth of clients is best. It may not be the one with the best mean."""
    found = []
    for _, entry in ranked:
        scores = entry.pooled(measure)
        if scores and scores.n >= 10:
            found.append((worst(scores.clients), entry.label))
    if len(found) < 2:
        return f"Mean of the worst tenth of its clients: {found[0][0]:.1f}%." if found else ""
    (high, first), (low, last) = max(found), min(found)
    return (
        f"Mean of the worst tenth of the clients: highest with {first} ({high:.1f}%), lowest with {last} ({low:.1f}%)."
    )


def _losers(comparison: Comparison) -> str:
    """How many clients have a worse model after personalisation."""
    words = []
    for entry in comparison.entries:
        pair = gain_pair(entry)
        lose = total = 0
        for run in entry.good if pair else ():
            if pair and all(name in run.accuracy for name in pair):
                ours, theirs = (run.accuracy[name].clients for name in pair)
                if ours and len(ours) == len(theirs):
                    counts = share_below(ours, theirs)
                    lose, total = lose + counts[0], total + sum(counts)
        if total:
            words.append((lose / total, f"{entry.label} {lose} of {total}"))
    if not words:
        return ""
    shown = [text for _, text in sorted(words, reverse=True)]
    return f"Clients whose own model is worse than the model they received: {listed(shown, 10)}."


def _generic(comparison: Comparison, measure: str) -> str:
    ranked = _ranked(comparison, "generic")
    if measure == "generic" or len(ranked) < 2:
        return f"The generic model reaches {ranked[0][0]:.1f}%." if ranked and measure != "generic" else ""
    (high, best), (low, worst) = ranked[0], ranked[-1]
    return f"The best generic model is {best.label}’s with {high:.1f}%, the worst {worst.label}’s with {low:.1f}%."


def _cost(comparison: Comparison) -> str:
    moved = sorted((mb, entry.label) for entry in comparison.entries if (mb := entry.megabytes) is not None)
    if not moved:
        return ""
    (least, cheapest), (most, dearest) = moved[0], moved[-1]
    if f"{least:.1f}" == f"{most:.1f}":
        return f"A run sent {least:,.1f} MB in both directions."
    return f"A run sent between {least:,.1f} MB ({cheapest}) and {most:,.1f} MB ({dearest}) in both directions."
