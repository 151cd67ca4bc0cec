"""The records of the named data sets agree with each other and with their builders."""

import inspect

import pytest

from mipl.data.datasets import DATASETS, find_dataset, stand_in_for


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=lambda dataset: dataset.name)
def test_a_record_fits_its_builder(dataset):
    parameters = inspect.signature(dataset.builder).parameters
    assert ("raw" in parameters) == (not dataset.is_embedded)
    assert ("r" in parameters) == dataset.takes_r
    assert ("seed" in parameters) == dataset.takes_seed
    assert ("report" in parameters) == dataset.from_images


def test_a_stand_in_replaces_a_data_set_of_the_paper():
    replaced = {dataset.stands_in_for for dataset in DATASETS.values()} - {None}
    assert replaced == {name for name, dataset in DATASETS.items() if dataset.table1 and dataset.from_images}
    for name in replaced:
        assert stand_in_for(name).stands_in_for == name
    assert stand_in_for("mnist-mipl") is None
    assert stand_in_for("c-r34-16").name == "crc5-lite0-16"


def test_a_data_set_is_found_by_its_name_with_or_without_noise():
    assert find_dataset("sival-mipl class noise 0.2") is DATASETS["sival-mipl"]
    assert find_dataset("c-row") is DATASETS["c-row"]
    assert find_dataset("c-rows") is None
    assert find_dataset("digits-mipl.npz") is None


def test_the_folder_of_raw_files(tmp_path):
    birdsong, tissue = DATASETS["birdsong-mipl"], DATASETS["crc5-row"]
    assert birdsong.raw_folder(tmp_path) == tmp_path
    assert tissue.raw_folder(tmp_path) == tmp_path / "crc-tiles"
    for folder in ("birdsong", "hja-birdsong", "birdsong-mipl"):
        (tmp_path / folder).mkdir()
        assert birdsong.raw_folder(tmp_path) == tmp_path / folder


def test_the_authors_files():
    assert DATASETS["mnist-mipl"].authors_file() == "MNIST_MIPL_r1.mat"
    assert DATASETS["mnist-mipl"].authors_file(3) == "MNIST_MIPL_r3.mat"
    assert DATASETS["c-kmeans"].authors_file() == "CRC-MIPL-KMeansSeg.mat"
    assert DATASETS["crc5-kmeans"].authors_file() is None
