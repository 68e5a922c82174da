"""The cryptography of secure sums, all of it from libraries: key agreement, encryption and Shamir's shares as in
Flower's SecAgg+; masks from AES-256 in counter mode, the generator of Bonawitz et al. (2017).

Flower's own generator of masks (`pseudo_rand_gen`) is not used: it folds a key of 256 bits into a seed of 32 bits (28
where the key comes from a key agreement) for a Mersenne Twister, and a server can try all of them.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.fernet import InvalidToken
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

import torso.federation.flower  # noqa: F401  Flower's telemetry is off before anything of it is imported
from torso.errors import RequestError

from flwr.common.secure_aggregation.crypto import shamir, symmetric_encryption  # isort: skip
from flwr.supercore.primitives import asymmetric  # isort: skip

_SCALAR = 48  # bytes of a secret key

Vector = np.ndarray[tuple[int], np.dtype[np.uint32]]
"""Numbers modulo 2³²: NumPy's unsigned integers add and subtract as they should."""


@dataclass(frozen=True)
class KeyPair:
    """Of the curve P-384. The secret is the plain number, a sixth of the file that libraries write: it is cut into
    shares, which takes a time for each 16 bytes. It is not printed."""

    public: bytes
    secret: bytes = field(repr=False)

    @classmethod
    def new(cls) -> KeyPair:
        secret, public = asymmetric.generate_key_pairs()
        number = secret.private_numbers().private_value
        return cls(asymmetric.public_key_to_bytes(public), number.to_bytes(_SCALAR, "big"))


def agreed_key(secret: bytes, public: bytes) -> bytes:
    """The key that two clients share and nobody else has: from the secret key of one and the public key of the other.
    As Flower gives it: in the letters of base64."""
    theirs = public_key(public)
    try:
        own = ec.derive_private_key(int.from_bytes(secret, "big"), ec.SECP384R1())
    except ValueError:
        raise RequestError("a secret key of the secure sum is not in the range of the curve P-384") from None
    return symmetric_encryption.generate_shared_key(own, theirs)


def public_key(public: bytes) -> ec.EllipticCurvePublicKey:
    """Of somebody else: whatever it sends is either a point of the curve, or refused."""
    try:
        found = asymmetric.bytes_to_public_key(public)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise RequestError("a key of the secure sum cannot be read. Expected: one of the curve P-384") from None
    if not isinstance(getattr(found, "curve", None), ec.SECP384R1):
        raise RequestError("a key of the secure sum is of another kind. Expected: one of the curve P-384")
    return found


def encrypt(key: bytes, text: bytes) -> bytes:
    return symmetric_encryption.encrypt(key, text)


def decrypt(key: bytes, text: bytes) -> bytes:
    """Refused where somebody has changed it on the way, or wrote it with another key."""
    try:
        return symmetric_encryption.decrypt(key, text)
    except InvalidToken:
        raise RequestError("an encrypted share is damaged, or is not from whom the server says") from None


def split_secret(secret: bytes, threshold: int, shares: int) -> list[bytes]:
    """Shamir's shares: any `threshold` of them give the secret, fewer give nothing."""
    return shamir.create_shares(secret, threshold, shares)


def joined_secret(shares: Sequence[bytes]) -> bytes:
    try:
        return shamir.combine_shares(list(shares))
    except (ValueError, IndexError):
        raise RequestError("shares of a secret do not fit together") from None


def new_seed() -> bytes:
    return os.urandom(32)


def mask(seed: bytes, size: int) -> Vector:
    """`size` numbers that nobody without the seed can tell from random ones. A seed is used for one vector only."""
    if len(seed) != 32:
        raise RequestError(f"the seed of a mask has {len(seed)} bytes. Expected: 32")
    stream = Cipher(algorithms.AES256(seed), modes.CTR(bytes(16))).encryptor()
    return np.frombuffer(stream.update(bytes(4 * size)), dtype="<u4").astype(np.uint32, copy=False)


def shared_mask(secret: bytes, public: bytes, size: int) -> Vector:
    """The mask of two clients: one adds it, the other subtracts it."""
    return mask(base64.urlsafe_b64decode(agreed_key(secret, public)), size)
