"""Write the tables of README.md and results/README.md anew from the records: `python results/tables.py`."""

from __future__ import annotations

import re
from pathlib import Path

from mipl.experiments.runner import is_present
from mipl.records.store import Store
from mipl.reports.claims import OURS
from mipl.reports.paper_training import TIMED
from mipl.reports.results import markdown, result_rows

HERE = Path(__file__).resolve().parent


def tables() -> dict[Path, str]:
    """Return for each page the table that belongs between its markers.

    README.md shows runs of the present recipe only; while there is none, its table stays as it is.
    """
    timed = ", ".join(f"{name}={value}" for name, value in TIMED)  # stopped before anything is learned
    found = result_rows(Store(HERE / "records"), is_present)
    rows = [row for row in found if not row["given"].startswith(timed)]
    default = [row for row in rows if row["recipe"] == "stable" and not row["given"]]
    # with r = 0, the true labels, there is nothing to disambiguate
    ours = [
        row for row in default if row["method"] in OURS and "noise" not in row["dataset"] and row["r"] != 0
    ]
    pages = {HERE / "README.md": markdown(rows)}
    return pages | ({HERE.parent / "README.md": markdown(ours)} if ours else {})


def shown(page: Path) -> str:
    """Return the table that a page has between its markers."""
    (table,) = re.findall(r"<!-- results -->\n(.*?)\n<!-- /results -->", page.read_text("utf-8"), flags=re.S)
    return str(table)


if __name__ == "__main__":
    for page, table in tables().items():
        marked = "<!-- results -->\n{}\n<!-- /results -->"
        page.write_text(
            page.read_text("utf-8").replace(marked.format(shown(page)), marked.format(table)), "utf-8"
        )
