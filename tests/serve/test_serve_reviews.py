"""Reviews: on disk before they are acknowledged, exported as labels, and used by the next fit."""

import base64
import csv
import json
import sqlite3
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served import NAMES, app_of, noisy_bags, small_model
from starlette.testclient import TestClient

import mipl
from mipl.cli import main
from mipl.data.bags import Bags
from mipl.data.sources import Source
from mipl.errors import SettingError, StorageError
from mipl.serve.dashboard import Dashboard
from mipl.serve.reviews import COLUMNS, Reviews
from mipl.triage import at_threshold, measured

BAGS = noisy_bags(120, 160)


@pytest.fixture
def client(tmp_path):
    app = app_of(small_model(), BAGS, tmp_path / "r.sqlite")
    with TestClient(app, base_url="http://localhost") as client:
        yield client


def post_review(client, bag, label):
    body = json.dumps({"bag_id": bag, "label": label})
    return client.post("/reviews", content=body, headers={"content-type": "application/json"})


def test_a_review_is_in_the_file_when_it_is_acknowledged(client, tmp_path):
    assert post_review(client, "bag125", "elm").json() == {"bag_id": "bag125", "label": "elm", "reviewed": 1}
    with sqlite3.connect(tmp_path / "r.sqlite") as other:  # another process would see the same
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert other.execute("SELECT bag_id, label FROM reviews").fetchall() == [("bag125", "elm")]
    other.close()


def test_the_latest_review_counts_and_none_is_overwritten(tmp_path):
    path = tmp_path / "r.sqlite"
    reviews = Reviews(path, ["a", "b"], NAMES)
    for bag, label in (("a", "ash"), ("b", "elm"), ("a", "birch"), ("b", None)):
        reviews.add(bag, label)
    assert [(one.bag, one.label) for one in reviews.latest()] == [("a", "birch")]
    reviews.close()
    again = Reviews(path, ["a", "b"], NAMES)
    assert [(one.bag, one.label) for one in again.latest()] == [("a", "birch")]
    again.close()
    with sqlite3.connect(path) as file:
        assert file.execute("SELECT count(*) FROM reviews").fetchone() == (4,)
    file.close()


def test_reviews_of_other_bags_and_other_files_are_refused(tmp_path):
    path = tmp_path / "r.sqlite"
    reviews = Reviews(path, ["a"], NAMES)
    reviews.add("a", "ash")
    reviews.close()
    for ids, classes in ((["b"], NAMES), (["a"], NAMES[1:])):
        with pytest.raises(StorageError, match="labels bag 'a' as 'ash'"):
            Reviews(path, ids, classes)
    (tmp_path / "text").write_text("no database, but long enough to be looked at" * 30)
    with pytest.raises(StorageError, match="cannot be used as the file of reviews"):
        Reviews(tmp_path / "text", ["a"], NAMES)
    with pytest.raises(StorageError, match="cannot be used as the file of reviews"):
        Reviews(tmp_path / "no" / "folder", ["a"], NAMES)
    with sqlite3.connect(tmp_path / "other") as file:
        file.execute("CREATE TABLE other (x)")
    file.close()
    with pytest.raises(StorageError, match="not of reviews"):
        Reviews(tmp_path / "other", ["a"], NAMES)


def test_bad_reviews_are_refused(client):
    for body in ({}, {"bag_id": "bag125"}, {"bag_id": 3, "label": "elm"}, {"bag_id": "bag125", "label": [1]}):
        assert client.post("/reviews", json=body).status_code == 422
    assert "There is no bag" in post_review(client, "../etc/passwd", "elm").json()["detail"]
    assert post_review(client, "\ud800", "elm").status_code == 422
    assert "Did you mean 'elm'?" in post_review(client, "bag125", "elmo").json()["detail"]
    assert post_review(client, "bag125", "e" * 5000).status_code == 413
    plain = client.post("/reviews", content=json.dumps({"bag_id": "bag125", "label": "elm"}))
    assert plain.status_code == 415  # what another site's form could send
    for name, text in (("reviewer", 3), ("reviewer", "a" * 101), ("comment", "c" * 501), ("mood", "good")):
        body = {"bag_id": "bag125", "label": "elm", name: text}
        assert client.post("/reviews", json=body).status_code == 422
    assert all(bag["reviews"] == [] for bag in client.get("/bags").json()["bags"])


def test_a_review_that_cannot_be_written_is_not_acknowledged(tmp_path):
    app = app_of(small_model(), BAGS, tmp_path / "r.sqlite")
    with TestClient(app, base_url="http://localhost") as client:
        locker = sqlite3.connect(tmp_path / "r.sqlite", isolation_level=None)
        locker.execute("DROP TABLE reviews")
        locker.close()
        answer = post_review(client, "bag125", "elm")
        assert answer.status_code == 503
        assert "could not be written" in answer.json()["detail"]
        answer = client.get("/bags")  # the file is the only state: without it nothing is shown
        assert answer.status_code == 503
        assert "cannot be read" in answer.json()["detail"]


def test_the_overview_agrees_with_triage(client):
    overview = client.get("/bags").json()
    p = small_model().predict_proba(BAGS)
    confidence = [bag["confidence"] for bag in overview["bags"]]
    assert confidence == sorted(p.max(axis=1).tolist())  # the least confident first
    assert [BAGS.ids[bag["place"]] for bag in overview["bags"]] == [bag["bag_id"] for bag in overview["bags"]]
    correct = p.argmax(axis=1) == BAGS.labels
    for row in overview["measured"]:
        point = measured(at_threshold(row["threshold"]), p.max(axis=1), correct, overview["delta"])
        assert (row["reported"], row["errors"], row["bound"]) == (point.reported, point.errors, point.bound)
    assert sum(overview["reliability"]["count"]) == len(BAGS)
    assert overview["warning"] is None


def test_ties_are_reported_together(monkeypatch):
    model = small_model()
    one = BAGS[0].instances
    # equal to the last bit: a bag's prediction may differ in it by the place of the bag among others
    p = np.full((4, model.predict_proba(BAGS[:1]).shape[1]), 0.1)
    p[:, 0] = 1.0 - p[:, 1:].sum(axis=1)
    monkeypatch.setattr(type(model), "predict_proba", lambda self, bags: p)
    known = ([[0, 1]] * 4, [0, 1, 0, 1], NAMES)
    overview = Dashboard(model, Bags.from_list([one] * 4, *known)).overview([])
    assert [row["reported"] for row in overview["measured"]] == [4]
    assert overview["measured"][0]["errors"] in (2, 4)


def test_the_model_s_own_bags_cause_a_warning():
    assert "its error here is optimistic" in Dashboard(small_model(), noisy_bags(0, 120)).warning


def test_one_bag_with_its_attention(client):
    about = client.get("/bags/3").json()
    weights = small_model().attention_weights(BAGS[3:4])[0]
    assert about["bag_id"] == BAGS.ids[3]
    assert [one["attention"] for one in about["instances"]] == sorted(weights.tolist(), reverse=True)
    for one in about["instances"]:
        assert np.allclose(one["values"], BAGS[3].instances[one["number"]])
    for place, status in ((-1, 404), (len(BAGS), 404), ("x", 422), ("..%2f..", 404), (10**30, 404)):
        answer = client.get(f"/bags/{place}")
        assert answer.status_code == status
        assert isinstance(answer.json()["detail"], str)


def test_images_are_sent_as_pixels(digits):
    model = mipl.CDLClassifier(epochs=1, ensemble=1).fit(digits[:20])
    one = Dashboard(model, digits[:2]).bag(0)["instances"][0]
    assert (one["width"], one["height"]) == digits.feature_shape[::-1]
    pixels = np.frombuffer(base64.b64decode(one["pixels"]), dtype=np.uint8).reshape(*digits.feature_shape, 3)
    image = digits[0].instances[one["number"]].astype(float)
    grey = 255 * (image - image.min()) / (image.max() - image.min())
    if digits.source.dtype == np.uint8:
        grey = image
    assert np.abs(pixels - grey[..., None]).max() <= 1


def test_the_page_loads_nothing_from_other_sites(client):
    page = client.get("/").text
    for name in ("page.js", "page.css"):
        assert f'"/{name}"' in page
        text = client.get(f"/{name}").text
        assert len(text) > 1000
        page += text
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "@import" not in page
    assert "url(" not in page


def test_reviews_are_exported_and_trained_on(client, tmp_path, capsys):
    """Review, export, and train again: reviewers' labels replace the candidates, and two are both kept."""
    assert "nothing to export" in client.get("/reviews.csv").json()["detail"]
    for bag in BAGS[:10]:
        post_review(client, bag.id, NAMES[bag.label])
    other = {
        "bag_id": BAGS.ids[0],
        "label": NAMES[BAGS.labels[0] - 1],
        "reviewer": "Bo",
        "comment": "a, \n b",
    }
    assert client.post("/reviews", json=other).json()["reviewed"] == 10
    table = tmp_path / "reviews.csv"
    table.write_bytes(client.get("/reviews.csv").content)
    rows = list(csv.DictReader(table.read_text().splitlines()))
    assert tuple(rows[0]) == COLUMNS
    assert [(row["bag_id"], row["label"]) for row in rows if not row["reviewer"]] == [
        (bag.id, NAMES[bag.label]) for bag in BAGS[:10]
    ]
    (second,) = [row for row in rows if row["reviewer"] == "Bo"]
    assert (second["label"], second["comment"], second["selected"]) == (other["label"], "a, b", "chosen")
    BAGS.save(tmp_path / "bags.npz")
    words = ["fit", tmp_path / "bags.npz", "--labels", table, "--out", tmp_path / "m", "--set", "epochs=1"]
    assert main([str(word) for word in words]) == 0
    assert "Labels joined: 40 bags from the data; 10 bags from" in capsys.readouterr().err
    sizes = (11 + BAGS.candidates[10:].sum()) / len(BAGS)
    assert mipl.load(tmp_path / "m").trained_on_["candidates_per_bag"] == round(float(sizes), 4)


def test_without_candidate_sets_only_the_reviewed_are_trained_on(tmp_path):
    table = tmp_path / "reviews.csv"
    table.write_text("bag_id,label,reviewer,time,comment,selected\nc,elm,A,,,chosen\na,ash,A,,,random\n")
    bags = Bags.from_list([bag.instances for bag in BAGS[:3]], ids=["a", "b", "c"])
    bags.save(tmp_path / "bags.npz")
    found = Source(str(tmp_path / "bags.npz"), labels=str(table)).open()
    assert found.ids.tolist() == ["a", "c"]
    assert [found.classes[label] for label in found.labels] == ["ash", "elm"]
    assert Dashboard(small_model(), bags).overview([])["measured"] is None


def test_an_audit_is_drawn_once_and_shown_first(tmp_path):
    path, ids = tmp_path / "r.sqlite", BAGS.ids.tolist()
    reviews = Reviews(path, ids, NAMES)
    reviews.start_audit(5)
    drawn = reviews.audit()
    assert len(set(drawn)) == 5
    reviews.start_audit(5)  # a server that is started again
    assert reviews.audit() == drawn
    with pytest.raises(SettingError, match=r"an audit of 5 bags, whose size is fixed: give --audit 5"):
        reviews.start_audit(6)
    reviews.add(drawn[0], "elm", "A")
    reviews.add(next(bag for bag in ids if bag not in drawn), "ash", "A")
    rows = {row["bag_id"]: row["selected"] for row in csv.DictReader(reviews.table().splitlines())}
    assert sorted(rows.values()) == ["chosen", "random"]
    assert rows[drawn[0]] == "random"
    overview = Dashboard(small_model(), BAGS).overview(reviews.latest(), drawn)["bags"]
    assert [bag["bag_id"] for bag in overview[:5]] == drawn
    assert {bag["selected"] for bag in overview[:5]} == {"random"}
    confidence = [bag["confidence"] for bag in overview[5:]]
    assert confidence == sorted(confidence)
    reviews.close()


def test_an_audit_after_the_first_review_is_refused(tmp_path):
    reviews = Reviews(tmp_path / "r.sqlite", ["a", "b"], NAMES)
    with pytest.raises(SettingError, match="more than there are: 2 bags"):
        reviews.start_audit(3)
    reviews.add("a", "elm")
    with pytest.raises(SettingError, match="has reviews already"):
        reviews.start_audit(1)
    reviews.close()


@given(st.integers(1, 6), st.integers(0, 2**16))
def test_one_bag_per_patient_is_drawn(size, seed):
    groups = [f"p{i}" for i in np.random.default_rng(seed).permutation(np.arange(12) % 6)]
    ids = [f"b{i:02d}" for i in range(12)]
    with tempfile.TemporaryDirectory() as folder:
        reviews = Reviews(Path(folder) / "r.sqlite", ids, NAMES)
        reviews.start_audit(size, groups)
        patients = [groups[ids.index(bag)] for bag in reviews.audit()]
        reviews.close()
    assert len(patients) == len(set(patients)) == size


def test_a_file_of_the_first_format_is_continued(tmp_path):
    with sqlite3.connect(tmp_path / "r.sqlite") as file:
        file.execute("CREATE TABLE reviews (number INTEGER PRIMARY KEY, bag_id TEXT, label TEXT, at TEXT)")
        file.execute("INSERT INTO reviews (bag_id, label, at) VALUES ('a', 'elm', '2026-01-01')")
        file.execute("PRAGMA user_version = 1")
    file.close()
    reviews = Reviews(tmp_path / "r.sqlite", ["a"], NAMES)
    reviews.add("a", "ash", "B")
    assert [(one.reviewer, one.label) for one in reviews.latest()] == [("", "elm"), ("B", "ash")]
    reviews.close()
