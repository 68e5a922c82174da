"""Records as table.json has them, made by hand."""

from __future__ import annotations

from typing import Any

from torso.papers.tables.answers import Answer


def answer(method: str, ours: tuple[float, ...], published: float | None, **setting: Any) -> Answer:
    """`ours`: a value a seed."""
    found = {"mean": sum(ours) / len(ours), "std": None, "seeds": {str(i): v for i, v in enumerate(ours)}}
    return {
        "paper": "FedBABU",
        "table": "13",
        "dataset": "CIFAR10",
        "model": "4convNet",
        "setting": {"partition": "shards", "shards": 2, **setting},
        "method": method,
        "variant": "",
        "metric": "personalized",
        "published": {"mean": published, "std": None, "std_over": "clients", "note": ""},
        "ours": found if ours else None,
        "status": "ok",
        "config": {},
        "machine": {"device": "a machine", "precision": "bf16"},
        "versions": {"torch": "2"},
        "data": "cifar10_jpeg.npz",
    }


def nothing(method: str, published: float, **setting: Any) -> Answer:
    return {**answer(method, (0.0,), published, **setting), "ours": None, "status": "not run"}


def failed(line: Answer, seeds: int = 1, why: str = "non-finite loss in round 3, client 7") -> Answer:
    """With so many further seeds that failed."""
    return {**line, "status": f"failed: {why}", "failed": {f"9{i}": f"failed: {why}" for i in range(seeds)}}


def second(line: Answer, name: str = "as the paper's code") -> Answer:
    return {**line, "variant": name}
