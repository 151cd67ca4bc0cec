"""What reviewers said, in an SQLite file: a log that only grows, in which the last word on a bag counts.

The file is the only state: servers that share it see each other's reviews at once.
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
LAST = """
SELECT bag_id, label FROM reviews
WHERE number IN (SELECT max(number) FROM reviews GROUP BY bag_id) AND label IS NOT NULL ORDER BY number
"""
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
            except sqlite3.Error as error:
                raise StorageError(f"{path} cannot be used as a file of reviews: {error}.") from error
            self.labels()  # refuse reviews of other bags before serving
            opened.pop_all()

    def _prepare(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")  # of servers that start at once, one makes the table
        version = self._file.execute("PRAGMA user_version").fetchone()[0]
        tables = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version != FORMAT and (version or tables):
            raise StorageError(f"{self.path} is a database, but not one of reviews: give another file.")
        if not tables:
            self._file.execute(TABLE)
            self._file.execute(f"PRAGMA user_version = {FORMAT}")
        self._file.execute("COMMIT")
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = FULL")  # a commit of WAL is else not yet on disk

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

    def labels(self) -> dict[str, str]:
        """Return the label of each reviewed bag as the file has it now, the latest last."""
        with self._lock:
            try:
                labels: dict[str, str] = dict(self._file.execute(LAST).fetchall())
            except sqlite3.Error as error:
                raise StorageError(f"The reviews in {self.path} cannot be read: {error}.") from error
        for bag, label in labels.items():
            if bag not in self._ids or label not in self._classes:
                raise StorageError(
                    f"{self.path} calls bag '{bag}' '{label}', which these data and this model do not know: "
                    "give another file."
                )
        return labels

    def close(self) -> None:
        """Close the file; what was added is in it already."""
        with self._lock:
            self._file.close()
