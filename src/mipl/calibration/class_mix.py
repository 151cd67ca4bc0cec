"""Prior correction: predictions for a population with another class mix than the training bags.

If classes keep their appearance and only their frequencies change from π to π' (label shift), the
probabilities of a calibrated model become p'_c ∝ p_c π'_c / π_c.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mipl.errors import DataError, SettingError

Floats = npt.NDArray[np.float64]
STEPS, PRECISION = 1000, 1e-9
LEAST = 1e-6  # of a class in the training mix: it cannot be divided by less


def correct_class_mix(probabilities: npt.ArrayLike, trained: npt.ArrayLike, new: npt.ArrayLike) -> Floats:
    """Return probabilities (m, k) for a population with the class mix ``new``.

    Args:
        probabilities: (m, k) probabilities of a calibrated model.
        trained: (k,) the class mix π that they are for, such as the mean of `out_of_fold_proba`.
        new: (k,) the class mix π' of the population.

    >>> correct_class_mix([[0.5, 0.5]], [0.5, 0.5], [0.9, 0.1]).tolist()
    [[0.9, 0.1]]
    """
    p = np.asarray(probabilities, dtype=np.float64)
    before, after = _mix(trained, p.shape[1]), _mix(new, p.shape[1])
    scores = p * (after / np.maximum(before, LEAST))
    total = scores.sum(axis=1, keepdims=True)
    if (total == 0).any():
        raise DataError("A bag has probability 0 for every class of the class mix: give each class a share.")
    return np.asarray(scores / total)


def estimate_class_mix(probabilities: npt.ArrayLike, trained: npt.ArrayLike) -> Floats:
    """Return the class mix (k,) of bags, the maximum likelihood by EM (Saerens et al., 2002).

    Arguments are those of :func:`correct_class_mix`. The likelihood is concave; the mean of the corrected
    probabilities is taken as the new mix until it no longer changes.
    """
    mix = _mix(trained, np.shape(probabilities)[1])
    for _ in range(STEPS):
        found = correct_class_mix(probabilities, trained, mix).mean(axis=0)
        if np.abs(found - mix).max() < PRECISION:
            return np.asarray(found)
        mix = np.asarray(found)
    return mix


def _mix(values: npt.ArrayLike, k: int) -> Floats:
    """Return a class mix (k,) scaled to sum 1."""
    mix = np.asarray(values, dtype=np.float64)
    if mix.shape != (k,) or not np.isfinite(mix).all() or (mix < 0).any() or mix.sum() <= 0:
        raise SettingError(
            f"A class mix needs {k} shares of at least 0, not all of them 0; it is {values!r}."
        )
    return np.asarray(mix / mix.sum())
