"""Runs over methods and splits, and the demo."""
