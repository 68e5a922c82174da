"""The config of an experiment as validated data: `config.toml` stores it, `--set` changes it, `torso.run` takes it.

Every key is `section.field`. A preset method is a starting point: any axis can be replaced (`method.drift=proximal`) or
adjusted (`method.drift.mu=0.1`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import tomli_w
from pydantic import BaseModel, Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core import core_schema

from torso.config.data import CsvConfig, DataConfig, FolderConfig, NpzConfig, SyntheticConfig, TextConfig
from torso.config.model import LoraConfig, ModelConfig
from torso.config.run import FaultsConfig, FlowerConfig, RayConfig, RunConfig, SecureConfig, SpeedsConfig
from torso.config.section import Section
from torso.config.text import assign, assign_all, parse_value, read_toml
from torso.config.threats import AttackConfig, PrivacyConfig
from torso.config.train import MeasureConfig, PersonalizeConfig, TrainConfig
from torso.errors import RequestError, did_you_mean
from torso.methods import Method, method_from_config, method_to_config
from torso.nets.lora import Lora
from torso.nets.parts import names_adapters
from torso.registry import Registry

__all__ = [
    "AttackConfig",
    "Config",
    "CsvConfig",
    "DataConfig",
    "FaultsConfig",
    "FlowerConfig",
    "FolderConfig",
    "LoraConfig",
    "MeasureConfig",
    "ModelConfig",
    "NpzConfig",
    "PersonalizeConfig",
    "PrivacyConfig",
    "RayConfig",
    "RunConfig",
    "SecureConfig",
    "SpeedsConfig",
    "SyntheticConfig",
    "TextConfig",
    "TrainConfig",
    "assign",
    "assign_all",
    "describe_keys",
    "explain",
    "parse_value",
    "read_toml",
]


class _MethodField:
    """The pydantic type of `Config.method`: takes a Method, the name of a preset or a table of axes; holds a Method."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(method_from_config)


class Config(Section):
    """The config of one experiment. Make it from keywords, or with `Config.load` from a file and `--set` overrides."""

    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    method: Annotated[Method, _MethodField] = Field(default_factory=lambda: method_from_config("fedavg"))
    train: TrainConfig = TrainConfig()
    attack: AttackConfig = AttackConfig()
    privacy: PrivacyConfig = PrivacyConfig()
    personalize: PersonalizeConfig = PersonalizeConfig()
    measure: MeasureConfig = MeasureConfig()
    run: RunConfig = RunConfig()

    def __init__(self, /, **sections: Any) -> None:
        try:
            super().__init__(**sections)
        except ValidationError as error:
            raise RequestError(explain(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _rate_of_weights(cls, tree: Any) -> Any:
        """Set `train.lr` to the learning rate that suits the pre-trained weights, unless the user has set it."""
        from torso.nets import wants_of

        model, train = tree.get("model"), tree.get("train", {})
        if not isinstance(model, Mapping) or not isinstance(train, Mapping) or "lr" in train:
            return tree
        body, weights = model.get("body"), model.get("weights")
        if not weights or not isinstance(body, str) or not isinstance(weights, str):
            return tree
        lr = wants_of(body, weights).lr
        return {**tree, "train": {**train, "lr": lr}} if lr else tree

    @model_validator(mode="after")
    def _names_exist(self) -> Config:
        """Look up every name now, so that a wrong one is refused before data are read or a folder is made."""
        from torso.data import augmentations, partitions, sources
        from torso.engine import engines
        from torso.learn.schedule import schedules
        from torso.measure import measures
        from torso.measure.analyses import analyses
        from torso.measure.corruptions import corruptions
        from torso.nets import bodies, head_inits
        from torso.nets.bodies import GIVEN
        from torso.nets.encoder import messages_name_encoder

        named: tuple[tuple[Registry[Any], str, str], ...] = (  # registry, name, key that holds the name
            (sources, self.data.source, "data.source"),
            (partitions, self.data.partition, "data.partition"),
            (augmentations, self.data.augment, "data.augment"),
            (bodies, self.model.body, "model.body"),
            *([(bodies, self.model.encoder, "model.encoder")] if self.model.encoder else []),
            (head_inits, self.model.head_init, "model.head_init"),
            (schedules, self.train.schedule, "train.schedule"),
            (engines, self.run.engine, "run.engine"),
            *((measures, name, "measure.names") for name in self.measure.names),
            *((measures, name, "measure.during") for name in self.measure.during),
            *((analyses, name, "measure.analyses") for name in self.measure.analyses),
            *((corruptions, name, "measure.corruptions") for name in self.measure.corruptions),
        )
        for registry, name, key in named:
            if (registry is bodies or registry is head_inits) and name.startswith(GIVEN):
                continue  # an object that a program has passed: it is looked up when the network is built
            with messages_name_encoder() if key == "model.encoder" else nullcontext():
                registry.look_up(name, key)  # raises RequestError with the nearest name
        return self

    @property
    def lora(self) -> Lora | None:
        """The adapters of the body, or None. The rank is model.lora.rank; if that is 0 and the method or
        personalize.part names adapters, it is 8."""
        options = self.model.lora
        rank = options.rank
        if not rank and (self.method.uses_adapters or names_adapters(self.personalize.part)):
            rank = 8
        return Lora(rank, options.alpha, options.targets, options.dropout, options.base) if rank else None

    @classmethod
    def load(cls, path: str | Path | None = None, sets: Sequence[str] = ()) -> Config:
        """Read a TOML file (or nothing) and apply `KEY=VALUE` overrides in order."""
        tree = read_toml(Path(path)) if path is not None else {}
        return cls(**assign_all(tree, sets))

    @classmethod
    def of(cls, found: Any) -> Config:
        """The Config itself, or one made from a mapping of its sections."""
        if isinstance(found, Config):
            return found
        if isinstance(found, Mapping) and all(isinstance(section, str) for section in found):
            return cls(**found)
        raise RequestError(
            f"the config is {type(found).__name__} {found!r}. Expected: a torso.Config, such as "
            'Config(method="fedbabu") or Config.load("my.toml"), or a dict of the same words'
        )

    def but(self, *sets: str) -> Config:
        """The same experiment with some keys changed: `config.but("method.name=fedbabu", "run.seed=1")`."""
        return type(self)(**assign_all(self.as_tree(), sets))

    def as_tree(self) -> dict[str, Any]:
        """The complete config as nested dicts: the content of `config.toml`."""
        tree = {
            name: getattr(self, name).model_dump(mode="json") for name in type(self).model_fields if name != "method"
        }
        tree["method"] = method_to_config(self.method)
        return {name: tree[name] for name in type(self).model_fields}

    def as_toml(self) -> str:
        """The complete config as the text of `config.toml`."""
        return tomli_w.dumps(self.as_tree())


def explain(error: ValidationError) -> str:
    """The first problem of a pydantic error as one sentence: the key, the value, what is accepted."""
    problems = error.errors()
    first = problems[0]
    where = ".".join(str(step) for step in first["loc"])
    more = f" (and {len(problems) - 1} more mistake{'s' * (len(problems) > 2)})" if len(problems) > 1 else ""
    if first["type"] == "extra_forbidden":
        return _unknown_key(first["loc"]) + more
    found = first.get("input")
    message = first["msg"].removeprefix("Value error, ").replace("a valid tuple", "a list, such as [1, 2]")
    return f"{where} = {found!r} is not accepted: {message[:1].lower()}{message[1:]}.{more}"


def _unknown_key(location: tuple[int | str, ...]) -> str:
    section: Any = Config
    for step in location[:-1]:
        section = section.model_fields[str(step)].annotation
    known = list(section.model_fields)
    key = ".".join(str(step) for step in location)
    inner = [f"{name}.{key}" for name, kind in _sections().items() if len(location) == 1 and key in kind.model_fields]
    hint = f"; did you mean {' or '.join(map(repr, inner))}?" if inner else did_you_mean(str(location[-1]), known)
    return f"{key} is not a key{hint} Keys here: {', '.join(sorted(known))}"


def _sections() -> dict[str, type[BaseModel]]:
    """The sections of a config, such as `train`, and their keys."""
    kinds = {name: field.annotation for name, field in Config.model_fields.items()}
    return {name: kind for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, BaseModel)}


def describe_keys(model: type[BaseModel] = Config, prefix: str = "") -> dict[str, str]:
    """Every key → its default and meaning, for the docs. The keys of `method` are left out: its axes describe them."""
    rows: dict[str, str] = {}
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows |= describe_keys(inner, f"{prefix}{name}.")
        elif name != "method":
            default = "[]" if field.default == () else tomli_w.dumps({"x": field.default}).removeprefix("x = ").strip()
            meaning = f"; {field.description}" if field.description else ""
            rows[prefix + name] = f"default `{' '.join(default.split())}`{meaning}"
    return rows
