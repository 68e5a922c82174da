"""What somebody must know of a trained model who has nothing else of its run. n samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from torso.data.images import Labelled, as_images, as_samples
from torso.data.inputs import Floats, Known, Pixels, Tokens
from torso.data.pictures import as_stored
from torso.data.texts import Texts
from torso.data.tokenise import are_texts, padded
from torso.data.tokenizers import tokenizer_of
from torso.data.wants import Tokenizer
from torso.errors import RequestError
from torso.kinds import Count, CountOrZero, Many
from torso.nets.lora import Lora


@dataclass(frozen=True)
class EncoderCard:
    """The encoder that a model stands on. `mean`, `std`: of its features, by which the model standardises them."""

    body: str
    weights: str  # `model.encoder_weights`; "": they were drawn
    digest: str  # checksum of its tensors
    mean: Many[float]
    std: Many[float]

    @property
    def features(self) -> Floats:
        """What the model takes of it."""
        return Floats((len(self.mean),), self.mean, self.std)


@dataclass(frozen=True)
class Card:
    """`kind`: the generic model, a client's personal one, the one it holds before that, or one of a client that came
    later; `client`: whose, by its name where the data name clients, else by its number."""

    method: str
    dataset: str
    body: str
    head: Mapping[str, Any]  # the axis `method.head`: its name and options
    head_bias: bool
    norm: Literal["default", "batch", "running"]
    classes: Count
    input: Annotated[Known, Field(discriminator="kind")]  # the kind of sample, with mean and std where it has any
    batch_statistics: bool  # whether BatchNorm goes by the batch: then an answer depends on the company
    kind: Literal["generic", "personal", "held", "newcomer"]
    torso: str  # version
    client: CountOrZero | str | None = None
    class_names: tuple[str, ...] = ()  # in the order of the logits, where the run knew them
    tokenizer_file: str = field(default="", repr=False)  # content of the body's tokenizer.json, where it has one
    calibrated: CountOrZero = 0  # on how many samples, where BatchNorm got its statistics after training
    lora: Lora | None = None  # of the body, where it has adapters
    encoder: EncoderCard | None = None  # what stands before the body: `input` is what the encoder takes
    answers: str = ""  # what a call says, where the network has two heads of which one does not answer alone

    def __post_init__(self) -> None:
        self.input.check_constants()
        if self.encoder is not None:
            self.encoder.features.check_constants()
        if len(self.class_names) not in (0, self.classes):
            raise RequestError(
                f"there are {len(self.class_names)} class_names for {self.classes} classes. "
                "Expected: a name for each class, or none"
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the classes; numbers where the run knew no names."""
        return self.class_names or tuple(map(str, range(self.classes)))

    @property
    def reader(self) -> str:
        """The network that reads samples, as the config names it."""
        return f"model.body = {self.body!r}" if self.encoder is None else f"model.encoder = {self.encoder.body!r}"

    @property
    def tokenizer(self) -> Tokenizer | None:
        """What turns texts into the model's token ids; None where nobody knows."""
        kind, whose = self.input, f"the model of {self.reader}"
        if not isinstance(kind, Tokens):
            return None
        return tokenizer_of(kind.tokenizer, self.tokenizer_file, kind.vocabulary, kind.pad, kind.length, whose)

    def samples(self, where: str, samples: Any, labels: Any) -> Labelled:
        """Labelled samples of unknown origin, which must fit the model; `where` is how a message calls them."""
        if isinstance(self.input, Pixels):
            found: Labelled = as_images(where, samples, labels)
            self.input.accept(where, samples)
        else:
            found = as_samples(where, self.input.accept(where, samples), labels)
        strange = [label for label in found.labels.tolist() if not 0 <= label < self.classes]
        if strange:
            raise RequestError(f"{where}: label {strange[0]} is not a class. Expected: 0 to {self.classes - 1}")
        return found

    @property
    def taken(self) -> Known:
        """The kind of input that the network itself takes: samples, or the features that an encoder makes of them."""
        return self.input if self.encoder is None else self.encoder.features

    def prepare(self, samples: Any, device: torch.device, encode: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """Samples as the network's input [n, *]: as in evaluation, never augmented; `encode`: what the encoder makes of
        stored samples, where there is one."""
        stored = self.stored(samples, device)
        return self.look(stored if self.encoder is None or encode is None else encode(stored))

    def look(self, stored: Tensor) -> Tensor:
        """What the network takes of stored samples, or of features of an encoder."""
        every = torch.arange(len(stored), device=stored.device).unsqueeze(0)
        return self.taken.lens(stored.device).look(stored, every)[0]

    def stored(self, samples: Any, device: torch.device) -> Tensor:
        """Samples of unknown origin as their kind stores them."""
        if isinstance(self.input, Pixels):
            samples = as_stored(self.input, samples)
        elif isinstance(self.input, Tokens) and are_texts(samples) and (tokenizer := self.tokenizer) is not None:
            samples = padded(Texts().accept("texts", samples).tolist(), self.input, tokenizer).ids
        return torch.from_numpy(self.input.accept(self.input.noun, samples)).to(device)
