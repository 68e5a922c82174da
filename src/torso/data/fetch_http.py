"""Downloading a file from one address: resumed if the server can, tried again if that may help, never beyond its size.

The bytes go to `NAME.part`. `NAME.part.json` records the address and the version (ETag) of the part, so that the server
can tell that the file has changed since (If-Range). The caller checks the checksum of the complete file.
"""

from __future__ import annotations

import json
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.client import HTTPException, HTTPMessage, HTTPResponse
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from torso.data.fetch_sets import RemoteFile
from torso.errors import RequestError

_CHUNK = 1 << 18
_AGAIN = {408, 425, 429, 500, 502, 503, 504}  # HTTP statuses that may pass
_STRONG = re.compile(r'"[^"\r\n]*"')  # a strong ETag, as If-Range needs it

OnProgress = Callable[[int], None]
"""Called with the number of bytes downloaded so far."""


class AddressFailed(Exception):
    """This address does not give the file; another address may."""


@dataclass(frozen=True)
class RetryLimits:
    """Limits of tries and waiting times of a download."""

    tries: int = 4  # tries in a row that may bring no new bytes
    pause: float = 1.0  # seconds before the second try, doubled before each further one
    timeout: float = 30.0  # seconds to wait for a byte


def fetch(file: RemoteFile, url: str, part: Path, moved: OnProgress, patience: RetryLimits) -> None:
    """Download the file into `part` until it has the full size. Raises AddressFailed if this address cannot give it."""
    failures, most = 0, file_size(part)
    while file_size(part) != file.size:
        try:
            _receive(file, url, part, moved, patience.timeout)
            why = f"the connection ended at byte {file_size(part):,} of {file.size:,}"
        except urllib.error.HTTPError as error:
            error.close()
            why = f"HTTP {error.code} {error.reason}".rstrip()
            if error.code == 416:  # range not satisfiable: the part does not belong to the server's file
                remove_part(part)
            elif error.code not in _AGAIN:
                raise AddressFailed(why) from None
        except urllib.error.URLError as error:
            why = _words(error.reason)
            if not isinstance(error.reason, TimeoutError | ConnectionResetError):
                raise AddressFailed(why) from None
        except (OSError, HTTPException) as error:
            why = _words(error)
        failures = 0 if file_size(part) > most else failures + 1
        most = max(most, file_size(part))
        if failures >= patience.tries:
            raise AddressFailed(why)
        if file_size(part) != file.size:
            time.sleep(patience.pause * 2**failures)


def file_size(part: Path) -> int:
    """Size of the file in bytes; 0 if it does not exist."""
    return part.stat().st_size if part.is_file() else 0


def remove_part(part: Path) -> None:
    """Remove a part and its record."""
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def check_address(url: str, whose: str) -> str:
    """The address without a slash at its end; refused if it is no http or https address. `whose`: the option or
    variable that holds it."""
    try:
        split = urlsplit(url)
        valid = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:
        valid = False
    if not valid or not url.isprintable() or " " in url:
        raise RequestError(f"{whose} = {url!r} is no address. Expected: http://… or https://…")
    return url.rstrip("/")


def _receive(file: RemoteFile, url: str, part: Path, moved: OnProgress, timeout: float) -> None:
    """Send one request. The answer is appended to the part if the server continues at the right byte; otherwise it
    replaces the part."""
    start = file_size(part)
    if start > file.size:
        remove_part(part)
        start = 0
    with _open(url, start, part, timeout) as answer:
        continues = answer.status == 206 and start > 0
        if continues and not _fits(answer.headers, start, file.size):
            remove_part(part)
            raise HTTPException("the server answered with another range than the requested one")
        if not continues:
            _check_whole(answer, file)
        with _opened(part, "ab" if continues else "wb") as out:
            _remember(part, url, answer.headers)
            _copy(answer, out, start if continues else 0, file, moved)


def _open(url: str, start: int, part: Path, timeout: float) -> HTTPResponse:
    headers = {"User-Agent": "torso", "Accept-Encoding": "identity"}
    if start:
        headers["Range"] = f"bytes={start}-"
        if tag := _tag(part, url):
            headers["If-Range"] = tag
    opener = urllib.request.build_opener(_Redirects())
    answer: HTTPResponse = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    return answer


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects, but not from https to anything else."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        schemes = urlsplit(req.full_url).scheme, urlsplit(newurl).scheme
        if schemes[1] not in ("http", "https") or schemes == ("https", "http"):
            raise urllib.error.URLError(f"redirected from {schemes[0]} to {newurl}, refused")
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check_whole(answer: HTTPResponse, file: RemoteFile) -> None:
    """Refuse an answer with another status than 200, or with another length than the file's."""
    stated = answer.headers.get("Content-Length", "")
    if answer.status != 200:
        raise AddressFailed(f"HTTP {answer.status} {answer.reason}".rstrip())
    if stated.isdecimal() and int(stated) != file.size:
        raise AddressFailed(f"has {int(stated):,} bytes. Expected: {file.size:,}")


def _fits(headers: HTTPMessage, start: int, size: int) -> bool:
    """Whether Content-Range begins at the end of the part, and belongs to a file of this size."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", "").strip())
    return found is not None and int(found[1]) == start and found[2] in (str(size), "*")


def _copy(answer: HTTPResponse, out: IO[bytes], done: int, file: RemoteFile, moved: OnProgress) -> None:
    moved(done)
    while chunk := answer.read1(_CHUNK):
        done += len(chunk)
        if done > file.size:
            remove_part(Path(out.name))
            raise AddressFailed(f"gives more than {file.size:,} bytes")
        rest = memoryview(chunk)
        while rest:
            try:
                rest = rest[out.write(rest) :]
            except OSError as error:
                raise _unwritable(Path(out.name), error) from None
        moved(done)


def _opened(part: Path, mode: str) -> IO[bytes]:
    """The part, opened without a buffer, so that closing does not try again to write bytes that failed before."""
    try:
        file: IO[bytes] = part.open(mode, buffering=0)
    except OSError as error:
        raise _unwritable(part, error) from None
    return file


def _unwritable(part: Path, error: OSError) -> RequestError:
    kept = file_size(part)
    hint = f" {kept:,} bytes are kept: the same command goes on from there." if kept else ""
    return RequestError(f"{part} cannot be written ({error.strerror or error}).{hint}")


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remember(part: Path, url: str, headers: HTTPMessage) -> None:
    """Write the record of a part: its address and ETag."""
    with suppress(OSError):
        _note(part).write_text(json.dumps({"url": url, "etag": headers.get("ETag", "")}), encoding="utf-8")


def _tag(part: Path, url: str) -> str:
    """The ETag of a part, if it came from the same address; otherwise empty."""
    with suppress(OSError, ValueError):
        record: Any = json.loads(_note(part).read_text(encoding="utf-8"))
        tag = record.get("etag") if isinstance(record, dict) and record.get("url") == url else None
        if isinstance(tag, str) and _STRONG.fullmatch(tag):
            return tag
    return ""


def _words(reason: object) -> str:
    """The reason why a connection failed, in a few words."""
    if isinstance(reason, ssl.SSLError):
        return f"TLS: {reason.reason or reason}"
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError):
        return f"no connection ({reason.strerror or reason})"
    return " ".join(str(reason).split()) or type(reason).__name__
