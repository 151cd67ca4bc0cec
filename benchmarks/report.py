"""The results as a table in Markdown and as one picture, both from the JSON only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.style import context

from measuring import Json
from mipl.reports.figures import BLUE, LINES, MUTED, STYLE, VERMILLION
from pages import filled

NOTHING = "There are no results yet: `make bench` writes them."
HEADER = ("what", "measured", "spread", "asked", "", "the run before", "")


def markdown(results: Json | None) -> str:
    """Return the tables, a section each, with what was said about them; a sentence where there is none."""
    if not results:
        return NOTHING
    machine = results["machine"]
    lines = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gb']:g} GB, "
        f"torch {machine['torch']}."
    ]
    for name, section in results["sections"].items():
        lines += ["", f"### {name.capitalize()}", ""]
        if section["rows"]:
            lines += ["| " + " | ".join(HEADER) + " |", "|---" * len(HEADER) + "|"]
            lines += ["| " + " | ".join(_cells(row)) + " |" for row in section["rows"]]
        if section.get("said"):
            lines += [""] * bool(section["rows"]) + [f"- {sentence}" for sentence in section["said"]]
    return "\n".join(lines)


def put_in(page: Path, results: Json | None) -> None:
    """Write the tables between the marks of a page."""
    text = filled(page.read_text(encoding="utf-8"), {"bench": markdown(results)})
    page.write_text(text, encoding="utf-8")


def met(row: Json) -> bool | None:
    """Tell whether a row is as asked; None where nothing is."""
    if row["at_least"] is None and row["at_most"] is None:
        return None
    return bool(
        (row["at_least"] is None or row["value"] >= row["at_least"])
        and (row["at_most"] is None or row["value"] <= row["at_most"])
    )


def _cells(row: Json) -> tuple[str, ...]:
    asked = ""
    if row["at_least"] is not None:
        asked = f"≥ {number(row['at_least'], row['unit'])}"
    elif row["at_most"] is not None:
        asked = f"≤ {number(row['at_most'], row['unit'])}"
    verdict = {None: "", True: "met", False: "**not met**"}[met(row)]
    before = row.get("before")
    return (
        row["name"],
        number(row["value"], row["unit"]),
        "" if row["low"] is None else f"{number(row['low'])}–{number(row['high'])}",
        asked,
        verdict,
        "" if before is None else number(before["value"], row["unit"]),
        row["note"],
    )


def number(value: float, unit: str = "") -> str:
    """Return a number to three places or as a whole, with its unit."""
    text = f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return text + (unit if unit in ("×", "%") else f" {unit}" if unit else "")


def draw(results: Json, path: Path) -> None:
    """Draw what there is: ratios, and time and memory against size."""
    sections = results["sections"]
    rows = [row for section in sections.values() for row in section["rows"]]
    ratios = [row for row in rows if row["unit"] == "×" and row["at_most"] is None]  # of times, not of memory
    growth = sections.get("growth", {}).get("data", {})
    huge = sections.get("prediction", {}).get("data", {}).get("huge")
    with context(STYLE):
        figure = Figure(figsize=(11, 7), layout="constrained")
        axes = figure.subplots(2, 2)
        _ratios(axes[0, 0], ratios)
        _growth(axes[0, 1], growth, "seconds", "Time of an epoch", "relative to the smallest")
        _growth(axes[1, 0], growth, "above_mb", "Memory of training", "relative to the smallest")
        _huge(axes[1, 1], huge)
        figure.savefig(path, dpi=130)


def _ratios(axes: Axes, rows: list[dict[str, Any]]) -> None:
    axes.set_title("Times as fast as the plain way")
    if not rows:
        return _nothing(axes)
    rows = rows[::-1]
    for place, row in enumerate(rows):
        axes.barh(place, row["value"], color=BLUE, height=0.55)
        if row["low"] is not None:
            axes.plot([row["low"], row["high"]], [place, place], color="black", linewidth=1.2)
        if row["at_least"] is not None:
            axes.plot([row["at_least"]] * 2, [place - 0.4, place + 0.4], color=VERMILLION, linewidth=2)
    axes.set_yticks(range(len(rows)), [row["name"].replace(", ", ",\n", 1) for row in rows], fontsize=7)
    axes.set_xscale("log")
    axes.axvline(1, color=MUTED, linewidth=0.7)
    axes.set_xlabel("ratio of times; black: spread over repeats, red: asked")
    return None


def _growth(axes: Axes, growth: Json, what: str, title: str, label: str) -> None:
    axes.set_title(title)
    known = {axis: found for axis, found in growth.items() if what in found}
    if not known:
        return _nothing(axes)
    for (axis, found), (colour, dashes) in zip(known.items(), LINES, strict=False):
        values = [value / found[what][0] for value in found[what]]
        sizes = [point / found["points"][0] for point in found["points"]]
        axes.plot(sizes, values, "o", linestyle=dashes, color=colour, markersize=4, label=axis)
    axes.plot([1, 8], [1, 8], color=MUTED, linewidth=0.7)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_xlabel("size, relative to the smallest; thin line: in proportion")
    axes.set_ylabel(label)
    axes.legend()
    return None


def _huge(axes: Axes, huge: Json | None) -> None:
    axes.set_title("Prediction of one large bag, one thread")
    if huge is None:
        return _nothing(axes)
    axes.plot(huge["instances"], huge["seconds"], "o-", color=BLUE, markersize=4)
    axes.set_xlabel("instances in the bag")
    axes.set_ylabel("seconds", color=BLUE)
    other = axes.twinx()
    other.plot(huge["instances"], huge["above_mb"], "s--", color=VERMILLION, markersize=4)
    other.set_ylabel("memory beyond the model, MB", color=VERMILLION)
    axes.set_ylim(bottom=0)
    other.set_ylim(bottom=0)
    return None


def _nothing(axes: Axes) -> None:
    axes.text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes.transAxes, color=MUTED)
    axes.set_axis_off()
