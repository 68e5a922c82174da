"""`Card`: how a model was trained and what it takes, for the user of a model without its run. n samples."""

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
from torso.kinds import Count, CountOrZero, FailFastTuple
from torso.nets.lora import Lora


@dataclass(frozen=True)
class EncoderCard:
    """The encoder whose features a model takes.

    `mean`, `std`: the statistics by which the model standardises these features."""

    body: str
    weights: str  # `model.encoder_weights`; "": they were drawn
    digest: str  # checksum of its tensors
    mean: FailFastTuple[float]
    std: FailFastTuple[float]

    @property
    def features(self) -> Floats:
        """The encoder's features as a kind of input."""
        return Floats((len(self.mean),), self.mean, self.std)


@dataclass(frozen=True)
class Card:
    """How a model was trained, what it takes, and whose it is.

    `kind`: the generic model, a client's personal model, the model that the client held before it was personalised
    ("held"), or the model of a client that came later ("newcomer"). `client`: the client's name if the data name
    clients, else its number."""

    method: str
    dataset: str
    body: str
    head: Mapping[str, Any]  # the axis `method.head`: its name and options
    head_bias: bool
    norm: Literal["default", "batch", "running"]
    classes: Count
    input: Annotated[Known, Field(discriminator="kind")]  # the kind of sample, with mean and std if it has any
    batch_statistics: bool  # whether BatchNorm uses the batch's statistics: an answer then depends on the whole batch
    kind: Literal["generic", "personal", "held", "newcomer"]
    torso: str  # version of Torso that trained the model
    client: CountOrZero | str | None = None
    class_names: tuple[str, ...] = ()  # in the order of the logits; empty if the run did not know them
    tokenizer_file: str = field(default="", repr=False)  # content of the body's tokenizer.json, if it has one
    calibrated: CountOrZero = 0  # samples from which BatchNorm got its statistics after training; 0: not calibrated
    lora: Lora | None = None  # the body's adapters, if it has any
    encoder: EncoderCard | None = None  # the encoder before the body, if there is one: `input` is what it takes
    answers: str = ""  # what a call returns, if the network mixes the answers of two heads

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
        """The names of the classes; their numbers if the run knew no names."""
        return self.class_names or tuple(map(str, range(self.classes)))

    @property
    def reader(self) -> str:
        """The setting that names the network which takes the samples: the encoder if there is one, else the body."""
        return f"model.body = {self.body!r}" if self.encoder is None else f"model.encoder = {self.encoder.body!r}"

    @property
    def tokenizer(self) -> Tokenizer | None:
        """The tokenizer that turns texts into the model's token ids; None if it is not known."""
        kind = self.input
        if not isinstance(kind, Tokens):
            return None
        whose = f"the model of {self.reader}"
        return tokenizer_of(kind.tokenizer, self.tokenizer_file, kind.vocabulary, kind.pad, kind.length, whose)

    def samples(self, where: str, samples: Any, labels: Any) -> Labelled:
        """The user's labelled samples, checked to fit the model. `where`: how messages name them."""
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
        """The kind of input that the network itself takes: samples, or the encoder's features of them."""
        return self.input if self.encoder is None else self.encoder.features

    def prepare(self, samples: Any, device: torch.device, encode: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """The network's input [n, *] from the user's samples, as in evaluation, never augmented.

        `encode`: makes features of stored samples, if there is an encoder."""
        stored = self.stored(samples, device)
        if self.encoder is not None and encode is not None:
            stored = encode(stored)
        return self.look(stored)

    def look(self, stored: Tensor) -> Tensor:
        """The network's input [n, *] from stored samples, or from the features of an encoder."""
        every = torch.arange(len(stored), device=stored.device).unsqueeze(0)
        return self.taken.lens(stored.device).look(stored, every)[0]

    def stored(self, samples: Any, device: torch.device) -> Tensor:
        """The user's samples in the form in which their kind of input stores them."""
        if isinstance(self.input, Pixels):
            samples = as_stored(self.input, samples)
        elif isinstance(self.input, Tokens) and are_texts(samples) and (tokenizer := self.tokenizer) is not None:
            samples = padded(Texts().accept("texts", samples).tolist(), self.input, tokenizer).ids
        return torch.from_numpy(self.input.accept(self.input.noun, samples)).to(device)
