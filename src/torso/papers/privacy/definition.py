"""Paths: the definition of the private runs, and the folder of their results."""

from __future__ import annotations

from pathlib import Path

FILE = Path(__file__).with_name("privacy.toml")
FOLDER = Path("docs") / "privacy"
AUDITS = "audits"  # folder below FOLDER with the json files of audits
