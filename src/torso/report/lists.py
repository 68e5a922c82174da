"""Lists of methods, networks and other choices as rows, read from the registries."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import torch

from torso.data.inputs import Floats, Input, Pixels, Tokens
from torso.errors import RequestError
from torso.learn.attacks import attacks
from torso.methods import AXES, Method, methods
from torso.methods.parse import axis_to_config
from torso.nets import Body, bodies
from torso.nets.bodies import families, kinds_of
from torso.nets.build import make_body
from torso.registry import Registry, cited, plain, summary
from torso.report.anatomy import anatomy


def list_registry(registry: Registry[Any]) -> list[dict[str, Any]]:
    """A row for each entry of a registry: its name and a summary."""
    return [{"name": name, "about": summary(thing)} for name, thing in sorted(registry.items())]


def list_methods() -> list[dict[str, Any]]:
    """A row for each method. Bytes are per participant and round, on 4convNet."""
    rows = []
    for name, m in sorted(methods.items()):
        found = anatomy(m)
        rows.append(
            {
                "name": name,
                "paper": m.paper or "–",
                "definition": ", ".join(cited(m.about)) or "–",
                "differs_from_fedavg": axes_in_words(m),
                "travels": found.travels,
                "bytes_down": found.bytes_down,
                "bytes_up": found.bytes_up,
                "client_keeps": found.keeps,
                "about": plain(m.about),
            }
        )
    return rows


def axes_in_words(method: Method) -> str:
    """The choices in which the method differs from FedAvg, such as `train=body share=body`; "–" if there are none."""
    words = []
    for axis, value in method.choices().items():
        if axis == "train":
            words.append("train=" + ",".join(p.part + (f"×{p.epochs}" if p.epochs else "") for p in value))
        elif axis == "share":
            words.append(f"share={value.part}" + (" rest=reset" if value.rest == "reset" else ""))
        elif axis in AXES:
            options = axis_to_config(AXES[axis], value)
            name = options.pop("name")
            defaults = axis_to_config(AXES[axis], type(value)())
            changed = {k: v for k, v in options.items() if v != defaults.get(k)}
            words.append(f"{axis}={name}" + (f"({', '.join(changed)})" if changed else ""))
        else:
            words.append(f"{axis}={value}")
    return " ".join(words) or "–"


def list_axes() -> list[dict[str, Any]]:
    """A row for each registered choice on each axis, with its options and their defaults."""
    return [
        {"axis": f"`{registry.key}`", "choice": f"`{name}`", "options": _options(registry, cls), "about": summary(cls)}
        for registry in AXES.values()
        for name, cls in sorted(registry.items())
    ]


def list_attacks() -> list[dict[str, Any]]:
    """A row for each attack, with its options and their defaults."""
    return [
        {"name": name, "options": _options(attacks, cls), "about": summary(cls)}
        for name, cls in sorted(attacks.items())
    ]


def _options(registry: Registry[Any], cls: type[Any]) -> str:
    """The options of a registered class, with their defaults."""
    options = axis_to_config(registry, cls())
    del options["name"]
    return ", ".join(f"`{key}` = {json.dumps(value)}" for key, value in options.items())


# inputs that are tried in this order to find a size that a body accepts
_TRIED: tuple[Input, ...] = (Pixels(3, 32, 32), Pixels(1, 28, 28), Pixels(1, 8, 8), Floats((100,)), Tokens(128, 10_000))


def list_models() -> list[dict[str, Any]]:
    """A row for each body, with its size for the first common input that it accepts; then the other libraries."""
    return [*(_model(name) for name in sorted(bodies)), *map(_family, families)]


def _family(name: str) -> dict[str, Any]:
    """The row of another library. Its bodies have no size here, because the user chooses one by name."""
    unknown = dict.fromkeys(("for", "features", "body_parameters", "blocks"), "–")
    takes = " or ".join(kind.many for kind in getattr(families[name], "takes", (Pixels,)))
    return {"name": f"{name}/NAME", "takes": takes, **unknown, "about": summary(families[name])}


def _model(name: str) -> dict[str, Any]:
    made = _made(name)
    sizes: dict[str, Any] = dict.fromkeys(("for", "features", "body_parameters", "blocks"), "–")
    if made is not None:
        input, body = made
        sizes = {
            "for": input.words,
            "features": body.features,
            "body_parameters": sum(p.numel() for p in body.parameters()),
            "blocks": len(body.blocks),
        }
    takes = " or ".join(kind.many for kind in kinds_of(bodies[name]))
    return {"name": name, "takes": takes, **sizes, "about": summary(bodies[name])}


def _made(name: str) -> tuple[Input, Body] | None:
    """The first common input that the body accepts, and the body for it (without memory); None if it accepts none."""
    for input in _TRIED:
        with suppress(RequestError), torch.device("meta"):
            return input, make_body(name, input)
    return None
