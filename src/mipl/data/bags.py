"""`Bags`: an immutable, ragged container of bags with candidate sets, labels and metadata."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mipl.data.annotations import select_votes
from mipl.data.bag import Array, Bag
from mipl.data.candidates import (
    NO_CANDIDATES,
    BoolArray,
    Classes,
    IntArray,
    candidate_matrix,
    check_classes,
    infer_classes,
    is_matrix,
    label_array,
    read_labels,
    read_sets,
)
from mipl.data.digest import content_hash
from mipl.data.features import named_frames
from mipl.data.lazy import FileArray
from mipl.data.validation import (
    check_alike,
    flat_array,
    instance_array,
    positions_array,
    validate,
    weight_array,
)
from mipl.errors import DataError, counted


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Bags:
    """m bags over one flat array of instances, validated on construction.

    A selection (``bags[3:9]``, ``bags[mask]``, ``bags[indices]``) shares the source. Arrays are read-only.
    The source is an array, or files whose values are read and checked when a bag is accessed. Instances of
    dtype uint8 represent value/255 (images); other dtypes represent themselves.
    """

    source: Array | FileArray  # (rows, *feature_shape), including bags outside this selection
    starts: IntArray  # (m,) row of the source at which each bag starts
    sizes: IntArray  # (m,)
    classes: Classes  # k names, or 0 … k−1
    ids: NDArray[np.str_]  # (m,)
    candidates: BoolArray | None = None  # (m, k)
    labels: IntArray | None = None  # (m,) indices into classes
    instance_labels: IntArray | None = None  # (rows,) −1: none of the classes
    coordinates: Array | FileArray | None = None  # (rows, c)
    groups: NDArray[np.str_] | None = None  # (m,) for example the patient
    weights: Array | None = None  # (m, k) initial pseudo-label weights, in place of uniform
    sample_weight: Array | None = None  # (m,) weight of each bag in the loss; not written to files
    missing_truth: bool = False  # a true label may be outside its candidate set
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None  # d names of the columns, for vectors
    votes: IntArray | None = None  # (v, 3) bag, annotator (−1: a gold label), label
    annotators: tuple[str, ...] = ()  # names
    geometry: Array | None = None  # (m, 4) width, height of a patch and of the image; NaN: unknown

    def __post_init__(self) -> None:
        validate(self)
        self._freeze()

    # ---- construction ------------------------------------------------------------------------------

    @classmethod
    def from_list(
        cls,
        arrays: Iterable[Any],
        candidates: Any = None,
        labels: Any = None,
        classes: Iterable[Any] | None = None,
        *,
        ids: Iterable[Any] | None = None,
        instance_labels: Iterable[Any] | None = None,
        coordinates: Iterable[Any] | None = None,
        groups: Iterable[Any] | None = None,
        weights: Any = None,
        missing_truth: bool = False,
        provenance: Mapping[str, Any] | None = None,
        feature_names: Iterable[str] | None = None,
    ) -> Bags:
        """Create bags from one array (n, …) per bag.

        Args:
            arrays: one array or data frame per bag.
            candidates: a 0/1 array (m, k), or one iterable of class indices (int) or names (str) per bag.
            labels: one index or name per bag.
            classes: the names in column order. The default is the sorted names, or 0 … k−1, that occur in
                candidates and labels.
            ids: one per bag; the default is 0 … m−1.
            instance_labels: one array (n,) of class indices per bag, −1 for none of the classes.
            coordinates: one array (n, c) per bag.
            groups: one per bag, for example the patient.
            weights: initial pseudo-label weights (m, k); the default is uniform over the candidates.
            missing_truth: allow true labels outside their candidate sets.
            provenance: where the data come from, as JSON.
            feature_names: one per feature; the default is the columns of data frames. A model rejects other
                names and reorders columns that are in another order.

        Raises:
            DataError: the data are inconsistent; the message names the bag.
        """
        given = list(arrays)
        if not given:
            raise DataError("There is no bag: give at least one array of instances.")
        names = [str(i) for i in (ids if ids is not None else range(len(given)))]
        if len(names) != len(given):
            raise DataError(f"There are {len(names)} ids for {len(given)} bags: give one for each bag.")
        if feature_names is None:
            given, feature_names = named_frames(given, names)
        parts = [instance_array(array, name) for array, name in zip(given, names, strict=True)]
        check_alike(parts, names)
        if candidates is not None and not is_matrix(candidates):
            candidates = read_sets(candidates, names)  # used twice, but an iterable can be read only once
        labels = None if labels is None else read_labels(labels, names)
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        known = check_classes(classes) if classes is not None else infer_classes(candidates, labels)
        return cls(
            source=np.concatenate(parts),
            starts=np.cumsum(sizes) - sizes,
            sizes=sizes,
            classes=known,
            ids=np.array(names, dtype=np.str_),
            candidates=None if candidates is None else candidate_matrix(candidates, known, names),
            labels=None if labels is None else label_array(labels, known, names),
            instance_labels=flat_array(instance_labels, sizes, names, "instance labels", 1),
            coordinates=flat_array(coordinates, sizes, names, "coordinates", 2),
            groups=None if groups is None else np.array([str(g) for g in groups], dtype=np.str_),
            weights=weight_array(weights),
            missing_truth=missing_truth,
            provenance=dict(provenance or {}),
            feature_names=None if feature_names is None else tuple(map(str, feature_names)),
        )

    @classmethod
    def from_rows(cls, array: Any, candidates: Any = None, labels: Any = None, **given: Any) -> Bags:
        """Create bags of one instance, as partial-label data are: one per row of an array or frame (m, d).

        The other arguments are those of :meth:`from_list`.
        """
        if getattr(array, "ndim", 0) != 2:
            raise DataError("Bags of one instance need a two-dimensional array, examples × features.")
        rows = [array[i : i + 1] for i in range(len(array))]
        return cls.from_list(rows, candidates, labels, **given)

    def with_candidates(self, candidates: Any, *, classes: Iterable[Any] | None = None) -> Bags:
        """Return a copy with other candidate sets; labels are dropped if the classes change."""
        ids = self.ids.tolist()
        if not is_matrix(candidates):
            candidates = read_sets(candidates, ids)
        known = (
            check_classes(classes) if classes is not None else self.classes or infer_classes(candidates, None)
        )
        same = known == self.classes
        return dataclasses.replace(
            self,
            classes=known,
            candidates=candidate_matrix(candidates, known, ids),
            labels=self.labels if same else None,
            instance_labels=self.instance_labels if same else None,
            weights=None,
            votes=None,
            annotators=(),
        )

    def save(self, path: str | Path) -> None:
        """Write these bags to one ``.npz`` file without pickle."""
        from mipl.data.formats.npz import save_npz

        save_npz(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, mapped: bool = False) -> Bags:
        """Read an ``.npz`` file written by :meth:`save`.

        Args:
            path: the file.
            mapped: leave the instances (vectors) in the file and read them when a bag is accessed.
        """
        from mipl.data.formats.npz import load_npz

        return load_npz(Path(path), mapped=mapped)

    # ---- access -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def shape(self) -> tuple[int]:
        """(m,), so that scikit-learn's cross-validation selects bags without copying them."""
        return (len(self),)

    @property
    def feature_shape(self) -> tuple[int, ...]:
        """The shape of one instance: (d,) for vectors, (h, w) or (c, h, w) for images."""
        return tuple(int(side) for side in self.source.shape[1:])

    @property
    def k(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def candidate_sets(self) -> BoolArray:
        """The candidate sets (m, k), for code that requires them.

        Raises:
            DataError: the bags have no candidate sets.
        """
        if self.candidates is None:
            raise DataError(NO_CANDIDATES)
        return self.candidates

    @property
    def offsets(self) -> IntArray:
        """(m + 1,): bag i is the rows offsets[i] to offsets[i + 1] of :attr:`instances`."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.sizes)])

    @property
    def instances(self) -> Array:
        """The instances of all bags in order (total, *feature_shape): the source if possible, or a copy."""
        if isinstance(self.source, np.ndarray) and self._packed():
            return self.source
        return self.source[self.rows()]

    def rows(self, index: Array | None = None) -> IntArray:
        """Return the rows of the source that belong to the bags at ``index`` (default all), in order."""
        which = slice(None) if index is None else index
        starts, sizes = self.starts[which], self.sizes[which]
        rows: IntArray = np.arange(sizes.sum()) + np.repeat(starts - np.cumsum(sizes) + sizes, sizes)
        return rows

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Bag: ...
    @overload
    def __getitem__(self, key: Any) -> Bags: ...
    def __getitem__(self, key: Any) -> Bag | Bags:
        """Return one `Bag` for an integer, `Bags` for a slice, a mask (m,) or an index array."""
        if isinstance(key, tuple) and len(key) == 2 and key[1] is Ellipsis:
            key = key[0]  # scikit-learn writes bags[index, ...]
        if isinstance(key, slice):
            return self._select(np.arange(len(self))[key])
        index = np.asarray(key)
        if index.ndim == 0 and np.issubdtype(index.dtype, np.integer):
            return self._bag(range(len(self))[int(index)])
        if index.dtype == np.bool_ and index.shape != (len(self),):
            raise IndexError(f"The mask has shape {index.shape}, but there are {len(self)} bags.")
        if index.ndim != 1 or not (
            index.dtype == np.bool_ or np.issubdtype(index.dtype, np.integer) or not index.size
        ):
            raise IndexError("Select bags by an integer, a slice, a mask or an array of integers.")
        return self._select(np.arange(len(self))[index if index.size else np.zeros(0, dtype=np.int64)])

    def __iter__(self) -> Iterator[Bag]:
        return (self._bag(i) for i in range(len(self)))

    def keep_instances(
        self, kept: Sequence[IntArray], *, provenance: Mapping[str, Any] | None = None
    ) -> Bags:
        """Return a copy in which bag i has only the instances at the positions ``kept[i]`` within it."""
        if len(kept) != len(self):
            raise DataError(f"Positions are given for {len(kept)} bags, but there are {len(self)} bags.")
        parts = [
            start + positions_array(positions, int(size), bag)
            for bag, start, size, positions in zip(self.ids, self.starts, self.sizes, kept, strict=True)
        ]
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        source_rows = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        return dataclasses.replace(
            self,
            source=self.source[source_rows],
            starts=np.cumsum(sizes) - sizes,
            sizes=sizes,
            instance_labels=None if self.instance_labels is None else self.instance_labels[source_rows],
            coordinates=None if self.coordinates is None else self.coordinates[source_rows],
            provenance=self.provenance if provenance is None else provenance,
        )

    def packed(self) -> Bags:
        """Return the same bags over an array in memory with just their instances, in order."""
        if isinstance(self.source, np.ndarray) and self._packed():
            return self
        return self.keep_instances([np.arange(size) for size in self.sizes])

    def blocks(self, rows: int = 8192) -> Iterator[Array]:
        """Yield the instances of these bags in order, at most ``rows`` (n, *feature_shape) at a time."""
        ends = self.starts + self.sizes
        breaks = np.flatnonzero(self.starts[1:] != ends[:-1]) + 1  # bags not adjacent in the source
        for part in np.split(np.arange(len(self)), breaks):
            if len(part):
                first, last = int(self.starts[part[0]]), int(ends[part[-1]])
                for start in range(first, last, rows):
                    yield self.source[start : min(start + rows, last)]

    def digest(self, visit: Callable[[Array], None] | None = None) -> str:
        """Return a hash of everything that can change the result of a run on these bags.

        It covers :meth:`content_digest`, the ids, the groups and ``missing_truth``: splits depend on groups,
        and split files and reports on ids. It does not cover instance labels, coordinates, geometry and
        feature names.

        Args:
            visit: see :meth:`content_digest`.
        """
        content = self.content_digest(visit)
        groups = None if self.groups is None else self.groups.tolist()
        text = json.dumps([content, self.ids.tolist(), groups, self.missing_truth])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def content_digest(self, visit: Callable[[Array], None] | None = None) -> str:
        """Return a hash of instances, sizes, candidate sets, labels, weights, votes and classes.

        Ids and groups do not change it, so it tells whether a model was trained on these bags. The hash is
        cached.

        Args:
            visit: called with each block of instances, so that data larger than memory are read only once.
        """
        known: str | None = self.__dict__.get("_content_digest")
        if known is None or visit is not None:
            known = content_hash(self, visit)
            object.__setattr__(self, "_content_digest", known)
        return known

    def __repr__(self) -> str:
        if not len(self):
            return "Bags(0 bags)"
        feature = "×".join(str(side) for side in self.feature_shape)
        text = (
            f"Bags({counted(len(self), 'bag')}, {counted(int(self.sizes.sum()), 'instance')} "
            f"({self.sizes.min()}–{self.sizes.max()} per bag) of {feature} features, "
            f"{counted(self.k, 'class')}"
        )
        if self.candidates is not None:
            text += f", {self.candidates.sum(axis=1).mean():.2f} candidates per bag"
        return text + (", labelled)" if self.labels is not None else ", no labels)")

    # ---- internals ----------------------------------------------------------------------------------

    def _packed(self) -> bool:
        return len(self.source) == self.sizes.sum() and np.array_equal(self.starts, self.offsets[:-1])

    def _bag(self, i: int) -> Bag:
        rows = slice(int(self.starts[i]), int(self.starts[i] + self.sizes[i]))
        return Bag(
            id=str(self.ids[i]),
            instances=self.source[rows],
            candidates=None if self.candidates is None else self.candidates[i],
            label=None if self.labels is None else int(self.labels[i]),
            instance_labels=None if self.instance_labels is None else self.instance_labels[rows],
            coordinates=None if self.coordinates is None else self.coordinates[rows],
            group=None if self.groups is None else str(self.groups[i]),
            geometry=None if self.geometry is None else self.geometry[i],
        )

    def _select(self, index: IntArray) -> Bags:
        # Already validated: skip __post_init__ and its pass over the instances.
        selected = object.__new__(Bags)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name in PER_BAG:
                value = value[index]
            elif value is not None and field.name == "votes":
                value = select_votes(value, index)
            object.__setattr__(selected, field.name, value)
        selected._freeze()
        return selected

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._freeze()  # a copy from another process is read-only too

    def _freeze(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, np.ndarray):
                view = value.view()
                view.flags.writeable = False
                object.__setattr__(self, field.name, view)


PER_BAG = (
    "starts", "sizes", "ids", "candidates", "labels", "groups", "weights", "geometry", "sample_weight",
)  # fmt: skip


def as_bags(bags: Any, candidates: Any = None) -> Bags:
    """Convert `Bags`, the path of an ``.npz`` file, or a list of arrays or of `Bag` to `Bags`."""
    if isinstance(bags, (str, Path)):
        bags = Bags.load(bags)
    if isinstance(bags, Bags):
        return bags if candidates is None else bags.with_candidates(candidates)
    if getattr(bags, "ndim", 0) == 2:
        one = "A single array of instances was given: put each bag's array in a list, [array]"
        raise DataError(f"{one}, or make each row a bag with Bags.from_rows(array).")
    if not isinstance(bags, Iterable):
        raise DataError(f"Expected Bags or a list of arrays, not {bags!r}.")
    items = list(bags)
    if items and all(isinstance(item, Bag) for item in items):
        return Bags.from_list([bag.instances for bag in items], candidates, ids=[bag.id for bag in items])
    return Bags.from_list(items, candidates)
