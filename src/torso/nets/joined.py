"""`joined`: a network's weights in a copy of the module that it was split from, for a program without Torso."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from torso.errors import RequestError
from torso.nets.network import Network
from torso.nets.split import ForeignBody, copied, head_of, logits_of

_BODY = "module."  # prefix of the module's names in a `ForeignBody`
_OTHERWISE = "torso.save_model(network, 'model.pt2') writes any network for PyTorch without Torso"  # for messages


def joined(network: Network, module: nn.Module) -> nn.Module:
    """A copy of a module with the weights of a network that Torso made from a module like it, in eval mode.

    With it a program uses a personal model without Torso. The copy takes what `network.prepare` gives. If the network
    has another number of classes than the module, the module's last layer is replaced by one of that size. Refused: a
    body of another structure, and a head that is more than a linear layer."""
    kind = type(module).__name__
    name, linear = head_of(module)
    weights = _body_of(network, kind) | {f"{name}.{key}": tensor for key, tensor in _head_of(network, kind).items()}
    whole = copied(module)
    outputs, bias = len(weights[f"{name}.weight"]), f"{name}.bias" in weights
    if (outputs, bias) != (linear.out_features, linear.bias is not None):
        parent, _, attribute = name.rpartition(".")
        setattr(whole.get_submodule(parent), attribute, nn.Linear(linear.in_features, outputs, bias=bias))
    try:
        whole.load_state_dict({key: tensor.detach().clone() for key, tensor in weights.items()})
    except RuntimeError as error:
        reason = " ".join(str(error).split())[:200]
        raise RequestError(f"the network is not of a {kind} like this one: {reason}") from None
    whole.eval()
    _check(network, whole, kind)
    return whole


def _body_of(network: Network, kind: str) -> dict[str, Tensor]:
    """The tensors of the body by their names in the module; refused if the body is not made of a module alone."""
    if not isinstance(network.body, ForeignBody) or network.body.lora is not None:
        raise RequestError(
            "the body of the network is not that of a module alone. Expected: a network of "
            f"torso.run(…, model={kind}), without adapters. {_OTHERWISE}"
        )
    tensors = network.body.state_dict()
    return {key.removeprefix(_BODY): tensor for key, tensor in tensors.items()}


def _head_of(network: Network, kind: str) -> dict[str, Tensor]:
    """Weight and bias of the head; refused if the head has other tensors."""
    tensors = network.head.state_dict()
    if not {"weight"} <= tensors.keys() <= {"weight", "bias"}:
        raise RequestError(
            f"the head of the network ({type(network.head).__name__}) is more than the linear layer that {kind} "
            f"ends in. {_OTHERWISE}"
        )
    return dict(tensors)


def _check(network: Network, whole: nn.Module, kind: str) -> None:
    """Refuse a module that does not give what the network gives.

    A head can have the tensors of a linear layer and compute something else with them."""
    if network.card is None:
        return
    example = network.card.taken.example(2)
    with torch.no_grad():
        wanted, found = network(example), logits_of(whole(example))
    if not torch.allclose(wanted, found, rtol=1e-4, atol=1e-5):
        raise RequestError(
            f"the {kind} does not give what the network gives: its head ({type(network.head).__name__}) is more than a "
            f"linear layer. {_OTHERWISE}"
        )
