"""What a client holds between rounds, on its own disk: a file for every round that it may have to go back to.

The server says which round's answer counted last (`since`). What a later visit left is then void: the client was late,
or was killed, or the server has gone back to a checkpoint. So whatever breaks, a client goes on from the state that
the server's model stands on, and none is lost or mixed up.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from torso.errors import RequestError
from torso.nets import Tensors
from torso.personal.store import KINDS, NOTHING, ClientState
from torso.reading import parse_json
from torso.results.checkpoint import rounds_of
from torso.results.files import replace_file, sha256_of, write_text


class Versions:
    """The states of one client in one run: `round-R.safetensors` and, once that is whole, `round-R.json`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def rounds(self) -> list[int]:
        """The rounds of which there is a state, ascending."""
        return rounds_of(self.folder)

    def at(self, round: int) -> ClientState:
        """The state that the visit of this round left; an empty one before the first."""
        if round == 0:
            return NOTHING
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
            held[kind][leaf] = tensor.clone()  # aligned: sums over a file's memory may round otherwise
        return ClientState(**held)

    def save(self, round: int, state: ClientState) -> None:
        """Write what a visit has left; whole, or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        flat = {f"{kind}/{n}": t.detach().cpu().contiguous() for kind in KINDS for n, t in getattr(state, kind).items()}
        alone = {name: tensor.clone() for name, tensor in flat.items()}
        path = self._file(round)
        self._drop(round)
        try:
            replace_file(path, lambda temporary: save_file(alone, temporary))
            note = {"round": round, "sha256": sha256_of(path)}
            write_text(path.with_suffix(".json"), json.dumps(note))
        except (OSError, SafetensorError) as error:
            self._drop(round)
            raise RequestError(f"{error}. Make room there") from None

    def tidy(self, wanted: Collection[int]) -> None:
        """Drop what did not count, and what nobody will go back to."""
        for round in self.rounds():
            if round not in wanted:
                self._drop(round)

    def _file(self, round: int) -> Path:
        return self.folder / f"round-{round:06d}.safetensors"

    def _drop(self, round: int) -> None:
        """The note first: a state without one is none."""
        path = self._file(round)
        for each in (path.with_suffix(".json"), path, *self.folder.glob(f".{path.stem}.*")):
            each.unlink(missing_ok=True)
