"""Small valid files of every format that is read, and damage to them that follows from a seed."""

import csv
import gzip
import io
import json
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NUMBERS = (b"nan", b"inf", b"-1", b"1e400", b"1e39", b"0x1", b"1_0", b"\xef\xbc\x91", b"99999999999999999999")
TEXTS = (b"", b"|", b'"', b"\0", b"\xff", b",", b";", b"\n", b"\r", b"a|b|a", b"x" * 3000, b" ", b"{}", b"[[")
WORDS = tuple(
    int(v).to_bytes(n, order)  # type: ignore[arg-type]
    for n, values in ((1, (0, 0x7F, 0xFF)), (4, (0, 1, 0x7FFFFFFF, 0xFFFFFFFF)), (8, (2**63 - 1, 2**64 - 1)))
    for v in values
    for order in ("little", "big")
)


FIELD = re.compile(rb"[^,;|\t\r\n\[\]{}\"]+")


def mutate(content: bytes, rng: np.random.Generator) -> bytes:
    """Return the content with one place damaged, or up to four."""
    data = bytearray(content)
    for _ in range(int(rng.choice([1, 1, 1, 2, 3, 4]))):
        at, size = int(rng.integers(len(data) + 1)), int(rng.integers(1, 65))
        kind = int(rng.integers(8))
        if kind == 0 and at < len(data):
            data[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            word = WORDS[int(rng.integers(len(WORDS)))]
            data[at : at + len(word)] = word
        elif kind == 2:
            data[at : at + size] = b""
        elif kind == 3:
            data[at:at] = data[at : at + size]
        elif kind == 4:
            data[at : at + size] = rng.bytes(size)
        elif kind == 5 and rng.random() < 0.3:
            del data[at:]
        elif kind == 6:
            there = int(rng.integers(len(data) + 1))
            data[at:at] = data[there : there + size]
        else:
            options = NUMBERS + TEXTS
            end = next((i for i in range(at, min(at + 40, len(data))) if data[i] in b",;|\t\n\r"), at)
            data[at:end] = options[int(rng.integers(len(options)))]
    return bytes(data)


def mutate_member(content: bytes, rng: np.random.Generator) -> bytes:
    """Damage one member of a zip archive and write the archive anew, so that its checksums are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    chosen = sorted(members)[int(rng.integers(len(members)))]
    members[chosen] = mutate(members[chosen], rng)
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


def mutate_text(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a text with one to three fields or lines changed as a person or a program might change them."""
    for _ in range(int(rng.integers(1, 4))):
        lines, fields = content.splitlines(keepends=True), list(FIELD.finditer(content))
        if not lines or not fields:
            return content
        field = fields[int(rng.integers(len(fields)))]
        i, j = (int(rng.integers(len(lines))) for _ in range(2))
        kind = int(rng.integers(7))
        if kind < 3:
            options = [
                *NUMBERS,
                *TEXTS,
                fields[int(rng.integers(len(fields)))].group(),
                field.group().upper(),
            ]
            new = options[int(rng.integers(len(options)))]
            content = content[: field.start()] + new + content[field.end() :]
        elif kind == 3:
            content = b"".join(lines[:i] + lines[i + 1 :])
        elif kind == 4:
            content = b"".join([*lines[:i], lines[j], *lines[i:]])
        elif kind == 5:
            content = content.replace(b",", (b";", b"\t", b" ,", b"|")[int(rng.integers(4))])
        else:
            content = content[: field.end()] + b", x"[int(rng.integers(3)) :][:1] + content[field.end() :]
    return content


def damaged(content: bytes, rng: np.random.Generator) -> bytes:
    """Return content that is damaged from outside or, for text and archives, at times within."""
    if rng.random() < 0.7 and content.isascii() and b"\0" not in content:
        return mutate_text(content, rng)
    if content.startswith(b"PK") and rng.random() < 0.6:
        return mutate_member(content, rng)
    if content.startswith(b"\x1f\x8b") and rng.random() < 0.6:
        return gzip.compress(mutate(gzip.decompress(content), rng), mtime=0)
    return mutate(content, rng)


# ---- valid files ---------------------------------------------------------------------------------------


def _bags() -> Any:
    from mipl.data.bags import Bags

    rng = np.random.default_rng(0)
    return Bags.from_list(
        [rng.normal(size=(int(n), 4)).astype(np.float32) for n in (2, 3, 1, 4)],
        [["ash", "elm"], ["elm", "oak"], ["oak"], ["ash", "oak"]],
        ["ash", "elm", "oak", "ash"],
        ids=["s1", "s2", "s3", "s4"],
        coordinates=[rng.integers(0, 99, size=(n, 2)) for n in (2, 3, 1, 4)],
        instance_labels=[[0, 1], [1, -1, 1], [2], [0, 0, 2, 0]],
        groups=["p1", "p1", "p2", "p3"],
        feature_names=["area", "hue", "texture", "gloss"],
    )


def _written(name: str, write: Callable[[Path], None], folder: Path) -> bytes:
    write(folder / name)
    return (folder / name).read_bytes()


def _cells(name: str, rows: list[list[str]], folder: Path) -> bytes:
    """Write rows by the suffix: text, a workbook, or Parquet without compression."""
    path = folder / name
    if path.suffix == ".xlsx":
        from openpyxl import Workbook

        book = Workbook()
        for row in rows:
            book.active.append(row)
        book.save(path)
    elif path.suffix == ".parquet":
        import pyarrow
        from pyarrow.parquet import write_table

        columns = {name: list(values) for name, *values in zip(*rows, strict=True)}
        write_table(pyarrow.table(columns), path, compression="none", use_dictionary=False)
    else:
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows(rows)
    return path.read_bytes()


LABELS = [
    ["slide_id", "candidates", "label", "case_id", "weights"],
    ["s1", "ash|elm", "ash", "p1", "0.5|0.5"],
    ["s2", "elm|oak", "elm", "p1", "0.2|0.8"],
    ["s3", "oak", "oak", "p2", "1"],
    ["s4", "ash|oak", "ash", "p3", "0.9|0.1"],
]
VOTES = [
    ["bag_id", "annotator", "label", "case_id"],
    *(["s" + str(i), a, "ash", "p1"] for i in range(4) for a in "xyz"),
]
WIDE = [["bag_id", "x", "y", "z", "label"], *(["s" + str(i), "ash", "elm|oak", "", "ash"] for i in range(4))]
PREDICTED = [
    ["bag_id", "predicted", "confidence", "p(ash)", "p(elm)"],
    *([f"s{i}", "ash", "0.75", "0.75", "0.25"] for i in range(4)),
]
SPLIT = [["", "train", "val", "test"], ["0", "s1", "s2", "s3"], ["1", "s4", "", ""]]


def _npz(path: Path) -> None:
    np.savez(path, features=np.ones((3, 4), np.float32), coords=np.ones((3, 2), np.int64))


def _h5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["features"] = np.ones((3, 4), np.float32)
        file.create_dataset("coords", data=np.arange(6).reshape(3, 2), chunks=(2, 2), compression="gzip")


def _plain_h5(path: Path) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file["features"] = np.ones((3, 4), np.float32)


def _pt(path: Path) -> None:
    import torch

    torch.save(torch.ones(3, 4), path)


def _partial_mat(path: Path) -> None:
    from scipy.io import savemat

    marks = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]])
    savemat(path, {"X": np.ones((3, 4)), "Y_P": marks, "Y": np.eye(3)}, do_compression=True)


def _index(path: Path) -> None:
    from scipy.io import savemat

    savemat(path, {"trainIndex": np.array([[1, 2, 3]]), "testIndex": np.array([[4]])})


def _bmp(path: Path) -> None:
    import cv2

    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 255, (16, 16, 3)).astype(np.uint8))


def _idx() -> bytes:
    return b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (3, 4, 4)) + bytes(range(48))


def _c45() -> bytes:
    return b"".join(f"image{i // 2},region{i},0.5,1.5,{i % 2}.\n".encode() for i in range(6))


def originals(folder: Path) -> dict[str, bytes]:
    """Return one valid file of every kind that a reader of the library takes."""
    folder.mkdir(parents=True, exist_ok=True)
    bags = _bags()
    from mipl.data.sources import save

    made = {f"bags{kind}": _written(f"bags{kind}", lambda p: save(bags, p), folder) for kind in TIDY}
    for name, rows in (("labels", LABELS), ("votes", VOTES), ("wide", WIDE)):
        made |= {f"{name}{kind}": _cells(f"{name}{kind}", rows, folder) for kind in (".csv", ".xlsx")}
    made["labels.parquet"] = _cells("labels.parquet", LABELS, folder)
    made["predictions.csv"] = _cells("predictions.csv", PREDICTED, folder)
    made["splits_1.csv"] = _cells("splits_1.csv", SPLIT, folder)
    for name, write in (
        ("slide.npz", _npz),
        ("slide.h5", _h5),
        ("slide.npy", lambda p: np.save(p, np.ones((3, 4), np.float32))),
        ("slide.pt", _pt),
        ("partial.mat", _partial_mat),
        ("index1.mat", _index),
        ("image.bmp", _bmp),
        ("body.h5", _plain_h5),
        ("arrays.npz", _npz),
        ("body.npy", lambda p: np.save(p, np.ones((3, 4), np.float32))),
    ):
        made[name] = _written(name, write, folder)
    made["body.json"] = json.dumps({"bags": [np.ones((2, 4)).tolist()], "ids": ["a"]}).encode()
    made["train.idx"] = _idx()
    made["train.idx.gz"] = gzip.compress(_idx(), mtime=0)
    made["sival.data"] = _c45()
    return made


TIDY = (".csv", ".tsv", ".parquet", ".npz", ".mat")
KINDS = (
    *(f"bags{kind}" for kind in TIDY),
    *(f"{name}{kind}" for name in ("labels", "votes", "wide") for kind in (".csv", ".xlsx")),
    *("labels.parquet", "predictions.csv", "splits_1.csv", "slide.npz", "slide.h5", "slide.npy", "slide.pt"),
    *("arrays.npz", "partial.mat", "index1.mat", "image.bmp", "body.h5", "body.npy", "body.json"),
    *("train.idx", "train.idx.gz", "sival.data"),
)
