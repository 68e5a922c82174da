"""A client's part of one run: its states, and the models that requests are about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from torso.errors import RequestError, TorsoError
from torso.federation.letters import Letter, Question, digest
from torso.federation.versions import Versions
from torso.nets import Tensors
from torso.personal.store import ClientState
from torso.results.files import replace_file
from torso.results.model_file import SUFFIX
from torso.runs.exchange import misfit
from torso.runs.messages import Told, by_part
from torso.runs.site import Site, Standing


class Lacks(TorsoError):
    """Raised if a request has the digest of tensors that this client does not have: the server must send them."""

    def __init__(self, digests: Iterable[str]) -> None:
        self.digests = tuple(digests)
        super().__init__(f"tensors {', '.join(self.digests)} are not here")


@dataclass
class Seat:
    """This client's part of one run."""

    site: Site
    versions: Versions  # its states after each round
    folder: Path
    classes: tuple[str, ...]  # names

    @property
    def sums_only(self) -> bool:
        """Whether this client sends uploads only as parts of a secure sum."""
        return self.site.job.config.run.flower.secure.kind != "none"

    def held(self, question: Question) -> ClientState:
        """The client's state after the last round in which its reply counted; empty at the start of a new stage."""
        stage = self.site.job.stage(question.round)
        return self.versions.at(question.since if question.since >= stage.first else 0)

    def known(self, letter: Letter, part: str, wanted: str, names: Iterable[str]) -> Tensors:
        """The tensors with the digest `wanted`; "": none.

        They are those of the initial model named `names`, those in this request, or those of an earlier request, which
        are in a file. If they are none of these, `Lacks` is raised."""
        if not wanted:
            return {}
        model = self.site.job.model
        names = tuple(names)
        if wanted == digest(model, names):
            return {name: model[name] for name in names}
        path = self.folder / f"known-{wanted}{SUFFIX}"
        sent = letter.part(part)
        if sent:
            if wrong := misfit(sent, model):
                raise RequestError(f"the server sent {wrong}")
            if digest(sent) != wanted:
                raise RequestError(f"the server sent {part} tensors that are not those it names")
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda temporary: save_file(sent, temporary))
            return sent
        if not path.is_file():
            raise Lacks([wanted])
        found = {name: tensor.clone() for name, tensor in load_file(path).items()}
        if digest(found) != wanted:
            raise Lacks([wanted])
        return found

    def hear(self, letter: Letter) -> Told:
        """The `Told` of a request, completed with the tensors that do not travel."""
        message = letter.message()
        stage = self.site.job.stage(message.numbers.round)
        origin = self.known(letter, "origin", letter.question.origin, stage.moving)
        return self.site.hear(message, self.model(letter), origin or None)

    def model(self, letter: Letter) -> Tensors:
        """The whole model of a request: the tensors in it, and those that the client should have already."""
        model = self.site.job.model
        travels = by_part(letter.tensors).get("model", {})
        if wrong := misfit(travels, model):
            raise RequestError(f"the server sent {wrong}")
        rest = (name for name in model if name not in travels)
        whole = {**self.known(letter, "base", letter.question.base, rest), **travels}
        return {name: whole[name] for name in model}

    def standing(self, letter: Letter) -> Standing:
        return Standing(letter.question.round, self.hear(letter), letter.part("shown"))
