"""One file from one address: resumed where the server can, tried again where that may help, never more than its size.

What arrives goes to `NAME.part`. `NAME.part.json` remembers of which version at which address it is a part, so that the
server can say that the file has changed (If-Range). Whether the whole is right is for its checksum to say.
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
_AGAIN = {408, 425, 429, 500, 502, 503, 504}  # states that pass
_STRONG = re.compile(r'"[^"\r\n]*"')  # an ETag that If-Range may carry

Moved = Callable[[int], None]
"""Called with the number of bytes that are there."""


class AddressFailed(Exception):
    """This address does not give the file; another may."""


@dataclass(frozen=True)
class Patience:
    """`tries`: how often in a row nothing new may come; `pause`: seconds before the second try, doubled before each
    further one; `timeout`: seconds without a byte."""

    tries: int = 4
    pause: float = 1.0
    timeout: float = 30.0


def fetch(file: RemoteFile, url: str, part: Path, moved: Moved, patience: Patience) -> None:
    """Bring `part` to the full size of the file; raises AddressFailed where this address cannot."""
    failures, most = 0, length(part)
    while length(part) != file.size:
        try:
            _receive(file, url, part, moved, patience.timeout)
            why = f"the connection ended at byte {length(part):,} of {file.size:,}"
        except urllib.error.HTTPError as error:
            error.close()
            why = f"HTTP {error.code} {error.reason}".rstrip()
            if error.code == 416:  # what is there is no part of what the server has
                forget(part)
            elif error.code not in _AGAIN:
                raise AddressFailed(why) from None
        except urllib.error.URLError as error:
            why = _words(error.reason)
            if not isinstance(error.reason, TimeoutError | ConnectionResetError):
                raise AddressFailed(why) from None
        except (OSError, HTTPException) as error:
            why = _words(error)
        failures = 0 if length(part) > most else failures + 1
        most = max(most, length(part))
        if failures >= patience.tries:
            raise AddressFailed(why)
        if length(part) != file.size:
            time.sleep(patience.pause * 2**failures)


def length(part: Path) -> int:
    """Bytes that are there."""
    return part.stat().st_size if part.is_file() else 0


def forget(part: Path) -> None:
    """Remove a part and what is known of it."""
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def check_address(url: str, whose: str) -> str:
    """An address that can be asked for, without a slash at its end; `whose` says who gave it."""
    try:
        split = urlsplit(url)
        fine = split.scheme in ("http", "https") and bool(split.hostname) and split.port != 0
    except ValueError:
        fine = False
    if not fine or not url.isprintable() or " " in url:
        raise RequestError(f"{whose} = {url!r} is no address. Expected: http://… or https://…")
    return url.rstrip("/")


def _receive(file: RemoteFile, url: str, part: Path, moved: Moved, timeout: float) -> None:
    """One request. What arrives is appended where the server goes on at the right byte, and otherwise replaces."""
    start = length(part)
    if start > file.size:
        forget(part)
        start = 0
    with _open(url, start, part, timeout) as answer:
        go_on = answer.status == 206 and start > 0
        if go_on and not _fits(answer.headers, start, file.size):
            forget(part)
            raise HTTPException("the server answered with another range than the one that was asked for")
        if not go_on:
            _check_whole(answer, file)
        with _opened(part, "ab" if go_on else "wb") as out:
            _remember(part, url, answer.headers)
            _copy(answer, out, start if go_on else 0, file, moved)


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
    """An answer with the whole file says a length that fits, or none."""
    said = answer.headers.get("Content-Length", "")
    if answer.status != 200:
        raise AddressFailed(f"HTTP {answer.status} {answer.reason}".rstrip())
    if said.isdecimal() and int(said) != file.size:
        raise AddressFailed(f"has {int(said):,} bytes. Expected: {file.size:,}")


def _fits(headers: HTTPMessage, start: int, size: int) -> bool:
    """Whether Content-Range begins where the part ends, and is of a file of this size."""
    found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", headers.get("Content-Range", "").strip())
    return found is not None and int(found[1]) == start and found[2] in (str(size), "*")


def _copy(answer: HTTPResponse, out: IO[bytes], done: int, file: RemoteFile, moved: Moved) -> None:
    moved(done)
    while chunk := answer.read1(_CHUNK):
        done += len(chunk)
        if done > file.size:
            forget(Path(out.name))
            raise AddressFailed(f"gives more than {file.size:,} bytes")
        rest = memoryview(chunk)
        while rest:
            try:
                rest = rest[out.write(rest) :]
            except OSError as error:
                raise _unwritable(Path(out.name), error) from None
        moved(done)


def _opened(part: Path, mode: str) -> IO[bytes]:
    """Without a buffer: what could not be written is not tried again on closing."""
    try:
        found: IO[bytes] = part.open(mode, buffering=0)
    except OSError as error:
        raise _unwritable(part, error) from None
    return found


def _unwritable(part: Path, error: OSError) -> RequestError:
    kept = length(part)
    said = f" {kept:,} bytes are kept: the same command goes on from there." if kept else ""
    return RequestError(f"{part} cannot be written ({error.strerror or error}).{said}")


def _note(part: Path) -> Path:
    return part.with_name(f"{part.name}.json")


def _remember(part: Path, url: str, headers: HTTPMessage) -> None:
    with suppress(OSError):
        _note(part).write_text(json.dumps({"url": url, "etag": headers.get("ETag", "")}), encoding="utf-8")


def _tag(part: Path, url: str) -> str:
    """The version of which the part is, if it came from the same address."""
    with suppress(OSError, ValueError):
        known: Any = json.loads(_note(part).read_text(encoding="utf-8"))
        tag = known.get("etag") if isinstance(known, dict) and known.get("url") == url else None
        if isinstance(tag, str) and _STRONG.fullmatch(tag):
            return tag
    return ""


def _words(reason: object) -> str:
    """Why a connection failed, in a few words."""
    if isinstance(reason, ssl.SSLError):
        return f"TLS: {reason.reason or reason}"
    if isinstance(reason, TimeoutError):
        return "no answer in time"
    if isinstance(reason, OSError):
        return f"no connection ({reason.strerror or reason})"
    return " ".join(str(reason).split()) or type(reason).__name__
