"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Sets = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Change one key of the config, such as train.lr=0.05.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Write events for TensorBoard under the run folder.")]
RunOut = Annotated[Path | None, typer.Option(help="Run folder; default: a new one under runs/.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Folder that holds the run's data now; default: data.root of the run."),
]
ChangedData = Annotated[
    bool, typer.Option("--accept-changed-data", help="Accept data that have changed since the run began.")
]
Baseline = Annotated[
    str | None,
    typer.Option(metavar="METHOD", help="Method that the others are compared with; default: fedavg, else the first."),
]
