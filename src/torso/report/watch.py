"""A local page that follows runs while they train: on 127.0.0.1 only, read-only, until Ctrl-C."""

from __future__ import annotations

import json
import time
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from torso.errors import RequestError
from torso.methods import method_from_config
from torso.methods.starts import Pace
from torso.report.charts import KINDS, to_svg
from torso.report.comparison import compare_records
from torso.report.local_page import LocalHandler, listen
from torso.report.page import render
from torso.report.records import Record, Scores, below_of, is_run, read
from torso.results.history import CUT

_LINES = 400  # of a log
_RECENT = 10  # rounds that the time left is judged by


class Watcher:
    """What is known of the runs below a folder, read again when a file has changed."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RequestError(
                f"{str(root)!r} is not a folder. Give a run folder, or the folder that runs are made in."
            )
        self.root = root.resolve()
        self._kept: dict[Path, tuple[float, Record]] = {}
        self._charts: tuple[Any, list[dict[str, str]]] = (None, [])

    def folders(self) -> list[Path]:
        """Run folders that really lie below the root: a link that leads out of it is passed over."""
        found = [self.root] if is_run(self.root) else below_of(self.root)
        return [folder for folder in found if folder.resolve().is_relative_to(self.root)]

    def record(self, folder: Path) -> Record:
        changed = max((p.stat().st_mtime for p in folder.glob("*.json*")), default=0.0)
        kept = self._kept.get(folder)
        if kept is None or kept[0] != changed:
            self._kept[folder] = kept = (changed, read(folder))
        return kept[1]

    def state(self) -> dict[str, Any]:
        folders = self.folders()
        records = [self.record(folder) for folder in folders]
        rows = [self._row(folder, record) for folder, record in zip(folders, records, strict=True)]
        return {"root": str(self.root), "runs": rows, "charts": self._drawn(records)}

    def _row(self, folder: Path, record: Record) -> dict[str, Any]:
        done = record.history[-1]["round"] if record.history else 0
        total = max(done, record.rounds or 0) if record.ok else max(done, planned_rounds(record))
        newest = self._kept[folder][0] or time.time()
        quiet = max(0.0, time.time() - newest)
        recent = [line["seconds"] for line in record.history[-_RECENT:] if isinstance(line.get("seconds"), float | int)]
        pace = sum(recent) / len(recent) if recent else None
        running = record.status == "unfinished"
        return {
            "path": folder.relative_to(self.root).as_posix(),
            "name": record.name,
            "method": record.method,
            "seed": record.seed,
            "status": record.status,
            "round": done,
            "rounds": total,
            "left": pace * (total - done) if running and pace is not None else None,
            "quiet": quiet if running and quiet > max(30.0, 20 * (pace or 0)) else None,
            "news": news(record),
            "problems": self._told(record),
        }

    @staticmethod
    def _told(record: Record) -> list[str]:
        """Half a line at the end of a history, or no result yet, is no problem of a run that goes on."""
        going = record.status == "unfinished"
        return [p for p in record.problems if not (going and (p.startswith("unfinished") or CUT in p))]

    def _drawn(self, records: list[Record]) -> list[dict[str, str]]:
        key = [(str(r.folder), len(r.history), r.status) for r in records]
        if self._charts[0] != key:
            made = (
                [c for name in ("rounds", "loss") for c in KINDS[name].make(compare_records(records))]
                if records
                else []
            )
            drawn = [{"title": c.title, "note": c.note, "svg": to_svg(c.drawing, c.title)} for c in made]
            self._charts = (key, drawn)
        return self._charts[1]

    def log(self, path: str) -> str | None:
        """The history of a run in lines; None for anything that is not a run below the root."""
        known = {folder.relative_to(self.root).as_posix(): folder for folder in self.folders()}
        folder = known.get(path)  # no path is ever made of what was asked
        if folder is None:
            return None
        record = self.record(folder)
        lines = [_line(line) for line in record.history[-_LINES:]]
        return "\n".join([*lines, *self._told(record), *([] if record.status == "unfinished" else [record.status])])


def planned_rounds(record: Record) -> int:
    """What the config asks for, with the rounds that come before or instead (spec 7.4)."""
    rounds, start = record.setting("train.rounds", 0), record.setting("method.start", {})
    if not isinstance(rounds, int) or not isinstance(start, dict):
        return 0
    try:
        known = method_from_config({"start": start}).start
    except RequestError:  # somebody's own, of a plugin that is not loaded here
        return rounds
    earlier = known.earlier()
    return known.pace(Pace(rounds, 0.0, "")).rounds + (0 if earlier is None else earlier.rounds or rounds)


def news(record: Record) -> str:
    """The newest loss and accuracies in one line."""
    words = []
    if record.history and isinstance(record.history[-1].get("loss"), float | int) and not record.ok:
        words.append(f"loss {record.history[-1]['loss']:.4g}")
    found = dict(record.accuracy)
    if not found:
        measured: Any = next((line["accuracy"] for line in reversed(record.history) if line.get("accuracy")), {})
        parsed = {name: Scores.parse(scores) for name, scores in measured.items()} if isinstance(measured, dict) else {}
        found = {name: scores for name, scores in parsed.items() if scores is not None}
    words += [_said(name, scores) for name, scores in found.items() if "@" not in name]
    return "  ".join(words)


def _said(name: str, scores: Scores) -> str:
    return f"{name} {scores.mean:.1f}" + (f" ± {scores.std:.1f}" if scores.n > 1 else "")


def _line(line: Any) -> str:
    words = [f"round {line['round']}"]
    if isinstance(line.get("participants"), list):
        words.append(f"{len(line['participants'])} clients")
    for key, form in (("loss", "loss {:.4f}"), ("lr", "lr {:.4g}"), ("seconds", "{:.2f} s")):
        if isinstance(line.get(key), float | int):
            words.append(form.format(line[key]))
    accuracy = line.get("accuracy") if isinstance(line.get("accuracy"), dict) else {}
    parsed = [(name, Scores.parse(found)) for name, found in (accuracy or {}).items()]
    replaced = line.get("replaced") if isinstance(line.get("replaced"), list) else []
    return "  ".join([*words, *(_said(name, scores) for name, scores in parsed if scores), *map(str, replaced or [])])


class _Handler(LocalHandler):
    """GET / and two questions; everything else is refused."""

    watcher: Watcher

    def do_GET(self) -> None:
        if not self.is_local():
            return
        asked = urlsplit(self.path)
        if asked.path == "/":
            page = render(
                "watch.html",
                "watch.js",
                ["base.css", "watch.css"],
                root=str(self.watcher.root),
                name=self.watcher.root.name,
            )
            self.answer(HTTPStatus.OK, "text/html", page)
        elif asked.path == "/state.json":
            self.answer(HTTPStatus.OK, "application/json", json.dumps(self.watcher.state()))
        elif asked.path == "/log":
            found = self.watcher.log(parse_qs(asked.query).get("run", [""])[0])
            if found is None:
                self.answer(HTTPStatus.NOT_FOUND, "text/plain", "no such run here")
            else:
                self.answer(HTTPStatus.OK, "text/plain", found)
        else:
            self.answer(HTTPStatus.NOT_FOUND, "text/plain", "nothing here")


def serve(root: Path, port: int) -> ThreadingHTTPServer:
    """A server that is ready to `serve_forever`; port 0: any free one."""
    return listen(type("Handler", (_Handler,), {"watcher": Watcher(root)}), port)
