"""The papers' names of methods, as presets and settings of Torso."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from torso.errors import RequestError, did_you_mean

_KEPT = "method.personal=kept"  # Fed-RoD reports the local model, before aggregation (spec 9.4)

_FEDBABU = {
    "FedAvg": "fedavg",
    "FedAvg+server_data_sharing": "fedavg-data-sharing",
    "FedBABU": "fedbabu",
    "FedBABU+server_data_sharing": "fedbabu-data-sharing",
    "FedPer": "fedper",
    "LG-FedAvg": "lg-fedavg",
    "FedRep": "fedrep",
    "Per-FedAvg": "per-fedavg",
    "Ditto": "ditto",
    "Local-only": "local-only",
    "FedProx": "fedprox",
    "FedProx+BABU": "fedprox-babu",
    "partial-update": "partial-update",
    "Centralized-full": "centralized",
    "Centralized-body": "centralized-body",
}
_ROD = {
    "Centralized": "centralized",
    "Local only": "local-only",
    "FedAvg": "fedavg",
    "FedAvg (BRM)": "fedavg-brm",
    "FedAvg (BRM, FT)": "fedavg-brm-ft",
    "FedAvg+Meta": "fedavg-meta",
    "FedProx": "fedprox",
    "SCAFFOLD": "scaffold",
    "FedDyn": "feddyn",
    "FedPer": "fedper",
    "FedRep": "fedrep",
    "LG-FedAvg": "lg-fedavg",
    "Per-FedAvg": "per-fedavg",
    "pFedMe": "pfedme",
    "Ditto": "ditto",
    "FedFomo": "fedfomo",
    "MTL": "mtl",
    "Fed-RoD": "fedrod-hyper",
    "Fed-RoD (linear)": "fedrod-linear",
    "Fed-RoD (linear, BRM)": "fedrod-linear",
    "Fed-RoD (hyper)": "fedrod-hyper",
    "Fed-RoD (hyper, BRM)": "fedrod-hyper",
    "Fed-RoD (hyper)+FedDyn": "fedrod-hyper-feddyn",
    "Fed-RoD (hyper)+FedProx": "fedrod-hyper-fedprox",
    "Fed-RoD (hyper)+SCAFFOLD": "fedrod-hyper-scaffold",
    "Fed-RoD (Meta-BSM)": "fedrod-meta-bsm",
    "FedAvg / Fed-RoD with CE": "fedavg",  # its three numbers are FedAvg's of table 2
}
_NCM = {
    "Random": "random",
    "FT": "ft",
    "LP": "lp",
    "MLP head": "mlp-head",
    "FedNCM": "fedncm",
    "FedNCM+FT": "fedncm-ft",
    "LP (5 rounds)+FT": "lp5-ft",
    "LP (10 rounds)+FT": "lp-ft",
}
_FN = {
    "FedAvg": "fedavg",
    "FedAvg+BABU": "fedbabu",
    "FedAvg+FN": "fedfn",
    "FedAvg-FT": "fedavg-ft",
    "FedBABU": "fedbabu",
    "FedBABU-FT": "fedbabu-ft",
    "FedEXP": "fedexp",
    "FedEXP+BABU": "fedexp-babu",
    "FedEXP+FN": "fedexp-fn",
    "FedFN": "fedfn",
    "FedFN-FT": "fedfn-ft",
    "FedFR": "fedfr",
    "FedPer": "fedper",
    "FedRep": "fedrep",
    "Local only": "local-only",
    "Per-FedAvg": "per-fedavg",
    "SCAFFOLD": "scaffold",
    "SCAFFOLD+BABU": "scaffold-babu",
    "SCAFFOLD+FN": "scaffold-fn",
    "SphereFed (CE)": "spherefed-ce",
    "SphereFed (MSE)": "spherefed-mse",
    "SphereFed-FT (CE)": "spherefed-ce-ft",
    "SphereFed-FT (MSE)": "spherefed-mse-ft",
}
LABELS: Mapping[str, Mapping[str, str]] = {"FedBABU": _FEDBABU, "Fed-RoD": _ROD, "FedNCM": _NCM, "FedFN": _FN}
"""Paper → name of a method in its tables → name of our preset."""

_HAS_ITS_OWN = frozenset({"per-fedavg", "ditto", "pfedme", "fedfomo", "mtl", "centralized", "local-only"})
"""Presets in Fed-RoD's tables whose personal model is not the local model (spec 5)."""

_LOSSES = {
    "CE": "cross-entropy",
    "IR": "reweighted",
    "LDAM": "ldam",
    "CDT": "cdt",
    "BSM": "balanced-softmax",
}


_OPTIMIZERS = {"FedAdam": ("method.server=torch-adam",), "FedProx": ("method.drift=proximal",)}
"""FedNCM's optimisers for fine-tuning → settings. Its presets have FedAvg (spec 3.9)."""


def preset_of(paper: str, label: str) -> str:
    """The preset that runs a method of a paper's tables."""
    if paper not in LABELS:
        raise RequestError(f"paper = {paper!r} is unknown. Accepted: {', '.join(LABELS)}")
    if label not in LABELS[paper]:
        hint = did_you_mean(label, LABELS[paper])
        raise RequestError(
            f"algorithm = {label!r} of {paper} is unknown{hint} Accepted: {', '.join(sorted(LABELS[paper]))}"
        )
    return LABELS[paper][label]


def settings_of(paper: str, label: str, setting: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """The settings (KEY=VALUE) of the method of a published number. Rounds, data and networks come from the recipe."""
    name, given = preset_of(paper, label), setting or {}
    said = [f"method.name={name}"]
    if paper == "Fed-RoD" and name not in _HAS_ITS_OWN and not name.startswith(("fedrod", "fedavg-")):
        said.append(_KEPT)
    if paper == "Fed-RoD" and name == "local-only":  # rounds × epochs, and not one more visit (spec 5.1)
        said.append("method.personal=held")
    if paper in ("FedFN", "Fed-RoD") and "scaffold" in name:  # else it diverges with their momentum (spec 3.7)
        said.append("method.drift.divisor=momentum")
    return (*said, *_variant(name, given))


def _variant(name: str, given: Mapping[str, Any]) -> Iterator[str]:
    """The settings that follow from what the number's setting says about the method."""
    if name == "partial-update":  # conv12: the first two blocks; conv1234+linear: everything
        blocks, _, head = given.get("local_update_part", "conv1").removeprefix("conv").partition("+")
        yield "method.train=all" if head else f"method.train=blocks:{len(blocks)}"
    if name == "fedavg-data-sharing" and given.get("server_update_part") in ("body", "none"):
        yield f"method.server_data={given['server_update_part']}"
    if name == "fedbabu-data-sharing" and given.get("server_update_part") == "none":
        yield "method.server_data=none"
    if (loss := given.get("balanced_loss")) in _LOSSES:
        yield f"method.objective={_LOSSES[loss]}"
    if "mu" in given:
        yield f"method.{'objective' if name == 'fedfr' else 'drift'}.mu={given['mu']}"
    if "temperature_tau" in given:
        yield f"method.head.tau={given['temperature_tau']}.0"
    if "finetune_lr" in given and name.endswith("-ft"):  # "0.1*lr"
        yield f"method.personal.factor={float(given['finetune_lr'].partition('*')[0])}"
    yield from _OPTIMIZERS.get(given.get("fl_optimizer", ""), ())
