"""The paper's theory of the calibratable disambiguation loss (CDL), one function per statement.

Equation numbers are those of the paper's main text. Everything is NumPy in float64 and pure, on m bags
and k labels: predictions ``p`` (m×k), ``candidates`` S (m×k bool), pseudo-label ``weights`` w and latent
posteriors ``eta`` (m×k, rows sum to 1, zero outside S); the ``competitor`` is "cc" or "cn".

Three conventions hold throughout:

* Ties go to the label with the smallest index.
* Where there is no competitor (|S| = 1 for CC, S = Y for CN), φ = 0; the bounds hold there too.
* A row may miss the sum 1 by ``TOLERANCE`` (predictions made in float32); the bounds then hold up to that.
"""

from __future__ import annotations

import math
from typing import Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from mipl.errors import DataError, SettingError, suggest

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Labels = NDArray[np.intp]
Competitor = Literal["cc", "cn"]

TOLERANCE: Final = 1e-6
TINY: Final = float(np.finfo(np.float64).tiny)  # below it digits are lost, and 1/x overflows


# --- Validation of inputs ---------------------------------------------------------------------------------


def _refuse(bad: Bools, sentence: str) -> None:
    """Raise an error for the first bad row (m,) or entry (m×k); {row} in the sentence is its row, from 0."""
    if bad.any():
        raise DataError(sentence.format(row=np.argwhere(bad)[0, 0]))


def _distributions(name: str, values: Floats, shape: tuple[int, ...] | None = None) -> Floats:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or rows.size == 0:
        raise DataError(f"{name} has shape {rows.shape}; give one row per bag and one column per label.")
    if shape is not None and rows.shape != shape:
        raise DataError(f"{name} has shape {rows.shape}, but {shape} is required; make the two agree.")
    _refuse(~(rows >= 0), f"Row {{row}} of {name} has a NaN or a negative value; give probabilities.")
    far = np.abs(rows.sum(axis=1) - 1.0) > TOLERANCE  # (m,)
    _refuse(far, f"Row {{row}} of {name} does not sum to 1; divide it by its sum.")
    return rows


def _bags(p: Floats, candidates: Bools) -> tuple[Floats, Bools]:
    predictions, S = _distributions("p", p), np.asarray(candidates)
    if S.dtype != np.bool_ or S.shape != predictions.shape:
        given = f"{S.dtype} of shape {S.shape}"
        raise DataError(f"candidates is {given}; give booleans of p's shape {predictions.shape}.")
    empty = S.sum(axis=1) == 0  # (m,)
    _refuse(empty, "Row {row} of candidates is empty; give every bag at least one candidate label.")
    return predictions, S


def _supported(name: str, values: Floats, S: Bools) -> Floats:
    rows = _distributions(name, values, S.shape)
    _refuse((rows > 0) & ~S, f"Row {{row}} of {name} is positive outside its candidates; set it to 0 there.")
    return rows


def _positive(p: Floats, where: Bools) -> None:
    zero = where & (p < TINY)
    _refuse(zero, "Row {row} of p is 0 where it must be positive; use a float64 softmax, or clip it.")


def _masses(masses: Floats | None, m: int) -> Floats:
    row = np.full(m, 1.0 / m) if masses is None else np.asarray(masses, dtype=np.float64)
    if row.shape != (m,):
        raise DataError(f"masses has shape {row.shape}; give one probability per row of p, {m} in all.")
    return _distributions("masses", row[np.newaxis]).reshape(m)


def _exponent(gamma: float, least: float = 0.0) -> None:
    if not least <= gamma < math.inf:
        raise SettingError(f"gamma is {gamma}; this statement needs a finite gamma of at least {least:g}.")


# --- Notation: margin, modulation, losses -----------------------------------------------------------------


class Margin(NamedTuple):
    """The top candidate u and its competitor v per bag; v = −1 and φ = 0 where no competitor exists."""

    u: Labels  # (m,)
    v: Labels  # (m,)
    q: Floats  # (m,) p at u
    phi: Floats  # (m,) p at v
    beta: Floats  # (m,) q − φ
    complement: Floats  # (m,) 1 − β


def margin(p: Floats, candidates: Bools, competitor: Competitor) -> Margin:
    """Return the top-vs-competitor margin of each bag, Eqs. 20 and 21."""
    p, S = _bags(p, candidates)
    bag = np.arange(len(p))
    u = np.where(S, p, -1.0).argmax(axis=1)  # (m,) Eq. 20
    if competitor == "cc":
        rivals = S.copy()
        rivals[bag, u] = False
    elif competitor == "cn":
        rivals = ~S
    else:
        raise SettingError(f"There is no competitor '{competitor}'.{suggest(competitor, ['cc', 'cn'])}")
    v = np.where(rivals.any(axis=1), np.where(rivals, p, -1.0).argmax(axis=1), -1)  # (m,)
    q, phi = p[bag, u], np.where(v >= 0, p[bag, v], 0.0)  # (m,)
    others = p.copy()
    others[bag, u] = 0.0
    # 1 − β as a sum of positive numbers: near one-hot predictions, q − φ rounds to 1 although β < 1.
    return Margin(u, v, q, phi, beta=q - phi, complement=others.sum(axis=1) + phi)


def modulation(p: Floats, candidates: Bools, competitor: Competitor, gamma: float) -> Floats:
    """Return λ = (1 − β)^γ per bag (m,), Eq. 21."""
    _exponent(gamma)
    lam: Floats = margin(p, candidates, competitor).complement ** gamma
    return lam


def _sum(values: Floats) -> Floats:
    """Return the sum of each row (m,)."""
    total: Floats = values.sum(axis=1)
    return total


def _log(values: Floats, where: Bools) -> Floats:
    """Return the logarithm where the mask is true and 0 elsewhere, so that 0·log 0 = 0."""
    return np.log(values, out=np.zeros_like(values), where=where)


def mdl_loss(p: Floats, candidates: Bools, weights: Floats) -> Floats:
    """Return the momentum-based disambiguation loss of each bag (m,), Eq. 22."""
    p, S = _bags(p, candidates)
    w = _supported("weights", weights, S)
    _positive(p, w > 0)
    return _sum(w * -_log(p, w > 0))


def cdl_loss(p: Floats, candidates: Bools, weights: Floats, competitor: Competitor, gamma: float) -> Floats:
    """Return the calibratable disambiguation loss of each bag (m,), Eq. 23."""
    return modulation(p, candidates, competitor, gamma) * mdl_loss(p, candidates, weights)


def entropy(weights: Floats) -> Floats:
    """Return the entropy H(w) of each row (m,), Eqs. 24 and 36."""
    w = _distributions("weights", weights)
    return _sum(w * -_log(w, w > 0))


def kl_divergence(weights: Floats, p: Floats) -> Floats:
    """Return KL(w‖p) of each row (m,); with the entropy it adds up to the MDL, Eq. 24."""
    p = _distributions("p", p)
    w = _distributions("weights", weights, p.shape)
    _positive(p, w > 0)
    return _sum(w * (_log(w, w > 0) - _log(p, w > 0)))


# --- Theorem 1: a lower bound of CDL by MDL ---------------------------------------------------------------


def lower_bound(
    p: Floats, candidates: Bools, weights: Floats, competitor: Competitor, gamma: float
) -> Floats:
    """Return (1 − γβ)·MDL, below the CDL of each bag (m,) for γ ≥ 1, Eq. 27."""
    _exponent(gamma, least=1.0)  # Bernoulli's inequality is reversed below 1
    return (1.0 - gamma * margin(p, candidates, competitor).beta) * mdl_loss(p, candidates, weights)


class DataSetBound(NamedTuple):
    """Mean CDL of a data set and two lower bounds: cdl ≥ weighted ≥ uniform."""

    cdl: float  # the mean CDL, Eq. 25
    weighted: float  # the mean of (1 − γβ)·MDL, Eq. 28
    uniform: float  # (1 − γ·β_max) times the mean MDL, Eq. 29; trivial if γ·β_max ≥ 1


def data_set_bound(
    p: Floats, candidates: Bools, weights: Floats, competitor: Competitor, gamma: float
) -> DataSetBound:
    """Return the mean CDL of a data set with both lower bounds, Eqs. 25, 28 and 29 (γ ≥ 1)."""
    beta_max = margin(p, candidates, competitor).beta.max()
    return DataSetBound(
        cdl=float(cdl_loss(p, candidates, weights, competitor, gamma).mean()),
        weighted=float(lower_bound(p, candidates, weights, competitor, gamma).mean()),
        uniform=float((1.0 - gamma * beta_max) * mdl_loss(p, candidates, weights).mean()),
    )


# --- Proposition 1: top-label calibration on a finite population ------------------------------------------


def top_label(p: Floats) -> tuple[Labels, Floats]:
    """Return the predicted label and its confidence C over all labels, (m,) each, Eq. 30."""
    p = _distributions("p", p)
    return p.argmax(axis=1), p.max(axis=1)


def _confidence_gap(p: Floats, name: str, target: Floats) -> tuple[Floats, Floats]:
    """Return C and the target of the predicted label minus C, (m,) each."""
    label, confidence = top_label(p)
    rows = _distributions(name, target, np.shape(p))
    return confidence, rows[np.arange(len(rows)), label] - confidence


def calibration_error(p: Floats, eta: Floats, masses: Floats | None = None) -> float:
    """Return E_cal, Eq. 31, with examples grouped by exactly equal confidence, not by bins.

    Here and below, ``masses`` (m,) are the probabilities of the examples; the default is uniform.
    """
    confidence, gap = _confidence_gap(p, "eta", eta)
    group = np.unique(confidence, return_inverse=True)[1]  # (m,)
    # P(C = c)·|E[gap | C = c]| is the absolute value of the gaps' mass in the group: no division.
    return float(np.abs(np.bincount(group, weights=_masses(masses, len(gap)) * gap)).sum())


def confidence_error(p: Floats, eta: Floats, masses: Floats | None = None) -> float:
    """Return E_conf, the mean distance of the confidence to the latent posterior, Eq. 32."""
    _, gap = _confidence_gap(p, "eta", eta)
    return float(_masses(masses, len(gap)) @ np.abs(gap))


def pseudo_confidence_error(p: Floats, weights: Floats, masses: Floats | None = None) -> float:
    """Return E_pconf, the mean distance of the confidence to the pseudo-label weight, Eq. 32."""
    _, gap = _confidence_gap(p, "weights", weights)
    return float(_masses(masses, len(gap)) @ np.abs(gap))


def total_variation(eta: Floats, weights: Floats) -> Floats:
    """Return half the ℓ1 distance of each pair of rows (m,), Eq. 33."""
    w = _distributions("weights", weights)
    return 0.5 * _sum(np.abs(_distributions("eta", eta, w.shape) - w))


def posterior_error(eta: Floats, weights: Floats, masses: Floats | None = None) -> float:
    """Return δ_TV, the mean distance of the pseudo-label weights to the latent posterior, Eq. 32."""
    distance = total_variation(eta, weights)
    return float(_masses(masses, len(distance)) @ distance)


class CalibrationChain(NamedTuple):
    """The terms of Eq. 34: cal ≤ conf ≤ pconf + tv."""

    cal: float
    conf: float
    pconf: float
    tv: float


def calibration_chain(
    p: Floats, eta: Floats, weights: Floats, masses: Floats | None = None
) -> CalibrationChain:
    """Return E_cal, E_conf, E_pconf and δ_TV of a finite population, the terms of Eq. 34."""
    return CalibrationChain(
        cal=calibration_error(p, eta, masses),
        conf=confidence_error(p, eta, masses),
        pconf=pseudo_confidence_error(p, weights, masses),
        tv=posterior_error(eta, weights, masses),
    )


# --- Theorem 2: CDL bounds the confidence error -----------------------------------------------------------


def confidence_bound(
    p: Floats,
    candidates: Bools,
    weights: Floats,
    competitor: Competitor,
    gamma: float,
    lambda_0: float | None = None,
    masses: Floats | None = None,
) -> float:
    """Return √(2(R_CDL/λ_0 − H_w)), an upper bound of E_pconf, Eq. 37.

    The default of λ_0 is the smallest λ of the population. The proof uses the competitor only through
    λ ≥ λ_0 > 0, so bags without one (φ = 0) are allowed.
    """
    lam = modulation(p, candidates, competitor, gamma)  # (m,)
    mu = _masses(masses, len(lam))
    zero = (mu > 0) & (lam < TINY)
    _refuse(zero, "Row {row} of p has λ = 0, but Theorem 2 needs λ > 0; leave that bag out or smooth it.")
    least = float(lam[mu > 0].min())
    floor = least if lambda_0 is None else lambda_0
    if not 0 < floor <= least:
        raise SettingError(
            f"lambda_0 is {floor:g}; give a value above 0 and at most the smallest λ, {least:g}."
        )
    risk = float(mu @ cdl_loss(p, candidates, weights, competitor, gamma))  # R_CDL, Eq. 35
    mean_entropy = float(mu @ entropy(weights))  # H_w, Eq. 35
    return math.sqrt(2.0 * max(risk / floor - mean_entropy, 0.0))  # rounding may give less than 0 at w = p


def calibration_bound(
    p: Floats,
    eta: Floats,
    candidates: Bools,
    weights: Floats,
    competitor: Competitor,
    gamma: float,
    lambda_0: float | None = None,
    masses: Floats | None = None,
) -> float:
    """Return the bound of Eq. 37 plus δ_TV, an upper bound of E_conf and E_cal, Eq. 38."""
    posterior = _supported("eta", eta, _bags(p, candidates)[1])
    bound = confidence_bound(p, candidates, weights, competitor, gamma, lambda_0, masses)
    return bound + posterior_error(posterior, weights, masses)


# --- Proposition 2 and Corollary 1: gradients with respect to the logits s of p = softmax(s) --------------


def margin_gradient(p: Floats, candidates: Bools, competitor: Competitor) -> Floats:
    """Return ∂β/∂s (m×k), Eqs. 46–48; where there is no competitor, ∂q/∂s.

    At a tie, where β has no gradient, this is the gradient on the adjoining region where the tied label
    with the smallest index is larger: one element of Clarke's subdifferential.
    """
    p, S = _bags(p, candidates)
    _positive(p, np.ones_like(S))
    u, v, q, phi, beta, complement = margin(p, S, competitor)
    bag, has_competitor = np.arange(len(p)), v >= 0
    gradient = -beta[:, np.newaxis] * p  # (m, k) Eq. 48
    gradient[bag, u] = q * complement  # Eq. 46
    gradient[bag[has_competitor], v[has_competitor]] = (-phi * (1.0 + beta))[has_competitor]  # Eq. 47
    return gradient


class GradientDecomposition(NamedTuple):
    """The two terms of the CDL's gradient, Eq. 42."""

    fitting: Floats  # (m, k) λ·∇MDL
    shaping: Floats  # (m, k) −γ(1 − β)^(γ−1)·MDL·∇β

    @property
    def total(self) -> Floats:
        """Return the gradient of the CDL (m×k)."""
        return self.fitting + self.shaping


def gradient_decomposition(
    p: Floats, candidates: Bools, weights: Floats, competitor: Competitor, gamma: float
) -> GradientDecomposition:
    """Return the fitting and the shaping term of the CDL's gradient, w held fixed, Eq. 42.

    Ties are resolved as in :func:`margin_gradient`.
    """
    p, S = _bags(p, candidates)
    mdl_gradient = p - _supported("weights", weights, S)  # (m, k)
    beta_gradient = margin_gradient(p, S, competitor)  # (m, k)
    lam = modulation(p, S, competitor, gamma)  # (m,)
    slope = gamma * margin(p, S, competitor).complement ** (gamma - 1.0)  # (m,) −∂λ/∂β
    rate = slope * mdl_loss(p, S, weights)  # (m,)
    return GradientDecomposition(lam[:, np.newaxis] * mdl_gradient, -rate[:, np.newaxis] * beta_gradient)


def margin_increase(
    p: Floats, candidates: Bools, weights: Floats, competitor: Competitor, gamma: float, step: float
) -> Floats:
    """Return the first-order increase of each β (m,) by the shaping term alone, Eq. 44.

    The logits move by −step·shaping, Eq. 43; the fitting term of a whole step may still lower β.
    """
    if not 0 < step < math.inf:
        raise SettingError(f"step is {step}; give a positive step size.")
    move = -step * gradient_decomposition(p, candidates, weights, competitor, gamma).shaping  # (m, k) Eq. 43
    return _sum(move * margin_gradient(p, candidates, competitor))


# --- Lemma 1: margins under the momentum update (Eq. 15) --------------------------------------------------


def prediction_margin(p: Floats, candidates: Bools, u: int, v: int) -> Floats:
    """Return Δ between the candidates u and v in each row (m,), Eq. 53; rows may be one bag's epochs."""
    p, S = _bags(p, candidates)
    if not (0 <= u < p.shape[1] and 0 <= v < p.shape[1]):
        raise DataError(f"u and v are {u} and {v}; give labels from 0 to {p.shape[1] - 1}.")
    _refuse(~(S[:, u] & S[:, v]), f"Row {{row}} of candidates lacks {u} or {v}; give two of its candidates.")
    mass = _sum(np.where(S, p, 0.0))  # (m,)
    _refuse(mass < TINY, "Row {row} of p is 0 on all candidates; use a float64 softmax, or clip it.")
    return np.asarray((p[:, u] - p[:, v]) / mass)


def momentum_coefficients(alphas: Floats) -> Floats:
    """Return the coefficients (t,) of M⁽¹⁾, Δ⁽²⁾, …, Δ⁽ᵗ⁾ in Eq. 52 from α⁽²⁾, …, α⁽ᵗ⁾; they sum to 1."""
    alpha = np.asarray(alphas, dtype=np.float64)  # (t−1,)
    if alpha.ndim != 1 or not ((alpha >= 0) & (alpha <= 1)).all():
        raise SettingError(
            "alphas must be a vector of numbers from 0 to 1; give one for each epoch after the first."
        )
    factors = np.append(np.cumprod(alpha[::-1])[::-1], 1.0)  # (t,) A_{2:t}, A_{3:t}, …, A_{t+1:t} = 1
    coefficients: Floats = np.append(1.0, 1.0 - alpha) * factors
    return coefficients


def pseudo_label_margin(first: float, deltas: Floats, alphas: Floats) -> float:
    """Return the pseudo-label margin M⁽ᵗ⁾ from M⁽¹⁾ and Δ⁽²⁾…Δ⁽ᵗ⁾, Eq. 52; one epoch alone is Eq. 51."""
    coefficients, delta = momentum_coefficients(alphas), np.asarray(deltas, dtype=np.float64)
    if delta.shape != (len(coefficients) - 1,):
        raise DataError(f"deltas has shape {delta.shape}; give as many as alphas, {len(coefficients) - 1}.")
    return float(coefficients @ np.append(first, delta))
