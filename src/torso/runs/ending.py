"""How a run ends before its time: where it stands then, what is kept of it, and how to go on."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from torso.errors import PlaceLost, TorsoError
from torso.personal.state import State
from torso.results.checkpoint import rounds_of
from torso.results.folder import RunFolder


class Stopped(TorsoError):
    """Somebody asked the run to stop; it can be resumed where it has a folder. `whose`: which of several it was."""

    exit_status = 130
    whose = ""


@dataclass(frozen=True)
class Ending:
    """What is said of a run of so many rounds when it ends early; `command` is what resumes such a run."""

    folder: RunFolder | None
    rounds: int
    command: str

    def stopped(self, state: State, opened: bool) -> str:
        """Save a run that ends between two rounds or measures, if it has a folder, and say where it stands.

        `opened`: whether the state is past what comes before the first round."""
        measuring = ", before all was measured" if state.round == self.rounds else ""
        where = f"{self._after(state)}{measuring}"
        if self.folder is None:
            return f"{where}; without a folder there is nothing to resume"
        left = ""
        try:
            if opened or state.round:
                self.folder.save(state)
                left = ", with a checkpoint"
        except PlaceLost:  # what clients held
            left = "; what came after the last checkpoint is lost"
        return f"{where}{left}. Continue with: {self._again(self.folder)}"

    def unwritable(self, state: State) -> str:
        """What is said of a run whose folder cannot be written any more."""
        if self.folder is None:
            return self._after(state)
        kept = rounds_of(self.folder.path / "checkpoints")
        newest = f"The checkpoint of round {kept[-1]} is kept" if kept else "There is no checkpoint yet"
        return f"{newest}. Make room, then continue with: {self._again(self.folder)}"

    def at_once(self) -> str:
        """What is said of a run whose process is ended from outside."""
        if self.folder is None:
            return "Without a folder there is nothing to resume"
        return f"Checkpoints are kept. Continue with: {self._again(self.folder)}"

    def _after(self, state: State) -> str:
        return f"stopped after round {state.round} of {self.rounds}"

    def _again(self, folder: RunFolder) -> str:
        config, out = (shlex.quote(str(path)) for path in (folder.path / "config.toml", folder.path))
        return f"{self.command} {config} --out {out} --resume"
