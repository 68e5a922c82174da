"""`python -m torso.papers.certified [DATA]`: run the certified cells and write docs/reproduction/cells.json.

It prints which cells have changed. Cells whose data are not below DATA keep their records. A record that agrees with
the new run stays as it is, with the machine that made it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from torso.data.fetch_catalogue import data_home
from torso.papers.certified.cells import cells
from torso.papers.certified.ledger import Ledger, here, roots, run_cells
from torso.papers.certified.record import differences

FOLDER = Path("docs") / "reproduction"


def main(words: Sequence[str], folder: Path = FOLDER) -> None:
    before, known = Ledger.read(folder), cells()
    records, made = {}, {}
    for cell, now in run_cells(known, roots(known, data_home(Path(words[0]) if words else None))):
        old = before.records.get(cell.name)
        if now is None and old is None:
            print(f"{cell.name}: not run, {cell.file} was not found")
            continue
        wrong = differences(old, now, exact=before.exact(cell.name)) if old and now else []
        if now is None or (old and not wrong):
            records[cell.name], made[cell.name] = before.records[cell.name], before.made[cell.name]
        else:
            records[cell.name], made[cell.name] = now, here()
            print(f"{cell.name}: {'; '.join(wrong) or 'new'}")
    Ledger(records, made).write(folder)
    for name in before.records.keys() - records.keys():
        print(f"{name}: dropped, the cell no longer exists")


if __name__ == "__main__":
    main(sys.argv[1:])
