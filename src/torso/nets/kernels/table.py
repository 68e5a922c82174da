"""The fastest way of layers that were measured; written by `bench/kernel_shapes.py --table`."""

from __future__ import annotations

TABLE: dict[str, str] = {}
