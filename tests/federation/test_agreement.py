"""What clients agree on, who is refused and why, and where a client's samples lie in what was agreed."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torso import RequestError, __version__
from torso.config import DataConfig
from torso.data.images import Images, Samples, statistics
from torso.data.inputs import Floats, Input, Known, Pixels, Tokens, known
from torso.data.naming import in_natural_order
from torso.federation.agreement import Agreement, agree, joined_later, server_federation, site_federation
from torso.federation.description import Description, by_class_name
from torso.federation.site_data import SiteData

CPU = torch.device("cpu")
OPTIONS = DataConfig()
Told = tuple[Description, dict[str, torch.Tensor]]


def site(
    classes: tuple[str, ...] = ("cat", "dog"), count: int = 6, seed: int = 0, kind: Known | None = None, test: int = 2
) -> SiteData:
    """A client with `count` training samples: images of 2×3, unless another kind is asked for."""
    rng, kind = np.random.default_rng(seed), kind or Pixels(1, 2, 3)
    labels, tested = (rng.integers(0, len(classes), n) for n in (count, test))
    if isinstance(kind, Pixels):
        shape = kind.height, kind.width, kind.channels
        parts = [rng.integers(0, 256, (n, *shape), dtype=np.uint8) for n in (count, test)]
        return SiteData(Images(parts[0], labels), Images(parts[1], tested), classes, kind)
    made = (
        [rng.integers(0, kind.vocabulary, (n, kind.length), dtype=np.int32) for n in (count, test)]
        if isinstance(kind, Tokens)
        else [rng.normal(2, 3, (n, *kind.shape)).astype(np.float32) for n in (count, test)]
    )
    return SiteData(Samples(made[0], labels), Samples(made[1], tested), classes, kind)


def told(name: str, data: SiteData | None = None, **changes: Any) -> Told:
    data = data or site()
    return data.description(name).model_copy(update=changes), data.moments


def same(one: Agreement, other: Agreement) -> bool:
    return one == other and one.model_dump_json() == other.model_dump_json()


def outcome(found: list[Told]) -> Agreement | str:
    try:
        return agree(found, OPTIONS)
    except RequestError as error:
        return str(error)


KINDS: list[Known] = [Pixels(1, 2, 3), Pixels(1, 2, 3), Pixels(1, 3, 3), Pixels(1, 2, 3, (0.5,), (0.5,)), Floats((2,))]
KINDS += [Pixels(1, 2, 3, (0.2,), (0.5,)), Pixels(1, 2, 3, (0.5,), (0.5,))]
NAMES = ["cat", "Cat", " cat", "dog", "10", "9", "Éa", "emu"]


@st.composite
def descriptions(draw: st.DrawFn) -> list[Told]:
    """Some clients that fit and some that do not, with names that may come twice."""
    found = []
    for seed in range(draw(st.integers(1, 7))):
        name = f"client-{draw(st.integers(0, 12))}"
        classes = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
        data = site(tuple(classes), draw(st.integers(1, 5)), seed, draw(st.sampled_from(KINDS)))
        changes = draw(st.sampled_from([{}, {}, {}, {"torso": "0.0.9"}, {"train_samples": 0}]))
        found.append(told(name, data, **changes))
    return found


@settings(max_examples=150, deadline=None)
@given(descriptions(), st.randoms(use_true_random=False))
def test_the_order_of_arrival_does_not_matter(found: list[Told], order: random.Random) -> None:
    shuffled = order.sample(found, len(found))
    agreement, other = outcome(found), outcome(shuffled)
    assert agreement == other
    if isinstance(agreement, str):
        return
    assert same(agree(shuffled, OPTIONS), agreement)
    accepted = {one.name: (one, sums) for one, sums in found if one.name in agreement.names}
    assert list(agreement.names) == in_natural_order(accepted)
    assert set(agreement.names) | agreement.refused.keys() == {one.name for one, _ in found}
    assert not set(agreement.names) & agreement.refused.keys()
    assert list(agreement.classes) == by_class_name(name for one, _ in accepted.values() for name in one.classes)
    again = agree(list(accepted.values()), OPTIONS)  # nobody else is refused when the rest agree anew
    assert same(again, agreement.model_copy(update={"refused": {}}))
    assert same(Agreement.read(agreement.model_dump_json(), "the server"), agreement)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(["b", "a", "7", "10", "c d"]), min_size=1, unique=True), min_size=1, max_size=5)
)
def test_labels_survive_the_mapping(classes: list[list[str]]) -> None:
    sites = [site(tuple(names), 5, seed) for seed, names in enumerate(classes)]
    agreement = agree([told(f"k{k}", data) for k, data in enumerate(sites)], OPTIONS)
    for k, data in enumerate(sites):
        federation = site_federation(data, agreement, k, CPU)
        for part, own in ((federation.train, data.train), (federation.test, data.test)):
            rows = part.rows(k)
            assert [agreement.classes[c] for c in part.labels[rows]] == [data.classes[c] for c in own.labels]
            assert np.array_equal(part.samples[rows].numpy(), own.samples)
            assert part.sizes.tolist() == [len(own) if other == k else 0 for other in range(len(sites))]


def test_the_roster_knows_sizes_and_names_and_no_class_counts() -> None:
    agreement = agree([told("b-10", site(count=3)), told("b-9", site(count=4))], OPTIONS)
    roster = agreement.roster
    assert roster.names == ("b-9", "b-10")
    assert roster.sizes.tolist() == [4, 3]
    assert (roster.classes, roster.test_samples, roster.counts_are_known) == (2, 0, False)
    seen = agreement.seen_by(1)
    assert seen.names == ("", "b-10")
    assert seen.roster.names == ()
    assert seen.roster.sizes.tolist() == [0, 3]


def test_constants_of_images_do_not_depend_on_how_they_are_dealt() -> None:
    whole = site(count=40, seed=3)
    mean, std = statistics(whole.train.samples)
    found = set()
    for cuts in ([40], [1, 40], [13, 29, 40], list(range(1, 41))):
        pieces = [np.arange(a, b) for a, b in zip([0, *cuts], cuts, strict=False)]
        dealt = [SiteData(whole.train.take(rows), whole.test, whole.classes, whole.input) for rows in pieces]
        input = agree([told(f"k{k}", data) for k, data in enumerate(dealt)], OPTIONS).input
        assert isinstance(input, Pixels)
        found.add((input.mean, input.std))
    assert len(found) == 1
    np.testing.assert_allclose(found.pop(), (mean, std), rtol=1e-12)


def test_constants_of_numbers_are_those_of_the_simulation() -> None:
    kind = Floats((3, 4))
    sites = [site(count=5 + k, seed=k, kind=kind) for k in range(11)]
    agreement = agree([told(f"k{k}", data) for k, data in reversed(list(enumerate(sites)))], OPTIONS)
    fitted: Input = kind.fitted(data.train.samples for data in sites)
    assert agreement.input == fitted


def test_given_constants_hold_where_all_give_the_same() -> None:
    kind, other = Pixels(1, 2, 3, (0.1,), (0.7,)), Pixels(1, 2, 3, (0.2,), (0.7,))
    both = [told("a", site(kind=kind)), told("b", site(seed=1, kind=kind))]
    agreement = agree(both, OPTIONS)
    assert (agreement.input, agreement.constants_are_given) == (kind, True)
    computed = agree(both, DataConfig(normalize="statistics"))
    assert computed.input != kind
    agreement = agree([*both, told("c", site(kind=other))], OPTIONS)
    assert agreement.names == ("a", "b")
    assert agreement.refused["c"].startswith("its files give mean = [0.2], std = [0.7], those of others [0.1], [0.7]")
    mixed = agree([*both, told("c")], OPTIONS)  # one has none: computed for all, and said
    assert not mixed.constants_are_given
    assert not mixed.refused
    assert "mean and std in the files of a, b are not used" in mixed.remarks[0]
    assert joined_later(agreement, *told("d", site(kind=other))) == agreement.refused["c"]


def test_texts_grow_to_the_longest() -> None:
    short, long = site(kind=Tokens(3, 9, 0)), site(kind=Tokens(5, 7, 0))
    agreement = agree([told("a", short), told("b", long), told("c", site(kind=Tokens(3, 9, 8)))], OPTIONS)
    assert agreement.input == Tokens(5, 9, 0)
    assert "padded with 8" in agreement.refused["c"]
    found = site_federation(short, agreement, 0, CPU).train.samples
    assert found.shape == (6, 5)
    assert np.array_equal(found[:, :3], short.train.samples)
    assert not found[:, 3:].any()
    reason = joined_later(agreement, *told("d", site(kind=Tokens(6, 7, 0))))
    assert isinstance(reason, str)
    assert "at most 6 tokens" in reason


TABLE = Floats((2,), names=("age", "weight"))


@pytest.mark.parametrize(
    ("odd", "like", "reason"),
    [
        (
            told("x", site(kind=Pixels(1, 8, 8))),
            None,
            r"it has images of 8×8 with 1 channel, others have images of 2×3",
        ),
        (told("x", site(kind=Floats((2,)))), None, "it has rows of 2 numbers, others have images"),
        (told("x", site(kind=Floats((2,), names=("age", "size")))), TABLE, "'size' where others have 'weight'"),
        (told("x", site(kind=Floats((2,)))), TABLE, "named otherwise: 'age' where others have ''|'' where others"),
        (
            told("x", site(kind=Floats((3,), names=("age", "weight", "size")))),
            TABLE,
            "it has rows of 3 numbers, others have rows of 2 numbers. Expected: rows of 2 numbers",
        ),
        (told("x", train_samples=0), None, "it has no training samples"),
        (
            told("x", torso="0.0.9"),
            None,
            rf"it has Torso 0\.0\.9, the server {__version__}: another version may compute",
        ),
        (told("x", torso="nonsense"), None, "it has Torso nonsense"),
        (told("x", torch="1.13.1"), None, r"it has torch 1\.13\.1, .* may compute other bits"),
        (told("x", site(("Cat",))), None, r"class 'Cat' \(of x\) and class 'cat' \(of a, b\) differ only by case"),
        (told("x", site(("cat ", "emu"))), None, r"class 'cat ' \(of x\) and class 'cat'"),
        (told("x", classes=("cat", "cat")), None, "it names a class twice"),
        (told("x", train_samples=7), None, "its sums are not those of 7 images"),
        ((told("x")[0], {}), None, r"its sums are \{\}\. Expected: count, total, squares"),
        ((told("x")[0], {**told("x")[1], "total": torch.tensor([torch.nan]).double()}), None, "its sums are not"),
        ((told("x")[0], {**told("x")[1], "squares": torch.tensor([0.0]).double()}), None, "its sums are not"),
        (told("x", input=Pixels(1, 2, 3, (0.5,), (0.0,))), None, "std above 0"),
        (told("x", input=Floats(())), None, "Expected: samples with a size"),
    ],
)
def test_who_does_not_fit_is_refused_with_the_reason(odd: Told, like: Known | None, reason: str) -> None:
    import re

    others = [told("a", site(kind=like)), told("b", site(seed=1, kind=like))]
    agreement = agree([odd, *others], OPTIONS)
    assert agreement.names == ("a", "b")
    assert re.search(reason, agreement.refused["x"])
    assert same(agreement.model_copy(update={"refused": {}}), agree(others, OPTIONS))
    later = joined_later(agree(others, OPTIONS), *odd)
    assert isinstance(later, str)
    assert "Expected:" in later


def test_of_two_alike_the_first_by_name_holds() -> None:
    small, large = site(kind=Pixels(1, 2, 3)), site(kind=Pixels(1, 4, 4))
    assert agree([told("k10", small), told("k9", large)], OPTIONS).names == ("k9",)
    assert agree([told("a", site(("Cat",))), told("b", site(("cat",)))], OPTIONS).classes == ("Cat",)


def test_who_is_refused_has_no_say_in_what_the_others_agree_on() -> None:
    """c gives no constants and has both spellings; without it, neither passes."""
    one, two = Pixels(1, 2, 3, (0.1,), (0.7,)), Pixels(1, 2, 3, (0.2,), (0.7,))
    those = [told("a", site(("A",), kind=one)), told("b", site(("A",), kind=two)), told("d", site(("a",), kind=one))]
    agreement = agree([*those, told("c", site(("A", "a")), torso="9.9")], OPTIONS)
    assert agreement.refused.keys() == {"b", "c", "d"}
    clashes = [told("a", site(("x",), kind=one)), told("b", site(("x",), kind=two)), told("c", site(("X",)))]
    agreement = agree(clashes, OPTIONS)
    assert agreement.refused.keys() == {"b", "c"}
    assert agreement.input == one


def test_a_name_twice_is_refused_for_both() -> None:
    agreement = agree([told("a"), told("b"), told("b", site(seed=1))], OPTIONS)
    assert agreement.names == ("a",)
    assert "2 clients call themselves 'b'" in agreement.refused["b"]
    assert joined_later(agreement, *told("a")) == "there is a client 'a' already. Expected: a unique name"


def test_spellings_that_a_client_has_side_by_side_are_two_classes() -> None:
    agreement = agree([told("a", site(("A", "a"))), told("b", site(("A",))), told("c", site(("a",)))], OPTIONS)
    assert (agreement.classes, agreement.refused) == (("A", "a"), {})
    assert agreement.remarks == ("classes 'A', 'a' are taken for different ones: a client has both",)


def test_nobody_left_is_an_error_that_names_everybody() -> None:
    with pytest.raises(
        RequestError, match=r"no client is left to agree on anything: a: it has Torso 9.* b: it has no tr"
    ):
        agree([told("b", train_samples=0), told("a", torso="9.9")], OPTIONS)
    with pytest.raises(RequestError, match="no client has described itself"):
        agree([], OPTIONS)


def test_one_sample_is_served() -> None:
    agreement = agree([told("a", site(count=1, test=0))], OPTIONS)
    assert agreement.sizes == (1,)
    assert site_federation(site(count=1, test=0), agreement, 0, CPU).test.samples.shape == (0, 2, 3, 1)


def test_the_augmentation_is_the_configs_or_what_all_suggest() -> None:
    both = [told("a", augment="crop-flip"), told("b", augment="crop-flip")]
    assert agree(both, OPTIONS).augment == "crop-flip"
    assert agree([*both, told("c")], OPTIONS).augment == "none"
    assert agree([told("a", augment="nonsense")], OPTIONS).augment == "none"
    assert agree(both, DataConfig(augment="flip")).augment == "flip"
    with pytest.raises(RequestError, match="is for images"):
        agree([told("a", site(kind=Floats((2,))))], DataConfig(augment="flip"))


def test_who_comes_later_is_a_newcomer_and_changes_nothing_else() -> None:
    before = agree([told("b"), told("c", site(seed=1))], OPTIONS)
    after = joined_later(before, *told("a", site(("dog",), 9)))
    assert isinstance(after, Agreement)
    assert after.names == ("b", "c", "a")
    assert after.roster.newcomers.tolist() == [2]
    assert after.roster.training.tolist() == [0, 1]
    assert after.sizes == (*before.sizes, 9)
    assert (after.classes, after.input, after.remarks) == (before.classes, before.input, ())
    third = joined_later(after, *told("d"))
    assert isinstance(third, Agreement)
    assert third.newcomers == (2, 3)


def test_classes_that_nobody_had_are_left_out_and_told() -> None:
    before = agree([told("a"), told("b")], OPTIONS)
    data = site(("emu", "dog"), 12, seed=5)
    after = joined_later(before, *told("c", data))
    assert isinstance(after, Agreement)
    assert after.remarks == ("c joined later, and no other client has its classes 'emu': their samples are left out",)
    kept, lost = data.within(after.classes)
    assert (lost, len(kept.train)) == (int((data.train.labels == 0).sum()), int((data.train.labels == 1).sum()))
    federation = site_federation(data, after, 2, CPU)
    assert federation.train.sizes.tolist() == [0, 0, len(kept.train)]
    assert federation.train.labels.tolist() == [1] * len(kept.train)
    reason = joined_later(before, *told("c", site(("emu", "yak"))))
    assert reason == "its classes are 'emu', 'yak'. Expected: one of 'cat', 'dog'"
    with pytest.raises(RequestError, match="all 6 training samples are of classes that this federation does not have"):
        site_federation(site(("emu", "yak")), before, 0, CPU)


def test_a_server_may_have_a_test_set() -> None:
    agreement = agree([told("a"), told("b")], OPTIONS)
    federation = server_federation(site(("dog", "emu", "cat"), 0, test=30), agreement, CPU)
    assert federation.train.sizes.tolist() == federation.test.sizes.tolist() == [0, 0]
    assert 0 < len(federation.test.labels) < 30  # without the emus
    assert federation.roster.test_samples == len(federation.test.labels)
    with pytest.raises(RequestError, match="the test set of the server: it has images of 8×8"):
        server_federation(site(kind=Pixels(1, 8, 8)), agreement, CPU)


def test_an_agreement_that_contradicts_itself_is_refused() -> None:
    agreement = agree([told("a"), told("b")], OPTIONS)
    for changes in ({"sizes": (1,)}, {"newcomers": (5,)}, {"classes": ("cat", "cat")}, {"input": Pixels(1, 2, 3)}):
        with pytest.raises(RequestError, match="the server: "):
            Agreement.read(agreement.model_copy(update=changes).model_dump_json(), "the server")
    assert known(agreement.input) == agreement.input
