"""The section `data`: where samples come from, and how they are dealt to clients."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from torso.config.section import Names, Section
from torso.kinds import Count, CountOrZero, NotNegative, Positive


class SyntheticConfig(Section):
    """Sizes of the `synthetic` source: Gaussian clusters around one random image per class."""

    classes: Count = 10
    samples: Count = 5000
    test_samples: Count = 1000
    size: Annotated[int, Field(ge=1, le=10_000)] = 8
    channels: Count = 1
    noise: NotNegative = 0.25


class CsvConfig(Section):
    """How the sources `csv`, `jsonl` and `parquet` read a table."""

    label: str = Field("label", description="column of the classes")
    client: str = Field(
        "", description="column with the client of each row, for data.partition = by-client; not used as a feature"
    )
    categorical: Names = Field(
        (), strict=False, description="columns of numbers that are categories, such as a postcode"
    )
    drop: Names = Field((), strict=False, description="columns that are not used as features, such as an id")
    text: Names = Field(
        (), strict=False, description="columns that hold the text of a row, joined by blanks; other columns are unused"
    )
    names: Names = Field(
        (), strict=False, description="names of the columns in their order, for a .csv without a header line"
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2,
        description="share of the rows of every client (without clients: of every class) held out for testing, if "
        "there is no test.csv",
    )
    delimiter: Annotated[str, Field(min_length=1, max_length=1)] = Field(",", description="character between fields")


class TextConfig(Section):
    """How texts become sequences of tokens."""

    length: CountOrZero = Field(
        0,
        description="most tokens of a text, longer texts are cut; 0: as many as the longest text has, at most what the "
        "body takes",
    )
    vocabulary: Annotated[int, Field(ge=3, lt=2**31)] = Field(
        10_000, description="number of ids of the built-in word tokenizer, for bodies that bring no tokenizer"
    )
    empty: Literal["refuse", "skip"] = Field(
        "refuse",
        description="rows without a text; refuse: an error names the line; skip: they are left out with a remark",
    )


class NpzConfig(Section):
    """The kind of the `npz` source's arrays, if their dtypes do not determine it."""

    kind: Literal["auto", "pixels", "floats", "tokens"] = Field(
        "auto",
        description="auto: uint8 are pixels, floats are numbers, integers with train_mask and test_mask are tokens",
    )
    pad: Annotated[int, Field(ge=-1, lt=2**31)] = Field(
        -1, description="token id of padding; -1: 0, or with masks an id that no token has"
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2,
        description="share of every client's samples held out for testing, class by class, if the file has no test_* "
        "arrays",
    )


class FolderConfig(Section):
    """How the `folder` source reads image files."""

    layout: Literal["auto", "class", "client/class"] = Field(
        "auto",
        description="what the folders are, below train/ and test/ if these exist; auto: one level of folders is "
        "class, two levels are client/class",
    )
    test_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.2, description="share of every client's images held out for testing, class by class, if there is no test/"
    )
    unreadable: Literal["skip", "refuse"] = Field(
        "skip",
        description="images that cannot be read; skip: they are left out with a remark; refuse: an error names them",
    )


class DataConfig(Section):
    """The source of the samples, and how they are dealt to clients (spec 10)."""

    source: str = Field("digits", description="see Data sources")
    root: str = Field("", description="file or folder of the data; empty: the source's usual place")
    clients: CountOrZero = Field(
        50, description="number of clients; 0: one client per writer (partition = writers, by-client)"
    )
    partition: str = Field("shards", description="see Partitions")
    shards: Count = Field(2, description="pieces of one class per client (partition = shards, shards-sorted)")
    alpha: Positive = Field(0.3, description="concentration of the Dirichlet partitions; small: unequal clients")
    test_shards: CountOrZero = Field(
        0, description="> 0: deal the test data again, independently, with this many shards per client (spec 9.5)"
    )
    balance: bool = Field(
        False,
        description="shards: also deal shards that do not divide among the classes; dirichlet-class, dirichlet-floor: "
        "even out the clients' sizes",
    )
    min_size: Count = Field(
        1, description="dirichlet-class and dirichlet-floor are drawn again until every client has this many samples"
    )
    floor: Count = Field(2, description="samples of every class that every client has first (dirichlet-floor)")
    seed: Annotated[int, Field(ge=-1, lt=2**63)] = Field(
        -1,
        description="seed of the data and of dealing them to clients; -1: run.seed. Set it to use the same partition "
        "with every run.seed",
    )
    test_order: Literal["mixed", "by-class"] = Field(
        "mixed",
        description="order of a client's test data; it matters if BatchNorm uses batch statistics (spec 9.9)",
    )
    imbalance: Annotated[float, Field(ge=1, allow_inf_nan=False)] = Field(
        1.0, description="long tail: size of the largest class / size of the smallest; 1: not cut"
    )
    imbalance_test: bool = Field(False, description="cut the test set to the same long tail")
    per_class: CountOrZero = Field(
        0, description="train on this many samples of each class only, drawn by the seed; 0: all"
    )
    validation: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0, description="hold out this share of every client's training samples and measure on it, not on test data"
    )
    new_clients: CountOrZero = Field(0, description="number of clients, drawn at random, that never train")
    server_fraction: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="share of the training set on the server"
    )
    meta_per_class: Count = Field(
        10, description="training samples of each class that the server gives to all clients, if the method uses them"
    )
    augment: str = Field("auto", description="see Augmentations")
    normalize: Literal["source", "statistics"] = Field(
        "source",
        description="mean and std; source: the constants that papers use with this source; statistics: computed from "
        "the training samples",
    )
    size: Annotated[int, Field(ge=0, le=10_000)] = Field(
        0,
        description="side in pixels to which images are resized once; 0: the size that model.body expects, or the "
        "images' own",
    )
    synthetic: SyntheticConfig = SyntheticConfig()
    csv: CsvConfig = CsvConfig()
    text: TextConfig = TextConfig()
    npz: NpzConfig = NpzConfig()
    folder: FolderConfig = FolderConfig()
