"""The result of a run: what `result.json` holds and what `torso.run` returns."""

from __future__ import annotations

import operator
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

from torso.data import Federation
from torso.errors import RequestError
from torso.measure import Accuracy
from torso.measure.fairness import Group, by_group
from torso.nets import Network, Tensors
from torso.personal.state import State
from torso.reading import parse_json
from torso.results.seal import RESULT, WAY_OUT, damage
from torso.server.state import Cost

ANALYSES = "analyses.json"


class RunModels(Protocol):
    """The models of a finished run. `torso.runs.models` implements it, so this package need not import `runs`."""

    @property
    def job(self) -> Any: ...
    @property
    def state(self) -> State: ...
    def generic(self) -> Tensors: ...
    def network(self) -> Network: ...
    def networks(self, clients: Sequence[int], personal: bool) -> Iterator[tuple[int, Network]]: ...
    def newcomer(self, samples: Any, labels: Any, epochs: int | None) -> Network: ...


@dataclass(frozen=True)
class Result:
    """The result of a run: accuracies (percentages, by client), costs, and the trained models.

    `network()`, `networks()` and `newcomer()` return models if the run took place in this process, or if `torso.load`
    has read its folder. `Result.read(folder)` reads the numbers only."""

    method: str
    dataset: str
    model: str
    seed: int
    rounds: int
    status: str
    accuracy: Mapping[str, Accuracy]
    cost: Cost
    seconds: Mapping[str, float]
    versions: Mapping[str, str] = field(default_factory=dict)
    peak_memory_bytes: int | None = field(default=None, compare=False)  # of the device; on CPU of the whole process
    malicious: tuple[int, ...] = ()  # clients that attacked (spec 9.6)
    names: tuple[str, ...] = ()  # of the clients, in the order of their numbers; empty if they have none
    class_names: tuple[str, ...] = ()  # in the order of the labels; empty if the data do not name them
    privacy: Mapping[str, Any] = field(default_factory=dict)  # of a private run: ε, δ, noise, clip, sampling
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)  # of data and final model
    analyses: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)  # what analyses.json holds
    folder: Path | None = field(default=None, compare=False)
    models: RunModels | None = field(default=None, compare=False, repr=False)

    def __str__(self) -> str:
        """A few lines for a person; `repr` has every field."""
        wide = max(map(len, self.accuracy), default=0)
        accuracies = [f"  {name:{wide}}  {accuracy}" for name, accuracy in self.accuracy.items()]
        sent, time = (self.cost.bytes_up + self.cost.bytes_down) / 1e6, self.seconds.get("total", 0.0)
        spent = f"  {sent:.1f} MB sent, {time:.1f} s" + (f", folder {self.folder}" if self.folder else "")
        head = f"{self.method} on {self.dataset}, {self.model}, seed {self.seed}, {self.rounds} rounds: {self.status}"
        return "\n".join([head, *accuracies, spent])

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """What a notebook shows of a result at the end of a cell."""
        printer.text(str(self))

    @property
    def ok(self) -> bool:
        """Whether the run finished without a failure."""
        return self.status == "ok"

    @property
    def job(self) -> Any:
        """The prepared run (`torso.runs.job.Simulation`); None if the models are not in this process."""
        return None if self.models is None else self.models.job

    @property
    def state(self) -> State | None:
        """The final state of the server and the clients; None if the models are not in this process."""
        return None if self.models is None else self.models.state

    @property
    def federation(self) -> Federation | None:
        """The clients and their data; None if the models are not in this process."""
        return None if self.models is None else self.models.job.federation

    @property
    def initial(self) -> Network | None:
        """The network with the weights that training started from; None if the models are not in this process."""
        return None if self.models is None else self.models.job.net

    @property
    def generic(self) -> Tensors:
        """The tensors of the generic model."""
        return self._ended().generic()

    def network(self, client: int | str | None = None, *, personal: bool = True) -> Network:
        """The generic model, or the personal model of a client, by number or name.

        It is an nn.Module in evaluation mode, on the CPU. Its `prepare` turns samples into input, and it returns
        logits. A personal model is made when you ask for it, and equals the one that `personalized` (or `personal`)
        measured; for a client that never trains (data.new_clients), `new_after`. `personal=False` gives the model
        before personalisation, which `initial` (or `new_before`) measured."""
        if client is None:
            return self._ended().network()
        ((_, net),) = self.networks([client], personal=personal)
        return net

    def networks(
        self, clients: Iterable[int | str] | None = None, *, personal: bool = True
    ) -> Iterator[tuple[int, Network]]:
        """Pairs of a client and the network that `network` gives, for these clients (None: for all).

        Networks are made while you iterate, several at a time. Clients that never train come last."""
        models = self._ended()
        total = models.job.roster.clients
        chosen = range(total) if clients is None else [self._known(client, total) for client in clients]
        return models.networks(chosen, personal)

    def by_group(self, name: str = "personalized", by: str = "size", groups: int = 4) -> tuple[Group, ...]:
        """An accuracy by groups of clients; each group has the same number of clients.

        Clients are grouped by their number of training samples (`by="size"`) or by their number of classes
        (`by="classes"`). Both come from the class counts in the run's analyses."""
        found, counts = self.accuracy.get(name), self.analyses.get("class_counts")
        if found is None or not found.clients:
            of_clients = sorted(n for n, accuracy in self.accuracy.items() if accuracy.clients)
            raise RequestError(f"name = {name!r} is no measure of clients here. Accepted: {', '.join(of_clients)}")
        quantities = {"size": sum, "classes": lambda row: sum(count > 0 for count in row)}
        if by not in quantities:
            raise RequestError(f"by = {by!r} is no quantity of clients. Accepted: {', '.join(quantities)}")
        if counts is None or len(counts) != len(found.clients):
            raise RequestError(
                f"the run has no class counts of the {len(found.clients)} clients that {name!r} was measured of. "
                "Expected: a simulation of at most 2,000 clients, measure.clients = 0, measure.among = all, "
                "data.new_clients = 0"
            )
        return by_group(found.clients, [quantities[by](row) for row in counts], groups)

    def newcomer(self, samples: Any, labels: Any, *, epochs: int | None = None) -> Network:
        """A network for a new client with these samples and their classes [n].

        Samples are what `prepare` takes: uint8 images [n, H, W, C] or [n, H, W], numbers [n, *], token ids [n, L]. The
        client starts from the model of a new client (`new_before`) and trains it (`new_after`) for `epochs` (None:
        personalize.epochs). The epoch that is best on a tenth of the samples is kept. With `epochs=0` nothing is
        trained; if a hypernetwork makes heads, the labels determine the head."""
        models = self._ended()
        if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 0):
            raise RequestError(f"epochs = {epochs!r} is not accepted. Expected: 0 or more, or None")
        return models.newcomer(samples, labels, epochs)

    def _ended(self) -> RunModels:
        if self.models is not None:
            return self.models
        raise RequestError(
            f"this result holds numbers and no models: it was read from {str(self.folder)!r}. "
            f"torso.load({str(self.folder)!r}) gives it with its models."
            if self.folder
            else "this result holds numbers and no models: its run had no folder, and took place in another process."
        )

    def _known(self, client: Any, clients: int) -> int:
        """The number of a client that is given by number or by name."""
        if isinstance(client, str):
            if client in self.names:
                return self.names.index(client)
            first = f"{', '.join(self.names[:5])}{' …' if len(self.names) > 5 else ''}"
            named = f"{first}; or " if self.names else ""
            raise RequestError(f"client = {client!r} does not exist. Accepted: {named}0 to {clients - 1}")
        try:
            number = operator.index(client)
        except TypeError:
            number = -1
        if not 0 <= number < clients or isinstance(client, bool):
            raise RequestError(f"client = {client!r} does not exist. Accepted: 0 to {clients - 1}")
        return number

    def as_json(self) -> dict[str, Any]:
        """The content of `result.json`. Optional entries are left out if they are empty."""
        optional = {
            "peak_memory_bytes": self.peak_memory_bytes,
            "malicious": list(self.malicious),
            "names": list(self.names),
            "class_names": list(self.class_names),
            "privacy": dict(self.privacy),
            "sha256": dict(self.sha256),
        }
        return {
            "method": self.method,
            "dataset": self.dataset,
            "model": self.model,
            "seed": self.seed,
            "rounds": self.rounds,
            "status": self.status,
            "accuracy": {name: found.as_json() for name, found in self.accuracy.items()},
            "cost": self.cost.as_json(),
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
            "versions": dict(self.versions),
            **{key: value for key, value in optional.items() if value},
        }

    @classmethod
    def read(cls, folder: str | Path) -> Result:
        """Read the numbers of a finished run from its folder. `torso.load` also gives the models."""
        folder = Path(folder)
        path = folder / RESULT
        for name in (RESULT, ANALYSES):
            if wrong := damage(folder, name):
                raise RequestError(f"{str(folder / name)!r} {wrong}. {WAY_OUT}.")
        try:
            tree = parse_json(path.read_text(encoding="utf-8"))
            _check_types(tree)
            found = {
                **{key: value for key, value in tree.items() if key in _IN_JSON},
                "accuracy": {name: Accuracy.from_json(found) for name, found in tree["accuracy"].items()},
                "cost": Cost(**tree["cost"]),
                "malicious": tuple(tree.get("malicious", ())),
                "names": tuple(tree.get("names", ())),
                "class_names": tuple(tree.get("class_names", ())),
            }
            return cls(**{**found, "analyses": _read_analyses(folder / ANALYSES), "folder": folder})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RequestError(f"{str(path)!r} is not the result of a run: {error}. Give another folder.") from None


def _read_analyses(path: Path) -> Any:
    try:
        return parse_json(path.read_text(encoding="utf-8")) if path.exists() else {}
    except (OSError, ValueError) as error:
        raise RequestError(f"{str(path)!r} cannot be read: {error}. Delete it to do without.") from None


_IN_JSON = {f.name for f in fields(Result)} - {"folder", "models"}


_TYPES: dict[str, type] = {
    **dict.fromkeys(("method", "dataset", "model", "status"), str),
    **dict.fromkeys(("seed", "rounds"), int),
    **dict.fromkeys(("accuracy", "cost", "seconds", "versions", "privacy", "sha256"), dict),
    "malicious": list,
    "names": list,
}


def _check_types(tree: Any) -> None:
    """Raise TypeError if an entry has the wrong type. A file without a seal may have been edited by hand."""
    for key, kind in _TYPES.items():
        if key in tree and not isinstance(tree[key], kind):
            raise TypeError(f"{key} is {type(tree[key]).__name__}")
    for name, entry in tree["accuracy"].items():
        numbers = [entry["mean"], entry["std"], *entry["clients"]]
        if not all(value is None or _is_number(value) for value in numbers) or type(entry["n"]) is not int:
            raise TypeError(f"accuracy of {name} holds what is no number")
    for section in ("cost", "seconds"):
        if not all(_is_number(value) for value in tree[section].values()):
            raise TypeError(f"{section} holds what is no number")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that a result depends on."""
    return {"python": platform.python_version(), **{name: _version(name) for name in ("torso", "torch", "numpy")}}


@cache  # a lookup takes 7 ms
def _version(name: str) -> str:
    try:
        return version(name)
    except ModuleNotFoundError:  # PackageNotFoundError: run from a source tree that is not installed
        return "source"
