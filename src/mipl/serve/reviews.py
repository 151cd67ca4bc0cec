"""What reviewers said, in an SQLite file: a log that only grows, in which the last word on a bag counts."""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
import threading
from collections.abc import Collection
from pathlib import Path

from mipl.errors import DataError, StorageError, suggest

FORMAT = 1  # the file's user_version
TABLE = """
CREATE TABLE reviews (
    number INTEGER PRIMARY KEY,
    bag_id TEXT NOT NULL,
    label TEXT,          -- NULL: the label given before is taken back
    at TEXT NOT NULL     -- UTC
)
"""


class Reviews:
    """The reviews of some bags; :meth:`add` returns once the review is on disk."""

    def __init__(self, path: Path, ids: Collection[str], classes: Collection[str]) -> None:
        self.path, self._ids, self._classes = path, frozenset(ids), tuple(classes)
        self._lock = threading.Lock()
        with contextlib.ExitStack() as opened:
            try:
                # isolation_level None: every statement is committed when it returns
                self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
                opened.callback(self._file.close)
                self._prepare()
                self._labels = self._read()
            except sqlite3.Error as error:
                raise StorageError(f"{path} cannot be used as a file of reviews: {error}.") from error
            opened.pop_all()

    def _prepare(self) -> None:
        version = self._file.execute("PRAGMA user_version").fetchone()[0]
        tables = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version != FORMAT and (version or tables):
            raise StorageError(f"{self.path} is a database, but not one of reviews: give another file.")
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = FULL")  # a commit of WAL is else not yet on disk
        if not tables:
            self._file.execute(TABLE)
            self._file.execute(f"PRAGMA user_version = {FORMAT}")

    def _read(self) -> dict[str, str]:
        labels: dict[str, str] = {}
        for bag, label in self._file.execute("SELECT bag_id, label FROM reviews ORDER BY number"):
            labels.pop(bag, None)
            if label is not None:
                labels[bag] = label
        for bag, label in labels.items():
            if bag not in self._ids or label not in self._classes:
                raise StorageError(
                    f"{self.path} calls bag '{bag}' '{label}', which these data and this model do not know: "
                    "give another file."
                )
        return labels

    def add(self, bag: str, label: str | None) -> None:
        """Write a reviewer's label of a bag; None takes it back."""
        if bag not in self._ids:
            raise DataError(f"There is no bag '{bag}' here.")
        if label is not None and label not in self._classes:
            raise DataError(f"'{label}' is not a class.{suggest(label, self._classes)}")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        with self._lock:
            try:
                self._file.execute(
                    "INSERT INTO reviews (bag_id, label, at) VALUES (?, ?, ?)", (bag, label, now)
                )
            except sqlite3.Error as error:
                raise StorageError(f"The review could not be written: {error}.") from error
            self._labels.pop(bag, None)
            if label is not None:
                self._labels[bag] = label

    def labels(self) -> dict[str, str]:
        """Return the label of each reviewed bag, the latest last."""
        with self._lock:
            return dict(self._labels)

    def close(self) -> None:
        """Close the file; what was added is in it already."""
        with self._lock:
            self._file.close()
