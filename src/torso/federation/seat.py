"""A client in one run: what it holds, and the model that a letter speaks of."""

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
    """The server speaks of tensors that this client does not have: it has to send them along."""

    def __init__(self, digests: Iterable[str]) -> None:
        self.digests = tuple(digests)
        super().__init__(f"tensors {', '.join(self.digests)} are not here")


@dataclass
class Seat:
    """This client in one run."""

    site: Site
    versions: Versions
    folder: Path
    classes: tuple[str, ...]

    @property
    def sums_only(self) -> bool:
        """Whether the server gets nothing of this client but in a secure sum."""
        return self.site.job.config.run.flower.secure.kind != "none"

    def held(self, question: Question) -> ClientState:
        """What the client holds, as the last round that counted left it. A new stage begins with nothing."""
        stage = self.site.job.stage(question.round)
        return self.versions.at(question.since if question.since >= stage.first else 0)

    def known(self, letter: Letter, part: str, wanted: str, names: Iterable[str]) -> Tensors:
        """Tensors by their digest: those that the run begins with, or those that the server has sent."""
        model, names = self.site.job.model, tuple(names)
        if not wanted or wanted == digest(model, names):
            return {name: model[name] for name in names} if wanted else {}
        path, sent = self.folder / f"known-{wanted}{SUFFIX}", letter.part(part)
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
        """What the letter tells, with all that does not travel."""
        message = letter.message()
        stage = self.site.job.stage(message.numbers.round)
        origin = self.known(letter, "origin", letter.question.origin, stage.moving)
        return self.site.hear(message, self.model(letter), origin or None)

    def model(self, letter: Letter) -> Tensors:
        """The whole model that a letter is about: what travels in it, and what the client should have already."""
        model, travels = self.site.job.model, by_part(letter.tensors).get("model", {})
        if wrong := misfit(travels, model):
            raise RequestError(f"the server sent {wrong}")
        rest = (name for name in model if name not in travels)
        whole = {**self.known(letter, "base", letter.question.base, rest), **travels}
        return {name: whole[name] for name in model}

    def standing(self, letter: Letter) -> Standing:
        return Standing(letter.question.round, self.hear(letter), letter.part("shown"))
