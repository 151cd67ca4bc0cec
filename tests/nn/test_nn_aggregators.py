"""Aggregators against NumPy loops over single bags, and as a setting of methods."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from torch import nn

from mipl import CDLClassifier, load, make_classifier
from mipl.errors import SettingError
from mipl.methods import METHODS
from mipl.nn.aggregators import DSMIL, TransMIL, nystrom_attention, pseudo_inverse
from mipl.nn.attention import ABMIL
from mipl.nn.segments import segment_ids
from mipl.registry import active_settings

SIZES = torch.tensor([3, 1, 5, 3, 9])
WIDTH, K = 16, 4


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def features():
    return torch.randn(int(SIZES.sum()), WIDTH)


def arrays(module):
    return {name: value.detach().numpy().astype(float) for name, value in module.named_parameters()}


@pytest.mark.parametrize("gated", [False, True])
def test_abmil_is_the_formula_of_its_paper(gated):
    h, attention = features(), ABMIL(gated)
    score = attention.make_score(WIDTH, K)
    found = attention(score(h), segment_ids(SIZES), SIZES).detach().numpy()
    V, b, w, c = (p.detach().numpy() for p in score.parameters())
    expected = []
    for bag in np.split(h.numpy(), np.cumsum(SIZES)[:-1]):
        rows = bag @ V.T + b
        hidden = np.tanh(rows)
        if gated:
            first, second = np.split(rows, 2, axis=1)
            hidden = np.tanh(first) / (1 + np.exp(-second))
        expected.append(softmax((hidden @ w.T + c)[:, 0]))
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-6)


def test_dsmil_is_the_formula_of_its_paper():
    h, net = features(), DSMIL(WIDTH, K)
    head = net.make_head("linear", K)
    found = head(net.of_bags(h, SIZES)).detach().numpy()
    p, q = arrays(net), arrays(head)
    for bag, logits in zip(np.split(h.numpy().astype(float), np.cumsum(SIZES)[:-1]), found, strict=True):
        scores = bag @ p["scores.weight"].T + p["scores.bias"]  # (n, k)
        queries = bag @ p["query.weight"].T + p["query.bias"]
        values = bag @ p["value.weight"].T + p["value.bias"]
        vectors = []
        for c in range(K):
            critical = scores[:, c].argmax()
            weights = softmax(queries @ queries[critical] / np.sqrt(128))
            vectors.append(weights @ values)
        second = q["second.weight"] @ np.concatenate(vectors) + q["second.bias"]
        np.testing.assert_allclose(logits, (scores.max(axis=0) + second) / 2, atol=1e-5)


def test_transmil_of_several_bags_is_that_of_each_alone():
    h, net = features(), TransMIL(WIDTH).eval()
    together = net.of_bags(h, SIZES)
    for bag, vector in zip(torch.split(h, SIZES.tolist()), together, strict=True):
        side = int(np.ceil(np.sqrt(len(bag))))
        filled = torch.cat([bag] * 4)[: side * side]  # the first instances again
        torch.testing.assert_close(net(filled[None])[0], vector)


def test_transmil_fills_the_smallest_square():
    net = TransMIL(WIDTH)
    assert [net.padded(n) for n in (1, 2, 4, 5, 9, 10, 16, 17)] == [1, 4, 4, 9, 9, 16, 16, 25]


def test_nystrom_with_as_many_landmarks_as_rows_is_exact_attention():
    q, k, v = torch.randn(3, 2, 4, 6, 8, dtype=torch.float64)
    exact = torch.softmax(q @ k.mT / np.sqrt(8), dim=-1) @ v
    torch.testing.assert_close(nystrom_attention(q, k, v, 6, iterations=30), exact)
    assert nystrom_attention(q, k, v, 3).shape == exact.shape


def test_the_pseudo_inverse_is_numpys():
    matrix = torch.softmax(torch.randn(2, 5, 5, dtype=torch.float64), dim=-1)
    np.testing.assert_allclose(pseudo_inverse(matrix, 30), np.linalg.pinv(matrix.numpy()), atol=1e-8)


class Mean(nn.Module):
    """A user's own aggregator."""

    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, 7)

    def forward(self, h):
        return self.linear(h).mean(dim=0)


AGGREGATORS = ["transmil", "dsmil", Mean]


@pytest.mark.parametrize("aggregator", AGGREGATORS)
@pytest.mark.filterwarnings("ignore:The model has learned nothing")
def test_every_aggregator_learns_is_saved_and_refuses_attention(aggregator, gaussian, tmp_path):
    model = make_classifier("sam-cn", aggregator=aggregator, epochs=6).fit(gaussian)
    assert model.score(gaussian) >= 0.75
    together = model.predict_proba(gaussian)
    alone = np.concatenate([model.predict_proba([bag.instances]) for bag in gaussian[:5]])
    np.testing.assert_allclose(alone, together[:5], atol=1e-5)
    width = {"transmil": 128, "dsmil": 4 + 4 * 128}.get(aggregator, 7)
    assert model.embed(gaussian).shape == (len(gaussian), width)
    with pytest.raises(SettingError, match="sam-cn has no attention over instances"):
        model.attention_weights(gaussian)
    model.save(tmp_path / "model")
    given = {} if isinstance(aggregator, str) else {"aggregator": aggregator}
    assert (load(tmp_path / "model", **given).predict_proba(gaussian) == together).all()
    if given:
        with pytest.raises(SettingError, match=r"an aggregator of its own, .*:Mean: pass it again"):
            load(tmp_path / "model")


def test_an_ensemble_with_an_aggregator_is_trained_on_request(gaussian):
    model = CDLClassifier(aggregator="dsmil", epochs=2, ensemble=3).fit(gaussian[:20])
    assert len(model.network_.members) == 3
    assert make_classifier("sam-cn", aggregator="dsmil").parts()[1].ensemble == 1


def test_the_default_aggregator_is_not_part_of_the_identity_of_a_run():
    assert "aggregator" not in active_settings(METHODS["sam-cn"].make())
    assert active_settings(METHODS["sam-cn"].make(aggregator=Mean))["aggregator"].endswith(":Mean")


@pytest.mark.parametrize(
    ("name", "aggregator", "message"),
    [
        ("demipl", "dsmil", "aggregator = 'dsmil' must be 'attention': DEMIPL refers to the attention"),
        ("sam-cn", "mean", "must be 'attention', 'transmil', 'dsmil' or a class or function"),
        ("sam-cn", Mean(3), "aggregator is a Mean: pass its class"),
        ("sam-cn", lambda width: 3, r"aggregator\(128\) returned a int: it must return a torch.nn.Module"),
        ("sam-cn", lambda width: nn.Linear(width, 3), "must map the features of a bag .* to one vector"),
        ("sam-cn", lambda width: nn.Linear(width + 1, 3), "does not take the features of a bag"),
    ],
)  # fmt: skip
def test_a_wrong_aggregator_is_refused_with_a_sentence(name, aggregator, message, gaussian):
    with pytest.raises((SettingError, ValueError), match=message):
        make_classifier(name, aggregator=aggregator).fit(gaussian)
