"""One contract over every method: what a user may rely on, whichever name was chosen."""

import numpy as np
import pytest

from mipl import list_methods, make_classifier
from mipl.data.bags import Bags
from mipl.data.benchmarks import digits_mipl, gaussian_bags
from mipl.testing import CHECKS, MethodContract

METHODS = list_methods()
pytestmark = pytest.mark.filterwarnings("ignore:The model has learned nothing")  # a few epochs


@pytest.fixture(scope="module")
def contracts():
    """One contract per method, whose classifier is trained once."""
    return {name: MethodContract(name) for name in METHODS}


def test_every_name_of_the_paper_is_there():
    attentions = ("dam", "sam", "mam")
    expected = {f"{a}-{c}" for a in attentions for c in ("cc", "cn", "mdl")}
    expected |= {f"{a}-{c}" for a in ("sam", "mam") for c in ("fl", "ifl", "ls")}
    expected |= {f"{a}-{c}" for a in ("abmil", "abmil-gated") for c in ("cc", "cn", "mdl")}
    expected |= {"demipl", "elimipl", "miplma", "promipl", "fastmipl", "uamipl", "miplgp", "agopmipl"}
    expected |= {"proden", "rc", "cc", "lws", "pop", "pop-cc", "pop-cn"}
    assert expected <= set(METHODS)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("check", CHECKS)
def test_contract(name, check, contracts):
    getattr(contracts[name], check)()


def digits_with_few_negatives(negatives=3):
    """Return digits-mipl with three positives and three negatives per bag: a sixth of the time to train."""
    bags = digits_mipl()
    kept = []
    for bag in bags:
        positive = bag.instance_labels >= 0
        kept.append(bag.instances[positive | (np.cumsum(~positive) <= negatives)])
    return Bags.from_list(kept, bags.candidates, bags.labels, classes=bags.classes)


DATA = {  # and the epochs that a sound method needs for twice the chance
    "digits": (digits_with_few_negatives()[::2], 20),
    "ragged": (gaussian_bags(bags=60, sizes=(1, 200), seed=1), 12),
    "one feature": (gaussian_bags(bags=60, d=1, seed=7), 12),
    "25 classes": (gaussian_bags(bags=150, k=25, d=8, seed=3), 12),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("data", DATA)
def test_learns_twice_the_chance_on_other_data(name, data):
    bags, epochs = DATA[data]
    model = make_classifier(name, ensemble=1, epochs=epochs).fit(bags)
    assert model.score(bags) >= 2 / bags.k
