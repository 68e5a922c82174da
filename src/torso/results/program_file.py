"""Writes a trained network as a torch.export program (.pt2), which PyTorch runs without Torso."""

from __future__ import annotations

import io
from pathlib import Path

import torch

from torso.nets import Network
from torso.nets.network import card_of
from torso.results.files import replace_file
from torso.results.portable import Preprocessing, check_answers, export_program, program_metadata, quiet

SUFFIX = ".pt2"


def write_program(net: Network, path: Path, preprocessing: Preprocessing = "inside") -> None:
    """Export the network, check that the saved program returns the same logits, and write the file.

    The file also has card.json, classes.json and input.json (`torch.export.load(path, extra_files=…)`)."""
    extra = {f"{key}.json": text for key, text in program_metadata(card_of(net), preprocessing).items()}
    program = export_program(net, preprocessing)
    with quiet():
        made = io.BytesIO()
        torch.export.save(program, made, extra_files=extra)
        again = torch.export.load(io.BytesIO(made.getvalue())).module()
        check_answers(net, preprocessing, path.name, again)
    replace_file(path, lambda temporary: temporary.write_bytes(made.getvalue()))
