"""The states of a client between rounds, on its own disk: one file for every round that it may have to go back to.

The server says in which round the client's reply counted last (`since`). States of later rounds are then invalid: the
client was late or was killed, or the server has gone back to a checkpoint. So after any failure, a client continues
from the state that the server's model builds on.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from torso.errors import RequestError
from torso.nets import Tensors
from torso.personal.store import EMPTY_STATE, KINDS, ClientState
from torso.reading import parse_json
from torso.results.checkpoint import rounds_of
from torso.results.files import replace_file, sha256_of, write_text


class ClientStateFiles:
    """The states of one client in one run: `round-R.safetensors`, and `round-R.json`, which is written after it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """The rounds that have a state, ascending."""
        return rounds_of(self.folder)

    def at(self, round: int) -> ClientState:
        """The state after a round; an empty one for round 0."""
        if round == 0:
            return EMPTY_STATE
        path = self._file(round)
        try:
            note = parse_json(path.with_suffix(".json").read_text(encoding="utf-8"))
            if note["sha256"] != sha256_of(path):
                raise ValueError("its checksum does not match")
            tensors = load_file(path)
        except FileNotFoundError:
            there = ", ".join(map(str, self.rounds())) or "none"
            raise RequestError(
                f"what this client held after round {round} is not in {str(self.folder)!r} (rounds there: {there}). "
                "Expected: the folder that it had when it took part"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            raise RequestError(f"{path} is damaged: {error}. Expected: the file as this client wrote it") from None
        held: dict[str, Tensors] = {kind: {} for kind in KINDS}
        for name, tensor in tensors.items():
            kind, _, leaf = name.partition("/")
            held[kind][leaf] = tensor.clone()  # aligned memory: a file's has none, and sums may round otherwise
        return ClientState(**held)

    def save(self, round: int, state: ClientState) -> None:
        """Write the state after a round, completely or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        flat = {f"{kind}/{n}": t.detach().cpu().contiguous() for kind in KINDS for n, t in getattr(state, kind).items()}
        separate = {name: tensor.clone() for name, tensor in flat.items()}  # safetensors refuses shared memory
        path = self._file(round)
        self._drop(round)
        try:
            replace_file(path, lambda temporary: save_file(separate, temporary))
            note = {"round": round, "sha256": sha256_of(path)}
            write_text(path.with_suffix(".json"), json.dumps(note))
        except (OSError, SafetensorError) as error:
            self._drop(round)
            raise RequestError(f"{error}. Make room there") from None

    def tidy(self, wanted: Collection[int]) -> None:
        """Delete the states of all rounds but these."""
        for round in self.rounds():
            if round not in wanted:
                self._drop(round)

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"

    def _drop(self, round: int) -> None:
        """Delete the state of a round. The JSON file goes first: without it, a state does not count."""
        path = self._file(round)
        for each in (path.with_suffix(".json"), path, *self.folder.glob(f".{path.stem}.*")):
            each.unlink(missing_ok=True)
