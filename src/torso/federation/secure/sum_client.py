"""A client's side of one secure sum: it holds the secrets, in memory only, and gives away shares of them once."""

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
from torso.federation.secure.sum_messages import Keys
from torso.federation.secure.terms import SharingParameters

from flwr.common.secure_aggregation.secaggplus_utils import (  # isort: skip
    share_keys_plaintext_concat,
    share_keys_plaintext_separate,
)

Stage = Literal["shares", "vector", "unmask", "over"]


class SumClient:
    """One client in one sum. Each stage takes place once and in order; a repetition needs new keys.

    The vector is sent with two kinds of masks: an own mask, generated from a random seed, and one mask shared with each
    neighbour, generated from the key that both agree on. The shared masks cancel in the sum. The neighbours hold shares
    of both secrets (seed and secret key). They give away shares of one of them: of the seed if the client's vector has
    arrived, of the key if it has not."""

    def __init__(self, client: int, session: str, terms: SharingParameters) -> None:
        self.client, self.session, self.terms = client, session, terms
        self.stage: Stage = "shares"
        self._masking, self._writing, self._seed = KeyPair.new(), KeyPair.new(), new_seed()
        self._keys: dict[int, Keys] = {}  # of the neighbours
        self._seeds: dict[int, bytes] = {}  # neighbour → share of its seed that this client holds
        self._secrets: dict[int, bytes] = {}  # neighbour → share of its secret key that this client holds

    @property
    def public(self) -> Keys:
        return self._masking.public, self._writing.public

    def share(self, keys: Mapping[int, Keys]) -> dict[int, bytes]:
        """Split both secrets: neighbour → encrypted text with a share of the seed and one of the secret key."""
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
        for other, seed, secret in zip(sorted(keys), *split, strict=False):  # surplus shares are discarded
            if other == self.client:
                self._seeds[other], self._secrets[other] = seed, secret
            else:
                text = share_keys_plaintext_concat(self.client, other, seed, secret)
                found[other] = encrypt(agreed_key(self._writing.secret, keys[other][1]), text)
        self.stage = "vector"
        return found

    def mask(self, shares: Mapping[int, bytes], vector: Callable[[], Vector]) -> Vector:
        """The masked vector. `shares`: the encrypted shares of the neighbours.

        `vector` is called last, after all checks, since it trains the model."""
        self._enter("vector")
        if len(shares) + 1 < self.terms.threshold:
            raise RequestError(f"{len(shares) + 1} clients have shared secrets. Expected: {self.terms.threshold}")
        for other, text in shares.items():
            if other == self.client or other not in self._keys:
                raise RequestError(f"client {other} is not among those that it has shared secrets with")
            plain_text = decrypt(agreed_key(self._writing.secret, self._keys[other][1]), text)
            sender, reader, seed, secret = share_keys_plaintext_separate(plain_text)
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
        """One share for each neighbour: of the seed if it is in `active`, of the secret key if it is in `dead`.

        Shares of both secrets of one client would reveal its upload, so they are never given away together."""
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
        """Begin a stage; RequestError if it is not the next one."""
        if self.stage != stage:
            self._forget()
            raise RequestError(
                f"a secure sum goes on out of order ({stage!r}). Expected: one that begins with new keys"
            )
        self.stage = "over"  # until the stage has succeeded: a failed stage cannot be repeated

    def _forget(self) -> None:
        self.stage, self._seed, self._seeds, self._secrets = "over", b"", {}, {}
        self._masking = self._writing = KeyPair(b"", b"")
