"""The HTTP interface: answers equal the model's predictions, and invalid requests are refused."""

import copy
import io
import json
import logging
import pickle
import re
import threading
import zipfile
import zlib

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import NAMES, app_of, h5, noisy_bags, npy, small_model
from starlette.testclient import TestClient

import mipl
from mipl.serve.middleware import JsonFormatter
from mipl.serve.requests import HDF5, JSON, NPY, Limits

BAGS = noisy_bags(120, 130)
D = BAGS.feature_shape[0]


@pytest.fixture(scope="module")
def client():
    with TestClient(app_of(small_model()), base_url="http://localhost") as client:
        yield client


def post(client, body, kind=JSON):
    return client.post("/predict", content=body, headers={"content-type": kind})


def refused(answer, status, words=""):
    """Assert a refusal with this status and one sentence that contains these words."""
    assert answer.status_code == status, answer.text
    detail = answer.json()["detail"]
    assert detail.endswith((".", "?"))
    assert "\n" not in detail
    assert words in detail
    return detail


def test_health_model_and_documents(client):
    assert client.get("/health").json() == {"status": "ok"}
    about = client.get("/model").json()
    assert about["classes"] == NAMES
    assert about["feature_shape"] == [D]
    assert about["limits"]["bags"] == Limits().bags
    assert set(client.get("/openapi.json").json()["paths"]) == {"/health", "/model", "/predict"}
    page = client.get("/docs")
    assert "POST /predict" in page.text
    for text in (page.text, client.get("/").text):  # nothing from other sites
        assert not re.findall(r"""(?:src|href)=["'](?!/|data:,)""", text)
        assert "default-src 'none'" in page.headers["content-security-policy"]


def test_named_features_are_put_in_order_or_refused():
    names = [f"feature {j}" for j in range(D)]
    model = copy.copy(small_model())
    model.trained_on_ = {**model.trained_on_, "feature_names": names}
    bag = BAGS[0].instances
    expected = model.predict_proba([bag])[0]
    with TestClient(app_of(model), base_url="http://localhost") as client:
        assert client.get("/model").json()["feature_names"] == names
        turned = {"bags": [bag[:, ::-1].tolist()], "feature_names": names[::-1]}
        answer = post(client, json.dumps(turned)).json()["predictions"][0]
        assert answer["probabilities"] == expected.tolist()
        renamed = {**turned, "feature_names": ["other", *names[1:]]}
        refused(post(client, json.dumps(renamed)), 422, "lacks feature 0 and also has other")
        refused(post(client, json.dumps({**turned, "feature_names": "x"})), 422, "list of non-empty strings")


def test_every_content_type_gives_the_model_s_predictions(client):
    p = small_model().predict_proba(BAGS)
    arrays = [bag.instances for bag in BAGS]
    answer = post(client, json.dumps({"bags": [a.tolist() for a in arrays], "ids": BAGS.ids.tolist()}))
    assert answer.status_code == 200
    assert [row["bag_id"] for row in answer.json()["predictions"]] == BAGS.ids.tolist()
    assert [row["label"] for row in answer.json()["predictions"]] == [NAMES[j] for j in p.argmax(axis=1)]
    got = [row["probabilities"] for row in answer.json()["predictions"]]
    assert np.allclose(got, p, atol=1e-6)
    for body, kind in (
        (npy(arrays[0]), NPY),
        (h5(features=arrays[0]), HDF5),
        (h5(feats=arrays[0][None]), HDF5),
    ):
        (row,) = post(client, body, kind).json()["predictions"]
        assert np.allclose(row["probabilities"], p[0], atol=1e-6)
        assert row["confidence"] == max(row["probabilities"])
    several = np.stack([array[:2] for array in arrays])  # (m, 2, d)
    got = [row["probabilities"] for row in post(client, npy(several), NPY).json()["predictions"]]
    assert np.allclose(got, small_model().predict_proba(list(several)), atol=1e-6)


def test_images(digits):
    """(n, h, w) is a bag, also with n = 1, and (m, n, h, w) are m bags."""
    model = mipl.CDLClassifier(epochs=1, ensemble=1).fit(digits[:20])
    bag = digits[0].instances
    with TestClient(app_of(model), base_url="http://localhost") as client:
        for array, kind, bags in (
            (bag, NPY, [bag]),
            (bag[:1], NPY, [bag[:1]]),
            (np.stack([bag[:2], bag[2:4]]), NPY, [bag[:2], bag[2:4]]),
            (bag[:1], HDF5, [bag[:1]]),
        ):
            answer = post(client, npy(array) if kind == NPY else h5(features=array), kind)
            got = [row["probabilities"] for row in answer.json()["predictions"]]
            assert np.allclose(got, model.predict_proba(bags), atol=1e-6)


def test_invalid_values_are_refused_with_the_messages_of_bags(client):
    good = [[0.0] * D, [1.0] * D]
    for value in (float("nan"), float("inf")):
        bad = [[0.0] * D, [value] + [0.0] * (D - 1)]
        refused(
            post(client, json.dumps({"bags": [good, bad]})), 422, "Bag '1' has a NaN, infinite or too large"
        )
        refused(post(client, npy(np.array(bad)), NPY), 422, "Bag '0' has a NaN, infinite or too large")
        refused(post(client, h5(features=np.array(bad)), HDF5), 422, "has a NaN, infinite or too large value")
    refused(post(client, b'{"bags": [[[1e999]]]}'), 422, "too large value")
    refused(post(client, json.dumps({"bags": [[[0.0] * (D + 1)]]})), 422, "the model was trained on")
    refused(post(client, json.dumps({"bags": [[]]})), 422, "is empty")
    refused(post(client, json.dumps({"bags": []})), 422, "There is no bag")
    refused(post(client, json.dumps({"bags": [good, [[0.0], [0.0, 1.0]]]})), 422, "Bag '1' is not an array")
    refused(post(client, json.dumps({"bags": [good, good], "ids": ["a", "a"]})), 422, "used by 2 bags")
    refused(post(client, json.dumps({"bags": [good], "ids": ["a", "b"]})), 422, "2 ids for 1 bags")
    refused(post(client, json.dumps({"bags": [["x"]]})), 422, "Bag '0' is not an array of numbers")


def test_malformed_bodies_are_refused(client):
    refused(post(client, b""), 400, "empty")
    refused(post(client, b"{"), 400, "not valid JSON")
    refused(post(client, b"\xff\xfe"), 400, "not valid JSON")
    refused(post(client, b"[" * 100_000), 400, "nested too deeply")
    refused(post(client, b'{"bags": [[[' + b"9" * 5000 + b"]]]}"), 400, "not valid JSON")
    refused(post(client, b"[1]"), 422, "not an object")
    refused(post(client, b'{"bags": "abc"}'), 422, "list of bags")
    refused(post(client, b'{"bags": [[[1]]], "path": "/etc/passwd"}'), 422, "Unknown field 'path'")
    refused(post(client, b'{"bags": [[[1]]], "ids": [["a"]]}'), 422, "list of non-empty strings")
    refused(post(client, b"x", "text/plain"), 415, "is not supported")
    refused(client.post("/predict", content=b"x"), 415, "is not supported")
    refused(post(client, b"\x93NUMPY\x01", NPY), 400, "not an .npy array")
    refused(post(client, b"\x89HDF\r\n\x1a\nrest", HDF5), 400, "not a valid HDF5 file")


def test_pickles_and_archives_are_refused(client):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("a pickle was loaded",))

    trap = np.empty(1, dtype=object)
    trap[0] = Trap()
    refused(post(client, npy(trap), NPY), 422, "not Python objects")
    refused(post(client, pickle.dumps(Trap()), NPY), 400, "not an .npy array")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("features.npy", npy(np.zeros((2000, 1000))))  # 16 MB in 16 KB
    assert len(archive.getvalue()) < 100_000
    refused(post(client, archive.getvalue(), NPY), 415, "zip archive")
    refused(post(client, archive.getvalue(), "application/zip"), 415, "is not supported")


def test_an_array_larger_than_its_body_is_not_allocated(client):
    """The header claims terabytes; allocating them would fail in another way."""
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }"
    head = b"\x93NUMPY\x01\x00" + (len(text) + 1).to_bytes(2, "little") + text + b"\n"
    refused(post(client, head + b"0" * 64, NPY), 400, "not the size of the body")
    for dataset in (
        {"shape": (10**6, 10**4), "compression": "gzip"},
        {"shape": (2, D), "chunks": (10**4, 10**4)},
    ):
        file = io.BytesIO()
        with h5py.File(file, "w") as store:
            store.create_dataset("features", dtype="f8", maxshape=(None, None), **dataset)
        refused(post(client, file.getvalue(), HDF5), 413, "more than the limit of")


@pytest.mark.parametrize("way", ["gzip", "lzf"])
def test_compressed_arrays_are_refused(client, way):
    """The header of a chunk may say 80 bytes and its content be a gigabyte of zeros."""
    file = io.BytesIO()
    with h5py.File(file, "w") as store:
        store.create_dataset("features", data=np.zeros((2, D)), compression=way)
        store["features"].id.write_direct_chunk((0, 0), zlib.compress(b"\0" * 2**20))
    refused(post(client, file.getvalue(), HDF5), 422, "without compression")


def test_no_file_that_a_body_names_is_opened(client, tmp_path):
    secret = tmp_path / "secret.h5"
    secret.write_bytes(h5(features=np.zeros((2, D))))
    assert post(client, secret.read_bytes(), HDF5).status_code == 200  # the answer if the file were opened

    def link(store):
        store["features"] = h5py.ExternalLink(str(secret), "features")

    def external(store):
        raw = tmp_path / "raw.bin"
        np.zeros((2, D)).tofile(raw)
        store.create_dataset("features", (2, D), "f8", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])

    def virtual(store):
        layout = h5py.VirtualLayout((2, D), "f8")
        layout[:] = h5py.VirtualSource(str(secret), "features", (2, D))
        store.create_virtual_dataset("features", layout)

    def soft(store):
        store["features"] = h5py.SoftLink("/elsewhere")

    for trick in (link, external, virtual, soft):
        file = io.BytesIO()
        with h5py.File(file, "w") as store:
            trick(store)
        refused(post(client, file.getvalue(), HDF5), 422, "it contains no array of its own")


def test_limits():
    limits = Limits(bytes=20_000, bags=3, instances=10, seconds=5)
    with TestClient(app_of(small_model(), limits=limits), base_url="http://localhost") as client:
        bag = [[0.0] * D]
        assert post(client, json.dumps({"bags": [bag] * 3})).status_code == 200
        refused(post(client, json.dumps({"bags": [bag] * 4})), 413, "4 bags, more than the limit of 3")
        refused(post(client, json.dumps({"bags": [bag * 11]})), 413, "11 instances, more than the limit")
        refused(post(client, npy(np.zeros((11, D))), NPY), 413, "11 instances")
        refused(post(client, b" " * 20_001), 413, "larger than the limit of 20000 bytes")

        def chunks():  # without content-length, the bytes are counted
            for _ in range(30):
                yield b" " * 1000

        refused(post(client, chunks()), 413, "larger than the limit of 20000 bytes")


@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_limits_are_positive_numbers(value):
    with pytest.raises(mipl.errors.SettingError, match="limit of seconds"):
        Limits(seconds=value)


def test_a_slow_prediction_times_out(monkeypatch):
    model, gate = small_model(), threading.Event()
    plain = type(model).predict_proba
    with TestClient(app_of(model, limits=Limits(seconds=0.2)), base_url="http://localhost") as client:
        monkeypatch.setattr(type(model), "predict_proba", lambda *args: gate.wait(20) and plain(*args))
        refused(post(client, json.dumps({"bags": [[[0.0] * D]]})), 503, "no answer within 0.2 s")
        assert client.get("/health").status_code == 200  # other requests are answered
        gate.set()


def test_other_addresses_and_methods(client):
    refused(client.get("/../../etc/passwd"), 404)
    refused(client.get("/%2e%2e/%2e%2e/etc/passwd"), 404)
    refused(client.get("/bags"), 404)  # without data there is no page
    refused(client.get("/predict"), 405)


def test_a_token_is_required():
    with TestClient(app_of(small_model(), token="a-long-enough-token")) as client:
        assert client.get("/health").status_code == 200
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "a-long-enough-token"}):
            answer = client.get("/model", headers=headers)
            refused(answer, 401, "The token is missing or wrong")
            assert answer.headers["www-authenticate"] == "Bearer"
        right = {"authorization": "Bearer a-long-enough-token"}
        assert client.get("/model", headers=right).status_code == 200
        refused(client.get("/openapi.json"), 401)


def test_a_local_server_answers_to_local_names_only():
    """DNS rebinding: a web page whose host name resolves to this machine is refused."""
    with TestClient(app_of(small_model(), hosts=frozenset({"localhost", "::1"}))) as client:
        refused(client.get("/health", headers={"host": "evil.example:8000"}), 421, "local requests")
        for host in ("localhost", "LOCALHOST:8000", "[::1]:8000"):
            assert client.get("/health", headers={"host": host}).status_code == 200


def test_a_failure_sends_no_traceback(monkeypatch, caplog):
    def fail(*_):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(type(small_model()), "predict_proba", fail)
    with TestClient(
        app_of(small_model()), base_url="http://localhost", raise_server_exceptions=False
    ) as client:
        answer = post(client, json.dumps({"bags": [[[0.0] * D]]}))
    assert "secret" not in refused(answer, 500, "see the server's log")
    assert any(record.exc_info and "secret" in str(record.exc_info[1]) for record in caplog.records)


def test_the_log_is_json_lines(client, caplog):
    caplog.set_level(logging.INFO, "mipl.serve")
    client.get("/nothing%0a{forged}", headers={"authorization": "Bearer secret"})
    (record,) = (record for record in caplog.records if record.name == "mipl.serve")
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "secret" not in line
    fields = json.loads(line)
    assert (fields["event"], fields["status"], fields["path"]) == ("request", 404, "/nothing\n{forged}")
    assert fields["milliseconds"] >= 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=12,
)


@settings(max_examples=60, deadline=None)
@given(st.one_of(json_values, st.fixed_dictionaries({"bags": json_values}, optional={"ids": json_values})))
def test_random_json_never_fails(client, content):
    answer = post(client, json.dumps(content))
    assert answer.status_code == 200 or refused(answer, answer.status_code)
    assert answer.status_code < 500


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([JSON, NPY, HDF5]), st.data())
def test_damaged_bodies_never_fail(client, kind, data):
    """Valid bodies with bytes changed or cut off give an answer or an error message, never a failure."""
    array = np.zeros((2, D), dtype=np.float32)
    bodies = {
        JSON: json.dumps({"bags": [array.tolist()]}).encode(),
        NPY: npy(array),
        HDF5: h5(features=array),
    }
    body = bytearray(bodies[kind])
    for place in data.draw(st.lists(st.integers(0, min(len(body), 600) - 1), max_size=4)):
        body[place] = data.draw(st.integers(0, 255))
    body = bytes(body[: data.draw(st.integers(len(body) // 2, len(body)))])
    answer = post(client, body, kind)
    assert answer.status_code == 200 or refused(answer, answer.status_code)
    assert answer.status_code < 500
