"""Makes TLS certificates for a trial, and checks the certificates of a federation's folder."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from torso.errors import RequestError

if TYPE_CHECKING:
    from cryptography import x509

DAYS = 30  # validity of certificates for a trial


@dataclass(frozen=True)
class Certificates:
    """The certificates and keys of an authority and of the server, in PEM. The authority has signed the server's."""

    authority: bytes
    authority_key: bytes
    certificate: bytes
    key: bytes


def is_address(name: str) -> bool:
    """Whether a name is an IP address, not a host name."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def make(names: Sequence[str]) -> Certificates:
    """A new authority, and a certificate signed by it for a server with these host names and IP addresses."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    began = datetime.now(UTC) - timedelta(minutes=10)  # in the past, for clients whose clock is behind
    authority_key = ec.generate_private_key(ec.SECP384R1())
    key = ec.generate_private_key(ec.SECP384R1())

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    def usage(signs: bool) -> x509.KeyUsage:
        never = dict.fromkeys(
            ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement", "encipher_only"), False
        )
        return x509.KeyUsage(
            digital_signature=not signs, key_cert_sign=signs, crl_sign=signs, decipher_only=False, **never
        )

    def started(subject: str, owner: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(named(subject))
            .issuer_name(named("Torso federation (trial)"))
            .public_key(owner.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(began)
            .not_valid_after(began + timedelta(days=DAYS))
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(owner.public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
            )
        )

    every = dict.fromkeys((*names, "localhost", "127.0.0.1", "::1"))
    known = [x509.IPAddress(ipaddress.ip_address(n)) if is_address(n) else x509.DNSName(n) for n in every]
    authority = (
        started("Torso federation (trial)", authority_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA384())
    )
    certificate = (
        started("Torso server", key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(known), critical=False)
        .sign(authority_key, hashes.SHA384())
    )

    def private(owner: ec.EllipticCurvePrivateKey) -> bytes:
        return owner.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )

    pem = serialization.Encoding.PEM
    return Certificates(
        authority.public_bytes(pem), private(authority_key), certificate.public_bytes(pem), private(key)
    )


def check(authority: Path, certificate: Path, key: Path, host: str) -> None:
    """Raise RequestError if clients that connect to `host` would not accept these certificates."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    _check_dates(authority, _certificate(authority))
    found = _certificate(certificate)
    _check_dates(certificate, found)
    try:
        private = load_pem_private_key(_bytes(key), password=None)
    except (ValueError, TypeError) as error:
        raise RequestError(f"{str(key)!r} is no private key in PEM without a password: {error}") from None
    form = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
    if private.public_key().public_bytes(*form) != found.public_key().public_bytes(*form):
        raise RequestError(
            f"{str(key)!r} does not fit {str(certificate)!r}. Expected: the key for which the certificate was made; "
            "./certificates.sh makes both"
        )
    _check_names(certificate, found, host)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise RequestError(f"{str(path)!r} cannot be read: {error}") from None


def _certificate(path: Path) -> x509.Certificate:
    from cryptography import x509

    try:
        return x509.load_pem_x509_certificate(_bytes(path))
    except ValueError as error:
        raise RequestError(f"{str(path)!r} is no certificate in PEM: {error}") from None


def _check_dates(path: Path, found: x509.Certificate) -> None:
    now = datetime.now(UTC)
    if not found.not_valid_before_utc <= now <= found.not_valid_after_utc:
        raise RequestError(
            f"{str(path)!r} is good from {found.not_valid_before_utc:%Y-%m-%d} to "
            f"{found.not_valid_after_utc:%Y-%m-%d}; today is {now:%Y-%m-%d}. Make new ones with ./certificates.sh"
        )


def _check_names(path: Path, found: x509.Certificate, host: str) -> None:
    """Refuse a certificate that is not for `host` (clients use it) or for 127.0.0.1 (this machine uses it)."""
    from cryptography import x509

    try:
        known = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names: list[str] = []
    else:
        names = [*known.get_values_for_type(x509.DNSName), *map(str, known.get_values_for_type(x509.IPAddress))]
    wild = {"*." + host.partition(".")[2]} if not is_address(host) else set()
    for needed, accepted in (("127.0.0.1", {"127.0.0.1"}), (host, {host, *wild})):
        if not accepted & set(names):
            raise RequestError(
                f"{str(path)!r} is for {', '.join(names) or 'no name'}, not for {needed}. Expected: the names {host} "
                "and 127.0.0.1; ./certificates.sh makes one"
            )
