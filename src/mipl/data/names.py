"""Match the names of bags in tables and of images: with or without a suffix, or by the original path."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping

IMAGES = (".jpg", ".jpeg", ".png", ".tif", ".tiff", ".bmp")
SLIDES = (".svs", ".ndpi", ".mrxs", ".scn", ".qptiff", ".czi")
FEATURES = (".h5", ".hdf5", ".pt", ".npy", ".npz")
SUFFIXES = (*IMAGES, *SLIDES, *FEATURES)


def file_name(name: str) -> str:
    """Return a name without characters that are special in paths, as ``mipl data images`` writes ids."""
    return re.sub(r"[^\w.-]", "_", unicodedata.normalize("NFC", name))


def forms(name: str) -> list[str]:
    """Return the names that may stand for a name or path, the most specific first.

    Of a path these are its endings, without the suffix of an image or a feature file too, with the folders
    joined to the file name as ``mipl data images`` does.

    Examples:
        >>> forms("tiles/tumor/a.png")[-4:]
        ['tumor__a.png', 'tumor__a', 'a.png', 'a']
    """
    found = [name]
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", ".")]
    for start in range(len(parts)):
        joined = "__".join(parts[start:])
        suffix = next((ending for ending in SUFFIXES if joined.lower().endswith(ending)), "")
        stem = joined[: len(joined) - len(suffix)]
        found += [joined, file_name(joined), stem, file_name(stem)]
    return [form for form in dict.fromkeys(found) if form]


class NameIndex:
    """Finds the bag that a name stands for.

    Args:
        ids: ids of the bags.
        sources: further names by id, for example the path of the image that a bag was made from.
    """

    def __init__(self, ids: Iterable[str], sources: Mapping[str, str] | None = None) -> None:
        self._ids = frozenset(ids)
        self._owners: dict[str, set[str]] = {}
        for bag in self._ids:
            for name in (bag, *([sources[bag]] if sources and bag in sources else [])):
                for form in forms(name):
                    self._owners.setdefault(form, set()).add(bag)

    def find(self, name: str) -> str | None:
        """Return the id of the one bag that ``name`` stands for, or None; an equal id comes first."""
        if name in self._ids:
            return name
        owners = (self._owners.get(form, ()) for form in forms(name))
        return next((next(iter(bags)) for bags in owners if len(bags) == 1), None)
