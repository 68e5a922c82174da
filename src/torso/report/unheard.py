"""Clients that took part in no round. If the method keeps a model for each client, theirs is still the initial model,
and it is measured like the others. So a report says how many there are."""

from __future__ import annotations

from collections.abc import Sequence

from torso.errors import RequestError
from torso.report.records import Record


def in_words(runs: Sequence[Record]) -> str:
    """A sentence about such clients in the runs of one experiment (all seeds); "" if there are none."""
    found = [(count, unheard(run)) for run in runs if (count := trained(run)) and keeps_models(run)]
    if not any(missing for _, missing in found):
        return ""
    missing = " and ".join(dict.fromkeys(str(missing) for _, missing in found))
    return (
        f"{missing} of {found[0][0]} clients took part in no round, so their own models are the initial ones. More "
        "rounds or a larger train.fraction would reach them."
    )


def trained(run: Record) -> int:
    """The number of clients that may train; 0 if the folder does not say."""
    if not run.history:
        return 0
    late = run.came_later if run.is_federation else run.setting("data.new_clients", 0)
    return max(0, run.clients - late) if isinstance(late, int) else 0


def unheard(run: Record) -> int:
    """The number of clients that may train but are in no line of the history."""
    heard = {str(client) for line in run.history for client in line.get("participants") or ()}
    return max(0, trained(run) - len(heard))


def keeps_models(run: Record) -> bool:
    """Whether the method keeps a model for each client; False if it comes from a plugin that is not loaded."""
    from torso.methods.parse import axis_from_config
    from torso.personal import personals

    try:
        choice = run.config["method"]["personal"]
        return bool(axis_from_config("method.personal", personals, choice, None).keeps)
    except (RequestError, KeyError, TypeError):
        return False
