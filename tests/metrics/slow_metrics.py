"""The metrics again as plain loops over Python floats, sharing nothing with what they check."""

from __future__ import annotations

import itertools
import math
import random

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp


def predicted(row):
    best = 0
    for j in range(1, len(row)):
        if row[j] > row[best]:
            best = j
    return best


def accuracy(rows, labels):
    return sum(predicted(row) == y for row, y in zip(rows, labels, strict=True)) / len(labels)


def balanced_accuracy(rows, labels):
    recalls = []
    for j in sorted(set(labels)):
        own = [row for row, y in zip(rows, labels, strict=True) if y == j]
        recalls.append(sum(predicted(row) == j for row in own) / len(own))
    return sum(recalls) / len(recalls)


def brier(rows, labels):
    total = 0.0
    for row, y in zip(rows, labels, strict=True):
        for j, p in enumerate(row):
            total += (p - (1.0 if j == y else 0.0)) ** 2
    return total / len(labels)


def negative_log_likelihood(rows, labels):
    smallest = 2.0**-126
    return sum(-math.log(max(row[y], smallest)) for row, y in zip(rows, labels, strict=True)) / len(labels)


def top(rows, labels):
    """List (confidence, right) for each example."""
    return [(max(row), float(predicted(row) == y)) for row, y in zip(rows, labels, strict=True)]


def equal_width(pairs, bins):
    """List the bins, each a list of (confidence, right)."""
    found = [[] for _ in range(bins)]
    for confidence, right in pairs:
        for r in range(bins):
            if (r / bins < confidence <= (r + 1) / bins) or (r == 0 and confidence == 0):
                found[r].append((confidence, right))
    assert sum(map(len, found)) == len(pairs)
    return found


def equal_mass(pairs, bins):
    """Walk up the confidences; a new bin may only start where the confidence changes."""
    found = [[] for _ in range(bins)]
    target, before = 0, None
    for rank, (confidence, right) in enumerate(sorted(pairs)):
        if confidence != before:
            target = math.floor(rank * bins / len(pairs) + 1e-9)
        found[target].append((confidence, right))
        before = confidence
    return found


def gap(group):
    return abs(sum(right for _, right in group) / len(group) - sum(c for c, _ in group) / len(group))


def eq2(groups):
    m = sum(len(group) for group in groups)
    return sum(len(group) / m * gap(group) for group in groups if group)


def expected_calibration_error(rows, labels, bins):
    return eq2(equal_width(top(rows, labels), bins))


def maximum_calibration_error(rows, labels, bins):
    return max(gap(group) for group in equal_width(top(rows, labels), bins) if group)


def adaptive_calibration_error(rows, labels, bins):
    return eq2(equal_mass(top(rows, labels), bins))


def classwise_calibration_error(rows, labels, bins):
    k = len(rows[0])
    errors = []
    for j in range(k):
        pairs = [(row[j], float(y == j)) for row, y in zip(rows, labels, strict=True)]
        errors.append(eq2(equal_width(pairs, bins)))
    return sum(errors) / k


def calibration_error_if_calibrated(rows, bins, draws, seed):
    """Simulate with Python's own generator: a mean that agrees within the noise of the draws."""
    generator = random.Random(seed)
    total = 0.0
    for _ in range(draws):
        pairs = [(max(row), float(generator.random() < max(row))) for row in rows]
        total += eq2(equal_width(pairs, bins))
    return total / draws


def expected_if_calibrated(rows, bins):
    """Sum over every outcome of every bin, with its probability: exact, for few examples per bin."""
    total = 0.0
    for group in equal_width([(max(row), 0.0) for row in rows], bins):
        for outcome in itertools.product((0, 1), repeat=len(group)):
            chance = math.prod(c if hit else 1 - c for (c, _), hit in zip(group, outcome, strict=True))
            total += chance * abs(sum(outcome) - sum(c for c, _ in group))
    return total / len(rows)


def accuracy_at_coverage(rows, labels):
    """List (coverage, accuracy, threshold) for every threshold that a confidence sets."""
    pairs = top(rows, labels)
    points = []
    for threshold in sorted({c for c, _ in pairs}, reverse=True):
        answered = [right for c, right in pairs if c >= threshold]
        points.append((len(answered) / len(pairs), sum(answered) / len(answered), threshold))
    return points


def area_under_risk_coverage(rows, labels):
    """Of equal confidences any may come next: it is wrong as often as they are on average."""
    pairs = sorted(top(rows, labels), reverse=True)
    total, wrong = 0.0, 0.0
    for i, (confidence, _) in enumerate(pairs, start=1):
        tied = [1 - right for c, right in pairs if c == confidence]
        wrong += sum(tied) / len(tied)
        total += wrong / i
    return total / len(pairs)


def at_top(rows, labels, count):
    """Rows and labels of the count most confident examples and of those as confident as the last."""
    lowest = sorted((max(row) for row in rows), reverse=True)[count - 1]
    chosen = [i for i, row in enumerate(rows) if max(row) >= lowest]
    return [rows[i] for i in chosen], [labels[i] for i in chosen]


@st.composite
def predictions(draw, most=30):
    """Draw labels and probabilities of small ratios, rich in ties, zeros, ones and bin edges."""
    m, k = draw(st.integers(1, most)), draw(st.integers(1, 5))
    weights = draw(hnp.arrays(np.int64, (m, k), elements=st.integers(0, 15)))
    weights[weights.sum(axis=1) == 0, 0] = 1
    p = weights / weights.sum(axis=1, keepdims=True)
    y = draw(hnp.arrays(np.int64, m, elements=st.integers(0, k - 1)))
    return p.astype(draw(st.sampled_from([np.float32, np.float64]))), y


def sampled(m, k, seed, sharpness=1.0):
    """Sample predictions and labels that follow them after a distortion, so that no error is near 0."""
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.full(k, 0.5), size=m)
    truth = p**sharpness / (p**sharpness).sum(axis=1, keepdims=True)
    y = np.array([rng.choice(k, p=row) for row in truth])
    return p, y
