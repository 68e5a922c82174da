"""LoRA of many clients on one frozen body: stacked into one pass, one by one, and one centralised LoRA.

    python bench/adapters.py --out FOLDER [--tiny]

For 10 and 100 clients, a step is the gradients of all clients' adapters and heads (forward and backward) and SGD:

stacked      all clients in one forward pass (torso.nets.apply in line), eager
recorded     the same as a CUDA graph (learn/recorded.py)
one by one   a pass for each client, eager
centralised  one LoRA, a batch as large as all clients' together: a bound that separate clients cannot beat

`lite0` is EfficientNet-lite0 as a module of torch.nn (random weights: speed does not depend on them) at 128×128, batch
50 of 10 clients and 20 of 100; `native` the same of Torso's own layers; `minilm` transformers' BertModel of MiniLM-L6's
sizes at 64 tokens, batch 16. Rank 8. `memory` is the memory of one further client, activations included: from the peaks
of a stacked step with all and with half of the clients. `held` is the memory of a client's adapters and head alone.
Prints a table and writes adapters.json.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from torso.data.batches import Batch
from torso.data.inputs import Input, Pixels, Tokens
from torso.learn.gradients import gradients
from torso.learn.objectives import CrossEntropy
from torso.learn.recorded import Recorder
from torso.learn.recorded_foreign import ForeignRecorder
from torso.nets import Network, Tensors, bodies, body_of, build, learnable, set_modes, skeleton
from torso.nets.bodies import takes
from torso.nets.body import Body
from torso.nets.heads import LinearHead
from torso.nets.lora import Lora
from torso.nets.outside.encoder import EncoderBody, Pooled
from torso.nets.outside.libraries import transformers_for
from torso.precision import computing

CLASSES, RATE = 10, 0.01
# kernel, stride, expansion, outputs, repeats (Liu 2020; EfficientNet-B0 without squeeze-and-excite, ReLU6)
STAGES = ((3, 1, 1, 16, 1), (3, 2, 6, 24, 2), (5, 2, 6, 40, 2), (3, 2, 6, 80, 3), (5, 1, 6, 112, 3), (5, 2, 6, 192, 4))
LAST = (3, 1, 6, 320, 1)


def unit(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU6() if act else nn.Identity())


class Inverted(nn.Module):
    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        expand = [unit(inputs, wide, 1)] if expansion > 1 else []
        self.path = nn.Sequential(*expand, unit(wide, wide, kernel, stride, wide), unit(wide, outputs, 1, act=False))
        self.joins = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        said: Tensor = self.path(x)
        return x + said if self.joins else said


class Lite0(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = [unit(3, 32, 3, 2)]
        inputs = 32
        for kernel, stride, expansion, outputs, repeats in chain(STAGES, (LAST,)):
            for place in range(repeats):
                blocks.append(Inverted(inputs, outputs, kernel, stride if place == 0 else 1, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks, unit(inputs, 1280, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x).mean((2, 3))  # type: ignore[no-any-return]


def minilm(tiny: bool) -> Body:
    transformers = transformers_for("bench-minilm")

    sizes = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = transformers.BertConfig(**{**sizes, **without, **({"num_hidden_layers": 1} if tiny else {})})
    encoder = transformers.AutoModel.from_config(config, attn_implementation="eager")
    encoder.pooler = None
    return EncoderBody(Pooled(encoder, 0, "mean"), 384)


def network(body: str, input: Input, tiny: bool) -> Network:
    bodies["bench-lite0"] = lambda channels, height, width: body_of(Lite0(), features=1280)
    bodies["bench-minilm"] = takes(Tokens)(lambda input: minilm(tiny))
    name = "efficientnet-lite0" if body == "native" else f"bench-{body}"
    net = build(name, CLASSES, input, LinearHead(), lora=Lora())
    assert net.body.one_pass, f"{body} does not compute in one pass"
    return net


class Side:
    """A side of the comparison: a network, the tensors of G clients, and their batches on the device."""

    def __init__(self, net: Network, input: Input, clients: int, batch: int, device: torch.device) -> None:
        self.net, self.clients = skeleton(net, device), clients
        self.names = learnable(net, net.state_dict())
        set_modes(self.net, self.names)
        self.base = {n: t.detach().to(device) for n, t in net.state_dict().items()}
        self.tensors = {
            n: t.expand(clients, *t.shape) if n in net.frozen else t.expand(clients, *t.shape).clone()
            for n, t in self.base.items()
        }
        x = input.example(min(batch, 8)).to(device)
        many = -(-clients * batch // len(x))
        x = x.repeat(many, *[1] * (x.ndim - 1))[: clients * batch]
        labels = torch.arange(clients * batch, device=device) % CLASSES
        self.batch = Batch(x.view(clients, batch, *x.shape[1:]), labels.view(clients, batch), None)
        self.counts = torch.ones(clients, CLASSES, device=device)

    def descend(self, tensors: Tensors, grads: Tensors) -> None:
        torch._foreach_add_([tensors[n] for n in self.names], [grads[n] for n in self.names], alpha=-RATE)

    def stacked(self) -> None:
        grads, _ = gradients(self.net, self.tensors, self.names, self.batch, CrossEntropy(), self.counts)
        self.descend(self.tensors, grads)

    def recorded(self) -> Callable[[], None]:
        """A recorded step, as the engine records it. A module that cannot be recorded runs kernel by kernel, with a
        warning."""
        recorder = (ForeignRecorder if self.net.body.keyed else Recorder)(gradients, frozen=self.net.frozen)
        home = recorder.home(self.tensors, self.batch.labels.shape[1])

        def step() -> None:
            grads, _ = recorder.gradients(self.net, home, self.names, self.batch, CrossEntropy(), self.counts)
            self.descend(home, grads)

        return step

    def one_by_one(self) -> None:
        for place in range(self.clients):
            mine = {n: t[place : place + 1] for n, t in self.tensors.items()}
            own = Batch(self.batch.inputs[place : place + 1], self.batch.labels[place : place + 1], None)
            grads, _ = gradients(self.net, mine, self.names, own, CrossEntropy(), self.counts[:1])
            self.descend(mine, grads)

    def centralised(self, net: Network) -> Callable[[], None]:
        """The plain loop: a module, backward, SGD."""
        device = self.batch.labels.device
        net.to(device)
        set_modes(net, self.names)
        sgd = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], RATE)
        x, labels = self.batch.inputs.flatten(0, 1), self.batch.labels.flatten()

        def step() -> None:
            sgd.zero_grad()
            F.cross_entropy(net(x), labels).backward()  # type: ignore[arg-type,no-untyped-call]
            sgd.step()

        return step


def timed(step: Callable[[], object], device: torch.device, seconds: float, warm: int) -> tuple[float, int]:
    """The median time of a step, and the number of steps that were made in the given seconds."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    for _ in range(warm):
        step()
    wait()
    took: list[float] = []
    end = time.perf_counter() + seconds
    while len(took) < 2 or (time.perf_counter() < end and len(took) < 30):
        began = time.perf_counter()
        step()
        wait()
        took.append(time.perf_counter() - began)
    return median(took), len(took)


def peak_of(step: Callable[[], object], device: torch.device) -> int:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated(device) - before


def memory(net: Network, input: Input, clients: int, batch: int, device: torch.device) -> dict[str, float]:
    """MB of a further client in a stacked step, and MB of its adapters and head alone."""
    held = sum(t.numel() * t.element_size() for n, t in net.state_dict().items() if n not in net.frozen)
    found = {"held": held / 1e6}
    if device.type == "cuda":
        peaks = []
        for count in (clients // 2, clients):
            torch.cuda.empty_cache()
            before = torch.cuda.memory_allocated(device)
            side = Side(net, input, count, batch, device)
            side.stacked()
            peaks.append(peak_of(side.stacked, device) + torch.cuda.memory_allocated(device) - before)
            del side
        found["memory"] = (peaks[1] - peaks[0]) / (clients - clients // 2) / 1e6
    return found


def measure(body: str, input: Input, clients: int, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    device, unit = options.device, input.shape[0] if isinstance(input, Tokens) else 1
    net = network(body, input, options.tiny)
    side = Side(net, input, clients, batch, device)
    steps: dict[str, Callable[[], Callable[[], object]]] = {
        "centralised": lambda: side.centralised(net),
        "one by one": lambda: side.one_by_one,
        "stacked": lambda: side.stacked,
    }
    found: dict[str, Any] = {"body": body, "clients": clients, "batch": batch, "rank": 8}
    found |= memory(network(body, input, options.tiny), input, clients, batch, device)
    if device.type == "cuda":
        steps["recorded"] = side.recorded
    for name, made in steps.items():
        try:
            took, n = timed(made(), device, options.seconds, warm=2 if name == "one by one" else 3)
        except RuntimeError as error:  # out of memory, say: the others still count
            found[f"no {name}"] = str(error).splitlines()[0]
            continue
        found[name] = {"per_second": clients * batch * unit / took, "seconds": took, "n": n}
    return found


def told(found: dict[str, Any]) -> str:
    rates = {k: v["per_second"] for k, v in found.items() if isinstance(v, dict)}
    best = rates.get("recorded", rates["stacked"])
    shown = "  ".join(f"{name} {rate:>10,.0f}" for name, rate in rates.items())
    ratios = f"{best / rates['one by one']:.1f}× one by one, {best / rates['centralised']:.2f}× centralised"
    sizes = "  ".join(f"{key} {found[key]:.2f} MB" for key in ("held", "memory") if key in found)
    missing = "  ".join(f"{key}: {value}" for key, value in found.items() if key.startswith("no "))
    return (
        f"{found['body']:7} {found['clients']:4} × {found['batch']:3}  {shown}  {ratios}  {sizes}  {missing}".rstrip()
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/bench"))
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring a way, at least two steps")
    parser.add_argument("--only", default="lite0,native,minilm")
    parser.add_argument("--tiny", action="store_true", help="two and four clients, to try the script")
    options = parser.parse_args()
    options.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    place = torch.cuda.get_device_name() if options.device.type == "cuda" else platform.machine()
    print(f"{place}, Python {platform.python_version()}, torch {torch.__version__}; images or tokens per second, tf32")
    image, text = (Pixels(3, 32, 32), Tokens(8, 100)) if options.tiny else (Pixels(3, 128, 128), Tokens(64, 30_522))
    plan: list[tuple[str, Input, int, int]] = [("lite0", image, 10, 50), ("lite0", image, 100, 20)]
    plan += [("native", image, 10, 50), ("native", image, 100, 20), ("minilm", text, 10, 16), ("minilm", text, 100, 16)]
    rows = []
    with computing("tf32" if options.device.type == "cuda" else "fp32"):
        for body, input, clients, batch in plan:
            if body not in options.only.split(","):
                continue
            few = (max(clients // 25, 2), 2) if options.tiny else (clients, batch)
            rows.append(measure(body, input, *few, options))
            print(told(rows[-1]), flush=True)
            if options.device.type == "cuda":
                torch.cuda.empty_cache()
    options.out.mkdir(parents=True, exist_ok=True)
    about = {"device": place, "torch": torch.__version__, "python": platform.python_version()}
    (options.out / "adapters.json").write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
