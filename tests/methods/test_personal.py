"""Models of a client's own, on the federation of tiny.py: Ditto, MTL, kept models, fine-tune rates, generated heads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from torso import Config, run
from torso.data.batches import Shuffle
from torso.engine import OneByOne, Workspace
from torso.learn.drift import DriftState, MultiTask
from torso.measure.evaluate import evaluate, own_models
from torso.methods import methods
from torso.nets import apply
from torso.personal import LocalAggregation
from torso.personal.models import generic_model
from torso.personal.state import State
from torso.personal.store import ClientState
from torso.runs.evaluation import evaluation_of
from torso.runs.job import Simulation, simulate
from torso.runs.rounds import play_round
from torso.runs.sampling import participants

from .by_hand import (
    BODY,
    EYE,
    FIRST,
    HEAD,
    SECOND,
    Data,
    Model,
    equal,
    federated,
    gradient,
    last,
    mean,
    on,
    read,
    same,
    sgd,
    story,
)
from .tiny import job

DATA = (FIRST, SECOND)


def begun(task: Simulation, state: State, client: int) -> dict[str, Tensor]:
    """The model that a client's fine-tuning begins with."""
    workspace = Workspace.at(task.net, task.federation).holding(state.clients)
    held = workspace.models(state.model, [client])
    how = evaluation_of(task, task.stage(state.round), state)
    return {name: tensor[0] for name, tensor in how.own(workspace, [client], held).items()}


def tuned(task: Simulation, state: State, client: int, epochs: int) -> dict[str, Tensor]:
    """The model that is measured as the client's own."""
    workspace = Workspace.at(task.net, task.federation).holding(state.clients)
    held = workspace.models(state.model, [client])
    how = evaluation_of(task, task.stage(state.round), state)
    ((_, found),) = own_models(workspace, [client], how.own(workspace, [client], held), how, [epochs])
    return {name: tensor[0] for name, tensor in found.items()}


# Ditto (spec 5.3)


@pytest.mark.parametrize("at_once", [1, 2])
def test_ditto_pulls_its_own_model_to_the_received_one(at_once: int) -> None:
    """Two steps a visit on loss + (λ/2)‖v − θ‖², θ the model received in that round, not the one just trained."""
    task = job({"name": "ditto", "personal": {"lam": 0.5}}, head="eye", local_epochs=2, lr=0.3)
    theta, own = EYE, [EYE, EYE]
    for state, _ in story(task, 3, at_once):
        own = [sgd(v, data, 0.3, 2, target=theta, pull=0.5) for v, data in zip(own, DATA, strict=True)]
        theta = mean([sgd(theta, data, 0.3, 2) for data in DATA], [0.25, 0.75])
        same(state.model, theta)
        for client in (0, 1):
            same(state.clients[client].own, own[client])
            same(begun(task, state, client), own[client])


def test_ditto_starts_at_the_first_model_whenever_a_client_first_comes_and_waits_while_it_is_away() -> None:
    """One participant a round. By the time the second client comes θ has moved; its v still begins at θ⁰ (here I)."""
    task = job({"name": "ditto", "personal": {"lam": 0.5}}, head="eye", lr=0.3, fraction=0.5)
    theta, own, late = EYE, [EYE, EYE], 0
    for state, played in story(task, 6):
        (k,) = played.participants
        late = late or (played.round if k != participants(task.plan[0], task.roster, 0, 1)[0] else 0)
        own[k] = sgd(own[k], DATA[k], 0.3, target=theta, pull=0.5)
        theta = sgd(theta, DATA[k], 0.3)
        for client in (0, 1):
            same(begun(task, state, client), own[client])
    assert late > 1


def test_ditto_uploads_what_fedavg_uploads() -> None:
    settings: dict[str, Any] = {"head": "eye", "local_epochs": 2, "momentum": 0.9, "batch_size": 2, "fraction": 0.5}
    ditto, fedavg = last(job("ditto", **settings), 4), last(job("fedavg", **settings), 4)
    assert equal(ditto.model, fedavg.model)
    assert (ditto.cost.bytes_up, ditto.cost.bytes_down) == (fedavg.cost.bytes_up, fedavg.cost.bytes_down)
    assert ditto.cost.forward_passes == 2 * fedavg.cost.forward_passes


def test_ditto_without_a_pull_is_local_only() -> None:
    settings: dict[str, Any] = {"head": "eye", "local_epochs": 2, "momentum": 0.9, "batch_size": 2}
    ditto = last(job({"name": "ditto", "personal": {"lam": 0.0}}, **settings), 3)
    alone = last(job("local-only", **settings), 3)
    assert all(equal(ditto.clients[client].own, alone.clients[client].kept) for client in (0, 1))


# MTL (spec 5.5)


@pytest.mark.parametrize("at_once", [1, 2])
def test_mtl_pulls_to_the_participants_mean_that_moves_with_the_clients_own_model(at_once: int) -> None:
    """∇ℓ_k(w_k) + 2λ₁(w_k − w̄) + 2λ₂w_k with w̄ = (w_k + w_j)/2: w_j as the round finds it, w_k as it is now; two steps
    a round, so that the second one has another w̄."""
    drift = {"lam1": 0.2, "lam2": 0.05}
    task = job({"name": "mtl", "drift": drift}, head="eye", local_epochs=2, lr=0.3)
    models = [EYE, EYE]
    for state, _ in story(task, 3, at_once):
        before = list(models)
        for client, data in enumerate(DATA):
            for _ in range(2):
                w = models[client]
                centre = mean([w, before[1 - client]], [0.5, 0.5])
                grad = gradient(w, data).moved(w.minus(centre), 2 * 0.2).moved(w, 2 * 0.05)
                models[client] = w.moved(grad, -0.3)
            same(state.clients[client].kept, models[client])
            same(begun(task, state, client), models[client])
        assert equal(state.model, task.model)  # nothing is averaged
        generic = generic_model(state.model, state.clients, task.roster)
        same(generic, mean(models, [0.25, 0.75]))  # by samples, as Torso's other generic models (spec 4.2)


def test_mtl_mean_is_over_those_that_take_part() -> None:
    """Three clients, two a round; the third keeps its model and does not pull."""
    data = [FIRST, SECOND, Data.of([(1, 0.2)], [1])]
    task = on(job({"name": "mtl", "drift": {"lam1": 0.4, "lam2": 0.0}}, head="eye", fraction=0.7), federated(data))
    models = [EYE, EYE, EYE]
    for state, played in story(task, 4):
        assert len(played.participants) == 2
        centre = mean([models[k] for k in played.participants], [0.5, 0.5])
        for k in played.participants:
            models[k] = models[k].moved(gradient(models[k], data[k]).moved(models[k].minus(centre), 0.8), -1.0)
        for k in range(3):
            same(begun(task, state, k), models[k], tol=1e-5)


def test_mtl_penalty_is_the_centring_projector_not_a_matrix_of_ones() -> None:
    """With Ω = (I − 11ᵀ/m)² the pulls of all participants cancel, and equal models are not moved at all. Built from
    ones (spec 5.5) the penalty is (1 − 1/m)²‖Σw_k‖², whose gradient 2(1 − 1/m)²Σw_k drives the sum to zero."""
    w = torch.tensor([[1.0, 2.0, 3.0], [1.5, 2.0, -1.0]])
    still = {"w": torch.zeros_like(w)}

    def pulls(models: Tensor) -> Tensor:
        others = models.mean(dim=0) - models / 2  # what the other one adds to the mean, for each of the two
        at = DriftState(start={"w": models[0]}, params={"w": models}, shared={"w": others}, participants=2)
        return MultiTask(lam1=1.0, lam2=0.0).gradient(still, at)["w"]

    omega = (np.eye(2) - np.full((2, 2), 0.5)) @ (np.eye(2) - np.full((2, 2), 0.5))
    assert_close(pulls(w).double(), torch.from_numpy(2 * omega @ w.double().numpy()))  # ∂ tr(WΩWᵀ)/∂W = 2ΩWᵀ
    assert_close(pulls(w).sum(dim=0), torch.zeros(3))
    assert torch.equal(pulls(w[:1].repeat(2, 1)), torch.zeros(2, 3))


def test_mtl_keeps_the_sum_of_the_models_where_the_loss_is_flat() -> None:
    """Bright samples of the right class have almost no gradient, so that only the penalty moves: the models approach
    each other (by 1 − 2·0.3·0.4 a step from the same mean) and their sum stays."""
    task = job({"name": "mtl", "drift": {"lam1": 0.4, "lam2": 0.0}}, lr=0.3)
    wide = {HEAD: torch.tensor([[60.0, -60.0], [-60.0, 60.0]])}
    apart = {0: wide, 1: {HEAD: wide[HEAD] + 10}}
    mine = {k: {BODY: task.model[BODY], **own} for k, own in apart.items()}  # as the clients have uploaded it
    state = State.begin(task.model, {k: ClientState(kept=own) for k, own in mine.items()}, uploads=mine)
    with OneByOne(task.net, task.federation, workers=1) as engine:
        state, _ = play_round(task.plan[0], state, task.roster, engine, seed=0)
    after = [state.clients[k].kept[HEAD] for k in (0, 1)]
    assert_close(after[0] + after[1], apart[0][HEAD] + apart[1][HEAD])
    assert_close(after[1] - after[0], torch.full((2, 2), 10 * (1 - 0.24)))


@pytest.mark.parametrize(("shape", "usual"), [((3,), 1e-2), ((10,), 1e-3), ((33, 3), 1e-3), ((100,), 1e-4)])
def test_mtl_strength_follows_the_digits_of_the_parameter_count(shape: tuple[int, ...], usual: float) -> None:
    """10^−(digits + 1): 3 has one digit, 10 and 99 two, 100 three. The other participant has −w, so that w̄ = 0."""
    params = torch.ones(1, *shape)
    at = DriftState(start={"w": params[0]}, params={"w": params}, shared={"w": -params / 2}, participants=2)
    assert_close(MultiTask().gradient({"w": torch.zeros_like(params)}, at)["w"], params * 4 * usual)


@pytest.mark.parametrize("gathered", ["alone in the federation", "alone in the round"])
def test_mtl_with_one_participant_has_no_penalty(gathered: str) -> None:
    """Then w̄ = w_k all the time: λ₁ changes nothing, also in the steps after the first and with a model of its own."""
    task = job({"name": "mtl", "drift": {"lam1": 0.4, "lam2": 0.0}}, head="eye", local_epochs=3, lr=0.3, fraction=0.5)
    data = DATA
    if gathered == "alone in the federation":
        data = (SECOND,)
        task = on(task, federated(data))
    models = [EYE] * len(data)
    for state, played in story(task, 4):
        (k,) = played.participants
        models[k] = sgd(models[k], data[k], 0.3, 3)
        for client in range(len(data)):
            same(begun(task, state, client), models[client])


# The local model (spec 9.4 and 6.6), fine-tuning (8.4)

KEPT = {"name": "fedavg", "personal": "kept"}


def test_kept_refresh_is_one_more_visit_at_the_last_rate_of_which_nothing_is_uploaded() -> None:
    """exp schedule with decay ½: the last of three rounds, and so the refresh, has rate ¼."""
    task = job(KEPT, head="eye", rounds=3, schedule="exp", decay=0.5, local_epochs=2)
    state = last(task, 3)
    before = {name: tensor.clone() for name, tensor in state.model.items()}
    theta = EYE
    for rate in (1.0, 0.5, 0.25):
        theta = mean([sgd(theta, data, rate, 2) for data in DATA], [0.25, 0.75])
    same(state.model, theta)
    for client in (0, 1):
        same(begun(task, state, client), sgd(theta, DATA[client], 0.25, 2))
        same(tuned(task, state, client, 5), sgd(theta, DATA[client], 0.25, 2))  # and no fine-tuning
    assert equal(state.model, before)
    assert not state.clients.of_kind("own")


def test_kept_last_visit_is_what_training_left_and_the_servers_model_before_that() -> None:
    task = job({**KEPT, "personal": {"name": "kept", "refresh": "last-visit"}}, head="eye", fraction=0.5)
    theta, own = EYE, dict[int, Model]()
    for state, played in story(task, 5):
        (k,) = played.participants
        own[k] = theta = sgd(theta, DATA[k], 1.0)  # one participant: the server takes its model over
        for client in (0, 1):
            same(begun(task, state, client), own.get(client, theta))
    assert set(own) == {0, 1}


def test_the_refresh_begins_with_what_feddyn_broadcasts_not_with_what_it_reports() -> None:
    """Spec 3.8 and 9.4: θ is broadcast, and the participants' mean reported. From θ one step goes along g − λ_k."""
    task = job({"name": "feddyn", "personal": "kept"}, head="eye")
    state = last(task, 2)
    assert not torch.equal(state.reported.model[HEAD], state.model[HEAD])
    for client in (0, 1):
        theta, known = read(state.model), read(state.clients[client].memory)
        step = gradient(theta, DATA[client]).minus(known)
        same(begun(task, state, client), theta.moved(step, -1.0))


def test_a_run_measures_the_models_that_begin_with_what_was_broadcast() -> None:
    config = Config(
        method={"name": "feddyn", "personal": "kept"},
        train={"rounds": 2, "local_epochs": 1, "fraction": 0.5},
        measure={"names": ["personal"]},
    )
    result, task = run(config), simulate(config)
    assert result.state is not None
    found = {}
    for name, state in (("broadcast", result.state), ("reported", result.state.reported)):
        how = evaluation_of(task, task.stage(2), state)
        with OneByOne(task.net, task.federation, workers=1) as engine:
            taken = evaluate(engine, task.roster, ["personal"], state.reported, how, task.measured_clients)
        found[name] = taken["personal"].clients
    assert found["reported"] != found["broadcast"] == result.accuracy["personal"].clients


@pytest.mark.parametrize("refresh", ["final", "last-visit"])
def test_kept_global_takes_what_travels_from_the_server(refresh: str) -> None:
    """FedPer with mode = global: the mean body, and the client's own head after its visit."""
    personal = {"name": "kept", "mode": "global", "refresh": refresh}
    task = job({"name": "fedper", "personal": personal}, head="eye", local_epochs=2)
    state = last(task, 2)
    for client in (0, 1):
        found = begun(task, state, client)
        assert torch.equal(found[BODY], state.model[BODY])
        held = Model(read(state.model).s, state.clients[client].kept[HEAD].double().numpy())
        visited = sgd(held, DATA[client], 1.0, 2) if refresh == "final" else held
        assert_close(found[HEAD].double(), torch.from_numpy(visited.w), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("refresh", ["final", "last-visit"])
def test_kept_global_head_takes_the_generic_head_from_the_server(refresh: str) -> None:
    """FedAvg with mode = global-head: the body after the client's visit under the mean head."""
    task = job({**KEPT, "personal": {"name": "kept", "mode": "global-head", "refresh": refresh}}, head="eye")
    begun_at = read(last(task, 1).model)
    state = last(task, 2)
    for client in (0, 1):
        visited = sgd(read(state.model) if refresh == "final" else begun_at, DATA[client], 1.0)
        same(begun(task, state, client), Model(visited.s, read(state.model).w))


def test_a_personal_head_is_tuned_longer_than_the_rest() -> None:
    """Fed-RoD (linear): tiny clients have one class each, so the balanced soft-max is flat and W = 0, s = 1 stay. The
    personal column (a, −a) has logits with a gap of 2a, so a step adds 1/(1 + e^2a): one of the round, one of the last
    visit, three more of tuning."""
    personal = {"name": "kept", "phases": [{"part": "personal", "epochs": 3}], "rate": "last"}
    task = job({"name": "fedrod-linear", "personal": personal})
    state = last(task, 1)
    a = 0.0
    for _ in range(5):
        a += 1 / (1 + np.exp(2 * a))
    found = tuned(task, state, 0, 5)
    assert_close(found["head.personal.weight"], torch.tensor([[a, 0.0], [-a, 0.0]], dtype=torch.float32))
    assert_close(found["head.generic.weight"], torch.zeros(2, 2))


def test_fedavg_brm_ft_tunes_the_local_model_with_cross_entropy_at_the_last_rate() -> None:
    """Tiny clients have one class each, so the balanced soft-max is flat: the model stays at I until it is tuned."""
    task = job("fedavg-brm-ft", head="eye", rounds=2, schedule="exp", decay=0.5)
    state = last(task, 2)
    for client in (0, 1):
        same(begun(task, state, client), EYE)
        same(tuned(task, state, client, 5), sgd(EYE, DATA[client], 0.5, 5))
    plain = job("fedavg-brm", head="eye", rounds=2, schedule="exp", decay=0.5)
    same(tuned(plain, last(plain, 2), 0, 5), EYE)  # without FT: the local model as it is


def test_fedavg_brm_learns_from_the_classes_a_client_has() -> None:
    """Counts (3, 1) on client 0: offsets (log 3, 0); client 1 has one class and learns nothing."""
    data = Data.of([(1, 0), (1, 0), (1, 0), (1, 0.2)], [0, 0, 0, 1])
    task = on(job("fedavg-brm", head="eye", rounds=1), federated([data, SECOND]))
    offset = np.log([3.0, 1.0])
    step = EYE.moved(gradient(EYE, data, offset), -1.0)
    same(last(task).model, mean([step, EYE], [0.8, 0.2]))
    theta = read(last(task).model)
    same(begun(task, last(task), 0), theta.moved(gradient(theta, data, offset), -1.0))


@pytest.mark.parametrize(
    ("method", "factor"),
    [
        ("fedavg-ft", 0.1),
        ("fedbabu-ft", 0.01),
        ("fedfn-ft", 0.1),
        ("spherefed-ce-ft", 0.1),
        ("spherefed-mse-ft", 0.01),
    ],
)
def test_ft_presets_tune_everything_at_a_share_of_their_first_rate(method: str, factor: float) -> None:
    """Five epochs at factor · η, η the initial rate whatever the schedule has made of it (spec 8.4)."""
    task = job(method, head="eye", lr=0.4, schedule="exp", decay=0.5, rounds=2)
    (phase,) = evaluation_of(task, task.plan[0], State.begin(task.model, round=2)).finetune(5)
    assert phase.epochs == 5
    assert set(phase.rates) == {BODY, HEAD}
    assert all(rate == pytest.approx(factor * 0.4) for rate in phase.rates.values())


def test_fedavg_ft_by_hand() -> None:
    task = job("fedavg-ft", head="eye", rounds=1, lr=0.5)
    state = last(task)
    for client in (0, 1):
        same(tuned(task, state, client, 5), sgd(read(state.model), DATA[client], 0.05, 5))


def test_per_fedavg_own_model_is_the_fine_tuned_one_by_plain_steps() -> None:
    """Fine-tuning is SGD at 300 · personalize.lr = 0.3, not another look ahead (spec 5.2, 9.2)."""
    task = job({"name": "per-fedavg", "personal": {"factor": 300.0}}, head="eye")
    state = last(task)
    same(tuned(task, state, 1, 5), sgd(read(state.model), SECOND, 0.3, 5))


# A generated head for somebody who never trained (spec 6.3)


def test_hyper_head_of_a_newcomer_is_made_from_its_class_proportions() -> None:
    """Client 2 never trains and has classes 3 : 1, so a = (¾, ¼) and φ = V₂ relu(V₁ a), in rows of d = 2."""
    data = [FIRST, SECOND, Data.of([(1, 0), (1, 0.2), (1, 1), (0, 1)], [0, 0, 0, 1])]
    newcomers = replace(federated(data), newcomers=np.array([2]))
    task = on(job({"name": "fedrod-hyper", "objective": "cross-entropy"}, head="eye"), newcomers)
    state = last(task, 2)
    assert state.server.met == {0, 1}
    workspace = Workspace.at(task.net, newcomers)
    models = workspace.holding(state.clients).models(state.model, [2, 0])
    batch = next(workspace.train_deck([2]).shuffled(50, workspace.context.lens, Shuffle(0, "train", 1), 0, None))
    said = apply(workspace.context.net, models, batch.inputs.expand(2, -1, -1, -1, -1))
    v1, v2 = (state.model[f"head.personal.{layer}.weight"].double().numpy() for layer in ("first", "second"))
    assert said.personal is not None
    for place, mix in enumerate([(0.75, 0.25), (1.0, 0.0)]):
        phi = (v2 @ np.maximum(v1 @ np.array(mix), 0)).reshape(2, 2)
        model = read(state.model, "head.generic.weight")
        features = batch.inputs[0].flatten(1).double().numpy() * model.s
        assert_close(
            said.personal[place].double(), torch.from_numpy(features @ (model.w + phi).T), atol=1e-5, rtol=1e-5
        )
    assert not torch.allclose(said.personal[0], said.personal[1])


# FedALA

OLD = {0: torch.tensor([[0.5, 0.0], [-0.5, 0.0]]), 1: torch.tensor([[0.0, -0.5], [0.0, 0.5]])}  # heads, last visit
MET = torch.tensor([[0.125, -0.375], [-0.125, 0.375]])  # the head that is sent


def weight_after(passes: int, apart: float, lr: float) -> Tensor:
    """W of a client whose last head has ±½ where the one that is sent has ±(½ − apart): at the mix ±(½ − apart·W) a
    pass takes lr·apart/(1 + e^(1 − 2·apart·W)) off."""
    w = 1.0
    for _ in range(passes):
        w -= lr * apart / (1 + np.exp(1 - 2 * apart * w))
    return torch.tensor(w, dtype=torch.float32)


@pytest.mark.parametrize(
    ("visits", "options", "passes"),
    [
        (1, {"settled": 1.0}, 11),
        (1, {"settled": 1.0, "epochs": 13}, 13),
        (1, {"settled": 1e-9, "first_epochs": 4}, 4),
        (1, {"settled": 0.0}, 1),
        (2, {"settled": 1.0, "epochs": 3}, 3),
    ],
)
def test_the_weights_of_fedala_learn_longer_the_first_time_by_hand(
    visits: int, options: dict[str, Any], passes: int
) -> None:
    """At its second visit client 0 goes on until the losses of ten passes lie close together, of which the first may be
    the second pass. Client 1 has been there twice: a pass, or `epochs`, whoever is beside it."""
    task = job(methods["fedala"].but(personal=LocalAggregation(lr=0.25, sample=1.0, **options)), lr=1e-30)
    held = {
        k: ClientState(own={HEAD: w}, notes={"W.head.weight": torch.ones(2, 2), "visits": torch.tensor(float(met))})
        for (k, w), met in zip(OLD.items(), (visits, 2), strict=True)
    }
    start = State.begin({**task.model, HEAD: MET}, held, round=1)
    for at_once in (1, 2):
        with OneByOne(task.net, task.federation, workers=1, at_once=at_once) as engine:
            state, _ = play_round(task.stage(2), start, task.roster, engine, seed=0)
        one, other = (state.clients[k].notes for k in (0, 1))
        assert_close(one["W.head.weight"][0, 0], weight_after(passes, 0.375, 0.25))
        assert_close(other["W.head.weight"][0, 1], weight_after(options.get("epochs", 1), 0.125, 0.25))
        assert (float(one["visits"]), float(other["visits"])) == (2, 2)


def test_the_first_visit_of_fedala_begins_at_the_received_model() -> None:
    task = job("fedala", lr=0.5)
    (first, _), (second, _) = story(task, 2)
    for k in (0, 1):
        assert torch.equal(first.clients[k].notes["W.head.weight"], torch.ones(2, 2))
        assert (float(first.clients[k].notes["visits"]), float(second.clients[k].notes["visits"])) == (1, 2)
        assert float(second.clients[k].notes["W.head.weight"].min()) < 1
    assert_close(first.model[HEAD], last(job("fedavg", lr=0.5)).model[HEAD])
