"""Json files of results: readable, packed into archives to move between machines, and with checksums of the data."""

from __future__ import annotations

import hashlib
import json
import re
import tarfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from torso.config import Config
from torso.papers.experiments.datasets import file_of
from torso.results.data_file import DataFile
from torso.results.files import write_text

Record = dict[str, Any]


def read_all(folder: Path) -> dict[str, Record]:
    """Name of a file without its ending → its record."""
    return {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(folder.glob("*.json"))}


def write_record(path: Path, record: Record) -> None:
    """Write a json file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, _short_lists(json.dumps(record, indent=1, ensure_ascii=False)) + "\n")


def _short_lists(text: str) -> str:
    """Put each list of numbers or words on one line."""
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)


def write_archive(folder: Path, archive: Path) -> None:
    """Write all json files of the folder into one archive."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz") as file:
        for path in sorted(folder.glob("*.json")):
            file.add(path, path.name)


def key_of(changes: Mapping[str, Any]) -> str:
    """A hash that is equal for runs of the same config (`provenance.changed`), whatever their seed and machine."""
    return hashlib.sha256(json.dumps(changes, sort_keys=True).encode()).hexdigest()[:16]


def data_of(config: Config, folder: Path) -> dict[str, str]:
    """The name of the data file, its SHA-256, and the SHA-256 of the data fingerprint (which client has which
    samples)."""
    source, root = config.data.source, Path(config.data.root)
    name = file_of(source, str(root)) or root.name
    path = root if root.is_file() else root / name
    known = DataFile.read(folder)
    clients = json.dumps(known.fingerprint.as_json(), sort_keys=True) if known else ""
    return {
        "file": name or source,
        "sha256": _file_sum(path) if config.data.root and path.is_file() else "",
        "clients_sha256": hashlib.sha256(clients.encode()).hexdigest(),
    }


@cache
def _file_sum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
