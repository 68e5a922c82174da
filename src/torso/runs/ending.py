"""Messages for a run that ends early: where it stands, what is kept of it, and how to continue."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from torso.errors import NoWorkerLeft, TorsoError
from torso.personal.state import State
from torso.results.checkpoint import rounds_of
from torso.results.folder import RunFolder


class Stopped(TorsoError):
    """The user has stopped the run. It can be resumed if it has a folder."""

    exit_status = 130
    whose = ""  # the name of the run, if there were several


@dataclass(frozen=True)
class Ending:
    """Writes the last checkpoint of a run that ends early, and the messages about it."""

    folder: RunFolder | None
    rounds: int
    command: str  # the command that resumes the run, without its arguments

    def stopped(self, state: State, opened: bool) -> str:
        """Save a run that ends between two rounds or measures, if it has a folder. Returns where it stands.

        `opened`: whether the start of the method, which comes before the first round, is done."""
        measuring = ", before all was measured" if state.round == self.rounds else ""
        where = f"{self._after(state)}{measuring}"
        if self.folder is None:
            return f"{where}; without a folder there is nothing to resume"
        left = ""
        try:
            if opened or state.round:
                self.folder.save(state)
                left = ", with a checkpoint"
        except NoWorkerLeft:  # the clients' states were on a machine that is lost
            left = "; what came after the last checkpoint is lost"
        return f"{where}{left}. Continue with: {self._again(self.folder)}"

    def unwritable(self, state: State) -> str:
        """The message if the run's folder cannot be written any more."""
        if self.folder is None:
            return self._after(state)
        kept = rounds_of(self.folder.path / "checkpoints")
        newest = f"The checkpoint of round {kept[-1]} is kept" if kept else "There is no checkpoint yet"
        return f"{newest}. Make room, then continue with: {self._again(self.folder)}"

    def at_once(self) -> str:
        """The message if the process is ended from outside."""
        if self.folder is None:
            return "Without a folder there is nothing to resume"
        return f"Checkpoints are kept. Continue with: {self._again(self.folder)}"

    def _after(self, state: State) -> str:
        return f"stopped after round {state.round} of {self.rounds}"

    def _again(self, folder: RunFolder) -> str:
        config = shlex.quote(str(folder.path / "config.toml"))
        out = shlex.quote(str(folder.path))
        return f"{self.command} {config} --out {out} --resume"
