"""A client's part of one run: its states, and the models that requests are about."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file, save_file

from torso.errors import RequestError, TorsoError
from torso.federation.protocol import Request, RequestHeader, digest
from torso.federation.versions import ClientStateFiles
from torso.nets import Tensors
from torso.personal.store import ClientState
from torso.results.files import replace_file
from torso.results.model_file import SUFFIX
from torso.runs.exchange import misfit
from torso.runs.messages import Told, by_part
from torso.runs.site import ServerSnapshot, Site


class MissingTensors(TorsoError):
    """Raised if a request has the digest of tensors that this client does not have: the server must send them."""

    def __init__(self, digests: Iterable[str]) -> None:
        self.digests = tuple(digests)
        super().__init__(f"tensors {', '.join(self.digests)} are not here")


@dataclass
class ClientRun:
    """This client's part of one run."""

    site: Site
    versions: ClientStateFiles  # its states after each round
    folder: Path
    classes: tuple[str, ...]  # names

    @property
    def sums_only(self) -> bool:
        """Whether this client sends uploads only as parts of a secure sum."""
        return self.site.job.config.run.flower.secure.kind != "none"

    def held(self, header: RequestHeader) -> ClientState:
        """The client's state after the last round in which its reply counted; empty at the start of a new stage."""
        stage = self.site.job.stage(header.round)
        return self.versions.at(header.since if header.since >= stage.first else 0)

    def known(self, request: Request, part: str, wanted: str, names: Iterable[str]) -> Tensors:
        """The tensors with the digest `wanted`; "": none.

        They are those of the initial model named `names`, those in this request, or those of an earlier request, which
        are in a file. If they are none of these, `MissingTensors` is raised."""
        if not wanted:
            return {}
        model = self.site.job.model
        names = tuple(names)
        if wanted == digest(model, names):
            return {name: model[name] for name in names}
        path = self.folder / f"known-{wanted}{SUFFIX}"
        sent = request.part(part)
        if sent:
            if wrong := misfit(sent, model):
                raise RequestError(f"the server sent {wrong}")
            if digest(sent) != wanted:
                raise RequestError(f"the server sent {part} tensors that are not those it names")
            self.folder.mkdir(parents=True, exist_ok=True)
            replace_file(path, lambda temporary: save_file(sent, temporary))
            return sent
        if not path.is_file():
            raise MissingTensors([wanted])
        found = {name: tensor.clone() for name, tensor in load_file(path).items()}
        if digest(found) != wanted:
            raise MissingTensors([wanted])
        return found

    def hear(self, request: Request) -> Told:
        """The `Told` of a request, completed with the tensors that do not travel."""
        message = request.message()
        stage = self.site.job.stage(message.numbers.round)
        origin = self.known(request, "origin", request.header.origin, stage.moving)
        return self.site.hear(message, self.model(request), origin or None)

    def model(self, request: Request) -> Tensors:
        """The whole model of a request: the tensors in it, and those that the client should have already."""
        model = self.site.job.model
        travels = by_part(request.tensors).get("model", {})
        if wrong := misfit(travels, model):
            raise RequestError(f"the server sent {wrong}")
        rest = (name for name in model if name not in travels)
        whole = {**self.known(request, "base", request.header.base, rest), **travels}
        return {name: whole[name] for name in model}

    def standing(self, request: Request) -> ServerSnapshot:
        return ServerSnapshot(request.header.round, self.hear(request), request.part("shown"))
