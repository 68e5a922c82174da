"""Methods from and to config tables: the name of a preset, and a value or a table for any axis.

`{"name": "fedbabu", "drift": "proximal"}` replaces the choice on an axis; `{"name": "fedprox", "drift": {"mu": 1.0}}`
changes its options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar, get_type_hints

from pydantic import TypeAdapter, ValidationError

from torso.errors import RequestError, did_you_mean
from torso.learn.phases import Phase
from torso.methods.catalogue import methods
from torso.methods.method import AXES, Method, Share
from torso.registry import Registry

T = TypeVar("T")
_CUSTOM = "custom"  # name of a Method that is made in Python and is no preset
_SIMPLE = ("server_data", "meta_data", "shared_momentum")
_PLAIN = (str, float, int, bool, type(None))
_KEYS = ("name", "train", "share", *AXES, *_SIMPLE)


def method_from_config(value: Any) -> Method:
    """The method of a config value: a Method, the name of a preset, or a table of changes to a preset."""
    if isinstance(value, Method):
        return value
    tree = {"name": value} if isinstance(value, str) else value
    if not isinstance(tree, Mapping):
        raise RequestError(f"method = {value!r} is neither a name nor a table. Example: method.name = 'fedbabu'")
    _check_keys("method", tree, _KEYS)
    name = _typed("method.name", str, tree.get("name", "fedavg"))
    preset = Method() if name == _CUSTOM else methods[name]
    axes: dict[str, Any] = {}
    for key, choice in tree.items():
        if key in AXES:
            axes[key] = axis_from_config(f"method.{key}", AXES[key], choice, getattr(preset, key))
        elif key == "train":
            axes[key] = _phases("method.train", choice)
        elif key == "share":
            axes[key] = _share(choice, preset.share)
        elif key != "name":
            axes[key] = _typed(f"method.{key}", type(getattr(preset, key)), choice)
    return replace(preset, **axes)


def method_to_config(method: Method) -> dict[str, Any]:
    """The complete table of a method, from which `method_from_config` makes the same method."""
    tree: dict[str, Any] = {
        "name": method.name if method.name in methods else _CUSTOM,
        "train": [_as_table(phase) for phase in method.train],
        "share": _as_table(method.share),
        **{key: getattr(method, key) for key in _SIMPLE},
    }
    for axis, registry in AXES.items():
        tree[axis] = axis_to_config(registry, getattr(method, axis))
    return tree


def axis_to_config(registry: Registry[Any], value: Any) -> dict[str, Any]:
    """The table of a choice on an axis: its registered name and its options."""
    for name, cls in registry.items():
        if type(value) is cls:
            return {"name": name, **_as_table(value)}
    raise RequestError(
        f"{registry.key} = {value!r} is not registered, so no config file can name it. Register its class."
    )


def _as_table(value: Any) -> dict[str, Any]:
    """As `asdict`, but in a tenth of its time if all fields are plain values, because it does not copy deeply. A table
    of a paper needs thousands of configs."""
    if not is_dataclass(value) or isinstance(value, type):
        return {}
    table = {each.name: getattr(value, each.name) for each in fields(value)}
    return table if all(type(entry) in _PLAIN for entry in table.values()) else asdict(value)


def axis_from_config(key: str, registry: Registry[Any], choice: Any, current: Any) -> Any:
    """A registered choice from its name or a table. A table without a name changes options of the current choice."""
    if isinstance(choice, str):
        return registry[choice]()
    if not isinstance(choice, Mapping):
        raise RequestError(f"{key} = {choice!r} is neither a name nor a table. Accepted: {', '.join(sorted(registry))}")
    options = dict(choice)
    if "name" not in options:
        return _build(key, type(current), {**vars(current), **options})
    return _build(key, registry[_typed(f"{key}.name", str, options.pop("name"))], options)


def _share(choice: Any, current: Share) -> Share:
    if isinstance(choice, str):
        return Share(choice)
    options = dict(_typed("method.share", dict[str, Any], choice))
    if "name" in options:  # --set method.share=body --set method.share.rest=reset
        return _build("method.share", Share, {"part": options.pop("name"), **options})
    return _build("method.share", Share, {**vars(current), **options})


def _phases(key: str, choice: Any) -> tuple[Phase, ...]:
    if isinstance(choice, Mapping) and set(choice) == {"name"}:
        choice = choice["name"]
    if isinstance(choice, str):
        return (Phase(choice),)
    if not isinstance(choice, list | tuple):
        raise RequestError(
            f"{key} = {choice!r} is neither a part nor a list of phases. Example: all, body, head, blocks:2"
        )
    return tuple(p if isinstance(p, Phase) else _build(f"{key}.{i}", Phase, p) for i, p in enumerate(choice))


def _build(key: str, cls: type[T], options: Any) -> T:
    """A frozen dataclass from a table of options. Refuses unknown keys, and values of a wrong type or out of limits."""
    if not isinstance(options, Mapping):
        raise RequestError(f"{key} = {options!r} is not a table of options.")
    made: Any = cls
    _check_keys(key, options, _options(made), _spelt(key, made))
    values: dict[str, Any] = {}
    for name, value in options.items():
        if name == "phases":
            values[name] = _phases(f"{key}.phases", value)
        else:
            values[name] = _checked(f"{key}.{name}", _adapter_of(made, name), value)
    return cls(**values)


def _check_keys(key: str, options: Mapping[str, Any], known: Sequence[str], choice: str = "It") -> None:
    """Refuse an unknown option, with the known ones and with the choices of the axis that have it."""
    for name in options:
        if name not in known:
            keys = f"Keys here: {', '.join(known)}" if known else f"{choice} has no options."
            owners = [chosen for chosen, kind in Registry.every.get(key, {}).items() if name in _options(kind)]
            hint = f" {key} = {' or '.join(map(repr, owners))} has it." if owners else ""
            raise RequestError(f"{key}.{name} is not a key{did_you_mean(name, known)} {keys}{hint}")


def _spelt(key: str, cls: Any) -> str:
    """A choice as it stands in a config, `method.drift = 'none'`; the key alone if it is not registered."""
    return next((f"{key} = {name!r}" for name, kind in Registry.every.get(key, {}).items() if kind is cls), key)


def _options(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)] if is_dataclass(kind) else []


def _typed(key: str, kind: Any, value: Any) -> Any:
    return _checked(key, _adapter(kind), value)


@lru_cache(maxsize=64)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """The validator of a type. It is cached: making it takes far longer than using it, and a table of a paper reads
    thousands of configs."""
    return TypeAdapter(kind)


@lru_cache(maxsize=1024)
def _adapter_of(cls: type[Any], field: str) -> TypeAdapter[Any]:
    """The validator of a field of a dataclass."""
    return TypeAdapter(get_type_hints(cls, include_extras=True)[field])


def _checked(key: str, adapter: TypeAdapter[Any], value: Any) -> Any:
    """The value, if the validator accepts it; refuses it under its key if not."""
    try:
        return adapter.validate_python(value, strict=True)
    except ValidationError as error:
        message = error.errors()[0]["msg"]
        raise RequestError(f"{key} = {value!r} is not accepted: {message[:1].lower()}{message[1:]}.") from None
