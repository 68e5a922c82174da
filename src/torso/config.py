"""An experiment as validated data: what `config.toml` holds, what `--set` changes, what `torso.run` takes.

Every key is `section.field`. A preset method is a starting point: any axis can be replaced (`method.drift=proximal`) or
adjusted (`method.drift.mu=0.1`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tomli_w
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    PlainValidator,
    ValidationError,
    model_validator,
)
from pydantic_core import core_schema

from torso.errors import RequestError, did_you_mean
from torso.kinds import AtMostMillion, Chance, Count, CountOrZero, Fraction, NotNegative, Positive, Seed
from torso.learn.attacks import Attack, NoAttack, attacks
from torso.methods import Method, method_from_config, method_to_config
from torso.methods.parse import axis_from_config, axis_to_config
from torso.nets.lora import Lora
from torso.nets.parts import names_adapters
from torso.reading import is_text, parse_toml
from torso.registry import Registry


def _split(value: Any) -> Any:
    return [name.strip() for name in value.split(",")] if isinstance(value, str) else value


def _split_numbers(value: Any) -> Any:
    pieces = _split(value) if isinstance(value, str) else [value] if isinstance(value, int) else value
    if not isinstance(pieces, list | tuple):
        return pieces
    return [int(piece) if isinstance(piece, str) and piece.isdecimal() else piece for piece in pieces]


def _attack(value: Any) -> str | dict[str, Any]:
    """The name of a registered attack; a table of name and options where it has options."""
    chosen = value if isinstance(value, Attack) else axis_from_config("attack.kind", attacks, value, NoAttack())
    table = axis_to_config(attacks, chosen)
    return table if len(table) > 1 else str(table["name"])


Spread = Annotated[float, Field(ge=0, le=10)]
Names = Annotated[tuple[str, ...], BeforeValidator(_split)]  # a list, or names with commas between them
Counts = Annotated[tuple[CountOrZero, ...], BeforeValidator(_split_numbers)]  # the same with numbers


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class SyntheticConfig(_Section):
    """Sizes of the `synthetic` source: Gaussian clusters around one random image per class."""

    classes: Count = 10
    samples: Count = 5000
    test_samples: Count = 1000
    size: Annotated[int, Field(ge=1, le=10_000)] = 8
    channels: Count = 1
    noise: NotNegative = 0.25


class CsvConfig(_Section):
    """How the sources `csv`, `jsonl` and `parquet` read a table."""

    label: str = Field("label", description="column of the classes")
    client: str = Field("", description="column that says whose a row is, for data.partition = by-client; no feature")
    categorical: Names = Field(
        (), strict=False, description="columns of categories though they hold numbers, such as a postcode"
    )
    drop: Names = Field((), strict=False, description="columns that are no features, such as an id")
    text: Names = Field(
        (), strict=False, description="columns that hold the text of a row, joined by blanks; other columns are unused"
    )
    names: Names = Field(
        (), strict=False, description="names of the columns, in their order, of a .csv without a line of names"
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share of the rows held out for testing where there is no test.csv; of every client, or class"
    )
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="between the fields")


class TextConfig(_Section):
    """How texts become sequences of tokens."""

    length: CountOrZero = Field(
        0, description="most tokens of a text, what is longer is cut; 0: the longest text, or what the body takes"
    )
    vocabulary: Annotated[int, Field(ge=3, lt=2**31)] = Field(
        10_000, description="ids of the built-in word tokenizer, for bodies that bring no tokenizer"
    )
    empty: Literal["refuse", "skip"] = Field(
        "refuse", description="rows without a text: end with the line, or leave them out and say so"
    )


class NpzConfig(_Section):
    """What the arrays of the `npz` source are, where their dtypes do not say it."""

    kind: Literal["auto", "pixels", "floats", "tokens"] = Field(
        "auto",
        description="auto: uint8 are pixels, floats are numbers, integers with train_mask and test_mask are tokens",
    )
    pad: Annotated[int, Field(ge=-1, lt=2**31)] = Field(
        -1, description="token id of padding; -1: 0, or with masks an id that no token has"
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share of every client's samples held out for testing, class by class, without test_* arrays"
    )


class FolderConfig(_Section):
    """How the `folder` source reads image files."""

    layout: Literal["auto", "class", "client/class"] = Field(
        "auto",
        description="what the folders are, below train/ and test/ where there are any; auto: one level of folders is "
        "class, two levels are client/class",
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share of every client's images held out for testing, class by class, where there is no test/"
    )
    unreadable: Literal["skip", "refuse"] = Field(
        "skip", description="images that cannot be read: leave them out and say so, or end with their names"
    )


class DataConfig(_Section):
    """Where the samples come from and how they are dealt to clients (spec 10)."""

    source: str = Field("digits", description="see Data sources")
    root: str = Field("", description="file or folder of the data; empty: the source's usual place")
    clients: CountOrZero = Field(50, description="0: one client per writer (partition = writers, by-client)")
    partition: str = Field("shards", description="see Partitions")
    shards: Count = Field(2, description="pieces of one class per client (partition = shards, shards-sorted)")
    alpha: Positive = Field(0.3, description="concentration of the Dirichlet partitions; small: unequal")
    test_shards: CountOrZero = Field(0, description="> 0: deal the test data anew with this many shards (spec 9.5)")
    balance: bool = Field(False, description="deal what does not divide (shards) or even out sizes (dirichlet-class)")
    min_size: Count = Field(1, description="dirichlet-class is drawn again until every client has this many samples")
    imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(1.0, description="long tail, most / least")
    imbalance_test: bool = Field(False, description="cut the test set to the same long tail")
    per_class: CountOrZero = Field(
        0, description="train on so many samples of each class alone, drawn by the seed; 0: all"
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="hold out this share of every client's training samples and measure on it, not on test data"
    )
    new_clients: CountOrZero = Field(0, description="this many clients, drawn at random, never train")
    server_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="share of the training set on the server"
    )
    meta_per_class: Count = Field(
        10, description="training samples of each class that the server gives to everybody, for methods that use them"
    )
    augment: str = Field("auto", description="see Augmentations")
    normalize: Literal["source", "statistics"] = Field(
        "source",
        description="source: the constants that papers use with it; statistics: computed from the training samples",
    )
    size: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0, description="side in pixels to which images are resized, once; 0: as model.body wants them, or as they are"
    )
    synthetic: SyntheticConfig = SyntheticConfig()
    csv: CsvConfig = CsvConfig()
    text: TextConfig = TextConfig()
    npz: NpzConfig = NpzConfig()
    folder: FolderConfig = FolderConfig()


class LoraConfig(_Section):
    """Adapters (LoRA): the body is frozen, and layers W of it become W + (alpha / rank) · b·a."""

    rank: CountOrZero = Field(
        0, description="rank of the adapters; 0: none, or 8 where the method names lora, lora.a or lora.b as a part"
    )
    alpha: Positive = Field(16.0, description="the change of a layer is alpha / rank · b·a")
    targets: Names = Field(
        ("auto",),
        strict=False,
        description="layers that get an adapter: auto (those of attention that make queries and values; in a body "
        "without them, all), all (linear layers, convolutions without groups), or ends of names or regular expressions",
    )
    weights: str = Field(
        "", description="adapters to begin with: a folder that peft or torso.results.peft_file.save_adapters wrote"
    )
    dropout: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="on what adapters get of a layer's input; above 0, clients are computed one after the other"
    )
    base: Literal["eval", "train"] = Field(
        "eval",
        description="mode of the frozen body while adapters learn; eval: without its dropout, and clients share one "
        "forward pass; train: with its dropout, one client after the other",
    )


class ModelConfig(_Section):
    """Which network (spec 11) and how its head starts (spec 12.1)."""

    body: str = Field("mlp", description="see Networks; or torchvision/NAME, timm/NAME, hf/FOLDER-OR-ID")
    head_init: str = Field("default", description="see Head initialisations")
    head_bias: bool = Field(True, description="whether the head has a bias")
    weights: str = Field(
        "",
        description="a body trained elsewhere: a run folder, a file (.safetensors, .pth), or the library's own word, "
        "such as IMAGENET1K_V1 or pretrained",
    )
    norm: Literal["default", "batch", "running"] = Field(
        "default",
        description="statistics of BatchNorm in evaluation: the network's own way, the batch's, or running ones",
    )
    lora: LoraConfig = LoraConfig()


class TrainConfig(_Section):
    """The federated rounds and the local optimiser (spec 1.2 to 1.4)."""

    rounds: Count = Field(50, description="communication rounds")
    local_epochs: Count = Field(2, description="epochs of a participant in a round")
    fraction: Fraction = Field(0.2, description="share of the clients that take part in a round")
    min_clients: Count = Field(
        1, description="at least so many take part in a round and have to answer; it is repeated where fewer do"
    )
    batch_size: Count = Field(50, description="local batch; the last one of an epoch may be short")
    lr: Positive = Field(0.1, description="local learning rate of the first round")
    momentum: Annotated[float, Field(ge=0, lt=1)] = Field(0.9, description="of local SGD; begins anew in every round")
    weight_decay: NotNegative = Field(0.0, description="of local SGD")
    schedule: str = Field("step-half-3q", description="see Schedules")
    decay: Annotated[float, Field(gt=0, le=1)] = Field(0.99, description="factor per round of schedule = exp")
    head_lr_factor: NotNegative = Field(1.0, description="head lr / body lr (spec 3.2); 0 freezes the head")
    weighting: Literal["samples", "uniform"] = Field("samples", description="samples or uniform weights of the mean")


class PersonalizeConfig(_Section):
    """How a client's copy is fine-tuned before it is measured (spec 9.2)."""

    part: str = Field("method", description="part that is fine-tuned; method: as method.personal says")
    epochs: CountOrZero = Field(5, description="epochs of fine-tuning")
    lr: NotNegative = Field(0.001, description="learning rate of fine-tuning; momentum is the run's")
    batch_size: CountOrZero = Field(0, description="batch of fine-tuning; 0: the run's")
    sweep: Counts = Field((), strict=False, description="further numbers of epochs, measured in the same pass")


class AttackConfig(_Section):
    """Clients that spoil what the others learn (spec 9.6)."""

    kind: Annotated[str | dict[str, Any], PlainValidator(_attack)] = Field("none", description="see Attacks")
    fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="share of the training clients that attack, drawn once; unused where kind = none"
    )

    @property
    def chosen(self) -> Attack:
        chosen: Attack = axis_from_config("attack.kind", attacks, self.kind, NoAttack())
        return chosen


class PrivacyConfig(_Section):
    """Client-level differential privacy of what travels (docs/privacy.md); on where noise, epsilon or clip is set."""

    noise: AtMostMillion = Field(0.0, description="noise multiplier z: the noise of a round is N(0, z²·clip²)")
    epsilon: NotNegative = Field(0.0, description="budget ε of the whole run, from which noise is found; 0: none")
    delta: Annotated[float, Field(ge=0, lt=1)] = Field(0.0, description="δ of the budget; 0: N^−1.1 for N clients")
    clip: AtMostMillion = Field(
        0.0,
        description="largest length of a client's update, all tensors together; 0: 1.0 where noise or epsilon is set",
    )
    sampling: Literal["poisson", "fixed"] = Field(
        "poisson",
        description="participants of a round; poisson: each client independently with chance train.fraction; fixed: "
        "always as many, without replacement, which costs more of the budget",
    )
    quantile: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="> 0: clip adapts to this quantile of the updates' lengths, and begins at privacy.clip"
    )
    clip_rate: Annotated[float, Field(gt=0, le=10)] = Field(
        0.2, description="how fast clip adapts: clip · exp(−clip_rate · (share of updates within it − quantile))"
    )
    count_noise: AtMostMillion = Field(
        0.0,
        description="std of the noise on the count that clip adapts by; 0: a twentieth of the participants, or "
        "privacy.noise if that is more",
    )

    @model_validator(mode="after")
    def _one_of_two(self) -> PrivacyConfig:
        if self.noise and self.epsilon:
            raise ValueError(
                f"noise = {self.noise:g} and epsilon = {self.epsilon:g} are both set; epsilon finds the noise, so "
                "expected: one of the two"
            )
        return self

    @property
    def on(self) -> bool:
        return bool(self.noise or self.epsilon or self.clip)


class MeasureConfig(_Section):
    """What is measured and when (spec 9)."""

    every: CountOrZero = Field(0, description="measure every so many rounds; 0: only at the end")
    during: Names = Field(("initial",), strict=False, description="what is measured while training goes on")
    names: Names = Field(
        ("initial", "personalized", "without_head", "generic"),
        strict=False,
        description="what is measured at the end; see Measures",
    )
    analyses: Names = Field((), strict=False, description="what analyses.json holds beside class counts; see Analyses")
    analyses_every: Count = Field(1, description="rounds between looks of the analyses that are taken of rounds")
    clients: CountOrZero = Field(0, description="at most this many clients, drawn once; 0: all of them")
    batch_size: Count = Field(
        128, description="evaluation batch; matters where BatchNorm uses batch statistics (spec 9.9)"
    )
    templates: Literal["cosine", "l2"] = Field("cosine", description="nearest template of without_head (spec 9.3)")
    template_order: Literal["shuffled", "code"] = Field("shuffled", description="order in which templates see samples")


class RayConfig(_Section):
    """Where the workers of `run.engine = "ray"` are."""

    address: str = Field("local", description="local: on this machine; auto or HOST:PORT: a cluster that runs already")
    workers: CountOrZero = Field(0, description="processes that train clients; 0: as many as there is room for")
    gpus_per_worker: NotNegative = Field(0.0, description="accelerators of a worker, or a share of one; 0: CPU")
    wait: Positive = Field(60.0, description="seconds that a worker has to start, at first and in another's place")


class FaultsConfig(_Section):
    """Clients of a simulation that fail: the chance of each fault, per participant and round."""

    drop: Chance = Field(0.0, description="the client is not there")
    crash: Chance = Field(0.0, description="it trains, and breaks down before it uploads")
    late: Chance = Field(0.0, description="its upload comes after the deadline, and does not count")
    corrupt: Chance = Field(0.0, description="its upload arrives damaged, and is not taken in")

    @model_validator(mode="after")
    def _one_at_most(self) -> FaultsConfig:
        """A client has one fault in a round, or none."""
        total = self.drop + self.crash + self.late + self.corrupt
        if total > 1 + 1e-9:
            raise ValueError(f"the chances add up to {total:g}; a client has one fault at most, so expected: 1 or less")
        return self


class SpeedsConfig(_Section):
    """How long a visit lasts in a simulation: hours · exp(sigma · z_client + jitter · z_visit), z standard normal."""

    hours: Annotated[float, Field(gt=0, le=1e6)] = Field(
        1.0, description="simulated hours of a visit of the median client"
    )
    sigma: Spread = Field(0.0, description="how much clients differ: standard deviation of the log of their hours")
    jitter: Spread = Field(0.0, description="the same of one client's visits")

    @property
    def simulated(self) -> bool:
        """Whether somebody has set anything: then synchronous rounds take time, too."""
        return self != SpeedsConfig()


class SecureConfig(_Section):
    """Secure aggregation on a real federation: the server gets the sum of the uploads, and none of them."""

    kind: Literal["none", "secagg+"] = Field("none", description="secagg+: the server opens sums only (SecAgg+)")
    shares: CountOrZero = Field(
        0, description="participants that hold shares of a client's secrets, itself included; odd; 0: all of them"
    )
    threshold: Annotated[float, Field(ge=0.5, lt=1)] = Field(
        0.6667, description="more than this share of them, and at least 3, have to answer for a sum to be opened"
    )
    clip: Positive = Field(8.0, description="a change of a weight that is larger is sent as this")
    bits: Annotated[int, Field(ge=8, le=28)] = Field(
        22, description="a number is rounded to 2^bits steps between −clip and clip; participants · 2^bits < 2^32"
    )

    @model_validator(mode="after")
    def _a_ring(self) -> SecureConfig:
        """A client has as many neighbours on one side as on the other."""
        if self.shares and (self.shares < 3 or self.shares % 2 == 0):
            raise ValueError(f"shares = {self.shares}; expected: 0, or an odd number from 3 on")
        return self


class FlowerConfig(_Section):
    """How patient the server of a real federation is (`torso federation run`)."""

    clients: CountOrZero = Field(
        0, description="clients to wait for before the run begins; 0: as many as train.min_clients"
    )
    wait: Positive = Field(600.0, description="seconds to wait for clients, at first and when too few are left")
    deadline: Positive = Field(600.0, description="seconds that a client has to answer in a round")
    secure: SecureConfig = SecureConfig()


class RunConfig(_Section):
    """Seed, device and bookkeeping."""

    seed: Seed = Field(0, description="of everything random: partition, weights, participants, batches")
    device: str = Field("auto", description="auto: cuda where there is one, else cpu")
    engine: str = Field(
        "auto",
        description="where clients run: one-by-one, batched, auto (batched on an accelerator), ray (a cluster), or "
        "flower (a real federation: torso federation run)",
    )
    workers: CountOrZero = Field(
        0, description="threads that train clients side by side on CPU; 0: one per core (engine = ray: one per worker)"
    )
    clients_at_once: CountOrZero = Field(
        0, description="clients stacked into one step; 0: as many as fit (batched), one (one-by-one)"
    )
    precision: Literal["auto", "fp32", "tf32", "bf16"] = Field(
        "auto", description="of training on an accelerator; auto: tf32. Evaluation, and everything on CPU, is fp32"
    )
    features: Literal["auto", "off", "device", "disk"] = Field(
        "auto",
        description="where the features of a body that does not move are kept, each computed once; device: in memory; "
        "disk: in a file that later runs find; auto: in memory if they fit, else in a file; off: computed every time",
    )
    checkpoint_every: CountOrZero = Field(
        10, description="rounds between checkpoints; 0: only when stopped and at the end"
    )
    faults: FaultsConfig = FaultsConfig()
    speeds: SpeedsConfig = SpeedsConfig()
    ray: RayConfig = RayConfig()
    flower: FlowerConfig = FlowerConfig()


class _MethodField:
    """Lets pydantic take a Method, a preset's name, or a table of axes, and keep a Method."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: Any, __: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(method_from_config)


class Config(_Section):
    """One experiment. Build it from keywords, or with `Config.load` from a file and `--set` overrides."""

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
        """Pre-trained weights bring a learning rate of their own, where nobody has set one."""
        from torso.nets import wants_of

        model, train = tree.get("model"), tree.get("train", {})
        if not isinstance(model, Mapping) or not isinstance(train, Mapping) or "lr" in train:
            return tree
        body, weights = model.get("body"), model.get("weights")
        lr = wants_of(body, weights).lr if weights and isinstance(body, str) and isinstance(weights, str) else 0.0
        return {**tree, "train": {**train, "lr": lr}} if lr else tree

    @model_validator(mode="after")
    def _names_exist(self) -> Config:
        """Look every name up now, so that a wrong one is refused before data are read or a folder is made."""
        from torso.data import augmentations, partitions, sources
        from torso.engine import engines
        from torso.learn.schedule import schedules
        from torso.measure import measures
        from torso.measure.analyses import analyses
        from torso.nets import bodies, head_inits
        from torso.nets.bodies import GIVEN

        names, during = self.measure.names, self.measure.during
        named: tuple[tuple[Registry[Any], str, str], ...] = (
            (sources, self.data.source, "data.source"),
            (partitions, self.data.partition, "data.partition"),
            (augmentations, self.data.augment, "data.augment"),
            (bodies, self.model.body, "model.body"),
            (head_inits, self.model.head_init, "model.head_init"),
            (schedules, self.train.schedule, "train.schedule"),
            (engines, self.run.engine, "run.engine"),
            *((measures, name, "measure.names") for name in names),
            *((measures, name, "measure.during") for name in during),
            *((analyses, name, "measure.analyses") for name in self.measure.analyses),
        )
        for registry, name, key in named:
            if (registry is bodies or registry is head_inits) and name.startswith(GIVEN):
                continue  # a module of a program: looked for where the network is built
            registry.look_up(name, key)  # raises RequestError with the nearest name
        return self

    @property
    def lora(self) -> Lora | None:
        """The adapters of the body: as model.lora says, of rank 8 where only a part asks for them; None: none."""
        asked = self.model.lora
        named = self.method.uses_adapters or names_adapters(self.personalize.part)
        rank = asked.rank or (8 if named else 0)
        return Lora(rank, asked.alpha, asked.targets, asked.dropout, asked.base) if rank else None

    @classmethod
    def load(cls, path: str | Path | None = None, sets: Sequence[str] = ()) -> Config:
        """Read a TOML file (or nothing) and apply `KEY=VALUE` overrides in order."""
        tree = read_toml(Path(path)) if path is not None else {}
        return cls(**assign_all(tree, sets))

    @classmethod
    def of(cls, found: Any) -> Config:
        """A Config as it is, or one from a mapping of the same words."""
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
        """Plain nested data, complete: what `config.toml` holds."""
        tree = {
            name: getattr(self, name).model_dump(mode="json") for name in type(self).model_fields if name != "method"
        }
        tree["method"] = method_to_config(self.method)
        return {name: tree[name] for name in type(self).model_fields}

    def as_toml(self) -> str:
        """The same as text: `config.toml` of a run."""
        return tomli_w.dumps(self.as_tree())


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return parse_toml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RequestError(
            f"config {str(path)!r} does not exist. Give a TOML file, or leave it out for the defaults."
        ) from None
    except (OSError, ValueError) as error:
        raise RequestError(f"config {str(path)!r} cannot be read as TOML: {error}") from None


def assign_all(tree: dict[str, Any], sets: Sequence[str]) -> dict[str, Any]:
    """Apply overrides in order, `method.name` before the rest: a preset is where the other method keys start from."""
    for assignment in sorted(sets, key=lambda text: text.partition("=")[0].strip() != "method.name"):
        assign(tree, assignment)
    return tree


def assign(tree: dict[str, Any], assignment: str) -> None:
    """Apply one `KEY=VALUE` to a nested tree; `method.drift.mu=1` after `method.drift=proximal` extends the choice."""
    if not is_text(assignment):
        raise RequestError(f"--set {assignment!r} holds bytes that are no UTF-8 text.")
    path, equals, text = assignment.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys) or len(keys) < 2:
        raise RequestError(
            f"--set {assignment!r} is not KEY=VALUE with a key like train.lr. Example: --set train.lr=0.1"
        )
    if keys[0] == "method" and keys[1] == "name":
        tree["method"] = {}  # a new preset starts from its own axes
    node = tree
    for level, name in enumerate(keys[:-1]):
        child = node.get(name, {})
        if isinstance(child, str):
            child = {"name": child}
        if not isinstance(child, dict):
            raise RequestError(
                f"--set {assignment!r}: {'.'.join(keys[: level + 1])} is a value, not a table with keys."
            )
        node[name] = child
        node = child
    node[keys[-1]] = parse_value(text)


def parse_value(text: str) -> Any:
    """A TOML value where it parses as one (numbers, booleans, lists), otherwise the text itself."""
    spellings = [text, text.lower()]  # True and .5 are no TOML, and clear enough
    if re.fullmatch(r"\s*\.\d.*", text):
        spellings.append(f"0{text.strip()}")
    for spelling in spellings:
        try:
            return parse_toml(f"value = {spelling}")["value"]
        except ValueError:
            continue
    return text


def explain(error: ValidationError) -> str:
    """The first problem of a pydantic error as one sentence: key, value, what would do."""
    problems = error.errors()
    first = problems[0]
    where = ".".join(str(step) for step in first["loc"])
    more = f" ({len(problems) - 1} more after that)" if len(problems) > 1 else ""
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
    return f"{key} is not a key{did_you_mean(str(location[-1]), known)} Keys here: {', '.join(sorted(known))}"


def describe_keys(model: type[BaseModel] = Config, prefix: str = "") -> dict[str, str]:
    """Every key with its default and meaning, for the docs; the method's keys are told by its axes."""
    rows: dict[str, str] = {}
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            rows |= describe_keys(inner, f"{prefix}{name}.")
        elif name != "method":
            default = tomli_w.dumps({"x": field.default}).removeprefix("x = ").strip() if field.default != () else "[]"
            rows[prefix + name] = f"default `{' '.join(default.split())}`" + (
                f"; {field.description}" if field.description else ""
            )
    return rows
