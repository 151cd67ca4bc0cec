"""Models of annotators: confusion matrices, Dawid–Skene, quality, and whom to ask next."""

from mipl.annotators.dawid_skene import dawid_skene
from mipl.annotators.model import AnnotatorModel, Estimate, VoteTable
from mipl.annotators.report import posterior_sets, votes_alone

__all__ = ["AnnotatorModel", "Estimate", "VoteTable", "dawid_skene", "posterior_sets", "votes_alone"]
