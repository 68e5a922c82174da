"""The source that reads a given file or folder."""

from __future__ import annotations

from pathlib import Path

from torso.data.sources.base import HF

SUFFIXES = {".csv": "csv", ".jsonl": "jsonl", ".npz": "npz", ".parquet": "parquet"}


def source_for(path: Path) -> str:
    """The name of the source that reads the file or folder at the path; "" if the format is unknown."""
    if not path.is_dir():
        return SUFFIXES.get(path.suffix.lower(), "")
    if (path / "train.csv").exists():
        return "csv"
    if (path / "train.jsonl").exists():
        return "jsonl"
    if any((path / name).is_file() for name in ("dataset_dict.json", "dataset_info.json")):
        return f"{HF}{path.resolve().name}"
    return "parquet" if next(path.rglob("*.parquet"), None) else "folder"
