"""Downloads from a server on loopback: complete, resumed, refused; and the files that are left each time."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest

from torso.data.fetch import Download, DownloadListener, addresses_of, get_data
from torso.data.fetch_catalogue import ALIASES, DATASETS, data_home, data_set, downloaded
from torso.data.fetch_http import RetryLimits
from torso.data.fetch_sets import DataSet, RemoteFile
from torso.errors import InUse, RequestError
from torso.federation.certificates import make

from .file_server import Files, serving

CONTENT = np.random.default_rng(0).bytes(700_000)
AT_ONCE = RetryLimits(tries=3, pause=0, timeout=5)


def remote(content: bytes = CONTENT, *urls: str) -> RemoteFile:
    return RemoteFile("a.bin", len(content), urls, hashlib.sha256(content).hexdigest())


def made(*files: RemoteFile) -> DataSet:
    return DataSet("toy", "Toy", 1, 1, "1×1", 1, "none", "https://example.org", files)


@dataclass
class Heard(DownloadListener):
    moves: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def moved(self, file: str, done: int, total: int) -> None:
        self.moves.append(done)

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORSO_MIRROR", raising=False)
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def server() -> Iterator[Files]:
    with serving() as files:
        files.content["/toy/a.bin"] = CONTENT
        yield files


Fetch = Callable[..., Download]


@pytest.fixture
def fetch(server: Files, tmp_path: Path) -> Fetch:
    """Download `toy` from the server, or from other addresses."""

    def call(
        *urls: str, file: RemoteFile | None = None, source: str = "", watcher: DownloadListener | None = None
    ) -> Download:
        file = replace(file or remote(), urls=urls or (f"{server.url}/toy/a.bin",))
        return get_data(made(file), tmp_path / "data", source, watcher or DownloadListener(), AT_ONCE)

    return call


def left(tmp_path: Path) -> list[str]:
    """Every file below data/, the lock included."""
    return sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())


def ranges(server: Files) -> list[str]:
    return [asked for _, asked, _ in server.asked]


# --- the good ways ---------------------------------------------------------------------------------------------------


def test_a_file_comes_once_and_nothing_else_is_left(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    heard = Heard()
    assert fetch(watcher=heard).new
    assert (tmp_path / "data/toy/a.bin").read_bytes() == CONTENT
    assert left(tmp_path) == ["data/toy/a.bin"]
    assert heard.moves[0] == 0
    assert heard.moves[-1] == len(CONTENT)
    assert heard.notes == []
    assert not fetch().new
    assert len(server.asked) == 1


def test_a_dropped_connection_goes_on_where_it_ended(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    server.script[:] = ["drop 300000", "drop 100000"]
    fetch()
    assert ranges(server) == ["", "bytes=300000-", "bytes=400000-"]
    assert server.asked[1][2] == '"one"'  # If-Range
    assert (tmp_path / "data/toy/a.bin").read_bytes() == CONTENT
    assert left(tmp_path) == ["data/toy/a.bin"]


def test_another_command_goes_on_where_the_last_ended(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    server.script[:] = ["drop 300000", 404]
    with pytest.raises(RequestError, match=r"HTTP 404.* 300,000 of 700,000 bytes are kept: the same command goes on"):
        fetch()
    assert left(tmp_path) == ["data/toy/a.bin.part", "data/toy/a.bin.part.json"]
    fetch()
    assert ranges(server)[-1] == "bytes=300000-"
    assert left(tmp_path) == ["data/toy/a.bin"]


def test_a_server_without_ranges_starts_over(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    server.script[:] = ["drop 300000", "whole"]
    fetch()
    assert ranges(server) == ["", "bytes=300000-"]
    assert (tmp_path / "data/toy/a.bin").read_bytes() == CONTENT


def test_a_file_that_changed_on_the_server_starts_over(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    """The part belongs to another version: because of If-Range the server sends the whole file at once."""
    server.content["/toy/a.bin"] = bytes(len(CONTENT))
    server.script[:] = ["drop 300000", 404]
    with pytest.raises(RequestError):
        fetch()
    server.content["/toy/a.bin"], server.etag = CONTENT, '"two"'
    fetch()
    assert len(server.asked) == 3
    assert (tmp_path / "data/toy/a.bin").read_bytes() == CONTENT


@pytest.mark.parametrize("count", [300_000, len(CONTENT), len(CONTENT) + 5])
def test_a_part_of_other_bytes_is_thrown_away(fetch: Fetch, tmp_path: Path, count: int) -> None:
    """Shorter, of the right length, and longer; with a note that is no JSON."""
    (tmp_path / "data/toy").mkdir(parents=True)
    (tmp_path / "data/toy/a.bin.part").write_bytes(bytes(count))
    (tmp_path / "data/toy/a.bin.part.json").write_text('{"url": 3')
    fetch()
    assert (tmp_path / "data/toy/a.bin").read_bytes() == CONTENT
    assert left(tmp_path) == ["data/toy/a.bin"]


@pytest.mark.parametrize("fault", [416, "wrong range"])
def test_a_range_that_the_server_cannot_give_starts_over(fetch: Fetch, server: Files, fault: int | str) -> None:
    server.script[:] = ["drop 300000", fault]
    fetch()
    assert ranges(server) == ["", "bytes=300000-", ""]


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_that_is_busy_is_asked_again(fetch: Fetch, server: Files, tmp_path: Path, status: int) -> None:
    server.script[:] = [status, status]
    fetch()
    assert len(server.asked) == 3
    assert left(tmp_path) == ["data/toy/a.bin"]


def test_a_redirect_is_followed_and_the_range_with_it(fetch: Fetch, server: Files) -> None:
    target = f"to {server.url}/toy/a.bin"
    server.content["/moved"] = b""
    server.script[:] = [target, "drop 300000", target]
    fetch(f"{server.url}/moved")
    assert server.asked[-1][:2] == ("/toy/a.bin", "bytes=300000-")


# --- the bad ways ----------------------------------------------------------------------------------------------------


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_no_network_is_one_line_and_leaves_nothing(fetch: Fetch, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{closed_port()}/a.bin"
    with pytest.raises(
        RequestError, match=rf"a.bin could not be downloaded. {url}: no connection .* --from URL"
    ) as said:
        fetch(url)
    assert "\n" not in str(said.value)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([404], "HTTP 404 Not Found"),
        ([403], "HTTP 403 Forbidden"),
        ([500, 500, 500], "HTTP 500 Internal Server Error"),
        (["drop 0", "drop 0", "drop 0"], "the connection ended at byte 0 of 700,000"),
        (["endless"], "gives more than 700,000 bytes"),
        (["to ftp://127.0.0.1/a.bin"], "refused"),
    ],
)
def test_what_an_address_may_answer(
    fetch: Fetch, server: Files, tmp_path: Path, script: list[int | str], message: str
) -> None:
    server.script[:] = script
    with pytest.raises(RequestError, match=message):
        fetch()
    assert server.script == []
    assert not (tmp_path / "data").exists()


def test_a_page_in_place_of_the_file_is_not_downloaded(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    server.content["/toy/a.bin"] = b"<html>sign in</html>"
    with pytest.raises(RequestError, match=r"has 20 bytes. Expected: 700,000"):
        fetch()
    assert not (tmp_path / "data").exists()


def test_an_answer_that_is_always_too_short_is_given_up(fetch: Fetch, server: Files) -> None:
    """A part, a range that does not fit, a part again: no progress, although each answer has bytes."""
    server.script[:] = ["short", 416] * 20
    with pytest.raises(RequestError, match=r"HTTP 416.*|ended at byte 20 of 700,000"):
        fetch()
    assert len(server.asked) == 4


def test_wrong_bytes_are_refused(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    server.content["/toy/a.bin"] = CONTENT[:-1] + b"\0"
    with pytest.raises(RequestError, match=rf"gives other bytes: SHA-256 \w+. Expected: {remote().sha256}"):
        fetch()
    assert not (tmp_path / "data").exists()


def test_a_file_of_that_name_that_is_somebodys_own_stays(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    (tmp_path / "data/toy").mkdir(parents=True)
    (tmp_path / "data/toy/a.bin").write_bytes(b"mine")
    with pytest.raises(RequestError, match=r"a.bin is there and has 4 bytes. Expected: 700,000. Move it away"):
        fetch()
    assert (tmp_path / "data/toy/a.bin").read_bytes() == b"mine"
    assert server.asked == []


def test_only_an_md5_is_published(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    by_md5 = replace(remote(), sha256="", md5=hashlib.md5(CONTENT, usedforsecurity=False).hexdigest())
    heard = Heard()
    fetch(file=by_md5, watcher=heard)
    assert "no SHA-256 is published" in heard.notes[0]
    assert (tmp_path / "data/toy/a.bin.sha256").read_text() == f"{remote().sha256}  a.bin\n"
    (tmp_path / "data/toy/a.bin").unlink()
    server.content["/toy/a.bin"] = bytes(len(CONTENT))
    with pytest.raises(RequestError, match="gives other bytes: MD5"):
        fetch(file=by_md5)


def test_two_processes_do_not_write_one_file(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    """The second download begins during the first; flock holds between open files, so one process is enough."""

    class Second(DownloadListener):
        def moved(self, file: str, done: int, total: int) -> None:
            with pytest.raises(InUse, match=r"another process downloads to '.*toy'"):
                fetch()

    fetch(watcher=Second())
    assert left(tmp_path) == ["data/toy/a.bin"]
    assert len(server.asked) == 1


def test_a_disk_without_room(fetch: Fetch, server: Files, tmp_path: Path) -> None:
    """A full disk, known before the first byte or met on the way: a limit on file sizes stops a write halfway."""
    with pytest.raises(RequestError, match=r"GB free, toy needs 1000000000.0 GB. Choose another folder with --out"):
        fetch(file=replace(remote(), size=10**18))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, limits[1]))
    try:
        with pytest.raises(RequestError, match=r"a.bin.part cannot be written .* 500,000 bytes are kept"):
            fetch()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    fetch()
    assert ranges(server)[-1] == "bytes=500000-"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir(mode=0o500)
    with pytest.raises(RequestError, match=r"toy' cannot be written \(Permission denied\). Choose another"):
        fetch()


def test_a_folder_that_has_everything_is_not_written(fetch: Fetch, tmp_path: Path) -> None:
    fetch()
    before = (tmp_path / "data/toy").stat().st_mtime_ns
    assert not fetch().new
    assert (tmp_path / "data/toy").stat().st_mtime_ns == before  # no lock was put into it


def test_a_file_where_the_folder_should_be(fetch: Fetch, tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(RequestError, match="toy' cannot be written"):
        fetch()


# --- TLS -------------------------------------------------------------------------------------------------------------


def test_tls_is_verified_and_never_left(fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = make(["127.0.0.1"])
    for name, content in (("ca", found.authority), ("cert", found.certificate), ("key", found.key)):
        (tmp_path / name).write_bytes(content)
    with serving(tmp_path / "cert", tmp_path / "key") as secure, serving() as plain:
        secure.content["/a.bin"] = plain.content["/a.bin"] = CONTENT
        with pytest.raises(RequestError, match="TLS: CERTIFICATE_VERIFY_FAILED"):
            fetch(f"{secure.url}/a.bin")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca"))
        secure.script[:] = [f"to {plain.url}/a.bin"]
        with pytest.raises(RequestError, match=rf"redirected from https to {plain.url}/a.bin, refused"):
            fetch(f"{secure.url}/a.bin")
        assert plain.asked == []
        fetch(f"{secure.url}/a.bin")


# --- addresses -------------------------------------------------------------------------------------------------------


def test_mirrors_come_first_and_official_addresses_after(
    fetch: Fetch, server: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One mirror is off, one lacks the file, one has other bytes; the official address has the file."""
    server.content["/bad/toy/a.bin"] = bytes(len(CONTENT))
    off = f"http://127.0.0.1:{closed_port()}"
    monkeypatch.setenv("TORSO_MIRROR", f"{off}, {server.url}/none/ {server.url}/bad")
    heard = Heard()
    fetch(watcher=heard)
    assert [path for path, _, _ in server.asked] == ["/none/toy/a.bin", "/bad/toy/a.bin", "/toy/a.bin"]
    assert [note.partition(": ")[0] for note in heard.notes] == [
        f"{off}/toy/a.bin",
        f"{server.url}/none/toy/a.bin",
        f"{server.url}/bad/toy/a.bin",
    ]
    assert (tmp_path / "data/toy/a.bin").read_bytes() == CONTENT


def test_from_is_asked_alone(fetch: Fetch, server: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSO_MIRROR", "http://127.0.0.1:1")
    server.content["/mine/a.bin"] = CONTENT
    with pytest.raises(RequestError, match=r"/none/a.bin: HTTP 404 Not Found. Other"):
        fetch(source=f"{server.url}/none")
    fetch(source=f"{server.url}/mine/")
    file = remote()
    assert addresses_of(made(file), file, "http://x/a.bin") == ["http://x/a.bin"]


@pytest.mark.parametrize("address", ["mirror", "ftp://x/y", "file:///etc", "http://", "http://[::1", "http://x:0"])
def test_addresses_that_are_none(fetch: Fetch, server: Files, monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    with pytest.raises(RequestError, match=r"--from = '.*' is no address. Expected: http://… or https://…"):
        fetch(source=address)
    monkeypatch.setenv("TORSO_MIRROR", address)
    with pytest.raises(RequestError, match="TORSO_MIRROR = "):
        fetch()
    assert server.asked == []


# --- the catalogue ---------------------------------------------------------------------------------------------------


def test_every_entry_of_the_catalogue_is_whole() -> None:
    seen: dict[tuple[str, str], RemoteFile] = {}
    for data in DATASETS.values():
        assert data.files
        for file in data.files:
            assert len(file.sha256) == 64 or (not file.sha256 and len(file.md5) == 32), file
            assert int(file.sha256 or file.md5, 16)
            assert file.size > 4000
            assert all(url.startswith(("https://", "http://")) for url in file.urls)
            assert seen.setdefault((data.folder or data.name, file.name), file) == file  # on a mirror, too
    assert all(name in DATASETS for name in ALIASES.values())


def test_names() -> None:
    assert data_set("emnist").name == "emnist-balanced"
    with pytest.raises(RequestError, match=r"'cifar' is unknown; did you mean 'cifar10'\? Accepted: cifar10, cifar100"):
        data_set("cifar")
    with pytest.raises(
        RequestError, match=r"imagenet .* needs an agreement .* https://image-net.org.* data.source=folder"
    ):
        data_set("imagenet")


def test_where_data_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORSO_DATA", str(tmp_path))
    assert data_home() == tmp_path
    assert data_home(Path("other")) == Path("other")
    assert downloaded("cifar10") is None
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10/cifar-10-python.tar.gz").write_bytes(b"")
    assert downloaded("cifar10") == tmp_path / "cifar10"
    assert downloaded("npz") is None
    monkeypatch.delenv("TORSO_DATA")
    assert data_home() == Path("data")
