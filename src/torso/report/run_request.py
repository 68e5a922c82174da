"""What `torso run` is asked for: a method, a config file, both, or neither."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from torso.errors import RequestError, did_you_mean


def run_request(words: Sequence[str], sets: Sequence[str], say: Callable[[str], None]) -> tuple[Path | None, list[str]]:
    """The config file, if any, and the keys to set. A word that names an existing file is that file; any other word is
    the name of a method."""
    from torso.methods import methods

    files = [word for word in words if word.endswith(".toml") or Path(word).is_file()]
    names = [word for word in words if word not in files]
    if len(files) > 1 or len(names) > 1:
        raise RequestError(
            f"torso run takes one METHOD and one CONFIG.toml at most, found: {' '.join(words)}. To run several "
            "methods: torso compare METHOD… [CONFIG.toml]"
        )
    for word in files:
        if word in methods:
            say(f"{word!r} is a file, so it is read as a config. The method of this name: --set method.name={word}")
    config = Path(files[0]) if files else None
    return config, [*(_method(name, sets) for name in names), *sets]


def _method(name: str, sets: Sequence[str]) -> str:
    from torso.methods import methods

    if name not in methods and Path(name).is_dir():
        if not (Path(name) / "config.toml").exists():
            raise RequestError(
                f"{name!r} is a folder and holds no run (no config.toml). If it holds data, this writes a config for "
                f"them: torso data look {name} --out look"
            )
        raise RequestError(
            f"{name!r} is a folder. Run its config again: torso run {Path(name) / 'config.toml'}. Continue its run: "
            f"torso run --out {name} --resume"
        )
    if name not in methods:
        raise RequestError(
            f"{name!r} is neither a file nor a method{did_you_mean(name, methods)} Methods: torso methods. Your own: "
            "--plugin FILE.py"
        )
    other = [text for text in sets if text.partition("=")[0].strip() == "method.name"]
    if other:
        raise RequestError(f"the method is named twice: {name!r} and --set {other[-1]}. Leave one out.")
    return f"method.name={name}"
