"""`torso federation status`: the clients of a federation and their data, as far as the server knows."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from torso.federation.connected_clients import ConnectedClients
from torso.federation.description import Description
from torso.federation.folder import ServerFolder
from torso.federation.transport import ServerLink
from torso.reading import parse_json
from torso.results.files import write_text

DESCRIBED = "clients.json"


def note_descriptions(path: Path, descriptions: list[Description]) -> None:
    """Write clients' descriptions to a file, from which `status` reads while a run goes on."""
    known = _noted(path)
    now = time.strftime("%Y-%m-%dT%H:%M:%S")
    known |= {
        one.name: {
            "train": one.train_samples,
            "test": one.test_samples,
            "classes": len(one.classes),
            "input": one.input.words,
            "torso": one.torso,
            "torch": one.torch,
            "said": now,
        }
        for one in descriptions
    }
    write_text(path, json.dumps(known, indent=1) + "\n")


def status_of(place: ServerFolder, link: ServerLink | None) -> list[dict[str, Any]]:
    """A row for each admitted client; if the federation is insecure, for each connected one.

    `link`: to ask the connected clients; None during a run, when the last descriptions are shown."""
    from torso.config import Config

    path = place.private / DESCRIBED
    here: list[Description] = []
    if link is not None:
        clients = ConnectedClients(link, Config(), "", say=lambda _: None)
        clients.greet()
        here = [description for description, _ in clients.described.values()]
        note_descriptions(path, here)
    noted = _noted(path)
    return [
        {"name": name, "state": state, **{key: noted.get(name, {}).get(key, "") for key in _COLUMNS}}
        for name, state in _states(place, [one.name for one in here]).items()
    ]


_COLUMNS = ("train", "test", "classes", "input", "torso", "torch", "said")


def _states(place: ServerFolder, here: list[str]) -> dict[str, str]:
    if place.insecure:
        return dict.fromkeys(here, "connected")
    from torso.federation.flower.control import admitted

    return {one.name: one.state for one in admitted(place)}


def _noted(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        return found
    except (OSError, ValueError):
        return {}
