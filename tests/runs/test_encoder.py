"""`model.encoder`: the same run as on features that somebody has computed, and a model that takes raw samples."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.nets.text_models import save_sentence
from tests.runs.samples import Heard
from tests.runs.test_texts import rows, table
from torch import Tensor, nn

import torso
from torso import Config, RequestError, load_model, predict, run
from torso.data.encoded import Encoded
from torso.data.inputs import Floats
from torso.engine import feature_space
from torso.engine.feature_files import CACHE
from torso.federation.run import for_federation
from torso.federation.split import split
from torso.nets import bodies, body_of
from torso.results.export import export
from torso.runs.job import data_of, simulate

TRAIN = [
    *("train.rounds=2", "train.fraction=1.0", "train.lr=0.1", "method.name=fedbabu"),
    *("measure.names=initial,personalized,generic,new_after", "run.workers=1", "run.device=cpu"),
]
DEAL = ["data.partition=iid", "data.clients=5", "data.new_clients=1"]
ABOUT = ("accuracy", "cost", "dataset", "rounds", "status")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of texts and a tiny sentence encoder with random weights."""
    where = tmp_path_factory.mktemp("encoder")
    table(where / "rows.csv")
    save_sentence(where / "sentence", normalize=False)
    return where


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))


def texts(place: Path, *sets: str) -> Config:
    usual = ["data.source=csv", f"data.root={place / 'rows.csv'}", "data.csv.text=text"]
    return Config.load(None, [*usual, f"model.encoder=sentence/{place / 'sentence'}", *DEAL, *TRAIN, *sets])


def by_hand(place: Path, words: list[str]) -> Tensor:
    """Features as transformers computes them: the mean over the tokens of a text, one text at a time."""
    import transformers
    from tokenizers import Tokenizer

    model = transformers.AutoModel.from_pretrained(place / "sentence").eval()
    tokenizer = Tokenizer.from_file(str(place / "sentence" / "tokenizer.json"))
    tokenizer.no_truncation()
    made = []
    for text in words:
        ids = torch.tensor([tokenizer.encode(text).ids])
        assert ids.shape[1] <= 12  # what the encoder takes
        with torch.no_grad():
            made.append(model(input_ids=ids).last_hidden_state[0].mean(dim=0))
    return torch.stack(made)


def as_numbers(config: Config, path: Path) -> Config:
    """The features of a config's data as an .npz file of numbers, and the run on it without an encoder."""
    found = data_of(config)
    parts = {"train": found.train, "test": found.test}
    arrays = {f"{name}_samples": split.samples.numpy() for name, split in parts.items()}
    labels = {f"{name}_labels": split.labels.numpy() for name, split in parts.items()}
    np.savez(path, **arrays, **labels, name=np.array(found.name))
    return config.but("model.encoder=", "data.source=npz", f"data.root={path}", "data.csv.text=[]")


def test_features_are_those_of_the_library(place: Path) -> None:
    """With an origin of its own: transformers, text by text."""
    found = data_of(texts(place, "data.csv.test_share=0.25"))
    said = [text for _, text in rows(80)]
    wanted = {tuple(np.round(row, 3)) for row in by_hand(place, said).numpy()}
    assert {tuple(np.round(row, 3)) for row in found.train.samples.numpy()} <= wanted
    assert found.input.shape == (32,)


@pytest.mark.parametrize("method", ["fedbabu", "scaffold", "fedrod-hyper", "lp"])
@pytest.mark.parametrize("engine", ["one-by-one", "batched"])
def test_a_run_is_the_run_on_the_same_numbers(place: Path, tmp_path: Path, method: str, engine: str) -> None:
    """Bit for bit, costs included: the encoder is neither sent nor trained."""
    config = texts(place, f"method.name={method}", f"run.engine={engine}")
    other = as_numbers(config, tmp_path / "features.npz")
    found, wanted = (run(each) for each in (config, other))
    for about in ABOUT:
        assert getattr(found, about) == getattr(wanted, about)
    one, two = found.network(0).state_dict(), wanted.network(0).state_dict()
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_the_encoder_is_not_in_a_checkpoint(place: Path, tmp_path: Path) -> None:
    run(texts(place, "method.name=fedper"), tmp_path / "run")
    held = [name for file in (tmp_path / "run/checkpoints").glob("*.safetensors") for name in load_file(file)]
    assert held
    assert not [name for name in held if "encoder" in name or "embeddings" in name]


def test_samples_are_encoded_once(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """80 texts in two passes (training and test samples) for the first run; later runs find the file."""
    passes: list[str] = []
    true = feature_space.compute

    def counted(engine: Any, body: Any, split: Any, into: Tensor) -> None:
        if into.shape[1] == 32:  # the encoder's; the network's own body has 200
            passes.append(split)
        true(engine, body, split, into)

    monkeypatch.setattr("torso.engine.features_kept.compute", counted)
    config = texts(place)
    first = run(config)
    assert len(passes) == 2
    assert run(config).accuracy == first.accuracy
    assert len(passes) == 2


def test_another_encoder_of_the_same_name_has_other_features(place: Path, tmp_path: Path) -> None:
    """A cache is never met with other weights, and a run is not loaded with them."""
    save_sentence(tmp_path / "sentence", normalize=False)
    config = texts(place, f"model.encoder=sentence/{tmp_path / 'sentence'}")
    run(config, tmp_path / "run")
    before = data_of(config).train.samples
    save_sentence(tmp_path / "sentence", normalize=False, seed=1)
    assert not torch.equal(before, data_of(config).train.samples)
    with pytest.raises(RequestError, match=r"samples were features by .* with weights"):
        torso.load(tmp_path / "run")


def test_a_model_file_takes_texts(place: Path, tmp_path: Path) -> None:
    """By hand: the library's features, standardised by the card, under the network's layers. The encoder is in one
    file beside the models."""
    words = [text for _, text in rows(6, seed=3)]
    result = run(texts(place), tmp_path / "run")
    for name in ("generic", "client-2"):
        torso.save_model(result.network(2 if name == "client-2" else None), tmp_path / f"models/{name}.safetensors")
    assert len(list((tmp_path / "models").glob("encoder-*.safetensors"))) == 1
    net = load_model(tmp_path / "models/client-2.safetensors")
    card = net.card
    assert card is not None
    assert card.encoder is not None
    features = (by_hand(place, words) - torch.tensor(card.encoder.mean)) / torch.tensor(card.encoder.std)
    wanted = torch.softmax(net(features), dim=1)
    found = predict(tmp_path / "models/client-2.safetensors", words)
    torch.testing.assert_close(torch.from_numpy(found.probabilities), wanted, rtol=1e-4, atol=1e-5)
    again = predict(torso.load(tmp_path / "run"), words, client=2)
    np.testing.assert_allclose(again.probabilities, found.probabilities, rtol=1e-5, atol=1e-6)


def test_a_model_without_its_encoder(place: Path, tmp_path: Path) -> None:
    """The encoder is found by its name; other weights are refused, beside the model and by name."""
    save_sentence(tmp_path / "sentence", normalize=False)
    result = run(texts(place, f"model.encoder=sentence/{tmp_path / 'sentence'}"))
    path = torso.save_model(result.network(), tmp_path / "models/generic.safetensors")
    (beside,) = (tmp_path / "models").glob("encoder-*.safetensors")
    wanted = predict(path, ["the cat sat"]).probabilities
    kept = load_file(beside)
    beside.unlink()
    np.testing.assert_array_equal(predict(path, ["the cat sat"]).probabilities, wanted)
    save_sentence(tmp_path / "sentence", normalize=False, seed=1)
    with pytest.raises(RequestError, match=r"has other weights .* Put encoder-\w+\.safetensors beside the model"):
        load_model(path)
    save_file({name: tensor + 1 if tensor.is_floating_point() else tensor for name, tensor in kept.items()}, beside)
    with pytest.raises(RequestError, match="has other weights"):
        load_model(path)


def test_data_travel_without_the_network(place: Path) -> None:
    """Workers of a cluster get features; who needs the encoder itself reads its weights again."""
    data = data_of(texts(place))
    assert data.encoding is not None
    sent = pickle.dumps(data.encoding)
    assert len(sent) < 5000  # 10,000 weights are 40,000 bytes
    again = pickle.loads(sent)
    assert again == data.encoding
    assert isinstance(data.input, Encoded)
    assert data.input.raw is not None
    stored = torch.zeros(2, *data.input.raw.shape, dtype=torch.int32)
    assert torch.equal(again.encoder_of(data.input.raw)(stored), data.encoding.encoder_of(data.input.raw)(stored))


def test_resumed(place: Path, tmp_path: Path) -> None:
    whole = run(texts(place), tmp_path / "whole")
    short = texts(place, "train.rounds=1")
    run(short, tmp_path / "run")
    found = run(texts(place), tmp_path / "run", resume=True)
    assert found.accuracy == whole.accuracy


def test_a_later_client_brings_texts(place: Path, tmp_path: Path) -> None:
    run(texts(place), tmp_path / "run")
    table(tmp_path / "late.csv", 30, seed=5)
    found = torso.personalize(tmp_path / "run", tmp_path / "late.csv", how="tune")
    assert found.samples + found.held_out == 30
    assert found.network.prepare(["the cat sat"]).shape == (1, 32)


def colours(channels: int, height: int, width: int) -> Any:
    """Eight numbers of an image, by fixed weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return body_of(nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, 8), nn.Tanh(), nn.Linear(8, 2)))


def test_numbers(tmp_path: Path) -> None:
    """A table of numbers under an encoder of random weights: standardised before it, and its features after it."""
    draw = np.random.default_rng(0)
    samples, labels = draw.normal(5, 3, (60, 4)).astype(np.float32), np.arange(60) % 2
    arrays = {
        f"{part}_{what}": each
        for part in ("train", "test")
        for what, each in (("samples", samples), ("labels", labels))
    }
    np.savez(tmp_path / "table.npz", **arrays)
    sets = [
        "data.source=npz",
        f"data.root={tmp_path / 'table.npz'}",
        "model.encoder=mlp",
        "model.encoder_weights=random",
    ]
    config = Config.load(None, [*sets, *DEAL, *TRAIN])
    net = run(config).network()
    data = data_of(config)
    assert isinstance(data.input, Encoded)
    assert isinstance(data.input.raw, Floats)
    np.testing.assert_allclose(data.input.raw.mean, samples.mean(axis=0), rtol=1e-5)
    kind = data.input
    wanted = (data.train.samples - torch.tensor(kind.mean)) / torch.tensor(kind.std)
    torch.testing.assert_close(net.prepare(samples), wanted, rtol=1e-4, atol=1e-5)


def test_a_head_alone_on_features(place: Path) -> None:
    """Without layers a model is W·x + b of the encoder's features; what needs a body is refused."""
    net = run(texts(place, "model.body=none", "method.name=fedavg")).network()
    x = net.prepare(["the cat sat", "stock prices fell"])
    weights = net.state_dict()
    assert set(weights) == {"head.weight", "head.bias"}
    torch.testing.assert_close(net(x), x @ weights["head.weight"].T + weights["head.bias"])
    with pytest.raises(RequestError, match="holds nothing in this network"):
        run(texts(place, "model.body=none", "method.name=fedbabu"))


class Neighbourly(nn.Sequential):
    """A feature depends on the other samples of the batch."""

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self[1](self[0](x))
        return self[2](found - found.mean(dim=0))  # type: ignore[no-any-return]


def neighbourly(channels: int, height: int, width: int) -> Any:
    inner = nn.Linear(channels * height * width, 8), nn.Linear(8, 2)
    return body_of(Neighbourly(nn.Flatten(), *inner))


@pytest.fixture
def images(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name, make in (("colours", colours), ("neighbourly", neighbourly)):
        monkeypatch.setitem(bodies, name, make)
    return ["data.source=synthetic", "data.synthetic.samples=200", "data.synthetic.test_samples=80", *DEAL, *TRAIN]


def test_pictures(images: list[str], tmp_path: Path) -> None:
    """A plugin's body as an encoder; images are neither cropped nor mirrored, and a program holds the encoder."""
    config = Config.load(None, [*images, "model.encoder=colours", "model.encoder_weights=random"])
    result = run(config, tmp_path / "run")
    net = result.network(1)
    pictures = np.random.default_rng(0).integers(0, 256, (4, *simulate(config).federation.input.raw.shape[1:], 1))
    logits = net(net.prepare(pictures.astype(np.uint8)))
    torso.save_model(net, tmp_path / "model.pt2")
    program = torch.export.load(tmp_path / "model.pt2").module()
    torch.testing.assert_close(program(torch.from_numpy(pictures.astype(np.uint8))), logits, rtol=1e-4, atol=1e-5)
    assert json.loads((tmp_path / "run/result.json").read_text())["model"] == "mlp on colours"


@pytest.mark.parametrize(
    ("sets", "said"),
    [
        (["model.encoder=nobody"], "model.encoder = 'nobody' is unknown"),
        (["model.encoder=colours"], "model.encoder = 'colours' comes without trained weights"),
        (["model.encoder=efficientnet-lite0", "model.encoder_weights=imagnet"], "did you mean 'imagenet'"),
        (["model.encoder=colours", "model.encoder_weights=random", "data.augment=flip"], "data.augment = 'flip'"),
        (["model.encoder=colours", "model.encoder_weights=random", "model.body=conv4"], "model.body = 'conv4' takes"),
        (["model.encoder=neighbourly", "model.encoder_weights=random"], "the other samples of its batch"),
        (["model.encoder=conv3", "model.encoder_weights=random"], "model.encoder = 'conv3': its BatchNorm"),
        (["model.encoder=transformer", "model.encoder_weights=random"], "model.encoder = 'transformer' takes"),
    ],
)
def test_refusals(images: list[str], sets: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError) as caught:
        run(Config.load(None, [*images, *sets]), tmp_path / "run")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_weights_of_no_encoder_are_said_to_be_unread(images: list[str], tmp_path: Path) -> None:
    heard = Heard()
    run(Config.load(None, [*images, "model.encoder_weights=imagenet", "train.rounds=1"]), listener=heard)
    assert any(note.startswith("model.encoder_weights = 'imagenet' is set, but has no effect") for note in heard.notes)


def test_a_real_federation_refuses_it_and_takes_the_features(place: Path, tmp_path: Path) -> None:
    """`torso federation split` writes each client's features, and a config without an encoder."""
    config = texts(place, "data.new_clients=0", "measure.names=generic")
    with pytest.raises(RequestError, match="do not encode their samples"):
        for_federation(config)
    split(config, tmp_path / "sites")
    told = Config.load(tmp_path / "sites/config.toml")
    assert told.model.encoder == ""
    found = np.load(tmp_path / "sites/client-000.npz")["train_samples"]
    data = data_of(config)
    np.testing.assert_array_equal(found, data.train.samples[data.train.rows(0)].numpy())


def test_an_export_holds_the_encoder_once(place: Path, tmp_path: Path) -> None:
    result = run(texts(place), tmp_path / "run")
    export(result, tmp_path / "models", clients=[0, 1, 2])
    files = sorted(path.name for path in (tmp_path / "models").iterdir())
    about = result.network().card
    assert about is not None
    assert about.encoder is not None
    encoder = f"encoder-{about.encoder.digest[:12]}.safetensors"
    assert files == sorted(
        ["README.md", "generic.safetensors", *(f"client-{k}.safetensors" for k in range(3)), encoder]
    )
    assert encoder in (tmp_path / "models/README.md").read_text()


def test_a_federation_of_others_is_refused(images: list[str]) -> None:
    plain = Config.load(None, images)
    config = plain.but("model.encoder=colours", "model.encoder_weights=random")
    with pytest.raises(RequestError, match="the federation that was given holds"):
        run(config, federation=data_of(plain))
    with pytest.raises(RequestError, match="the federation that was given holds"):
        run(plain, federation=data_of(config))
