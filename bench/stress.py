"""A stress test: evaluation and first steps of conv4 with running statistics, repeated among freed memory full of NaN.

    python bench/stress.py [seconds] [clients]

A model expanded to all clients, as the server's is, must give the same bits as copies of it. So must a second time, a
new recorder and, to rounding, gradients that are not recorded. The script ends with 1 at the first difference or NaN,
and names the comparison. On CPU it only shows that the script runs.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import Tensor

from torso.data.batches import Batch
from torso.fast import plain_path
from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.learn.recorded import Recorder
from torso.nets import LinearHead, Tensors, apply, build, learnable, set_modes, skeleton
from torso.precision import computing

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")


def poison() -> None:
    """Fill the allocator's free blocks of all sizes with NaN."""
    sizes = [*[128] * 400, *[4096] * 200, *[2**18] * 50, *[2**24] * 8] if CUDA else [128] * 8
    _ = [torch.full((size,), torch.nan, device=DEVICE) for size in sizes]


def differ(what: str, found: Tensor, wanted: Tensor, rtol: float = 0.0) -> bool:
    if not bool(found.isfinite().all()):
        print(f"{what}: not finite, clients {(~found.isfinite()).flatten(1).any(1).nonzero().flatten().tolist()}")
        return True
    error = float((found - wanted).norm() / wanted.norm().clamp(min=1e-12))
    if error > rtol:
        print(f"{what}: off by {error:.1e}")
    return error > rtol


def main(seconds: float, clients: int, samples: int = 64) -> int:
    whole = build("conv4", 10, (3, 32, 32), LinearHead(), norm="running", seed=0)
    model = {n: t.detach().to(DEVICE) for n, t in whole.state_dict().items()}
    for name in (n for n in model if n.endswith("conv.bias")):
        model[name] = torch.randn_like(model[name])
    net, names = skeleton(whole), learnable(whole, model)
    images = torch.randn(clients, samples, 32, 32, 3, device=DEVICE).movedim(-1, 2)
    labels = torch.randint(10, (clients, samples), device=DEVICE)
    counts = torch.full((clients, 10), 50, device=DEVICE)
    first: dict[str, Tensors] = {}
    end, rounds, bad = time.monotonic() + seconds, 0, False
    while not bad and (rounds == 0 or time.monotonic() < end):
        poison()
        shared = {n: t.expand(clients, *t.shape) for n, t in model.items()}
        copied = {n: t.clone(memory_format=torch.contiguous_format) for n, t in shared.items()}
        set_modes(net, frozenset())
        with torch.no_grad(), computing("fp32"):
            said = {what: apply(net, t, images).features for what, t in (("shared", shared), ("copied", copied))}
            with plain_path():
                said["plain"] = apply(net, copied, images).features
        bad |= differ("evaluation, shared and copied", said["shared"], said["copied"])
        bad |= differ("evaluation, kernels and plain", said["copied"], said["plain"], 1e-4)
        set_modes(net, frozenset(model))
        recorder = Recorder(gradients)
        for width in (samples, samples * 13 // 16):  # a whole batch and a short one, as 500 samples in batches of 64
            batch = Batch(images[:, :width], labels[:, :width])
            with computing("tf32"):
                at = {n: t.clone() for n, t in copied.items()}
                grads, total = gradients(net, at, names, batch, CrossEntropy(), counts)
                found = {**grads, "loss": total}
                if CUDA:
                    poison()
                    home = recorder.home(shared, samples)
                    grads, total = recorder.gradients(net, home, names, batch, CrossEntropy(), counts)
                    for name, grad in {**grads, "loss": total}.items():
                        bad |= not name.endswith("conv.bias") and differ(f"recorded {name}", grad, found[name], 2e-2)
            for name, grad in found.items():
                wanted = first.setdefault(str(width), {}).setdefault(name, grad.clone())
                bad |= differ(f"{name}, again", grad, wanted)
        rounds += 1
    print(f"{rounds} rounds on {DEVICE}: {'wrong' if bad else 'nothing found'}")
    return int(bad)


if __name__ == "__main__":
    given = [float(word) for word in sys.argv[1:3]]
    seconds, clients = given[0] if given else 20.0, int(given[1]) if len(given) > 1 else 100
    raise SystemExit(main(seconds, clients))
