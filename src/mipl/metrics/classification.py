"""Accuracy and proper scores of probabilities."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mipl.metrics._inputs import Ints, checked, top_label


def accuracy(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Fraction of the m examples whose most probable label is the true one.

    Of equal probabilities the lowest column is predicted.

    Args:
        probabilities: (m, k) with rows that sum to 1.
        labels: column indices (m,).
    """
    _, correct = top_label(probabilities, labels)
    return float(correct.mean())


def balanced_accuracy(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean recall of the classes that occur in ``labels``; shapes and ties as in :func:`accuracy`."""
    p, y = checked(probabilities, labels)
    _, group = np.unique(y, return_inverse=True)  # (m,), without gaps where a class is absent
    return float((np.bincount(group, p.argmax(axis=1) == y) / np.bincount(group)).mean())


def confusion_matrix(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> Ints:
    """Return the number of examples (k, k) by true label (rows) and predicted label (columns).

    Shapes and ties as in :func:`accuracy`.
    """
    p, y = checked(probabilities, labels)
    k = p.shape[1]
    return np.bincount(k * y + p.argmax(axis=1), minlength=k * k).reshape(k, k)


def brier(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean squared distance of the rows (m, k) to the one-hot true labels (m,), from 0 to 2.

    The sum is over all k classes, so for two classes it is twice the binary score.
    """
    p, y = checked(probabilities, labels)
    p[np.arange(len(y)), y] -= 1.0  # p is a copy
    return float((p**2).sum(axis=1).mean())


def negative_log_likelihood(probabilities: npt.ArrayLike, labels: npt.ArrayLike) -> float:
    """Mean of −log of the true label's probability; shapes as in :func:`accuracy`.

    Probabilities are clipped at the smallest normal float32 (a loss of 87.3), so that a label that underflows
    to zero leaves the mean finite.
    """
    p, y = checked(probabilities, labels)
    true = p[np.arange(len(y)), y]  # (m,)
    return float(-np.log(np.maximum(true, np.finfo(np.float32).tiny)).mean())
