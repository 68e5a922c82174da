"""docs/reproduction/claims.md: the papers' claims, the verdict on each, and how many pairs it comes from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torso.papers.pages.glance import summed
from torso.papers.tables.answers import Answer
from torso.papers.tables.claims import OWN, Verdict, claims, judge
from torso.papers.tables.pairs import Tally
from torso.report.docs import table as markdown
from torso.report.summary import counted

_HEAD = """# Do the papers' claims hold?

A claim says that one number is larger than another, in each setting of some tables: so many pairs of numbers. We \
have run some of the pairs. [The verdicts](#what-the-verdicts-mean) are explained below the tables.
"""
_WORDS = """## What the verdicts mean

The claims are in our words (`src/torso/papers/tables/claims.toml`), and `python -m torso.papers.docs` makes this \
page. If the paper's number of a method came from a mistake, ours is of the method as it was meant. A pair that \
stands in two tables counts twice, as it does in the paper, though we may have run it once.

- **Holds**: the claim is true in a large enough share of the pairs, and no more pairs are clearly against it than \
the paper itself has exceptions. The share is that of the claim's words (at least half), but never more than the \
paper's own numbers reach in the same pairs.
- **Holds in part**: true in half of the pairs or more, and no more pairs are clearly against it than clearly for \
it.
- **Does not hold**: otherwise.
- **So far**: less than half of the paper's pairs have been run with two or more seeds (*one seed*: none has; *few \
pairs*: less than half have been run at all). A verdict from one seed shows a direction, not that it is more than \
chance.
- **Plain draw**: the pairs are second lines, whose clients are dealt by a Dirichlet draw alone. The first lines have \
the split of the author's code, and fewer of their pairs have been run.
- **Mirrored only**: the pairs are second lines, whose images are mirrored and not cropped. Fewer pairs of the first \
lines, which crop, have been run.
- **Another body**: the paper's pairs need a body that cannot be had here. The claim is judged by pairs of our own \
settings, all with one body: [bodies trained elsewhere](../pretrained.md).

The other words:

- **Clearly**: beyond Student's 95 % interval of the difference of two means over seeds (Welch; with three seeds on \
either side, about 2.8 standard errors). A pair with one seed is never clear. Among many pairs, one in forty is \
clear on one side by chance alone. Two methods are compared over the seeds that both have.
- **Diverged**: a method that diverged at any seed loses the pair, here and in the paper's numbers. If both \
diverged, the claim is not met. The mean leaves such pairs out. A method may diverge here because the paper found \
other rates for it, so the table says how many pairs are met only because the other side diverged.
"""


def verdicts(tables: Mapping[str, Sequence[Answer]]) -> list[Verdict]:
    return [judge(claim, tables) for claim in claims()]


def page(tables: Mapping[str, Sequence[Answer]]) -> str:
    """The text of claims.md. `tables`: the answers of every table, run or not."""
    found = verdicts(tables)
    lines = [_HEAD, summed(found), ""]
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
    """6 of 12: 4 with 1 seed, 2 with 3 seeds; nothing yet of MTL."""
    by_seeds = sorted(verdict.ours.seeds.items())
    each = [f"{count} with {counted(seeds, 'seed')}" for seeds, count in by_seeds]
    if len(each) == 1:
        each = [counted(by_seeds[0][0], "seed")]
    where = " of our own" if verdict.elsewhere else f" of {verdict.published.there}"
    said = f"{verdict.ours.there}{where}" + f" ({', '.join(each)})" * bool(each)
    return said + f"; nothing yet of {', '.join(verdict.missing)}" * bool(verdict.missing)


def _met(found: Tally) -> str:
    if not found.there:
        return "–"
    mean = "" if found.diverged == found.there else f", mean {found.mean:+.1f}"
    return f"{found.held} of {found.there}{mean}"


def _beside(found: Tally) -> str:
    counts = {
        "clearly": found.clear,
        "clearly against": found.against,
        "because the other side diverged": found.walkovers,
        "lost by divergence": found.diverged - found.walkovers,
    }
    said = [f"{count} {word}" for word, count in counts.items() if count]
    return f" ({', '.join(said)})" if said else ""
