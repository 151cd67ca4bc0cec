"""The paper's printed values, and the claims of its text computed from them."""

import pytest

from mipl.paper.claims import CLAIMS, claims_table, gain
from mipl.paper.printed import paper_results


def test_every_printed_value_is_there():
    values = paper_results()
    assert values["birdsong-mipl", 1, "dam-cn", "accuracy"] == (80.38, 2.11)
    assert values["c-row", None, "mam-cc", "ece"][0] > 0
    assert len(values) == 473 - 4


def test_what_the_paper_says_of_its_tables():
    found = {}
    for item in dict.fromkeys(claim.item for claim in CLAIMS):
        for says, printed, again, ours in claims_table(item, dict).rows:
            found[says.text] = (printed.text, again.text)
            assert again.bold == (printed.text != again.text)
            assert ours.text == "–"
    different = {says: pair for says, pair in found.items() if pair[0] != pair[1]}
    assert different == {
        "best of ours above each earlier method": ("67 of 72", "68 of 72"),
        "best of ours above each earlier method, both tables": ("105 of 110", "106 of 110"),
        "mean gain over the baseline, r = 1": ("3.27", "3.21"),
        "gain of DAM-CC on MNIST-MIPL, r = 3": ("14.37", "14.34"),
        "ECE lower by more than 50 points": ("26 of 60", "26 of 72"),
        "smallest reduction of ECE": ("16.76", "16.71"),
        "data sets on which ours have the lowest ECE": ("94.74%", "89.47%"),
    }
    assert found["best of ours below each earlier method, both tables"] == ("93 of 95", "93 of 95")
    assert claims_table("fig2", dict) is None


def test_a_gain_is_over_the_baseline_of_the_same_attention():
    paper = {key: value[0] for key, value in paper_results().items()}
    assert gain(paper, "birdsong-mipl", 1, "dam-cn", "accuracy") == pytest.approx(80.38 - 74.36)
    assert gain(paper, "birdsong-mipl", 1, "dam-cn", "ece") == pytest.approx(57.86 - 7.53)
    assert gain(paper, "birdsong-mipl", 1, "fastmipl", "ece") is None
    assert gain({}, "birdsong-mipl", 1, "dam-cn", "ece") is None
