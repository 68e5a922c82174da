"""Two heads in one: what the server has learned, and what a client adds to it (Fed-RoD, spec 6.2 and 6.3).

G clients, B samples, d features, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.layers import Linear

STEPS = 20  # the shares of the generic head that are tried: 0, 1/20, …, 1


def generic_share(logits: Tensor, own: Tensor, seen: Tensor, centre: Tensor, mine: Tensor) -> Tensor:
    """FedTHE's e [*, B], the share of the generic logits beside the client's own [*, B, C] that has the least loss:
    where the heads agree, entropy decides, where they differ, whether what was `seen` [*, B, d] lies nearer to the mean
    feature of all clients or to the client's [*, 1, d] (spec 19.22)."""
    far, near = (seen - centre).norm(dim=-1), (seen - mine).norm(dim=-1)
    alike = F.cosine_similarity(logits.softmax(dim=-1), own.softmax(dim=-1), dim=-1)
    best, least = torch.zeros_like(far), torch.full_like(far, torch.inf)
    for step in range(STEPS + 1):
        e = step / STEPS
        mixed = (e * logits + (1 - e) * own).log_softmax(dim=-1)
        entropy = -(mixed.exp() * mixed).sum(dim=-1)
        loss = alike * entropy + (1 - alike) * (e * far + (1 - e) * near)
        best, least = torch.where(loss < least, e, best), torch.minimum(loss, least)
    return best


class HyperLinear(nn.Module):
    """A linear layer whose weight is V₂·relu(V₁·a), a the client's class proportions; no biases.

    `own`, where it is given, is added to that: a layer of the client's own that begins where the made one stands."""

    mix: Tensor
    own: Tensor | None

    def __init__(self, features: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.features, self.classes = features, classes
        self.first = Linear(classes, hidden, bias=False)
        self.second = Linear(hidden, classes * features, bias=False)
        # facts about the client, not weights: they are given with every call, and neither travel nor are saved
        self.register_buffer("mix", torch.full((classes,), 1 / classes), persistent=False)
        self.register_buffer("own", None, persistent=False)

    def extra_repr(self) -> str:
        return "x @ weight.mT, weight = second(relu(first(class proportions))) as [classes, features], plus own if any"

    def forward(self, x: Tensor) -> Tensor:
        mix = self.mix if self.mix.ndim == 2 else self.mix.unsqueeze(0)  # [G, C]
        made: Tensor = self.second(F.relu(self.first(mix.unsqueeze(1))))  # [G, 1, C·d]
        weight = made.view(-1, self.classes, self.features)
        weight = weight if self.own is None else weight + self.own
        return x @ (weight if x.ndim == 3 else weight[0]).mT


class DualHead(nn.Module):
    """Generic logits; `own` adds the personal ones, or has these alone. The personal loss reaches the personal head
    only (spec 6.2), unless `through`: then it trains the generic head and the body as well. With `classes` the
    logarithm of the client's share of each class is added to its own logits: what a balanced loss takes away.

    `centres` [2, d]: the mean feature of all clients and that of this one. A model that is used by itself, and was told
    these, mixes both heads for each sample."""

    centres: Tensor | None
    prior: Tensor | None

    @property
    def mixes(self) -> bool:
        """Whether it was told where features lie; other kinds of dual heads never are."""
        return self._buffers.get("centres") is not None

    def __init__(
        self, generic: Linear, personal: nn.Module, adds: bool = True, through: bool = False, classes: int = 0
    ) -> None:
        super().__init__()
        self.adds, self.through = adds, through
        self.generic = generic
        self.personal = personal
        # facts about the client, as `mix` is
        self.register_buffer("prior", torch.zeros(classes) if classes else None, persistent=False)
        self.register_buffer("centres", None, persistent=False)

    def extra_repr(self) -> str:
        own = "generic(x) + personal(x)" if self.adds else "personal(x)"
        if self.mixes:
            own = "e·generic(x) + (1 − e)·personal(x), e from 0 to 1 for each x: see the card's `answers`"
        prior = "" if self.prior is None else " + log class proportions"
        reached = ", whose loss reaches all" if self.through else ""
        return f"generic model: generic(x); a client's: {own}{prior}{reached}"

    def forward(self, x: Tensor) -> Tensor:
        return self.generic(x)  # type: ignore[no-any-return]

    def own(self, features: Tensor, logits: Tensor) -> Tensor:
        if not self.through:
            features, logits = features.detach(), logits.detach()
        own: Tensor = self.personal(features)
        own = logits + own if self.adds else own
        if self.prior is None:
            return own
        return own + (self.prior.unsqueeze(1) if self.prior.ndim == 2 else self.prior)

    def answer(self, features: Tensor, logits: Tensor) -> Tensor:
        """What a client's model says [B, C] when it is used by itself: each sample begins a history of its own."""
        own = self.own(features, logits)
        if not self.mixes:
            return own
        assert self.centres is not None
        share = generic_share(logits, own, features, self.centres[:1], self.centres[1:]).unsqueeze(-1)
        return share * logits + (1 - share) * own

    @property
    def told(self) -> dict[str, tuple[int, ...]]:
        """What it may be told of a client beside weights: tensors that no state_dict holds, with their shapes."""
        found: dict[str, tuple[int, ...]] = {} if self.prior is None else {"prior": tuple(self.prior.shape[-1:])}
        if isinstance(self.personal, HyperLinear):
            classes, features = self.personal.classes, self.personal.features
            found |= {"personal.mix": (classes,), "personal.own": (classes, features)}
        elif "centres" in self._buffers and not self.adds:
            found |= {"centres": (2, self.generic.in_features)}
        return found

    def facts(self, counts: Tensor, held: dict[str, Tensor]) -> dict[str, Tensor]:
        """The class proportions of G clients [G, C], where the personal head is made from them, and their logarithms,
        where they are added (a class that is absent counts as one sample); `held`: the clients' models [G, *]."""
        total = counts.sum(dim=1, keepdim=True).clamp(min=1)
        found = {} if self.prior is None else {"prior": (counts.clamp(min=1) / total).log()}
        return found | ({"personal.mix": counts / total} if isinstance(self.personal, HyperLinear) else {})
