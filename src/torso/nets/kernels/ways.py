"""Which way a convolution of stacked clients is computed: forward, for the gradient of its input, and of its weight.

The choice depends on the layer's shape and the precision alone, never on a clock: the same run takes the same kernels,
so it gives the same bits on the same machine and software. Layers that were measured on an H200 stand in `table.py`,
which `bench/kernel_shapes.py --table` writes; the rules for others are read off the same measurement.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torso.nets.kernels import turned
from torso.nets.kernels.boxes import Tiling
from torso.nets.kernels.table import TABLE

Pass = Literal["forward", "back", "weight"]
Name = Literal["turned", "lines", "columns", "box", "gather"]


class Way(NamedTuple):
    """A module of this package, and its tiling where it has one."""

    name: Name
    how: Tiling | None = None

    def __str__(self) -> str:
        return self.name if self.how is None else f"{self.name}:{','.join(map(str, self.how))}"

    @classmethod
    def of(cls, text: str) -> Way:
        name, _, sizes = text.partition(":")
        return cls(name, Tiling(*map(int, sizes.split(","))) if sizes else None)  # type: ignore[arg-type]


class Layer(NamedTuple):
    """Channels and size of the map that comes out, as the pass sees it; `precision`: bf16, tf32 or ieee."""

    inputs: int
    outputs: int
    height: int
    width: int
    kernel: int
    stride: int
    precision: str
    boxed: bool  # whether the copy engine can serve it
    even: bool = True  # padding of K // 2 on every side

    def key(self, kind: Pass) -> str:
        """As the table has it."""
        shape = f"{self.inputs}>{self.outputs}@{self.height}x{self.width} k{self.kernel} s{self.stride}"
        return f"{kind} {self.precision} {shape}"


# tiles: pixels, outputs, inputs (of two bytes; of four, half as many), warps, stages, taps
_FORWARD = (
    *((128, 128, 64, 8, 4), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4)),
    *((128, 256, 64, 8, 4), (64, 128, 64, 4, 4), (256, 64, 64, 8, 4), (128, 64, 64, 4, 4), (128, 64, 64, 4, 3)),
)
_WEIGHT = (
    *((64, 128, 128, 8, 4), (64, 128, 128, 4, 3), (64, 256, 128, 8, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4)),
    *((64, 64, 64, 4, 4, 3), (128, 64, 64, 4, 3)),
)
_LINES = (
    *((32, 128, 128, 8, 4), (32, 128, 128, 4, 3), (32, 128, 256, 8, 4), (32, 128, 64, 8, 4, 3), (32, 128, 64, 4, 4)),
    *((32, 64, 64, 4, 4, 3), (32, 64, 64, 4, 4)),
)


EXACT: Literal["box", "columns"] = "box"  # forward in float32 (bench/looking.py tries both)


def candidates(kind: Pass, layer: Layer) -> list[Way]:
    """All ways that can compute a pass of a layer, for a measurement."""
    found = [Way("columns"), Way("box" if layer.boxed else "gather")]
    if not layer.boxed or layer.precision == "ieee":
        return found
    if kind != "weight":
        tiles = [Tiling(*t) for t in _FORWARD if (t[1] > 64) == (layer.outputs > 64)]
        narrow = 1 if layer.precision == "bf16" else 2
        return found + [
            Way("turned", t._replace(inputs=t.inputs // narrow)) for t in tiles if t.outputs <= max(64, layer.outputs)
        ]
    if layer.precision == "bf16":
        return found + [Way("turned", t) for t in (Tiling(*t) for t in _WEIGHT) if _suits(t, layer)]
    return found + [Way("lines", t) for t in (Tiling(*t) for t in _LINES) if layer.even and _divides(t, layer)]


def _divides(tile: Tiling, layer: Layer) -> bool:
    fits = tile.outputs <= max(64, layer.outputs) and tile.inputs <= max(64, layer.inputs)
    return fits and layer.kernel**2 % tile.taps == 0


def _suits(tile: Tiling, layer: Layer) -> bool:
    return _divides(tile, layer) and turned.fits(layer.height, layer.width, tile.pixels)


def way(kind: Pass, layer: Layer) -> Way:
    """The way that is taken: by the table where the layer was measured, else by the rules."""
    known = TABLE.get(layer.key(kind))
    if known is not None and (by := Way.of(known)) in candidates(kind, layer):
        return by
    if layer.precision == "ieee":
        by_columns = EXACT == "columns" and kind == "forward" and layer.inputs >= 16
        return Way("columns" if by_columns else "box" if layer.boxed else "gather")
    if layer.precision == "tf32x3" and layer.boxed and kind == "forward":
        return Way("turned", Tiling(128, 64, 32, 8, 2))  # each operand stands there twice
    if not layer.boxed:
        return Way("columns") if layer.inputs >= 16 and layer.stride > 1 else Way("gather")
    if kind == "weight":
        return _weight_way(layer)
    wide = layer.outputs > 64
    bytes_ = 64 if layer.precision == "bf16" else 32
    return Way("turned", Tiling(128, 128, bytes_, 8, 4) if wide else Tiling(256, 64, bytes_, 8, 4))


def _weight_way(layer: Layer) -> Way:
    if layer.height * layer.width <= 16:
        return Way("columns")
    small = min(layer.inputs, layer.outputs) <= 64
    if layer.precision == "tf32":
        tile = Tiling(32, 64, 64, 4, 4, 3) if small else Tiling(32, 128, 128, 8, 4)
        tile = tile if layer.kernel % tile.taps == 0 else tile._replace(taps=1)
        return Way("lines", tile) if layer.even else Way("box")
    tile = Tiling(64, 128, 64, 4, 4) if small else Tiling(64, 128, 128, 8, 4)
    return Way("turned", tile) if _suits(tile, layer) else Way("box")


def layer_of(
    kind: Pass,
    inputs: int,
    outputs: int,
    height: int,
    width: int,
    kernel: int,
    stride: int,
    padding: int,
    spare: int,
    precision: str,
    boxed: bool,
) -> Layer:
    """`inputs` and `outputs` are the layer's own; going back they change places."""
    if kind == "back":
        inputs, outputs = outputs, inputs
    even = 2 * padding + 1 == kernel and spare == 0
    return Layer(inputs, outputs, height, width, kernel, stride, precision, boxed, even)
