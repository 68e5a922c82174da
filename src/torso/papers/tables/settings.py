"""Published numbers as settings of Torso: setting key → config key, data set → source, metric → measure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torso.papers.tables.labels import preset_of, settings_of
from torso.papers.tables.published import PublishedNumber, Recipe, Variant

REASONS: Mapping[str, str] = {
    "weights": "needs a body trained on ImageNet, which cannot be had here",
    "file": "needs weights that are not here: give torchvision's file of them, --set model.weights=PATH",
    "random": "begins at random weights, and model.weights is set",
    "data": "no source of Torso reads this data set",
    "input": "needs images enlarged to 224×224, which would take too long",
    "network": "Torso does not have this network",
    "setup": "the paper does not say with which clients, data and attackers",
    "no result": "the table lists a setting, not something measured",
}
"""Reason → why a number cannot be run here, in words. Unreadable cells of the papers are not among the numbers."""

_SOURCES = {
    "CIFAR10": "cifar10",
    "CIFAR10 (32x32 input)": "cifar10",
    "CIFAR10 (9 images per class)": "cifar10",
    "CIFAR100": "cifar100",
    "FMNIST": "fashion-mnist",
}
_BODIES = {
    "3convNet": "conv3",
    "4convNet": "conv4",
    "MobileNet": "mobilenet",
    "ResNet8": "resnet8",
    "ResNet18": "resnet18",
    "ResNet20": "resnet20",
    "ResNet50": "resnet50",
    "ResNet18 (ImageNet)": "torchvision/resnet18",
    "SqueezeNet": "squeezenet",
    "SqueezeNet (caption says ResNet18, probably a copy error)": "squeezenet",
    "VGG11": "vgg11",
}
_PARTITIONS = {
    "shards": "shards",
    "dirichlet": "dirichlet-class",
    "LDA": "dirichlet-class",
    "LDA (dirichlet per class over clients)": "dirichlet-class",
    "dirichlet (per class over clients)": "dirichlet-class",
    "dirichlet (per client over classes, equal sizes)": "dirichlet-client",
    "writer": "writers",
}
_MEASURES = {
    "initial": "initial",
    "initial_with_head": "initial",
    "initial_without_head": "without_head",
    "personalized": "personalized",
    "ID_accuracy_before_personalization": "id_before",
    "ID_accuracy_after_personalization": "id_after",
    "OOD_accuracy_before_personalization": "ood_before",
    "OOD_accuracy_after_personalization": "ood_after",
    "G-FL (GM)": "generic",
    "P-FL (GM)": "generic_as_personal",
    "P-FL (PM)": "personal",
    "P-FL (LM)": "local",
    "P-FL on new clients, before local training": "new_before",
    "P-FL on new clients, after local training": "new_after",
    "accuracy_%": "generic",
    "global accuracy on full test set": "generic",
    "total_compute_forward_passes": "cost.forward_passes",
    "total_communication_GB": "cost.gigabytes",
}
_EVENED = ("data.balance=true", "data.min_size=10")  # as the code that FedFN builds on deals clients (spec 10.3)
_HEAD_INITS = {"default (near-orthogonal)": "default", "similar (non-orthogonal)": "similar"}

_KEYS: Mapping[str, str | Callable[[Any], tuple[str, ...]]] = {
    "clients": "data.clients",
    "fraction": "train.fraction",
    "local_epochs": "train.local_epochs",
    "rounds": "train.rounds",
    "shards": "data.shards",
    "alpha": "data.alpha",
    "test_shards": "data.test_shards",
    "finetune_part": "personalize.part",
    "server_data_ratio": "data.server_fraction",
    "momentum": "train.momentum",
    "body_lr": "train.lr",
    "lr": "train.lr",
    "head_lr_ratio": "train.head_lr_factor",
    "new_clients": "data.new_clients",
    "imbalance_ratio": "data.imbalance",
    "meta_images_per_class": "data.meta_per_class",
    "lr_schedule": "train.schedule",
    "partition": lambda said: (f"data.partition={_PARTITIONS[said]}", *(_EVENED if said.startswith("LDA") else ())),
    "head_init": lambda said: (f"model.head_init={_HEAD_INITS[said]}",),
    "test": lambda said: ("data.imbalance_test=true",),  # "class-imbalanced like training"
}
"""Setting key → the config key that takes its value, or a function of the value that returns KEY=VALUE settings."""

ELSEWHERE = frozenset(
    {
        *("mu", "temperature_tau", "finetune_lr", "balanced_loss", "fl_optimizer"),  # of the method: labels.py
        *("local_update_part", "server_update_part", "update_part"),
        *("finetune_epochs", "pretrained", "train_samples", "attack"),  # of the measure, or a reason for a refusal
        *("total_epochs", "server_epochs", "training", "train_clients", "sampled_per_round"),  # follow from others
    }
)
"""Setting keys that are not config keys."""
_FLOATS = frozenset({"alpha", "fraction", "momentum", "imbalance_ratio", "lr", "body_lr", "head_lr_ratio"})


@dataclass(frozen=True)
class Wanted:
    """How to run a number."""

    sets: tuple[str, ...]
    measure: str  # that answers it
    epochs: int = 0  # of fine-tuning; 0: the paper does not say


@dataclass(frozen=True)
class Refusal:
    """A number that cannot be run."""

    reason: str  # a key of REASONS


def resolve(
    recipe: Recipe, number: PublishedNumber, second: Variant | None = None, weights: bool = False
) -> Wanted | Refusal:
    """How to run a number, or why it cannot be run. `second`: the variant, else the main run. `weights`: the user gives
    a file of weights."""
    reason = refusal(number, weights)
    if reason:
        return Refusal(reason)
    label = recipe.label(number.algorithm)
    sets = (
        *settings_of(number.paper, number.algorithm, number.setting),
        *recipe.datasets.get(number.dataset, ()),
        f"data.source={_SOURCES[number.dataset]}",
        f"model.body={_body(number)}",
        *_of_setting(number.setting),
        *(recipe.dealt if recipe.deals(number) else ()),
        *_of_hyper(number),
        *label.sets,
        *(second.sets if second else ()),
    )
    answers = {**_MEASURES, **label.answers, **(second.answers if second else {})}
    name = answers[number.metric]
    epochs = number.setting.get("finetune_epochs", 0) if name in ("personalized", "id_after", "ood_after") else 0
    without_repeats = tuple(reversed(dict.fromkeys(reversed(sets))))  # the last of equal settings stays in its place
    return Wanted(without_repeats, name, epochs)


def refusal(number: PublishedNumber, weights: bool = False) -> str:
    """The key of REASONS why a number cannot be run; empty if it can. `weights`: the user gives a file of weights."""
    if number.metric == "rounds":
        return "no result"
    if "attack" in number.setting:
        return "setup"
    if number.paper == "FedNCM":
        return _refusal_of_ncm(number, weights)
    if number.model not in _BODIES and number.model != "Fed-RoD ConvNet":
        return "network"
    if number.setting.get("pretrained") or "ImageNet" in number.model:
        return "weights"
    return "" if number.dataset in _SOURCES else "data"


def _refusal_of_ncm(number: PublishedNumber, weights: bool) -> str:
    """`refusal` for FedNCM's tables: bodies were trained on ImageNet, except in rows that begin at random weights."""
    if number.dataset not in _SOURCES:
        return "data"
    if number.algorithm != "Random":
        return "" if weights else "file"
    if weights:
        return "random"
    return "input" if number.dataset == "CIFAR10" else ""


def preset(number: PublishedNumber) -> str:
    """The preset that runs the method of a number."""
    return preset_of(number.paper, number.algorithm)


def _body(number: PublishedNumber) -> str:
    if number.model == "Fed-RoD ConvNet":  # there is one for CIFAR and one for grey images (spec 11)
        return "rod-mnist" if "MNIST" in number.dataset else "rod-cifar"
    return _BODIES[number.model]


def _of_setting(setting: Mapping[str, Any]) -> Iterator[str]:
    for key, value in setting.items():
        if key in ELSEWHERE:
            continue
        meant = _KEYS[key]
        if isinstance(meant, str):
            yield f"{meant}={_written(key, value)}"
        else:
            yield from meant(value)
    if "sampled_per_round" in setting:  # of the clients that train
        yield f"train.fraction={setting['sampled_per_round'] / setting['train_clients']}"


def _written(key: str, value: Any) -> str:
    return str(float(value)) if key in _FLOATS else str(value)


def _of_hyper(number: PublishedNumber) -> Iterator[str]:
    """Fed-RoD's hypernetwork has 32 hidden units on CIFAR-10, 16 elsewhere (spec 6.3)."""
    if number.dataset == "CIFAR10" and preset(number).startswith("fedrod-") and preset(number) != "fedrod-linear":
        yield "method.head.hidden=32"
