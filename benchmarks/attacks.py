"""Requests that a server must refuse: malformed, oversized, slow and hostile."""

from __future__ import annotations

import io
import json
import pickle
import zipfile
import zlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np

Shape = tuple[int, ...]
GIGABYTE, MEGABYTE = 2**30, 2**20


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def h5(**arrays: Any) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as store:
        for name, array in arrays.items():
            store[name] = array
    return file.getvalue()


def bags(*content: Any) -> bytes:
    return json.dumps({"bags": [np.asarray(bag).tolist() for bag in content]}).encode()


def with_nan(shape: Shape) -> Any:
    bag = np.zeros((3, *shape))
    bag.flat[0] = np.nan
    return bag


def object_array(_: Shape) -> bytes:
    array = np.empty(1, dtype=object)
    array[0] = print
    return npy(array)


def zip_bomb(shape: Shape) -> bytes:
    """A gigabyte of zeros in a megabyte."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as store, store.open("bag.npy", "w") as part:
        for _ in range(GIGABYTE // MEGABYTE):
            part.write(bytes(MEGABYTE))
    return file.getvalue()


def chunk_bomb(shape: Shape) -> bytes:
    """A chunk that says it is one bag, and unpacks to a gigabyte."""
    made, file = zlib.compressobj(9), io.BytesIO()
    packed = b"".join([*(made.compress(bytes(MEGABYTE)) for _ in range(GIGABYTE // MEGABYTE)), made.flush()])
    with h5py.File(file, "w") as store:
        stored = store.create_dataset("features", (3, *shape), "f8", chunks=(3, *shape), compression="gzip")
        stored.id.write_direct_chunk((0,) * (1 + len(shape)), packed)
    return file.getvalue()


def claim(_: Shape) -> bytes:
    """The header of eight terabytes, and 64 bytes."""
    text = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000), }\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


def link(_: Shape) -> bytes:
    file = io.BytesIO()
    with h5py.File(file, "w") as store:
        store["features"] = h5py.ExternalLink("/etc/passwd", "features")
    return file.getvalue()


def raw(path: str, kind: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/{kind}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def got(path: str, host: str = "localhost") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def review(**content: Any) -> Callable[[Shape], bytes]:
    return lambda _: json.dumps(content).encode()


POST = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
# what it is, path, content type, body for instances of a shape
BODIES: list[tuple[str, str, str, Callable[[Shape], bytes]]] = [
    ("NaN in JSON", "/predict", "json", lambda shape: bags(with_nan(shape))),
    ("NaN in `.npy`", "/predict", "x-npy", lambda shape: npy(with_nan(shape))),
    ("NaN in HDF5", "/predict", "x-hdf5", lambda shape: h5(features=with_nan(shape))),
    ("infinite number", "/predict", "json", lambda _: b'{"bags": [[[1e999]]]}'),
    ("other features", "/predict", "x-npy", lambda _: npy(np.zeros((3, 7)))),
    ("empty bag", "/predict", "json", lambda _: b'{"bags": [[]]}'),
    ("invalid JSON", "/predict", "json", lambda _: b'{"bags": [[['),
    ("JSON of 100,000 brackets", "/predict", "json", lambda _: b"[" * 100_000),
    ("empty body", "/predict", "json", lambda _: b""),
    ("unknown field", "/predict", "json", lambda _: b'{"bags": [[[1]]], "path": "/etc/passwd"}'),
    ("pickle", "/predict", "x-npy", lambda _: pickle.dumps(print)),
    ("`.npy` of pickled objects", "/predict", "x-npy", object_array),
    ("`.npz`, 1 MB of 1 GB", "/predict", "x-npy", zip_bomb),
    ("`.npz` under its own type", "/predict", "zip", zip_bomb),
    ("HDF5, 1 MB of 1 GB", "/predict", "x-hdf5", chunk_bomb),
    ("`.npy` header that claims 8 TB", "/predict", "x-npy", claim),
    ("HDF5 link to a file", "/predict", "x-hdf5", link),
    ("2,000 bags", "/predict", "json", lambda shape: bags(*[np.zeros((1, *shape))] * 2000)),
    ("review of a path", "/reviews", "json", review(bag_id="../../etc/passwd", label="0")),
    (
        "review with SQL in its fields",
        "/reviews",
        "json",
        review(bag_id="x'; DROP TABLE reviews", label="?"),
    ),
    ("review of 5,000 characters", "/reviews", "json", review(bag_id="x" * 5000, label="0")),
]
WHOLE: list[tuple[str, bytes]] = [
    ("body of 17 MiB", f"{POST}Content-Length: {17 * MEGABYTE}\r\n\r\n".encode()),
    (
        "body of 17 MiB in chunks",
        f"{POST}Transfer-Encoding: chunked\r\n\r\n{17 * MEGABYTE:x}\r\n".encode() + b" " * 17 * MEGABYTE,
    ),
    ("body that stops arriving", f"{POST}Content-Length: 100\r\n\r\n{{".encode()),
    ("headers that do not end after 65 KiB", f"{POST}X: {'x' * 65 * 2**10}".encode()),
    ("not HTTP", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n"),
    ("negative length", f"{POST}Content-Length: -1\r\n\r\n".encode()),
    ("unknown method", b"FETCH /predict HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    ("path with dots", got("/../../../../etc/passwd")),
    ("path with encoded dots", got("/%2e%2e/%2e%2e/%2e%2e/etc/passwd")),
    ("path below the page", got("/page.css/../../../app.py")),
    ("path with an encoded slash", got("/bags/..%2f..%2fetc%2fpasswd")),
    ("path with a zero byte", got("/page.js%00.html")),
    ("bag that does not exist", got("/bags/1000000")),
    ("bag with a number of 5,000 digits", got(f"/bags/{'9' * 5000}")),
    ("host name of another site", got("/bags", "evil.example")),
]
