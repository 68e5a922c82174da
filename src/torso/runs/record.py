"""The record of a run (times, memory, analyses of rounds), which goes into its folder and its result."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torso.engine.memory import peak_memory_bytes
from torso.measure import Accuracy
from torso.measure.analyses import joined_entries
from torso.personal.state import State
from torso.results.checksums import data_checksum, model_checksum
from torso.results.data_file import DataFile
from torso.results.folder import RunFolder
from torso.results.result import Result, versions
from torso.runs.history_line import line_of
from torso.runs.job import Job, Simulation
from torso.runs.models import TrainedModels
from torso.runs.rounds import Round


class Record:
    """The record of one run. Without a folder it is only in memory."""

    def __init__(self, job: Job, folder: RunFolder | None) -> None:
        self.job = job
        self.folder = folder
        self.seconds = {"train": 0.0, "measure": 0.0}
        self.analysed: dict[int, dict[str, Any]] = {}  # round -> the results of its analyses
        self.counts: dict[str, Any] = {}  # training samples of each client and class, if clients tell them
        self.peak_memory: int | None = None  # bytes

    def resume(self) -> tuple[State | None, str]:
        """The state of the newest checkpoint, or None, and a sentence that says where the run continues."""
        assert self.folder is not None
        self.seconds["train"] = sum((line["seconds"] for line in self.folder.history()), 0.0)
        broken = self.folder.broken()  # must be read before `resume` rewrites the history
        found = self.folder.resume(self.job.model)
        self.analysed = {line["round"]: line["analyses"] for line in self.folder.history() if "analyses" in line}
        if found is None:
            return None, "no checkpoint yet: from the first round"
        skipped = "".join(f"; {reason}, passed over" for reason in (*found.skipped, *broken))
        return found.state, f"continuing after round {found.state.round}, from {found.path}{skipped}"

    @contextmanager
    def measuring(self) -> Iterator[None]:
        """Count the time of the block as measuring, not as training."""
        self.note_memory()  # the peak of training, since the block may reset the peak
        began = time.perf_counter()
        yield
        self.seconds["measure"] += time.perf_counter() - began
        self.note_memory()

    def note_memory(self) -> None:
        used = peak_memory_bytes(self.job.device)
        self.peak_memory = max(used, self.peak_memory or 0) if used else None

    def round(
        self,
        played: Round,
        after: State,
        seconds: float,
        accuracy: Mapping[str, Accuracy],
        replaced: tuple[str, ...],
    ) -> None:
        """Write a line of the history, and a checkpoint if it is due. `replaced`: messages about work done again."""
        if self.folder is None:
            return
        self.folder.append(line_of(played, seconds, accuracy, replaced, self.analysed.get(played.round)))
        every = self.job.config.run.checkpoint_every
        if played.round == self.job.rounds or (every and played.round % every == 0):
            self.folder.save(after)

    def finish(
        self, state: State, status: str, accuracy: Mapping[str, Accuracy], analyses: Mapping[str, Any]
    ) -> Result:
        """Make the result, and write it to the folder."""
        job, config, seconds = self.job, self.job.config, self.seconds
        self.note_memory()
        result = Result(
            method=config.method.name,
            dataset=job.roster.name,
            model=f"{config.model.body} on {config.model.encoder}" if config.model.encoder else config.model.body,
            seed=config.run.seed,
            rounds=state.round,
            status=status,
            accuracy=accuracy,
            cost=state.cost,
            seconds={**seconds, "total": sum(seconds.values())},
            versions=versions(),
            peak_memory_bytes=self.peak_memory,
            malicious=tuple(sorted(job.roster.malicious)),
            names=job.roster.names,
            class_names=job.roster.class_names,
            privacy=job.privacy.as_json(state.round, state.server.privacy) if job.privacy else {},
            sha256=self._checksums(state),
            analyses={**self.counts, **joined_entries(self.analysed), **analyses},
            folder=self.folder.path if self.folder else None,
            models=TrainedModels(job, state) if isinstance(job, Simulation) else None,
        )
        if self.folder:
            self.folder.finish(result)
        return result

    def _checksums(self, state: State) -> dict[str, str]:
        """Checksums of the data and of the final model. Empty if the run has no folder."""
        if self.folder is None:
            return {}
        data = DataFile.read(self.folder.path)  # None in a real federation, whose clients do not show their data
        return {**({"data": data_checksum(data.fingerprint)} if data else {}), "model": model_checksum(state)}
