"""The folder of a federation: `client/` is copied to every client machine, `server/` stays on the server."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from torso.errors import RequestError, did_you_mean
from torso.federation import certificates
from torso.federation.texts import CERTIFICATES, CONFIG, README
from torso.reading import parse_toml

PORT = 9092
_CLIENT = "federation.toml"
_SERVER = "server.toml"
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")


class _Settings(BaseModel):
    """The base of both settings files."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    insecure: bool = False


class ClientSettings(_Settings):
    """The content of client/federation.toml."""

    server: Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9.-]+):[0-9]{1,5}$")]  # HOST:PORT


class ServerSettings(_Settings):
    """The content of server/server.toml."""

    listen: str  # the address that the server listens on
    port: Annotated[int, Field(ge=1, le=65535)] = PORT


Kind = TypeVar("Kind", bound=_Settings)


@dataclass(frozen=True)
class ClientFolder:
    """The folder `client/` on a client machine, with the keys and the state that were made there."""

    path: Path
    settings: ClientSettings

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open a client's folder. On the server's machine, `path` may also be the folder that contains `client/`."""
        path = Path(path)
        if not (path / _CLIENT).exists() and (path / "client" / _CLIENT).exists():
            path = path / "client"
        if not (path / _CLIENT).is_file():
            raise RequestError(
                f"{str(path)!r} is no client's folder: there is no {_CLIENT} in it. Expected: a copy of the folder "
                "`client` that `torso federation init` has made on the server"
            )
        place = cls(path.resolve(), _read(path / _CLIENT, ClientSettings))
        if not place.settings.insecure and not place.ca.is_file():
            raise RequestError(
                f"{str(place.ca)!r} is missing. Expected: the certificate by which clients know the server, as it lies "
                "in the folder `client` on the server"
            )
        return place

    @property
    def insecure(self) -> bool:
        return self.settings.insecure

    @property
    def ca(self) -> Path:
        return self.path / "ca.crt"

    def key(self, name: str) -> Path:
        return self.path / "keys" / name

    def log(self, name: str) -> Path:
        """The log of Flower's SuperNode on this machine."""
        return self.path / "logs" / f"{name}.log"


@dataclass(frozen=True)
class ServerFolder:
    """The whole folder of a federation, on the server's machine."""

    path: Path
    settings: ServerSettings
    clients: ClientSettings  # what client machines are given

    @classmethod
    def open(cls, path: str | Path) -> Self:
        path = Path(path)
        if not (path / "server" / _SERVER).is_file():
            raise RequestError(
                f"{str(path)!r} is no federation: there is no server/{_SERVER} in it. Expected: a folder that "
                "`torso federation init` has made"
            )
        clients = _read(path / "client" / _CLIENT, ClientSettings)
        settings = _read(path / "server" / _SERVER, ServerSettings)
        if clients.insecure != settings.insecure:
            raise RequestError(
                f"insecure = {str(clients.insecure).lower()} in {str(path / 'client' / _CLIENT)!r}, "
                f"{str(settings.insecure).lower()} in {str(path / 'server' / _SERVER)!r}. Expected: the same in both"
            )
        return cls(path.resolve(), settings, clients)

    @property
    def insecure(self) -> bool:
        return self.settings.insecure

    @property
    def private(self) -> Path:
        return self.path / "server"

    @property
    def ca(self) -> Path:
        return self.path / "client" / "ca.crt"

    @property
    def certificate(self) -> Path:
        return self.private / "server.crt"

    @property
    def key(self) -> Path:
        return self.private / "server.key"

    @property
    def nodes(self) -> Path:
        """The file of admitted keys; only the server writes it."""
        return self.private / "admitted.json"

    @property
    def log(self) -> Path:
        """The log of Flower's SuperLink."""
        return self.private / "superlink.log"

    @property
    def secret_file(self) -> Path:
        return self.private / "secret"

    @property
    def secret(self) -> str:
        """The operator's secret: whoever can read its file may control the server."""
        try:
            found = self.secret_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise RequestError(f"{str(self.secret_file)!r} cannot be read: {error}") from None
        if len(found) < 32:
            raise RequestError(
                f"{str(self.secret_file)!r} holds {len(found)} characters. Expected: the secret of at least 32 that "
                "`torso federation init` has written"
            )
        return found

    @property
    def host(self) -> str:
        """The host name or address that clients connect to."""
        return self.clients.server.rpartition(":")[0].strip("[]")

    def check_certificates(self) -> None:
        if not self.insecure:
            certificates.check(self.ca, self.certificate, self.key, self.host)

    @property
    def own_address(self) -> str:
        """The address of the server for programs on this machine."""
        return f"127.0.0.1:{self.settings.port}"


def init(
    path: str | Path,
    host: str,
    port: int = PORT,
    names: Sequence[str] = (),
    insecure: bool = False,
    config: str | Path | None = None,
) -> ServerFolder:
    """Create the folder of a federation whose clients connect to `host:port`.

    `names`: further host names and IP addresses for the server's certificate. `config`: a file to use as config.toml.
    The folder is written completely or not at all."""
    path = Path(path)
    for name in (host, *names):
        _check_host(name)
    if not 1 <= port <= 65535:
        raise RequestError(f"--port {port} is no port. Accepted: 1 to 65535")
    text = _config_text(config)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RequestError(f"{str(path)!r} exists already and is not empty. Give a new folder: nothing is overwritten.")
    temporary = path.absolute().parent / f".{path.name}.{secrets.token_hex(4)}"
    try:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        try:
            _write(temporary, host, port, names, insecure, text)
            os.replace(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
    except OSError as error:
        raise RequestError(f"{str(path)!r} cannot be written: {error}") from None
    return ServerFolder.open(path)


def write_private(path: Path, data: bytes) -> None:
    """Write a new file that only its owner can read, from the moment it exists."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)


def _write(folder: Path, host: str, port: int, names: Sequence[str], insecure: bool, config: str) -> None:
    client, server = folder / "client", folder / "server"
    client.mkdir(parents=True)
    server.mkdir(mode=0o700)
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    only_here = _loopback(host) and not names
    listen = "127.0.0.1" if only_here else "0.0.0.0"
    _dump(client / _CLIENT, ClientSettings(server=address, insecure=insecure))
    _dump(server / _SERVER, ServerSettings(listen=listen, port=port, insecure=insecure))
    write_private(server / "secret", secrets.token_hex(32).encode())
    if not insecure:
        made = certificates.make((host, *names))
        (client / "ca.crt").write_bytes(made.authority)
        (server / "server.crt").write_bytes(made.certificate)
        write_private(server / "ca.key", made.authority_key)
        write_private(server / "server.key", made.key)
        script = CERTIFICATES.format(names=_alternative_names((host, *names)), days=certificates.DAYS)
        (folder / "certificates.sh").write_text(script, encoding="utf-8")
        (folder / "certificates.sh").chmod(0o755)
    (folder / "config.toml").write_text(config, encoding="utf-8")
    (folder / "README.md").write_text(README.format(address=address, listen=listen, port=port), encoding="utf-8")


def _config_text(config: str | Path | None) -> str:
    if config is None:
        return CONFIG
    try:
        text = Path(config).read_text(encoding="utf-8")
        parse_toml(text)
    except (OSError, ValueError) as error:
        raise RequestError(f"config {str(config)!r} cannot be read as TOML: {error}") from None
    return text


def _check_host(name: str) -> None:
    with suppress(ValueError):
        if not ipaddress.ip_address(name).is_unspecified:
            return
    if name in ("0.0.0.0", "::") or not _HOST.fullmatch(name) or len(name) > 253:
        raise RequestError(
            f"{name!r} is no address under which a client could find the server. Expected: a host name such as "
            "server.example.org or an IP address such as 192.0.2.7"
        )


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _alternative_names(names: Sequence[str]) -> str:
    every = dict.fromkeys((*names, "localhost", "127.0.0.1", "::1"))
    return ",".join(f"{'IP' if certificates.is_address(name) else 'DNS'}:{name}" for name in every)


def _dump(path: Path, settings: _Settings) -> None:
    path.write_text(tomli_w.dumps(settings.model_dump(mode="json")), encoding="utf-8")


def _read(path: Path, kind: type[Kind]) -> Kind:
    try:
        tree: dict[str, Any] = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RequestError(f"{str(path)!r} cannot be read as TOML: {error}") from None
    try:
        return kind(**tree)
    except ValidationError as error:
        raise RequestError(f"{str(path)!r}: {_first_problem(error, kind)}") from None


def _first_problem(error: ValidationError, kind: type[BaseModel]) -> str:
    first = error.errors()[0]
    key = ".".join(str(step) for step in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{key} is not a key{did_you_mean(key, kind.model_fields)} Accepted: {', '.join(kind.model_fields)}"
    if first["type"] == "missing":
        return f"the key {key} is missing. Expected: {', '.join(kind.model_fields)}"
    return f"{key} = {first['input']!r} is not accepted: {first['msg'][:1].lower()}{first['msg'][1:]}."
