"""The secure sum without a federation: what is added up, who may leave when, and what nobody is told."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Collection, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="the extra flower is not installed")

from flwr.common.secure_aggregation.quantization import dequantize
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen

from torso.config import SecureConfig
from torso.errors import RequestError
from torso.federation.protocol import Request, RequestHeader
from torso.federation.secure.crypto import KeyPair, Vector, agreed_key, mask
from torso.federation.secure.sum_client import SumClient
from torso.federation.secure.sum_messages import SumRequest
from torso.federation.secure.sum_server import SumServer
from torso.federation.secure.terms import SharingParameters
from torso.federation.secure.vector import CLIPPED, Slot, VectorLayout

SESSION = "0" * 32
NUMBERS = VectorLayout((Slot("x", (2,), 1.0), Slot("n", (1,), 0.0)), bits=8)


def drawn() -> np.random.Generator:
    return np.random.default_rng(0)


def values(*x: float, n: int = 0) -> dict[str, torch.Tensor]:
    return {"x": torch.tensor(x, dtype=torch.float64), "n": torch.tensor([n])}


def test_two_values_by_hand() -> None:
    """L = 256 steps between −1 and 1: 0.5 is 1.5 · 128 = 192, −1 is 0; −0.25 is 96 and 1 is 256."""
    first, second = (NUMBERS.encode(v, drawn()) for v in (values(0.5, -1, n=3), values(-0.25, 1, n=200)))
    assert first.tolist() == [192, 0, 3, 0]
    assert second.tolist() == [96, 256, 200, 0]
    total = NUMBERS.decode(first + second, clients=2)
    assert total["x"].tolist() == [0.25, 0.0]
    assert total["n"].tolist() == [203]


def test_rounding_is_right_on_average_and_never_off_by_a_step() -> None:
    form = VectorLayout((Slot("x", (4000,), 1.0),), bits=8)
    x = torch.full((4000,), 0.3, dtype=torch.float64)
    vector = form.encode({"x": x}, drawn())
    found = form.decode(vector, clients=1)["x"]
    step = 2 / 256
    assert float((found - x).abs().max()) < step
    assert float(found.mean()) == pytest.approx(0.3, abs=4 * 0.5 * step / 4000**0.5)  # four standard errors
    (flowers,) = dequantize([vector[:-1].astype(np.int64)], 1.0, 256)
    np.testing.assert_allclose(flowers, found.numpy(), atol=1e-12)


def test_what_is_out_of_range_is_cut_and_counted() -> None:
    total = NUMBERS.decode(NUMBERS.encode(values(5.0, -0.5), drawn()), clients=1)
    assert total["x"].tolist() == [1.0, -0.5]
    assert int(total[CLIPPED]) == 1
    with pytest.raises(RequestError, match=r"n has numbers out of range\. Expected: 0 to 256"):
        NUMBERS.encode(values(0, 0, n=300), drawn())


def test_a_sum_that_clients_cannot_give_is_refused() -> None:
    with pytest.raises(RequestError, match="a client has not kept to the protocol"):
        NUMBERS.decode(np.array([513, 0, 0, 0], dtype=np.uint32), clients=2)


def vectors(clients: Collection[int], size: int = 64) -> dict[int, Vector]:
    return {k: np.random.default_rng(k).integers(0, 1 << 22, size, dtype=np.uint32) for k in clients}


def play(
    terms: SharingParameters, mine: Mapping[int, Vector], lost: Mapping[str, set[int]] | None = None
) -> tuple[SumServer, dict[int, Vector], Vector]:
    """All stages; `lost`: whose answer does not arrive at a stage. The masked vectors, and the sum."""
    lost = {stage: (lost or {}).get(stage, set()) for stage in ("keys", "shares", "vector", "unmask")}
    gathering = SumServer(terms, mine)
    parties = {k: SumClient(k, SESSION, terms) for k in mine}
    gathering.keys = {k: party.public for k, party in parties.items() if k not in lost["keys"]}
    for k in gathering.keys:
        written = parties[k].share(gathering.keys_for(k))
        if k not in lost["shares"]:
            gathering.take_shares(k, written)
    masked = {k: parties[k].mask(gathering.shares_for(k), lambda k=k: mine[k]) for k in gathering.written}
    for k, vector in masked.items():
        if k not in lost["vector"]:
            gathering.take_vector(k, vector)
    opened = {k: parties[k].unmask(*gathering.to_unmask(k)) for k in gathering.sent}
    return gathering, masked, gathering.opened({k: given for k, given in opened.items() if k not in lost["unmask"]})


FIVE = SharingParameters.of(SecureConfig(), 5)


def test_masked_vectors_tell_nothing_and_add_up() -> None:
    mine = vectors(range(5))
    _, masked, total = play(FIVE, mine)
    _, again, _ = play(FIVE, mine)
    np.testing.assert_array_equal(total, sum(mine.values()))
    for k in mine:
        assert (masked[k] != mine[k]).mean() > 0.95
        assert (masked[k] != again[k]).mean() > 0.95, "keys are made for one sum"
        assert (masked[k] >= 1 << 22).mean() > 0.95, "a plain number is below"
    pair = masked[0] + masked[1] - mine[0] - mine[1]
    assert (pair != 0).mean() > 0.95, "some of the vectors do not open"


@pytest.mark.parametrize(
    ("lost", "missing"),
    [
        ({"keys": {1}}, {1}),
        ({"shares": {2}}, {2}),
        ({"vector": {0}}, {0}),
        ({"vector": {4}}, {4}),
        ({"unmask": {3}}, set()),  # its vector is there, and the others open it
    ],
)
def test_a_client_may_leave_at_any_stage(lost: Mapping[str, set[int]], missing: set[int]) -> None:
    mine = vectors(range(5))
    gathering, _, total = play(FIVE, mine, lost)
    assert set(gathering.sent) == mine.keys() - missing
    np.testing.assert_array_equal(total, sum(mine[k] for k in gathering.sent))


def test_clients_leave_at_all_stages_of_one_sum() -> None:
    """Ten clients, of which seven can open: one leaves at each of three stages."""
    mine = vectors(range(10))
    gathering, _, total = play(
        SharingParameters.of(SecureConfig(), 10), mine, {"keys": {9}, "shares": {0}, "vector": {5}}
    )
    assert set(gathering.sent) == {1, 2, 3, 4, 6, 7, 8}
    np.testing.assert_array_equal(total, sum(mine[k] for k in gathering.sent))


def test_neighbours_of_a_ring_are_enough() -> None:
    """Eleven clients, each with five that hold shares of its secrets, of which four open them."""
    terms = SharingParameters.of(SecureConfig(shares=5), 11)
    assert terms == SharingParameters(shares=5, threshold=4)
    mine = vectors(range(11))
    gathering, _, total = play(terms, mine, {"vector": {6}})
    assert {len(near) for near in gathering.near.values()} == {5}
    np.testing.assert_array_equal(total, sum(mine[k] for k in gathering.sent))


def test_with_too_few_shares_the_sum_stays_closed() -> None:
    with pytest.raises(RequestError, match=r"3 shares of a secret came\. Expected: 4 or more"):
        play(FIVE, vectors(range(5)), {"unmask": {0, 1}})
    gathering = SumServer(FIVE, range(5))
    assert gathering.enough({0, 1, 2, 3})
    assert not gathering.enough({0, 1, 2})
    assert not gathering.enough(())


def test_how_many_have_to_answer() -> None:
    """More than two thirds, never fewer than three: of two uploads each client knows the other's."""
    found = {n: SharingParameters.of(SecureConfig(), n).threshold for n in (3, 4, 5, 6, 9, 10)}
    assert found == {3: 3, 4: 3, 5: 4, 6: 5, 9: 7, 10: 7}
    assert SharingParameters.of(SecureConfig(threshold=0.5), 4).threshold == 3
    with pytest.raises(RequestError, match="2 clients are too few for a secure sum"):
        SharingParameters.of(SecureConfig(), 2)


def parts_of(terms: SharingParameters, clients: int, gone: Collection[int]) -> list[set[int]] | None:
    """Clients that are left, in groups whose masks cancel in each alone; None: too few are left to open a sum."""
    gathering = SumServer(terms, range(clients))
    left = set(range(clients)) - set(gone)
    if not gathering.enough(left):
        return None
    groups: list[set[int]] = []
    while left:
        group, new = set[int](), {left.pop()}
        while new:
            group |= new
            new = {k for client in new for k in gathering.near[client]} & left
            left -= new
        groups.append(group)
    return groups


@pytest.mark.parametrize("shares", [3, 5, 7, 15])
def test_those_who_leave_cannot_cut_the_ring(shares: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole sides of neighbours leave at two places of the ring. With half of the shares, two sums could be opened."""
    monkeypatch.setattr("secrets.SystemRandom.shuffle", lambda *_: None)
    clients, side = 4 * shares, shares // 2
    gone = {*range(side), *range(clients // 2, clients // 2 + side)}
    half = SharingParameters(shares, shares // 2 + 1)
    assert len(parts_of(half, clients, gone) or ()) == 2
    terms = SharingParameters.of(SecureConfig(shares=shares, threshold=0.5), clients)
    assert parts_of(terms, clients, gone) is None
    assert len(parts_of(terms, clients, gone=()) or ()) == 1
    assert SharingParameters.of(SecureConfig(shares=shares), clients).threshold >= terms.threshold


def begun(clients: int = 3) -> dict[int, SumClient]:
    terms = SharingParameters.of(SecureConfig(), clients)
    return {k: SumClient(k, SESSION, terms) for k in range(clients)}


def at_unmask() -> SumClient:
    """A client of three whose masked vector has left."""
    parties = begun()
    keys = {k: party.public for k, party in parties.items()}
    written = {k: party.share(keys) for k, party in parties.items()}
    parties[0].mask({k: written[k][0] for k in (1, 2)}, lambda: np.zeros(4, dtype=np.uint32))
    return parties[0]


@pytest.mark.parametrize(
    ("active", "dead", "reason"),
    [
        ((0, 1, 2), (2,), "each of"),  # both secrets of client 2 would open its upload
        ((0, 1), (), "each of"),
        ((1, 2), (0,), "client 0 among the first"),
        ((0, 1, 2, 7), (), "each of"),
        ((0, 1), (2,), "2 of its neighbours sent a vector. Expected: 3 or more"),
    ],
)
def test_a_client_gives_no_shares_that_open_one_upload(
    active: tuple[int, ...], dead: tuple[int, ...], reason: str
) -> None:
    with pytest.raises(RequestError, match=reason):
        at_unmask().unmask(active, dead)


def test_a_client_gives_its_shares_once() -> None:
    party = at_unmask()
    assert party.unmask((0, 1, 2), ()).keys() == {0, 1, 2}
    with pytest.raises(RequestError, match="out of order"):
        party.unmask((0, 1), (2,))
    with pytest.raises(RequestError, match="out of order"):
        party.mask({}, lambda: np.zeros(4, dtype=np.uint32))


def test_a_stage_that_failed_is_not_tried_again() -> None:
    """A server that asks for shares of other groups until it hears what it wants."""
    party = at_unmask()
    with pytest.raises(RequestError, match="2 of its neighbours"):
        party.unmask((0, 1), (2,))
    with pytest.raises(RequestError, match="out of order"):
        party.unmask((0, 1, 2), ())
    parties = begun()
    keys = {k: each.public for k, each in parties.items()}
    written = {k: each.share(keys) for k, each in parties.items()}
    with pytest.raises(ZeroDivisionError):
        parties[0].mask({k: written[k][0] for k in (1, 2)}, lambda: np.zeros(1 // 0, dtype=np.uint32))
    with pytest.raises(RequestError, match="out of order"):
        parties[0].mask({k: written[k][0] for k in (1, 2)}, lambda: np.zeros(4, dtype=np.uint32))


def test_a_client_looks_at_the_keys_it_is_sent() -> None:
    strange = (KeyPair.new().public, KeyPair.new().public)
    for change, reason in (
        (lambda keys: {**keys, 0: strange}, "its own public keys are not among"),
        (lambda keys: {**keys, 2: keys[1]}, "two of the public keys"),
        (lambda keys: {0: keys[0], 1: keys[1]}, "2 clients would hold its secrets. Expected: 3 to 3"),
        (lambda keys: {**keys, 7: strange}, "4 clients would hold its secrets"),
        (lambda keys: {**keys, 2: (b"no key", b"none")}, "cannot be read"),
    ):
        parties = begun()
        with pytest.raises(RequestError, match=reason):
            parties[0].share(change({k: party.public for k, party in parties.items()}))


def test_a_share_that_was_changed_or_handed_to_another_is_refused() -> None:
    for change in (
        lambda shares: {1: shares[2], 2: shares[1]},
        lambda shares: {**shares, 1: shares[1][:-9] + b"AAAAAAAA="},
    ):
        parties = begun()
        keys = {k: party.public for k, party in parties.items()}
        written = {k: party.share(keys) for k, party in parties.items()}
        with pytest.raises(RequestError, match="damaged"):
            parties[0].mask(change({k: written[k][0] for k in (1, 2)}), lambda: np.zeros(4, dtype=np.uint32))


@pytest.mark.parametrize("garbage", [b"", b"abc", bytes(20), bytes(68), b"\xff" * 52, b"\x01\0\0\0" + bytes(48)])
def test_shares_that_are_none_close_the_sum(garbage: bytes) -> None:
    """Whatever a client gives away as a share: the sum is refused, and nothing breaks."""
    mine = vectors(range(5))
    terms = SharingParameters.of(SecureConfig(), 5)
    gathering, parties = SumServer(terms, mine), {k: SumClient(k, SESSION, terms) for k in mine}
    gathering.keys = {k: party.public for k, party in parties.items()}
    for k, party in parties.items():
        gathering.take_shares(k, party.share(gathering.keys))
    for k in range(4):
        gathering.take_vector(k, parties[k].mask(gathering.shares_for(k), lambda k=k: mine[k]))
    given = {k: parties[k].unmask(*gathering.to_unmask(k)) for k in gathering.sent}
    for whose in (1, 4):
        with pytest.raises(RequestError):
            gathering.opened({**given, 0: {**given[0], whose: garbage}})


def test_masks_depend_on_the_whole_key() -> None:
    """Flower's generator folds a key into 32 bits: parts of it in another order give the same mask. Ours must not."""
    key = bytes(range(32))
    other = key[4:8] + key[:4] + key[8:]
    assert (pseudo_rand_gen(key, 1 << 32, [(8,)])[0] == pseudo_rand_gen(other, 1 << 32, [(8,)])[0]).all()
    assert (mask(key, 8) != mask(other, 8)).all()
    np.testing.assert_array_equal(mask(key, 8), mask(key, 9)[:8])


def test_the_mask_is_aes_256_in_counter_mode() -> None:
    """The first counter is the block of zeros; under the key of zeros its ciphertext is known (NIST, CAVP AES)."""
    assert mask(bytes(32), 4).tobytes().hex() == "dc95c078a2408989ad48a21492842087"


def test_both_sides_agree_on_a_key() -> None:
    one, other, third = KeyPair.new(), KeyPair.new(), KeyPair.new()
    assert agreed_key(one.secret, other.public) == agreed_key(other.secret, one.public)
    assert agreed_key(one.secret, other.public) != agreed_key(one.secret, third.public)
    assert one.secret.hex() not in repr(one)


def test_a_letter_carries_any_bytes() -> None:
    every = bytes(range(256))
    note = SumRequest(session=SESSION, keys={3: (every, b"")}, shares={0: every}, active=(1, 2), dead=(3,))
    request = Request(RequestHeader(kind="unmask", run=SESSION, sealing=note))
    assert Request.decode(request.encode()).header.sealing == note


def test_the_tables_of_the_page_are_those_of_the_bench() -> None:
    root = Path(__file__).parents[2]
    spec = importlib.util.spec_from_file_location("secagg", root / "bench" / "secagg.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(bench)
    page = (root / "docs" / "federation.md").read_text(encoding="utf-8")
    found = json.loads((root / "bench" / "secagg.json").read_text(encoding="utf-8"))
    assert bench.fill(page, found) == page, "run: python bench/secagg.py --fill"
