"""The model of Dawid and Skene (1979): maximum likelihood from votes alone, without features or priors."""

from __future__ import annotations

import torch
from torch import Tensor

from mipl.annotators.model import VoteTable

STEPS = 100
TOLERANCE = 1e-5  # change of the log-likelihood per vote at which EM ends
SMALLEST = 1e-10  # added to the counts, so that an unseen confusion is improbable and not impossible


def dawid_skene(votes: VoteTable, steps: int = STEPS, tolerance: float = TOLERANCE) -> tuple[Tensor, Tensor]:
    """Return the posterior (m, k) of the true classes and the confusion matrices (a, k, k), by EM.

    EM begins with the proportions of the votes (the majority vote). Bags without votes have the class
    proportions of the others.
    """
    _, a, k = votes.shape
    voted, posterior = votes.voted, votes.shares()
    confusion = torch.full((1, a, k, k), 1.0 / k, dtype=torch.float64)
    before = -torch.inf
    for _ in range(steps):
        counts = votes.counts(posterior[None], confusion) + SMALLEST
        confusion = counts / counts.sum(dim=3, keepdim=True)
        classes = posterior[voted].mean(dim=0)
        joint = classes.log() + votes.log_likelihood(confusion)[0]
        posterior = joint.softmax(dim=1)
        likelihood = float(joint[voted].logsumexp(dim=1).sum()) / max(len(votes.bag), 1)
        if likelihood - before < tolerance:
            break
        before = likelihood
    return posterior, confusion[0]
