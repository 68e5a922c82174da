"""The rows of bench/foreign.json that the first run on an H200 did not have, in little more than a minute.

    python bench/foreign_second.py [--out FOLDER] [--seconds 85] [--device cuda] [--tiny]
    python bench/foreign_second.py --keep FILE --commit HASH      writes what FILE says into bench/foreign.json

Seven processes of bench/foreign.py compile in parallel, since that takes most of the time. Then they measure one after
the other (`Gate`). The others do not wait for a process that is not ready after 50 s. Writes foreign_second.json.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import IO, Any

PATIENCE = 50  # seconds for which those that are ready wait for the others
TURNS: dict[str, tuple[str, str, str]] = {
    "lite0-tf32": ("efficientnet-lite0", "tf32", "loop,made,kernel by kernel,recorded,evaluation"),
    "lite0-bf16": ("efficientnet-lite0", "bf16", "loop,kernel by kernel,recorded"),
    "still-tf32": ("efficientnet-lite0-still", "tf32", "loop,recorded,compiled"),
    "still-bf16": ("efficientnet-lite0-still", "bf16", "loop,recorded,compiled"),
    "resnet18-tf32": ("resnet18", "tf32", "loop,made,kernel by kernel"),
    "vit-bf16": ("vit-s", "bf16", "loop,recorded,compiled"),
    "vit-tf32": ("vit-s", "tf32", "recorded,math"),
}
"""Process → network, precision, and what is measured. EfficientNet-lite0 draws random numbers and is not compiled."""


class Gate:
    """Lets processes measure one at a time, once all of them are ready. Without a folder it is open."""

    def __init__(self, folder: str, name: str, parties: int) -> None:
        self.folder, self.name, self.parties = Path(folder) if folder else None, name, parties
        self._lock: IO[str] | None = None

    def enter(self) -> None:
        """Wait for the turn; it lasts until `leave`, or the end of the process."""
        if self.folder is None or self._lock is not None:
            return
        (self.folder / f"ready.{self.name}").touch()
        began = (self.folder / "began").stat().st_mtime
        while len(list(self.folder.glob("ready.*"))) < self.parties and time.time() - began < PATIENCE:
            time.sleep(0.05)
        self._lock = (self.folder / "lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def leave(self) -> None:
        if self._lock is not None:
            self._lock.close()


def started(name: str, folder: Path, options: argparse.Namespace) -> subprocess.Popen[bytes]:
    net, precision, kinds = TURNS[name]
    (folder / name).mkdir(parents=True, exist_ok=True)
    command = [sys.executable, str(Path(__file__).with_name("foreign.py")), "--only", net, "--precision", precision]
    command += [
        "--kinds",
        kinds,
        "--times",
        "7" if net == "resnet18" else "5",
        "--seconds",
        "0.15",
        "--out",
        str(folder / name),
    ]
    command += ["--device", options.device, "--gate", str(folder), "--name", name, "--parties", str(len(TURNS))]
    command += ["--tiny"] if options.tiny else []
    few = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "5", "PYTHONWARNINGS": "ignore"}
    said = (folder / f"{name}.txt").open("wb")
    return subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, env=few)


def keep(found: Path, commit: str) -> None:
    """Add a run's rows to those of earlier runs."""
    into = Path(__file__).with_name("foreign.json")
    kept = json.loads(into.read_text(encoding="utf-8"))
    kept["runs"][commit] = json.loads(found.read_text(encoding="utf-8"))
    into.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ".")))
    parser.add_argument("--seconds", type=float, default=85, help="after which everything ends")
    parser.add_argument("--tiny", action="store_true", help="small images, to try the script")
    parser.add_argument("--keep", type=Path, help="a foreign.json or foreign_second.json of a run")
    parser.add_argument("--commit", default="", help="with --keep: what was run")
    options = parser.parse_args()
    if options.keep is not None:
        keep(options.keep, options.commit)
        return
    folder = options.out / "foreign_second"
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("ready.*"):
        old.unlink()
    (folder / "began").write_text("", encoding="utf-8")
    began, kept = time.perf_counter(), dict[str, Any]()
    running = {name: started(name, folder, options) for name in TURNS}
    while running and time.perf_counter() - began < options.seconds:
        for name in [name for name, process in running.items() if process.poll() is not None]:
            running.pop(name)
            (folder / f"ready.{name}").touch()  # whatever became of it
            print((folder / f"{name}.txt").read_text(encoding="utf-8", errors="replace")[-4000:], flush=True)
        time.sleep(0.05)
    for name, process in running.items():
        process.kill()
        print(f"{name} did not end:\n", (folder / f"{name}.txt").read_text(encoding="utf-8", errors="replace")[-2000:])
    for name in TURNS:
        found = folder / name / "foreign.json"
        kept |= json.loads(found.read_text(encoding="utf-8")) if found.exists() else {}
    (options.out / "foreign_second.json").write_text(json.dumps(kept, indent=1), encoding="utf-8")
    print(f"[{time.perf_counter() - began:.0f} s in all]")


if __name__ == "__main__":
    main()
