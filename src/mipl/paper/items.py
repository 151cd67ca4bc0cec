"""The tables and figures that can be reproduced from runs, in the paper's order."""

from __future__ import annotations

from mipl.paper.base import Item, plain
from mipl.paper.figures import (
    GAMMAS,
    draw_bars,
    draw_bars_by_family,
    draw_bars_by_set,
    draw_focal,
    draw_gamma,
    draw_noise,
    draw_reliability_by_family,
    draw_reliability_by_set,
    draw_top_share,
    gamma,
    noisy,
)
from mipl.paper.names import (
    ALL_SETS,
    BASELINE,
    BENCHMARKS,
    CDL_METHODS,
    CRC,
    FAMILIES,
    NINE_METHODS,
    QUICK_SET,
    RANKED_METHODS,
    TABLE_METHODS,
    Sets,
)
from mipl.paper.statistics import draw_differences, draw_friedman
from mipl.paper.tables import draw_head_vs_loss, draw_table, head_settings
from mipl.paper.training_figures import (
    SHARES,
    TIMED,
    draw_cost,
    draw_features,
    draw_probabilities,
    draw_run_time,
)

BENCHMARK, REAL = {"where": "the benchmark data sets"}, {"where": "the real-world data sets"}
PATCHES: Sets = CRC[-3:]
BIRDS: Sets = tuple(("birdsong-mipl", r) for r in (1, 2, 3))
SIVAL: Sets = tuple(("sival-mipl", r) for r in (1, 2, 3))

HEADS = tuple(
    (method, head_settings(method, head))
    for attention, base in BASELINE.items()
    for method in (base, f"{attention}-mdl", f"{attention}-cc", f"{attention}-cn")
    for head in ("sigmoid", "linear")
)
MAXMIN = ("pooling", "maxmin")  # the default is the mean

ITEMS: dict[str, Item] = {
    "table2": Item(
        "Table 2: accuracy on the benchmark data sets",
        BENCHMARKS,
        plain(TABLE_METHODS),
        draw_table,
        {"metrics": ("accuracy",), **BENCHMARK},
    ),
    "table3": Item(
        "Table 3: accuracy on the real-world data sets",
        CRC,
        plain(TABLE_METHODS),
        draw_table,
        {"metrics": ("accuracy",), **REAL},
    ),
    "table4": Item(
        "Table 4: expected calibration error on the benchmark data sets",
        BENCHMARKS,
        plain(RANKED_METHODS),
        draw_table,
        {"metrics": ("ece",), **BENCHMARK},
    ),
    "table5": Item(
        "Table 5: expected calibration error on the real-world data sets",
        CRC,
        plain(RANKED_METHODS),
        draw_table,
        {"metrics": ("ece",), **REAL},
    ),
    "head-vs-loss": Item("Head against loss", (("birdsong-mipl", 1),), HEADS, draw_head_vs_loss),
    "fig2": Item(
        "Fig. 2: reliability on C-KMeans",
        (("c-kmeans", None),),
        plain(NINE_METHODS),
        draw_reliability_by_family,
    ),
    "fig3": Item(
        "Fig. 3: reliability of focal losses", (("fmnist-mipl", 1),), plain(("sam-fl", "sam-ifl")), draw_focal
    ),
    "fig5": Item("Fig. 5: reliability on Birdsong-MIPL", BIRDS, plain(NINE_METHODS), draw_reliability_by_set),
    "figA1": Item(
        "Fig. A1: t-SNE of bag features",
        tuple(("mnist-mipl", r) for r in (1, 2, 3)),
        plain(NINE_METHODS),
        draw_features,
        extras=("features",),
        first_split=True,
    ),
    "figA2": Item(
        "Fig. A2: probabilities on the training set",
        (("c-kmeans", None),),
        plain(NINE_METHODS),
        draw_probabilities,
        extras=("training",),
        first_split=True,
    ),
    "figA3": Item(
        "Fig. A3: sensitivity to γ",
        PATCHES[-1:],
        (*plain(BASELINE.values()), *((method, gamma(g)) for method in CDL_METHODS for g in GAMMAS)),
        draw_gamma,
    ),
    "figA4": Item(
        "Fig. A4: FL and IFL against CDL",
        (*BIRDS, *SIVAL),
        plain(("miplma", "mam-cc", "mam-cn", "mam-fl", "mam-ifl")),
        draw_bars_by_set,
    ),
    "figA5": Item(
        "Fig. A5: partial-label methods",
        PATCHES,
        (*plain(CDL_METHODS), *plain(("proden", "lws", "pop")), *plain(("proden", "lws", "pop"), MAXMIN)),
        draw_bars,
    ),
    "figA6": Item(
        "Fig. A6: class noise and attribute noise",
        noisy("sival-mipl", 1),
        plain(FAMILIES[2]),
        draw_noise,
        quick_sets=noisy(*QUICK_SET[0]),
        other_stand_ins=noisy("birdsong-mipl", 1),
    ),
    "figA7": Item(
        "Fig. A7: run time against the size of the training set",
        BENCHMARKS[:1],
        plain(NINE_METHODS, *TIMED),
        draw_run_time,
        shares=SHARES,
        extras=("cost",),
        first_split=True,
    ),
    "figA8": Item("Fig. A8: critical differences", ALL_SETS, plain(RANKED_METHODS), draw_differences),
    "figA9": Item(
        "Fig. A9: patch granularity", PATCHES, plain((*FAMILIES[1], *FAMILIES[2])), draw_bars_by_family
    ),
    "figA10": Item("Fig. A10: accuracy and ECE at top-k%", PATCHES[-1:], plain(FAMILIES[2]), draw_top_share),
    "tableA1": Item(
        "Table A1: POP, POP-CC and POP-CN",
        PATCHES,
        (*plain(("pop", "pop-cc", "pop-cn")), *plain(("pop", "pop-cc", "pop-cn"), MAXMIN)),
        draw_table,
        {"metrics": ("accuracy", "ece"), "where": "patches of the tissue images"},
    ),
    "tableA2": Item(
        "Table A2: what a run costs",
        BENCHMARKS[:1],
        plain(NINE_METHODS),
        draw_cost,
        extras=("cost",),
        first_split_variants=plain(NINE_METHODS, *TIMED),
    ),
    "tableA3": Item("Table A3: Friedman statistics", ALL_SETS, plain(RANKED_METHODS), draw_friedman),
}
