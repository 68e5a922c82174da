"""The tables of docs/advise.md are those of docs/advise/study.json."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tables_of_the_page_are_made_from_the_study() -> None:
    spec = importlib.util.spec_from_file_location("bench_advise", ROOT / "bench" / "advise.py")
    assert spec is not None
    assert spec.loader is not None
    bench = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = bench
    try:
        spec.loader.exec_module(bench)
        data = json.loads(bench.DOCS.read_text("utf-8"))
        for path, table in ((bench.PAGE, bench.by_version(data)), (bench.CASES, bench.by_case(data))):
            page = path.read_text("utf-8")
            assert bench.filled(page, table) == page, "run: python bench/advise.py study"
    finally:
        del sys.modules[spec.name]
