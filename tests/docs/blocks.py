"""The fenced blocks of the documentation.

A block in `console` or `python` is run by tests/docs/test_pages.py. One that cannot run in a test has a comment on the
line before it, which the reader of the page does not see: `<!-- not run: takes hours on an accelerator -->`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
RUN = ("console", "python")
SHOWN = ("text", "toml", "json", "bibtex", "")  # what a reader sees or writes into a file
NOT_RUN = re.compile(r"<!-- not run: (.+) -->")
REASONS = (
    "needs an accelerator",
    "needs data",
    "needs several machines",
    "needs the network",
    "takes hours",
    "takes minutes",
    "writes",
)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str
    not_run: str = ""

    @property
    def where(self) -> str:
        return f"{self.page}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The commands of a console block: what follows `$ `, with continued lines joined."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]


def pages() -> list[str]:
    """Every page of the documentation, by its path in the repository."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "bench" / "README.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if path.is_file())


def blocks(page: str) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    found: list[Block] = []
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    number, reason = 0, ""
    while number < len(lines):
        line = lines[number]
        if line.startswith("```"):
            end = next(n for n in range(number + 1, len(lines)) if lines[n].startswith("```"))
            text = "\n".join(lines[number + 1 : end]) + "\n"
            found.append(Block(page, number + 1, line.removeprefix("```").strip(), text, reason))
            number = end
        if line.strip():
            marked = NOT_RUN.fullmatch(line.strip())
            reason = marked[1] if marked else ""
        number += 1
    return found
