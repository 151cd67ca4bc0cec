"""`Bags`: an immutable, ragged store of bags, their candidate sets and what else is known of them."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from mipl.data.candidates import (
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
from mipl.data.features import named_frames
from mipl.data.lazy import FileArray
from mipl.data.validation import check_alike, flat_array, instance_array, validate, weight_array
from mipl.errors import DataError

Array = NDArray[Any]


@dataclasses.dataclass(frozen=True, eq=False)
class Bag:
    """One bag: instances (n, …) and what is known of it; the label is an index into the classes."""

    id: str
    instances: Array  # (n, *feature_shape)
    candidates: BoolArray | None = None  # (k,)
    label: int | None = None
    instance_labels: IntArray | None = None  # (n,), −1: none of the classes
    coordinates: Array | None = None  # (n, c)
    group: str | None = None

    def __len__(self) -> int:
        return len(self.instances)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Bags:
    """m bags over one flat source of instances, validated once, here.

    A selection (``bags[3:9]``, ``bags[mask]``, ``bags[indices]``) shares the source. Arrays are read-only.
    The source is an array, or files that are read, and their values checked, when a bag is asked for.
    Instances of dtype uint8 stand for value/255 (images); every other dtype stands for itself.
    """

    source: Array | FileArray  # (rows, *feature_shape); rows of bags outside this selection included
    starts: IntArray  # (m,) first row of each bag in the source
    sizes: IntArray  # (m,)
    classes: Classes  # k names, or 0 … k−1
    ids: NDArray[np.str_]  # (m,)
    candidates: BoolArray | None = None  # (m, k)
    labels: IntArray | None = None  # (m,) indices into classes
    instance_labels: IntArray | None = None  # (rows,) −1: none of the classes
    coordinates: Array | FileArray | None = None  # (rows, c)
    groups: NDArray[np.str_] | None = None  # (m,) for example the patient
    weights: Array | None = None  # (m, k) initial pseudo-label weights, in place of uniform
    missing_truth: bool = False  # a true label may be outside its candidate set
    provenance: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    feature_names: tuple[str, ...] | None = None  # d names of the columns, for vectors

    def __post_init__(self) -> None:
        validate(self)
        self._freeze()

    # ---- making ------------------------------------------------------------------------------------

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
        """Make bags from one array (n, …) per bag.

        ``candidates``: a 0/1 array (m, k), or per bag an iterable of class indices (int) or names (str).
        ``labels``: one index or name per bag. ``classes``: the names in column order; without it they are
        the sorted names, or 0 … k−1, that candidates and labels speak of. ``feature_names``: one per
        feature; a model refuses other names, and puts another order right. Data frames bring their own.
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
            candidates = read_sets(candidates, names)  # an iterable can be read once, and is needed twice
        labels = None if labels is None else read_labels(labels, names)
        sizes = np.array([len(part) for part in parts], dtype=np.int64)
        known = check_classes(classes) if classes is not None else infer_classes(candidates, labels)
        return cls(
            source=np.concatenate(parts),
            starts=_starts(sizes),
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

    def with_candidates(self, candidates: Any, *, classes: Iterable[Any] | None = None) -> Bags:
        """Return the same bags with other candidate sets; labels are kept where the classes are the same."""
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
        )

    def save(self, path: str | Path) -> None:
        """Write these bags as one ``.npz`` file without pickle."""
        from mipl.data.formats.npz import save_npz

        save_npz(self, Path(path))

    @classmethod
    def load(cls, path: str | Path, *, mapped: bool = False) -> Bags:
        """Read an ``.npz`` file written by :meth:`save`.

        ``mapped``: leave the instances (vectors) in the file, and read those of a bag when it is asked for.
        """
        from mipl.data.formats.npz import load_npz

        return load_npz(Path(path), mapped=mapped)

    # ---- reading -----------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.sizes)

    @property
    def shape(self) -> tuple[int]:
        """(m,): with it scikit-learn's cross-validation selects bags without copying them."""
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
    def offsets(self) -> IntArray:
        """(m + 1,) bag i is rows offsets[i] … offsets[i + 1] of :attr:`instances`."""
        return np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(self.sizes)])

    @property
    def instances(self) -> Array:
        """(total, *feature_shape) the instances of these bags, in order; a copy unless that is the source."""
        if isinstance(self.source, np.ndarray) and self._packed():
            return self.source
        return self.source[self.rows()]

    def rows(self, index: Array | None = None) -> IntArray:
        """Return the source's rows of the bags at ``index`` (default all), bag after bag."""
        which = slice(None) if index is None else index
        starts, sizes = self.starts[which], self.sizes[which]
        rows: IntArray = np.arange(sizes.sum()) + np.repeat(starts - _starts(sizes), sizes)
        return rows

    @overload
    def __getitem__(self, key: int | np.integer[Any]) -> Bag: ...
    @overload
    def __getitem__(self, key: Any) -> Bags: ...
    def __getitem__(self, key: Any) -> Bag | Bags:
        """Return one bag for an integer; bags for a slice, a mask (m,) or an index array."""
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
        """Return bags with only the instances ``kept[i]`` (positions within the bag) of bag i, as a copy."""
        if len(kept) != len(self):
            raise DataError(f"There are instances to keep of {len(kept)} bags, but {len(self)} bags.")
        rows = [np.zeros(0, dtype=np.int64)]  # no bag at all: no row
        for bag, start, size, keep in zip(self.ids, self.starts, self.sizes, kept, strict=True):
            places = np.asarray(keep)
            if places.ndim != 1 or places.dtype.kind not in "iu" or ((places < 0) | (places >= size)).any():
                raise DataError(
                    f"Bag '{bag}' has {size} instances: keep at least one, by places from 0 to {size - 1}."
                )
            rows.append(start + places.astype(np.int64))
        sizes = np.array([len(part) for part in rows[1:]], dtype=np.int64)
        source_rows = np.concatenate(rows)
        return dataclasses.replace(
            self,
            source=self.source[source_rows],
            starts=_starts(sizes),
            sizes=sizes,
            instance_labels=None if self.instance_labels is None else self.instance_labels[source_rows],
            coordinates=None if self.coordinates is None else self.coordinates[source_rows],
            provenance=self.provenance if provenance is None else provenance,
        )

    def packed(self) -> Bags:
        """Return the same bags over an array in memory that holds just their instances, in order."""
        if isinstance(self.source, np.ndarray) and self._packed():
            return self
        return self.keep_instances([np.arange(size) for size in self.sizes])

    def blocks(self, rows: int = 8192) -> Iterator[Array]:
        """Yield the instances of these bags in order, at most ``rows`` (n, *feature_shape) at a time."""
        ends = self.starts + self.sizes
        breaks = np.flatnonzero(self.starts[1:] != ends[:-1]) + 1  # bags that do not follow each other
        for part in np.split(np.arange(len(self)), breaks):
            if len(part):
                first, last = int(self.starts[part[0]]), int(ends[part[-1]])
                for start in range(first, last, rows):
                    yield self.source[start : min(start + rows, last)]

    def digest(self, visit: Callable[[Array], None] | None = None) -> str:
        """Return a hash of everything that can change the result of a run on these bags.

        It covers :meth:`content_digest`, the ids, the groups and ``missing_truth``: splits depend on groups,
        and split files and reports on ids. Instance labels, coordinates and names of features are not in it.
        ``visit`` is that of :meth:`content_digest`.
        """
        content = self.content_digest(visit)
        groups = None if self.groups is None else self.groups.tolist()
        text = json.dumps([content, self.ids.tolist(), groups, self.missing_truth])
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def content_digest(self, visit: Callable[[Array], None] | None = None) -> str:
        """Return a hash of instances, sizes, candidate sets, labels, weights and classes.

        Bags with other ids or groups have the same one: it tells whether a model has seen these bags.
        ``visit`` receives the instances block by block, so that data too large for memory are read once for
        both. The hash is cached, and without ``visit`` nothing is read again.
        """
        known: str | None = self.__dict__.get("_content_digest")
        if known is None or visit is not None:
            known = self._hash(visit)
            object.__setattr__(self, "_content_digest", known)
        return known

    def _hash(self, visit: Callable[[Array], None] | None) -> str:
        state = hashlib.blake2b(digest_size=16)
        state.update(json.dumps([list(self.classes), self.feature_shape, str(self.source.dtype)]).encode())
        state.update(str((int(self.sizes.sum()), *self.feature_shape)).encode())
        for block in self.blocks():
            state.update(np.ascontiguousarray(block).data)
            if visit is not None:
                visit(block)
        for array in (self.sizes, self.candidates, self.labels, self.weights):
            state.update(str(None if array is None else array.shape).encode())
            state.update(b"" if array is None else np.ascontiguousarray(array).tobytes())
        return state.hexdigest()

    def __repr__(self) -> str:
        if not len(self):
            return "Bags(0 bags)"
        feature = "×".join(str(side) for side in self.feature_shape)
        text = (
            f"Bags({len(self):,} bags, {int(self.sizes.sum()):,} instances "
            f"({self.sizes.min()}–{self.sizes.max()} a bag) of {feature} features, {self.k} classes"
        )
        if self.candidates is not None:
            text += f", {self.candidates.sum(axis=1).mean():.2f} candidates a bag"
        return text + (", labelled)" if self.labels is not None else ", no labels)")

    # ---- inside ------------------------------------------------------------------------------------

    def _packed(self) -> bool:
        return len(self.source) == self.sizes.sum() and np.array_equal(self.starts, _starts(self.sizes))

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
        )

    def _select(self, index: IntArray) -> Bags:
        # Already validated: a selection skips __post_init__ and its pass over the instances.
        selected = object.__new__(Bags)
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None and field.name in PER_BAG:
                value = value[index]
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


PER_BAG = ("starts", "sizes", "ids", "candidates", "labels", "groups", "weights")


def as_bags(bags: Any, candidates: Any = None) -> Bags:
    """Return ``bags`` as `Bags`: themselves, an ``.npz`` by its path, a list of arrays or of `Bag`."""
    if isinstance(bags, (str, Path)):
        bags = Bags.load(bags)
    if isinstance(bags, Bags):
        return bags if candidates is None else bags.with_candidates(candidates)
    if getattr(bags, "ndim", 0) == 2:
        raise DataError("A single array of instances was given: put each bag's array in a list, [array].")
    if not isinstance(bags, Iterable):
        raise DataError(f"Bags are expected, or a list of arrays, not {bags!r}.")
    items = list(bags)
    if items and all(isinstance(item, Bag) for item in items):
        return Bags.from_list([bag.instances for bag in items], candidates, ids=[bag.id for bag in items])
    return Bags.from_list(items, candidates)


def _starts(sizes: IntArray) -> IntArray:
    starts: IntArray = np.cumsum(sizes) - sizes
    return starts
