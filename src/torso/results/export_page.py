"""The README.md of exported models: what they are and how to use them, with or without Torso."""

from __future__ import annotations

from collections.abc import Sequence

from torso.data.inputs import Floats, Input, Pixels
from torso.nets import Network
from torso.nets.bodies import bodies
from torso.nets.card import Card
from torso.nets.heads import heads
from torso.nets.network import card_of
from torso.results.encoder_file import encoder_name
from torso.results.model_file import FORMATS
from torso.results.portable import OUTPUT, Preprocessing, program_metadata

_USES = {
    "onnx": """## Without Torso: ONNX

```python
import json

import onnxruntime

session = onnxruntime.InferenceSession("{file}")
names = json.loads(session.get_modelmeta().custom_metadata_map["classes"])
logits = session.run(None, {{session.get_inputs()[0].name: {noun}}})[0]  # {noun}: {takes}
answers = [names[place] for place in logits.argmax(axis=1)]
```
""",
    "torch-export": """## Without Torso: PyTorch

```python
import json

import torch

told = {{"classes.json": ""}}
net = torch.export.load("{file}", extra_files=told).module()
names = json.loads(told["classes.json"])
logits = net(torch.as_tensor({noun}))  # {noun}: {takes}
answers = [names[place] for place in logits.argmax(dim=1)]
```
""",
    "safetensors": """## With Torso

```python
import torso

net = torso.load_model("{file}")  # an nn.Module in evaluation mode; net.card has what the metadata say
classes = net(net.prepare({noun})).argmax(dim=1)  # {noun}: {argument}
answers = [net.card.names[place] for place in classes]
```
""",
}

_PAGE = """# Models of {method} on {dataset}

{files}

`generic` is the server's model. `client-K`, or a file with a client's name, is that client's personal model.
`newcomer` is the model of a client that came later.

{uses}
## Input and output

{takes}

The output is logits [n, {classes}], one for each class, in this order: {names}.
The class with the largest logit is the answer. The softmax of the logits gives probabilities.
{statistics}
## The network

| | |
|---|---|
| body | `{body}`: {body_about} It gives {features} features. |
| head | `{head}`: {head_about} |
| BatchNorm | {norm} |
| input | {input} |
| weights | {weights:,} |
| trained by | {method}, torso {torso} |

{rebuild}

```text
{printed}
```
"""

_BY_BATCH = """
**BatchNorm of this network has no running statistics.** It uses the statistics of the batch that it is given. So an
answer depends on the other {noun} of the batch, and a single one is answered badly. Use batches like those in which
the model was measured{batch}. Or export without `--norm batch` on the machine that has the training data, or train with
`--set model.norm=running`.
"""


def page(
    net: Network, names: Sequence[str], *, preprocessing: Preprocessing = "inside", batch: int = 0, more: str = ""
) -> str:
    """The text of the page.

    `names`: the model files. `batch`: the largest batch size with which the run measured, or 0. `more`: text for the
    end of the page."""
    card = card_of(net)
    there = [kind for kind, suffix in FORMATS.items() if any(name.endswith(suffix) for name in names)]
    few = names if len(names) <= 6 else [*names[:3], "…", *names[-2:]]
    programs = [kind for kind in there if kind != "safetensors"]
    answers = f"\nAn answer is {card.answers}.\n" if card.answers else ""
    head_options = [f"{key} = {value}" for key, value in card.head.items() if key != "name"]
    text = _PAGE.format(
        method=card.method,
        dataset=card.dataset,
        files=f"{len(names)} file{'' if len(names) == 1 else 's'}: {', '.join(few)}.",
        uses="\n".join(_use(kind, names, card, preprocessing) for kind in _USES if kind in there),
        takes="\n\n".join(_takes(card, preprocessing, programs, "safetensors" in there)),
        classes=card.classes,
        names=", ".join(card.names),
        statistics=answers + _statistics(card, batch),
        body=card.body,
        body_about=_about(bodies.get(card.body)) or "a network of its owner's own.",
        features=net.body.features,
        head=", ".join([card.head["name"], *head_options]),
        head_about=_about(heads.get(card.head["name"])) or "a head of its owner's own.",
        norm=_norm(net, card),
        input=card.input.words,
        weights=sum(parameter.numel() for parameter in net.parameters()),
        torso=card.torso,
        rebuild=_rebuild(programs),
        printed=net,
    )
    return f"{text}\n{more}\n" if more else text


def _use(kind: str, names: Sequence[str], card: Card, preprocessing: Preprocessing) -> str:
    file = next(name for name in names if name.endswith(FORMATS[kind]))
    return _USES[kind].format(
        file=file, noun=card.input.noun, takes=_program_input(card, preprocessing), argument=card.input.argument
    )


def _program_input(card: Card, preprocessing: Preprocessing) -> str:
    """The dtype and shape that a program takes, in words."""
    kind = card.input
    if preprocessing == "inside" and isinstance(kind, Pixels | Floats):
        return kind.argument
    return f"{str(kind.given).removeprefix('torch.')} [n, {', '.join(map(str, kind.shape))}]"


def _takes(card: Card, preprocessing: Preprocessing, programs: Sequence[str], tensors: bool) -> list[str]:
    """Paragraphs about the input of the programs, and of the network itself if a safetensors file was written."""
    paragraphs = []
    if programs:
        inside = preprocessing == "inside" and isinstance(card.input, Pixels | Floats)
        how = "The file prepares them itself." if inside else f"Prepare them first: {card.input.preparation}."
        suffixes = " and ".join(FORMATS[kind] for kind in programs)
        keys = ", ".join(f"`{key}`" for key in program_metadata(card, preprocessing))
        paragraphs.append(
            f"The {suffixes} files take {card.input.noun} as {_program_input(card, preprocessing)}, any number n. {how}"
            f" Input name `{card.input.noun}`, output name `{OUTPUT}`. The metadata have {keys} as JSON."
        )
    if tensors:
        preparation = f"If you prepare {card.input.noun} yourself: {card.input.preparation}."
        paragraphs.append(f"`net.prepare` takes {card.input.argument}. {preparation}")
    if card.encoder is not None:
        file = f" It is in the file {encoder_name(card.encoder)}; keep it beside the others." if tensors else ""
        paragraphs.append(
            f"A frozen encoder, `{card.encoder.body}`, stands before the network. It turns {card.input.noun} into "
            f"{card.taken.words}; they are standardised with `mean` and `std` of the card's `encoder`.{file}"
        )
    return [*paragraphs, *_features(card.input)]


def _features(kind: Input) -> list[str]:
    """A paragraph about the order of the features, if they have names."""
    if not isinstance(kind, Floats) or not kind.names:
        return []
    text = f"The features are, in this order: {', '.join(kind.names)}."
    category = next((name for name in kind.names if "=" in name), "")
    if category:
        text += (
            f"\n`{category}` is 1 in a row of this category, otherwise 0. A missing category is one with nothing after "
            "the `=`. In place of a missing number put the mean."
        )
    return [text]


def _statistics(card: Card, batch: int) -> str:
    if not card.batch_statistics:
        return ""
    sizes = f" (the run's had up to {batch} {card.input.noun} of one client)" if batch else ""
    return _BY_BATCH.format(batch=sizes, noun=card.input.noun)


def _norm(net: Network, card: Card) -> str:
    if card.batch_statistics:
        return "the statistics of the batch, in evaluation too"
    if card.calibrated:
        return "running statistics, calibrated after training (the card has on how many samples: `calibrated`)"
    return "running statistics of training" if any("running_mean" in name for name in net.state_dict()) else "none"


def _rebuild(programs: Sequence[str]) -> str:
    if programs:
        return (
            "Without Torso, use the .onnx or .pt2 files: they hold the whole computation. The safetensors files hold "
            "tensors by the names of these modules:"
        )
    return (
        "To use a model without Torso, export it again with `--format onnx,torch-export`: those files hold the whole "
        "computation. A safetensors file holds tensors by the names of these modules:"
    )


def _about(thing: object) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((getattr(thing, "__doc__", None) or "").split("\n\n")[0].split())
    return text if text.endswith(".") or not text else f"{text}."
