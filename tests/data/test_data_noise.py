import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_bags import arguments, assert_is, many

from mipl.data.bags import Bags
from mipl.data.benchmarks import gaussian_bags
from mipl.data.noise import drop_instances, remove_true_label
from mipl.errors import DataError, SettingError

shares = st.floats(0, 1, exclude_max=True)


# ---- class noise ---------------------------------------------------------------------------------------


@given(m=st.integers(1, 40), k=st.integers(2, 5), share=shares, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_exactly_the_share_loses_its_true_label_and_nothing_else(m, k, share, seed):
    clean = gaussian_bags(bags=m, k=k, d=2, r=1, seed=seed)
    noisy = remove_true_label(clean, share, seed)
    lost = [not bag.candidates[bag.label] for bag in noisy]
    assert sum(lost) == round(share * m)
    for before, after, gone in zip(clean, noisy, lost, strict=True):
        wanted = before.candidates.copy()
        wanted[before.label] = not gone
        assert after.candidates.tolist() == wanted.tolist()
        assert after.candidates.any()
        assert after.label == before.label
        assert np.array_equal(after.instances, before.instances)
    assert noisy.missing_truth
    assert noisy.provenance == {**clean.provenance, "class_noise": share, "class_noise_seed": seed}


def test_a_set_of_one_is_never_emptied():
    bags = many([1] * 4, candidates=[[0], [0, 1], [1], [0, 1]], labels=[0, 0, 1, 1])
    noisy = remove_true_label(bags, 0.5)
    assert noisy.candidates.tolist() == [[1, 0], [0, 1], [0, 1], [1, 0]]
    with pytest.raises(
        DataError, match="3 bags should lose their true label, but only 2 have it and another"
    ):
        remove_true_label(bags, 0.75)


def test_a_label_that_is_gone_already_is_not_counted_again():
    bags = many([1] * 4, candidates=[[1, 2], [0, 1], [0, 1], [1, 2]], labels=[0, 0, 0, 0], missing_truth=True)
    noisy = remove_true_label(bags, 0.5)
    assert not noisy.candidates[:, 0].any()
    assert noisy.candidates.any(axis=1).all()


def test_class_noise_follows_its_seed_and_leaves_the_clean_bags_alone():
    clean = gaussian_bags(bags=40)
    digest = clean.digest()
    assert remove_true_label(clean, 0.5, 3).digest() == remove_true_label(clean, 0.5, 3).digest()
    assert remove_true_label(clean, 0.5, 3).digest() != remove_true_label(clean, 0.5, 4).digest()
    assert remove_true_label(clean, 0.0).content_digest() == clean.content_digest()
    assert clean.digest() == digest
    assert not clean.missing_truth


def test_every_bag_is_as_likely_to_lose_its_label():
    clean = gaussian_bags(bags=30)
    lost = np.zeros(30)
    for seed in range(200):
        noisy = remove_true_label(clean, 0.3, seed)
        lost += ~noisy.candidates[np.arange(30), noisy.labels]
    assert lost.sum() == 200 * 9
    assert np.abs(lost - 60).max() < 30  # more than four standard deviations


@pytest.mark.parametrize("missing", ["candidates", "labels"])
def test_class_noise_needs_candidates_and_labels(missing):
    with pytest.raises(DataError, match="Class noise needs bags with candidate sets and true labels"):
        remove_true_label(dataclasses.replace(gaussian_bags(), **{missing: None}), 0.1)


# ---- attribute noise -----------------------------------------------------------------------------------


@given(given_=arguments(complete=True), share=shares, seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_each_bag_keeps_the_right_number_of_its_instances_in_order(given_, share, seed):
    bags = Bags.from_list(**given_)[::-1]
    fewer = drop_instances(bags, share, seed)
    for before, after in zip(bags, fewer, strict=True):
        assert len(after) == max(1, len(before) - round(share * len(before)))
        places = [_place(before, row) for row in after.coordinates]  # drawn at random, so all distinct
        assert places == sorted(set(places))
        assert_is(
            after,
            {
                "id": before.id,
                "instances": before.instances[places],
                "instance_labels": before.instance_labels[places],
                "coordinates": before.coordinates[places],
                "candidates": before.candidates,
                "label": before.label,
                "group": before.group,
            },
        )
    assert np.array_equal(fewer.weights, bags.weights)


def _place(bag, coordinates):
    (place,) = np.flatnonzero((bag.coordinates == coordinates).all(axis=1)).tolist()
    return place


def test_attribute_noise_follows_its_seed_and_leaves_the_clean_bags_alone():
    clean = gaussian_bags(bags=20)
    digest = clean.digest()
    assert drop_instances(clean, 0.5, 3).digest() == drop_instances(clean, 0.5, 3).digest()
    assert drop_instances(clean, 0.5, 3).digest() != drop_instances(clean, 0.5, 4).digest()
    assert drop_instances(clean, 0.0).digest() == digest
    assert clean.digest() == digest
    noted = drop_instances(remove_true_label(clean, 0.1, 5), 0.2, 6).provenance
    assert noted == {
        **clean.provenance,
        "class_noise": 0.1,
        "class_noise_seed": 5,
        "attribute_noise": 0.2,
        "attribute_noise_seed": 6,
    }


def test_no_bag_loses_its_last_instance():
    assert drop_instances(many([1, 2, 3]), 0.99).sizes.tolist() == [1, 1, 1]


@pytest.mark.parametrize("noise", [remove_true_label, drop_instances])
@pytest.mark.parametrize("share", [-0.1, 1.0, 1.5, float("nan")])
def test_a_share_that_is_none_is_refused(noise, share):
    with pytest.raises(SettingError, match=f"The fraction is {share}: it must be at least 0 and below 1"):
        noise(gaussian_bags(), share)
