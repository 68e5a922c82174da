"""Sources that read arrays from an .npz file: `npz` for the user's own, and `femnist` with its writers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from torso.data.fetch_catalogue import hint
from torso.data.images import Dataset, Images, Labelled, as_images, as_samples, none_of_class_0
from torso.data.inputs import Array, Floats, Input, Pixels, Tokens, check_constants
from torso.data.naming import in_natural_order
from torso.data.parted import parted
from torso.data.sources.base import BLACK_ON_WHITE, reading, root_of, sources
from torso.errors import RequestError

if TYPE_CHECKING:
    from torso.config import DataConfig

_SPLITS = ("train", "test")
_KEYS = "an .npz file with train_images, train_labels, test_images and test_labels"
_NPZ = (
    f"{_KEYS} (and train_writers, test_writers where known; without test_… arrays a part is held out); train_samples, "
    "test_samples if they are no images"
)
_FEMNIST = f"{_KEYS}, train_writers and test_writers, or a folder with one such femnist*.npz{hint('femnist')}"


@sources.register("npz")
def npz(options: DataConfig, seed: int) -> Dataset:
    """Your own arrays: an .npz with train_images, train_labels, test_images, test_labels (and *_writers); for samples
    that are no images train_samples and test_samples, floats of any shape or token ids (and *_mask). Without test_*
    arrays, a part is held out."""
    path = root_of(options, _NPZ)
    arrays = read_npz(path, _NPZ, parts=())
    if has_test_part(arrays) or not any(key.startswith("train_") for key in arrays):
        return dataset_of(path, arrays, options)
    both = {key.replace("train_", "test_", 1): array for key, array in arrays.items() if key.startswith("train_")}
    whole = dataset_of(path, {**arrays, **both}, options)
    rows, held = parted(whole.train.writers, whole.train.labels, options.npz.test_share)
    return replace(whole, train=whole.train.take(rows), test=whole.train.take(held))


def has_test_part(arrays: Iterable[str]) -> bool:
    """Whether a file has a test part, by the names of its arrays."""
    return any(key.startswith("test_") for key in arrays)


def dataset_of(path: Path, arrays: dict[str, np.ndarray], options: DataConfig) -> Dataset:
    """The data set in the arrays of a file. Besides the splits a file may have `class_names`, `feature_names`, `mean`
    and `std`, the `vocabulary` (a number) and `pad` of tokens, and the `name` of the data set."""
    arrays, clients = name_writers(path, arrays)
    if any(f"{split}_samples" in arrays for split in ("train", "test")):
        train, test, kind = _any_samples(path, check_parts(path, arrays, _NPZ, ("samples", "labels")), options)
    elif options.npz.kind not in ("auto", "pixels"):
        raise RequestError(
            f"data.npz.kind = {options.npz.kind!r} is of train_samples and test_samples, and {path} has "
            f"{', '.join(arrays) or 'nothing'}. Expected: {_NPZ}"
        )
    else:
        (train, test), kind = read_splits(path, _NPZ, arrays), None
    top = int(train.labels.max())
    names = _words(path, arrays, "class_names")
    if not names and top >= len(train):
        noun = "images" if kind is None else kind.noun
        raise RequestError(
            f"{path}: train label {top} with only {len(train)} {noun}. Expected: classes numbered from 0 up"
        )
    remarks = () if names else none_of_class_0(train, test)
    names = names or tuple(map(str, range(top + 1)))
    mean, std = _constants(path, arrays)
    title = _words(path, arrays, "name") or (path.stem,)
    return Dataset(
        title[0],
        train,
        test,
        classes=len(names),
        mean=mean,
        std=std,
        input=kind,
        class_names=names,
        names=clients,
        remarks=remarks,
    )


def _words(path: Path, arrays: dict[str, np.ndarray], key: str) -> tuple[str, ...]:
    """The words of an array, which must all be different; () if the array is missing."""
    found = np.atleast_1d(arrays.get(key, np.zeros(0, np.str_)))
    words = tuple(found.tolist()) if found.ndim == 1 and found.dtype.kind == "U" else ()
    if len(set(words)) != found.size or "" in words:
        raise RequestError(
            f"{path}: {key} are {found.dtype} {list(found.shape)}, {len(set(words))} of them different. "
            "Expected: words, shape [n], each of them once"
        )
    return words


def _constants(path: Path, arrays: dict[str, np.ndarray]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and std, if the file has them. Their number is checked later, together with the samples."""
    found = [arrays[key] for key in ("mean", "std") if key in arrays]
    if not found:
        return (), ()
    if len(found) == 1 or any(array.ndim != 1 or array.dtype.kind not in "fiu" for array in found):
        shapes = ", ".join(f"{array.dtype} {list(array.shape)}" for array in found)
        raise RequestError(f"{path}: mean and std are {shapes}. Expected: both, numbers, shape [channels or features]")
    mean, std = (tuple(array.astype(np.float64).tolist()) for array in found)
    check_constants(mean, std, len(mean), str(path), "channel or feature")
    return mean, std


def _number(path: Path, arrays: dict[str, np.ndarray], key: str, usual: int) -> int:
    """The whole number in an array of size 1; `usual` if the array is missing."""
    found = arrays.get(key, np.array(usual))
    if found.size != 1 or found.dtype.kind not in "iu" or not -1 <= found.item() < 2**31:
        raise RequestError(f"{path}: {key} is {found.dtype} {list(found.shape)}. Expected: one whole number")
    return int(found.item())


def _any_samples(
    path: Path, arrays: dict[str, np.ndarray], options: DataConfig
) -> tuple[Labelled, Labelled, Input | None]:
    """Both splits of train_samples and test_samples, and their kind; None: the arrays determine it."""
    _check_writers(path, arrays)
    kind_name = _kind(path, arrays, options)
    samples: dict[str, Array]  # by split
    kind: Input | None = None
    if kind_name == "tokens":
        pad = options.npz.pad if options.npz.pad >= 0 else _number(path, arrays, "pad", -1)
        kind, samples = _tokens(path, arrays, pad)
    else:
        convert = Pixels.array if kind_name == "pixels" else Floats.array
        samples = {split: convert(f"{path} {split}", arrays[f"{split}_samples"]) for split in _SPLITS}
        if kind_name == "floats" and "feature_names" in arrays:
            kind = Floats(samples["train"].shape[1:], names=_words(path, arrays, "feature_names"))
    train, test = (
        as_samples(f"{path} {split}", samples[split], arrays[f"{split}_labels"], arrays.get(f"{split}_writers"))
        for split in _SPLITS
    )
    return train, test, kind


def _kind(path: Path, arrays: dict[str, np.ndarray], options: DataConfig) -> str:
    """The kind of samples: `data.npz.kind`, or if that is auto the kind that the dtype and the masks imply."""
    if options.npz.kind != "auto":
        return options.npz.kind
    found = arrays["train_samples"]
    if found.dtype == np.uint8:
        return "pixels"
    if found.dtype.kind == "f":
        return "floats"
    if found.dtype.kind in "iu" and ("train_mask" in arrays or "vocabulary" in arrays):
        return "tokens"
    raise RequestError(
        f"{path}: train_samples are {found.dtype} {list(found.shape)} without a train_mask, which may be numbers or "
        "token ids. Say which: data.npz.kind = floats or tokens"
    )


def _tokens(path: Path, arrays: dict[str, np.ndarray], pad: int) -> tuple[Tokens, dict[str, Array]]:
    """The sequences of both splits, and their common kind. `pad` < 0: the id of padding is not given."""
    masked = [f"{split}_mask" in arrays for split in _SPLITS]
    if any(masked) != all(masked):
        raise RequestError(f"{path} has a mask for one split only. Expected: both train_mask and test_mask, or neither")
    sequences = {split: Tokens.array(f"{path} {split}", arrays[f"{split}_samples"]) for split in _SPLITS}
    highest_id = max(int(ids.max()) for ids in sequences.values())
    if pad < 0:
        pad = highest_id + 1 if all(masked) else 0
    if all(masked):
        sequences = {
            split: Tokens.array(f"{path} {split}", ids, arrays[f"{split}_mask"], pad)
            for split, ids in sequences.items()
        }
    vocabulary = max(_number(path, arrays, "vocabulary", 0), highest_id + 1, pad + 1)
    tokenizer = str(arrays["tokenizer"]) if "tokenizer" in arrays else ""
    length = max(ids.shape[1] for ids in sequences.values())
    kind = Tokens(length, vocabulary, pad, tokenizer)
    return kind, {split: kind.accept(f"{path} {split}", ids) for split, ids in sequences.items()}


@sources.register("femnist")
def femnist(options: DataConfig, seed: int) -> Dataset:
    """Handwritten characters in 62 classes with their writers, from an .npz file; `torso data get femnist`."""
    root = root_of(options, _FEMNIST)
    found = sorted(root.glob("femnist*.npz")) if root.is_dir() else [root]
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise RequestError(
            f"data.root = {str(root)!r} holds {len(found)} files femnist*.npz ({names}). Expected: {_FEMNIST}"
        )
    arrays, writers = name_writers(found[0], read_npz(found[0], _FEMNIST))
    train, test = read_splits(found[0], _FEMNIST, arrays)
    if train.writers is None:
        raise RequestError(f"{found[0]} has no train_writers and test_writers. Expected: {_FEMNIST}")
    mean, std = BLACK_ON_WHITE
    return Dataset("femnist", train, test, 62, mean, std, names=writers)


def read_splits(path: Path, expected: str, arrays: dict[str, np.ndarray]) -> tuple[Images, Images]:
    """Both splits of train_images and test_images."""
    check_parts(path, arrays, expected, ("images", "labels"))
    _check_writers(path, arrays)
    train, test = (
        as_images(f"{path} {split}", *(arrays.get(f"{split}_{part}") for part in ("images", "labels", "writers")))
        for split in _SPLITS
    )
    return train, test


def name_writers(path: Path, arrays: dict[str, np.ndarray]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """The arrays with writers numbered from 0 in their natural order, and the names of the writers.

    In the file writers are words or whole numbers; number 17 gets the name `writer-17`."""
    _check_writers(path, arrays)
    keys = [f"{split}_writers" for split in _SPLITS if f"{split}_writers" in arrays]
    found = [arrays[key] for key in keys]
    if not found or any(array.ndim != 1 for array in found):
        return arrays, ()  # a wrong shape is refused later, when all arrays of a split are checked
    are_words = all(array.dtype.kind == "U" for array in found)
    if not are_words and not all(array.dtype.kind in "iu" for array in found):
        dtypes = ", ".join(str(array.dtype) for array in found)
        raise RequestError(f"{path}: writers are {dtypes}. Expected: words or integers, alike in both splits")
    writers, place = np.unique(np.concatenate(found), return_inverse=True)
    if are_words:
        if "" in writers:
            raise RequestError(f"{path}: a sample has no writer (an empty word). Expected: a name for each")
        names = in_natural_order(writers.tolist())
        number_of = {name: number for number, name in enumerate(names)}
        numbers = np.array([number_of[name] for name in writers.tolist()], np.int64)
    else:
        names = [f"writer-{number}" for number in writers.tolist()]
        numbers = np.arange(len(writers), dtype=np.int64)
    by_split = np.split(numbers[place], [len(found[0])])
    return {**arrays, **dict(zip(keys, by_split, strict=True))}, tuple(names)


def _check_writers(path: Path, arrays: dict[str, np.ndarray]) -> None:
    has = [f"{split}_writers" in arrays for split in _SPLITS]
    if any(has) and not all(has):
        raise RequestError(
            f"{path} has writers for one split only. Expected: both train_writers and test_writers, or neither"
        )


def read_npz(path: Path, expected: str, parts: tuple[str, ...] = ("images", "labels")) -> dict[str, np.ndarray]:
    """All arrays of the file; pickled ones are refused. Both splits must have the arrays `parts`."""
    with reading(path, expected), _without_objects(path, expected):
        archive: Any = np.load(path, allow_pickle=False)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise RequestError(f"{path} is one array, not an archive of arrays. Expected: {expected}")
        with archive:
            arrays = {name: archive[name] for name in archive.files}
    return check_parts(path, arrays, expected, parts)


@contextmanager
def _without_objects(path: Path, expected: str) -> Iterator[None]:
    """Replace NumPy's error for pickled content. NumPy takes any file that is no archive for a pickle, and advises to
    allow it."""
    try:
        yield
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
        raise RequestError(
            f"{path} is no archive of arrays, or has an array of Python objects, which is never loaded: it may hold "
            f"code. Expected: {expected}"
        ) from None


def check_parts(
    path: Path, arrays: dict[str, np.ndarray], expected: str, parts: tuple[str, ...]
) -> dict[str, np.ndarray]:
    """The arrays, unchanged; refused if a split lacks one of `parts`."""
    missing = [f"{split}_{part}" for split in _SPLITS for part in parts if f"{split}_{part}" not in arrays]
    if missing:
        raise RequestError(
            f"{path} has no {', '.join(missing)} (it has {', '.join(arrays) or 'nothing'}). Expected: {expected}"
        )
    return arrays
