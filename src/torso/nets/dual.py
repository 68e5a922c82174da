"""`DualHead`: a generic head and a client's personal head in one module (Fed-RoD, spec 6.2 and 6.3).

G clients, B samples, d features, C classes.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.nets.layers import Linear

STEPS = 20  # steps between the shares of the generic head that are tried: 0, 1/20, …, 1


def generic_share(logits: Tensor, own: Tensor, seen: Tensor, centre: Tensor, mine: Tensor) -> Tensor:
    """FedTHE's e [*, B]: the share of the generic logits, mixed with the client's own logits [*, B, C], that has the
    least loss (spec 19.22).

    If the two heads agree, the entropy of the mixed answer decides. If they differ, the features decide: whether they
    lie nearer to the mean feature of all clients or to that of this client. `seen`: the features [*, B, d]; `centre`:
    the mean feature of all clients [*, 1, d]; `mine`: that of this client [*, 1, d]."""
    to_all = (seen - centre).norm(dim=-1)
    to_own = (seen - mine).norm(dim=-1)
    agreement = F.cosine_similarity(logits.softmax(dim=-1), own.softmax(dim=-1), dim=-1)
    best = torch.zeros_like(to_all)
    least = torch.full_like(to_all, torch.inf)
    for step in range(STEPS + 1):
        e = step / STEPS
        mixed = (e * logits + (1 - e) * own).log_softmax(dim=-1)
        entropy = -(mixed.exp() * mixed).sum(dim=-1)
        loss = agreement * entropy + (1 - agreement) * (e * to_all + (1 - e) * to_own)
        best = torch.where(loss < least, e, best)
        least = torch.minimum(loss, least)
    return best


class HyperLinear(nn.Module):
    """A linear layer without a bias whose weight is generated: V₂·relu(V₁·a), with a the client's class proportions.

    `own`, if it is given, is added to the generated weight: the difference that the client has learned."""

    mix: Tensor  # [C] or [G, C], the class proportions a
    own: Tensor | None  # [C, d] or [G, C, d]

    def __init__(self, features: int, classes: int, hidden: int) -> None:
        super().__init__()
        self.features, self.classes = features, classes
        self.first = Linear(classes, hidden, bias=False)
        self.second = Linear(hidden, classes * features, bias=False)
        # facts about the client, not weights: they are given with every call, never sent, and in no state_dict
        self.register_buffer("mix", torch.full((classes,), 1 / classes), persistent=False)
        self.register_buffer("own", None, persistent=False)

    def extra_repr(self) -> str:
        return "x @ weight.mT, weight = second(relu(first(class proportions))) as [classes, features], plus own if any"

    def forward(self, x: Tensor) -> Tensor:
        mix = self.mix if self.mix.ndim == 2 else self.mix.unsqueeze(0)  # [G, C]
        generated: Tensor = self.second(F.relu(self.first(mix.unsqueeze(1))))  # [G, 1, C·d]
        weight = generated.view(-1, self.classes, self.features)
        if self.own is not None:
            weight = weight + self.own
        return x @ (weight if x.ndim == 3 else weight[0]).mT


class DualHead(nn.Module):
    """A generic head, whose logits a call returns, and a personal head, whose logits `own` returns.

    `adds`: the personal logits are added to the generic ones; otherwise the personal head answers alone. The personal
    loss trains the personal head only (spec 6.2). `through`: it also trains the generic head and the body. `classes`:
    if it is not 0, the logarithms of the client's class proportions are added to its own logits, because a balanced
    loss has removed them from these.

    If a model is used by itself and knows the mean features of all clients and of its client (`centres`), it mixes
    both heads for each sample (`answer`)."""

    centres: Tensor | None  # [2, d], the mean feature of all clients and that of this client
    prior: Tensor | None  # [C] or [G, C], logarithms of the class proportions

    def __init__(
        self, generic: Linear, personal: nn.Module, adds: bool = True, through: bool = False, classes: int = 0
    ) -> None:
        super().__init__()
        self.adds, self.through = adds, through
        self.generic = generic
        self.personal = personal
        # facts about the client, like `HyperLinear.mix`
        self.register_buffer("prior", torch.zeros(classes) if classes else None, persistent=False)
        self.register_buffer("centres", None, persistent=False)

    @property
    def mixes(self) -> bool:
        """Whether the head knows the mean features by which both heads are mixed."""
        return self._buffers.get("centres") is not None

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
        """The client's own logits, from the features and the generic logits."""
        if not self.through:
            features, logits = features.detach(), logits.detach()
        own: Tensor = self.personal(features)
        if self.adds:
            own = logits + own
        if self.prior is None:
            return own
        return own + (self.prior.unsqueeze(1) if self.prior.ndim == 2 else self.prior)

    def answer(self, features: Tensor, logits: Tensor) -> Tensor:
        """The logits [B, C] of a client's model that is used by itself. Each sample is mixed without regard to earlier
        samples."""
        own = self.own(features, logits)
        if not self.mixes:
            return own
        assert self.centres is not None
        share = generic_share(logits, own, features, self.centres[:1], self.centres[1:]).unsqueeze(-1)
        return share * logits + (1 - share) * own

    @property
    def client_facts(self) -> dict[str, tuple[int, ...]]:
        """Facts about a client that the head takes in addition to weights: tensors that are in no state_dict, with
        their shapes."""
        found: dict[str, tuple[int, ...]] = {}
        if self.prior is not None:
            found["prior"] = tuple(self.prior.shape[-1:])
        if isinstance(self.personal, HyperLinear):
            classes, features = self.personal.classes, self.personal.features
            found |= {"personal.mix": (classes,), "personal.own": (classes, features)}
        elif "centres" in self._buffers and not self.adds:
            found |= {"centres": (2, self.generic.in_features)}
        return found

    def facts(self, counts: Tensor, held: dict[str, Tensor]) -> dict[str, Tensor]:
        """Facts about G clients, from their samples per class [G, C] and the tensors [G, *] of their models.

        These are the class proportions, if the personal head is generated from them, and their logarithms, if these
        are added to the logits. For the logarithms an absent class counts as one sample."""
        total = counts.sum(dim=1, keepdim=True).clamp(min=1)
        found = {}
        if self.prior is not None:
            found["prior"] = (counts.clamp(min=1) / total).log()
        if isinstance(self.personal, HyperLinear):
            found["personal.mix"] = counts / total
        return found
