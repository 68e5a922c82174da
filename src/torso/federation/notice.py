"""The notice for the user of a client: what a run sends from this machine, and what stays there."""

from __future__ import annotations

from torso.config import Config
from torso.data import Floats, Input, Pixels, Tokens
from torso.data.table_columns import Columns
from torso.learn.teachers import remembers
from torso.nets import Tensors
from torso.runs.job import Job
from torso.runs.stage import Stage
from torso.server.state import bytes_of
from torso.server.statistics import counted, words

_MOST = 10  # categories of a column that are listed


def what_leaves(job: Job, client: int, name: str) -> str:
    """The notice of a run. It is printed once, before the first round."""
    method = job.config.method.name
    late = client in job.roster.newcomers
    lines = [
        f"{name} comes to a run of {method} that has begun: it gets a model at the end. What this machine sends:"
        if late
        else f"{name} takes part in a run of {method}, {job.rounds} rounds. What this machine sends:",
        f"- so far: {_description(job.roster.input)}",
        *(["- nothing more"] if late else _while_it_runs(job, client)),
    ]
    stays = ["samples", "labels"]
    if not tells_class_counts(job):
        stays.append("class counts")
    stays += sorted({part for stage in job.plan for part in _kept(stage)})
    if not job.plan[-1].method.server.keeps_uploads:
        stays.append("its personal model")
    lines.append(f"What stays here: {', '.join(stays)}.")
    if job.privacy:
        lines.append(f"What others see of it: {_noised(job.config)}. The server sees what this machine sends.")
    return "\n".join(lines)


def what_columns_tell(columns: Columns) -> str:
    """The notice of what the server will learn about the columns of a table; "" if the data are no table."""
    numbers = [column.name for column in columns if not column.categories]
    parts = [f"{', '.join(numbers)} (numbers)"] if numbers else []
    for column in columns:
        if column.categories:
            names = [category or "missing" for category in column.categories]
            more = f", … {len(names)} in all" if len(names) > _MOST else ""
            parts.append(f"{column.name} ({', '.join(names[:_MOST])}{more})")
    return f"What the server is told of the columns: {'; '.join(parts)}" if parts else ""


def _noised(config: Config) -> str:
    key = "epsilon" if config.privacy.epsilon else "noise"
    return f"sums over clients, clipped and with noise (privacy.{key} = {getattr(config.privacy, key):g})"


def _description(input: Input) -> str:
    """What every client has sent already when it gets the terms of a run: its description (`description.py`)."""
    told = ["its name", "versions of Torso and torch", "names of its classes"]
    if isinstance(input, Floats) and input.names:
        told.append("names of its columns and their categories")
    told += [f"the kind of its samples ({input.words})", "their numbers for training and testing"]
    if not isinstance(input, Tokens):
        told.append(f"sums of their values and squares by {'channel' if isinstance(input, Pixels) else 'feature'}")
    told.append("what its files say of them all (name, mean and std), where they do")
    return ", ".join(told)


def _while_it_runs(job: Job, client: int) -> list[str]:
    """A line for each kind of message that a training client sends."""
    lines = []
    own = f"its number of training samples ({job.roster.sizes[client]}), its mean loss"
    counts = "which tell how many samples of each class it has"
    if job.config.run.flower.secure.kind != "none":
        own = "its mean loss, all masked: the server can open the sum over the participants, and no part of it"
        counts = "masked: the server can open the sum over all clients, with the number of samples of each class"
    for stage in job.plan:
        if asked := stage.method.start.declares(job.net, job.roster.classes):
            note = f", {counts}" if counted(asked) else ""
            lines.append(f"- before the first round: {words(asked)}{note}")
        if stage.rounds:
            rounds = "" if len(job.plan) == 1 else f" of {stage.method.name} (rounds {stage.first} to {stage.last})"
            masked = job.config.run.flower.secure.kind != "none"
            lines.append(f"- in a round{rounds} that it takes part in: {_uploads(stage, job.model, masked)}, {own}")
    if names := measured(job.config):
        lines.append(f"- when asked to measure: its accuracies ({', '.join(names)}), its number of test samples")
    return lines


def measured(config: Config) -> tuple[str, ...]:
    """The names of a run's measures, at its end and during training."""
    measure = config.measure
    return tuple(dict.fromkeys((*measure.names, *(measure.during if measure.every else ()))))


def asks_class_sums(job: Job) -> bool:
    """Whether the server asks for class sums before the first round."""
    return any(stage.method.start.declares(job.net, job.roster.classes) for stage in job.plan)


def tells_class_counts(job: Job) -> bool:
    """Whether the server learns which classes a client has, or how many samples of each."""
    asked = (stage.method.start.declares(job.net, job.roster.classes) for stage in job.plan)
    return any(map(counted, asked)) or any(counted(stage.declared()) for stage in job.plan)


def _uploads(stage: Stage, model: Tensors, masked: bool) -> str:
    """The parts of an upload, in words."""
    method = stage.method
    found = []
    if stage.travels:
        found.append(_sized("its " + _parts(stage), {name: model[name] for name in stage.travels}))
    if method.drift.sends:
        found.append(_sized("the change of its correction", {name: model[name] for name in stage.corrected}))
    for each in stage.declared().values():
        reveals = "their sum tells of all participants' classes" if masked else "which tell of its classes"
        note = f" ({reveals})" if each.counts else ""
        found.append(f"{each.meaning}{note}")
    found = list(dict.fromkeys(found))
    return ", ".join(found) or "no part of its model"


def _parts(stage: Stage) -> str:
    """The parts of the network that travel: `body`, `body and head`, `adapters`."""
    named = [_called(part, stage) for part in ("body", "head") if stage.travels & frozenset(stage.net.parts[part])]
    return " and ".join(named) or "shared part"


def _called(part: str, stage: Stage) -> str:
    """The name of a part in the notice: the body is called adapters if it has some, since only they learn."""
    return "adapters" if part == "body" and stage.net.body.lora is not None else part


def _kept(stage: Stage) -> list[str]:
    """What the client keeps between rounds and does not send, in words."""
    kept = [part for part in ("body", "head") if stage.keeps & frozenset(stage.net.parts[part])]
    named = [
        f"its own {_called(part, stage)}" if _whole(part, stage) else f"its own layers of the {part}" for part in kept
    ]
    if stage.method.server.keeps_uploads:
        named = []
    if stage.method.personal.keeps:
        named.append("a model of its own")
    if stage.method.drift.remembers:
        named.append("what its correction remembers")
    if remembers(stage.method.objective):
        named.append("the model that its last visit left")
    return named


def _whole(part: str, stage: Stage) -> bool:
    """Whether the client keeps all learned tensors of a part, not only some, such as norm layers."""
    return stage.moving & frozenset(stage.net.parts[part]) <= stage.keeps


def _sized(what: str, tensors: Tensors) -> str:
    return f"{what} ({len(tensors)} tensors, {bytes_of(tensors) / 1000:.1f} kB)"
