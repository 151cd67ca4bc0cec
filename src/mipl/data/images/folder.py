"""From a folder of images to bags: one feature file per image in CLAM's layout, or bags in memory."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mipl.data.formats.cells import SEPARATOR
from mipl.data.formats.origin import RECORD, attributes
from mipl.data.images.generators import Generator, Image, Instances, check_image, require
from mipl.data.images.named import make_generator
from mipl.data.names import IMAGES, NameIndex, file_name
from mipl.errors import DataError, StorageError, listed
from mipl.files import atomic_file, check_folder, read_json, write_json

PLACE = "upper left corner"  # meaning of coordinates, as in slide tools and `mipl explain`
Report = Callable[[int, str], None]  # called with the number of finished images and the last one's id


@dataclasses.dataclass(frozen=True)
class ImageFile:
    """An image file, and the id and label of its bag."""

    path: Path
    id: str  # valid as a file name
    label: str | None  # name of the subfolder


class ImageBag(NamedTuple):
    """The bag of an image, in memory."""

    id: str
    label: str | None
    instances: Instances


@dataclasses.dataclass(frozen=True)
class Summary:
    """The result of :func:`generate`."""

    out: Path
    made: int  # bags written by this call
    kept: int  # bags written by an earlier call
    skipped: tuple[Path, ...]  # could not be read


def list_images(folder: Path) -> list[ImageFile]:
    """List the images in ``folder``, or in one subfolder per class, sorted by class and name.

    Hidden files, deeper folders and links out of the folder are ignored.
    """
    if not folder.is_dir():
        raise StorageError(f"{folder} is not a folder: give the folder of the images.")
    try:
        root = folder.resolve()
        images = _images(folder, root, None)
        subfolders = [entry for entry in _entries(folder, root) if entry.is_dir()]
        below = [image for subfolder in subfolders for image in _images(subfolder, root, subfolder.name)]
    except OSError as error:
        raise StorageError(f"{folder} cannot be listed: {error}.") from error
    if images and below:
        raise DataError(
            f"{folder} has images directly, such as {images[0].path.name}, and in subfolders, such as "
            f"{below[0].path.relative_to(folder)}: put all in it, or all in one subfolder per class."
        )
    images = images or below
    if not images:
        raise DataError(
            f"{folder} has no images ({', '.join(IMAGES)}), neither directly nor in subfolders; "
            "links out of it are not followed."
        )
    seen: dict[str, Path] = {}
    for image in images:
        key = image.id.casefold()  # some file systems are case-insensitive
        if key in seen:
            raise DataError(
                f"{seen[key]} and {image.path} would both be the bag '{image.id}': rename one of them."
            )
        seen[key] = image.path
    return images


def read_image(path: Path) -> Image:
    """Read an image as RGB (h, w, 3): grey is repeated, alpha is dropped, 16 bits are reduced to 8."""
    cv2 = require("cv2")
    try:
        content = np.frombuffer(path.read_bytes(), dtype=np.uint8)
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}.") from error
    try:  # not imread: it returns an image for half a file
        pixels = cv2.imdecode(content, cv2.IMREAD_COLOR) if len(content) else None
    except cv2.error:
        pixels = None
    if pixels is None:
        raise StorageError(f"{path} cannot be read as an image: replace or remove it.")
    return np.ascontiguousarray(pixels[..., ::-1])


def match_images(folder: Path, ids: Sequence[str]) -> dict[str, Path]:
    """Return the image of each bag, from the names of the files in ``folder`` and one level of subfolders.

    A name matches with or without its suffix, and with the subfolder, as ``mipl data images`` names bags.
    Hidden files and symbolic links are left out.

    Raises:
        DataError: no bag has an image, or one has several.
    """
    if not folder.is_dir():
        raise StorageError(f"{folder} is not a folder: give the folder of the images.")
    index, images = NameIndex(ids), dict[str, Path]()
    try:
        places = [folder, *(entry for entry in _plain_entries(folder) if entry.is_dir())]
        files = [entry for place in places for entry in _plain_entries(place) if entry.is_file()]
    except OSError as error:
        raise StorageError(f"{folder} cannot be listed: {error}.") from error
    for path in files:
        if path.suffix.lower() not in IMAGES:
            continue
        bag = index.find(path.relative_to(folder).as_posix())
        if bag is None:
            continue
        if bag in images:
            raise DataError(
                f"The bag '{bag}' has two images, {images[bag]} and {path}: rename or remove one of them."
            )
        images[bag] = path
    if not images:
        raise DataError(
            f"No image in {folder} has the name of a bag, such as '{listed(ids, 1)}': is it the right folder?"
        )
    return images


def read_inside(path: Path, folder: Path) -> Image:
    """Read an image that :func:`match_images` found; one that became a link out of ``folder`` is refused."""
    if path.is_symlink() or not path.resolve().is_relative_to(folder.resolve()):
        raise StorageError(f"{path.name} is no longer a file in the folder of images.")
    return read_image(path)


def _plain_entries(folder: Path) -> list[Path]:
    found = (path for path in folder.iterdir() if not path.name.startswith(".") and not path.is_symlink())
    return sorted(found, key=lambda path: path.name)


def image_bags(
    folder: Path, generator: Generator | str, *, report: Report | None = None
) -> Iterator[ImageBag]:
    """Yield the bag of each image in the order of :func:`list_images`; nothing is written.

    Args:
        folder: folder of the images. The labels of bags are None if it has no subfolders.
        generator: a generator or its name.
        report: called after each image.
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

    ``generator.json`` records the generator and, if there are subfolders, ``labels.csv`` lists their images.
    A later call with the same generator resumes an interrupted one: complete files whose images have not
    changed are kept. The features do not depend on the interruption.

    Args:
        folder: folder of the images.
        generator: a generator or its name.
        out: folder to write to.
        skip_unreadable: leave out images that cannot be read.
        report: called after each image.
    """
    images = list_images(folder)
    generator = make_generator(generator) if isinstance(generator, str) else generator
    paths = {file.id: out / "h5_files" / f"{file.id}.h5" for file in images}
    _record_generator(out, generator)
    finished = {file.id for file in images if _is_complete(paths[file.id], file)}
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
        # The whole batch is encoded, even finished images: the last bits of a feature depend on its batch.
        made = generator.make([pixels for _, pixels in read])
        for (file, pixels), instances in zip(read, made, strict=True):
            if file.id not in finished:
                _write(paths[file.id], file, instances, _about(generator, file, folder, pixels, instances))
                finished.add(file.id)
                if report is not None:
                    report(len(finished) + len(skipped), file.id)
    _write_labels(out / "labels.csv", [file for file in images if file.id in finished])
    return Summary(out, len(finished) - kept, kept, tuple(skipped))


def _entries(folder: Path, root: Path) -> list[Path]:
    found = (path for path in folder.iterdir() if not path.name.startswith("."))
    inside = [path for path in found if path.exists() and path.resolve().is_relative_to(root)]
    return sorted(inside, key=lambda path: path.name)


def _images(folder: Path, root: Path, label: str | None) -> list[ImageFile]:
    paths = [path for path in _entries(folder, root) if path.suffix.lower() in IMAGES and path.is_file()]
    if paths and label is not None:
        _check_label(label, folder)
    names = [path.stem if label is None else f"{label}__{path.stem}" for path in paths]
    return [ImageFile(path, file_name(name), label) for path, name in zip(paths, names, strict=True)]


def _check_label(label: str, folder: Path) -> None:
    if label != label.strip() or SEPARATOR in label or not label.isprintable():
        raise DataError(
            f"The folder {str(folder)!r} cannot name a class: rename it, without outer spaces or {SEPARATOR}."
        )


def _batches(images: list[ImageFile], generator: Generator) -> Iterator[list[ImageFile]]:
    step = generator.images_at_once
    return (images[start : start + step] for start in range(0, len(images), step))


def _read(
    batch: Sequence[ImageFile], generator: Generator, unreadable: list[Path] | None
) -> list[tuple[ImageFile, Image]]:
    """Read a batch; unreadable images are added to ``unreadable``, or are errors if it is None."""
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


def _record_generator(out: Path, generator: Generator) -> None:
    """Record the generator in ``out``, or check that it is the recorded one."""
    check_folder(out, RECORD)
    record = json.loads(json.dumps({"generator": generator.name, "settings": dict(generator.settings)}))
    path = out / RECORD
    if path.is_file():
        old = read_json(path)
        if old != record:
            raise StorageError(
                f"{out} has features of {_describe(old)}, not of {_describe(record)}: "
                "give another folder, or delete this one."
            )
    else:
        with atomic_file(path) as temporary:
            write_json(temporary, record)
    for leftover in (out / "h5_files").glob(".*.h5"):  # of a process that was killed while writing
        with contextlib.suppress(OSError):
            leftover.unlink()


def _describe(record: dict[str, object]) -> str:
    settings = record.get("settings")
    pairs = settings.items() if isinstance(settings, dict) else ()
    shown = ", ".join(f"{name} = {value}" for name, value in pairs)
    return f"{record.get('generator')}" + (f" ({shown})" if shown else "")


def _stamp(path: Path) -> str:
    """Return size and time of a file, which change when the image is replaced."""
    status = path.stat()
    return f"{status.st_size} bytes, {status.st_mtime_ns} ns"


def _is_complete(path: Path, image: ImageFile) -> bool:
    import h5py

    if not path.is_file():
        return False
    try:
        with h5py.File(path, "r") as file:
            features, coordinates = file["features"][()], file["coords"][()]
            same = file.attrs["image"] == _stamp(image.path) and file["coords"].attrs["place"] == PLACE
    except Exception:  # h5py may raise anything on a damaged file
        return False
    fits = features.ndim == 2 and coordinates.shape == (len(features), 2)
    return bool(same and fits and np.isfinite(features).all())


def _about(
    generator: Generator, file: ImageFile, folder: Path, pixels: Image, instances: Instances
) -> dict[str, Any]:
    """Return the attributes of a feature file: the way to its features, and what the coordinates refer to."""
    known = {name: generator.settings.get(name) for name in ("encoder", "weights")}
    extent = instances.extent or (math.nan, math.nan)
    if instances.extent is not None and "patches" in generator.settings:
        known["patch_size"] = [float(side) for side in extent]
    geometry = (*extent, pixels.shape[1], pixels.shape[0])
    return {
        **attributes({"generator": generator.name, **known}, geometry),
        "source": file.path.relative_to(folder).as_posix(),
    }


def _write(path: Path, image: ImageFile, instances: Instances, about: Mapping[str, Any]) -> None:
    import h5py

    with atomic_file(path) as temporary, h5py.File(temporary, "w") as file:
        file["features"] = instances.features
        file["coords"] = instances.coordinates
        file["coords"].attrs["place"] = PLACE
        file.attrs["image"] = _stamp(image.path)
        file.attrs.update(about)


def _write_labels(path: Path, images: list[ImageFile]) -> None:
    if not images or images[0].label is None:
        return
    with atomic_file(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["slide_id", "label", "candidates"])
        writer.writerows([image.id, image.label, image.label] for image in images)
