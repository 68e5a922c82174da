"""The code path of a run on CPU. PyTorch, MKL and oneDNN choose code by the processor, and rounding depends on it."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

_CHOSEN_BY = ("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_CPUINFO = Path("/proc/cpuinfo")


def code_path() -> str:
    """The kind of processor, the instructions that PyTorch uses, and the environment variables that change them."""
    said = [f"{name}={os.environ[name]}" for name in _CHOSEN_BY if os.environ.get(name)]
    return ", ".join([_processor(), torch.backends.cpu.get_cpu_capability(), *said])


def _processor() -> str:
    """Maker, family and model of the processor, from Linux; on other systems what Python knows."""
    text = _CPUINFO.read_text("utf-8", errors="replace") if _CPUINFO.is_file() else ""
    first = dict(map(_entry, text.partition("\n\n")[0].splitlines()))
    told = [first[key] for key in ("vendor_id", "cpu family", "model") if key in first]
    return " ".join(told) or f"{platform.machine()} {platform.processor()}".strip()


def _entry(line: str) -> tuple[str, str]:
    key, _, value = line.partition(":")
    return key.strip(), value.strip()
