"""Models of annotators: confusion matrices, Dawid–Skene, quality, and whom to ask next."""

from mipl.annotators.dawid_skene import dawid_skene
from mipl.annotators.model import AnnotatorModel, Estimate, VoteTable

__all__ = ["AnnotatorModel", "Estimate", "VoteTable", "dawid_skene"]
