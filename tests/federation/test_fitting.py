"""Images of clients that differ in size and colour: what is agreed on where the model's body wants one kind."""

from __future__ import annotations

import numpy as np
import pytest
from tests.federation.test_agreement import CPU, OPTIONS, site, told

from torso import RequestError
from torso.config import DataConfig
from torso.data.fit_images import as_kind
from torso.data.inputs import Pixels
from torso.data.wants import Wants
from torso.federation.agreement import Agreement, agree, joined_later, server_federation, site_federation

BY = "model.body = 'their/net'"
PHOTOS = Wants(BY, 6, 3, (0.5, 0.4, 0.3), (0.2, 0.2, 0.1))
GREY, COLOUR, ODD = site(), site(seed=1, kind=Pixels(3, 5, 4)), site(seed=2, kind=Pixels(2, 2, 3))


def test_all_images_become_what_the_weights_expect() -> None:
    agreement = agree([told("a", GREY), told("b", COLOUR), told("c", ODD)], OPTIONS, PHOTOS)
    assert agreement.input == Pixels(3, 6, 6, PHOTOS.mean, PHOTOS.std)
    assert agreement.names == ("a", "b")
    assert agreement.refused["c"].startswith(
        f"{BY} takes images with 3 channels, and the data are images of 2×3 with 2"
    )
    assert agreement.remarks == (
        "images of 2×3 with 1 channel are resized to 6×6 (not in proportion), converted from grey to three equal "
        f"channels and normalised as {BY} expects",
    )
    for client, data in enumerate((GREY, COLOUR)):
        mine = site_federation(data, agreement, client, CPU)
        assert np.array_equal(mine.train.samples.numpy(), as_kind(data.train.samples, Pixels(3, 6, 6)))
        assert mine.input == agreement.input


def test_whoever_comes_later_and_the_servers_test_set_are_fitted_too() -> None:
    agreement = agree([told("a", GREY)], OPTIONS, PHOTOS)
    later = joined_later(agreement, *told("b", COLOUR))
    assert isinstance(later, Agreement)
    assert later.newcomers == (1,)
    assert "it has images of 2×3 with 2 channels" in str(joined_later(agreement, *told("c", ODD)))
    assert server_federation(COLOUR, agreement, CPU).test.samples.shape[1:] == (6, 6, 3)
    with pytest.raises(RequestError, match="the test set of the server: it has images of 2×3 with 2 channels"):
        server_federation(ODD, agreement, CPU)


def test_sums_of_samples_need_the_same_channels() -> None:
    """Without constants of the weights, mean and std come from all clients, channel by channel."""
    agreement = agree(
        [told("a", GREY), told("b", COLOUR), told("d", site(kind=Pixels(1, 4, 4)))], OPTIONS, Wants(BY, 6, 3)
    )
    assert set(agreement.refused) == {"b"}
    assert isinstance(agreement.input, Pixels)
    assert len(set(agreement.input.mean)) == 1
    assert agreement.input.shape == (3, 6, 6)


def test_a_size_alone_is_enough_and_without_it_sizes_must_agree() -> None:
    large = site(kind=Pixels(1, 4, 4))
    both = [told("a", GREY), told("b", large)]
    assert agree(both, DataConfig(size=7)).input.shape == (1, 7, 7)
    assert set(agree(both, OPTIONS).refused) == {"b"}
