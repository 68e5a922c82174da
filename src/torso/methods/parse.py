"""Methods in and out of config files: a preset's name, then a value or a table for any axis.

`{"name": "fedbabu", "drift": "proximal"}` replaces an axis; `{"name": "fedprox", "drift": {"mu": 1.0}}` adjusts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from torso.errors import RequestError, did_you_mean
from torso.learn.phases import Phase
from torso.methods.catalogue import methods
from torso.methods.method import AXES, Method, Share
from torso.registry import Registry

_KEYS = ("name", "train", "share", *AXES, "server_data", "shared_momentum")


def method_from_config(value: Any) -> Method:
    """A Method, a preset's name, or a table of axes over a preset."""
    if isinstance(value, Method):
        return value
    tree = {"name": value} if isinstance(value, str) else value
    if not isinstance(tree, Mapping):
        raise RequestError(f"method = {value!r} is neither a name nor a table. Example: method.name = 'fedbabu'")
    preset = methods[_text("method.name", tree.get("name", "fedavg"))]
    axes: dict[str, Any] = {}
    for key, choice in tree.items():
        if key not in _KEYS:
            raise RequestError(f"method.{key} is not a key{did_you_mean(key, _KEYS)} Keys here: {', '.join(_KEYS)}")
        if key in AXES:
            axes[key] = _axis(f"method.{key}", AXES[key], choice, getattr(preset, key))
        elif key == "train":
            axes[key] = _phases("method.train", choice)
        elif key == "share":
            axes[key] = _share(choice, preset.share)
        elif key == "server_data":
            axes[key] = _text("method.server_data", choice)
        elif key == "shared_momentum":
            axes[key] = _typed("method.shared_momentum", bool, choice)
    return replace(preset, **axes)


def method_to_config(method: Method) -> dict[str, Any]:
    """The complete table: what `method_from_config` reads back as the same method."""
    tree: dict[str, Any] = {
        "name": method.name if method.name in methods else "fedavg",
        "train": [asdict(phase) for phase in method.train],
        "share": asdict(method.share),
        "server_data": method.server_data,
        "shared_momentum": method.shared_momentum,
    }
    for axis, registry in AXES.items():
        tree[axis] = axis_to_config(registry, getattr(method, axis))
    return tree


def axis_to_config(registry: Registry[Any], value: Any) -> dict[str, Any]:
    """An axis value as its registered name and its fields."""
    for name, cls in registry.items():
        if type(value) is cls:
            return {"name": name, **(asdict(value) if is_dataclass(value) and not isinstance(value, type) else {})}
    raise RequestError(
        f"{registry.key} = {value!r} is not registered, so no config file can name it. Register its class."
    )


def _axis(key: str, registry: Registry[Any], choice: Any, current: Any) -> Any:
    if isinstance(choice, str):
        return registry[choice]()
    if not isinstance(choice, Mapping):
        raise RequestError(f"{key} = {choice!r} is neither a name nor a table. Accepted: {', '.join(sorted(registry))}")
    options = dict(choice)
    if "name" in options:
        cls = registry[_text(f"{key}.name", options.pop("name"))]
    else:
        cls, options = type(current), {**asdict(current), **options}
    known = [f.name for f in fields(cls)] if is_dataclass(cls) else []
    for name in options:
        if name not in known:
            keys = f"Keys here: {', '.join(known)}" if known else "It has no options."
            raise RequestError(f"{key}.{name} is not a key{did_you_mean(name, known)} {keys}")
    if "phases" in options:
        options["phases"] = _phases(f"{key}.phases", options["phases"])
    return _typed(key, cls, options)


def _phases(key: str, choice: Any) -> tuple[Phase, ...]:
    if isinstance(choice, Mapping) and set(choice) == {"name"}:
        choice = choice["name"]
    if isinstance(choice, str):
        return (Phase(choice),)
    return tuple(_typed(key, tuple[Phase, ...], choice))


def _share(choice: Any, current: Share) -> Share:
    if isinstance(choice, str):
        return Share(choice)
    options = dict(_typed("method.share", dict[str, Any], choice))
    if "name" in options:  # --set method.share=body --set method.share.rest=reset
        options["part"] = options.pop("name")
    known = [f.name for f in fields(Share)]
    for name in options:
        if name not in known:
            raise RequestError(
                f"method.share.{name} is not a key{did_you_mean(name, known)} Keys here: {', '.join(known)}"
            )
    shared: Share = _typed("method.share", Share, {**asdict(current), **options})
    return shared


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise RequestError(f"{key} = {value!r} is not a name.")
    return value


def _typed(key: str, kind: Any, value: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join([key, *(str(step) for step in first["loc"])])
        message = first["msg"][:1].lower() + first["msg"][1:]
        raise RequestError(f"{where} = {first.get('input')!r} is not accepted: {message}.") from None
