"""Run folders made by hand: every number is known, and every part can be left out or spoiled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from torso.config import Config

PRIVATE = {
    **{"epsilon": 0.4, "delta": 0.01, "noise": 1.5, "clip": 0.5, "sampling": "poisson", "rate": 0.2},
    **{"clients": 50, "adaptive": False},
}
"""The privacy of a result, as a run writes it."""


def write_run(
    folder: Path,
    method: str = "fedavg",
    seed: int = 0,
    accuracy: Mapping[str, Sequence[float | None]] | None = None,
    *,
    status: str = "ok",
    sets: Sequence[str] = (),
    rounds: int = 4,
    analyses: Mapping[str, Any] | None = None,
    missing: Sequence[int] = (),
    hours: float = 0.0,
    private: Any = None,
) -> Path:
    """A finished run. `missing` were not heard in the first round; `hours`: how long a round lasts, if rounds are
    asynchronous; `private`: the privacy of its result, and ε is a tenth of the round before that; `accuracy` gives
    clients by measure, or one number of the generic model."""
    folder.mkdir(parents=True)
    config = Config.load(None, [f"method.name={method}", f"run.seed={seed}", f"train.rounds={rounds}", *sets])
    (folder / "config.toml").write_text(config.as_toml())
    found = accuracy if accuracy is not None else {"initial": [50.0, 60.0], "personalized": [70.0, 90.0]}
    lines = [
        {
            **{"round": r, "stage": method, "lr": 0.1, "participants": [0, 1], "loss": 1 / r},
            **{"bytes_up": 500_000 * r, "bytes_down": 500_000 * r, "forward_passes": 100 * r, "seconds": 0.5},
            **({"missing": list(missing)} if missing and r == 1 else {}),
            **({"hours": hours * r, "staleness": [r - 1, r]} if hours else {}),
            **({"privacy": {"epsilon": r / 10, "clip": 1.0}} if private else {}),
            "accuracy": {
                "initial": {
                    "mean": min(100.0, 10.0 * r),
                    "std": 5.0,
                    "n": 2,
                    "quantiles": [0, min(100, 5.0 * r), 9.0, min(100, 15.0 * r), 90],
                }
            },
        }
        for r in range(1, rounds + 1)
    ]
    (folder / "history.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tree = {
        **{"method": method, "dataset": config.data.source, "model": config.model.body, "seed": seed},
        **{"rounds": rounds, "status": status, "versions": {"python": "3.11"}},
        "accuracy": {name: _scores(values) for name, values in found.items()} if status == "ok" else {},
        "cost": {
            **{"bytes_up": 500_000 * rounds, "bytes_down": 500_000 * rounds, "forward_passes": 100 * rounds},
            **({"hours": hours * rounds} if hours else {}),
        },
        "seconds": {"train": 2.0, "measure": 1.0, "total": 3.0},
        **({} if private is None else {"privacy": private}),
    }
    (folder / "result.json").write_text(json.dumps(tree))
    if analyses is not None:
        (folder / "analyses.json").write_text(json.dumps(analyses))
    return folder


def _scores(values: Sequence[float | None]) -> dict[str, Any]:
    known = [v for v in values if v is not None]
    mean, std = (float(np.mean(known)), float(np.std(known))) if known else (None, None)
    return {"mean": mean, "std": std, "n": len(known), "clients": list(values) if len(values) > 1 else []}


def all_analyses(classes: int = 4, clients: int = 6, seed: int = 0) -> dict[str, Any]:
    """Every analysis that a run may hold, of the shapes that the reader is promised."""
    random = np.random.default_rng(seed)
    square, rounds = np.eye(classes).tolist(), [1, 2, 3]
    spots = random.normal(size=(2, 5 * classes))
    norms = [f"{who}_{what}" for who in ("local_seen", "local_unseen", "global") for what in ("weight", "feature")]
    return {
        "class_counts": random.integers(0, 9, (clients, classes)).tolist(),
        "four_factors": {
            **{"weight_similarity": square, "inter_class": square, "summary": {"alignment": 0.5}},
            **{"intra_class": [0.9] * classes, "alignment": [0.5] * classes},
        },
        "norms": {"rounds": rounds, **{name: [1.0 + i, 2.0, 3.0] for i, name in enumerate(norms)}},
        "layer_similarity": {
            "layers": ["body.0", "head"],
            "epochs": [0, 1, 5],
            "cosine": [[1, 1], [0.9, 0.8], [0.8, 0.4]],
        },
        "class_curves": {
            "rounds": [1, 3],
            "epochs": [0, 1, 2],
            "seen": [[10, 40, 60], [30, 70, 80]],
            "unseen": [[10, 5, 2], [30, 9, 3]],
        },
        "drift_variance": {"rounds": rounds, "variance": [3, 2, 1], "local_generic": [20, 30, 40]},
        "regularization": {"rounds": rounds, "loss": [3, 2, 1], "distance": [0.1, 0.2, 0.3]},
        "cross_client": {"clients": list(range(clients)), "accuracy": (90 * np.eye(clients) + 5).tolist()},
        "tsne": {"x": spots[0].tolist(), "y": spots[1].tolist(), "label": np.repeat(range(classes), 5).tolist()},
    }
