"""What a run sends from a client's machine and what stays there, in words."""

from __future__ import annotations

from torso.nets import Tensors
from torso.runs.job import Job
from torso.runs.stages import Stage
from torso.server.state import bytes_of


def what_leaves(job: Job, client: int, name: str) -> str:
    """For the person at a client, once, before the first round."""
    config, roster = job.config, job.roster
    own = f"its number of training samples ({roster.sizes[client]}) and its mean loss"
    lines = [f"{name} takes part in a run of {config.method.name}, {job.rounds} rounds. What this machine sends:"]
    for stage in job.plan:
        asked, _ = stage.method.start.uploads(job.net, roster.classes)
        if asked != "nothing":
            lines.append(f"- before the first round: {asked}, which tell how many samples of each class it has")
        if stage.rounds:
            rounds = "" if len(job.plan) == 1 else f" of {stage.method.name} (rounds {stage.first} to {stage.last})"
            lines.append(f"- in a round{rounds} that it takes part in: {_uploads(stage, job.model)}, {own}")
    lines.append(
        f"- when asked to measure: its accuracies ({', '.join(config.measure.names)}) and its number of test samples"
    )
    kept = sorted({part for stage in job.plan for part in _kept(stage)})
    stays = ["samples", "labels", *([] if tells_class_counts(job) else ["class counts"]), *kept]
    lines.append(f"What stays here: {', '.join(stays)}.")
    return "\n".join(lines)


def tells_class_counts(job: Job) -> bool:
    """Whether the server learns how many samples of each class a client has."""
    return any(stage.method.start.uploads(job.net, job.roster.classes)[0] != "nothing" for stage in job.plan)


def _uploads(stage: Stage, model: Tensors) -> str:
    method = stage.method
    found = [_sized("its " + _parts(stage), {name: model[name] for name in stage.travels})] if stage.travels else []
    if method.drift.sends:
        found.append(_sized("the change of its correction", {name: model[name] for name in stage.corrected}))
    if method.personal.tells:
        found.append("how well the models of others do on its samples")
    return ", ".join(found) or "no part of its model"


def _parts(stage: Stage) -> str:
    """`body`, `body and head`: what of the network travels."""
    named = [part for part in ("body", "head") if stage.travels & frozenset(stage.net.parts[part])]
    return " and ".join(named) or "shared part"


def _kept(stage: Stage) -> list[str]:
    named = [f"its own {part}" for part in ("body", "head") if stage.keeps & frozenset(stage.net.parts[part])]
    if stage.method.server.keeps_uploads:
        named = []
    if stage.method.personal.keeps:
        named.append("a model of its own")
    if stage.method.drift.remembers:
        named.append("what its correction remembers")
    return named


def _sized(what: str, tensors: Tensors) -> str:
    return f"{what} ({len(tensors)} tensors, {bytes_of(tensors) / 1000:.1f} kB)"
