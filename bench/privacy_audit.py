"""An audit for docs/privacy.md, as `torso audit` makes it: `bench/privacy_audit.py FILE.json NOISE [last|CLAIMED]`.

200 clients with 7 images of scikit-learn's digits each, a network with two hidden layers. The environment's RUNS (256)
and ROUNDS (10) make it smaller. `last`: the auditor sees only the last model. CLAIMED: the noise of a wrong claim. It
does not need typer, so it runs on machines with little more than PyTorch."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from torso.audit.verdict import audit
from torso.config import Config

SETS = (
    *("data.clients=200", "data.partition=iid", "model.body=mlp", "train.fraction=0.2", "train.local_epochs=1"),
    *("train.batch_size=10", "train.weighting=uniform", "privacy.delta=1e-5", "privacy.clip=0.5"),
)


def main(file: str, noise: str, how: str = "") -> None:
    config = Config.load(None, [*SETS, f"train.rounds={os.environ.get('ROUNDS', '10')}", f"privacy.noise={noise}"])
    claimed = float(how) if how not in ("", "last") else 0.0
    runs = int(os.environ.get("RUNS", "256"))
    found = audit(config, runs, 32, "last" if how == "last" else "all", claimed_noise=claimed)
    path = Path(file)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found.as_json(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join([path.stem, *found.lines(), f"{found.setting['seconds']} s", ""]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
