"""What a method sends and keeps, and its rules in words. Everything is read from the method itself.

Byte counts depend on the network. The default is 4convNet on 32×32 images of ten classes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from torso.config import Config
from torso.data import Pixels, Roster
from torso.learn.teachers import remembers
from torso.methods import AXES, Method, Share, methods
from torso.methods.bibliography import papers
from torso.methods.parse import axis_to_config
from torso.nets import Network, build, part_names
from torso.nets.shifted import SHIFT
from torso.nets.simplex import CLASSIFIER, PROJECTION
from torso.registry import cited, plain
from torso.runs.cost import download_of, schema_bytes, upload_schema
from torso.runs.stage import Stage
from torso.runs.stages import stages
from torso.runs.telling import tell
from torso.server import NoStatistics
from torso.server.state import ServerState, bytes_of
from torso.server.statistics import counted, size, words

# parts by which tensors are named, the largest first
_PARTS = ("all", "body", "head", "personal", "norm", PROJECTION, CLASSIFIER, SHIFT, "lora", "lora.a", "lora.b")


@dataclass(frozen=True)
class Anatomy:
    """What a method sends and keeps on one network. Bytes are per participant and round, in the method's last stage."""

    travels: str  # in words, such as "body + control variates"
    keeps: str  # what stays with a client between rounds, in words
    bytes_down: int
    bytes_up: int


def anatomy(method: Method, body: str = "conv4", classes: int = 10) -> Anatomy:
    """What the method sends and keeps on images of 32×32 pixels."""
    config = Config(method=method, model={"body": body})
    net = build(body, classes, (3, 32, 32), config.method.head, lora=config.lora)
    stage = stages(config, net)[-1]
    if stage.rounds == 0:
        declared = method.start.declares(net, classes)
        return Anatomy(f"{words(declared)}, once" if declared else "nothing", "nothing", 0, size(declared))
    if not stage.plan(stage.first):
        return Anatomy("nothing", "nothing", 0, 0)
    return Anatomy(_travels(stage), _keeps(stage), *_bytes(stage, net))


def _bytes(stage: Stage, net: Network) -> tuple[int, int]:
    """Bytes (down, up) of a participant's messages, in a round before which every client has uploaded a model."""
    clients = 100
    model = {name: tensor.detach() for name, tensor in net.state_dict().items()}
    held = {k: {name: model[name] for name in stage.travels} for k in range(clients)}
    sizes = np.ones(clients, dtype=np.int64)
    roster = Roster("everybody", 1, Pixels(1, 1, 1), sizes, np.zeros(0, dtype=np.int64))
    told = tell(stage, ServerState(model, uploads=held), roster, [0], 2, seed=0)
    return bytes_of(download_of(told, 0)), schema_bytes(upload_schema(stage, told, 0))


def _travels(stage: Stage) -> str:
    """What the messages of a round hold, in words."""
    method = stage.method
    if not stage.meets:
        return "nothing"
    found = [_named(stage.net, stage.travels)] if stage.travels else []
    if method.drift.sends:
        found.append("control variates")
    if method.drift.follows:
        found.append("mean gradient (down)")
    if method.drift.gathers:
        found.append("mean of models")
    if method.personal.declares(1):
        found.append("others' models")
    if type(method.statistics) is not NoStatistics:
        declared = method.statistics.declares(stage.net, stage.net.classes)
        found += dict.fromkeys(each.meaning for each in declared.values())
    return " + ".join(found)


def _keeps(stage: Stage) -> str:
    """What a client keeps between rounds, in words."""
    method = stage.method
    found = [_named(stage.net, stage.keeps)] if stage.keeps else []
    if method.drift.remembers:
        found.append("drift memory")
    if method.personal.keeps:
        found.append("own model")
    if remembers(method.objective):
        found.append("its previous model")
    if method.step.notes(0):
        found.append("weighing net")
    if method.personal.notes(0, 1, stage.net):
        found.append("notes")
    return ", ".join(found) or "nothing"


def _named(net: Network, names: frozenset[str]) -> str:
    """The largest network parts that together hold exactly these tensors; "N tensors" if no parts do."""
    parts = [part for part in _PARTS if part in net.parts]
    for part in parts:
        if names and names == frozenset(part_names(net, part)):
            return part
    found: dict[str, frozenset[str]] = {}
    for part in parts[1:]:
        held = frozenset(part_names(net, part))
        if held and held <= names and not any(held <= other for other in found.values()):
            found[part] = held
    if frozenset().union(*found.values()) == names:
        return " + ".join(found)
    depth = len(net.body.blocks)
    blocks = [f"blocks:{j}" for j in range(1, depth + 1) if frozenset(part_names(net, f"blocks:{j}")) == names]
    return blocks[0] if blocks else f"{len(names)} tensors"


def explain(name: str) -> list[tuple[str, str]]:
    """A method's rules in words as (title, text), axis by axis: the docstrings of the choices that it makes."""
    method = methods[name]
    found = anatomy(method)
    lines = [("method", f"{name}: {plain(method.about)}"), ("from", _origin(method.paper))]
    if sections := cited(method.about):
        lines.append(("definition", f"docs/definitions.md, {', '.join(sections)}"))
    if method.start != Method().start:
        lines.append(("start", _rule("start", method)))
    lines += [("train", _training(method)), ("share", _sharing(method.share))]
    lines += [(axis, _rule(axis, method)) for axis in ("head", "objective", "step", "drift", "server", "personal")]
    if method.statistics != Method().statistics:
        lines.append(("statistics", _rule("statistics", method)))
    if method.server_data != "none":
        lines.append(("server_data", f"after each round the server trains {method.server_data} on its own data"))
    if method.meta_data:
        lines.append(("meta_data", "clients train on the server's balanced images too"))
    lines += [("travels", found.travels), ("client keeps", found.keeps), ("class counts", class_counts(method))]
    size = f"down {found.bytes_down:,}, up {found.bytes_up:,} (per participant and round, 4convNet, 10 classes)"
    return [*lines, ("bytes", size)]


def _origin(label: str) -> str:
    """The label of a paper, with the full reference if docs/papers.md has it."""
    paper = papers().get(label)
    return f"{label}: {paper.words}" if paper else label or "–"


def class_counts(method: Method, body: str = "conv4", classes: int = 10) -> str:
    """A sentence that says whether the server learns a client's classes or its number of samples of each class."""
    net = build(body, classes, (3, 32, 32), method.head)
    if counted(sent := method.statistics.declares(net, classes)):
        told = {name: each for name, each in sent.items() if each.counts}
        return f"are sent with the {words(told)}, in every round"
    if counted(sent := method.start.declares(net, classes)):
        return f"are sent with the {words(sent)}, once, before the first round"
    return "stay with the client"


def _training(method: Method) -> str:
    each = [
        f"{phase.part} for {phase.epochs or 'the local'} epoch{'' if phase.epochs == 1 else 's'}"
        + (f" at {phase.lr} of the rate" if phase.lr != 1 else "")
        for phase in method.train
    ]
    return "clients train nothing" if method.train[0].part == "none" else ", then ".join(each)


def _sharing(share: Share) -> str:
    if share.part == "none":
        return "nothing travels; every client continues with its own model"
    said = f"{share.part} travels, as far as clients train it"
    return said + ("; other parts are reset after local training" if share.rest == "reset" else "")


def _rule(axis: str, method: Method) -> str:
    """The choice on an axis: its name, its options, and the first sentence of its docstring."""
    value = getattr(method, axis)
    options: dict[str, Any] = axis_to_config(AXES[axis], value)
    name = options.pop("name")
    if options.get("phases") == ():  # nothing is fine-tuned, so the rate has no effect
        options = {key: option for key, option in options.items() if key not in ("phases", "factor", "rate")}
    if options.get("clip") == 0:  # 0: gradients are not clipped
        del options["clip"]
    shown = ", ".join(f"{key}={_short(option)}" for key, option in options.items())
    return f"{name}{f' ({shown})' if shown else ''}: {plain(type(value).__doc__ or '')}"


def _short(option: Any) -> Any:
    """An option as it is shown: phases by the names of their parts."""
    if isinstance(option, tuple | list):
        return "+".join(str(phase["part"]) for phase in option)
    return option
