"""Reviews in an SQLite file: an append-only log in which the latest entry for a bag counts.

The file is the only state, so servers that share it see each other's reviews immediately.
"""

from __future__ import annotations

import contextlib
import datetime
import sqlite3
import threading
from collections.abc import Collection
from pathlib import Path

from mipl.errors import DataError, StorageError, suggest

FORMAT = 1  # the file's user_version
LATEST = """
SELECT bag_id, label FROM reviews
WHERE number IN (SELECT max(number) FROM reviews GROUP BY bag_id) AND label IS NOT NULL ORDER BY number
"""
TABLE = """
CREATE TABLE reviews (
    number INTEGER PRIMARY KEY,
    bag_id TEXT NOT NULL,
    label TEXT,          -- NULL: the previous label is removed
    at TEXT NOT NULL     -- UTC
)
"""


class Reviews:
    """The reviews of a set of bags; :meth:`add` returns once the review is on disk.

    Args:
        path: The SQLite file, created if missing.
        ids: Ids of the bags that can be reviewed.
        classes: Labels that can be given.
    """

    def __init__(self, path: Path, ids: Collection[str], classes: Collection[str]) -> None:
        self.path, self._ids, self._classes = path, frozenset(ids), tuple(classes)
        self._lock = threading.Lock()
        with contextlib.ExitStack() as opened:
            try:
                # isolation_level None: every statement is committed when it returns
                self._file = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
                opened.callback(self._file.close)
                self._prepare()
            except sqlite3.Error as error:
                raise StorageError(f"{path} cannot be used as the file of reviews: {error}.") from error
            self.labels()  # refuses a file with reviews of other bags
            opened.pop_all()

    def _prepare(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")  # of servers that start together, one creates the table
        version = self._file.execute("PRAGMA user_version").fetchone()[0]
        tables = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version != FORMAT and (version or tables):
            raise StorageError(
                f"{self.path} is a database, but not of reviews: give another file with --reviews."
            )
        if not tables:
            self._file.execute(TABLE)
            self._file.execute(f"PRAGMA user_version = {FORMAT}")
        self._file.execute("COMMIT")
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = FULL")  # otherwise a WAL commit is not yet on disk

    def add(self, bag: str, label: str | None) -> None:
        """Write a reviewer's label of a bag; None removes it."""
        if bag not in self._ids:
            raise DataError(f"There is no bag '{bag}' in the data.")
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

    def labels(self) -> dict[str, str]:
        """Return the current label of each reviewed bag, the latest last."""
        with self._lock:
            try:
                labels: dict[str, str] = dict(self._file.execute(LATEST).fetchall())
            except sqlite3.Error as error:
                raise StorageError(f"The reviews in {self.path} cannot be read: {error}.") from error
        for bag, label in labels.items():
            if bag not in self._ids or label not in self._classes:
                raise StorageError(
                    f"{self.path} labels bag '{bag}' as '{label}', but this data and model have no such "
                    "bag or class: give another --reviews file."
                )
        return labels

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()
