"""What FedTHE trains before its heads are mixed (spec 19.22): two rounds of two clients against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from torch import from_numpy
from torch.testing import assert_close

from .by_hand import Data, Floats, Model, federated, gradient, last, mean, on, read, same
from .tiny import job

GENERIC, PERSONAL = "head.generic.weight", "head.personal.weight"
DATA = (Data.of([(1, 0), (0.2, 1), (0.6, 0.4)], [0, 1, 0]), Data.of([(0, 1), (1, 0.4)], [1, 0]))
LR, EPOCHS = 0.3, 2


def visit(received: Model, own: Floats, data: Data) -> tuple[Model, Floats, Floats]:
    """Body and generic head by CE of z + log N, then the personal head by CE on features that are fixed; their mean."""
    counts = np.bincount(data.y, minlength=2).astype(np.float64)
    for _ in range(EPOCHS):
        received = received.moved(gradient(received, data, offset=np.log(counts)), -LR)
    for _ in range(EPOCHS):
        own = own - LR * gradient(Model(received.s, own), data).w
    return received, own, (data.x * received.s).mean(axis=0)


@pytest.mark.parametrize("at_once", [1, 2])
def test_two_rounds_are_those_of_a_plain_program(at_once: int) -> None:
    task = on(job("fedthe", head="eye", lr=LR, local_epochs=EPOCHS), federated(DATA))
    model = read(task.model, GENERIC)
    heads = [task.model[PERSONAL].double().numpy()] * 2
    for _ in range(2):
        left = [visit(model, own, data) for own, data in zip(heads, DATA, strict=True)]
        heads = [own for _, own, _ in left]
        model = mean([learned for learned, _, _ in left], (0.6, 0.4))
    state = last(task, 2, at_once)
    same(state.model, model, GENERIC, tol=1e-5)
    assert_close(state.model[PERSONAL], task.model[PERSONAL])  # none is sent
    for k in (0, 1):
        assert state.clients[k].kept.keys() == {PERSONAL}
        assert_close(state.clients[k].kept[PERSONAL].double(), from_numpy(heads[k]), atol=1e-5, rtol=1e-5)
    centre = 0.6 * left[0][2] + 0.4 * left[1][2]
    assert_close(state.server.statistics["centre"].double(), from_numpy(centre), atol=1e-5, rtol=1e-5)
