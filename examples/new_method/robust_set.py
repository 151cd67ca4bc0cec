"""A method of one's own: the shared attention network with a bounded loss of the candidate set."""

import dataclasses

import torch

from mipl.methods.base import AttentionMethod
from mipl.registry import setting


@dataclasses.dataclass(frozen=True)
class RobustSet(AttentionMethod):
    """(1 − P(S)^q) / q, where P(S) is the probability of the candidate set."""

    logits_alone = True  # so that the default is an ensemble, trained as one computation
    summary = (
        "The generalised cross-entropy of the candidate set, (1 − P(S)^q)/q with P(S) = Σ_S p: the "
        "likelihood of the set for q → 0, bounded for larger q, so that wrong sets do less harm."
    )
    citation = "Zhang and Sabuncu, Generalized Cross Entropy, NeurIPS 2018; for candidate sets: this example."
    advice = "As an example of a method in a package of its own."
    cost = "That of every method with attention."

    q: float = setting(
        0.3, "q, between the likelihood of the set (0) and the mean error (1)", within="(0, 1]"
    )

    def loss(self, net, output, batch, table, context):
        """Return the loss of each bag (b,); ``table`` has pseudo-label weights for methods that use them."""
        log_p = output.logits.log_softmax(dim=1)  # (b, k)
        inside = log_p.masked_fill(~batch.candidates, -torch.inf).logsumexp(dim=1)
        return (1 - (self.q * inside).exp()) / self.q
