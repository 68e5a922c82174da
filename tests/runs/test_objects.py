"""Objects in one call: arrays, tensors and Datasets as clients, a module as the network, a function on every round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from tests.runs.samples import digits
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import torso
from torso import Clients, Config, RequestError, Result
from torso.data import Tokens
from torso.nets import bodies, head_inits

TRAIN = {"rounds": 3, "fraction": 1.0, "local_epochs": 1, "batch_size": 10, "lr": 0.05}
CONFIG = {"method": "fedbabu", "train": TRAIN, "personalize": {"epochs": 1}, "run": {"device": "cpu", "workers": 1}}


def arrays(clients: int = 4) -> list[tuple[Any, Any]]:
    """scikit-learn's digits as uint8 images, dealt like cards."""
    raw = load_digits()
    images, labels = np.rint(raw.images * (255 / 16)).astype(np.uint8), raw.target
    return [(images[k:400:clients], labels[k:400:clients]) for k in range(clients)]


def named() -> dict[str, tuple[Any, Any]]:
    return {f"clinic-{k}": pair for k, pair in enumerate(arrays())}


def same(one: Result, other: Result) -> bool:
    assert one.state is not None
    assert other.state is not None
    return all(torch.equal(tensor, other.state.model[name]) for name, tensor in one.state.model.items())


# clients


def test_arrays_tensors_and_datasets_are_the_same_clients() -> None:
    of_arrays = torso.run(CONFIG, clients=named())
    of_tensors = torso.run(CONFIG, clients={n: (torch.tensor(x), torch.tensor(y)) for n, (x, y) in named().items()})
    of_sets = torso.run(
        CONFIG, clients={n: TensorDataset(torch.tensor(x), torch.tensor(y)) for n, (x, y) in named().items()}
    )
    assert of_arrays.ok
    assert same(of_arrays, of_tensors)
    assert same(of_arrays, of_sets)
    assert of_arrays.accuracy == of_tensors.accuracy == of_sets.accuracy


def test_they_are_the_clients_of_a_file_with_the_same_samples(tmp_path: Path) -> None:
    """A run on objects is that on an .npz file which names the same clients."""
    pairs = [((x[:80], y[:80]), (x[80:], y[80:])) for x, y in arrays()]
    splits: dict[str, Any] = {}
    for split, side in (("train", 0), ("test", 1)):
        splits[f"{split}_images"] = np.concatenate([pair[side][0] for pair in pairs])
        splits[f"{split}_labels"] = np.concatenate([pair[side][1] for pair in pairs])
        splits[f"{split}_writers"] = np.repeat(np.arange(4), [len(pair[side][1]) for pair in pairs])
    np.savez(tmp_path / "four.npz", **splits)
    data = {"source": "npz", "root": str(tmp_path / "four.npz"), "partition": "writers", "clients": 0}
    assert same(torso.run({**CONFIG, "data": data}), torso.run(CONFIG, clients=pairs))


def test_a_test_part_is_given_or_held_out() -> None:
    held = Clients(arrays(), held_out=0.3)
    assert [len(part.labels) for part in held.train] == [70] * 4
    assert [len(part.labels) for part in held.test] == [30] * 4
    for (images, labels), train, test in zip(arrays(), held.train, held.test, strict=True):
        both = np.concatenate([train.samples, test.samples])
        assert sorted(map(bytes, both)) == sorted(map(bytes, images))
        assert sorted(np.concatenate([train.labels, test.labels])) == sorted(labels)
    again = Clients(dict(reversed(list(zip(("a", "b", "c", "d"), arrays(), strict=True)))), held_out=0.3)
    first = Clients(dict(zip(("a", "b", "c", "d"), arrays(), strict=True)), held_out=0.3)
    assert np.array_equal(again.test[-1].samples, first.test[0].samples)  # drawn by the client's name, not its place
    given = Clients([((x[:90], y[:90]), (x[90:], y[90:])) for x, y in arrays()])
    assert [len(part.labels) for part in given.test] == [10] * 4


def test_names_are_kept_to_the_end(tmp_path: Path) -> None:
    result = torso.run(CONFIG, tmp_path / "out", clients=named())
    assert result.names == ("clinic-0", "clinic-1", "clinic-2", "clinic-3")
    assert Result.read(tmp_path / "out").names == result.names
    mine, by_number = result.network("clinic-2"), result.network(2)
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), by_number.parameters(), strict=True))
    with pytest.raises(RequestError, match=r"client = 'clinic-9' does not exist\. Accepted: clinic-0, clinic-1"):
        result.network("clinic-9")


def test_rows_and_sequences() -> None:
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(30, 5)).astype(np.float32), rng.integers(0, 3, 30)) for _ in range(3)]
    assert torso.run(CONFIG, clients=rows).ok
    ids = [(rng.integers(1, 20, (30, 6)), rng.integers(0, 3, 30)) for _ in range(3)]
    with_ids = Clients(ids, input=Tokens(6, 20, 0))
    assert torso.run({**CONFIG, "model": {"body": "embedding-mean"}}, clients=with_ids).ok


# a model


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 16)
        self.last = nn.Linear(16, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.relu(self.hidden(x.flatten(1))))  # type: ignore[no-any-return]


def test_a_module_is_the_network_with_the_weights_that_it_has() -> None:
    torch.manual_seed(3)
    module = Net()
    result = torso.run({**CONFIG, "method": "fedavg"}, clients=named(), model=module)
    assert result.ok
    assert result.initial is not None
    begun = result.initial.state_dict()
    assert torch.equal(begun["body.module.hidden.weight"], module.hidden.weight)
    assert torch.equal(begun["head.weight"], module.last.weight)
    assert torch.equal(begun["head.bias"], module.last.bias)
    assert not torch.equal(result.state.model["head.weight"], module.last.weight)  # type: ignore[union-attr]


def test_its_last_layer_is_the_head_of_any_method() -> None:
    result = torso.run({**CONFIG, "method": "fedper"}, clients=named(), model=Net())
    assert result.state is not None
    assert {n for kept in result.state.clients.of_kind("kept").values() for n in kept} == {"head.weight", "head.bias"}


def test_a_run_of_objects_is_resumed_and_loaded_with_the_same_ones(tmp_path: Path) -> None:
    module, whole = Net(), tmp_path / "whole"
    result = torso.run({**CONFIG, "method": "fedper"}, whole, clients=named(), model=module)
    again = torso.load(whole, clients=named(), model=module)
    assert same(result, again)
    saved = torso.save_model(again.network("clinic-1"), tmp_path / "clinic-1.safetensors")
    net = torso.load_model(saved, model=Net())
    x = net.prepare(arrays()[1][0])
    assert torch.equal(net(x), result.network("clinic-1")(x))
    with pytest.raises(RequestError, match="clients are not those of the run"):
        torso.load(whole, clients=arrays(), model=module)
    with pytest.raises(RequestError, match=r"data\.source = 'given': the clients of this run were objects"):
        torso.load(whole, model=module)
    with pytest.raises(RequestError, match=r"model\.body = 'given:Net:\w+': the network of this run was a module"):
        torso.load(whole, clients=named())
    with pytest.raises(RequestError, match=r"model\.body = 'given:Net:\w+'"):
        torso.load_model(saved)


def test_what_is_handed_over_is_forgotten_with_the_run() -> None:
    before = set(bodies), set(head_inits)
    torso.run({**CONFIG, "train": {**TRAIN, "rounds": 1}}, clients=named(), model=Net())
    assert (set(bodies), set(head_inits)) == before


# a function


def test_a_function_hears_of_every_round() -> None:
    heard: list[tuple[int, float, list[str]]] = []
    result = torso.run(
        {**CONFIG, "measure": {"every": 2, "during": ["initial"]}},
        clients=named(),
        on_round=lambda round, accuracy: heard.append((round.round, round.loss, list(accuracy))),
    )
    assert result.ok
    assert [number for number, _, _ in heard] == [1, 2, 3]
    assert [names for _, _, names in heard] == [[], ["initial"], []]


# several methods


def test_methods_are_compared_on_objects() -> None:
    rounds: list[int] = []
    found = torso.compare(
        ["fedavg", "fedper"],
        {k: v for k, v in CONFIG.items() if k != "method"},
        clients=named(),
        model=Net(),
        on_round=lambda round, accuracy: rounds.append(round.round),
    )
    assert [result.method for result in found] == ["fedavg", "fedper"]
    assert all(result.ok and result.names == tuple(named()) for result in found)
    assert rounds == [1, 2, 3] * 2
    alone = torso.run({**CONFIG, "method": "fedper"}, clients=named())
    assert alone.ok


def test_what_the_package_offers() -> None:
    assert torso.Method().but(share=torso.Method().share) == torso.Method()
    assert isinstance(torso.Listener(), torso.Listener)
    assert {"Clients", "Listener", "Method", "compare"} <= set(dir(torso))


# refusals


class Endless(Dataset[Any]):
    def __getitem__(self, place: int) -> Any:
        return place


@pytest.mark.parametrize(
    ("clients", "words"),
    [
        ([], "clients is empty. Expected: at least one"),
        (3, "clients is int. Expected: a list, or a dict by name"),
        ([np.zeros((3, 2))], r"clients\['client 0'\] is ndarray\. Expected: \(samples, labels\)"),
        ({"a": (np.zeros((3, 2)), np.zeros(3))}, r"clients\['a'\]: samples are float64 \[3, 2\], labels float64 \[3\]"),
        ({"a": (np.zeros((3, 2)), np.zeros(2, int))}, r"clients\['a'\]: .* labels int64 \[2\]"),
        ({"a": (np.zeros((0, 2)), np.zeros(0, int))}, r"clients\['a'\] has no samples"),
        ([(np.zeros((3, 2)), np.zeros(3, int)), (np.zeros((3, 4)), np.zeros(3, int))], r"of shapes \(2,\), \(4,\)"),
        ([Endless()], "is an endless Endless"),
        ({"a": TensorDataset(torch.zeros(0, 2), torch.zeros(0).long())}, r"clients\['a'\] has no samples"),
    ],
)
def test_clients_that_are_none_are_refused(clients: Any, words: str) -> None:
    with pytest.raises(RequestError, match=words):
        torso.run(CONFIG, clients=clients)


def test_what_a_dataset_raises_says_where() -> None:
    class Torn(TensorDataset):
        def __getitem__(self, place: int) -> Any:
            if place == 2:
                raise OSError("the disk is gone")
            return super().__getitem__(place)

    with pytest.raises(OSError, match="the disk is gone") as caught:
        torso.run(CONFIG, clients={"a": Torn(torch.zeros(4, 2), torch.zeros(4).long())})
    assert caught.value.__notes__ == ["clients['a']: this was sample 2 of 4"]


def test_two_places_for_clients_and_things_that_are_no_model_are_refused() -> None:
    with pytest.raises(RequestError, match=r"data\.partition = 'iid' says where clients come from"):
        torso.run({**CONFIG, "data": {"partition": "iid"}}, clients=named())
    with pytest.raises(RequestError, match=r"model is str\. Expected: an nn\.Module"):
        torso.run(CONFIG, clients=named(), model="conv4")
    with pytest.raises(RequestError, match=r"on_round is int\. Expected: a function of \(round, accuracy\)"):
        torso.run(CONFIG, clients=named(), on_round=3)  # type: ignore[arg-type]
    with pytest.raises(RequestError, match=r"held_out = 1\.5\. Expected"):
        Clients(named(), held_out=1.5)


def test_names_still_work_beside_objects() -> None:
    """A model of ours on handed clients, a handed model on clients by name."""
    assert torso.run({**CONFIG, "model": {"body": "conv3"}}, clients=named()).ok
    config = Config(method="fedavg", train={**TRAIN, "rounds": 1}, data={"clients": 10}, run={"device": "cpu"})
    assert torso.run(config, model=Net(), federation=None).ok
    assert digits().clients == 10
