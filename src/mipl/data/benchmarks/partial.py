"""``birdsong-partial``: the labelled segments of HJA Birdsong as a partial-label data set, bags of one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mipl.data.bags import Bags
from mipl.data.benchmarks.sampling import rebuilt
from mipl.data.formats.partial_mat import read_partial_mat
from mipl.errors import StorageError

FILE, SHAPE = "BirdSong.mat", (4998, 13, (38,))


def birdsong_partial(raw: Path) -> Bags:
    """Read 4,998 bags of one segment (38-d), with the species of its recording as candidates.

    Recordings are not identified: training and test bags may share them.

    Args:
        raw: folder of ``BirdSong.mat`` of the public partial-label collection.

    Raises:
        StorageError: the file is missing, or not of this data set.
        DataError: the file is damaged.
    """
    path = raw / FILE
    if not path.is_file():
        raise StorageError(f"{raw} has no {FILE}: --raw must be the folder of that file.")
    bags = read_partial_mat(path)
    if (found := (len(bags), bags.k, bags.feature_shape)) != SHAPE or bags.labels is None:
        raise StorageError(
            f"{path} has {found[0]} examples, {found[1]} classes and features of shape {found[2]}: "
            "birdsong-partial has 4998 with true labels, 13 and (38,)."
        )
    return dataclasses.replace(bags, provenance=rebuilt("birdsong-partial"))
