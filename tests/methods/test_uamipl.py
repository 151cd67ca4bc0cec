"""UAMIPL against a NumPy loop over bags, samples and classes; RC and CC against their formulas."""

import numpy as np
import pytest
import torch
from scipy.special import log_softmax, softmax
from torch import nn

from mipl import make_classifier
from mipl.methods import METHODS, StepContext
from mipl.methods.uamipl import EvidentialEffects
from mipl.pseudo_labels import PseudoLabels

SIZES, L, K, SAMPLES = [2, 4, 1, 3], 6, 3, 2


def looped(h, beta, way, reliability, threshold):
    """Return the effects (b, S, k) of METHODS' definition, one instance, sample and class at a time."""
    S, k, _ = beta.shape
    xi = np.einsum("nl,skl->nsk", h, beta[:, :, :L])
    rms = np.sqrt((beta[:, :, L:] ** 2).mean(axis=2) + 1e-8)
    values = np.einsum("nl,skl->nsk", h, beta[:, :, L:]) / rms
    u = np.zeros_like(xi)
    for i in range(len(h)):
        for s in range(S):
            for c in range(k):
                alpha = np.maximum(xi[i], 0) + 1e-6 + 1  # (S, k)
                u[i, s, c] = k / (alpha[s].sum() if way == "text" else alpha[:, c].sum())
    u = (u - u.min()) / (u.max() - u.min())
    share = reliability * u.mean() if u.mean() >= threshold else 0.0
    effects, start = [], 0
    for n in SIZES:
        bag = slice(start, start + n)
        weights = (1 - share) * softmax(xi[bag], axis=0) + share * (1 - u[bag])
        effects.append((weights * values[bag]).sum(axis=0))
        start += n
    return np.array(effects)


@pytest.mark.parametrize("way", ["text", "script"])
@pytest.mark.parametrize("threshold", [0.0, 1.0])
def test_effects_in_training_are_those_of_the_definition(way, threshold):
    torch.manual_seed(0)
    method = METHODS["uamipl"].make(way=way, reliability=0.4, threshold=threshold)
    net = EvidentialEffects(nn.Identity(), nn.Identity(), L, K, method).double()
    h, beta = torch.randn(sum(SIZES), L).double(), torch.randn(SAMPLES, K, 2 * L).double()
    before, _ = net.effects(h, torch.tensor(SIZES), beta)
    net.mixing.fill_(True)
    found, _ = net.effects(h, torch.tensor(SIZES), beta)
    np.testing.assert_allclose(found, looped(h.numpy(), beta.numpy(), way, 0.4, threshold), atol=1e-9)
    np.testing.assert_allclose(before, looped(h.numpy(), beta.numpy(), way, 0.0, 0.0), atol=1e-9)


def test_prediction_mixes_by_the_text_and_not_by_the_script(gaussian):
    common = {"epochs": 10, "mix_after": 3, "threshold": 0.0, "reliability": 0.5}
    text = make_classifier("uamipl", **common).fit(gaussian)
    script = make_classifier("uamipl", way="script", **common).fit(gaussian)
    assert float(text.network_.share) > 0
    assert float(script.network_.share) == 0
    never = make_classifier("uamipl", epochs=10).fit(gaussian)  # fewer epochs than mix_after
    fast = make_classifier("fastmipl", epochs=10).fit(gaussian)
    assert (never.predict_proba(gaussian) == fast.predict_proba(gaussian)).all()
    assert (never.predict_proba(gaussian) != text.predict_proba(gaussian)).any()


def test_the_paper_settings_are_published_per_data_set():
    settings = METHODS["uamipl"].cls.recommended("paper", "birdsong-mipl", 3)
    expected = {"lr": 5e-3, "epochs": 500, "samples": 30, "reliability": 0.5, "optimizer": "sgd"}
    assert expected.items() <= settings.items()


@pytest.mark.parametrize("name", ["rc", "cc"])
def test_rc_and_cc_are_the_formulas_of_their_paper(name):
    rng = np.random.default_rng(0)
    logits, candidates = rng.normal(size=(5, 4)), rng.random((5, 4)) < 0.5
    candidates[np.arange(5), rng.integers(4, size=5)] = True
    table = PseudoLabels(torch.tensor(candidates))
    method, uniform = METHODS[name].make(), table.weights.clone()

    class Batch:
        instances, sizes, index = None, None, torch.arange(5)

    class Net(nn.Module):
        def forward(self, instances, sizes):
            return torch.tensor(logits)

    context = StepContext(1, 10, 0.5, 1.0)
    for _ in range(2):  # with uniform weights, then with those of the network
        weights = table.weights.numpy().copy()
        found = method.objective(Net(), Batch, table, context).numpy()
        log_p = log_softmax(logits, axis=1)
        expected = (
            [-0.5 * sum(weights[i, c] * log_p[i, c] for c in range(4)) for i in range(5)]
            if name == "rc"
            else [-np.log(sum(np.exp(log_p[i, c]) for c in range(4) if candidates[i, c])) for i in range(5)]
        )
        np.testing.assert_allclose(found, expected, rtol=1e-6)
        method.after_step(Net(), Batch, table, context)
    assert bool((table.weights != uniform).any()) == (name == "rc")
