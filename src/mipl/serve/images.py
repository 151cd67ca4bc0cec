"""The images of the bags on the review page: only files of listed bags in one folder are ever read."""

from __future__ import annotations

import collections
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from mipl.data.images.folder import match_images, read_inside
from mipl.data.images.generators import require

LONGEST = 2048  # pixels of the longer side that is sent
QUALITY = 92  # of JPEG
CACHED = 16


class Encoded(NamedTuple):
    """An image as it is sent, and its size in the file."""

    content: bytes
    width: int
    height: int


class Images:
    """The images of bags, matched to their ids once; a client names a bag by number, never a file.

    Images are decoded and encoded again, so that no other content of a file, such as a patient's name in its
    metadata, is sent.

    Args:
        folder: The folder of the images, directly or one level of subfolders below it.
        ids: Ids of the bags.
    """

    def __init__(self, folder: Path, ids: Sequence[str]) -> None:
        self._folder = folder
        self._files = match_images(folder, ids)
        self._cached: collections.OrderedDict[str, Encoded] = collections.OrderedDict()
        self._lock = threading.Lock()

    def __contains__(self, bag: str) -> bool:
        return bag in self._files

    def __len__(self) -> int:
        return len(self._files)

    def size(self, bag: str) -> tuple[int, int]:
        """Return width and height of a bag's image in the file."""
        encoded = self._read(bag)
        return encoded.width, encoded.height

    def jpeg(self, bag: str) -> bytes:
        """Return a bag's image as JPEG, reduced if it is large."""
        return self._read(bag).content

    def _read(self, bag: str) -> Encoded:
        with self._lock:
            if bag not in self._cached:
                self._cached[bag] = self._encode(bag)
            self._cached.move_to_end(bag)
            while len(self._cached) > CACHED:
                self._cached.popitem(last=False)
            return self._cached[bag]

    def _encode(self, bag: str) -> Encoded:
        cv2 = require("cv2")
        pixels = read_inside(self._files[bag], self._folder)
        height, width = pixels.shape[:2]
        scale = LONGEST / max(width, height)
        if scale < 1:
            size = (max(1, round(width * scale)), max(1, round(height * scale)))
            pixels = cv2.resize(pixels, size, interpolation=cv2.INTER_AREA)
        _, content = cv2.imencode(".jpg", pixels[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, QUALITY])
        return Encoded(content.tobytes(), width, height)
