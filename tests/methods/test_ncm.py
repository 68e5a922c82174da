"""The FedNCM family on the federation of tiny.py and on digits (spec 7, and 18, point 7)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tests.measure.test_accuracy import three
from tests.runs.samples import digits
from torch.testing import assert_close

from torso import Config, RequestError, run
from torso.methods import methods
from torso.runs.events import Listener
from torso.runs.job import simulate

from .tiny import federation

SMALL = {"rounds": 2, "local_epochs": 1, "fraction": 0.5, "batch_size": 10, "lr": 0.01}


def on_three(metric: str = "direction") -> torch.Tensor:
    """Class means of the three hand-made clients: 0 (1, 0) and (0, 1); 1 (1, 0), (0.6, 0); 2 (0.2, 0.4); 3 (0, 1)."""
    config = Config(
        method={"name": "fedncm", "start": {"metric": metric}}, model={"body": "scale"}, train={"batch_size": 2}
    )
    state = run(config, federation=three()).state
    assert state is not None
    return torch.cat([state.model["head.weight"], state.model["head.bias"].unsqueeze(1)], dim=1)


def test_rows_are_class_means_of_length_one_over_all_clients() -> None:
    half = 0.5**0.5
    expected = [[half, half, 0], [1, 0, 0], [0.2**0.5, 0.8**0.5, 0], [0, 1, 0]]
    assert_close(on_three(), torch.tensor(expected))


def test_euclidean_is_the_nearest_mean() -> None:
    """Rows m, bias −‖m‖²/2."""
    expected = [[0.5, 0.5, -0.25], [0.8, 0, -0.32], [0.2, 0.4, -0.1], [0, 1, -0.5]]
    assert_close(on_three("euclidean"), torch.tensor(expected))


def test_a_class_that_nobody_has_is_never_said() -> None:
    """The tiny federation with a third class that is nowhere."""
    config = Config(method="fedncm", model={"body": "scale"})
    result = run(config, federation=replace(federation(), classes=3))
    assert result.state is not None
    assert result.state.model["head.weight"][2].tolist() == [0.0, 0.0]
    said = result.network()(torch.rand(50, 1, 1, 2) - 0.5).argmax(dim=1)
    assert 2 not in said


def without_bias(*sets: str) -> Config:
    return Config.load(None, ["method.name=fedncm", "model.body=scale", "model.head_bias=false", *sets])


def test_directions_need_no_bias() -> None:
    state = run(without_bias(), federation=three()).state
    assert state is not None
    assert_close(state.model["head.weight"], on_three()[:, :2])


@pytest.mark.parametrize("head", ["linear", "dual"])
def test_the_nearest_mean_needs_a_bias(head: str) -> None:
    words = r"^method\.start\.metric = 'euclidean' keeps −‖m‖²/2 .* model\.head_bias = false\. Accepted: model"
    with pytest.raises(RequestError, match=words):
        simulate(without_bias("method.start.metric=euclidean", f"method.head={head}"), three())


@pytest.mark.parametrize("sets", [("method.head=normalized", "method.head.bias=true"), ("method.head=sphere",)])
def test_the_nearest_mean_needs_whole_features(sets: tuple[str, ...]) -> None:
    words = r"^method\.start\.metric = 'euclidean' .* sees only their direction\. Accepted: method\.start\.metric"
    with pytest.raises(RequestError, match=words):
        simulate(without_bias("method.start.metric=euclidean", "model.body=mlp", *sets), digits())


@pytest.mark.parametrize("head", ["linear", "normalized"])
def test_a_class_that_nobody_has_needs_a_bias(head: str) -> None:
    """Known only when the counts have come; the row alone would be 0, and 0 may be the largest product."""
    result = run(without_bias(f"method.head={head}"), federation=replace(federation(), classes=3))
    assert result.status.startswith(
        "failed: method.start = 'class-means': no client has samples of class 2, and the head has no bias that would "
        "rule the class out. Accepted: model.head_bias = true"
    )


def test_a_normalised_head_with_a_bias_rules_a_class_out() -> None:
    config = without_bias("method.head=normalized", "method.head.bias=true")
    state = run(config, federation=replace(federation(), classes=3)).state
    assert state is not None
    assert state.model["head.bias"].tolist() == [0.0, 0.0, -1e4]


@pytest.mark.parametrize("method", ["fedncm", "fedncm-ft"])
def test_batch_statistics_would_make_the_head_depend_on_the_partition(method: str) -> None:
    words = (
        r"^method\.start = 'class-means' needs features that do not depend on how data are dealt, and BatchNorm at "
        r"body\.\S+ takes its statistics from the batch\. Accepted: model\.norm = 'running'"
    )
    with pytest.raises(RequestError, match=words):
        simulate(Config(method=method, model={"body": "conv3"}))


def test_with_running_statistics_the_head_does_not_depend_on_the_partition(tmp_path: Path) -> None:
    """Two classes a client, or ten, in batches of 32: the same head. The statistics are those that a round has left."""
    model = {"body": "conv3", "norm": "running"}
    generic = {"names": ["generic"]}
    run(Config(model=model, data={"clients": 10}, train={**SMALL, "rounds": 1}, measure=generic), tmp_path / "body")

    def head(shards: int) -> torch.Tensor:
        trained = {**model, "weights": str(tmp_path / "body")}
        data = {"clients": 10, "shards": shards}
        state = run(Config(method="fedncm", data=data, model=trained, measure={**generic, "batch_size": 32})).state
        assert state is not None
        return state.model["head.weight"]

    assert_close(head(2), head(10), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("clients", [1, 7, 20])
def test_the_head_does_not_depend_on_the_partition(clients: int) -> None:
    def head(count: int, partition: str) -> torch.Tensor:
        data = {"clients": count, "partition": partition, "alpha": 0.5}
        state = run(Config(method="fedncm", data=data, measure={"names": ["generic"]})).state
        assert state is not None
        return state.model["head.weight"]

    assert_close(head(clients, "dirichlet-class"), head(5, "shards"), rtol=1e-4, atol=1e-6)


def test_costs_are_one_upload_of_sums_and_counts_and_one_pass() -> None:
    result = run(Config(method="fedncm", data={"clients": 10}, measure={"names": ["generic"]}))
    assert (result.cost.bytes_up, result.cost.bytes_down) == (10 * 4 * (10 * 200 + 10), 0)
    assert result.cost.forward_passes == 1442  # every training sample once
    assert result.rounds == 0


def test_fine_tuning_goes_on_from_the_head_of_class_means() -> None:
    """With a rate of almost 0, FedNCM+FT stays at FedNCM."""
    config = Config(method="fedncm-ft", data={"clients": 10}, train={**SMALL, "lr": 1e-12})
    tuned = run(config)
    plain = run(config.but("method.name=fedncm"))
    assert tuned.state is not None
    assert plain.state is not None
    assert_close(tuned.state.model["head.weight"], plain.state.model["head.weight"], rtol=1e-4, atol=1e-6)
    assert tuned.rounds == 2


def test_linear_probing_leaves_the_body_and_lp_ft_is_two_stages() -> None:
    result = run(Config(method="lp", data={"clients": 10}, train=SMALL))
    assert result.initial is not None
    assert result.state is not None
    for name, tensor in result.initial.state_dict().items():
        assert torch.equal(tensor, result.state.model[name]) == name.startswith("body.")
    job = simulate(Config(method="lp-ft", data={"clients": 10}, train=SMALL))
    assert [(s.method.name, s.rounds, s.rate(s.first)) for s in job.plan] == [("lp", 10, 0.01), ("lp-ft", 2, 0.01)]


def test_a_body_trained_elsewhere_comes_from_a_run_or_a_file(tmp_path: Path) -> None:
    base = {"data": {"clients": 10}, "measure": {"names": ["generic"]}}
    trained = run(Config(method="fedavg", train=SMALL, **base), tmp_path / "run")
    assert trained.state is not None
    save_file(trained.state.model, tmp_path / "net.safetensors")
    for source in ("run", "net.safetensors"):
        started = simulate(Config(method="fedncm", model={"weights": str(tmp_path / source)}, **base)).model
        for name, tensor in started.items():
            assert torch.equal(tensor, trained.state.model[name]) == name.startswith("body.")


def test_a_body_that_does_not_fit_is_refused_by_name(tmp_path: Path) -> None:
    save_file({"body.blocks.0.linear.weight": torch.zeros(2, 2)}, tmp_path / "small.safetensors")
    fits = (
        r"^model\.weights = '.*small.safetensors' does not fit model\.body = 'mlp': body\.blocks\.0\.linear\.weight is "
        r"float32 \[2, 2\], expected float32 \[200, 64\]; it lacks .*\. Give weights of this body, or change .*body$"
    )
    with pytest.raises(RequestError, match=fits):
        simulate(Config(model={"weights": str(tmp_path / "small.safetensors")}))
    save_file({"body.stem": torch.zeros(2, 2)}, tmp_path / "other.safetensors")
    with pytest.raises(RequestError, match=r"does not fit model\.body = 'mlp': it has body\.stem \[2, 2\], which"):
        simulate(Config(model={"weights": str(tmp_path / "other.safetensors")}))
    lost = {n: t.detach() * torch.nan for n, t in simulate(Config()).net.body.state_dict(prefix="body.").items()}
    save_file(lost, tmp_path / "lost.safetensors")
    with pytest.raises(RequestError, match=r"^model\.weights = .*lost.* body\..* holds NaN or infinite values"):
        simulate(Config(model={"weights": str(tmp_path / "lost.safetensors")}))
    save_file({"head.weight": torch.zeros(2, 2)}, tmp_path / "head.safetensors")
    with pytest.raises(RequestError, match=r"lacks body\.blocks\.0\.linear\.weight"):
        simulate(Config(model={"weights": str(tmp_path / "head.safetensors")}))
    with pytest.raises(RequestError, match=r"nowhere.* does not exist"):
        simulate(Config(model={"weights": str(tmp_path / "nowhere.safetensors")}))
    (tmp_path / "text.safetensors").write_text("no tensors")
    with pytest.raises(RequestError, match="cannot be read"):
        simulate(Config(model={"weights": str(tmp_path / "text.safetensors")}))


def test_class_means_need_a_head_of_one_layer() -> None:
    with pytest.raises(RequestError, match="needs a head of one linear layer, found Layers"):
        simulate(Config(method=methods["fedncm"].but(head=methods["mlp-head"].head)))


class Hears(Listener):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize(
    ("method", "said"), [("ft", True), ("lp", True), ("fedncm", True), ("random", False), ("fedavg", False)]
)
def test_methods_for_a_trained_body_say_so_when_there_is_none(method: str, said: bool, tmp_path: Path) -> None:
    """Under the name ft a run from random weights would be taken for one from trained weights; that one is random."""
    base = {"data": {"clients": 10}, "train": {**SMALL, "rounds": 1}, "measure": {"names": ["generic"]}}
    told = Hears()
    run(Config(method=method, **base), tmp_path / "run", listener=told)
    wanted = (
        f"method.name = {method!r} is meant for a body trained elsewhere, and model.weights is empty: it begins at "
    )
    assert told.notes == ([wanted + "random weights"] if said else [])
    quiet = Hears()
    run(Config(method=method, model={"weights": str(tmp_path / "run")}, **base), listener=quiet)
    assert quiet.notes == []
