"""The key pair of a client. It is made on the client's machine, and the private key stays there."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from hashlib import sha256
from pathlib import Path

from torso.errors import RequestError
from torso.federation.folder import ClientFolder, write_private

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")
_TAKEN = ("keys", "logs", "ca.crt", "federation.toml")  # a client's state is in a folder of its name, next to these


def check_name(name: str) -> str:
    """The name, if it can be the name of a file on every system; RequestError otherwise."""
    if not _NAME.fullmatch(name):
        raise RequestError(
            f"--name {name!r} is no name. Accepted: 1 to 64 letters, digits, '.', '_' and '-', not starting with '.'"
        )
    if name in _TAKEN:
        raise RequestError(f"--name {name!r} is what another file of a client's folder is called. Give another name.")
    return name


def make_key(place: ClientFolder, name: str) -> Path:
    """Make a key pair, `keys/NAME` and `keys/NAME.pub`. Returns the path of the public key, for the server."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    check_name(name)
    if name.endswith(".pub"):
        raise RequestError(f"--name {name!r} ends in .pub, as files of public keys do. Give another name.")
    private = place.key(name)
    public = private.with_name(f"{name}.pub")
    pair = ec.generate_private_key(ec.SECP384R1())
    try:
        private.parent.mkdir(mode=0o700, exist_ok=True)
        if public.exists():
            raise FileExistsError(public)
        write_private(
            private,
            pair.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
            ),
        )
        line = pair.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        public.write_bytes(line + b" " + name.encode() + b"\n")
    except FileExistsError:
        raise RequestError(
            f"{str(private)!r} exists already: a key is never overwritten. Give another --name, or send "
            f"{str(public)!r} to the server's operator."
        ) from None
    except OSError as error:
        raise RequestError(f"{str(private)!r} cannot be written: {error}") from None
    return public


def own_key(place: ClientFolder, name: str) -> Path:
    """The path of this machine's private key; RequestError if it has none."""
    path = place.key(check_name(name))
    if not path.is_file():
        raise RequestError(
            f"{str(path)!r} does not exist: this machine has no key for {name!r}. Make one with `torso federation key "
            f"{place.path} --name {name}`, and let the server's operator admit it."
        )
    return path


def public_key(path: Path) -> bytes:
    """The public key in a file of `make_key`, in PEM. A private key is refused, so that it is not sent by mistake."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    expected = "Expected: a file NAME.pub that `torso federation key` has written"
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RequestError(f"{str(path)!r} cannot be read: {error}") from None
    if b"PRIVATE KEY" in data:
        raise RequestError(f"{str(path)!r} is a private key: it never leaves its machine. {expected}")
    try:
        found = serialization.load_ssh_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        found = None
    if not isinstance(found, ec.EllipticCurvePublicKey) or not isinstance(found.curve, ec.SECP384R1):
        raise RequestError(f"{str(path)!r} is no public key on the curve P-384. {expected}")
    return found.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def fingerprint(public: bytes) -> str:
    """The fingerprint of a public key, for people to compare: the same text as `ssh-keygen -lf NAME.pub` shows."""
    from cryptography.hazmat.primitives import serialization

    found = serialization.load_pem_public_key(public)
    line = found.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return "SHA256:" + b64encode(sha256(b64decode(line.split()[1])).digest()).decode().rstrip("=")
