"""data.json of a run folder: the fingerprint of the run's data, and the path that they were read from."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from torso.config import Config
from torso.data import Federation
from torso.data.fingerprint import Fingerprint
from torso.errors import ChangedData, RequestError
from torso.reading import parse_json
from torso.results.files import write_text

DATA = "data.json"
ACCEPT = "--accept-changed-data"


@dataclass(frozen=True)
class DataFile:
    """The content of data.json."""

    fingerprint: Fingerprint
    root: str = ""  # the absolute path, if data.root is relative

    @classmethod
    def read(cls, folder: Path) -> DataFile | None:
        """The content of the file; None if there is none, since the run was made by an older version."""
        path = folder / DATA
        try:
            tree = parse_json(path.read_text(encoding="utf-8"))
            root = tree.get("root", "")
            if not isinstance(root, str):
                raise TypeError("its root is no text")
            return cls(Fingerprint.from_json(tree["fingerprint"]), root)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(
                f"{str(path)!r} is damaged ({type(error).__name__}: {error}). Take it from a copy of the folder, or "
                "delete it: then nobody checks whether the data are those of the run."
            ) from None

    def write(self, folder: Path) -> None:
        write_text(folder / DATA, json.dumps({"root": self.root, "fingerprint": self.fingerprint.as_json()}) + "\n")


def note_data(folder: Path, config: Config, federation: Federation) -> None:
    """Write data.json, for a new run or for a run that continues with other data."""
    before = DataFile.read(folder)
    known_root = before.root if before else ""
    now = DataFile(Fingerprint.of(federation), known_root or _absolute(config.data.root))
    if now != before:
        now.write(folder)


def check_data(folder: Path, federation: Federation, *, accept: bool = False, how: str = ACCEPT) -> str:
    """Refuse data that differ from those of the run in the folder, unless `accept`. Returns what differs, in words.

    `how` is the option that accepts other data, for the message."""
    before = DataFile.read(folder)
    if before is None:
        return ""
    changed = before.fingerprint.differences(Fingerprint.of(federation), federation.names)
    if changed and not accept:
        raise ChangedData(
            f"the data are not those that the run in {str(folder)!r} began with: {changed}. "
            f"Give the same data, or accept others with {how} (accept_changed_data=True in Python)."
        )
    return changed


def where_data_were(folder: Path, config: Config) -> Config:
    """The config with data.root as an absolute path, if that path is known and still exists."""
    known = DataFile.read(folder)
    if known is None or not known.root:
        return config
    if not os.path.exists(known.root):  # Path.exists would raise on a string that cannot be a path
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"root": known.root})})


def _absolute(root: str) -> str:
    if not root or Path(root).is_absolute():
        return ""
    path = Path(root).expanduser()
    try:
        return str(path.resolve()) if path.exists() else ""  # a plugin's source may take a root that is no path
    except OSError:
        return ""
