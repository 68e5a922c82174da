"""The generated sections of the documentation. `python -m torso.report.docs` rewrites them; a test checks that they are
up to date."""

from __future__ import annotations

import re
from pathlib import Path

from torso.config import describe_keys
from torso.data import augmentations, partitions, sources
from torso.learn.schedule import schedules
from torso.measure import measures
from torso.measure.analyses import analyses
from torso.measure.corruptions import corruptions
from torso.methods import methods
from torso.methods.bibliography import TOPICS, Paper, papers
from torso.nets import head_inits
from torso.registry import plain
from torso.report.lists import list_attacks, list_axes, list_methods, list_models, list_registry

BEGIN, END = "<!-- generated: {} -->", "<!-- end -->"


def table(rows: list[dict[str, object]]) -> str:
    """Rows with the same columns as a Markdown table."""
    heads = [str(name).replace("_", " ") for name in rows[0]]
    lines = [heads, ["---"] * len(heads), *([str(v).replace("|", "\\|") for v in row.values()] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _only(row: dict[str, object], *columns: str) -> dict[str, object]:
    return {column: row[column] for column in columns}


def _linked(row: dict[str, object]) -> dict[str, object]:
    """The row with its definition as a link, for pages in docs/."""
    return {**row, "definition": re.sub(r"[\d.]+", r"[\g<0>](definitions.md#d\g<0>)", str(row["definition"]))}


def _presets(label: str) -> str:
    return ", ".join(f"`{name}`" for name, method in sorted(methods.items()) if method.paper == label)


def _reference(label: str, paper: Paper) -> str:
    where = f"[{paper.title}]({paper.address}). {paper.venue}, {paper.year}"
    return f"- **{label}**: {paper.authors}. {where}. In Torso: {_presets(label) or paper.used}."


def references() -> str:
    """All papers by topic, each in one line."""
    found = papers().items()
    blocks = (
        [f"## {title}", "", *(_reference(label, paper) for label, paper in found if paper.topic == topic)]
        for topic, title in TOPICS.items()
    )
    return "\n\n".join("\n".join(block) for block in blocks)


def equations() -> str:
    """The papers whose own numbers of formulas are known, with what Torso makes of them."""
    rows: list[dict[str, object]] = [
        {"paper": label, "in_torso": _presets(label) or paper.used, "where": paper.equations}
        for label, paper in papers().items()
        if paper.equations
    ]
    return table(rows)


def sections() -> dict[str, str]:
    """The text of every generated section, by its name."""
    rows = list_methods()
    return {
        "methods": table([_only(row, "name", "paper", "differs_from_fedavg", "about") for row in rows]),
        "anatomy": table(
            [
                _only(_linked(row), "name", "definition", "travels", "client_keeps", "bytes_down", "bytes_up")
                for row in rows
            ]
        ),
        "equations": equations(),
        "papers": references(),
        "models": table(list_models()),
        "sources": table(list_registry(sources)),
        "partitions": table(list_registry(partitions)),
        "schedules": table(list_registry(schedules)),
        "head_inits": table(list_registry(head_inits)),
        "augmentations": table([{"name": n, "about": plain(a.about)} for n, a in augmentations.items()]),
        "measures": table([{"name": n, "of": m.of, "about": plain(m.about)} for n, m in measures.items()]),
        "analyses": table([{"name": n, "taken": a.when, "about": plain(a.about)} for n, a in analyses.items()]),
        "corruptions": table(list_registry(corruptions)),
        "axes": table(list_axes()),
        "attacks": table(list_attacks()),
        "keys": table([{"key": f"`{key}`", "meaning": plain(meaning)} for key, meaning in describe_keys().items()]),
    }


def fill(text: str) -> str:
    """The page with the text between all its markers generated again."""
    for name, made in sections().items():
        text = replaced(text, name, made)
    return text


def replaced(text: str, name: str, made: str) -> str:
    """The page with a new text in the section of this name, if it has this section."""
    begin = BEGIN.format(name)
    if begin not in text:
        return text
    before, _, rest = text.partition(begin)
    return f"{before}{begin}\n{made}\n{END}{rest.partition(END)[2]}"


def main(root: Path = Path()) -> None:
    pages = ("README.md", "docs/reference.md", "docs/methods.md", "docs/papers.md")
    for path in (root / page for page in pages):
        path.write_text(fill(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
