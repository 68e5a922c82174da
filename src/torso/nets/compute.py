"""What a network says of G clients' samples: in one pass where it can, stacked by vmap, or one client at a time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm

from torso.data.inputs import Input, Tokens, as_input
from torso.data.token_lens import trimmed
from torso.errors import RequestError
from torso.nets.draws import Keyed, Seeded, Watching, watching_zeros
from torso.nets.dropout import dropping, drops
from torso.nets.network import Network, Output, Tensors, hollow
from torso.nets.seat import skeleton


def apply(
    net: Network, tensors: Tensors, x: Tensor, real: Tensor | None = None, keys: Sequence[int] | Tensor | None = None
) -> Output:
    """Features [G, B, d] and logits [G, B, classes] of x [G, B, …] under stacked tensors [G, …].

    The tensors of running statistics are moved in place. Not thread-safe: one `skeleton` per thread. `keys`: one for
    each client, from which a body draws random numbers in training (`Batch.keys`).
    """
    drawing = draws(net, x) and not Seeded.here()
    if net.body.drops and not drawing and (layers := drops(net.body)):
        if not isinstance(keys, Tensor):
            raise _without_keys()
        with dropping(layers, keys):
            return _apply(net, tensors, x, real, None, drawing)
    return _apply(net, tensors, x, real, None if isinstance(keys, Tensor) else keys, drawing)


def _without_keys() -> RequestError:
    return RequestError(
        "the body draws random numbers in training (dropout), and there is no key to draw them from. "
        "Pass the batch's on: torso.nets.apply(…, keys=batch.keys)"
    )


def _apply(
    net: Network, tensors: Tensors, x: Tensor, real: Tensor | None, keys: Sequence[int] | None, drawing: bool
) -> Output:
    if not drawing and (given := _in_line(net, tensors)) is not None:
        said: Output = net.seat.called(net, given, x, real, stacked=True)
        return said
    if real is not None:
        _refuse_padding(net)

    def one(tensors: Tensors, x: Tensor) -> Tensors:
        said: Output = functional_call(net, tensors, (x[None],), {"stacked": True}, tie_weights=False)
        return {name: field[0] for name, field in said._asdict().items() if field is not None}

    if drawing:
        if keys is None:
            raise _without_keys()
        return _one_by_one(net, one, tensors, x, real, keys)
    if x.shape[0] == 1:
        if not any(tensor.requires_grad for tensor in tensors.values()) and (seated := net.seat.take(net, tensors)):
            return seated[0](x, stacked=True)  # type: ignore[no-any-return]
        alone = one({name: t[0] for name, t in tensors.items()}, x[0])
        return Output(**{name: field[None] for name, field in alone.items()})
    if net.body.vmaps:
        once = {name: None if name in net.frozen and _is_one(t) else 0 for name, t in tensors.items()}
        given = {name: t if once[name] == 0 else t[0] for name, t in tensors.items()}
        try:
            return Output(**vmap(one, (once, 0), randomness="error")(given, x))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # it asks what its numbers are, say; an error of its own comes again below
            net.body.vmaps = False
    return _one_by_one(net, one, tensors, x, real, None)


def _in_line(net: Network, tensors: Tensors) -> Tensors | None:
    """The tensors with which one call computes for all clients, what is frozen under adapters among them once; None
    where the body cannot do that."""
    if not net.body.passes_once:
        return tensors if net.body.native else None
    given = {name: t[0] if name in net.base and _is_one(t) else t for name, t in tensors.items()}
    several = any(t.ndim != 0 and t is tensors[name] for name, t in given.items() if name in net.base)
    return None if several and not net.body.native else given


def _is_one(tensor: Tensor) -> bool:
    """Whether one tensor stands for all clients of a stack [G, *]."""
    return len(tensor) == 1 or tensor.stride(0) == 0


def _one_by_one(
    net: Network,
    one: Callable[[Tensors, Tensor], Tensors],
    tensors: Tensors,
    x: Tensor,
    real: Tensor | None,
    keys: Sequence[int] | None,
) -> Output:
    """Client by client, each under its key if there are any. Padding stands behind the real samples, and behind the
    tokens of a sample, and is left out: what a client draws must not depend on the company in a stack."""
    width = x.shape[1]
    pad = net.input.pad if isinstance(net.input, Tokens) and net.body.trims else None
    sizes = [width] * len(x) if real is None else [int(size) or width for size in real.sum(dim=1).tolist()]
    said = []
    for place, size in enumerate(sizes):
        samples = x[place, :size]
        if keys is not None and pad is not None and len(x) > 1:
            samples = trimmed(samples, pad)
        with nullcontext() if keys is None else drawing(net, x.device, keys[place]):
            mine = one({name: t[place] for name, t in tensors.items()}, samples)
        said.append({name: F.pad(field, (0, 0, 0, width - size)) for name, field in mine.items()})
    return Output(**{name: torch.stack([each[name] for each in said]) for name in said[0]})


def drawing(net: Network, device: torch.device, key: int) -> Keyed | Seeded:
    """Inside, a body that draws does so from the key."""
    return Seeded(device, key) if device.type == "cuda" and net.body.draws_there else Keyed(key)


def draws(net: Network, x: Tensor) -> bool:
    """Whether the body draws random numbers in its present mode."""
    return net.body.training and _draws(net, x)


def goes_alone(net: Network, input: Input) -> bool:
    """Whether a group of clients gains nothing in training: the body draws, so each is computed by itself."""
    return not net.body.native and _draws(net, input.example(1)[None])


def vmap_fails(net: Network, input: Input, device: torch.device, dtype: torch.dtype) -> str:
    """Why vmap cannot compute two clients here, forward and backward, in one line; nothing where it can, or is not
    needed. Some kernels know no vmap, and say so only in the backward pass."""
    if net.body.native or net.body.once or not net.body.vmaps:
        return ""
    probe, x = skeleton(net, device).eval(), input.example(2).to(device)
    x = (x.to(dtype) if x.is_floating_point() else x).expand(2, *x.shape)
    tensors = {name: tensor.detach().to(device).expand(2, *tensor.shape) for name, tensor in net.state_dict().items()}
    leaves = {
        n: t.clone().requires_grad_() for n, t in tensors.items() if n not in net.frozen and t.is_floating_point()
    }
    try:
        said = apply(probe, {**tensors, **leaves}, x).logits
        torch.autograd.grad(said.float().sum(), list(leaves.values()), allow_unused=True)
    except torch.OutOfMemoryError:
        return ""
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return "" if probe.body.vmaps else "torch.func.vmap cannot compute it"


def _draws(net: Network, x: Tensor) -> bool:
    """Whether the body draws random numbers in training: found out once, on tensors without content. A body that cannot
    go without content may do anything, so it counts as one that does.

    Most draw nothing on zeros and look at none of them. The device `meta` loads torch's compiler, which takes a
    second."""
    if net.body.native:
        return net.body.draws is True  # of adapters with dropout
    if net.body.draws is None and _never_draws(net, x):
        net.body.draws = False
    if net.body.draws is None:
        bare, dtype = skeleton(net).to("meta").train(), torch.float32 if x.dtype == torch.bfloat16 else x.dtype
        try:
            with Watching() as seen, torch.no_grad():
                bare.body(torch.empty(1, 2, *x.shape[2:], dtype=dtype, device="meta"))
            net.body.draws, net.body.draws_there = seen.drew, seen.places <= {"meta"}
        except Exception:  # somebody's own forward: nobody knows what it may raise
            net.body.draws = True
    return net.body.draws


def _never_draws(net: Network, x: Tensor) -> bool:
    """Whether it draws nothing, and looks at no number on the way."""
    bare, zeros = hollow(net)
    given = {name.removeprefix("body."): t[0] for name, t in zeros.items() if name.startswith("body.")}
    dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    try:
        with watching_zeros() as seen, torch.no_grad():
            functional_call(bare.body.train(), given, (torch.zeros(1, 2, *x.shape[2:], dtype=dtype),))
    except Exception:  # somebody's own forward: nobody knows what it may raise
        return False
    return not seen.drew


def pads(net: Network, x: Tensor) -> bool:
    """Whether a sample's answer and gradient are the same beside padded samples, in the network's present modes."""
    if net.body.native:
        return True
    return not draws(net, x) and stand_alone(net)


def stand_alone(net: Network) -> bool:
    """Whether a sample's answer does not depend on the others of its batch, in the network's present modes."""
    return not any(_counts_all(module) for module in net.modules())


def _counts_all(module: nn.Module) -> bool:
    """Whether it is a BatchNorm that goes by the statistics of the batch."""
    return isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)


def _refuse_padding(net: Network) -> None:
    for name, module in net.named_modules():
        if _counts_all(module):
            raise RequestError(
                f"{name} ({type(module).__name__}) of a network that is not Torso's own would count padded samples in "
                "its statistics. Choose batches without padding (one client at a time), or a body of torso.nets.bodies"
            )


def check_stacking(net: Network, clients: int) -> None:
    """Say before a run what `apply` would say in the middle of it, when ragged clients are padded."""
    if clients > 1 and not net.stacks:
        raise RequestError(
            f"run.clients_at_once = {clients}: BatchNorm of a network that is not Torso's own would count padded "
            "samples in its statistics. Accepted: 1, or 0 to leave it to the engine"
        )


def smallest_map(net: Network, input: Input | tuple[int, int, int]) -> int:
    """The fewest values per sample and channel that any BatchNorm sees for a kind of input, or images (C, H, W).

    When it is 1, a training batch of one sample has no statistics and is to be skipped (spec 12.2). Without BatchNorm
    the answer is `sys.maxsize`: any batch will do.
    """
    if not net.counting:
        return sys.maxsize
    bare, zeros = hollow(net)
    sizes: list[int] = []

    def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        sizes.append(args[0].shape[2:].numel())

    for name in net.counting:
        bare.get_submodule(name).register_forward_pre_hook(record)
    with torch.no_grad():
        apply(bare, zeros, as_input(input).example(2)[None])
    return min(sizes, default=sys.maxsize)
