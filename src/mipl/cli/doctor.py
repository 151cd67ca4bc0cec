"""The verb ``doctor``: what a bug report should contain."""

from __future__ import annotations

import typer
from rich.table import Table

from mipl.cli.app import JsonOpt, app, console, print_json


@app.command()
def doctor(as_json: JsonOpt = False) -> None:
    """Show versions, devices and optional parts, and test training, prediction, saving and loading."""
    from mipl.doctor import report

    found = report()
    if as_json:
        print_json(found)
    else:
        _print(found)
    if not found["ok"]:
        raise typer.Exit(1)


def _print(found: dict[str, object]) -> None:
    lines: dict[str, dict[str, object]] = {name: found[name] for name in ("versions", "machine", "threads")}  # type: ignore[misc]
    for name, values in lines.items():
        typer.echo(f"{name}: " + ", ".join(f"{key} {value}" for key, value in values.items()))
    typer.echo(f"devices: {', '.join(found['devices'])}")  # type: ignore[arg-type]
    table = Table("optional part", "packages", "to install", title="Optional parts", title_justify="left")
    for part in found["optional"]:  # type: ignore[attr-defined]
        packages = ", ".join(f"{name} {version or 'missing'}" for name, version in part["packages"].items())
        table.add_row(part["name"], packages, part["install"] or "")
    console().print(table, markup=False)
    for plugin in found["plugins"]:  # type: ignore[attr-defined]
        typer.echo(f"plugin {plugin['name']} of {plugin['package']}: {plugin['problem'] or 'loaded'}")
    for step in found["self_test"]:  # type: ignore[attr-defined]
        typer.echo(f"self-test, {step['name']}: {step['problem'] or 'ok'} ({step['seconds']:.1f} s)")
    typer.echo("All is well." if found["ok"] else "Something is wrong: put this output into a bug report.")
