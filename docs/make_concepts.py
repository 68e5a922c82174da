"""Draw the pictures of docs/concepts.md: python docs/make_concepts.py (from the repository's root).

Each has a card of its own, light or dark as the reader's system is, so that it is legible on any page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import torch

from torso import Config
from torso.data import build

HERE = Path(__file__).parent
BODY, HEADS, SERVER = "#3D6FA5", ("#B8531F", "#2A7F4F", "#85509E"), "#5B6472"
STYLE = """
.card{fill:#ffffff;stroke:#d5d9e0} .ink{fill:#1d2430} .soft{fill:#5a6372} .line{stroke:#5a6372} .tip{fill:#5a6372}
.on{fill:#ffffff} .panel{fill:#f3f5f8} .dot{fill:#3D6FA5}
@media (prefers-color-scheme: dark){
.card{fill:#1b2029;stroke:#3a4250} .ink{fill:#eef1f6} .soft{fill:#b3bccb} .line{stroke:#b3bccb} .tip{fill:#b3bccb}
.panel{fill:#262d39} .dot{fill:#7FB2E8}}
"""


class Picture:
    """An SVG that is written shape by shape."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts = [f'<rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>']

    def text(self, x: float, y: float, words: str, kind: str = "ink", size: int = 14, anchor: str = "middle") -> None:
        weight = ' font-weight="600"' if kind == "on" else ""
        self.parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}"{weight}>'
            f"{escape(words)}</text>"
        )

    def box(self, x: float, y: float, width: float, height: float, fill: str, words: Sequence[str] = ()) -> None:
        self.parts.append(f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}"/>')
        for number, line in enumerate(words):
            self.text(x + width / 2, y + height / 2 + 5 + 17 * (number - (len(words) - 1) / 2), line, "on", 13)

    def panel(self, x: float, y: float, width: float, height: float) -> None:
        self.parts.append(f'<rect class="panel" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8"/>')

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        self.parts.append(
            f'<line class="line" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke-width="1.6" '
            'marker-end="url(#tip)"/>'
        )

    def dot(self, x: float, y: float, radius: float) -> None:
        self.parts.append(f'<circle class="dot" cx="{x:g}" cy="{y:g}" r="{radius:.1f}"/>')

    def svg(self) -> str:
        tip = '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" role="img" '
                'font-family="system-ui, -apple-system, Segoe UI, sans-serif">',
                f"<title>{escape(self.title)}</title>",
                f"<style>{STYLE}</style>",
                f'<defs>{tip}<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
                *self.parts,
                "</svg>\n",
            ]
        )


def body_and_head() -> Picture:
    picture = Picture(760, 330, "A network is a body and a head; the body is shared, each client has a head of its own")
    picture.text(24, 34, "One network", anchor="start", size=16)
    picture.box(24, 60, 80, 54, SERVER, ["sample"])
    picture.arrow(110, 87, 142, 87)
    picture.box(148, 56, 190, 62, BODY, ["body"])
    picture.arrow(344, 87, 436, 87)
    picture.text(388, 78, "features", "soft", 13)
    picture.box(442, 60, 90, 54, HEADS[0], ["head"])
    picture.arrow(538, 87, 570, 87)
    picture.text(580, 92, "class", anchor="start")
    picture.text(
        24, 152, "The body turns a sample into a feature vector: what is common to all clients.", "soft", 13, "start"
    )
    picture.text(
        24, 174, "The head, the last linear layer, turns features into classes: what differs.", "soft", 13, "start"
    )

    picture.text(24, 220, "A federation", anchor="start", size=16)
    picture.box(24, 240, 120, 62, SERVER, ["server", "mean of bodies"])
    for number, colour in enumerate(HEADS):
        left = 250 + 170 * number
        picture.panel(left - 12, 206, 154, 106)
        picture.text(left + 65, 226, f"client {number + 1}", size=13)
        picture.box(left, 240, 74, 40, BODY, ["body"])
        picture.box(left + 80, 240, 50, 40, colour, ["head"])
        picture.text(left + 65, 302, "own data, own head", "soft", 11)
    picture.arrow(150, 262, 234, 262)
    picture.arrow(234, 280, 150, 280)
    picture.text(192, 253, "body", "soft", 12)
    picture.text(192, 297, "body", "soft", 12)
    return picture


def one_round() -> Picture:
    picture = Picture(760, 230, "One round: sample, broadcast, local training, upload, mean")
    steps = (
        ("1 sample", "the server draws", "some clients"),
        ("2 broadcast", "they get the", "shared part"),
        ("3 train", "each on its own", "data, E epochs"),
        ("4 upload", "the shared part", "goes back"),
        ("5 average", "weighted by", "samples"),
    )
    for number, (name, *words) in enumerate(steps):
        left = 24 + 146 * number
        picture.box(left, 50, 124, 40, BODY if number in (2,) else SERVER, [name])
        for line, word in enumerate(words):
            picture.text(left + 62, 112 + 18 * line, word, "soft", 13)
        if number < len(steps) - 1:
            picture.arrow(left + 126, 70, left + 143, 70)
    picture.arrow(670, 146, 670, 180)
    picture.parts.append('<line class="line" x1="670" y1="180" x2="86" y2="180" stroke-width="1.6"/>')
    picture.arrow(86, 180, 86, 142)
    picture.text(378, 202, "next round: other clients; those that are absent keep what they have", "soft", 13)
    picture.text(24, 32, "One round", anchor="start", size=16)
    return picture


def models_and_measures() -> Picture:
    picture = Picture(760, 330, "Which model is measured on which data")
    picture.text(24, 32, "Which model, on which test data", anchor="start", size=16)
    for column, (name, about) in enumerate(
        (("generic model", "one for all"), ("held model", "as training left it"), ("own model", "made for this client"))
    ):
        left = 214 + 180 * column
        picture.box(left, 50, 158, 48, (SERVER, BODY, HEADS[0])[column], [name, about])
    picture.arrow(553, 74, 572, 74)
    picture.text(562, 122, "by fine-tuning, mostly", "soft", 12)
    rows = (
        ("the whole test set", "every sample counts once", ("generic", "", "")),
        ("the whole test set", "weighed by the client's classes", ("generic_as_personal", "", "personal")),
        ("the client's test samples", "mean over clients", ("", "initial", "personalized")),
        ("the client's test samples", "class means, no head", ("", "without_head", "")),
    )
    for number, (data, how, names) in enumerate(rows):
        top = 138 + 46 * number
        picture.panel(16, top, 728, 40)
        picture.text(26, top + 17, data, size=13, anchor="start")
        picture.text(26, top + 33, how, "soft", 11, "start")
        for column, name in enumerate(names):
            if name:
                picture.text(214 + 180 * column + 79, top + 25, name, size=14)
    return picture


def partitions() -> Picture:
    picture = Picture(760, 330, "Class counts of ten clients under three partitions of scikit-learn's digits")
    kinds = (
        ("iid", "equal random parts", {"partition": "iid"}),
        ("Dirichlet, α = 0.3", "skewed mixes, unequal sizes", {"partition": "dirichlet-class", "alpha": 0.3}),
        ("two shards", "two classes at most", {"partition": "shards", "shards": 2}),
    )
    for number, (name, about, data) in enumerate(kinds):
        left, top, step = 84 + 234 * number, 86, 19
        counts = build(Config(data={"clients": 10, **data}).data, 0, torch.device("cpu")).class_counts.tolist()
        picture.text(left + 85, 34, name, size=15)
        picture.text(left + 85, 54, about, "soft", 12)
        picture.panel(left - 12, top - 14, 10 * step + 6, 10 * step + 8)
        for client in range(10):
            for label in range(10):
                if count := counts[client][label]:
                    picture.dot(left + step * label, top + step * client, 0.75 * count**0.5)
        picture.text(left + 85, top + 10 * step + 14, "class 0 to 9", "soft", 12)
    picture.text(24, 176, "client", "soft", 12, "start")
    picture.text(
        380, 318, "The area of a dot grows with the number of samples that a client has of a class.", "soft", 12
    )
    return picture


PICTURES = {
    "concept-body-head": body_and_head,
    "concept-round": one_round,
    "concept-models": models_and_measures,
    "concept-partitions": partitions,
}


def main() -> None:
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw().svg(), encoding="utf-8")


if __name__ == "__main__":
    main()
