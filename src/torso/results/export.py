"""A finished run's models in a folder: a file for each, and a page that says how to use them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torso.data.sources.arrays import read_npz
from torso.errors import RequestError
from torso.nets import Network
from torso.nets.card import Card
from torso.results.checkpoint import write_text
from torso.results.model_file import SUFFIX, save_model
from torso.results.result import Result

PAGE = "README.md"
_NEW = (
    "an .npz file with images (uint8 [n, height, width] or [n, height, width, channels]), or with samples where they "
    "are no images, and labels (integers [n])"
)


def export(
    result: Result,
    out: Path,
    *,
    generic: bool = True,
    clients: Sequence[int] = (),
    personal: bool = True,
    newcomer: Network | None = None,
) -> list[Path]:
    """Write the models that are asked for into a folder that is empty or not there yet; the page comes last."""
    check_empty(out)
    written, card = [], None
    for name, net in _models(result, generic, clients, personal, newcomer):
        written.append(save_model(net, out / f"{name}{SUFFIX}"))
        card = net.card
    if card is None:
        raise RequestError("there is nothing to export: neither the generic model nor a client was asked for.")
    write_text(out / PAGE, page(card, result, [path.name for path in written]))
    return written


def check_empty(out: Path) -> None:
    try:
        free = not out.exists() or (out.is_dir() and not any(out.iterdir()))
    except OSError as error:  # a name that is too long, a folder that nobody may look into
        raise RequestError(f"--out {str(out)!r} cannot be written: {error.strerror}. Give another folder.") from None
    if not free:
        what = "is not empty" if out.is_dir() else "is a file"
        raise RequestError(f"--out {str(out)!r} {what}. Give a folder that is empty or not there yet.")


def chosen_clients(text: str, clients: int) -> list[int]:
    """`all`, or numbers with commas between them."""
    if text.strip() == "all":
        return list(range(clients))
    try:
        return [int(number) for number in text.split(",")] if text.strip() else []
    except ValueError:
        raise RequestError(
            f"--clients {text!r} is no list of clients. Accepted: all, or numbers from 0 to {clients - 1}, such as 0,3"
        ) from None


def read_samples(path: Path) -> tuple[Any, Any]:
    """The samples and labels of somebody new; a Result checks whether they fit."""
    arrays = read_npz(path, _NEW, parts=())
    what = "samples" if "samples" in arrays else "images"
    missing = [name for name in (what, "labels") if name not in arrays]
    if missing:
        raise RequestError(
            f"{path} has no {', '.join(missing)} (it has {', '.join(arrays) or 'nothing'}). Expected: {_NEW}"
        )
    return arrays[what], arrays["labels"]


def _models(
    result: Result, generic: bool, clients: Sequence[int], personal: bool, newcomer: Network | None
) -> Iterator[tuple[str, Network]]:
    own = result.networks(clients, personal=personal)  # refuses unknown clients before anything is written
    if generic:
        yield "generic", result.network()
    yield from ((f"client-{client}", net) for client, net in own)
    if newcomer is not None:
        yield "newcomer", newcomer


_PAGE = """# Models of {method} on {dataset}

{files}

Each is a [safetensors](https://github.com/huggingface/safetensors) file: plain tensors by name, no code, and in its
metadata what is said here. `generic` is the server's model, `client-K` client K's personal one, `newcomer` that of a
client that came later.

```python
import torso

net = torso.load_model("{first}")  # an nn.Module in evaluation mode; net.card has what the metadata say
classes = net(net.prepare({noun})).argmax(dim=1)  # {noun}: {argument}
```

Input, where you prepare it yourself: {by_hand}. Output: logits of {classes} classes.

Network: body `{body}`, head `{head}`, made by torso {torso}.
{statistics}"""

_BY_BATCH = """
BatchNorm of this network has no running statistics: it goes by the batch that it is given, so an answer depends on the
{noun} that are asked about together, and a single one is answered badly. Ask in batches like those that the model
will be judged by{batch}, or train with `--set model.norm=running`.
"""


def page(card: Card, result: Result | None, names: Sequence[str], more: str = "") -> str:
    """How to use the files, for somebody who has nothing else; `more` is said behind it."""
    batch = result.job.config.measure.batch_size if result and result.job else 0
    said = f" (the run's had up to {batch} {card.input.noun} of one client)" if batch else ""
    head = card.head["name"]
    few = names if len(names) <= 6 else [*names[:3], "…", *names[-2:]]
    text = _PAGE.format(
        method=card.method,
        dataset=card.dataset,
        files=f"{len(names)} file{'' if len(names) == 1 else 's'}: {', '.join(few)}.",
        first=names[0],
        noun=card.input.noun,
        argument=card.input.argument,
        by_hand=card.input.by_hand,
        classes=card.classes,
        body=card.body,
        head=head,
        torso=card.torso,
        statistics=_BY_BATCH.format(batch=said, noun=card.input.noun) if card.batch_statistics else "",
    )
    return f"{text}\n{more}\n" if more else text
