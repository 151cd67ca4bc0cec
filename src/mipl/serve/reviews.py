"""Reviews in an SQLite file: an append-only log in which a reviewer's latest entry for a bag counts.

The file is the only state, so servers that share it see each other's reviews immediately.
"""

from __future__ import annotations

import contextlib
import csv
import datetime
import io
import json
import sqlite3
import threading
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from mipl.errors import DataError, SettingError, StorageError, counted, suggest
from mipl.seeding import rng_for

FORMAT = 2  # the file's user_version; format 1 has no reviewers, comments and audits
MAX_NAME, MAX_COMMENT = 100, 500  # characters
LATEST = """
SELECT bag_id, label, reviewer, at, comment FROM reviews
WHERE number IN (SELECT max(number) FROM reviews GROUP BY bag_id, reviewer) AND label IS NOT NULL
ORDER BY number
"""
TABLE = """
CREATE TABLE reviews (
    number INTEGER PRIMARY KEY,
    bag_id TEXT NOT NULL,
    label TEXT,          -- NULL: the previous label is removed
    at TEXT NOT NULL,    -- UTC
    reviewer TEXT NOT NULL DEFAULT '',
    comment TEXT NOT NULL DEFAULT ''
)
"""
AUDIT = "CREATE TABLE audit (bags TEXT NOT NULL)"  # one row: the ids in the order in which they were drawn
COLUMNS = ("bag_id", "label", "reviewer", "time", "comment", "selected")


class Review(NamedTuple):
    """The label that a reviewer gave a bag."""

    bag: str
    label: str
    reviewer: str
    time: str  # UTC, ISO 8601
    comment: str


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
            self.latest()  # refuses a file with reviews of other bags
            opened.pop_all()

    def _prepare(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")  # of servers that start together, one creates the table
        version = self._file.execute("PRAGMA user_version").fetchone()[0]
        tables = self._file.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if version not in (1, FORMAT) and (version or tables):
            raise StorageError(
                f"{self.path} is a database, but not of reviews: give another file with --reviews."
            )
        if not tables:
            self._file.execute(TABLE)
        elif version == 1:
            for column in ("reviewer", "comment"):
                self._file.execute(f"ALTER TABLE reviews ADD COLUMN {column} TEXT NOT NULL DEFAULT ''")
        if version != FORMAT:
            self._file.execute(AUDIT)
            self._file.execute(f"PRAGMA user_version = {FORMAT}")
        self._file.execute("COMMIT")
        self._file.execute("PRAGMA journal_mode = WAL")
        self._file.execute("PRAGMA synchronous = FULL")  # otherwise a WAL commit is not yet on disk

    def add(self, bag: str, label: str | None, reviewer: str = "", comment: str = "") -> None:
        """Write a reviewer's label of a bag; None removes it."""
        if bag not in self._ids:
            raise DataError(f"There is no bag '{bag}' in the data.")
        if label is not None and label not in self._classes:
            raise DataError(f"'{label}' is not a class.{suggest(label, self._classes)}")
        for what, text, most in (("reviewer's name", reviewer, MAX_NAME), ("comment", comment, MAX_COMMENT)):
            if len(text) > most or any("\ud800" <= letter <= "\udfff" for letter in text):
                raise DataError(f"The {what} is not text of at most {most:,} characters: shorten it.")
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        row = (bag, label, now, " ".join(reviewer.split()), comment.strip())
        with self._lock:
            try:
                self._file.execute(
                    "INSERT INTO reviews (bag_id, label, at, reviewer, comment) VALUES (?, ?, ?, ?, ?)", row
                )
            except sqlite3.Error as error:
                raise StorageError(f"The review could not be written: {error}.") from error

    def latest(self) -> list[Review]:
        """Return the current label of each reviewed bag by each of its reviewers, the latest last."""
        found = [Review(*row) for row in self._rows(LATEST)]
        for review in found:
            if review.bag not in self._ids or review.label not in self._classes:
                raise StorageError(
                    f"{self.path} labels bag '{review.bag}' as '{review.label}', but this data and model "
                    "have no such bag or class: give another --reviews file."
                )
        return found

    # ---- the random sample -------------------------------------------------------------------------

    def start_audit(self, size: int, groups: Sequence[str] | None = None) -> None:
        """Draw the bags that are reviewed first, at random, once for this file.

        Their number is fixed before the first review: choosing it after looking at labels would bias what is
        measured on them. A server that is started again continues the same audit.

        Args:
            size: number of bags.
            groups: of the bags in the order of the sorted ids, for example the patient; one bag per group is
                drawn. None: any bags.
        """
        drawn = self.audit()
        if drawn:
            if len(drawn) != size:
                raise SettingError(
                    f"{self.path} has an audit of {counted(len(drawn), 'bag')}, whose size is fixed: give "
                    f"--audit {len(drawn)}, or another --reviews file."
                )
            return
        if self._rows("SELECT number FROM reviews LIMIT 1"):
            raise SettingError(
                f"{self.path} has reviews already, and an audit is drawn before the first: give another "
                "--reviews file."
            )
        ids = sorted(self._ids)
        order = rng_for("audit", size).permutation(len(ids)).tolist()
        if groups is not None:  # the first bag of each group in random order
            first = {groups[i]: i for i in reversed(order)}
            order = [i for i in order if first[groups[i]] == i]
        if size > len(order):
            raise SettingError(f"--audit {size} is more than there are: {counted(len(order), 'bag')}.")
        with self._lock:
            try:
                text = json.dumps([ids[i] for i in order[:size]])
                self._file.execute(  # of servers that start together, one draws
                    "INSERT INTO audit (bags) SELECT ? WHERE NOT EXISTS (SELECT * FROM audit)", (text,)
                )
            except sqlite3.Error as error:
                raise StorageError(f"The audit could not be written: {error}.") from error

    def audit(self) -> list[str]:
        """Return the bags of the audit in the order in which they were drawn; none without an audit."""
        rows = self._rows("SELECT bags FROM audit")
        return list(json.loads(rows[0][0])) if rows else []

    # ---- export ------------------------------------------------------------------------------------

    def table(self) -> str:
        """Return the reviews as CSV: one row per bag and reviewer, with how the bag was selected."""
        found, drawn = self.latest(), set(self.audit())
        if not found:
            raise DataError("No bag has been reviewed yet: there is nothing to export.")
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(COLUMNS)
        for review in sorted(found, key=lambda each: (each.bag, each.reviewer)):
            selected = "random" if review.bag in drawn else "chosen"
            writer.writerow([*review[:4], " ".join(review.comment.split()), selected])
        return text.getvalue()

    def _rows(self, query: str) -> list[tuple[str, ...]]:
        with self._lock:
            try:
                return self._file.execute(query).fetchall()
            except sqlite3.Error as error:
                raise StorageError(f"The reviews in {self.path} cannot be read: {error}.") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._file.close()
