"""From a folder of images to bags: one feature file an image, in CLAM's layout, or bags in memory."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from mipl.data.formats.cells import SEPARATOR
from mipl.data.images.generators import Generator, Image, Instances, check_image, require
from mipl.data.images.named import make_generator
from mipl.errors import DataError, StorageError
from mipl.files import atomic_file, check_folder, read_json, write_json

SUFFIXES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp")
RECORD = "generator.json"
PLACE = "upper left corner"  # what coordinates are, as slide tools write them and `mipl explain` draws them
Report = Callable[[int, str], None]  # how many images are done, and the last one's id


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """An image of a folder, and the bag it becomes."""

    path: Path
    id: str  # flat, and safe as the name of a file
    label: str | None  # the subfolder's name


class ImageBag(NamedTuple):
    """An image as a bag in memory."""

    id: str
    label: str | None
    instances: Instances


@dataclasses.dataclass(frozen=True)
class Summary:
    """What :func:`generate` did."""

    out: Path
    made: int
    kept: int  # finished by an earlier call
    skipped: tuple[Path, ...]  # could not be read


def list_images(folder: Path) -> list[ImageFile]:
    """Return the images in ``folder``, or in one subfolder for each class, sorted by class and name.

    Hidden files, deeper folders and links that lead out of the folder are passed over.
    """
    if not folder.is_dir():
        raise StorageError(f"{folder} is not a folder: give the folder of the images.")
    try:
        root = folder.resolve()
        images = _images(folder, root, None)
        places = [place for place in _entries(folder, root) if place.is_dir()]
        below = [image for place in places for image in _images(place, root, place.name)]
    except OSError as error:
        raise StorageError(f"{folder} cannot be listed: {error}.") from error
    if images and below:
        raise DataError(
            f"{folder} holds images of its own, such as {images[0].path.name}, and in subfolders, such as "
            f"{below[0].path.relative_to(folder)}: keep all in it, or all in one subfolder for each class."
        )
    images = images or below
    if not images:
        raise DataError(
            f"{folder} holds no image ({', '.join(SUFFIXES)}), neither directly nor in subfolders; "
            "links that lead out of it are not followed."
        )
    seen: dict[str, Path] = {}
    for image in images:
        key = image.id.casefold()  # some file systems do not tell A from a
        if key in seen:
            raise DataError(
                f"{seen[key]} and {image.path} would both be the bag '{image.id}': rename one of them."
            )
        seen[key] = image.path
    return images


def read_image(path: Path) -> Image:
    """Return an image as RGB (h, w, 3); grey is repeated, alpha is left out and 16 bits are reduced to 8."""
    cv2 = require("cv2")
    try:
        content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:  # not imread: it makes an image of half a file
        pixels = cv2.imdecode(content, cv2.IMREAD_COLOR) if len(content) else None
    except cv2.error:
        pixels = None
    if pixels is None:
        raise StorageError(f"{path} cannot be read as an image: replace or remove it.")
    return np.ascontiguousarray(pixels[..., ::-1])


def image_bags(
    folder: Path, generator: Generator | str, *, report: Report | None = None
) -> Iterator[ImageBag]:
    """Yield the bag of each image, in the order of :func:`list_images`; nothing is written.

    ``generator`` is one, or the name of one. A bag's label is None if there are no subfolders.
    """
    generator = make_generator(generator) if isinstance(generator, str) else generator
    done = 0
    for batch in _batches(list_images(folder), generator):
        read = _read(batch, generator, None)
        for file, instances in zip(batch, generator.make([pixels for _, pixels in read]), strict=True):
            yield ImageBag(file.id, file.label, instances)
            done += 1
            if report is not None:
                report(done, file.id)


def generate(
    folder: Path,
    generator: Generator | str,
    out: Path,
    *,
    skip_unreadable: bool = False,
    report: Report | None = None,
) -> Summary:
    """Write ``out/h5_files/<id>.h5`` for each image, with ``features`` (n, d) and ``coords`` (n, 2).

    ``generator`` is one, or the name of one. ``generator.json`` records it and, where there are subfolders,
    ``labels.csv`` lists their images. A later call with the same generator finishes what an earlier one left:
    a file that is whole, and whose image has not changed since, is kept. Where the work was interrupted does
    not change the features.
    """
    images = list_images(folder)
    generator = make_generator(generator) if isinstance(generator, str) else generator
    places = {file.id: out / "h5_files" / f"{file.id}.h5" for file in images}
    _claim(out, generator)
    finished = {file.id for file in images if _is_whole(places[file.id], file)}
    kept, skipped = len(finished), list[Path]()
    if report is not None:
        report(kept, "")
    for batch in _batches(images, generator):
        if all(file.id in finished for file in batch):
            continue
        try:
            read = _read(batch, generator, skipped if skip_unreadable else None)
        except StorageError as error:
            raise StorageError(f"{error} To leave such images out, use --skip-unreadable.") from error
        if all(file.id in finished for file, _ in read):
            continue
        # All of the batch is encoded, even what is finished: the last bits of a feature depend on its batch.
        for (file, _), instances in zip(read, generator.make([pixels for _, pixels in read]), strict=True):
            if file.id not in finished:
                _write(places[file.id], file, instances)
                finished.add(file.id)
                if report is not None:
                    report(len(finished) + len(skipped), file.id)
    _write_labels(out / "labels.csv", [file for file in images if file.id in finished])
    return Summary(out, len(finished) - kept, kept, tuple(skipped))


def _entries(place: Path, root: Path) -> list[Path]:
    found = (path for path in place.iterdir() if not path.name.startswith("."))
    inside = [path for path in found if path.exists() and path.resolve().is_relative_to(root)]
    return sorted(inside, key=lambda path: path.name)


def _images(place: Path, root: Path, label: str | None) -> list[ImageFile]:
    paths = [path for path in _entries(place, root) if path.suffix.lower() in SUFFIXES and path.is_file()]
    if paths and label is not None:
        _check_label(label, place)
    names = [path.stem if label is None else f"{label}__{path.stem}" for path in paths]
    return [
        ImageFile(path, re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", name)), label)
        for path, name in zip(paths, names, strict=True)
    ]


def _check_label(label: str, place: Path) -> None:
    if label != label.strip() or SEPARATOR in label or not label.isprintable():
        raise DataError(
            f"The folder {str(place)!r} cannot name a class: rename it, without outer spaces or {SEPARATOR}."
        )


def _batches(images: list[ImageFile], generator: Generator) -> Iterator[list[ImageFile]]:
    step = generator.images_at_once
    return (images[start : start + step] for start in range(0, len(images), step))


def _read(
    batch: Sequence[ImageFile], generator: Generator, unreadable: list[Path] | None
) -> list[tuple[ImageFile, Image]]:
    """Read a batch; what cannot be read is added to ``unreadable`` or, without such a list, an error."""
    read = []
    for file in batch:
        try:
            pixels = read_image(file.path)
        except StorageError:
            if unreadable is None:
                raise
            unreadable.append(file.path)
            continue
        try:
            check_image(pixels, generator.min_side, generator.name)
        except DataError as error:
            raise DataError(f"{file.path}: {error}") from error
        read.append((file, pixels))
    return read


def _claim(out: Path, generator: Generator) -> None:
    """Record the generator in ``out``, or see that it is the one recorded there."""
    check_folder(out, RECORD)
    record = json.loads(json.dumps({"generator": generator.name, "settings": dict(generator.settings)}))
    path = out / RECORD
    if path.is_file():
        old = read_json(path)
        if old != record:
            raise StorageError(
                f"{out} holds features made by {_described(old)}, not by {_described(record)}: "
                "give another folder, or delete this one."
            )
    else:
        with atomic_file(path) as temporary:
            write_json(temporary, record)
    for leftover in (out / "h5_files").glob(".*.h5"):  # of a process that was killed while it wrote
        with contextlib.suppress(OSError):
            leftover.unlink()


def _described(record: dict[str, object]) -> str:
    settings = record.get("settings")
    pairs = settings.items() if isinstance(settings, dict) else ()
    shown = ", ".join(f"{name} = {value}" for name, value in pairs)
    return f"{record.get('generator')}" + (f" ({shown})" if shown else "")


def _stamp(path: Path) -> str:
    """Return what changes when an image is replaced by another of its name."""
    status = path.stat()
    return f"{status.st_size} bytes, {status.st_mtime_ns} ns"


def _is_whole(path: Path, image: ImageFile) -> bool:
    import h5py

    if not path.is_file():
        return False
    try:
        with h5py.File(path, "r") as file:
            features, coordinates = file["features"][()], file["coords"][()]
            same = file.attrs["image"] == _stamp(image.path) and file["coords"].attrs["place"] == PLACE
    except Exception:  # a damaged file makes h5py raise whatever it stumbles on
        return False
    fits = features.ndim == 2 and coordinates.shape == (len(features), 2)
    return bool(same and fits and np.isfinite(features).all())


def _write(path: Path, image: ImageFile, instances: Instances) -> None:
    import h5py

    with atomic_file(path) as temporary, h5py.File(temporary, "w") as file:
        file["features"] = instances.features
        file["coords"] = instances.coordinates
        file["coords"].attrs["place"] = PLACE
        file.attrs["image"] = _stamp(image.path)


def _write_labels(path: Path, images: list[ImageFile]) -> None:
    if not images or images[0].label is None:
        return
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["slide_id", "label", "candidates"])
        writer.writerows([image.id, image.label, image.label] for image in images)
