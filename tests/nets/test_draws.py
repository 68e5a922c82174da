"""Random numbers that a module draws come from a key, in any thread and any stack, with or without padding."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.errors import RequestError
from torso.nets import apply, body_of, skeleton, split
from torso.nets.compute import draws
from torso.nets.draws import DrawDetector, Keyed, ReadsValues, detecting_on_zeros

from .samples import images, spread

DRAWS: dict[str, Callable[[], Tensor]] = {
    "dropout": lambda: F.dropout(torch.ones(50), 0.5),
    "bernoulli": lambda: torch.empty(50).bernoulli_(0.5),
    "rand": lambda: torch.rand(50),
    "randn": lambda: torch.randn(50),
    "like": lambda: torch.rand_like(torch.ones(50)),
    "permutation": lambda: torch.randperm(50),
    "integers": lambda: torch.randint(1000, (50,)),
    "native": lambda: torch.native_dropout(torch.ones(50), 0.5, True)[0],
    "attention": lambda: F.scaled_dot_product_attention(*torch.ones(3, 1, 1, 8, 8).unbind(), dropout_p=0.5),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_key_decides_what_is_drawn_and_the_global_state_stays(draw: Callable[[], Tensor]) -> None:
    before = torch.get_rng_state()
    with Keyed(1):
        first, next_one = draw(), draw()
    torch.rand(3)
    with Keyed(1):
        assert torch.equal(draw(), first)
    with Keyed(2):
        assert not torch.equal(draw(), first)
    assert not torch.equal(first, next_one)
    torch.set_rng_state(before)
    with Keyed(1):
        draw()
    assert torch.equal(torch.get_rng_state(), before)


def test_each_thread_draws_from_its_own_key() -> None:
    def drawn(key: int) -> list[Tensor]:
        with Keyed(key):
            return [draw().float() for _ in range(20) for draw in DRAWS.values()]

    alone = [drawn(key) for key in range(8)]
    with ThreadPoolExecutor(4) as pool:
        for mine, theirs in zip(alone, pool.map(drawn, range(8)), strict=True):
            assert all(map(torch.equal, mine, theirs))


def test_what_draws_nothing_is_not_taken_for_random() -> None:
    with DrawDetector() as seen:
        F.scaled_dot_product_attention(*torch.ones(3, 1, 1, 8, 8).unbind())
        F.dropout(torch.ones(3), 0.5, training=False)
        F.dropout(torch.ones(3), 0.0)
    assert not seen.drew
    plain = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Flatten(), nn.Dropout(0.0), nn.Linear(32, 3))
    assert not draws(split(plain).train(), torch.zeros(1, 2, 1, 4, 4))
    assert draws(split(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.1), nn.Linear(6, 3))).train(), torch.zeros(1, 2, 6))


READS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "truth": lambda x: bool(x[0] > 0),
    "list": lambda x: x.tolist(),
    "array": lambda x: x.detach().numpy(),
    "mask": lambda x: x[x > 0],
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_a_body_that_reads_values_may_draw_for_other_values(read: Callable[[Tensor], object]) -> None:
    """Zeros are not enough to find it out: this body draws if its features are not zero."""

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(self.fc(x), 0.5 if x.any() else 0.0) if read(x[0]) else self.fc(x)

    assert draws(split(Hidden()).train(), images(1, 5, 6).float())
    with pytest.raises(ReadsValues), detecting_on_zeros():
        read(torch.zeros(2))


def test_a_share_of_one_minus_p_survives() -> None:
    with Keyed(3):
        kept = F.dropout(torch.ones(100_000), 0.3)
    assert kept.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert (kept > 0).double().mean().item() == pytest.approx(0.7, abs=0.006)  # four standard deviations


class Dropping(nn.Module):
    """Two dropout layers, the second on [L, B, d] with the samples in the second dimension, as in torch's attention."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(self.first(x), 0.5, self.training)
        x = F.dropout(x.unsqueeze(0).transpose(1, 2), 0.5, self.training).transpose(1, 2)[0]
        return self.fc(self.second(x))  # type: ignore[no-any-return]


def test_a_client_draws_the_same_alone_and_padded_in_a_stack() -> None:
    whole = split(Dropping().double())
    net, tensors, x = skeleton(whole).train(), spread(whole, 3), images(3, 5, 6)
    real = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).float()
    together = apply(net, tensors, x, real, keys=(11, 12, 13))
    for place, size in ((0, 5), (1, 2)):
        one = {name: t[place : place + 1] for name, t in tensors.items()}
        alone = apply(net, one, x[place : place + 1, :size], keys=(11 + place,))
        assert torch.equal(together.logits[place, :size], alone.logits[0])
        other = apply(net, one, x[place : place + 1, :size], keys=(99,))
        assert not torch.equal(other.logits, alone.logits)
    assert together.logits.shape == (3, 5, 3)
    assert not together.logits[1, 2:].any()


def test_in_evaluation_nothing_is_drawn_and_no_key_is_needed() -> None:
    net = split(Dropping().double()).eval()
    tensors, x = spread(net, 2), images(2, 4, 6)
    assert torch.equal(apply(net, tensors, x).logits, apply(net, tensors, x).logits)
    with pytest.raises(RequestError, match=r"draws random numbers in training .* no key .* keys=batch\.keys"):
        apply(net.train(), tensors, x)


def test_a_module_that_draws_in_evaluation_is_refused() -> None:
    class Always(Dropping):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.dropout(x, 0.5))

    with pytest.raises(RequestError, match=r"Always draws random numbers in evaluation too\. .*=self\.training"):
        split(Always(), example=torch.randn(2, 6))


def test_a_module_that_reads_values_is_computed_client_by_client() -> None:
    class Looks(Dropping):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x if bool(x.sum() > 0) else -x)

    net = split(Looks().double()).eval()
    tensors, x = spread(net, 2), images(2, 4, 6)
    assert net.body.vmaps
    both = apply(net, tensors, x).logits
    assert not net.body.vmaps
    for g in range(2):
        assert torch.equal(
            both[g : g + 1], apply(net, {n: t[g : g + 1] for n, t in tensors.items()}, x[g : g + 1]).logits
        )


def test_dropout_is_no_reason_to_refuse_a_body() -> None:
    body = body_of(nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Dropout(0.5), nn.Linear(4, 2)))
    assert body.features == 4
