"""A run's numbers as TensorBoard events, in the folder `events/` of the run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torso.errors import RequestError
from torso.measure import Accuracy
from torso.results.result import Result
from torso.runs.events import Begin, ForwardingListener, Listener
from torso.runs.rounds import Round


class TensorBoard(ForwardingListener):
    """A listener that writes events and passes everything on to another listener. No run folder: no events."""

    def __init__(self, then: Listener) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise RequestError(
                "--tensorboard needs the tensorboard package, which is not installed. "
                'Install it with: pip install "torso[tensorboard]"'
            ) from None
        self._make: Any = SummaryWriter
        self._writer: Any = None
        super().__init__(then)

    def begin(self, begin: Begin) -> None:
        if begin.folder is not None:  # a resumed run drops what it wrote after its checkpoint
            self._writer = self._make(str(begin.folder / "events"), purge_step=begin.done + 1)
        super().begin(begin)

    def round(self, round: Round, seconds: float, accuracy: Mapping[str, Accuracy]) -> None:
        values = {"loss": round.loss, "lr": round.lr, "seconds": seconds, "participants": len(round.participants)}
        moved = (round.cost.bytes_up + round.cost.bytes_down) / 1e6
        self._write(round.round, {f"train/{name}": value for name, value in values.items()} | {"cost/megabytes": moved})
        self._accuracy(round.round, accuracy)
        super().round(round, seconds, accuracy)

    def beside(self) -> Listener:
        return TensorBoard(self.listener.beside())

    def end(self, result: Result) -> None:
        self._accuracy(result.rounds, result.accuracy)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        super().end(result)

    def _accuracy(self, round: int, accuracy: Mapping[str, Accuracy]) -> None:
        self._write(round, {f"accuracy/{name}": found.mean for name, found in accuracy.items()})
        self._write(round, {f"std_over_clients/{name}": a.std for name, a in accuracy.items() if a.n > 1})

    def _write(self, round: int, values: Mapping[str, float]) -> None:
        if self._writer is not None:
            for name, value in values.items():
                self._writer.add_scalar(name, value, round)
            self._writer.flush()
