"""The arguments of `torso run`, parsed: a method, a config file, both, or neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torso.errors import RequestError, did_you_mean


def run_request(words: Sequence[str], sets: Sequence[str], say: Callable[[str], None]) -> tuple[Path | None, list[str]]:
    """The config file, if there is one, and the keys to set. A word that is an existing file is a config; any other
    word is the name of a method. `say` gets a hint if a file is named like a method."""
    from torso.methods import methods

    files = [word for word in words if word.endswith(".toml") or Path(word).is_file()]
    names = [word for word in words if word not in files]
    if len(files) > 1 or len(names) > 1:
        raise RequestError(
            f"torso run takes at most one METHOD and one CONFIG.toml, found: {' '.join(words)}. To run several "
            "methods: torso compare METHOD… [CONFIG.toml]"
        )
    for word in files:
        if word in methods:
            say(f"{word!r} is a file, so it is read as a config. The method of this name: --set method.name={word}")
    config = Path(files[0]) if files else None
    return config, [*(_method(name, sets) for name in names), *sets]


def _method(name: str, sets: Sequence[str]) -> str:
    """`method.name=NAME`; raises RequestError with a hint if there is no such method."""
    from torso.methods import methods

    if name not in methods and Path(name).is_dir():
        if not (Path(name) / "config.toml").exists():
            raise RequestError(
                f"{name!r} is a folder without a run (no config.toml). If it contains data, make a config for "
                f"them: torso data look {name} --out look"
            )
        raise RequestError(
            f"{name!r} is a folder. To run its config again: torso run {Path(name) / 'config.toml'}. To continue its "
            f"run: torso run --out {name} --resume"
        )
    if name not in methods:
        raise RequestError(
            f"{name!r} is neither a file nor a method{did_you_mean(name, methods)} List the methods: torso methods. "
            "Load your own: --plugin FILE.py"
        )
    other = [text for text in sets if text.partition("=")[0].strip() == "method.name"]
    if other:
        raise RequestError(f"the method is named twice: {name!r} and --set {other[-1]}. Leave one out.")
    return f"method.name={name}"
