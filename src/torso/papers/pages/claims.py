"""docs/reproduction/claims.md: the papers' claims, the verdict on each, and the number of pairs behind the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torso.papers.pages.glance import claims_in_words
from torso.papers.tables.answers import Answer
from torso.papers.tables.claims import OWN, Verdict, claims, judge
from torso.papers.tables.pairs import Tally
from torso.report.docs import table as markdown
from torso.report.summary import counted

_HEAD = """# Do the papers' claims hold?

A claim says that one number is larger than another in every setting of some tables. So a claim is about several pairs \
of numbers, and we have run some of them. [The verdicts](#what-the-verdicts-mean) are explained below the tables.
"""
_WORDS = """## What the verdicts mean

The claims are in our words (`src/torso/papers/tables/claims.toml`). If a mistake in the paper's code made the paper's \
number of a method, ours is of the method as it was meant. A pair that appears in two tables counts twice, as in the \
paper, even if we ran it once.

- **Holds**: the claim is true in enough of the pairs, and no more pairs are clearly against it than the paper itself \
has exceptions. Enough is the share that the claim's words demand, and at least half; but it is never more than the \
paper's own numbers reach in the same pairs.
- **Holds in part**: the claim is true in enough of the pairs, but more pairs are clearly against it. Or it is true in \
at least half of the pairs, and no more pairs are clearly against it than clearly for it.
- **Does not hold**: all other cases.
- **So far**: less than half of the paper's pairs have been run with two or more seeds. *One seed*: none has. *Few \
pairs*: less than half have been run at all. A verdict from one seed shows a direction, which may be chance.
- **Plain draw**: the pairs come from this variant, in which clients are dealt by a Dirichlet draw alone. The main \
runs deal them as the author's code does, and fewer of their pairs have been run.
- **Mirrored only**: the pairs come from this variant, in which images are mirrored and not cropped. The main runs \
also crop, and fewer of their pairs have been run.
- **Another body**: the paper's pairs need a body that is not available here. The claim is judged by pairs of our own \
settings, all with one body: [bodies trained elsewhere](../pretrained.md).

Two more words of the tables:

- **Clearly**: the difference of two means over seeds lies outside Student's 95 % interval (Welch; with three seeds on \
either side, about 2.8 standard errors). Two methods are compared over the seeds that both have. A pair with one seed \
is never clear. By chance alone, one pair in forty is clear on one side.
- **Diverged**: a method that diverged at any seed loses the pair, in ours and in the paper's numbers. If both methods \
diverged, the claim is not met. The mean leaves these pairs out. A method may diverge here because the paper found \
other rates for it, so the table counts the pairs that are met only because the other side diverged.

`python -m torso.papers.docs` makes this page.
"""


def verdicts(tables: Mapping[str, Sequence[Answer]]) -> list[Verdict]:
    """The verdict on every claim."""
    return [judge(claim, tables) for claim in claims()]


def page(tables: Mapping[str, Sequence[Answer]]) -> str:
    """The text of claims.md. `tables`: the answers of every table, whether it has been run or not."""
    found = verdicts(tables)
    lines = [_HEAD, claims_in_words(found), ""]
    for paper in dict.fromkeys(verdict.claim.paper for verdict in found):
        rows = [_row(verdict) for verdict in found if verdict.claim.paper == paper]
        lines += [f"## {paper}", "", markdown(rows), ""]
    return "\n".join([*lines, _WORDS])


def _row(verdict: Verdict) -> dict[str, object]:
    some = 0 < verdict.published_there.there < verdict.published.there
    there = f"; in the pairs run {_met(verdict.published_there)}" if some else ""
    return {
        "claim": verdict.claim.says,
        "verdict": f"**{verdict.word}**",
        "pairs run": _run(verdict),
        "ours": _met(verdict.ours) + _beside(verdict.ours),
        "the paper's numbers": _met(verdict.published) + there,
        "tables": ", ".join(_table(name, verdict) for name in verdict.claim.tables),
    }


def _table(name: str, verdict: Verdict) -> str:
    shown = "[another body](../pretrained.md)" if name == OWN else name
    return shown if name in verdict.tables else f"{shown} (no pair run)"


def _run(verdict: Verdict) -> str:
    """The number of pairs that have been run: `6 of 12 (4 with 1 seed, 2 with 3 seeds); nothing yet of MTL`."""
    by_seeds = sorted(verdict.ours.seeds.items())
    if len(by_seeds) == 1:
        each = [counted(by_seeds[0][0], "seed")]
    else:
        each = [f"{count} with {counted(seeds, 'seed')}" for seeds, count in by_seeds]
    where = " of our own" if verdict.elsewhere else f" of {verdict.published.there}"
    text = f"{verdict.ours.there}{where}"
    if each:
        text += f" ({', '.join(each)})"
    if verdict.missing:
        text += f"; nothing yet of {', '.join(verdict.missing)}"
    return text


def _met(found: Tally) -> str:
    """In how many pairs the claim is true, and the mean difference: `9 of 9, mean +4.0`."""
    if not found.there:
        return "–"
    mean = "" if found.diverged == found.there else f", mean {found.mean:+.1f}"
    return f"{found.held} of {found.there}{mean}"


def _beside(found: Tally) -> str:
    """How many pairs are clear or were decided by divergence, in brackets; empty if none is."""
    counts = {
        "clearly": found.clear,
        "clearly against": found.against,
        "because the other side diverged": found.walkovers,
        "lost by divergence": found.diverged - found.walkovers,
    }
    said = [f"{count} {word}" for word, count in counts.items() if count]
    return f" ({', '.join(said)})" if said else ""
