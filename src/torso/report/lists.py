"""What exists, read from the registries."""

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
    return [{"name": name, "about": summary(thing)} for name, thing in sorted(registry.items())]


def list_methods() -> list[dict[str, Any]]:
    """Every method with what makes it what it is; bytes are of a participant in a round, on 4convNet."""
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
    """`train=body share=body`: the choices that make the method what it is."""
    words = []
    for axis, value in method.choices().items():
        if axis == "train":
            words.append("train=" + ",".join(p.part + (f"×{p.epochs}" if p.epochs else "") for p in value))
        elif axis == "share":
            words.append(f"share={value.part}" + (" rest=reset" if value.rest == "reset" else ""))
        elif axis in AXES:
            options = axis_to_config(AXES[axis], value)
            name = options.pop("name")
            usual = axis_to_config(AXES[axis], type(value)())
            changed = {k: v for k, v in options.items() if v != usual.get(k)}
            words.append(f"{axis}={name}" + (f"({', '.join(changed)})" if changed else ""))
        else:
            words.append(f"{axis}={value}")
    return " ".join(words) or "–"


def list_axes() -> list[dict[str, Any]]:
    """Every choice on every axis that is a registered class, with its options and their defaults."""
    return [
        {"axis": f"`{registry.key}`", "choice": f"`{name}`", "options": _options(registry, cls), "about": summary(cls)}
        for registry in AXES.values()
        for name, cls in sorted(registry.items())
    ]


def list_attacks() -> list[dict[str, Any]]:
    return [
        {"name": name, "options": _options(attacks, cls), "about": summary(cls)}
        for name, cls in sorted(attacks.items())
    ]


def _options(registry: Registry[Any], cls: type[Any]) -> str:
    """The options of a registered class, with their defaults."""
    options = axis_to_config(registry, cls())
    del options["name"]
    return ", ".join(f"`{key}` = {json.dumps(value)}" for key, value in options.items())


_TRIED: tuple[Input, ...] = (Pixels(3, 32, 32), Pixels(1, 28, 28), Pixels(1, 8, 8), Floats((100,)), Tokens(128, 10_000))


def list_models() -> list[dict[str, Any]]:
    """Every body, with its size for the first of the usual inputs that it takes; then those of other libraries."""
    return [*(_model(name) for name in sorted(bodies)), *map(_family, families)]


def _family(name: str) -> dict[str, Any]:
    """The bodies of a library, whose sizes nobody knows before one is chosen."""
    unknown = dict.fromkeys(("for", "features", "body_parameters", "blocks"), "–")
    takes = " or ".join(kind.many for kind in getattr(families[name], "takes", (Pixels,)))
    return {"name": f"{name}/NAME", "takes": takes, **unknown, "about": summary(families[name])}


def _model(name: str) -> dict[str, Any]:
    input, body = _made(name) or (None, None)
    return {
        "name": name,
        "takes": " or ".join(kind.many for kind in kinds_of(bodies[name])),
        "for": "–" if input is None else input.words,
        "features": "–" if body is None else body.features,
        "body_parameters": "–" if body is None else sum(p.numel() for p in body.parameters()),
        "blocks": "–" if body is None else len(body.blocks),
        "about": summary(bodies[name]),
    }


def _made(name: str) -> tuple[Input, Body] | None:
    for input in _TRIED:
        with suppress(RequestError), torch.device("meta"):
            return input, make_body(name, input)
    return None
