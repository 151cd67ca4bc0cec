"""Images on the review page: those of listed bags, from one folder, and nothing else."""

import numpy as np
import pytest
from served import BAGS_WITH_PLACES, app_of, small_model
from starlette.testclient import TestClient

from mipl.errors import DataError, StorageError
from mipl.serve.images import LONGEST, Images

cv2 = pytest.importorskip("cv2", reason="OpenCV is not installed")
SIDE = 96


def paint(path, colour, side=SIDE):
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), np.full((side, side, 3), colour[::-1], dtype=np.uint8))


def decoded(content):
    return cv2.imdecode(np.frombuffer(content, dtype=np.uint8), cv2.IMREAD_COLOR)[..., ::-1]


@pytest.fixture
def folder(tmp_path):
    for i, bag in enumerate(BAGS_WITH_PLACES.ids.tolist()[:3]):
        paint(tmp_path / "images" / f"{bag}.png", (10 + 60 * i, 200, 90))
    paint(tmp_path / "images" / "private.png", (0, 0, 0))
    paint(tmp_path / "secret.png", (1, 2, 3))
    return tmp_path / "images"


@pytest.fixture
def client(folder, tmp_path):
    images = Images(folder, BAGS_WITH_PLACES.ids.tolist())
    app = app_of(small_model(), BAGS_WITH_PLACES, tmp_path / "r.sqlite", images)
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def test_the_image_of_a_bag(client):
    answer = client.get("/bags/1/image")
    assert answer.headers["content-type"] == "image/jpeg"
    np.testing.assert_allclose(decoded(answer.content).mean(axis=(0, 1)), (70, 200, 90), atol=2)
    about = client.get("/bags/1").json()["image"]
    assert (about["width"], about["height"]) == (SIDE, SIDE)
    assert [one["name"] for one in about["layers"]] == ["attention", "evidence", "evidence"]
    chosen = BAGS_WITH_PLACES[1:2]
    model, p = small_model(), small_model().predict_proba(chosen)[0]
    top = np.argsort(-p, kind="stable")[:2].tolist()
    assert [one["label"] for one in about["layers"]] == [None, *top]
    n = len(BAGS_WITH_PLACES[1])
    np.testing.assert_allclose(about["layers"][0]["values"], model.attention_weights(chosen)[0] * n)
    for one in about["layers"][1:]:
        np.testing.assert_allclose(one["values"], model.evidence(chosen)[0][:, one["label"]])
    np.testing.assert_allclose(np.array(about["corners"]) * SIDE, BAGS_WITH_PLACES[1].coordinates)


@pytest.mark.parametrize(
    "path",
    [
        "/bags/5/image",  # a bag without an image
        "/bags/-1/image",
        "/bags/1000/image",
        "/bags/private/image",
        "/bags/../image",
        "/bags/..%2fsecret.png/image",
        "/bags/1/image/../../secret.png",
        "/images/private.png",
        "/private.png",
        "/bags/1/image%00.png",
    ],
)
def test_other_files_are_not_served(client, path):
    answer = client.get(path)
    assert answer.status_code in (404, 422)
    assert not answer.content.startswith(b"\xff\xd8")


def test_links_are_refused_even_if_they_appear_later(folder, tmp_path):
    ids = BAGS_WITH_PLACES.ids.tolist()
    (folder / f"{ids[3]}.png").symlink_to(tmp_path / "secret.png")
    (folder / "linked").symlink_to(tmp_path)
    paint(tmp_path / f"{ids[4]}.png", (9, 9, 9))  # in the folder that the link leads to
    images = Images(folder, ids)
    assert ids[3] not in images
    assert ids[4] not in images
    (folder / f"{ids[0]}.png").unlink()
    (folder / f"{ids[0]}.png").symlink_to(tmp_path / "secret.png")
    with pytest.raises(StorageError, match="no longer a file in the folder"):
        images.jpeg(ids[0])


def test_what_cannot_be_matched_is_a_sentence(folder):
    ids = BAGS_WITH_PLACES.ids.tolist()
    with pytest.raises(DataError, match=r"No image in .* has the name of a bag, such as 'x'"):
        Images(folder, ["x"])
    with pytest.raises(StorageError, match="is not a folder"):
        Images(folder / "none", ids)
    paint(folder / "again" / f"{ids[0]}.tif", (0, 0, 0))
    with pytest.raises(DataError, match=f"'{ids[0]}' has two images"):
        Images(folder, ids)


def test_an_image_that_does_not_fit_says_so_on_the_page(folder, tmp_path):
    bag = BAGS_WITH_PLACES.ids[0]
    paint(folder / f"{bag}.png", (0, 0, 0), side=16)
    app = app_of(
        small_model(), BAGS_WITH_PLACES, tmp_path / "r.sqlite", Images(folder, BAGS_WITH_PLACES.ids.tolist())
    )
    with TestClient(app, base_url="http://localhost") as client:
        assert "reach beyond its image of 16×16" in client.get("/bags/0").json()["image"]["problem"]


def test_large_images_are_reduced_and_metadata_is_not_sent(folder):
    bag = BAGS_WITH_PLACES.ids[0]
    path = folder / f"{bag}.png"
    paint(path, (200, 100, 50), side=2 * LONGEST)
    path.write_bytes(path.read_bytes() + b"name of the patient")
    images = Images(folder, [bag])
    assert images.size(bag) == (2 * LONGEST, 2 * LONGEST)
    assert decoded(images.jpeg(bag)).shape == (LONGEST, LONGEST, 3)
    assert b"patient" not in images.jpeg(bag)
