"""A client's side of one secure sum: its secrets, in memory only, and what it gives away of them, once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Literal

from torso.errors import RequestError
from torso.federation.secure.crypto import (
    KeyPair,
    Vector,
    agreed_key,
    decrypt,
    encrypt,
    mask,
    new_seed,
    shared_mask,
    split_secret,
)
from torso.federation.secure.notes import Keys
from torso.federation.secure.terms import Terms

from flwr.common.secure_aggregation.secaggplus_utils import (  # isort: skip
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)

Stage = Literal["shares", "vector", "unmask", "over"]


class Party:
    """One client in one sum. Stages come in their order, each once: who asks again begins with new keys.

    The vector leaves with two kinds of masks: its own, from a random seed, and one with each neighbour, from the key
    that both agree on. The masks of a pair cancel in the sum. Neighbours hold shares of both secrets, and give away one
    kind for a client: the seed where its vector came, the key where it did not."""

    def __init__(self, client: int, session: str, terms: Terms) -> None:
        self.client, self.session, self.terms = client, session, terms
        self.stage: Stage = "shares"
        self._masking, self._writing, self._seed = KeyPair.new(), KeyPair.new(), new_seed()
        self._keys: dict[int, Keys] = {}
        self._seeds: dict[int, bytes] = {}  # shares that this client holds, by whose they are
        self._secrets: dict[int, bytes] = {}

    @property
    def public(self) -> Keys:
        return self._masking.public, self._writing.public

    def share(self, keys: Mapping[int, Keys]) -> dict[int, bytes]:
        """For each neighbour, encrypted: a share of the seed and one of the key."""
        self._enter("shares")
        if not self.terms.threshold <= len(keys) <= self.terms.shares:
            raise RequestError(
                f"{len(keys)} clients would hold its secrets. Expected: {self.terms.threshold} to {self.terms.shares}"
            )
        if keys.get(self.client) != self.public:
            raise RequestError("its own public keys are not among those that the server sent")
        if len({key for pair in keys.values() for key in pair}) != 2 * len(keys):
            raise RequestError("two of the public keys that the server sent are the same")
        self._keys = dict(keys)
        split = (split_secret(s, self.terms.threshold, self.terms.shares) for s in (self._seed, self._masking.secret))
        found: dict[int, bytes] = {}
        for other, seed, secret in zip(sorted(keys), *split, strict=False):  # shares of who has left go to nobody
            if other == self.client:
                self._seeds[other], self._secrets[other] = seed, secret
            else:
                text = share_keys_plaintext_concat(self.client, other, seed, secret)
                found[other] = encrypt(agreed_key(self._writing.secret, keys[other][1]), text)
        self.stage = "vector"
        return found

    def mask(self, shares: Mapping[int, bytes], vector: Callable[[], Vector]) -> Vector:
        """The vector as it may be shown; asked for when all else is in order, as it takes a training."""
        self._enter("vector")
        if len(shares) + 1 < self.terms.threshold:
            raise RequestError(f"{len(shares) + 1} clients have shared secrets. Expected: {self.terms.threshold}")
        for other, text in shares.items():
            if other == self.client or other not in self._keys:
                raise RequestError(f"client {other} is not among those that it has shared secrets with")
            told = decrypt(agreed_key(self._writing.secret, self._keys[other][1]), text)
            sender, reader, seed, secret = share_keys_plaintext_separate(told)
            if (sender, reader) != (other, self.client):
                raise RequestError(f"a share of client {sender} for client {reader} came as one of client {other}")
            self._seeds[other], self._secrets[other] = seed, secret
        total = vector()
        size = len(total)
        total = total + mask(self._seed, size)
        for other in shares:
            common = shared_mask(self._masking.secret, self._keys[other][0], size)
            total = total + common if self.client > other else total - common
        self.stage = "unmask"
        return total

    def unmask(self, active: Collection[int], dead: Collection[int]) -> dict[int, bytes]:
        """One share for each neighbour, and never both kinds: they would open a single upload."""
        self._enter("unmask")
        sent, silent = set(active), set(dead)
        if sent & silent or sent | silent != self._seeds.keys() or self.client not in sent:
            raise RequestError(
                f"the server names {sorted(sent)} as those who sent a vector, and {sorted(silent)} as those who did "
                f"not. Expected: each of {sorted(self._seeds)} once, client {self.client} among the first"
            )
        if len(sent) < self.terms.threshold:
            raise RequestError(f"{len(sent)} of its neighbours sent a vector. Expected: {self.terms.threshold} or more")
        found = {other: self._seeds[other] for other in sent} | {other: self._secrets[other] for other in silent}
        self._forget()
        return found

    def _enter(self, stage: Stage) -> None:
        if self.stage != stage:
            self._forget()
            raise RequestError(
                f"a secure sum goes on out of order ({stage!r}). Expected: one that begins with new keys"
            )
        self.stage = "over"  # until the stage has come to its end: what failed is not tried again

    def _forget(self) -> None:
        self.stage, self._seed, self._seeds, self._secrets = "over", b"", {}, {}
        self._masking = self._writing = KeyPair(b"", b"")
