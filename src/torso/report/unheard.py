"""Clients that took part in no round: where a method keeps a model for each client, theirs is the one that training
began with, and it is measured like the others."""

from __future__ import annotations

from collections.abc import Sequence

from torso.errors import RequestError
from torso.report.records import Record


def in_words(runs: Sequence[Record]) -> str:
    """A sentence on the runs of one experiment, of all seeds; "" where there is nothing to say."""
    found = [(count, unheard(run)) for run in runs if (count := trained(run)) and keeps_models(run)]
    if not any(missing for _, missing in found):
        return ""
    missing = " and ".join(dict.fromkeys(str(missing) for _, missing in found))
    return (
        f"{missing} of {found[0][0]} clients took part in no round, and the models of their own are those that "
        "training began with. More rounds or a larger train.fraction reach them."
    )


def trained(run: Record) -> int:
    """How many clients may train; 0 where the folder does not say."""
    if not run.history:
        return 0
    late = run.came_later if run.is_federation else run.setting("data.new_clients", 0)
    return max(0, run.clients - late) if isinstance(late, int) else 0


def unheard(run: Record) -> int:
    """How many of these no line of the history names."""
    heard = {str(client) for line in run.history for client in line.get("participants") or ()}
    return max(0, trained(run) - len(heard))


def keeps_models(run: Record) -> bool:
    """Whether a visit leaves a client a model of its own; False for a method of a plugin that is not here."""
    from torso.methods.parse import axis_from_config
    from torso.personal import personals

    try:
        choice = run.config["method"]["personal"]
        return bool(axis_from_config("method.personal", personals, choice, None).keeps)
    except (RequestError, KeyError, TypeError):
        return False
