"""Tables that are measured, in their places on a page."""

from __future__ import annotations

from collections.abc import Mapping


def filled(page: str, tables: Mapping[str, str]) -> str:
    """Return the page with each table in its place, ``<!-- name -->`` … ``<!-- /name -->``."""
    for name, table in tables.items():
        before, _, rest = page.partition(f"<!-- {name} -->")
        _, _, after = rest.partition(f"<!-- /{name} -->")
        page = f"{before}<!-- {name} -->\n{table}\n<!-- /{name} -->{after}"
    return page
