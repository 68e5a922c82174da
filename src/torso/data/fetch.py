"""`torso data get`: download a data set's files from mirrors or official addresses, check them, convert them."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torso.data.fetch_catalogue import data_home, data_set
from torso.data.fetch_convert import convert
from torso.data.fetch_http import AddressFailed, RetryLimits, check_address, fetch, file_size, remove_part
from torso.data.fetch_sets import DataSet, RemoteFile
from torso.errors import InUse, RequestError
from torso.locks import lock

MIRRORS = "TORSO_MIRROR"
_LOCK = ".lock"


class DownloadListener:
    """The listener of a download, whose methods are called as it proceeds. This base class does nothing."""

    def moved(self, file: str, done: int, total: int) -> None:
        """`done` of `total` bytes of a file have been downloaded."""

    def making(self, file: str, done: int, total: int) -> None:
        """`done` of `total` steps (images or splits) of the conversion into `file` are complete."""

    def note(self, text: str) -> None:
        """A line of text for the user."""


@dataclass(frozen=True)
class Download:
    """The result of a download."""

    data: DataSet
    folder: Path
    new: bool  # False: everything was there already

    @property
    def root(self) -> Path:
        """The value of `data.root` with which the data set is read."""
        return self.folder / self.data.makes if self.data.makes else self.folder


def get(
    name: str,
    out: Path | None = None,
    source: str = "",
    watcher: DownloadListener | None = None,
    patience: RetryLimits | None = None,
) -> Download:
    """Download a data set of the catalogue into the folder `out` (default: $TORSO_DATA, ./data).

    `source`: the address of a folder with its files, used instead of mirrors and official addresses."""
    return get_data(
        data_set(name), data_home(out).expanduser(), source, watcher or DownloadListener(), patience or RetryLimits()
    )


def get_data(data: DataSet, home: Path, source: str, watcher: DownloadListener, patience: RetryLimits) -> Download:
    """Download a data set that need not be in the catalogue (see `get`)."""
    addresses = {file.name: addresses_of(data, file, source) for file in data.files}
    folder = data.place(home)
    if _is_done(data, home):  # before the lock, because the folder may be read-only
        return Download(data, folder, new=False)
    with _own(folder):
        if _is_done(data, home):  # another process may have finished while this one waited
            return Download(data, folder, new=False)
        missing = [file for file in data.files if not _is_there(folder / file.name, file)]
        _check_room(data, missing, folder)
        for file in missing:
            _download(file, addresses[file.name], folder, watcher, patience)
        if data.makes:
            convert(data, folder, lambda done, total: watcher.making(data.makes, done, total))
    return Download(data, folder, new=True)


def addresses_of(data: DataSet, file: RemoteFile, source: str = "") -> list[str]:
    """The addresses to try for a file, in this order: `source` alone if given, or mirrors, then official addresses."""
    if source:
        base = check_address(source, "--from")
        return [base if base.rpartition("/")[2] == file.name else f"{base}/{file.name}"]
    mirrors = os.environ.get(MIRRORS, "").replace(",", " ").split()
    place = f"{data.folder or data.name}/{file.name}"
    return [*(f"{check_address(base, MIRRORS)}/{place}" for base in mirrors), *file.urls]


def _download(
    file: RemoteFile, addresses: Sequence[str], folder: Path, watcher: DownloadListener, patience: RetryLimits
) -> None:
    """Download the file from the first address that gives it with the right checksum."""
    part = folder / f"{file.name}.part"
    failed = []
    for url in addresses:
        try:
            _download_from(file, url, part, watcher, patience)
        except AddressFailed as error:
            failed.append(f"{url}: {error}")
            continue
        part.replace(folder / file.name)
        remove_part(part)
        for line in failed:
            watcher.note(f"{line}. Taken from {url}")
        if not file.sha256:
            _record(folder / file.name)
            name = file.name
            watcher.note(f"{name}: no SHA-256 is published. Its MD5 was checked; its SHA-256 is now in {name}.sha256")
        return
    kept = file_size(part)
    if not kept:
        remove_part(part)
    hint = f" {kept:,} of {file.size:,} bytes are kept: the same command goes on from there." if kept else ""
    raise RequestError(
        f"{file.name} could not be downloaded. {'; '.join(failed)}.{hint} Other addresses: --from URL, or {MIRRORS}"
    )


def _download_from(file: RemoteFile, url: str, part: Path, watcher: DownloadListener, patience: RetryLimits) -> None:
    """Download the file from one address and check it. If the download continued an earlier part and the result is
    wrong, the part may have been of another version, so the file is downloaded once more from its beginning."""
    continued = file_size(part) > 0
    fetch(file, url, part, lambda done: watcher.moved(file.name, done, file.size), patience)
    wrong = difference(part, file)
    if wrong:
        remove_part(part)
        if not continued:
            raise AddressFailed(wrong)
        _download_from(file, url, part, watcher, patience)


def difference(path: Path, file: RemoteFile) -> str:
    """How a file differs from the expected one, in words; empty: it is the right file."""
    if file_size(path) != file.size:
        return f"has {file_size(path):,} bytes. Expected: {file.size:,}"
    kind, expected = ("sha256", file.sha256) if file.sha256 else ("md5", file.md5)
    found = _digest(path, kind)
    label = {"sha256": "SHA-256", "md5": "MD5"}[kind]
    return "" if found == expected else f"gives other bytes: {label} {found}. Expected: {expected}"


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _record(path: Path) -> None:
    """Write FILE.sha256, which `sha256sum -c` reads."""
    path.with_name(f"{path.name}.sha256").write_text(f"{_digest(path, 'sha256')}  {path.name}\n", encoding="utf-8")


def _is_done(data: DataSet, home: Path) -> bool:
    """Whether the data set is complete. Downloaded files are checked again; a converted file is trusted, because it was
    made from checked files."""
    if not data.is_in(home):
        return False
    folder = data.place(home)
    return bool(data.makes) or all(_is_there(folder / file.name, file) for file in data.files)


def _is_there(path: Path, file: RemoteFile) -> bool:
    """Whether the file exists already. A file with other bytes is refused, because it may be the user's own."""
    if not path.exists():
        return False
    wrong = difference(path, file) if path.is_file() else "is no file"
    if wrong:
        raise RequestError(f"{path} is there and {wrong}. Move it away, or choose another folder with --out")
    return True


def _check_room(data: DataSet, missing: Sequence[RemoteFile], folder: Path) -> None:
    """Refuse before the download begins if the disk has no room for all files."""
    needed = sum(file.size - file_size(folder / f"{file.name}.part") for file in missing) + data.room + data.scratch
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise RequestError(
            f"{str(folder)!r} has {free / 1e9:.1f} GB free, {data.name} needs {needed / 1e9:.1f} GB. "
            "Choose another folder with --out"
        )


@contextmanager
def _own(folder: Path) -> Iterator[None]:
    """Lock the folder for this process. It is made if necessary, and removed at the end if it is still empty."""
    new_folders = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _locked(folder / _LOCK)
    except OSError as error:
        raise RequestError(
            f"{str(folder)!r} cannot be written ({error.strerror or error}). Choose another folder with --out"
        ) from None
    try:
        yield
    finally:
        (folder / _LOCK).unlink(missing_ok=True)
        file.close()
        with suppress(OSError):
            for place in new_folders:
                place.rmdir()  # raises OSError if the folder is not empty


def _locked(path: Path) -> IO[str]:
    """The lock file, open and locked. If its owner removed it between opening and locking, it is opened again."""
    while True:
        file = path.open("w", encoding="utf-8")
        locked = lock(file)
        if locked is False:
            file.close()
            raise InUse(f"another process downloads to {str(path.parent)!r}. Wait until it has ended")
        if locked is None or (path.exists() and os.fstat(file.fileno()).st_ino == path.stat().st_ino):
            return file
        file.close()
