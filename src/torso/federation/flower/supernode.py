"""`python -m torso.federation.flower.supernode …`: Flower's SuperNode, with Flower's flags and shorter waits."""

from __future__ import annotations

import os

from torso.federation.flower.children import die_with_parent
from torso.federation.flower.patches import give_up_what_has_ended, quicken

UNCHANGED = "TORSO_FLOWER_UNCHANGED"  # environment variable; 1: Flower's own waits, for bench/federation_floor.py


def main() -> None:
    die_with_parent()
    give_up_what_has_ended()
    if os.environ.get(UNCHANGED) != "1":
        quicken()
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()


if __name__ == "__main__":
    main()
