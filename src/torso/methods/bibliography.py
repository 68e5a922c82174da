"""The papers of methods, losses, server rules, attacks and networks, read from papers.toml."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

TOPICS = {
    "studied": "The four papers that Torso reproduces",
    "method": "Methods",
    "loss": "Losses and sample weights",
    "robustness": "Robust server rules and attacks",
    "base": "Networks and base code",
}


@dataclass(frozen=True)
class Paper:
    """One paper, as papers.toml has it."""

    topic: str  # a key of TOPICS
    title: str
    authors: str
    venue: str
    year: int
    arxiv: str = ""
    link: str = ""  # its page, if arXiv does not have the paper or has another one under the number
    equations: str = ""  # where it has the formulas of our definition, by its own numbers
    used: str = ""  # what Torso uses it for, in Markdown, if no preset has its label

    @property
    def address(self) -> str:
        """The URL of its page."""
        return self.link or f"https://arxiv.org/abs/{self.arxiv}"

    @property
    def words(self) -> str:
        """The entry of the paper in a list of references."""
        return f"{self.authors}. {self.title}. {self.venue}, {self.year}. {self.address}"


@cache
def papers() -> dict[str, Paper]:
    """All papers by their labels, such as `FedBABU (Oh 2022)`."""
    tables = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))
    return {label: Paper(**table) for label, table in tables.items()}
