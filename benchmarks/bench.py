"""Measure speed and memory: everything, or some sections.

    python benchmarks/bench.py [--only training …] [--quick] [--full] [--raw DIR] [--repeats 3] [--out DIR]

Writes bench.json and bench.png to results/bench, and the tables of docs/speed.md from the JSON. ``--quick``
runs everything at toy sizes, to see that it works; its numbers mean nothing, and are only printed unless
``--out`` says where to.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import SPARING, Json, Row, scratch

if TYPE_CHECKING:
    from cases import Case

REPO = Path(__file__).resolve().parents[1]
FORMAT = "mipl-bench-1"
SECTIONS = (
    "machine", "lean", "torchmil", "training", "accuracy", "loading", "prediction", "ensemble", "mapped",
    "growth",
)  # fmt: skip
RATED = ("lean", "training")  # what is compared with the machine's rate


def run_section(name: str, cases: list[Case], gemm: Json, folder: Path, given: argparse.Namespace) -> Json:
    """Run one section; the modules are imported here, after the arguments are read."""
    if name == "lean":
        import lean

        return lean.section(cases[0], gemm, folder, given.repeats, given.quick, given.raw)
    if name == "torchmil":
        import rival

        return rival.section(cases[0], folder, given.repeats, given.quick, given.raw)
    if name == "training":
        import training

        return training.section(cases, gemm, folder, given.repeats, given.full)
    if name == "accuracy":
        import training

        return training.accuracy_section(cases, folder)
    if name == "loading":
        import loading

        return loading.section(cases, folder, given.repeats)
    if name == "prediction":
        import prediction

        return prediction.section(cases[0], folder, given.repeats, given.quick)
    if name == "ensemble":
        import ensemble

        return ensemble.section(cases[0], given.repeats, given.quick)
    if name == "mapped":
        import mapped

        return mapped.section(folder, given.quick)
    import growth

    return growth.section(folder, given.quick)


def merge(old: Json | None, name: str, section: Json) -> Json:
    """Return a section ready for the JSON: its rows with what the run before measured beside them."""
    earlier = {row["name"]: row for row in (old or {}).get("sections", {}).get(name, {}).get("rows", ())}
    rows = []
    for row in section["rows"]:
        assert isinstance(row, Row)
        before = earlier.get(row.name)
        kept = None if before is None else {key: before[key] for key in ("value", "low", "high")}
        rows.append({**dataclasses.asdict(row), "before": kept})
    return {**section, "rows": rows}


def read_options(words: list[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS, metavar="NAME",
                        help=f"sections to run: {', '.join(SECTIONS)}")  # fmt: skip
    parser.add_argument("--quick", action="store_true", help="toy sizes, to see that it works")
    parser.add_argument("--full", action="store_true", help="train mipl's side to the end, not extrapolated")
    parser.add_argument("--raw", type=Path, help="folder above hja-birdsong and mnist (raw data)")
    parser.add_argument("--repeats", type=int, default=3, help="turns of each comparison")
    parser.add_argument("--out", type=Path, help="folder for the results (default results/bench)")
    parser.add_argument("--scratch", type=Path, help="folder for temporary data, 13 GB free if possible")
    given = parser.parse_args(words)
    if given.repeats < 1:
        parser.error("--repeats must be at least 1.")
    return given


def main(words: list[str] | None = None) -> None:
    """Run the sections and write their results as each is done."""
    given = read_options(words)
    if given.quick:
        given.repeats = 1
        os.environ[SPARING] = "1"
    import machine
    import report
    from cases import make_cases, raw_folder

    out = given.out or (None if given.quick else REPO / "results" / "bench")
    place = None if out is None else out / "bench.json"
    old: Json | None = json.loads(place.read_text()) if place is not None and place.is_file() else None
    results: Json = {
        "format": FORMAT,
        "quick": given.quick,
        "machine": machine.described(),
        "sections": dict((old or {}).get("sections", {})),
    }
    with scratch(given.scratch) as folder:
        load = os.getloadavg()[0]
        if load > 0.5:
            print(f"The machine is busy (load {load:.1f}): times will be too long.", file=sys.stderr)
        gemm: Json = {"all": float("nan")}
        cases = make_cases(raw_folder(given.raw), folder, given.quick)
        for name in SECTIONS:
            needed = name == "machine" and any(each in given.only for each in RATED)
            if name not in given.only and not needed:
                continue
            started = time.perf_counter()
            section = (
                machine.section(given.quick)
                if name == "machine"
                else run_section(name, cases, gemm, folder, given)
            )
            gemm = section if name == "machine" else gemm
            section["seconds"] = time.perf_counter() - started
            results["sections"][name] = merge(old, name, section)
            results["sections"] = {n: results["sections"][n] for n in SECTIONS if n in results["sections"]}
            only = {**results, "sections": {name: results["sections"][name]}}
            print(
                report.markdown(only).split("\n", 2)[2],
                end=f"\n  ({section['seconds']:.0f} s)\n\n",
                flush=True,
            )
            if place is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    if place is not None:
        report.draw(results, place.with_suffix(".png"))
        if given.out is None:
            report.put_in(REPO / "docs" / "speed.md", results)


if __name__ == "__main__":
    main()
