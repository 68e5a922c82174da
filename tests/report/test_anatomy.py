"""What `torso methods show` says of a method is what the method does."""

from __future__ import annotations

import json

from tests.conftest import Torso

from torso.methods import methods
from torso.report.anatomy import class_counts


def test_class_counts_leave_with_class_sums_and_what_else_is_of_classes() -> None:
    told = {name for name, method in methods.items() if class_counts(method, "mlp") != "stay with the client"}
    asks = {name for name, method in methods.items() if type(method.start).__name__ == "ClassMeans"}
    assert told == asks | {"fedproto", "fedpac", "pfedfda", "creff"}  # their statistics are of single classes
    assert {"fedncm", "fedncm-ft"} <= told


def test_the_rules_of_a_method_say_whether_class_counts_leave(torso: Torso) -> None:
    said = {name: json.loads(torso("methods", "show", name, "--json").out) for name in ("fedncm", "fedrod-hyper")}
    assert said["fedncm"]["class counts"] == "are sent with the class sums, once, before the first round"
    assert said["fedrod-hyper"]["class counts"] == "stay with the client"
