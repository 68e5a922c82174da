"""Asks the server whether a client's key is admitted, and explains failed connections."""

from __future__ import annotations

import ssl
from base64 import b64encode
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import TIMESTAMP_HEADER
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from pydantic import TypeAdapter

from torso.errors import RequestError, TorsoError
from torso.federation.flower.access_control import HELLO, JOIN, KeyStatus
from torso.federation.folder import ClientFolder
from torso.reading import parse_record

_STANDING = TypeAdapter(KeyStatus)
_LONGEST = 2**16  # bytes of an answer; a real one has a few hundred


class ServerUnreachable(TorsoError):
    """No server answers at the address."""


class AdmissionClient:
    """An HTTP client that asks the server for the state of this client's key.

    `key`: the file of the private key; None if the server asks for no keys."""

    def __init__(self, place: ClientFolder, key: Path | None) -> None:
        self._place = place
        self._key = None if key is None else _private_key(key)
        verify: ssl.SSLContext | bool = False
        if not place.insecure:
            try:
                verify = ssl.create_default_context(cafile=str(place.ca))
            except (OSError, ssl.SSLError) as error:
                raise RequestError(f"{str(place.ca)!r} is no certificate in PEM: {error}") from None
        self._client = httpx.Client(verify=verify, timeout=10)

    def close(self) -> None:
        self._client.close()

    def ask(self, join: bool) -> KeyStatus:
        """The state of this client's key. `join`: whether the client is about to connect.

        ServerUnreachable if no server answers; RequestError if the server is a wrong one."""
        scheme = "http" if self._place.insecure else "https"
        url = f"{scheme}://{self._place.settings.server}{HELLO}" + (f"?{JOIN}" if join else "")
        try:
            with self._client.stream("GET", url, headers=self._signed()) as response:
                answer = _beginning(response)
        except httpx.TransportError as error:
            raise self._refused(str(error)) from None
        try:
            response.raise_for_status()
            return parse_key_status(answer)
        except (httpx.HTTPStatusError, ValueError):
            raise RequestError(
                f"what answers at {self._place.settings.server} is no server of Torso's (status "
                f"{response.status_code}). Expected in federation.toml: server = the address where "
                "`torso federation serve` runs"
            ) from None

    def _signed(self) -> dict[str, str]:
        if self._key is None:
            return {}
        written = now().isoformat()
        return {
            FLEET_HTTP_PUBLIC_KEY_HEADER: b64encode(public_key_to_bytes(self._key.public_key())).decode("ascii"),
            TIMESTAMP_HEADER: written,
            FLEET_HTTP_SIGNATURE_HEADER: b64encode(sign_message(self._key, written.encode("ascii"))).decode("ascii"),
        }

    def _refused(self, problem: str) -> TorsoError:
        """The error for a failed connection, from the text of the exception."""
        where, text = self._place.settings.server, problem.lower()
        if "certificate_verify_failed" in text and ("mismatch" in text or "not valid for" in text):
            return RequestError(
                f"the server's certificate is not for the name by which it was called, {where} ({problem}). Expected: "
                "a certificate with this name, which the server's operator makes"
            )
        if "certificate_verify_failed" in text and "expired" in text:
            return RequestError(
                f"the server's certificate has expired ({problem}). The server's operator makes a new one"
            )
        if "certificate_verify_failed" in text:
            return RequestError(
                f"the server at {where} does not show a certificate of the authority in {str(self._place.ca)!r} "
                f"({problem}). Expected: the ca.crt of this very server; ask its operator, and do not go on without it"
            )
        if "wrong_version_number" in text or "record layer" in text:
            return RequestError(f"the server at {where} does not speak TLS ({problem}). Is it another server?")
        return ServerUnreachable(f"no server answers at {where} ({problem}). Is it running, and is the address right?")


def parse_key_status(answer: bytes) -> KeyStatus:
    """Parse a server's answer; ValueError if it is something else."""
    parse_record(answer)
    return _STANDING.validate_json(answer)


def _beginning(response: httpx.Response) -> bytes:
    """The raw body of a response; empty if it is longer than _LONGEST.

    It is not decompressed: a few compressed bytes could become gigabytes."""
    answer = b""
    for part in response.iter_raw():
        answer += part
        if len(answer) > _LONGEST:
            return b""
    return answer


def _private_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        found = load_ssh_private_key(path.read_bytes(), None)
    except OSError as error:
        raise RequestError(f"{str(path)!r} cannot be read: {error}") from None
    except (ValueError, TypeError):
        found = None
    if not isinstance(found, ec.EllipticCurvePrivateKey):
        raise RequestError(f"{str(path)!r} is no private key of `torso federation key`. Make one under another name.")
    return found
