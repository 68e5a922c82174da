"""Where the plan of private runs is, and where its results are."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("privacy.toml")
FOLDER = Path("docs") / "privacy"
AUDITS = "audits"  # folder of the audits' json files, below
