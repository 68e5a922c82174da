"""Any nn.Module as a body and a head: `split`, `body_of`, and the body that they make of it (`ForeignBody`)."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear
from torch.nn.parameter import is_lazy

from torso.errors import RequestError
from torso.nets.body import Body
from torso.nets.compiled import Compiled
from torso.nets.draws import DrawDetector
from torso.nets.hidden_state import in_place, replaced_buffers
from torso.nets.layers import Linear, concatenated
from torso.nets.layout import laid_out
from torso.nets.network import Network
from torso.nets.parts import Predicate, chosen

_HEADS = ("fc", "classifier", "heads", "head", "score")  # names of heads in torchvision, timm and transformers


class ForeignBody(Body):
    """A body made of a module that is not Torso's and knows no client dimension.

    Its blocks are the module's direct children that have parameters."""

    native = False

    def __init__(self, module: nn.Module, features: int, parts: Mapping[str, Predicate] | None = None) -> None:
        nn.Module.__init__(self)
        self.features, self.module = features, module
        self.replaces: tuple[str, ...] = ()  # names of buffers that forward replaces by other tensors
        self._call = Compiled()
        # module, network and head name to check the split by; in a tuple, so that they are no submodules of this body
        self._as_given: tuple[nn.Module, Network, str] | None = None
        self.blocks = tuple(child for child in module.children() if any(True for _ in child.parameters()))
        self.name_parts(module, parts)

    def own_parts(self) -> dict[str, tuple[str, ...]]:
        """The names of the body's tensors by part. Predicates are called with names in the module."""
        found = {part: chosen(self.module, predicate) for part, predicate in self.predicates.items()}
        return {part: tuple(f"module.{name}" for name in held) for part, held in found.items() if held}

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        if x.shape[0] != 1 and not self.once:
            raise RequestError(
                f"{type(self.module).__name__} computes for one client at a time, found {x.shape[0]}; "
                "torso.nets.apply runs it for several"
            )
        clients = x.shape[0]
        x = laid_out(concatenated(x))
        # PyTorch's BatchNorm refuses a batch with one value per channel. The sample twice has the same statistics.
        # An exported program takes any batch
        is_single = not self.training and not torch.compiler.is_compiling() and len(x) == 1
        doubled = is_single and goes_by_batch(self.module)
        if doubled:
            x = torch.cat([x, x])
        if self.replaces:
            with in_place(self.module, self.replaces):
                features = self._features(x)
        else:
            features = self._features(x)
        if doubled:
            features = features[:1]
        return features.view(clients, -1, *features.shape[1:])

    def _features(self, x: Tensor) -> Tensor:
        return self._autocast(x) if x.dtype == torch.bfloat16 else logits_of(self._call(self.module, x))

    def _autocast(self, x: Tensor) -> Tensor:
        """Features in float32 (for heads and losses) of a forward pass under autocast: products are in bfloat16."""
        with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
            answer = self._call(self.module, x)
        return logits_of(answer).float()

    def split_from(self, module: nn.Module, net: Network, name: str) -> None:
        """Remember the module that the body was split from, until there is an example to check the split by."""
        self._as_given = module, net, name

    def look_for_state(self, where: str, example: Tensor) -> None:
        """Find out which buffers the module replaces, and refuse one that keeps other state from call to call."""
        self.replaces = replaced_buffers(self.module, example, where)
        self.vmaps = self.vmaps and not self.replaces

    def check_split(self, where: str, example: Tensor) -> None:
        """Refuse a split that does not give what the module gave; then forget the module."""
        given, self._as_given = self._as_given, None
        if given is None:
            return
        try:
            _check(*given, example)
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from None


class OfTokens(nn.Module):
    """A text classifier of the transformers library as a module of one tensor: token ids [B, L] → logits [B, C].

    Ids that equal `padding` are masked. For a model that takes other inputs, write a similar module:

        body_of(OfTokens(AutoModelForSequenceClassification.from_config(config), padding=config.pad_token_id))
    """

    def __init__(self, model: nn.Module, padding: int = 0) -> None:
        super().__init__()
        self.model, self.padding = model, padding

    def forward(self, tokens: Tensor) -> Tensor:
        mask = (tokens != self.padding).long()
        return logits_of(self.model(input_ids=tokens, attention_mask=mask))


def goes_by_batch(module: nn.Module) -> bool:
    """Whether a BatchNorm layer of the module has no running statistics, so that it always uses the batch's."""
    return any(isinstance(layer, _BatchNorm) and layer.running_mean is None for layer in module.modules())


def logits_of(answer: Any) -> Tensor:
    """The tensor that a module returns, taken out of the object in which the transformers library wraps it."""
    found = answer if isinstance(answer, Tensor) else getattr(answer, "logits", answer)
    if not isinstance(found, Tensor):
        raise RequestError(f"the module gives {type(found).__name__}. Expected: one tensor, or an object with .logits")
    return found


def split(module: nn.Module, example: Tensor | None = None, parts: Mapping[str, Predicate] | None = None) -> Network:
    """A network from a copy of a classifier: the `nn.Linear` that makes its output is the head, the rest the body.

    The head is what `get_classifier()` returns (timm), or the last layer that the module registers, or the last
    `nn.Linear` of its `fc`, `classifier`, `heads`, `head` or `score`. `example`: a batch, on which body and head are
    checked to give what the module gives, in eval mode. `parts`: further parts of the body, each a predicate of (name
    of a tensor in the module, the layer that holds it).
    """
    name, linear = head_of(module)
    whole = copied(module)
    parent, _, attribute = name.rpartition(".")
    setattr(whole.get_submodule(parent), attribute, nn.Identity())
    head = Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
    head.to(linear.weight).load_state_dict(linear.state_dict())
    for mine, theirs in zip(head.parameters(), linear.parameters(), strict=True):
        mine.requires_grad_(theirs.requires_grad)
    net = Network(ForeignBody(whole, linear.in_features, parts), head)
    if example is not None:
        _check(module, net, name, example)
    return net


def body_of(module: nn.Module, features: int | None = None, parts: Mapping[str, Predicate] | None = None) -> Body:
    """A body from a module: without its head (see `split`), or as it is, if `features` says how many it gives.

    With it a plugin registers any network as a body, with further parts:

        @bodies.register("mine")
        def mine(channels: int, height: int, width: int) -> Body:
            return body_of(torchvision.models.resnet34(), parts={"stem": lambda name, layer: name.startswith("conv1.")})

    Parameters with `requires_grad=False` stay as they are: never trained, never sent, stored once for all clients.
    """
    if features is not None:
        tied = [name for name in shared_parameters(module) if module.get_parameter(name).requires_grad]
        if tied:
            raise RequestError(
                f"{type(module).__name__}: {' and '.join(tied[:2])} are one parameter, and would learn as two. Give "
                "each layer its own, or freeze it (parameter.requires_grad_(False))"
            )
        return ForeignBody(copied(module), features, parts)
    net = split(module, parts=parts)
    body = net.body
    assert isinstance(body, ForeignBody)
    body.split_from(module, net, head_of(module)[0])
    return body


def copied(module: nn.Module) -> nn.Module:
    """A copy of the user's module. A module that cannot be copied, or that has lazy layers, is refused."""
    kind = type(module).__name__
    if any(is_lazy(tensor) for tensor in (*module.parameters(), *module.buffers())):
        raise RequestError(f"{kind} has lazy layers that have no sizes yet. Call it once with an example batch first")
    try:
        return copy.deepcopy(module)
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise RequestError(
            f"{kind} cannot be copied: {reason}. If it uses torch.nn.utils.weight_norm, use "
            "torch.nn.utils.parametrizations.weight_norm instead"
        ) from None


def head_of(module: nn.Module) -> tuple[str, nn.Linear]:
    """The name of the linear layer that makes the module's output, and the layer. A module without one is refused."""
    kind = type(module).__name__
    leaves = {name: leaf for name, leaf in module.named_modules() if not any(True for _ in leaf.children())}
    *_, last = leaves
    name = _named_head(module, leaves) or last
    found = leaves[name]
    if not is_linear(found):
        raise RequestError(
            f"cannot split {kind}: its last layer, {name or 'the module itself'}, is {type(found).__name__}. "
            "Make an nn.Linear the last module that it registers, with nothing after it"
        )
    if not name:
        raise RequestError("cannot split a single nn.Linear: there is no body. Put layers before it")
    if shared_parameters(module):
        raise RequestError(f"cannot split {kind}: two of its layers share a parameter. Give each layer its own")
    return name, found


def shared_parameters(module: nn.Module) -> tuple[str, ...]:
    """The names of parameters that have several names: one layer is used twice, or two layers share their weights."""
    held = dict(module.named_parameters(remove_duplicate=False))
    times = Counter(map(id, held.values()))
    return tuple(name for name, parameter in held.items() if times[id(parameter)] > 1)


def _named_head(module: nn.Module, leaves: Mapping[str, nn.Module]) -> str:
    """The name of the head among the layers without children; "" if none of them can be the head.

    It is the layer that timm's `get_classifier` returns; else the last layer, if it is linear; else the last linear
    layer under one of the usual names."""
    get_classifier = getattr(module, "get_classifier", None)
    classifier = get_classifier() if callable(get_classifier) else None
    for name, leaf in leaves.items():
        if leaf is classifier and is_linear(leaf):
            return name
    *_, last = leaves
    if is_linear(leaves[last]):
        return last
    for usual in _HEADS:
        inside = [name for name, leaf in leaves.items() if usual in name.split(".") and is_linear(leaf)]
        if inside:
            return inside[-1]
    return ""


def is_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a layer computes what an nn.Linear does. A subclass of nn.Linear (timm has one) is tried out.

    The last layer of nn.MultiheadAttention does not count: attention reads its weight and never calls it."""
    if type(layer) in (nn.Linear, Linear):
        return True
    if not isinstance(layer, nn.Linear) or isinstance(layer, NonDynamicallyQuantizableLinear):
        return False
    with torch.no_grad():
        probe = torch.linspace(-1, 1, 2 * layer.in_features).view(2, -1).to(layer.weight)
        return torch.allclose(layer(probe), F.linear(probe, layer.weight, layer.bias))


def _check(module: nn.Module, net: Network, name: str, example: Tensor) -> None:
    """Refuse a network that does not give what the module gives, in eval mode. `name`: that of the head's layer."""
    original = copy.deepcopy(module).eval()
    net = copy.deepcopy(net).eval()
    with torch.no_grad():
        with DrawDetector() as seen:
            wanted = logits_of(original(example))
        check_evaluation(seen, type(module).__name__)
        try:
            found = net(example[None], stacked=True).logits[0]
        except RuntimeError:  # the layers after the head cannot take the head's input
            found = torch.empty(0)
    if wanted.shape != found.shape or not torch.allclose(wanted, found, rtol=1e-4, atol=1e-5):
        raise RequestError(
            f"cannot split {type(module).__name__}: body and head ({name}) do not give what the module gives. Let "
            f"forward return {name}'s output as it is (no softmax, no scaling) and use {name} nowhere else"
        )


def check_evaluation(seen: DrawDetector, kind: str) -> None:
    """Refuse a module that draws random numbers in evaluation.

    There is no key to draw them from, and the same sample must get the same answer again."""
    if seen.drew:
        raise RequestError(
            f"{kind} draws random numbers in evaluation too. Let it do so in training only: nn.Dropout, or "
            "F.dropout(x, p, training=self.training)"
        )
