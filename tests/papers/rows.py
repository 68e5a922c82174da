"""Rows of board.json and found.json, made by hand."""

from __future__ import annotations

from typing import Any

from torso.papers.tables.answers import over_seeds

S2, DIR = "cifar10-s2", "cifar10-dir0.3"


def row(method: str, *personal: float, setting: str = S2, new: bool = False, status: str = "ok") -> dict[str, Any]:
    """Generic accuracy is half of the personal one, new clients have all of it."""
    value = over_seeds(dict(enumerate(personal))) if personal else None
    half = over_seeds({seed: v / 2 for seed, v in enumerate(personal)}) if personal else None
    return {
        **{"setting": setting, "method": method, "new": new, "sets": [], "status": status},
        **{"chosen": {"train.lr": 0.1}, "tried": [], "seeds": list(range(len(personal)))},
        **{"personal": value, "generic": half, "new_client": value, "new_client_before": half, "worst_tenth": half},
        **{"megabytes": value, "forward_passes": value, "data": "cifar10_jpeg.npz"},
        **{"machine": {"device": "a device", "precision": "bf16"}, "versions": {"torch": "2.13"}},
    }


ROWS = [
    row("fedavg", 80.0, 82.0, 84.0),
    row("fedbabu", 81.0, 82.5, 84.0),
    row("fedper", 99.0, status="failed: non-finite loss"),
    row("n", 84.0, 85.5, 90.0, new=True),
]


def tried(method: str, setting: str, *sums: float | None, known_as: str = "", unfinished: int = 0) -> dict[str, Any]:
    points = [
        {"train.lr": lr, "validation": None if s is None else {"generic": s / 4, "personalized": 3 * s / 4}}
        for lr, s in zip((0.03, 0.1, 0.3), sums, strict=False)
    ]
    axes = {"head": method}
    return {
        **{"setting": setting, "method": method, "axes": axes, "known_as": known_as},
        **{"sets": [f"method.name={known_as or 'fedprox'}"]},
        **{"tried": points, "unfinished": unfinished},
    }


TRIED = [
    *(tried("old", setting, 90.0, 100.0, None, known_as="fedavg") for setting in (S2, DIR)),
    *(tried("steady", setting, 95.0, 80.0) for setting in (S2, DIR)),
    *(tried("uneven", setting, None, best) for setting, best in ((S2, 120.0), (DIR, 60.0))),
    tried("half", S2, 130.0),
    *(tried("unfinished", setting, 140.0, unfinished=1) for setting in (S2, DIR)),
]
