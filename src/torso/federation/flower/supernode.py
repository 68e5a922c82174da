"""`python -m torso.federation.flower.supernode …`: Flower's SuperNode, with its own flags, which looks more often."""

from __future__ import annotations

import os

from torso.federation.flower.children import die_with_parent
from torso.federation.flower.quick import give_up_what_has_ended, quicken

UNCHANGED = "TORSO_FLOWER_UNCHANGED"  # = 1: with the waits that Flower has; bench/federation_floor.py compares


def main() -> None:
    die_with_parent()
    give_up_what_has_ended()
    if os.environ.get(UNCHANGED) != "1":
        quicken()
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()


if __name__ == "__main__":
    main()
