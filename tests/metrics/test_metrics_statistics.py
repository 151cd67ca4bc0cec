"""Friedman and Nemenyi on the paper's own tables, against slow routes, and what must always hold."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mipl.errors import DataError, SettingError
from mipl.metrics.statistics import cliques, critical_difference, friedman, mean_ranks, nemenyi
from mipl.paper.printed import paper_scores

TABLES = arrays(np.float64, st.tuples(st.integers(2, 8), st.integers(3, 6)), elements=st.integers(0, 5))


def test_the_papers_calibration_table_gives_the_statistic_it_prints():
    table, methods = paper_scores("ece")
    assert table.shape == (19, 11)
    assert "miplgp" not in methods
    test = friedman(table, higher_is_better=False)
    assert test.f == pytest.approx(50.3444, abs=5e-5)
    assert test.f_ties == pytest.approx(50.39, abs=5e-3)
    assert test.critical == pytest.approx(1.8836, abs=5e-5)
    assert test.p < 1e-40


def test_the_papers_accuracy_statistic_is_its_chi_square():
    test = friedman(paper_scores("accuracy")[0], higher_is_better=True)
    assert test.chi2 == pytest.approx(116.6938, abs=5e-5)  # printed as F_F
    assert test.f == pytest.approx(28.65, abs=5e-3)
    assert test.chi2_ties == pytest.approx(116.78, abs=5e-3)


def test_the_critical_difference_of_the_paper():
    assert critical_difference(11, 19) == pytest.approx(3.4634, abs=5e-5)  # 3.4638 with q rounded to 3.219


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_values_are_those_of_demsars_table(methods, q):
    unit = math.sqrt(methods * (methods + 1) / 6)
    assert critical_difference(methods, 1) / unit == pytest.approx(q, abs=2e-3)


def test_nemenyi_agrees_with_the_critical_difference_on_every_pair():
    table, methods = paper_scores("ece")
    p, ranks = nemenyi(table), mean_ranks(table, higher_is_better=False)
    apart = np.abs(ranks[:, None] - ranks[None, :])
    np.testing.assert_array_equal(p < 0.05, apart > critical_difference(11, 19))
    # against the paper's text: FastMIPL is told apart from MAM-CC and MAM-CN alone of the six
    six = [m for m in methods if m.endswith(("-cc", "-cn"))]
    fast = methods.index("fastmipl")
    assert {m for m in six if p[fast, methods.index(m)] < 0.05} == {"mam-cc", "mam-cn"}
    assert p[methods.index("demipl"), methods.index("sam-cn")] > 0.05


@given(TABLES)
def test_the_statistic_is_that_of_a_slow_count(table):
    n, l = table.shape  # noqa: E741 (the paper's letter)
    ranks = np.zeros(l)
    for row in table:
        for j in range(l):
            ranks[j] += (1 + sum(row > row[j]) + (sum(row == row[j]) - 1) / 2) / n
    test = friedman(table, higher_is_better=True)
    np.testing.assert_allclose(test.ranks, ranks)
    slow = 12 * n / (l * (l + 1)) * sum((r - (l + 1) / 2) ** 2 for r in ranks)
    assert test.chi2 == pytest.approx(slow, abs=1e-9)
    assert test.chi2_ties >= test.chi2 - 1e-9
    # turning the scores round turns the ranks round and leaves the statistic
    other = friedman(-table, higher_is_better=True)
    np.testing.assert_allclose(other.ranks, l + 1 - test.ranks)
    assert other.chi2 == pytest.approx(test.chi2, abs=1e-9)


@given(arrays(np.float64, st.integers(1, 9), elements=st.floats(1, 9)), st.floats(0, 5))
def test_groups_are_the_largest_within_the_difference(ranks, difference):
    groups = cliques(ranks, difference)
    inside = {(i, j) for group in groups for i in group for j in group}
    for i in range(len(ranks)):
        for j in range(len(ranks)):
            low, high = sorted((ranks[i], ranks[j]))
            assert i == j or ((i, j) in inside) == (high <= low + difference)
    for group in groups:
        assert not any(set(group) < set(other) for other in groups)


def test_methods_ranked_alike_everywhere_are_infinitely_apart():
    test = friedman([[1, 2, 3]] * 4, higher_is_better=True)
    assert test.f == math.inf
    assert test.p == 0
    np.testing.assert_array_equal(test.ranks, [3, 2, 1])


def test_what_cannot_be_ranked_is_refused():
    for bad in ([[1, 2, 3]], [[1, 2], [3, 4]], [[1, 2, float("nan")], [1, 2, 3]], [1, 2, 3]):
        with pytest.raises(DataError, match="at least 2 data sets"):
            friedman(bad, higher_is_better=True)
    with pytest.raises(SettingError, match="between 0 and 1"):
        critical_difference(3, 5, alpha=1.0)
