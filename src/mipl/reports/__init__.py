"""Figures and pages drawn from plain arrays: nothing here knows a model."""
