"""The data sets that `torso data get` downloads: addresses, sizes, checksums, terms.

Sizes and SHA-256 are from the checksum lists of TensorFlow Datasets (MNIST, Fashion-MNIST, KMNIST, EMNIST, SVHN), from
Keras (CIFAR), and from public records of the same files (Tiny ImageNet, FEMNIST). For CINIC-10 only an MD5 is known;
the SHA-256 of the downloaded file is written into a file next to it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class RemoteFile:
    """One file to download; `urls` are tried in this order."""

    name: str
    size: int  # bytes
    urls: tuple[str, ...]
    sha256: str = ""
    md5: str = ""  # checked if no SHA-256 is known


@dataclass(frozen=True)
class DataSet:
    """A data set that can be downloaded; `data.source = NAME` then reads it."""

    name: str
    title: str
    train: int  # number of training images
    test: int  # number of test images
    size: str  # of an image, for lists
    classes: int
    terms: str  # licence or request to cite
    page: str  # address of its web page
    files: tuple[RemoteFile, ...]
    folder: str = ""  # its folder in the data folder; empty: the name
    makes: str = ""  # the .npz file that is made from the files; empty: the source reads the files themselves
    room: int = 0  # approximate size of that .npz file in bytes
    scratch: int = 0  # bytes on disk that are needed only while it is made

    def place(self, home: Path) -> Path:
        """The folder with its files."""
        return home / (self.folder or self.name)

    @property
    def download(self) -> int:
        """Bytes to download."""
        return sum(file.size for file in self.files)

    @property
    def about(self) -> str:
        return f"{self.title}: {self.train:,} / {self.test:,} images of {self.size} in {self.classes} classes"

    def is_in(self, home: Path) -> bool:
        """Whether all files that its source reads exist."""
        names = [self.makes] if self.makes else [file.name for file in self.files]
        return all((self.place(home) / name).is_file() for name in names)


@dataclass(frozen=True)
class ManualDataSet:
    """A data set that the user must download by hand, because its owner wants an agreement first."""

    name: str
    about: str
    terms: str
    page: str  # address to download it from
    then: str  # what to do with the downloaded files


def _idx(bases: tuple[str, ...], sums: dict[str, tuple[int, str]]) -> tuple[RemoteFile, ...]:
    """The four gzip'd IDX files of a data set in the format of MNIST."""
    return tuple(
        RemoteFile(name, size, tuple(f"{base}{name}" for base in bases), sha256)
        for name, (size, sha256) in sums.items()
    )


_TRAIN, _TRAIN_LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
_TEST, _TEST_LABELS = "t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"
_CIFAR = "https://www.cs.toronto.edu/~kriz/"

_EMNIST_ZIP = RemoteFile(
    "gzip.zip",
    561_753_746,
    (
        "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
        "https://www.itl.nist.gov/iaui/vip/cs_links/EMNIST/gzip.zip",
    ),
    "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e",
)
_EMNIST = {  # split → classes, training images, test images
    "balanced": (47, 112_800, 18_800),
    "byclass": (62, 697_932, 116_323),
    "bymerge": (47, 697_932, 116_323),
    "digits": (10, 240_000, 40_000),
    "letters": (26, 124_800, 20_800),
    "mnist": (10, 60_000, 10_000),
}


def _emnist(split: str) -> DataSet:
    classes, train, test = _EMNIST[split]
    return DataSet(
        f"emnist-{split}",
        f"EMNIST, handwritten characters, split {split}",
        train,
        test,
        "28×28",
        classes,
        "cite Cohen et al. 2017",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        (_EMNIST_ZIP,),
        folder="emnist",
        makes=f"emnist-{split}.npz",
        room=500 * (train + test),
    )


KNOWN = (
    DataSet(
        "cifar10",
        "CIFAR-10",
        50_000,
        10_000,
        "32×32×3",
        10,
        "cite Krizhevsky 2009",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (
            RemoteFile(
                "cifar-10-python.tar.gz",
                170_498_071,
                (f"{_CIFAR}cifar-10-python.tar.gz",),
                "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
            ),
        ),
    ),
    DataSet(
        "cifar100",
        "CIFAR-100",
        50_000,
        10_000,
        "32×32×3",
        100,
        "cite Krizhevsky 2009",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        (
            RemoteFile(
                "cifar-100-python.tar.gz",
                169_001_437,
                (f"{_CIFAR}cifar-100-python.tar.gz",),
                "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
            ),
        ),
    ),
    DataSet(
        "mnist",
        "MNIST, handwritten digits",
        60_000,
        10_000,
        "28×28",
        10,
        "CC BY-SA 3.0",
        "http://yann.lecun.com/exdb/mnist/",
        _idx(
            (
                "https://storage.googleapis.com/cvdf-datasets/mnist/",
                "https://ossci-datasets.s3.amazonaws.com/mnist/",
            ),
            {
                _TRAIN: (9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                _TRAIN_LABELS: (28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                _TEST: (1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                _TEST_LABELS: (4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
            },
        ),
    ),
    DataSet(
        "fashion-mnist",
        "Fashion-MNIST, clothes",
        60_000,
        10_000,
        "28×28",
        10,
        "MIT",
        "https://github.com/zalandoresearch/fashion-mnist",
        _idx(
            (
                "https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion/",
                "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
            ),
            {
                _TRAIN: (26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                _TRAIN_LABELS: (29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                _TEST: (4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                _TEST_LABELS: (5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
            },
        ),
    ),
    DataSet(
        "kmnist",
        "Kuzushiji-MNIST, Japanese characters",
        60_000,
        10_000,
        "28×28",
        10,
        "CC BY-SA 4.0",
        "http://codh.rois.ac.jp/kmnist/",
        _idx(
            ("http://codh.rois.ac.jp/kmnist/dataset/kmnist/",),
            {
                _TRAIN: (18_165_135, "51467d22d8cc72929e2a028a0428f2086b092bb31cfb79c69cc0a90ce135fde4"),
                _TRAIN_LABELS: (29_497, "e38f9ebcd0f3ebcdec7fc8eabdcdaef93bb0df8ea12bee65224341c8183d8e17"),
                _TEST: (3_041_136, "edd7a857845ad6bb1d0ba43fe7e794d164fe2dce499a1694695a792adfac43c5"),
                _TEST_LABELS: (5_120, "20bb9a0ef54c7db3efc55a92eef5582c109615df22683c380526788f98e42a1c"),
            },
        ),
    ),
    *(_emnist(split) for split in _EMNIST),
    DataSet(
        "svhn",
        "SVHN, cropped house numbers without the extra images",
        73_257,
        26_032,
        "32×32×3",
        10,
        "non-commercial",
        "http://ufldl.stanford.edu/housenumbers/",
        (
            RemoteFile(
                "train_32x32.mat",
                182_040_794,
                ("http://ufldl.stanford.edu/housenumbers/train_32x32.mat",),
                "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
            ),
            RemoteFile(
                "test_32x32.mat",
                64_275_384,
                ("http://ufldl.stanford.edu/housenumbers/test_32x32.mat",),
                "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
            ),
        ),
        makes="svhn.npz",
        room=306_000_000,
    ),
    DataSet(
        "tiny-imagenet",
        "Tiny ImageNet, tested on its validation images",
        100_000,
        10_000,
        "64×64×3",
        200,
        "non-commercial (ImageNet)",
        "http://cs231n.stanford.edu/",
        (
            RemoteFile(
                "tiny-imagenet-200.zip",
                248_100_043,
                (
                    "https://cs231n.stanford.edu/tiny-imagenet-200.zip",
                    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
                ),
                "6198c8ae015e2b3e007c7841da39ec069199b9aa3bfa943a462022fe5e43c821",
            ),
        ),
        makes="tiny-imagenet.npz",
        room=1_353_000_000,
    ),
    DataSet(
        "cinic10",
        "CINIC-10 without its validation images",
        90_000,
        90_000,
        "32×32×3",
        10,
        "CC BY 4.0; images of ImageNet: non-commercial",
        "https://datashare.ed.ac.uk/handle/10283/3192",
        (
            RemoteFile(
                "CINIC-10.tar.gz",
                687_544_992,
                (
                    "https://datashare.ed.ac.uk/bitstream/handle/10283/3192/CINIC-10.tar.gz",
                    "https://datashare.ed.ac.uk/server/api/core/bitstreams/e8e186cc-2688-48f1-aa5a-3fda1a43f8b6/content",
                ),
                md5="6ee4d0c996905fe93221de577967a372",
            ),
        ),
        makes="cinic10.npz",
        room=555_000_000,
    ),
    DataSet(
        "femnist",
        "FEMNIST, handwritten characters of 3,400 writers",
        671_585,
        77_483,
        "28×28",
        62,
        "cite Caldas et al. 2018 (LEAF)",
        "https://www.tensorflow.org/federated/api_docs/python/tff/simulation/datasets/emnist/load_data",
        (
            RemoteFile(
                "emnist_all.sqlite.lzma",
                170_507_172,
                ("https://storage.googleapis.com/tff-datasets-public/emnist_all.sqlite.lzma",),
                "c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48",
            ),
        ),
        makes="femnist.npz",
        room=250_000_000,
        scratch=4_708_990_976,
    ),
)
