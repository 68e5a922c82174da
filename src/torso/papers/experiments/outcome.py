"""Whether the end of a run says something about the method, or only about the machine."""

from __future__ import annotations

from torso.results.result import Result


def is_divergence(why: str) -> bool:
    """Whether a message says that training diverged, rather than that the machine failed."""
    return "non-finite" in why


def is_final(result: Result | Exception | None) -> bool:
    """Whether the result is one of the method: the run finished or diverged. Otherwise the machine failed."""
    return isinstance(result, Result) and (result.ok or is_divergence(result.status))
