"""Chooses the kernels of a convolution of stacked clients: forward, and for the gradients of its input and its weight.

The choice depends on the layer's shape and the precision only, never on measured time: the same run uses the same
kernels, so it gives the same bits on the same machine and software. Layers that were measured on an H200 are in
`table.py`, which `bench/kernel_shapes.py --table` writes. The rules for other layers come from the same measurement.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from torso.nets.kernels import turned
from torso.nets.kernels.boxes import Tiling
from torso.nets.kernels.table import TABLE

Pass = Literal["forward", "back", "weight"]
Name = Literal["turned", "lines", "columns", "box", "gather"]


class Way(NamedTuple):
    """A way to compute a pass: the name of a module of this package, and its tiling if it has one."""

    name: Name
    how: Tiling | None = None

    def __str__(self) -> str:
        return self.name if self.how is None else f"{self.name}:{','.join(map(str, self.how))}"

    @classmethod
    def of(cls, text: str) -> Way:
        """The inverse of `str`."""
        name, _, sizes = text.partition(":")
        return cls(name, Tiling(*map(int, sizes.split(","))) if sizes else None)  # type: ignore[arg-type]


class Layer(NamedTuple):
    """The sizes of a convolution as one of its passes sees them."""

    inputs: int
    outputs: int
    height: int  # of the layer's output; for `back`, of its input
    width: int
    kernel: int
    stride: int
    precision: str  # bf16, tf32, tf32x3 or ieee
    boxed: bool  # whether the copy engine can load what it needs (`boxes.boxable`)
    even: bool = True  # whether the padding is K // 2 on every side
    samples: int = 4  # of a client; not in the key

    def key(self, kind: Pass) -> str:
        """The key of the layer's pass in the table."""
        shape = f"{self.inputs}>{self.outputs}@{self.height}x{self.width} k{self.kernel} s{self.stride}"
        return f"{kind} {self.precision} {shape}"


# tilings: pixels, outputs, inputs (for numbers of two bytes; half as many for four bytes), warps, stages, taps
_FORWARD = (
    *((128, 128, 64, 8, 4), (128, 128, 64, 8, 3), (128, 128, 64, 4, 3), (256, 128, 64, 8, 3), (256, 128, 64, 8, 4)),
    *((128, 256, 64, 8, 4), (64, 128, 64, 4, 4), (256, 64, 64, 8, 4), (128, 64, 64, 4, 4), (128, 64, 64, 4, 3)),
)
_WEIGHT = (
    *((64, 128, 128, 8, 4), (64, 128, 128, 4, 3), (64, 256, 128, 8, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4)),
    *((64, 64, 64, 4, 4, 3), (128, 64, 64, 4, 3), (32, 128, 128, 4, 4)),
)
_LINES = (
    *((32, 128, 128, 8, 4), (32, 128, 128, 4, 3), (32, 128, 256, 8, 4), (32, 128, 64, 8, 4, 3), (32, 128, 64, 4, 4)),
    *((32, 64, 64, 4, 4, 3), (32, 64, 64, 4, 4)),
)


EXACT: Literal["box", "columns"] = "box"  # the way of a forward pass in float32 (bench/looking.py tries both)


def candidates(kind: Pass, layer: Layer) -> list[Way]:
    """All ways that can compute a pass of a layer."""
    found = [Way("columns"), Way("box" if layer.boxed and layer.stride == 1 else "gather")]
    if not layer.boxed or layer.precision == "ieee":
        return found
    if kind != "weight":
        tiles = [Tiling(*t) for t in _FORWARD if (t[1] > 64) == (layer.outputs > 64)]
        narrow = 1 if layer.precision == "bf16" else 2
        if layer.stride == 2:
            tiles = [t for t in tiles if t.warps == 4 and (kind == "forward" or _halves(t, layer))]
        return found + [
            Way("turned", t._replace(inputs=t.inputs // narrow)) for t in tiles if t.outputs <= max(64, layer.outputs)
        ]
    if layer.precision == "bf16":
        return found + [Way("turned", t) for t in (Tiling(*t) for t in _WEIGHT) if _suits(t, layer)]
    lined = layer.even and layer.stride == 1 and (layer.width % 4 == 0 or layer.kernel == 1)
    return found + [Way("lines", t) for t in (Tiling(*t) for t in _LINES) if lined and _divides(t, layer)]


def _divides(tile: Tiling, layer: Layer) -> bool:
    """Whether the tile is not larger than the layer, and its taps divide the layer's."""
    fits = tile.outputs <= max(64, layer.outputs) and tile.inputs <= max(64, layer.inputs)
    return fits and layer.kernel**2 % tile.taps == 0


def _suits(tile: Tiling, layer: Layer) -> bool:
    """Whether a tiling can compute the gradient of the weight."""
    fits = turned.fits(layer.height, layer.width, tile.pixels)
    whole = layer.stride == 1 or turned.whole(layer.height, layer.width, layer.samples, tile.pixels)
    return fits and whole and _divides(tile, layer)


def _halves(tile: Tiling, layer: Layer) -> bool:
    """Whether a tiling can compute the gradient of the input with stride 2."""
    return turned.fits(layer.height // 2, layer.width // 2, tile.pixels)


def way(kind: Pass, layer: Layer) -> Way:
    """The way in which a pass of a layer is computed: by the table if the layer was measured, else by the rules."""
    known, possible = TABLE.get(layer.key(kind)), candidates(kind, layer)
    if known is not None and (by := Way.of(known)) in possible:
        return by
    if layer.precision == "tf32x3" and layer.boxed and kind == "forward":
        return Way("turned", Tiling(128, 64, 32, 8, 2))  # each operand is stored twice
    wanted = _weight_rule(layer) if kind == "weight" else _rule(kind, layer)
    return next((by for by in wanted if by in possible), possible[1])


def _rule(kind: Pass, layer: Layer) -> list[Way]:
    """The best ways for the forward pass and the gradient of the input, best first.

    Many small tiles, with four warps each, are faster than few large ones."""
    if layer.precision == "ieee":
        return [Way("columns")] if EXACT == "columns" and kind == "forward" and layer.inputs >= 16 else []
    wide = 64 if layer.precision == "bf16" else 32
    pixels = 64 if layer.height * layer.width <= 16 and layer.outputs > 64 else 128
    tile = Tiling(pixels, 128 if layer.outputs > 64 else 64, wide, 4, 4 if pixels == 64 else 3)
    first = [Way("columns")] if layer.height * layer.width <= 4 and layer.inputs > 64 else [Way("turned", tile)]
    return first + ([Way("columns")] if layer.stride > 1 and kind == "back" and layer.inputs >= 16 else [])


def _weight_rule(layer: Layer) -> list[Way]:
    """The best ways for the gradient of the weight, best first."""
    if layer.precision == "ieee":
        return []
    columns = [Way("columns")] if layer.inputs >= 16 else []
    small, few = min(layer.inputs, layer.outputs) <= 64, layer.height * layer.width
    if layer.precision == "tf32":
        line = Way("lines", Tiling(32, 64, 64, 4, 4, 3 if layer.kernel == 3 else 1))
        line = line if small else Way("lines", Tiling(32, 128, 128, 8, 4))
        return columns if layer.stride > 1 or few <= 16 else [line]
    tiles = [Tiling(64, 128, 64, 4, 4), Tiling(64, 64, 64, 4, 4)] if small else [Tiling(64, 128, 128, 4, 3)]
    found = [Way("turned", tile) for tile in tiles]
    return (columns if few <= 4 else []) + found + (columns if layer.stride > 1 else [])


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
    samples: int = 4,
) -> Layer:
    """A layer as one of its passes sees it. `inputs` and `outputs` are those of the layer itself; for `back` they
    change places. `spare`: see `conv.convolution`."""
    if kind == "back":
        inputs, outputs = outputs, inputs
    even = 2 * padding + 1 == kernel and spare == 0
    return Layer(inputs, outputs, height, width, kernel, stride, precision, boxed, even, samples)
