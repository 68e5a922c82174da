"""The cost of a round over Flower in which clients do nothing: `python bench/federation_floor.py`.

Clients are processes on this machine that answer every message with the same number of random bytes, over TLS and with
keys. A round ends when the last answer has come. Each row also has the bytes that crossed the connections besides the
payload (bodies and headers of HTTP, without TLS): n messages down, n answers up, and the polls for messages in between.

`unchanged` is Flower as it comes. `quick` has the shorter waits of `torso.federation.flower.patches`.
The table in docs/federation.md is made from the last measurement; with --fill nothing is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from torso.federation.flower.control import admit, admitted, traffic
from torso.federation.flower.serve import serving
from torso.federation.flower.server import FlowerServerLink
from torso.federation.flower.supernode import UNCHANGED
from torso.federation.folder import ClientFolder, ServerFolder, init
from torso.federation.keys import make_key
from torso.federation.transport import MissingAnswer

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "federation.md"
BEGIN, END = "<!-- federation floor -->", "<!-- /federation floor -->"
MB = 10**6
ECHO = """
import os, sys
from torso.federation.folder import ClientFolder
from torso.federation.flower.client import FlowerClientLink
with FlowerClientLink(ClientFolder.open(sys.argv[1]), sys.argv[2]) as link:
    link.serve(lambda data: os.urandom(len(data)))
"""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


@contextmanager
def echoing(place: ServerFolder, names: list[str], unchanged: bool) -> Iterator[FlowerServerLink]:
    """An open link with the given number of connected clients."""
    environment = {**os.environ, UNCHANGED: "1" if unchanged else "0"}
    started = [subprocess.Popen([sys.executable, "-c", ECHO, str(place.path), name], env=environment) for name in names]
    try:
        with FlowerServerLink(place) as link:
            while len(link.there()) < len(names):
                time.sleep(0.2)
                if any(one.poll() is not None for one in started):
                    raise SystemExit("a client has ended")
            yield link
    finally:
        for one in started:
            one.terminate()
        for one in started:
            one.wait()
        while any(one.state == "online" for one in admitted(place)):  # their SuperNodes end a moment later
            time.sleep(0.2)


def crossed(place: ServerFolder) -> tuple[int, int]:
    """Bytes and requests so far, without heartbeats."""
    found = {path: counts for path, counts in traffic(place).items() if not path.endswith("heartbeat")}
    return sum(c.received + c.sent for c in found.values()), sum(c.requests for c in found.values())


def measure(place: ServerFolder, link: FlowerServerLink, size: int, rounds: int) -> dict[str, Any]:
    nodes = link.there()
    seconds = []
    before = crossed(place)
    for _ in range(rounds):
        data = os.urandom(size)
        began = time.perf_counter()
        answers = dict(link.exchange(dict.fromkeys(nodes, data), 300))
        seconds.append(time.perf_counter() - began)
        silent = [answer for answer in answers.values() if isinstance(answer, MissingAnswer)]
        if silent:
            raise SystemExit(f"{len(silent)} of {len(answers)} clients have not answered: {silent[0].reason}")
    after = crossed(place)
    payload = 2 * size * len(nodes)
    wire = (after[0] - before[0]) / rounds
    return {
        "clients": len(nodes),
        "payload_bytes": size,
        "n": rounds,
        "seconds": round(median(seconds), 3),
        "seconds_range": [round(min(seconds), 3), round(max(seconds), 3)],
        "wire_bytes": round(wire),
        "overhead_bytes_per_client": round((wire - payload) / len(nodes)),
        "overhead_percent": round(100 * (wire - payload) / payload, 2) if payload else None,
        "requests_per_client": round((after[1] - before[1]) / rounds / len(nodes), 1),
    }


def rows(clients: list[int], sizes: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    for unchanged in (False, True):
        with tempfile.TemporaryDirectory() as folder:
            place = init(Path(folder) / "floor", "127.0.0.1", free_port())
            with serving(place, lambda line: None):
                for count in clients if not unchanged else clients[:1]:
                    # names of its own: who comes back under a key of a moment ago is taken for the one that left
                    names = [f"client-{k}-of-{count}" for k in range(count)]
                    for name in names:
                        admit(place, make_key(ClientFolder.open(place.path), name), name)
                    with echoing(place, names, unchanged) as link:
                        for size in sizes if not unchanged else sizes[:2]:
                            n = rounds if size < 10 * MB else 2 if count <= 5 else 1
                            yield {"waits": "unchanged" if unchanged else "quick", **measure(place, link, size, n)}


def table(found: dict[str, Any]) -> str:
    machine, versions = found["machine"], found["versions"]
    lines = [
        "| waits | clients | payload, each way | seconds a round (range, n) | bytes beside the payload, per client |",
        "|---|---|---|---|---|",
    ]
    for row in found["rows"]:
        low, high = row["seconds_range"]
        waits = "Torso's" if row["waits"] == "quick" else "Flower's own"
        lines.append(
            f"| {waits} | {row['clients']} | {row['payload_bytes'] / MB:g} MB | {row['seconds']:.2f} ({low:.2f} to "
            f"{high:.2f}, n = {row['n']}) | {row['overhead_bytes_per_client']:,} |"
        )
    said = (
        f"Median of n rounds; all processes on one machine with {machine['cores']} cores ({machine['machine']}, load "
        f"{machine['load_before']} before), over TLS and with keys. Flower {versions['flwr']}, Python "
        f"{versions['python']}."
    )
    return "\n".join([*lines, "", said])


def fill(page: str, found: dict[str, Any]) -> str:
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n{table(found)}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 5, 10])
    parser.add_argument("--sizes", type=int, nargs="+", default=[0, MB, 50 * MB], help="bytes")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=HERE / "federation_floor.json")
    parser.add_argument("--fill", action="store_true", help="measure nothing; write the table into docs/federation.md")
    asked = parser.parse_args()
    if not asked.fill:
        measured(asked)
    if asked.out == HERE / "federation_floor.json":
        found = json.loads(asked.out.read_text(encoding="utf-8"))
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")


def measured(asked: argparse.Namespace) -> None:
    print(f"{'waits':>9} {'clients':>7} {'payload':>11} {'n':>3} {'s/round':>8}  {'range':<15} overhead/client")
    machine = {"cores": os.cpu_count(), "machine": platform.machine(), "system": platform.system()}
    machine["load_before"] = round(os.getloadavg()[0], 1)  # a busy machine is told
    versions = {name: version(name) for name in ("flwr", "uvicorn", "httpx")} | {"python": platform.python_version()}
    found = []
    for row in rows(asked.clients, asked.sizes, asked.rounds):
        found.append(row)
        low, high = row["seconds_range"]
        print(
            f"{row['waits']:>9} {row['clients']:>7} {row['payload_bytes']:>11,} {row['n']:>3} {row['seconds']:>8.3f}  "
            f"{f'{low:.3f}-{high:.3f}':<15} {row['overhead_bytes_per_client']:,} bytes in "
            f"{row['requests_per_client']} requests",
            flush=True,
        )
        asked.out.write_text(json.dumps({"machine": machine, "versions": versions, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
