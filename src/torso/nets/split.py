"""Your own nn.Module as a body and a head."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from torso.errors import RequestError
from torso.nets.layers import Linear
from torso.nets.network import Body, Network


class ForeignBody(Body):
    """A module that knows nothing of clients; its blocks are its direct children that have parameters."""

    native = False

    def __init__(self, module: nn.Module, features: int) -> None:
        nn.Module.__init__(self)
        _refuse_dropout(module)
        self.features, self.module = features, module
        self._as_given: tuple[nn.Module, Network, str] | None = None  # in a tuple, so that it is no part of this one
        self.blocks = tuple(child for child in module.children() if any(True for _ in child.parameters()))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        if x.shape[0] != 1:
            raise RequestError(
                f"{type(self.module).__name__} computes for one client at a time, found {x.shape[0]}; "
                "torso.nets.apply runs it for several"
            )
        return self.module(x[0])[None]  # type: ignore[no-any-return]

    def split_from(self, module: nn.Module, net: Network, name: str) -> None:
        """Remember what it was split from, until there are images to check the split by."""
        self._as_given = module, net, name

    def check_split(self, where: str, example: Tensor) -> None:
        """Refuse a split that does not give what the module gave; then forget the module."""
        given, self._as_given = self._as_given, None
        if given is None:
            return
        try:
            _check(*given, example)
        except RequestError as error:
            raise RequestError(f"{where}: {error}") from None


def split(module: nn.Module, example: Tensor | None = None) -> Network:
    """A network from a copy of a module whose last layer is an `nn.Linear`: that layer is the head, the rest the body.

    With an example batch, body and head are also checked to give what the module gives (in eval mode).
    """
    name, linear = _last_linear(module)
    whole = copy.deepcopy(module)
    parent, _, attribute = name.rpartition(".")
    setattr(whole.get_submodule(parent), attribute, nn.Identity())
    head = Linear(linear.in_features, linear.out_features, bias=linear.bias is not None)
    head.to(linear.weight).load_state_dict(linear.state_dict())
    net = Network(ForeignBody(whole, linear.in_features), head)
    if example is not None:
        _check(module, net, name, example)
    return net


def body_of(module: nn.Module, features: int | None = None) -> Body:
    """A body from a module: without its last linear layer, or, when `features` says how many it gives, as it is.

    So a plugin registers any network as a body:

        @bodies.register("mine")
        def mine(channels: int, height: int, width: int) -> Body:
            return body_of(torchvision.models.resnet34())
    """
    if features is not None:
        return ForeignBody(copy.deepcopy(module), features)
    net = split(module)
    body = net.body
    assert isinstance(body, ForeignBody)
    body.split_from(module, net, _last_linear(module)[0])
    return body


def _refuse_dropout(module: nn.Module) -> None:
    for name, layer in module.named_modules():
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise RequestError(
                f"{name} ({type(layer).__name__}) of {type(module).__name__} draws from torch's global random stream, "
                "so a run could not be repeated or resumed. Set its p to 0, or leave it out"
            )


def _last_linear(module: nn.Module) -> tuple[str, nn.Linear]:
    kind = type(module).__name__
    leaves = [(name, leaf) for name, leaf in module.named_modules() if not any(True for _ in leaf.children())]
    name, last = leaves[-1]
    if type(last) not in (nn.Linear, Linear) or not isinstance(last, nn.Linear):
        raise RequestError(
            f"cannot split {kind}: its last layer, {name or 'the module itself'}, is {type(last).__name__}. "
            "Make an nn.Linear the last module that it registers, with nothing after it"
        )
    if not name:
        raise RequestError("cannot split a single nn.Linear: there is no body. Put layers before it")
    once = {id(p) for p in module.parameters()}
    if len(once) != sum(1 for _ in module.named_parameters(remove_duplicate=False)):
        raise RequestError(f"cannot split {kind}: two of its layers share a parameter. Give each layer its own")
    return name, last


def _check(module: nn.Module, net: Network, name: str, example: Tensor) -> None:
    original = copy.deepcopy(module).eval()
    net = copy.deepcopy(net).eval()
    with torch.no_grad():
        wanted = original(example)
        try:
            found = net(example[None], stacked=True).logits[0]
        except RuntimeError:  # the layers after `name` cannot do with its input
            found = torch.empty(0)
    if wanted.shape != found.shape or not torch.allclose(wanted, found, rtol=1e-4, atol=1e-5):
        raise RequestError(
            f"cannot split {type(module).__name__}: body and head ({name}) do not give what the module gives. Let "
            f"forward return {name}'s output as it is (no softmax, no scaling) and use {name} nowhere else"
        )
