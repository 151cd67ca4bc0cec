"""The demo's page: what it says, that it needs nothing from outside, and how it is written."""

from __future__ import annotations

import dataclasses
import errno
import math
import os
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from mipl.errors import DataError, StorageError
from mipl.reports import html
from mipl.reports.html import BagView, ModelResult, demo_page
from mipl.reports.summary import findings, sigmoid_ceiling, summarise, tendency

HOSTILE = """</title><script src="//evil">alert('x')</script><img src=x onerror="y"> & $a_1"""
VOID = {"meta", "img", "br", "link", "input", "hr"}


class Page(HTMLParser):
    """A page read back: tags with attributes, text without styles, tables as rows of cells."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.words = ""
        self.raw = path.read_text(encoding="utf-8")
        self.feed(self.raw)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, f"</{tag}> closes nothing"

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.words += data
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += f"|{data}" if "span" in self.open else data

    def row(self, table: int, start: str) -> list[str]:
        """Return the cells of the table's row whose header starts so."""
        (cells,) = [row[1:] for row in self.tables[table] if row[0].replace("\xa0", " ").startswith(start)]
        return cells

    @property
    def text(self) -> str:
        return " ".join(self.words.split())


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def results(
    m: int = 80, k: int = 5, titles: Sequence[str] = ("Sigmoid", "Linear", "Calibrated")
) -> list[ModelResult]:
    """Return models of about the same accuracy: one that cannot reach 90% (for k > 2) and others that do."""
    rng = np.random.default_rng(7)
    labels = rng.integers(k, size=m)
    scores = rng.normal(size=(m, k)) * 1.4
    scores[np.arange(m), labels] += 3
    tables = [softmax(1 / (1 + np.exp(-scores))), softmax(3 * scores), softmax(scores)]
    return [
        ModelResult(f"model-{i}", title, f"note {i}", table, labels, 1.25 + i)
        for i, (title, table) in enumerate(zip(titles, tables, strict=False))
    ]


def bag(name: str = "17", shape: tuple[int, ...] = (6, 8, 8)) -> BagView:
    rng = np.random.default_rng(3)
    n = shape[0]
    attention = np.arange(1.0, n + 1)
    return BagView(
        bag_id=name,
        label="seven",
        candidates=("seven", "three"),
        predicted="seven",
        confidence=0.875,
        instances=rng.random(shape),
        attention=attention / attention.sum(),
        positives=np.arange(n) == n - 1,
    )


FACTS = {"Data set": "digit bags", "Seed": "0", "Command": "mipl demo --out demo"}


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    path = tmp_path_factory.mktemp("demo") / "index.html"
    demo_page(results(), [bag(), bag("18", (4, 20))], FACTS, path)
    return Page(path)


def make(tmp_path: Path, *args: object) -> Page:
    demo_page(*args, tmp_path / "page.html")  # type: ignore[arg-type]
    return Page(tmp_path / "page.html")


class TestSelfContained:
    def test_refers_to_nothing_outside(self, page):
        for tag, attributes in page.tags:
            assert tag not in {"script", "link", "iframe", "object", "embed", "base", "foreignobject"}
            for name, value in attributes.items():
                assert not name.startswith("on")
                if name in {"src", "href", "xlink:href", "srcset", "action", "poster", "data"}:
                    assert (value or "").startswith(("#", "data:image/png;base64,")), (tag, name, value)
                elif not name.startswith("xmlns"):
                    assert "//" not in (value or ""), (tag, name, value)
        assert "@import" not in page.raw
        assert page.raw.count("url(") == page.raw.count("url(#")
        assert "://" not in page.raw.replace("http://www.w3.org/", "")

    def test_is_well_formed_and_no_id_occurs_twice(self, page):
        assert page.open == []
        ids = [a["id"] for _, a in page.tags if "id" in a]
        assert len(ids) > 100
        assert len(ids) == len(set(ids))

    def test_speaks_to_those_who_do_not_see_it(self, page):
        drawings = [a for tag, a in page.tags if tag == "svg"]
        assert len(drawings) == 3 + 3 + 1 + 2
        assert all(a["role"] == "img" and len(a["aria-label"] or "") > 20 for a in drawings)
        assert [a["lang"] for tag, a in page.tags if tag == "html"] == ["en"]
        assert all(a.get("scope") in {"col", "row"} for tag, a in page.tags if tag == "th")
        figures = [tag for tag, _ in page.tags if tag in {"figure", "figcaption"}]
        assert figures.count("figure") == figures.count("figcaption") == len(drawings)
        assert any(a.get("name") == "viewport" for tag, a in page.tags if tag == "meta")


class TestNumbers:
    def test_measures_are_those_of_the_arrays(self, page):
        for column, result in enumerate(results()):
            p, y, m = result.probabilities.tolist(), result.labels.tolist(), len(result.labels)
            top = [max(row) for row in p]
            right = [row.index(max(row)) == label for row, label in zip(p, y, strict=True)]
            bins: dict[int, list[int]] = {}
            for i, confidence in enumerate(top):
                bins.setdefault(math.ceil(confidence * 15), []).append(i)
            ece = sum(abs(sum(right[i] - top[i] for i in rows)) for rows in bins.values()) / m
            brier = (
                sum(sum((q - (j == t)) ** 2 for j, q in enumerate(row)) for row, t in zip(p, y, strict=True))
                / m
            )
            nll = -sum(math.log(row[t]) for row, t in zip(p, y, strict=True)) / m
            sure = [r for r, confidence in zip(right, top, strict=True) if confidence >= 0.9]
            expected = {
                "Accuracy": f"{sum(right) / m:.1%}",
                "ECE": f"{ece:.1%}",
                "Brier": f"{brier:.3f}",
                "NLL": f"{nll:.3f}",
                "Mean confidence": f"{sum(top) / m:.1%}",
                "Reported at ≥ 90%": f"{len(sure)} of {m}",
                "Of which correct": f"{sum(sure) / len(sure):.1%}" if sure else "–",
                "Training time": f"{result.seconds:.1f}",
            }
            assert {name: page.row(0, name)[column] for name in expected} == expected
        assert page.row(0, "Of which correct")[0] == "–"  # or the case above was never met
        assert page.row(0, "Of which correct")[1] != "–"

    def test_thresholds_report_what_is_sure_enough(self, page):
        for threshold in (0.5, 0.7, 0.8, 0.9, 0.95):
            for column, result in enumerate(results()):
                chosen = result.probabilities.max(axis=1) >= threshold
                right = (result.probabilities.argmax(axis=1) == result.labels)[chosen]
                share = right.mean() if chosen.any() else None
                expected = "–" if share is None else f"{share:.1%}{' below' if share < threshold else ''}"
                assert page.row(1, f"{threshold:.0%}")[column] == f"{chosen.sum()}|{expected}"

    def test_too_little_is_less_than_was_asked_for(self):
        table, labels = np.tile([0.97, 0.03], (15, 1)), np.arange(15) // 14  # 14 of 15 are right: 93.3%
        lines = html._triage([summarise("M", table, labels, 1.0)])
        assert {line["threshold"]: line["cells"][0]["short"] for line in lines} == {
            "50%": False,
            "70%": False,
            "80%": False,
            "90%": False,
            "95%": True,
        }

    def test_best_of_a_row_is_marked(self, page):
        best = [tag for tag, a in page.tags if tag == "td" and a.get("class") == "best"]
        rows = [
            [float(cell.strip("%")) for cell in page.row(0, name)]
            for name in ("Accuracy", "ECE", "Brier", "NLL")
        ]
        rows[0] = [-value for value in rows[0]]
        assert len(best) == sum(row.count(min(row)) for row in rows)

    def test_says_the_limit_of_a_sigmoid_head(self, page):
        assert sigmoid_ceiling(5) == pytest.approx(0.4046, abs=1e-4)
        assert "40.5% with k = 5 classes" in page.text.replace("\xa0", " ")
        # the model with a sigmoid head keeps to it
        assert results()[0].probabilities.max() < sigmoid_ceiling(5) < results()[1].probabilities.max()

    def test_shows_bags_and_facts(self, page):
        for words in ("Bag 17", "seven with 87.5% confidence, ✓ correct", "note 2", *FACTS, *FACTS.values()):
            assert words in page.text
        assert sum(tag == "image" for tag, _ in page.tags) == 6  # the second bag holds vectors


class TestSentences:
    """Words follow the numbers: other numbers, other words."""

    @staticmethod
    def summary(confidence: Sequence[float], right: Sequence[bool], title: str = "M"):
        c = np.array(confidence)[:, None]
        return summarise(title, np.hstack([c, 1 - c]), np.where(right, 0, 1), 1.0)

    def test_tendency_has_a_direction(self):
        assert "under-confident by 40.0 points" in tendency(self.summary([0.6, 0.6], [True, True]))
        assert "over-confident by 30.0 points" in tendency(self.summary([0.8, 0.8], [True, False]))
        assert "within one point" in tendency(self.summary([0.505, 0.505], [True, False]))

    def test_reporting_at_the_threshold(self):
        (none,) = findings([self.summary([0.6, 0.8], [True, True])])
        assert "M never reaches 90% confidence; its highest is 80.0%" in none
        assert "leaves all 2 bags to a person" in none
        (some,) = findings([self.summary([0.95, 0.9, 0.6, 0.7], [True, False, True, True])])
        assert "reports 2 of 4 bags" in some
        assert "50.0% of them are correct, with a mean confidence of 92.5%; the other 2 go" in some
        assert "the other one goes" in findings([self.summary([0.95, 0.6], [True, True])])[0]
        assert "none is left" in findings([self.summary([0.95, 0.9], [True, True])])[0]

    def test_comparison_needs_a_difference(self):
        calibrated = self.summary([0.75] * 4, [True, True, True, False], "A")
        timid = self.summary([0.55] * 4, [True, True, True, False], "B")
        worse = self.summary([0.5000001] * 4, [True, False, True, False], "C")
        assert "more in calibration than in accuracy" in findings([calibrated, timid])[0]
        assert "more in accuracy than in calibration" in findings([calibrated, worse])[0]
        assert findings([calibrated, calibrated])[0].endswith("(0.0 points).")
        assert len(findings([calibrated])) == 1


class TestUnusual:
    def test_hostile_names_are_only_text(self, tmp_path):
        result = dataclasses.replace(results(12)[2], title=HOSTILE, note=HOSTILE)
        view = dataclasses.replace(
            bag(HOSTILE), label=HOSTILE, predicted=HOSTILE, candidates=(HOSTILE, "b"), model=HOSTILE
        )
        page = make(tmp_path, [result], [view], {HOSTILE: HOSTILE})
        assert not {"script", "img"} & {tag for tag, _ in page.tags}
        # Findings 1, tables 2, figures 2, note 1, legend 1, facts 2, bag 5.
        assert page.text.count(HOSTILE) == 14
        assert any(HOSTILE in (a.get("aria-label") or "") for _, a in page.tags)

    def test_two_classes_three_bags_and_vectors(self, tmp_path):
        labels = np.array([0, 1, 1])
        half, one = np.full((3, 2), 0.5), np.array([[1.0, 0], [1, 0], [1, 0]], dtype=np.float32)
        few = [ModelResult("h", "Half", "", half, labels, 0.0), ModelResult("o", "One", "", one, labels, 0.0)]
        page = make(tmp_path, few, [dataclasses.replace(bag(shape=(1, 3)), positives=None)], {})
        assert page.row(0, "Accuracy") == ["33.3%", "33.3%"]
        assert page.row(0, "Reported") == ["0 of 3", "3 of 3"]
        assert "73.1% with k = 2 classes" in page.text.replace("\xa0", " ")
        assert "thick frame" not in page.text  # nothing is known to be framed
        assert "Provenance" not in page.text

    def test_no_bags_no_section(self, tmp_path, page):
        alone = make(tmp_path, results(12)[2:], [], FACTS)
        assert "Figure 4. Attention" in page.text
        assert "Where the model looks" not in alone.text
        assert "bold" not in alone.text  # one model is not the best of several

    def test_a_wrong_prediction_is_called_wrong(self, tmp_path):
        wrong = dataclasses.replace(bag(shape=(2, 3)), predicted="three")
        page = make(tmp_path, results(12)[2:], [wrong], {})
        assert "three with 87.5% confidence, ✗ wrong" in page.text
        assert "✓" not in page.text


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "match"),
        [
            (lambda r: [], "no result"),
            (lambda r: [r[0], dataclasses.replace(r[1], labels=(r[1].labels + 1) % 5)], "same test bags"),
            (
                lambda r: [r[0], dataclasses.replace(r[1], probabilities=-r[1].probabilities)],
                "'model-1': Probab",
            ),
            (lambda r: [r[0], dataclasses.replace(r[1], title=r[0].title)], "same title"),
        ],
    )
    def test_results_that_cannot_be_compared(self, tmp_path, change, match):
        with pytest.raises(DataError, match=match):
            demo_page(change(results(12)), [], {}, tmp_path / "page.html")
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        "wrong",
        [{"instances": np.zeros((5, 8, 8))}, {"instances": np.zeros(6)}, {"attention": np.full(6, np.nan)}],
    )
    def test_bags_that_do_not_fit_together(self, tmp_path, wrong):
        with pytest.raises(DataError, match="Bag '17'"):
            demo_page(results(12)[2:], [dataclasses.replace(bag(), **wrong)], {}, tmp_path / "page.html")


def test_same_inputs_same_bytes(tmp_path):
    for name in ("a", "b"):
        demo_page(results(12)[2:], [bag(shape=(3, 8, 8))], FACTS, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


class TestWriting:
    ANY = ((), (), {})

    @pytest.fixture(autouse=True)
    def _quick(self, monkeypatch):
        monkeypatch.setattr(html, "_render", lambda *_: "new \ud800 page")  # a lone surrogate has no UTF-8

    def test_makes_the_folder_and_replaces_an_old_page(self, tmp_path):
        path = tmp_path / "new" / "folder" / "page.html"
        demo_page(*self.ANY, path)
        path.write_text("old", encoding="utf-8")
        demo_page(*self.ANY, path)
        assert path.read_text(encoding="utf-8") == "new ? page"
        assert list(path.parent.iterdir()) == [path]

    @pytest.mark.parametrize("step", ["fsync", "replace"])
    def test_a_full_disk_leaves_the_old_page(self, tmp_path, monkeypatch, step):
        path = tmp_path / "page.html"
        path.write_text("old", encoding="utf-8")

        def full(*args: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, step, full)
        with pytest.raises(StorageError, match=r"page\.html cannot be written: No space left on device\."):
            demo_page(*self.ANY, path)
        assert path.read_text(encoding="utf-8") == "old"
        assert list(tmp_path.iterdir()) == [path]

    def test_a_file_is_no_folder(self, tmp_path):
        (tmp_path / "file").write_text("mine", encoding="utf-8")
        with pytest.raises(StorageError, match=r"page\.html cannot be written"):
            demo_page(*self.ANY, tmp_path / "file" / "page.html")
        assert (tmp_path / "file").read_text(encoding="utf-8") == "mine"

    def test_a_folder_is_no_file(self, tmp_path):
        (tmp_path / "page.html").mkdir()
        with pytest.raises(StorageError, match=r"page\.html cannot be written"):
            demo_page(*self.ANY, tmp_path / "page.html")
        assert len(list(tmp_path.iterdir())) == 1

    def test_anyone_who_may_read_new_files_may_read_the_page(self, tmp_path):
        (tmp_path / "other").touch()
        demo_page(*self.ANY, tmp_path / "page.html")
        assert (tmp_path / "page.html").stat().st_mode == (tmp_path / "other").stat().st_mode
