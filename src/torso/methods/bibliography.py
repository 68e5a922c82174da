"""The papers behind methods, losses, server rules, attacks and networks: papers.toml, read once."""

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
    """One paper. `link` is its page where arXiv has none, or another paper; `used` says, in Markdown, what it is in
    Torso where no preset carries its label."""

    topic: str
    title: str
    authors: str
    venue: str
    year: int
    arxiv: str = ""
    link: str = ""
    used: str = ""

    @property
    def address(self) -> str:
        return self.link or f"https://arxiv.org/abs/{self.arxiv}"

    @property
    def words(self) -> str:
        """The paper as in a list of references."""
        return f"{self.authors}. {self.title}. {self.venue}, {self.year}. {self.address}"


@cache
def papers() -> dict[str, Paper]:
    """Every paper by its label: `FedBABU (Oh 2022)`."""
    tables = tomllib.loads(Path(__file__).with_name("papers.toml").read_text(encoding="utf-8"))
    return {label: Paper(**table) for label, table in tables.items()}
