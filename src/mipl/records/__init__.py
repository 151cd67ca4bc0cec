"""Records of finished runs: ``mipl.records.load_table("runs")`` returns them as one table."""

from mipl.records.table import load_table

__all__ = ["load_table"]
