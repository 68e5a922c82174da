"""`apply`: the output of a network for G clients' samples, in one pass, by vmap, or one client at a time."""

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
from torso.nets.draws import DrawDetector, Keyed, Seeded, detecting_on_zeros
from torso.nets.dropout import active_dropouts, dropping_by_keys
from torso.nets.network import Network, Output, Tensors, zeroed_copy
from torso.nets.tensor_slots import skeleton


def apply(
    net: Network, tensors: Tensors, x: Tensor, real: Tensor | None = None, keys: Sequence[int] | Tensor | None = None
) -> Output:
    """Features [G, B, d] and logits [G, B, classes] of x [G, B, …] under stacked tensors [G, …].

    The tensors of running statistics are updated in place. Not thread-safe: use one `skeleton` per thread. `keys`: one
    for each client, from which a body draws random numbers in training (`Batch.keys`). Keys on the device, a tensor
    [G], are for Torso's own dropout layers.
    """
    needs_host_keys = draws(net, x) and not Seeded.here()
    if net.body.drops and not needs_host_keys and (layers := active_dropouts(net.body)):
        if not isinstance(keys, Tensor):
            raise _without_keys()
        with dropping_by_keys(layers, keys):
            return _apply(net, tensors, x, real, None, needs_host_keys)
    return _apply(net, tensors, x, real, None if isinstance(keys, Tensor) else keys, needs_host_keys)


def _without_keys() -> RequestError:
    return RequestError(
        "the body draws random numbers in training (dropout), and there is no key to draw them from. "
        "Pass the batch's on: torso.nets.apply(…, keys=batch.keys)"
    )


def _apply(
    net: Network, tensors: Tensors, x: Tensor, real: Tensor | None, keys: Sequence[int] | None, needs_host_keys: bool
) -> Output:
    """What `apply` returns, by the fastest way that the network allows."""
    if not needs_host_keys and (given := _for_one_pass(net, tensors)) is not None:
        output: Output = net.slots.called(net, given, x, real, stacked=True)
        return output
    if real is not None:
        _refuse_padding(net)

    def one(tensors: Tensors, x: Tensor) -> Tensors:
        """The fields of the output for one client's tensors [*] and samples [B, *]."""
        output: Output = functional_call(net, tensors, (x[None],), {"stacked": True}, tie_weights=False)
        return {name: field[0] for name, field in output._asdict().items() if field is not None}

    if needs_host_keys:
        if keys is None:
            raise _without_keys()
        return _one_by_one(net, one, tensors, x, real, keys)
    if x.shape[0] == 1:
        if not any(tensor.requires_grad for tensor in tensors.values()):
            loaded = net.slots.take(net, tensors)
            if loaded is not None:
                return loaded[0](x, stacked=True)  # type: ignore[no-any-return]
        alone = one({name: t[0] for name, t in tensors.items()}, x[0])
        return Output(**{name: field[None] for name, field in alone.items()})
    if net.body.vmaps:
        # vmap's in_dims: None for a tensor that is given once for all clients, 0 for a stack
        dims = {name: None if name in net.frozen and _is_shared(t) else 0 for name, t in tensors.items()}
        given = {name: t if dims[name] == 0 else t[0] for name, t in tensors.items()}
        try:
            return Output(**vmap(one, (dims, 0), randomness="error")(given, x))
        except torch.OutOfMemoryError:
            raise
        except RuntimeError:  # vmap cannot compute the body; if the error is the body's own, it is raised again below
            net.body.vmaps = False
    return _one_by_one(net, one, tensors, x, real, None)


def _for_one_pass(net: Network, tensors: Tensors) -> Tensors | None:
    """The tensors with which one call computes for all clients; those that are frozen under adapters have no client
    dimension. None if the body cannot compute so."""
    if not net.body.passes_once:
        return tensors if net.body.native else None
    given = {name: t[0] if name in net.base and _is_shared(t) else t for name, t in tensors.items()}
    differ = any(t.ndim != 0 and t is tensors[name] for name, t in given.items() if name in net.base)
    return None if differ and not net.body.native else given


def _is_shared(tensor: Tensor) -> bool:
    """Whether all clients of a stack [G, *] have the same tensor in the same memory."""
    return len(tensor) == 1 or tensor.stride(0) == 0


def _one_by_one(
    net: Network,
    one: Callable[[Tensors, Tensor], Tensors],
    tensors: Tensors,
    x: Tensor,
    real: Tensor | None,
    keys: Sequence[int] | None,
) -> Output:
    """The output computed client by client, with random numbers drawn from each client's key if there are keys.

    Padded samples, and padded tokens behind the last one of a client, are left out: what a client draws must not
    depend on the other clients in the stack."""
    width = x.shape[1]
    pad = net.input.pad if isinstance(net.input, Tokens) and net.body.trims else None
    sizes = [width] * len(x)
    if real is not None:
        sizes = [int(size) or width for size in real.sum(dim=1).tolist()]
    outputs = []
    for client, size in enumerate(sizes):
        samples = x[client, :size]
        if keys is not None and pad is not None and len(x) > 1:
            samples = trimmed(samples, pad)
        with nullcontext() if keys is None else drawing(net, x.device, keys[client]):
            fields = one({name: t[client] for name, t in tensors.items()}, samples)
        outputs.append({name: F.pad(field, (0, 0, 0, width - size)) for name, field in fields.items()})
    return Output(**{name: torch.stack([fields[name] for fields in outputs]) for name in outputs[0]})


def drawing(net: Network, device: torch.device, key: int) -> Keyed | Seeded:
    """A context in which a body that draws random numbers draws them from the key."""
    return Seeded(device, key) if device.type == "cuda" and net.body.draws_there else Keyed(key)


def draws(net: Network, x: Tensor) -> bool:
    """Whether the body draws random numbers by torch's generators in its present mode."""
    return net.body.training and _draws(net, x)


def runs_one_by_one(net: Network, input: Input) -> bool:
    """Whether the clients of a group are computed one by one in training anyway, because the body draws random
    numbers."""
    return not net.body.native and _draws(net, input.example(1)[None])


def vmap_error(net: Network, input: Input, device: torch.device, dtype: torch.dtype) -> str:
    """Why vmap cannot compute two clients on this device, forward and backward, in one line.

    "": it can, or it is not needed, or the device runs out of memory. Both passes are tried, since some kernels that
    do not support vmap fail only in the backward pass."""
    if net.body.native or net.body.once or not net.body.vmaps:
        return ""
    probe = skeleton(net, device).eval()
    x = input.example(2).to(device)
    x = x.to(dtype) if x.is_floating_point() else x
    x = x.expand(2, *x.shape)
    tensors = {name: tensor.detach().to(device).expand(2, *tensor.shape) for name, tensor in net.state_dict().items()}
    leaves = {
        n: t.clone().requires_grad_() for n, t in tensors.items() if n not in net.frozen and t.is_floating_point()
    }
    try:
        logits = apply(probe, {**tensors, **leaves}, x).logits
        torch.autograd.grad(logits.float().sum(), list(leaves.values()), allow_unused=True)
    except torch.OutOfMemoryError:
        return ""
    except RuntimeError as error:
        return str(error).partition("\n")[0]
    return "" if probe.body.vmaps else "torch.func.vmap cannot compute it"


def _draws(net: Network, x: Tensor) -> bool:
    """Whether the body draws random numbers in training. This is found out once, on tensors without content.

    A body that cannot compute without content counts as one that draws. Zeros are tried first, which is enough for most
    bodies, because the first use of the device `meta` loads torch's compiler, which takes a second."""
    if net.body.native:
        return net.body.draws is True  # only adapters with dropout do
    if net.body.draws is None and _never_draws(net, x):
        net.body.draws = False
    if net.body.draws is None:
        bare = skeleton(net).to("meta").train()
        dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
        try:
            with DrawDetector() as seen, torch.no_grad():
                bare.body(torch.empty(1, 2, *x.shape[2:], dtype=dtype, device="meta"))
            net.body.draws, net.body.draws_there = seen.drew, seen.places <= {"meta"}
        except Exception:  # the forward of a user's module may raise anything
            net.body.draws = True
    return net.body.draws


def _never_draws(net: Network, x: Tensor) -> bool:
    """Whether the body draws nothing on zeros and does not read their values, so that it never draws anything."""
    bare, zeros = zeroed_copy(net)
    given = {name.removeprefix("body."): t[0] for name, t in zeros.items() if name.startswith("body.")}
    dtype = torch.float32 if x.dtype == torch.bfloat16 else x.dtype
    try:
        with detecting_on_zeros() as seen, torch.no_grad():
            functional_call(bare.body.train(), given, (torch.zeros(1, 2, *x.shape[2:], dtype=dtype),))
    except Exception:  # the forward of a user's module may raise anything
        return False
    return not seen.drew


def allows_padding(net: Network, x: Tensor) -> bool:
    """Whether a sample's output and gradient are the same if the batch also has padded samples, in the network's
    present modes."""
    if net.body.native:
        return True
    return not draws(net, x) and samples_independent(net)


def samples_independent(net: Network) -> bool:
    """Whether a sample's output does not depend on the other samples of its batch, in the network's present modes."""
    return not any(_counts_all(module) for module in net.modules())


def _counts_all(module: nn.Module) -> bool:
    """Whether a layer is a BatchNorm layer that uses the statistics of the batch in its present mode."""
    return isinstance(module, _BatchNorm) and (module.training or module.running_mean is None)


def _refuse_padding(net: Network) -> None:
    """Refuse a padded batch if a layer would count the padded samples in its statistics."""
    for name, module in net.named_modules():
        if _counts_all(module):
            raise RequestError(
                f"{name} ({type(module).__name__}) of a network that is not Torso's own would count padded samples in "
                "its statistics. Choose batches without padding (one client at a time), or a body of torso.nets.bodies"
            )


def check_stacking(net: Network, clients: int) -> None:
    """Refuse `run.clients_at_once` before a run if `apply` would refuse the padded clients in the middle of it."""
    if clients > 1 and not net.stacks:
        raise RequestError(
            f"run.clients_at_once = {clients}: BatchNorm of a network that is not Torso's own would count padded "
            "samples in its statistics. Accepted: 1, or 0 to leave it to the engine"
        )


def smallest_map(net: Network, input: Input | tuple[int, int, int]) -> int:
    """The fewest values per sample and channel that a BatchNorm layer gets for a kind of input, or images (C, H, W).

    If it is 1, a training batch of one sample has no statistics and must be skipped (spec 12.2). Without BatchNorm the
    result is `sys.maxsize`: a batch of any size has what it needs.
    """
    if not net.batch_norms:
        return sys.maxsize
    bare, zeros = zeroed_copy(net)
    sizes: list[int] = []

    def record(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        sizes.append(args[0].shape[2:].numel())

    for name in net.batch_norms:
        bare.get_submodule(name).register_forward_pre_hook(record)
    with torch.no_grad():
        apply(bare, zeros, as_input(input).example(2)[None])
    return min(sizes, default=sys.maxsize)
