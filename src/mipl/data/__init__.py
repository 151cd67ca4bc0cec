"""Bags: from files or memory, to batches."""
