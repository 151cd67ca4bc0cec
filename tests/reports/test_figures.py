"""What the figures draw, read back from their Axes."""

from __future__ import annotations

import ast
import math
import re
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.container import BarContainer
from matplotlib.figure import Figure

from mipl import metrics, reports
from mipl.errors import DataError
from mipl.reports import figures

# One right sample in the bin (0.2, 0.4]; one of three right in (0.6, 0.8]; six of seven in (0.8, 1].
CONFIDENCE = np.array([0.7, 0.7, 0.7, 0.35, 0.9, 0.9, 0.9, 0.9, 0.95, 0.95, 0.95])
RIGHT = np.array([1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0], dtype=bool)


def table(confidence: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities of four classes, where class 0 is always predicted, and labels."""
    rest = (1 - confidence[:, None]) / 3
    return np.hstack([confidence[:, None], np.repeat(rest, 3, axis=1)]), np.where(right, 0, 1)


@pytest.fixture
def curve() -> metrics.ReliabilityCurve:
    return metrics.reliability_curve(*table(CONFIDENCE, RIGHT), bins=5)


@pytest.fixture
def ax() -> Axes:
    return Figure(figsize=(3.4, 4), layout="constrained").add_subplot()


def bars(ax: Axes, label: str) -> list:
    (container,) = [c for c in ax.containers if isinstance(c, BarContainer) and c.get_label() == label]
    return list(container)


def luminance(colour: object) -> float:
    return float(np.dot(to_rgb(colour), [0.2126, 0.7152, 0.0722]))


class TestReliabilityDiagram:
    def test_bars_are_the_accuracies_of_the_bins_that_hold_samples(self, ax, curve):
        figures.reliability_diagram(ax, curve)
        drawn = [(b.get_x(), b.get_width(), b.get_height()) for b in bars(ax, "accuracy")]
        assert drawn == [pytest.approx(t) for t in [(0.2, 0.2, 1), (0.6, 0.2, 1 / 3), (0.8, 0.2, 6 / 7)]]

    def test_gaps_reach_from_accuracy_to_confidence(self, ax, curve):
        figures.reliability_diagram(ax, curve)
        gaps = bars(ax, "gap")
        assert all(gap.get_hatch() and gap.get_facecolor()[3] == 0 for gap in gaps)
        spans = [(g.get_x(), g.get_y(), g.get_y() + g.get_height()) for g in gaps]
        last = CONFIDENCE[4:].mean()
        expected = [(0.2, 0.35, 1), (0.6, 1 / 3, 0.7), (0.8, 6 / 7, last)]
        assert spans == [pytest.approx(t) for t in expected]

    def test_colour_is_darker_the_more_samples(self, ax, curve):
        figures.reliability_diagram(ax, curve)
        one, three, seven = (luminance(b.get_facecolor()) for b in bars(ax, "accuracy"))
        assert one > three > seven

    def test_one_scale_for_several_diagrams(self, ax, curve):
        other = Figure().add_subplot()
        figures.reliability_diagram(ax, curve)
        figures.reliability_diagram(other, curve, most=100)
        for alone, shared in zip(bars(ax, "accuracy"), bars(other, "accuracy"), strict=True):
            assert luminance(alone.get_facecolor()) < luminance(shared.get_facecolor())

    def test_prints_accuracy_and_ece(self, ax, curve):
        figures.reliability_diagram(ax, curve)
        p, y = table(CONFIDENCE, RIGHT)
        ece = metrics.expected_calibration_error(p, y, bins=5)
        assert ax.get_title(loc="left") == f"ACC {8 / 11:.1%} · ECE {ece:.1%}"

    def test_a_colour_bar_says_what_the_colour_means(self, ax, curve):
        figures.reliability_diagram(ax, curve)
        _, colours = ax.figure.axes
        assert colours.get_xlabel() == "samples in the bin"
        assert colours.get_xlim() == (0, 7)

    def test_a_cap_marks_each_accuracy(self, ax, curve):
        figures.reliability_diagram(ax, curve)
        (caps,) = ax.collections
        assert [segment[0, 1] for segment in caps.get_segments()] == pytest.approx([1, 1 / 3, 6 / 7])


class TestConfidenceHistogram:
    def test_right_below_wrong(self, ax, curve):
        figures.confidence_histogram(ax, curve)
        assert [b.get_height() for b in bars(ax, "right")] == [1, 1, 6]
        assert [(b.get_x(), b.get_y(), b.get_height()) for b in bars(ax, "wrong")] == [
            pytest.approx((0.6, 1, 2)),
            pytest.approx((0.8, 6, 1)),
        ]

    def test_lines_mark_mean_confidence_accuracy_and_ceiling(self, ax, curve):
        figures.confidence_histogram(ax, curve, ceiling=0.405)
        assert sorted(line.get_xdata()[0] for line in ax.lines) == pytest.approx(
            sorted([CONFIDENCE.mean(), 8 / 11, 0.405])
        )
        assert "sigmoid limit 40.5%" in [t.get_text() for t in ax.get_legend().get_texts()]

    def test_no_ceiling_no_line(self, ax, curve):
        figures.confidence_histogram(ax, curve)
        assert len(ax.lines) == 2

    def test_one_scale_for_several_histograms(self, ax, curve):
        figures.confidence_histogram(ax, curve, most=100)
        assert ax.get_ylim() == pytest.approx((0, 105))


class TestCoverageCurve:
    def test_line_is_the_accuracy_of_the_surest(self, ax):
        p, y = table(np.linspace(0.4, 0.99, 60), np.arange(60) % 3 > 0)
        figures.coverage_curve(ax, {"model": metrics.accuracy_at_coverage(p, y)})
        right = (p.argmax(axis=1) == y)[np.argsort(-p.max(axis=1))]
        line = ax.lines[0]
        sizes = range(3, 61)  # 5% of 60 and more
        assert line.get_xdata() == pytest.approx([n / 60 for n in sizes])
        assert line.get_ydata() == pytest.approx([right[:n].mean() for n in sizes])

    def test_a_ring_ends_what_is_sure_enough(self, ax):
        sure, unsure = table(CONFIDENCE, RIGHT), table(CONFIDENCE / 2 + 0.2, RIGHT)
        curves = {name: metrics.accuracy_at_coverage(*t) for name, t in [("sure", sure), ("unsure", unsure)]}
        figures.coverage_curve(ax, curves, at=0.9)
        (ring,) = [line for line in ax.lines if line.get_linestyle() == "None"]
        assert (ring.get_xdata()[0], ring.get_ydata()[0]) == pytest.approx((7 / 11, 6 / 7))
        assert ring.get_color() == ax.lines[0].get_color()

    def test_equal_confidences_are_one_visible_point(self, ax):
        curve = metrics.accuracy_at_coverage(*table(np.full(3, 0.5), np.array([True, False, True])))
        figures.coverage_curve(ax, {"model": curve})
        assert ax.lines[0].get_marker() not in (None, "None")
        assert ax.get_ylim()[0] < 2 / 3

    def test_every_model_has_its_own_colour_and_dashes(self, ax):
        curve = metrics.accuracy_at_coverage(*table(CONFIDENCE / 2 + 0.2, RIGHT))
        figures.coverage_curve(ax, dict.fromkeys("abcde", curve))
        looks = {(line.get_color(), str(line._dash_pattern)) for line in ax.lines}
        assert len(looks) == 5
        assert len({colour for colour, _ in looks}) == 5

    def test_names_mean_themselves(self, ax):
        curve = metrics.accuracy_at_coverage(*table(CONFIDENCE, RIGHT))
        figures.coverage_curve(ax, {"_hidden": curve, r"$\frac{$": curve})
        assert [t.get_text() for t in ax.get_legend().get_texts()][:2] == ["_hidden", r"$\frac{$"]
        assert r"$\frac{$" in figures.svg(ax.figure, "x", "")


class TestAttentionStrip:
    ATTENTION = np.array([0.1, 0.6, 0.0, 0.3])
    POSITIVES = np.array([False, True, False, True])
    IMAGES = np.arange(4)[:, None, None] * np.full((4, 8, 8), 0.25)

    @staticmethod
    def patches(figure: Figure, label: str) -> list:
        return [patch for patch in figure.axes[0].patches if patch.get_label() == label]

    def test_bars_fall_with_the_attention(self):
        figure = figures.attention_strip(self.ATTENTION, self.POSITIVES, self.IMAGES)
        heights = np.array([bar.get_height() for bar in self.patches(figure, "share")])
        assert heights / heights[0] == pytest.approx([1, 0.5, 1 / 6, 0])
        assert (np.diff([bar.get_x() for bar in self.patches(figure, "share")]) > 0).all()

    def test_images_and_frames_go_with_their_instance(self):
        figure = figures.attention_strip(self.ATTENTION, self.POSITIVES, self.IMAGES)
        assert [float(image.get_array()[0, 0]) for image in figure.axes[0].images] == [0.25, 0.75, 0.0, 0.5]
        marked = [f.get_edgecolor() == to_rgba(figures.VERMILLION) for f in self.patches(figure, "frame")]
        assert marked == [True, True, False, False]
        thick = [f.get_linewidth() for f in self.patches(figure, "frame")]
        assert min(thick[:2]) > max(thick[2:])  # also without colour
        said = [t.get_text() for t in figure.axes[0].texts]
        assert said == ["60%", "#2", "30%", "#4", "10%", "#1", "0%", "#3"]

    def test_vectors_have_framed_bars_and_no_images(self):
        figure = figures.attention_strip(self.ATTENTION, self.POSITIVES)
        assert not figure.axes[0].images
        assert not self.patches(figure, "frame")
        marked = [b.get_edgecolor() == to_rgba(figures.VERMILLION) for b in self.patches(figure, "share")]
        assert marked == [True, True, False, False]

    def test_scores_need_not_sum_to_one(self):
        texts = [t.get_text() for t in figures.attention_strip([3, 1]).axes[0].texts]
        assert texts[::2] == ["75%", "25%"]
        texts = [t.get_text() for t in figures.attention_strip([0, 0]).axes[0].texts]
        assert texts[::2] == ["50%", "50%"]

    def test_long_bags_wrap_and_say_what_is_left_out(self):
        attention = np.full(30, 0.05) / 10
        attention[:20] = 0.95 / 20
        figure = figures.attention_strip(attention, np.arange(30) >= 28, columns=8, most=20)
        shares = self.patches(figure, "share")
        assert len(shares) == 20
        assert len({round(bar.get_y(), 6) for bar in shares}) == math.ceil(20 / 8)
        assert max(bar.get_x() + bar.get_width() for bar in shares) <= 8
        said = figure.axes[0].texts[-1].get_text()
        assert said == "not drawn: 10 more (2 of the true class), together 5.0%"

    @pytest.mark.parametrize("attention", [[], [0.5, -0.1], [0.5, np.nan], [[0.5], [0.5]]])
    def test_refuses_what_is_no_attention(self, attention):
        with pytest.raises(DataError, match="Attention is"):
            figures.attention_strip(attention)

    def test_refuses_marks_or_images_of_another_bag(self):
        with pytest.raises(DataError, match="4 attention scores"):
            figures.attention_strip(self.ATTENTION, self.POSITIVES[:3])
        with pytest.raises(DataError, match="3 images"):
            figures.attention_strip(self.ATTENTION, None, self.IMAGES[:3])


class TestSvg:
    def draw(self, curve: metrics.ReliabilityCurve, prefix: str = "a", description: str = "d") -> str:
        with figures.style():
            figure = Figure(figsize=(3, 3), layout="constrained")
            figures.confidence_histogram(figure.add_subplot(), curve)
            return figures.svg(figure, prefix, description)

    def test_same_bytes_whatever_the_user_has_set(self, curve):
        before = self.draw(curve)
        with matplotlib.rc_context({"font.size": 30, "svg.hashsalt": None, "svg.fonttype": "path"}):
            assert self.draw(curve) == before
            assert matplotlib.rcParams["font.size"] == 30

    def test_ids_and_their_uses_carry_the_prefix(self, curve):
        text = self.draw(curve, "left")
        ids = re.findall(r' id="([^"]+)"', text)
        used = re.findall(r'(?:href="#|url\(#)([^")]+)', text)
        assert used
        assert set(used) <= set(ids)
        assert all(name.startswith("left-") for name in ids)
        assert not set(ids) & set(re.findall(r' id="([^"]+)"', self.draw(curve, "right")))

    def test_is_one_element_with_a_description_and_real_text(self, curve):
        text = self.draw(curve, description='<b> & "x"')
        assert text.startswith('<svg role="img" aria-label="&lt;b&gt; &amp; &quot;x&quot;"')
        assert text.endswith("</svg>")
        assert ">mean confidence</text>" in text
        assert "<metadata" not in text


def test_reports_know_no_model_and_no_global_figure():
    for path in Path(reports.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            for name in names:
                assert not name.startswith(("torch", "matplotlib.pyplot")), path
