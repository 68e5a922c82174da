"""The folder of a federation: what `init` writes, what is refused, keys and certificates."""

from __future__ import annotations

import os
import shutil
import ssl
import stat
import subprocess
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from torso import Config, RequestError
from torso.federation import certificates, folder
from torso.federation.folder import ClientFolder, ServerFolder, init
from torso.federation.keys import check_name, fingerprint, make_key, own_key, public_key


@pytest.fixture
def place(tmp_path: Path) -> ServerFolder:
    return init(tmp_path / "fed", "server.example.org", 9123, ["192.0.2.7"])


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_lies_in_it(place: ServerFolder) -> None:
    found = {str(path.relative_to(place.path)) for path in place.path.rglob("*") if path.is_file()}
    assert found == {
        *("README.md", "config.toml", "certificates.sh", "client/federation.toml", "client/ca.crt"),
        *(f"server/{name}" for name in ("server.toml", "ca.key", "server.crt", "server.key", "secret")),
    }
    assert place.clients.server == "server.example.org:9123"
    assert (place.settings.listen, place.settings.port) == ("0.0.0.0", 9123)
    assert mode(place.private) == 0o700
    for name in ("secret", "ca.key", "server.key"):
        assert mode(place.private / name) == 0o600
    assert not [path for path in place.path.parent.iterdir() if path != place.path], "nothing is left beside it"


def test_the_default_config_is_one(place: ServerFolder) -> None:
    assert Config.load(place.path / "config.toml").method.name == "fedbabu"


def test_a_given_config_is_copied(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("# mine\n[train]\nrounds = 3\n")
    place = init(tmp_path / "fed", "127.0.0.1", config=tmp_path / "own.toml")
    assert (place.path / "config.toml").read_text() == "# mine\n[train]\nrounds = 3\n"
    assert place.settings.listen == "127.0.0.1"


def test_readme_names_every_command(place: ServerFolder) -> None:
    text = (place.path / "README.md").read_text()
    for command in ("serve", "key", "admit", "join", "run", "status", "models", "revoke"):
        assert f"torso federation {command} " in text
    assert "30 days" in text
    assert "server.example.org:9123" in text


def test_client_place_is_a_copy_anywhere(place: ServerFolder, tmp_path: Path) -> None:
    copy = tmp_path / "elsewhere"
    shutil.copytree(place.path / "client", copy)
    assert ClientFolder.open(copy).settings == ClientFolder.open(place.path).settings
    assert ClientFolder.open(place.path / "client").ca == place.ca


def test_the_certificates_fit(place: ServerFolder) -> None:
    place.check_certificates()
    context = ssl.create_default_context(cafile=str(place.ca))
    context.load_cert_chain(place.certificate, place.key)


def test_the_script_makes_certificates_that_fit(place: ServerFolder) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    before = {path: path.read_bytes() for path in (place.ca, place.certificate, place.key)}
    done = subprocess.run(
        ["sh", str(place.path / "certificates.sh")], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    place.check_certificates()
    assert all(path.read_bytes() != bytes_ for path, bytes_ in before.items())
    assert mode(place.key) == mode(place.private / "ca.key") == 0o600
    verified = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-CAfile", str(place.ca), str(place.certificate)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stderr


def test_a_key_of_another_certificate_is_refused(place: ServerFolder) -> None:
    place.key.write_bytes(certificates.make(["x"]).key)
    with pytest.raises(RequestError, match=r"server\.key.*does not fit.*server\.crt"):
        place.check_certificates()


def test_a_certificate_that_has_expired_is_refused(place: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    class Later(datetime):
        @classmethod
        def now(cls, tz: object = None) -> Later:
            return cls.fromtimestamp((datetime.now(UTC) + timedelta(days=31)).timestamp(), UTC)

    monkeypatch.setattr(certificates, "datetime", Later)
    with pytest.raises(RequestError, match=r"ca\.crt' is good from .* today is"):
        place.check_certificates()


def test_a_certificate_for_another_name_is_refused(place: ServerFolder) -> None:
    made = certificates.make(["other.example.org"])
    place.certificate.write_bytes(made.certificate)
    place.key.write_bytes(made.key)
    with pytest.raises(RequestError, match=r"is for other\.example\.org, localhost.*not for server\.example\.org"):
        place.check_certificates()


def test_what_is_no_certificate_is_refused(place: ServerFolder) -> None:
    place.certificate.write_text("hello")
    with pytest.raises(RequestError, match=r"server\.crt' is no certificate in PEM"):
        place.check_certificates()


def test_insecure_has_no_certificates(tmp_path: Path) -> None:
    place = init(tmp_path / "fed", "127.0.0.1", insecure=True)
    assert place.insecure
    assert ClientFolder.open(place.path).insecure
    assert not list(place.path.rglob("*.crt"))
    place.check_certificates()


def test_nothing_is_overwritten(place: ServerFolder) -> None:
    secret = place.secret
    with pytest.raises(RequestError, match="exists already"):
        init(place.path, "127.0.0.1")
    assert place.secret == secret


def test_never_half_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(names: object) -> object:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(folder.certificates, "make", full)
    with pytest.raises(RequestError, match=r"cannot be written.*No space left"):
        init(tmp_path / "fed", "127.0.0.1")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("host", ["", "0.0.0.0", "::", "a b", "-x", "http://x", "x:1", "x/y", 'a"\nb'])
def test_hosts_that_are_none(tmp_path: Path, host: str) -> None:
    with pytest.raises(RequestError, match="no address under which a client could find the server"):
        init(tmp_path / "fed", host)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("port", [0, -1, 65536])
def test_ports_that_are_none(tmp_path: Path, port: int) -> None:
    with pytest.raises(RequestError, match=r"Accepted: 1 to 65535"):
        init(tmp_path / "fed", "127.0.0.1", port)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('format = 1\nserver = "x:1"\ninsecure = false\nport = 3\n', r"federation\.toml': port is not a key"),
        ('format = 1\nserver = "x:1"\ninsecure = "no"\n', r"insecure = 'no' is not accepted"),
        ("format = 1\ninsecure = false\n", r"the key server is missing"),
        ('format = 2\nserver = "x:1"\ninsecure = false\n', r"format = 2 is not accepted"),
        ('format = 1\nserver = "https://x:1"\ninsecure = false\n', r"server = 'https://x:1' is not accepted"),
        ("format = = 1", r"federation\.toml' cannot be read as TOML"),
    ],
)
def test_wrong_settings_are_named(place: ServerFolder, text: str, reason: str) -> None:
    (place.path / "client" / "federation.toml").write_text(text)
    for opening in (ClientFolder.open, ServerFolder.open):
        with pytest.raises(RequestError, match=reason):
            opening(place.path)


def test_both_sides_say_the_same_about_security(place: ServerFolder) -> None:
    path = place.private / "server.toml"
    path.write_text(path.read_text().replace("insecure = false", "insecure = true"))
    with pytest.raises(RequestError, match="Expected: the same in both"):
        ServerFolder.open(place.path)


def test_what_is_no_federation(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="is no federation"):
        ServerFolder.open(tmp_path)
    with pytest.raises(RequestError, match="is no client's folder"):
        ClientFolder.open(tmp_path)


def test_a_missing_ca_is_named(place: ServerFolder) -> None:
    place.ca.unlink()
    with pytest.raises(RequestError, match=r"ca\.crt' is missing"):
        ClientFolder.open(place.path)


def test_a_key_is_made_once(place: ServerFolder) -> None:
    client = ClientFolder.open(place.path)
    public = make_key(client, "clinic-3")
    assert public == client.path / "keys" / "clinic-3.pub"
    assert mode(own_key(client, "clinic-3")) == 0o600
    assert b"PRIVATE" not in public.read_bytes()
    before = own_key(client, "clinic-3").read_bytes()
    with pytest.raises(RequestError, match="never overwritten"):
        make_key(client, "clinic-3")
    assert own_key(client, "clinic-3").read_bytes() == before


def test_fingerprint_is_that_of_ssh_keygen(place: ServerFolder) -> None:
    public = make_key(ClientFolder.open(place.path), "a")
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    shown = subprocess.run(["ssh-keygen", "-lf", str(public)], capture_output=True, text=True, check=True).stdout
    assert fingerprint(public_key(public)) in shown.split()


@pytest.mark.parametrize("name", ["", ".a", "..", "a/b", "a b", "x" * 65, "ä", "a\n"])
def test_names_that_are_none(name: str) -> None:
    with pytest.raises(RequestError, match="is no name"):
        check_name(name)


@pytest.mark.parametrize("name", ["keys", "logs", "ca.crt", "federation.toml"])
def test_names_that_are_taken(name: str) -> None:
    """What a client holds lies in a folder of its name: `rm -r` of that must not take keys along."""
    with pytest.raises(RequestError, match="Give another name"):
        check_name(name)


def test_names_that_are_some() -> None:
    for name in ("a", "clinic-3", "A.b_c", "-x", "x" * 64):
        assert check_name(name) == name


def test_a_private_key_is_not_sent_anywhere(place: ServerFolder) -> None:
    client = ClientFolder.open(place.path)
    make_key(client, "a")
    with pytest.raises(RequestError, match="is a private key: it never leaves its machine"):
        public_key(own_key(client, "a"))


def test_what_is_no_public_key(tmp_path: Path) -> None:
    path = tmp_path / "x.pub"
    for text in ("", "hello", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPUPB9kKtd5X4QbZ4RwEfYyW5Zy3p1vQb5q7d1iXy5yL x"):
        path.write_text(text)
        with pytest.raises(RequestError, match="is no public key on the curve P-384"):
            public_key(path)


def test_no_key_no_join(place: ServerFolder) -> None:
    with pytest.raises(RequestError, match=r"has no key for 'b'.*torso federation key"):
        own_key(ClientFolder.open(place.path), "b")


def test_settings_are_plain_toml(place: ServerFolder) -> None:
    tree = tomllib.loads((place.path / "client" / "federation.toml").read_text())
    assert tree == {"format": 1, "insecure": False, "server": "server.example.org:9123"}


def test_init_into_an_empty_folder(tmp_path: Path) -> None:
    (tmp_path / "fed").mkdir()
    init(tmp_path / "fed", "127.0.0.1")
    assert os.listdir(tmp_path) == ["fed"]
