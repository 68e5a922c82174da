"""The cost of secure sums: `python bench/secagg.py`.

Accuracy and bytes: whole runs over a federation without a network. Every client is a `ClientService`, which gets the
bytes that it would get over the wire. Digits, 10 clients, all of them in every round.
Protocol: CPU seconds of the four stages for one client and for the server, with vectors of a million numbers. One
client leaves before it sends its vector.

The tables in docs/federation.md are made from the last measurement (bench/secagg.json); with --fill nothing is
measured. --small tries the script: one seed, two rounds, few clients, and nothing is written.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import mean, stdev
from typing import Any, Self

import numpy as np
import torch

from torso import Config
from torso.config import SecureConfig
from torso.data.images import Images
from torso.data.inputs import known
from torso.federation.client_service import ClientService
from torso.federation.protocol import Request
from torso.federation.run import run_federation
from torso.federation.secure.sum_client import SumClient
from torso.federation.secure.sum_server import SumServer
from torso.federation.secure.terms import SharingParameters
from torso.federation.site_data import SiteData
from torso.federation.transport import MissingAnswer
from torso.runs.job import Simulation, simulate

HERE = Path(__file__).resolve().parent
PAGE, KEPT = HERE.parent / "docs" / "federation.md", HERE / "secagg.json"
BEGIN, END = "<!-- secure sums -->", "<!-- /secure sums -->"
CLIENTS, NUMBERS = 10, 10**6
TASK = (
    *(f"data.clients={CLIENTS}", "data.partition=dirichlet-class", "data.alpha=0.5", "train.fraction=1.0"),
    *("train.local_epochs=1", "train.min_clients=3", "personalize.epochs=1", "run.workers=1"),
    *(f"run.flower.clients={CLIENTS}", 'measure.names=["initial","personalized"]', "run.checkpoint_every=0"),
)
ON = "run.flower.secure.kind=secagg+"
WAYS: dict[str, tuple[str, ...]] = {
    "in the open": (),
    **{f"secagg+, {bits} bits": (ON, f"run.flower.secure.bits={bits}") for bits in (22, 16, 12, 8)},
    "secagg+, 8 bits, clip 1": (ON, "run.flower.secure.bits=8", "run.flower.secure.clip=1.0"),
}


class Link:
    """A server's link to clients in this process, which counts bytes by kind of request."""

    def __init__(self, homes: Mapping[str, ClientService]) -> None:
        self.homes = dict(enumerate(homes.values(), start=100))
        self.names = dict(enumerate(homes, start=100))
        self.bytes: dict[str, list[int]] = {}  # kind → down, up

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def there(self) -> dict[int, str]:
        return self.names

    def exchange(self, messages: Mapping[int, bytes], seconds: float) -> Iterator[tuple[int, bytes | MissingAnswer]]:
        for node, data in messages.items():
            answer = self.homes[node].answer(data)
            count = self.bytes.setdefault(Request.decode(data).header.kind, [0, 0])
            count[0] += len(data)
            count[1] += len(answer)
            yield node, answer


def homes_of(task: Simulation, folder: Path) -> dict[str, ClientService]:
    data, names = task.federation, [f"client-{k:02d}" for k in range(task.roster.clients)]
    classes = tuple(map(str, range(data.classes)))
    found = {}
    for client, name in enumerate(names):
        parts = []
        for split in (data.train, data.test):
            rows = split.rows(client)
            parts.append(Images(split.samples[rows].numpy(), split.labels[rows].numpy()))
        site = SiteData(*parts, classes, known(data.input), data.augment, data.name)
        found[name] = ClientService(name, site, folder / name, torch.device("cpu"), say=lambda _: None)
    return found


def one_run(method: str, way: str, seed: int, rounds: int) -> dict[str, Any]:
    config = Config.load(None, [f"method.name={method}", *TASK, f"run.seed={seed}", f"train.rounds={rounds}"])
    with tempfile.TemporaryDirectory() as folder:
        link = Link(homes_of(simulate(config), Path(folder) / "homes"))
        result = run_federation(config.but(*WAYS[way]), link, Path(folder) / "run", say=lambda _: None)
    accuracy = {name: found.mean for name, found in result.accuracy.items()}
    kinds = ("keys", "shares", "told", "sums", "unmask")
    down, up = (sum(link.bytes.get(kind, (0, 0))[side] for kind in kinds) for side in (0, 1))
    each = CLIENTS * (1 if method == "fedncm" else rounds)
    return {"method": method, "way": way, "seed": seed, **accuracy, "down": down / each, "up": up / each}


def protocol(clients: int, shares: int, numbers: int) -> dict[str, Any]:
    """CPU seconds of the stages; `share` and `mask` are of one client."""
    terms = SharingParameters.of(SecureConfig(shares=shares), clients)
    gathering, spent = SumServer(terms, range(clients)), dict.fromkeys(("share", "mask", "open"), 0.0)
    vector = np.arange(numbers, dtype=np.uint32)

    def timed(stage: str, began: float) -> None:
        spent[stage] += time.process_time() - began

    began = time.process_time()
    parties = {k: SumClient(k, "0" * 32, terms) for k in range(clients)}
    gathering.keys = {k: party.public for k, party in parties.items()}
    for k, party in parties.items():
        gathering.take_shares(k, party.share(gathering.keys_for(k)))
    timed("share", began)
    began = time.process_time()
    for k in range(1, clients):
        gathering.take_vector(k, parties[k].mask(gathering.shares_for(k), lambda: vector))
    timed("mask", began)
    given = {k: parties[k].unmask(*gathering.to_unmask(k)) for k in gathering.sent}
    began = time.process_time()
    assert (gathering.opened(given) == vector * np.uint32(clients - 1)).all()
    timed("open", began)
    each = {"share": spent["share"] / clients, "mask": spent["mask"] / (clients - 1), "open": spent["open"]}
    return {"clients": clients, "shares": terms.shares, "threshold": terms.threshold, "numbers": numbers, **each}


def measured(small: bool) -> dict[str, Any]:
    torch.set_num_threads(1)
    seeds, rounds = ((0,), 2) if small else ((0, 1, 2), 10)
    runs = []
    for method in ("fedavg", "fedbabu", "fedncm"):
        for way in WAYS:
            runs += [one_run(method, way, seed, rounds) for seed in seeds]
            print(json.dumps(runs[-1]), flush=True)
    sizes = ((5, 0),) if small else ((5, 0), (10, 0), (30, 0), (100, 15))
    stages = [protocol(clients, shares, NUMBERS // (100 if small else 1)) for clients, shares in sizes]
    return {
        "rounds": rounds,
        "runs": runs,
        "protocol": stages,
        "machine": f"{platform.machine()}, torch {torch.__version__}, Python {platform.python_version()}",
    }


def tables(found: Mapping[str, Any]) -> str:
    lines = ["| method | | initial % | personalized % | kB up | kB down |", "|---|---|---|---|---|---|"]
    for method in dict.fromkeys(run["method"] for run in found["runs"]):
        for way in WAYS:
            runs = [run for run in found["runs"] if (run["method"], run["way"]) == (method, way)]
            cells = [_spread([run[name] for run in runs]) for name in ("initial", "personalized")]
            sizes = [f"{mean(run[side] for run in runs) / 1000:,.1f}" for side in ("up", "down")]
            lines.append(f"| {method} | {way} | {' | '.join((*cells, *sizes))} |")
    seeds = len({run["seed"] for run in found["runs"]})
    lines += [
        "",
        f"Digits, {CLIENTS} clients (Dirichlet 0.5), all in each of {found['rounds']} rounds, one local epoch, the "
        f"default body `mlp`; clip 8 where not said; mean ± std over {seeds} seeds. kB: of one client in one round "
        "(FedNCM: its class sums).",
        "",
        "| participants | hold shares | open a secret | a client shares, s | masks, s | the server opens, s |",
        "|---|---|---|---|---|---|",
    ]
    for row in found["protocol"]:
        times = " | ".join(f"{row[stage]:.2f}" for stage in ("share", "mask", "open"))
        lines.append(f"| {row['clients']} | {row['shares']} | {row['threshold']} | {times} |")
    lines += [
        "",
        f"CPU seconds for {NUMBERS:,} numbers; one client leaves after it has shared its secrets. {found['machine']}.",
    ]
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def fill(page: str, found: Mapping[str, Any]) -> str:
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables(found)}\n{END}{after}"


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--fill", action="store_true", help="the tables of the page from what was measured last")
    options.add_argument("--small", action="store_true", help="whether it works")
    asked = options.parse_args()
    found = json.loads(KEPT.read_text(encoding="utf-8")) if asked.fill else measured(asked.small)
    print(tables(found))
    if not asked.small:
        if not asked.fill:
            KEPT.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        PAGE.write_text(fill(PAGE.read_text(encoding="utf-8"), found), encoding="utf-8")
