"""Links of the documentation, on GitHub and on the site.

A page links to files of the repository by relative paths, as GitHub wants them. The site has only what lies in docs/.
So a file from elsewhere that some page links to gets a place below `repository/` on the site, and the link is
rewritten.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
SHOWN_AS_CODE = {".py": "python", ".toml": "toml", ".sh": "bash", ".plan": "text"}
ALWAYS = ("CONTRIBUTING.md", "CHANGELOG.md", "bench/README.md")


def target(page: str, link: str) -> str:
    """The file of the repository that a link of a page means."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), link))


def place(path: str) -> str:
    """Where a file of the repository lies among the sources of the site."""
    suffix = posixpath.splitext(path)[1]
    if path.startswith("docs/notebooks/") and suffix == ".py":
        return path.removeprefix("docs/").removesuffix(".py") + ".md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"repository/{path}" + (".md" if suffix in SHOWN_AS_CODE else "")


def rewritten(text: str, page: str) -> str:
    """The Markdown of a page with its links as the site needs them."""
    here = posixpath.dirname(place(page)) or "."

    def link(match: re.Match[str]) -> str:
        path = target(page, match[2])
        if not (ROOT / path).is_file():
            return match[0]  # mkdocs tells of it
        return f"{match[1]}{posixpath.relpath(place(path), here)}{match[3]}"

    return LINK.sub(link, text)


def linked(page: str) -> Iterator[str]:
    """The files of the repository that a page links to."""
    for match in LINK.finditer((ROOT / page).read_text(encoding="utf-8")):
        path = target(page, match[2])
        if (ROOT / path).is_file():
            yield path


def from_elsewhere() -> list[str]:
    """The files outside docs/ that the site needs: what pages link to, and what those link to."""
    waiting = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    waiting += [name for name in ALWAYS if (ROOT / name).is_file()]
    found: dict[str, None] = {}
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found[path] = None
        if path.endswith(".md"):
            waiting += linked(path)
    return sorted(path for path in found if not path.startswith("docs/"))


def source(path: str) -> str | bytes:
    """What the site has of a file from outside docs/: Markdown as it is, code in a block, anything else as bytes."""
    language = SHOWN_AS_CODE.get(posixpath.splitext(path)[1])
    if language:
        code = (ROOT / path).read_text(encoding="utf-8")
        return f"# {path}\n\n````{language}\n{code.rstrip()}\n````\n"
    if path.endswith(".md"):
        return (ROOT / path).read_text(encoding="utf-8")
    return (ROOT / path).read_bytes()
