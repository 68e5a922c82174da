"""What a result says of itself."""

from __future__ import annotations

import math
from pathlib import Path

from torso.measure import Accuracy
from torso.results.result import Result
from torso.server.state import Cost


def test_a_result_is_a_few_lines_for_a_person() -> None:
    """60 and 80 have mean 70 and population deviation 10; 1.5 + 0.5 MB; a client without test data does not count."""
    found = Result(
        method="fedbabu",
        dataset="digits",
        model="mlp",
        seed=3,
        rounds=5,
        status="ok",
        accuracy={
            "personalized": Accuracy.over([60.0, 80.0]),
            "initial": Accuracy.over([50.0, math.nan]),
            "generic": Accuracy.over([44.44], per_client=False),
        },
        cost=Cost(bytes_up=1_500_000, bytes_down=500_000),
        seconds={"total": 2.04},
        folder=Path("runs/a"),
    )
    assert str(found).splitlines() == [
        "fedbabu on digits, mlp, seed 3, 5 rounds: ok",
        "  personalized  70.0 ± 10.0 (2 clients)",
        "  initial       50.0 ± 0.0 (1 client)",
        "  generic       44.4",
        "  2.0 MB sent, 2.0 s, folder runs/a",
    ]
    assert "seconds={'total': 2.04}" in repr(found)


def test_a_run_that_failed_says_why() -> None:
    failed = Result("fedavg", "digits", "mlp", 0, 0, "failed: the loss is not finite", {}, Cost(), {})
    assert str(failed).splitlines() == [
        "fedavg on digits, mlp, seed 0, 0 rounds: failed: the loss is not finite",
        "  0.0 MB sent, 0.0 s",
    ]
