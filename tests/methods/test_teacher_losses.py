"""A loss with teachers beside other choices: it plays two rounds, resumes to the bit, and stays with its client."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torso.engine import OneByOne
from torso.learn.teachers import PREVIOUS_PREFIX, Contrast, NotTrue
from torso.methods import methods
from torso.personal.state import State
from torso.runs.job import simulate
from torso.runs.rounds import play_round

from .test_pairs import SEED, _config, federation, resumes

BASES = ("fedbabu", "fedper", "fedrep", "per-fedavg", "pfedme", "ditto", "mtl", "fedala", "fedrod-linear", "fedsam")


@pytest.mark.parametrize("objective", [NotTrue(), Contrast()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("base", BASES)
def test_it_goes_with_other_methods(base: str, objective: NotTrue | Contrast, tmp_path: Path) -> None:
    job = simulate(_config(methods[base].but(objective=objective)), federation())
    _, second = resumes(job, tmp_path)
    plain = simulate(_config(methods[base]), federation())
    with OneByOne(plain.net, plain.federation, workers=1) as engine:
        without = State.begin(plain.model)
        for _ in range(2):
            without, _ = play_round(plain.plan[0], without, plain.roster, engine, SEED)
    kept = {
        name for own in second.clients.of_kind("notes").values() for name in own if name.startswith(PREVIOUS_PREFIX)
    }
    assert kept == (
        {f"{PREVIOUS_PREFIX}{name}" for name in job.plan[0].moving} if isinstance(objective, Contrast) else set()
    )
    moved = [*zip(second.model.values(), without.model.values(), strict=True)]
    moved += [*zip(_kept(second), _kept(without), strict=True)]
    # under MTL a client goes on from its own model: both teachers of Contrast are that, and it has no gradient
    silent = base == "mtl" and isinstance(objective, Contrast)
    assert all(torch.equal(one, other) for one, other in moved) == silent


def _kept(state: State) -> list[torch.Tensor]:
    """What clients keep of the model, and what the server keeps of single clients."""
    held = [*state.clients.of_kind("kept").items(), *state.server.uploads.items()]
    return [tensor for _, own in sorted(held, key=lambda item: item[0]) for _, tensor in sorted(own.items())]


def test_after_a_visit_the_previous_model_is_what_the_client_sent() -> None:
    """FedAvg's clients send their whole model; those that never came have nothing."""
    job = simulate(_config(methods["moon"]), federation())
    with OneByOne(job.net, job.federation, workers=1) as engine:
        state, played = play_round(job.plan[0], State.begin(job.model), job.roster, engine, SEED)
    notes = state.clients.of_kind("notes")
    assert set(notes) == set(played.participants)
    sizes = job.roster.sizes_of(played.participants).tolist()
    for name, tensor in state.model.items():
        sent = [notes[k][f"{PREVIOUS_PREFIX}{name}"] for k in played.participants]
        mean = sum(size / sum(sizes) * each for size, each in zip(sizes, sent, strict=True))
        torch.testing.assert_close(torch.as_tensor(mean), tensor)
