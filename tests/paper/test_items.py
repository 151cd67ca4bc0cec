"""The paper's tables and figures from made-up records: every item draws, with and without runs."""

import csv
import json

import numpy as np
import pytest
from made_up import record, records_of

from mipl.cli import main
from mipl.errors import DataError
from mipl.metrics.statistics import critical_difference
from mipl.paper.items import ITEMS
from mipl.paper.page import write_output, write_page
from mipl.paper.runs import RunIndex, RunQuery
from mipl.paper.training_figures import TIMED
from mipl.records.store import Store
from mipl.reports import figures
from mipl.reports.charts import Figure, bar_panels, critical_difference_diagram, line_panels


def draw(name, records, **options):
    with figures.style():
        return ITEMS[name].draw(ITEMS[name], name, RunIndex(records, **options))


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    """Every method of Table 2 on Birdsong-MIPL, r = 1, two splits."""
    root = tmp_path_factory.mktemp("birds")
    queries = [RunQuery("birdsong-mipl", 1, method) for method, _ in ITEMS["table2"].variants]
    return records_of(root, queries)


@pytest.mark.parametrize("name", ITEMS)
def test_every_item_is_drawn_from_no_record_at_all(name):
    output = draw(name, [])
    assert output.tables or output.figure is not None
    assert output.runs.used == {}
    if name not in ("figA8", "tableA3"):  # these show the paper's own
        assert output.runs.missing
    if name in ("figA1", "figA2", "figA7"):  # too many to be made up below
        asked = {query for query in ITEMS[name].queries() if (query.dataset, query.r) in ITEMS[name].sets}
        assert set(output.runs.missing) == asked


@pytest.mark.parametrize(
    "name", ["fig2", "fig3", "fig5", "figA3", "figA4", "figA5", "figA9", "figA10", "tableA1"]
)
def test_every_item_uses_every_run_it_asks_for(name, tmp_path):
    item = ITEMS[name]
    stand_ins = {dataset for dataset, _ in item.stand_ins()}
    # what has a stand-in is not there, as for anyone who has not been given it
    queries = [
        query
        for query in item.queries()
        if not query.dataset.startswith("c-")
        and not (item.other_stand_ins and (query.dataset, query.r) in item.sets)
    ]
    assert {query.dataset for query in queries} >= stand_ins
    records = records_of(tmp_path, queries, splits=(1,))
    output = draw(name, records)
    assert set(output.runs.used) == {found.info["hash"] for found in records}
    if stand_ins:
        assert any("stand-in" in note for note in output.notes)
    if name == "figA6":
        assert output.notes[-1].startswith("Birdsong-MIPL stands in for SIVAL-MIPL")
    quick = item.queries(quick=True)
    assert all(query.dataset.startswith("digits-mipl") for query in quick)
    records = records_of(tmp_path / "quick", quick, splits=(1,))
    assert set(draw(name, records).runs.used) == {found.info["hash"] for found in records}


def test_a_cell_has_ours_the_gain_the_papers_and_the_difference(birds):
    output = draw("table2", birds)
    table = output.tables[0]
    assert table.header[3] == "Birdsong-MIPL†"
    cells = {row[0].text: row[3] for row in table.rows}
    by = {}
    for found in birds:
        by.setdefault(found.spec["method"], []).append(100 * found.metrics["accuracy"])
    mean = {method: np.mean(values) for method, values in by.items()}
    ours, gained = mean["dam-cn"], mean["dam-cn"] - mean["demipl"]
    text = f"{ours:.2f}±{np.std(by['dam-cn'], ddof=1):.2f} ({abs(gained):.2f}"
    assert cells["DAM-CN"].text.startswith(text)
    assert ("↑" in cells["DAM-CN"].text) == (gained > 0)
    assert cells["DAM-CN"].below == f"paper 80.38±2.11, Δ {ours - 80.38:+.2f}, n=2".replace("-", "−")
    best = {f"{max(mean.values()):.2f}"}
    assert {row[3].text[:5] for row in table.rows if row[3].bold} == best
    assert table.rows[0][1].text == "–"  # MIPLGP on MNIST-MIPL has no run
    assert "94.87±1.55" in table.rows[0][1].below


def test_a_gain_is_over_the_splits_that_both_methods_have(tmp_path):
    ours, base = RunQuery("birdsong-mipl", 1, "dam-cn"), RunQuery("birdsong-mipl", 1, "demipl")
    for split in (1, 2, 3):
        record(tmp_path, "birdsong-mipl", 1, "dam-cn", split)
    assert RunIndex(Store(tmp_path)).gain(ours, base, "accuracy") is None
    for split in (2, 3, 4):
        record(tmp_path, "birdsong-mipl", 1, "demipl", split)
    found = {(r.spec["method"], r.spec["split"]): r.metrics for r in Store(tmp_path)}
    for metric, name, sign in (("accuracy", "accuracy", 1), ("ece", "expected_calibration_error", -1)):
        both = [found["dam-cn", split][name] - found["demipl", split][name] for split in (2, 3)]
        gained = RunIndex(Store(tmp_path)).gain(ours, base, metric)
        assert gained == pytest.approx(sign * 100 * np.mean(both))


def test_empty_cells_name_their_command_and_filled_ones_their_records(birds):
    output = draw("table4", birds)
    for value in (value for table in output.tables for value in table.values):
        filled = (value["dataset"], value["r"]) == ("birdsong-mipl", 1)
        assert bool(value["records"]) == filled
        assert value["command"].startswith("mipl run") != filled
        assert value["data"] == ("rebuilt" if filled else "")
    assert len(output.runs.commands()) == 11


def test_stand_ins_have_a_table_of_their_own(tmp_path):
    record(tmp_path, "crc5-row", None, "sam-cn", 1)
    titles = [table.caption for table in draw("table3", list(Store(tmp_path))).tables]
    assert "stand-ins" in titles[0]  # nothing else has numbers
    output = draw("table3", list(Store(tmp_path)))
    assert [name for table in output.tables for name in table.header if "crc5" in name] == ["crc5-row‡"]
    assert all(not value["paper_mean"] for value in output.tables[0].values)


@pytest.mark.parametrize("name", ["table2", "table4", "tableA3", "figA8"])
def test_runs_on_data_sets_outside_the_paper_change_nothing(name, birds, tmp_path):
    queries = [RunQuery("sival6-mipl", 1, "sam-cn"), RunQuery("labelme", None, "sam-cn")]
    alone, together = draw(name, birds), draw(name, [*birds, *records_of(tmp_path, queries)])
    assert [table.values for table in together.tables] == [table.values for table in alone.tables]
    assert together.notes == alone.notes
    assert set(together.runs.used) == set(alone.runs.used)


def test_head_against_loss_parts_the_two(tmp_path):
    queries = ITEMS["head-vs-loss"].queries()
    records = records_of(tmp_path, queries, splits=(1,))
    (table,) = draw("head-vs-loss", records).tables
    row = next(row for row in table.rows if row[0].text == "SAM-CN")
    runs = RunIndex(records)
    sigmoid = runs.mean(RunQuery("birdsong-mipl", 1, "sam-cn", (("head", "sigmoid"),)), "ece").mean
    linear = runs.mean(RunQuery("birdsong-mipl", 1, "sam-cn"), "ece").mean
    assert row[6].text == f"{sigmoid - linear:+.2f}".replace("-", "−")
    assert "paper" in row[5].below
    assert "paper" not in row[4].below
    earlier = next(row for row in table.rows if row[0].text == "DEMIPL")
    assert "paper" in earlier[4].below  # the earlier methods were run with the other head


def test_the_statistics_are_ours_too_once_two_sets_are_whole(birds, tmp_path):
    assert any("too few" in note for note in draw("tableA3", birds).notes)
    more = [RunQuery("sival-mipl", 2, method) for method, _ in ITEMS["table2"].variants]
    output = draw("tableA3", [*birds, *records_of(tmp_path, more)])
    assert [row[0].text for row in output.tables[0].rows][2:] == [
        "Accuracy, our runs",
        "Expected calibration error, our runs",
    ]
    printed = output.tables[0].rows[0]
    assert (printed[1].text, printed[2].text, printed[2].bold) == ("116.6938", "28.6536", True)
    assert output.tables[0].rows[1][2].text == "50.3444"


def test_the_diagram_joins_exactly_what_is_not_told_apart():
    with figures.style():
        ax = Figure().add_subplot()
        critical_difference_diagram(ax, [1.0, 2.0, 3.5], ["a", "b", "c"], 1.6, [True, False, False])
    bars = [line.get_xdata() for line in ax.lines if line.get_label() == "group"]
    np.testing.assert_allclose(bars, [[0.94, 2.06], [1.94, 3.56]])
    assert critical_difference(3, 4) > 1.6


def test_bars_and_lines_stand_where_their_numbers_are():
    with figures.style():
        figure = bar_panels(
            [("t", "y", {"a": [(50.0, 2.0), None], "b": [(30.0, None), (90.0, 1.0)]})],
            [["g", "h"]], {"a": {"facecolor": "red"}, "b": {"facecolor": "blue"}}, columns=1,
        )  # fmt: skip
        (ax,) = figure.axes
        assert sorted(bar.get_height() for bar in ax.patches) == [30, 50, 90]
        assert ax.get_ylim()[1] > 91
        lines = {"a-cc": [(1.0, 0.5), None, (3.0, 0.5)]}
        figure = line_panels([("t", "y", lines)], (1, 2, 3), ("x",))
        assert figure.axes[0].lines[0].get_xydata().tolist() == [[1, 1], [3, 3]]


def test_features_are_drawn_where_they_are_kept(tmp_path):
    record(tmp_path, "mnist-mipl", 1, "sam-cn", 1, extras=True)
    record(tmp_path, "mnist-mipl", 1, "sam-cc", 1)
    output = draw("figA1", list(Store(tmp_path)))
    panels = [ax for ax in output.figure.axes if ax.lines]
    assert [ax.get_title() for ax in panels] == ["SAM-CN"]
    assert sum(len(line.get_xdata()) for line in panels[0].lines) == 40
    assert [row[6].text != "–" for row in output.tables[0].rows] == [True, False, False]
    assert "--with features --splits 1 --out" in output.runs.commands()[0]


def test_probabilities_are_parted_by_kind_of_label(tmp_path):
    record(tmp_path, "crc5-kmeans", None, "dam-cc", 1, extras=True)
    (found,) = Store(tmp_path)
    (table,) = draw("figA2", [found]).tables
    kinds = {"true": [], "false": [], "other": []}
    p, candidates, labels = (
        found.arrays[f"training_{name}"] for name in ("probabilities", "candidates", "labels")
    )
    for i, label in enumerate(labels):
        for j in range(p.shape[1]):
            kinds["true" if j == label else "false" if candidates[i, j] else "other"].append(p[i, j])
    row = next(row for row in table.rows if row[0].text == "DAM-CC")
    assert [cell.text for cell in row[1:4]] == [f"{np.mean(values):.3f}" for values in kinds.values()]
    false, true = (np.sum(kinds[kind], dtype=np.float64) for kind in ("false", "true"))
    assert float(row[4].text) == pytest.approx(false / (false + true), abs=1e-3)


def test_run_time_is_that_of_an_epoch_and_grows_on_a_line(tmp_path):
    for share in (0.1, 0.5, 1.0):
        for method, factor in (("demipl", 10), ("dam-cc", 12)):
            record(tmp_path, "mnist-mipl", 1, method, 1, TIMED, share=share, seconds=factor * share)
    (table,) = draw("figA7", list(Store(tmp_path))).tables
    cells = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert cells["DEMIPL"] == ["0.20", "1.00", "2.00", "", "1.000", "0.00"]
    assert cells["DAM-CC"] == ["0.24", "1.20", "2.40", "+20.0%", "1.000", "0.00"]
    assert cells["SAM-CC"] == ["–", "–", "–", "", "–", "–"]


def test_the_cost_is_beside_the_papers_with_what_cdl_adds(tmp_path):
    for split, seconds in ((1, 10.0), (2, 30.0)):
        record(tmp_path, "mnist-mipl", 1, "demipl", split, seconds=seconds)
        record(tmp_path, "mnist-mipl", 1, "dam-cc", split, seconds=1.5 * seconds, memory=510.0)
        record(tmp_path, "mnist-mipl", 1, "dam-cn", split, cost=False)
    for method, seconds in (("demipl", 10.0), ("dam-cc", 12.5)):
        record(tmp_path, "mnist-mipl", 1, method, 1, TIMED, seconds=seconds)
    output = draw("tableA2", list(Store(tmp_path)))
    (table,) = output.tables
    cells = {row[0].text: row for row in table.rows}
    assert [cell.text for cell in cells["DEMIPL"][1:6]] == ["90.00", "0.130", "500", "10", "2.00"]
    assert [cell.text for cell in cells["DAM-CC"][1:6]] == [
        "90.00 (+0.0%)",
        "0.130",
        "510 (+2.0%)",
        "15",  # of other work than its baseline's: no comparison
        "2.50 (+25.0%)",
    ]
    assert cells["DAM-CN"][1].text == "–"  # an older record: its accuracy counts, its cost is not known
    assert cells["DAM-CN"][6].text != "–"
    assert any("--methods dam-cn --with cost --splits 1 " in line for line in output.runs.commands())
    assert cells["DAM-CC"][4].below == "paper 237"
    assert cells["DAM-CC"][5].below == "paper +19.5%"
    assert cells["DAM-CC"][3].below == "paper 1858 (+2.0%)"
    assert cells["MAM-CN"][4].text == "–"
    assert cells["MAM-CN"][5].below == "paper +14.7%"


def test_a_product_is_written_whole_and_the_page_joins_them(birds, tmp_path, capsys):
    with pytest.raises(DataError, match="contains no reproduced table"):
        write_page(tmp_path)
    for name in ("table2", "figA4"):
        write_output(name, draw(name, birds), tmp_path, "mipl reproduce <it>")
    assert sorted(path.name for path in (tmp_path / "figA4").iterdir()) == [
        "about.json", "figure.png", "figure.svg", "table.csv", "table.md", "table.tex",
    ]  # fmt: skip
    before = (tmp_path / "figA4" / "figure.svg").read_bytes()
    write_output("figA4", draw("figA4", birds), tmp_path, "mipl reproduce <it>")
    assert (tmp_path / "figA4" / "figure.svg").read_bytes() == before
    rows = list(csv.DictReader((tmp_path / "table2" / "table.csv").open()))
    assert len(rows) == 144
    hashes = {found.info["hash"] for found in birds}
    assert {word for row in rows for word in row["records"].split()} == hashes
    assert main(["report", str(tmp_path)]) == 0
    assert "index.html" in capsys.readouterr().out
    page = (tmp_path / "index.html").read_text()
    assert page.index('id="table2"') < page.index('id="figA4"')
    assert all(name in page for name in hashes)
    assert "mipl reproduce &lt;it&gt;" in page
    assert "<svg" in page
    assert "://" not in page.replace("http://www.w3.org", "")
    about = json.loads((tmp_path / "table2" / "about.json").read_text())
    (row,) = [row for row in about["provenance"] if row["method"] == "DAM-CN"]
    assert [found["split"] for found in row["records"]] == [1, 2]
    assert row["origin"] == "rebuilt from raw data"
    (tmp_path / "figA4" / "about.json").write_text("{}")
    assert main(["report", str(tmp_path)]) == 2
