"""The files of a reproduction: one folder per table or figure, and one page with all of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from mipl.errors import DataError
from mipl.files import atomic_file, atomic_folder, read_json, write_json
from mipl.paper.base import Output
from mipl.paper.names import method_title, set_title
from mipl.records.store import Record
from mipl.reports import figures
from mipl.reports.tables import Table, as_csv, latex, markdown

FORMAT = "mipl-reproduced-1"


def write_output(name: str, output: Output, folder: Path, command: str) -> None:
    """Write a table or figure to the folder ``folder/name`` in all formats, with its provenance."""
    commands = output.runs.commands()
    with atomic_folder(folder / name, "about.json") as temporary:
        if output.tables:
            text = _markdown(output, commands)
            (temporary / "table.md").write_text(text, encoding="utf-8")
            tex = [latex(table, f"{name}-{i}") for i, table in enumerate(output.tables, start=1)]
            (temporary / "table.tex").write_text("\n".join(tex), encoding="utf-8")
            (temporary / "table.csv").write_text(_csv(output.tables), encoding="utf-8")
        if output.figure is not None:
            description = f"{output.title}."
            svg = figures.svg(output.figure, name, description)
            (temporary / "figure.svg").write_text(svg + "\n", encoding="utf-8")
            with figures.style():
                output.figure.savefig(temporary / "figure.png", dpi=200, metadata={"Software": None})
        about = {
            "format": FORMAT,
            "title": output.title,
            "command": command,
            "notes": list(output.notes),
            "tables": [table.to_dict() for table in output.tables],
            "figure": output.figure is not None,
            "commands": commands,
            "provenance": provenance(output.runs.used.values()),
        }
        write_json(temporary / "about.json", about)


def write_page(folder: Path, order: Sequence[str] = ()) -> Path:
    """Write ``folder/index.html`` with all tables and figures in ``folder``, and return its path."""
    found = {path.parent.name: path for path in folder.glob("*/about.json")}
    names = [name for name in order if name in found]
    names += sorted(name for name in found if name not in names)
    if not names:
        raise DataError(f"{folder} contains no reproduced table or figure: run 'mipl reproduce' first.")
    parts = []
    for name in names:
        about = read_json(found[name])
        if about.get("format") != FORMAT:
            raise DataError(f"{found[name]} was not written by 'mipl reproduce': reproduce {name} again.")
        svg = (folder / name / "figure.svg").read_text(encoding="utf-8") if about["figure"] else ""
        parts.append({**about, "name": name, "svg": Markup(svg)})
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # names of data sets and commands come from the user
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.jinja").render(parts=parts)
    path = folder / "index.html"
    with atomic_file(path) as temporary:
        temporary.write_text(page, encoding="utf-8")
    return path


def provenance(records: Iterable[Record]) -> list[dict[str, Any]]:
    """Return the records, data, versions and machine of each method on a data set."""
    groups: dict[tuple[str, ...], list[Record]] = {}
    for record in sorted(records, key=lambda each: int(each.spec["split"])):
        spec, given = record.spec, record.info.get("given", {})
        part = f", {100 * record.share:g}% of the training bags" if record.share < 1 else ""
        title = set_title(spec["dataset"], spec["r"]) + part
        key = (title, method_title(spec["method"], given), spec["recipe"])
        groups.setdefault((*key, spec["data_digest"]), []).append(record)
    return [
        {
            "dataset": dataset,
            "method": method,
            "recipe": recipe,
            "data_digest": digest,
            "origin": _one(r.info.get("data", {}).get("provenance", {}).get("origin", "?") for r in members),
            "records": [{"split": r.spec["split"], "hash": r.info["hash"]} for r in members],
            "versions": _one(_joined(r.info.get("versions", {})) for r in members),
            "machine": _one(_joined(r.info.get("machine", {})) for r in members),
            "fit_seconds": round(sum(r.info["seconds"]["fit"] for r in members) / len(members), 1),
        }
        for (dataset, method, recipe, digest), members in sorted(groups.items())
    ]


def _markdown(output: Output, commands: Sequence[str]) -> str:
    parts = [f"# {output.title}\n", *map(markdown, output.tables), *(f"{note}\n" for note in output.notes)]
    if commands:
        parts.append("```console\n" + "\n".join(f"$ {command}" for command in commands) + "\n```\n")
    return "\n".join(parts)


def _csv(tables: Sequence[Table]) -> str:
    """Return the values of all tables as one CSV, or their text if none has values."""
    values = [value for table in tables for value in table.values]
    if values:
        return as_csv(Table("", (), (), values))
    return "\n".join(map(as_csv, tables))


def _joined(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _one(texts: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(texts))
