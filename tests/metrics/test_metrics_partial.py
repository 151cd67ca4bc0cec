import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, cross_val_score

from mipl import make_classifier
from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.data.candidates import add_false_positives
from mipl.errors import DataError
from mipl.metrics import (
    accuracy,
    approximated_accuracy,
    approximated_accuracy_scorer,
    covering_rate,
    covering_rate_scorer,
    first_near_best,
    first_within_one_error,
    set_log_likelihood,
    set_log_likelihood_scorer,
)

SCORERS = {"covering": covering_rate_scorer, "approximated": approximated_accuracy_scorer}


def slow(probabilities, candidates):
    """Return covering rate and approximated accuracy by loops."""
    covered, credit = 0, 0.0
    for p, S in zip(probabilities, candidates, strict=True):
        top = max(range(len(p)), key=lambda c: p[c])  # the first of equals
        if S[top]:
            covered += 1
            credit += p[top] / sum(p[c] for c in range(len(p)) if S[c])
    return covered / len(probabilities), credit / len(probabilities)


def draw(m, k, r, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, k, m)
    return rng.dirichlet(np.full(k, 0.5), size=m), add_false_positives(labels, k, r, "test", seed), labels


@pytest.mark.parametrize(("k", "r"), [(2, 0), (2, 1), (5, 1), (5, 4), (13, 3)])
def test_values_are_those_of_the_definitions(k, r):
    p, candidates, labels = draw(200, k, r)
    cr, aa = slow(p, candidates)
    assert covering_rate(p, candidates) == pytest.approx(cr)
    assert approximated_accuracy(p, candidates.astype(int)) == pytest.approx(aa)
    assert approximated_accuracy(p, candidates) <= covering_rate(p, candidates) + 1e-12
    assert covering_rate(p, candidates) >= accuracy(p, labels)  # the truth is in every set


def test_edges():
    p = [[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]
    assert covering_rate(p, [[0, 1, 1], [0, 0, 1]]) == 0.5  # of equals the first is predicted
    assert approximated_accuracy(p, [[1, 1, 1], [1, 1, 1]]) == pytest.approx(0.5)  # mean of the largest
    assert approximated_accuracy(p, [[0, 0, 1], [1, 1, 0]]) == 0.0  # no mass on the first bag's candidates
    one = np.eye(3)[[0, 1, 2, 2]]
    sets = [[1, 1, 0], [1, 0, 1], [0, 1, 1], [0, 0, 1]]
    assert approximated_accuracy(one, sets) == covering_rate(one, sets) == 0.75  # sure of everything
    assert (
        covering_rate([[0.1, 0.9]], [[False, True]]) == approximated_accuracy([[0.1, 0.9]], [[0, 1]]) == 1.0
    )


def test_with_false_candidates_drawn_uniformly_the_covering_rate_follows_the_accuracy():
    m, k, r = 40_000, 6, 2
    rng = np.random.default_rng(0)
    labels = rng.integers(0, k, m)
    candidates, rho = add_false_positives(labels, k, r, "uniform"), r / (k - 1)
    rates = []
    for wrong in (0.1, 0.3, 0.32, 0.6):
        predicted = np.where(rng.random(m) < wrong, (labels + rng.integers(1, k, m)) % k, labels)
        p = np.eye(k)[predicted]
        rates.append(covering_rate(p, candidates))
        assert rates[-1] == pytest.approx(rho + (1 - rho) * accuracy(p, labels), abs=4 * 0.5 / np.sqrt(m))
    assert rates == sorted(rates, reverse=True)


def drawn_from_their_probabilities(m=40_000, k=5):
    """Return probabilities, labels drawn from them, and candidate sets of three."""
    rng = np.random.default_rng(0)
    p = rng.dirichlet(np.full(k, 0.7), size=m)
    labels = (p.cumsum(axis=1) < rng.random((m, 1))).sum(axis=1).clip(max=k - 1)
    candidates = add_false_positives(labels, k, 2, "posterior")
    return p, labels, candidates


def test_with_true_probabilities_the_approximated_accuracy_is_the_accuracy():
    p, labels, candidates = drawn_from_their_probabilities()
    assert approximated_accuracy(p, candidates) == pytest.approx(accuracy(p, labels), abs=0.01)


def test_the_likelihood_of_sets_is_highest_for_the_true_probabilities():
    p, _, candidates = drawn_from_their_probabilities()
    by_loop = [
        np.log(sum(row[c] for c in range(len(S)) if S[c])) for row, S in zip(p, candidates, strict=True)
    ]
    truth = set_log_likelihood(np.log(p), candidates)
    assert truth == pytest.approx(np.mean(by_loop))
    for power in (0.6, 0.8, 1.3, 2.0):  # less and more sure than right
        q = p**power
        assert set_log_likelihood(np.log(q / q.sum(axis=1, keepdims=True)), candidates) < truth
    far = np.array([[0.0, -800.0]])
    assert set_log_likelihood(far, [[0, 1]]) == -800.0  # no logarithm of 0


def test_the_first_within_one_error_of_the_best_is_taken():
    best = np.array([0.9, 0.8, 0.7, 0.8])
    noisy, shifted = best - [0.1, -0.1, 0.1, -0.09], best - 0.01  # a little worse: by chance, or always
    assert first_near_best([shifted, best]) == 1
    assert first_near_best([noisy, best]) == 0
    assert first_near_best([best, best]) == 0
    columns = {f"split{i}_test_score": row for i, row in enumerate(np.stack([shifted, noisy, best]).T)}
    assert first_within_one_error({"mean_fit_time": [0, 0, 0], **columns}) == 1


@pytest.mark.parametrize(
    ("p", "candidates", "sentence"),
    [
        ([[0.5, 0.5]], [[1, 0, 1]], r"shape \(1, 3\).*have shape \(1, 2\)"),
        ([[0.5, 0.5]], [[1, 0], [0, 1]], r"shape \(2, 2\)"),
        ([[0.5, 0.5]], [1, 0], r"shape \(2,\)"),
        ([[0.5, 0.5]], [[0.5, 0.5]], "give 0 or 1"),
        ([[0.5, 0.5]], [["a", "b"]], "give 0 or 1"),
        ([[0.5, 0.5]], [[0, 0]], "candidate set of row 0 is empty"),
        ([[0.5, 0.6]], [[1, 0]], "Row 0 of the probabilities sums to 1.1"),
        ([[2.0, -1.0]], [[1, 0]], "not between 0 and 1"),
        ([[0.5, 0.5], [1.0]], [[1, 0]], "ragged"),
        ([[0.5, 0.5]], [[1, 0], [1]], "ragged"),
        (0.5, 1, "give an m×k table"),
        (np.zeros((0, 3)), np.zeros((0, 3)), "give an m×k table"),
    ],
)
@pytest.mark.parametrize("metric", [covering_rate, approximated_accuracy])
def test_what_is_not_two_tables_is_refused_with_a_sentence(metric, p, candidates, sentence):
    with pytest.raises(DataError, match=sentence):
        metric(p, candidates)


# ---- scorers -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def hidden():
    """Bags with their labels, which only the assertions may see."""
    return gaussian_bags(bags=72, k=4)


@pytest.fixture(scope="module")
def unlabelled(hidden):
    """The same instances and candidate sets, and nothing else."""
    bags = Bags.from_list([bag.instances for bag in hidden], hidden.candidates)
    assert bags.labels is None
    assert bags.instance_labels is None
    assert bags.provenance == {}
    return bags


def test_a_grid_search_without_any_true_label(hidden, unlabelled):
    model = make_classifier("proden", epochs=5)
    grid = {"lr": [1e-6, 3e-3]}
    search = GridSearchCV(model, grid, scoring=SCORERS, refit="covering", cv=3, error_score="raise")
    search.fit(unlabelled)
    assert search.best_params_ == {"lr": 3e-3}
    for name in SCORERS:
        poor, good = search.cv_results_[f"mean_test_{name}"]
        assert 0 <= poor < good <= 1
    truth = [make_classifier("proden", epochs=5, lr=lr).fit(unlabelled).score(hidden) for lr in grid["lr"]]
    assert truth[0] < truth[1]
    assert search.best_estimator_.score(hidden) == truth[1]
    assert search.predict(unlabelled).shape == (72,)


def test_a_search_over_an_attention_method(unlabelled):
    search = GridSearchCV(
        make_classifier("sam-cn", ensemble=1, epochs=2),
        {"competitor": ["cn", "cc"], "gamma": [1.0]},
        scoring=set_log_likelihood_scorer,
        refit=first_within_one_error,
        cv=2,
    )
    search.fit(unlabelled)
    scores = search.cv_results_["mean_test_score"]
    assert np.isfinite(scores).all()
    assert (scores < 0).all()
    assert search.best_params_["gamma"] == 1.0
    assert search.predict(unlabelled).shape == (72,)


@pytest.mark.parametrize("scorer", SCORERS.values())
def test_scores_are_those_of_the_metrics_and_labels_are_not_read(scorer, hidden, unlabelled):
    model = make_classifier("lws", epochs=2).fit(unlabelled)
    metric = {covering_rate_scorer: covering_rate, approximated_accuracy_scorer: approximated_accuracy}[
        scorer
    ]
    wanted = metric(model.predict_proba(unlabelled), unlabelled.candidates)
    assert scorer(model, unlabelled) == wanted
    assert scorer(model, hidden, y=np.zeros(72)) == wanted
    assert cross_val_score(make_classifier("lws", epochs=1), unlabelled, scoring=scorer, cv=2).shape == (2,)


def test_columns_follow_the_model_s_classes(hidden):
    arrays = [bag.instances for bag in hidden]
    names = np.array(["ash", "birch", "cedar", "dogwood"])
    bags = Bags.from_list(arrays, hidden.candidates, classes=names)
    model = make_classifier("proden", epochs=2).fit(bags)
    order = [2, 0, 3, 1]
    turned = Bags.from_list(arrays, hidden.candidates[:, order], classes=names[order])
    assert covering_rate_scorer(model, turned) == covering_rate_scorer(model, bags)
    other = Bags.from_list(arrays, hidden.candidates, classes=["ash", "birch", "cedar", "elm"])
    with pytest.raises(DataError, match=r"The model has the classes .*dogwood.*but the bags have .*elm"):
        covering_rate_scorer(model, other)
    with pytest.raises(DataError, match="no candidate sets to score against"):
        covering_rate_scorer(model, Bags.from_list(arrays))
    with pytest.raises(DataError, match="no candidate sets to score against"):
        approximated_accuracy_scorer(model, arrays)
