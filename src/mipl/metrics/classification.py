"""How often the predicted label is right, and how good the probabilities are as a whole."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mipl.metrics._inputs import checked, top_label


def accuracy(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Share of the m examples whose most probable label is the true one.

    ``probabilities`` is (m, k) with rows that sum to 1, ``labels`` (m,) holds column indices. Of equal
    probabilities the lowest column is predicted.
    """
    _, correct = top_label(probabilities, labels)
    return float(correct.mean())


def balanced_accuracy(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean over the classes of the share of their examples that are predicted right.

    Only classes that occur in ``labels`` count; shapes and ties as in :func:`accuracy`.
    """
    p, y = checked(probabilities, labels)
    _, group = np.unique(y, return_inverse=True)  # (m,), without gaps where a class is absent
    return float((np.bincount(group, p.argmax(axis=1) == y) / np.bincount(group)).mean())


def brier(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean squared distance of the rows (m, k) to the one-hot true labels (m,), from 0 to 2.

    The sum runs over all k classes, so that with two classes it is twice the binary score.
    """
    p, y = checked(probabilities, labels)
    p[np.arange(len(y)), y] -= 1.0  # in a copy, the caller's array stays
    return float((p**2).sum(axis=1).mean())


def negative_log_likelihood(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean of −log of the true label's probability; shapes as in :func:`accuracy`.

    A probability below float32's smallest normal number counts as that number (a loss of 87.3), so that
    one label that underflowed to zero leaves the mean finite.
    """
    p, y = checked(probabilities, labels)
    true = p[np.arange(len(y)), y]  # (m,)
    return float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean())
