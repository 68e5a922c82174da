"""The local page of `torso watch`: it follows runs while they train. It only reads, and only on 127.0.0.1."""

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
from torso.methods.starts import TrainingPlan
from torso.report.charts import KINDS, to_svg
from torso.report.comparison import compare_records
from torso.report.local_page import LocalHandler, listen
from torso.report.page import render
from torso.report.records import Record, Scores, below_of, is_run, names_apart, read
from torso.results.history import CUT

_LINES = 400  # rounds that a log shows
_RECENT = 10  # rounds whose mean duration gives the time left


class Watcher:
    """The runs below a folder. A run is read again when one of its files has changed."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RequestError(
                f"{str(root)!r} is not a folder. Give a run folder, or the folder that contains your runs."
            )
        self.root = root.resolve()
        self._kept: dict[Path, tuple[float, Record]] = {}  # folder → (time of its newest file, its record)
        self._charts: tuple[Any, list[dict[str, str]]] = (None, [])

    def folders(self) -> list[Path]:
        """The run folders below the root. Links that lead out of it are skipped."""
        found = [self.root] if is_run(self.root) else below_of(self.root)
        return [folder for folder in found if folder.resolve().is_relative_to(self.root)]

    def record(self, folder: Path) -> Record:
        """The record of a run, from memory if no file has changed."""
        changed = max((p.stat().st_mtime for p in folder.glob("*.json*")), default=0.0)
        kept = self._kept.get(folder)
        if kept is None or kept[0] != changed:
            self._kept[folder] = kept = (changed, read(folder))
        return kept[1]

    def state(self) -> dict[str, Any]:
        """Everything that the page shows, as JSON."""
        folders = self.folders()
        records = [self.record(folder) for folder in folders]
        names = names_apart(folders)
        rows = [self._row(*each) for each in zip(folders, records, names, strict=True)]
        return {"root": str(self.root), "runs": rows, "charts": self._drawn(records)}

    def _row(self, folder: Path, record: Record, name: str) -> dict[str, Any]:
        done = record.history[-1]["round"] if record.history else 0
        total = max(done, record.rounds or 0) if record.ok else max(done, planned_rounds(record))
        newest = self._kept[folder][0] or time.time()
        quiet = max(0.0, time.time() - newest)  # seconds since a file was written
        recent = [line["seconds"] for line in record.history[-_RECENT:] if isinstance(line.get("seconds"), float | int)]
        pace = sum(recent) / len(recent) if recent else None  # seconds a round
        running = record.status == "unfinished"
        return {
            "path": folder.relative_to(self.root).as_posix(),
            "name": name,
            "method": record.method,
            "seed": record.seed,
            "status": record.status,
            "round": done,
            "rounds": total,
            "left": pace * (total - done) if running and pace is not None else None,
            "quiet": quiet if running and quiet > max(30.0, 20 * (pace or 0)) else None,
            "news": news(record),
            "problems": self._problems(record),
        }

    @staticmethod
    def _problems(record: Record) -> list[str]:
        """The problems of a run. While it runs, a missing result and half a line at the end of the history are none."""
        if record.status != "unfinished":
            return list(record.problems)
        return [p for p in record.problems if not (p.startswith("unfinished") or CUT in p)]

    def _drawn(self, records: list[Record]) -> list[dict[str, str]]:
        """The charts, drawn again when a run has a new round or status."""
        key = [(str(r.folder), len(r.history), r.status) for r in records]
        if self._charts[0] != key:
            charts = []
            if records:
                comparison = compare_records(records)
                charts = [*KINDS["rounds"].make(comparison), *KINDS["loss"].make(comparison)]
            drawn = [{"title": c.title, "note": c.note, "svg": to_svg(c.drawing, c.title)} for c in charts]
            self._charts = (key, drawn)
        return self._charts[1]

    def log(self, path: str) -> str | None:
        """The history of a run as text; None if `path` is not a run below the root."""
        known = {folder.relative_to(self.root).as_posix(): folder for folder in self.folders()}
        folder = known.get(path)  # a lookup: a request never becomes a path
        if folder is None:
            return None
        record = self.record(folder)
        lines = [_line(line) for line in record.history[-_LINES:]]
        return "\n".join([*lines, *self._problems(record), *([] if record.status == "unfinished" else [record.status])])


def planned_rounds(record: Record) -> int:
    """The number of rounds that the config plans, with those of the method's start (spec 7.4)."""
    rounds, start = record.setting("train.rounds", 0), record.setting("method.start", {})
    if not isinstance(rounds, int) or not isinstance(start, dict):
        return 0
    try:
        known = method_from_config({"start": start}).start
    except RequestError:  # from a plugin that is not loaded here
        return rounds
    earlier = known.earlier()
    rounds_before = 0 if earlier is None else earlier.rounds or rounds
    return known.training_plan(TrainingPlan(rounds, 0.0, "")).rounds + rounds_before


def news(record: Record) -> str:
    """The newest loss and accuracies in one line."""
    words = []
    last_loss = record.history[-1].get("loss") if record.history else None
    if isinstance(last_loss, float | int) and not record.ok:
        words.append(f"loss {last_loss:.4g}")
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
    """A round of the history as a line of the log."""
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
    """Answers GET / with the page, /state.json and /log with data; refuses everything else."""

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
