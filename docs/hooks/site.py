"""What mkdocs does beyond its own: links out of docs/, notebooks as pages, and the lists of commands and public names.

`make docs` sets TORSO_RUN_NOTEBOOKS=1: then notebooks are run, and their pages show what they print.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import links
import notebooks
import reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

FILLED = {"<!-- every public name -->": reference.public_names, "<!-- every command -->": reference.commands}


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Adds the files from outside docs/ that pages link to, and the notebooks' pages."""
    for path in links.from_elsewhere():
        inclusion = InclusionLevel.UNDEFINED if path in links.ALWAYS else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, links.place(path), content=links.source(path), inclusion=inclusion))
    for script in [file for file in files if file.src_uri.startswith("notebooks/")]:
        files.remove(script)
        path = Path(str(script.abs_src_path))
        made = File.generated(config, script.src_uri.removesuffix(".py") + ".md", content=notebook_page(path))
        files.append(made)
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """The text of a page with its lists filled in and its links as the site needs them."""
    uri = page.file.src_uri
    for marker, made in FILLED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, made())
    path = uri.removeprefix("repository/") if uri.startswith("repository/") else f"docs/{uri}"
    return links.rewritten(markdown, path)


def notebook_page(path: Path) -> str:
    notebook = notebooks.read(path)
    outputs = [""] * len(notebook)
    if os.environ.get("TORSO_RUN_NOTEBOOKS"):
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            outputs = notebooks.run(notebook)
    return notebooks.page(notebook, outputs, path.name)
