"""Losses: pure functions of (logits, candidates, weights) that return one value per bag."""

from mipl.losses.disambiguation import (
    candidate_log_softmax,
    cdl_loss,
    focal_loss,
    inverse_focal_loss,
    margin,
    mdl_loss,
)

__all__ = ["candidate_log_softmax", "cdl_loss", "focal_loss", "inverse_focal_loss", "margin", "mdl_loss"]
