"""How good the defaults are on each data set: python benchmarks/defaults.py --raw FOLDER --store DIR

FOLDER has the raw files of every data set (hja-birdsong, crc-tiles, sival6, labelme, mnist, fashion-mnist,
mnist-mipl-splits). Runs that have a record in DIR, or a row in results/defaults.json, are not repeated; bags
that were built are read from beside DIR. Splits 8 to 10 of crc5-lite0-9, crc5-kmeans, Birdsong r = 1 and
MNIST r = 3, and for images splits 8 and 9 of Fashion-MNIST r = 1 and 3, were used to choose the defaults;
everything here is measured on other splits.

1. The defaults, and a single network beside them on feature vectors.
2. What a user would try first instead: pooled partial-label methods, FastMIPL, logistic regression.
3. Whether confidence means what it says: how many predictions with confidence 0.85 to 0.95 are right.
4. Ablation: the defaults with one part removed at a time, on three data sets.
5. How far a single network depends on its random seed, on images with large candidate sets.

Writes results/records, the runs packed, results/defaults.json, one row per run, results/defaults.md and the
tables of results/README.md, README.md and docs/training.md.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mipl.data.bags import Bags
from mipl.data.formats.npz import save_npz
from mipl.data.sources import Source
from mipl.data.splits import own_split, split_digest
from mipl.experiments.engines import run_jobs
from mipl.experiments.runner import Job, is_present, split_of
from mipl.metrics import (
    accuracy,
    calibration_error_if_calibrated,
    expected_calibration_error,
    negative_log_likelihood,
)
from mipl.paper.printed import paper_results
from mipl.records.pack import write_pack
from mipl.records.store import Store
from mipl.reports.results import markdown, result_rows
from mipl.seeding import rng_for
from mipl.training.recipe import RECIPE_VERSION
from pages import filled

REPO = Path(__file__).resolve().parents[1]
RESULTS, PAGE = REPO / "results" / "defaults.json", REPO / "results" / "defaults.md"
PACK, RUNS_PAGE = REPO / "results" / "records", REPO / "results" / "README.md"
README, TRAINING = REPO / "README.md", REPO / "docs" / "training.md"
SIMPLE = ("proden", "pop", "lws", "fastmipl")
REGRESSIONS = {"logistic regression": 1.0, "logistic regression, C = 0.001": 1e-3}  # and C of scikit-learn's
VARIED, SEEDS = ("fmnist-mipl", 3), range(5)  # where a single network is repeated with other random seeds
OVERVIEW = (  # the README's rows: of each kind of data the hardest, not the best
    ("crc5-lite0-16", None), ("crc5-kmeans", None), ("crc5-sift", None), ("sival6-mipl", 3),
    ("birdsong-mipl", 3), ("mnist-mipl", 3), ("fmnist-mipl", 3), ("labelme", None),
)  # fmt: skip
ABLATED = (("birdsong-mipl", 3), ("crc5-lite0-16", None), ("fmnist-mipl", 3))
OUT: dict[str, dict[str, Any]] = {  # a part of the recipe, and the setting that removes it
    "ensemble and cross-fitting (a single network)": {"ensemble": 1},
    "choice of the weight decay (0.001)": {"weight_decay": 0.001},
    "choice of the weight decay (0.2)": {"weight_decay": 0.2},
    "`warmup`": {"warmup": 0.0},
    "`background`": {"background": 0.0},
    "`instance_dropout`": {"instance_dropout": 0.0},
    "`clip_norm`": {"clip_norm": None},
    "`components`": {"components": 0},
    "`pretrain`, and all that follows for images": {"pretrain": 0},
}
KEY = ("dataset", "r", "method", "given", "split", "seed")
Row = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Case:
    """A data set, the splits that are measured, and what its issue asks for, in percent."""

    dataset: str
    r: int | None
    folder: str  # of the raw files
    splits: tuple[int, ...]
    wanted: dict[str, float]  # method -> accuracy
    ece: float

    @property
    def title(self) -> str:
        """The name, with r where there is one."""
        return self.dataset if self.r is None else f"{self.dataset} r = {self.r}"

    @property
    def images(self) -> bool:
        """Whether instances are images."""
        return "sam-cn" not in self.wanted

    def source(self, raw: Path, store: Path) -> Source:
        """Return where the bags come from; built once, they are kept beside the records."""
        built = store.parent / f"{store.name}-bags" / f"{self.dataset}-{self.r}.npz"
        source = Source(self.dataset, self.r, raw=str(raw / self.folder), built=str(built))
        if not built.is_file():
            built.parent.mkdir(parents=True, exist_ok=True)
            save_npz(source.open(), built)
        return source


def _both(sam: float, mam: float) -> dict[str, float]:
    return {"sam-cn": sam, "mam-cn": mam}


FIRST = (1, 2, 3)
CASES = (
    *(
        Case(f"crc5-lite0-{n}", None, "crc-tiles", FIRST, _both(least, least), 4.0)
        for n, least in ((9, 93.0), (16, 93.5), (25, 93.5))
    ),
    *(
        Case(f"crc5-{kind}", None, "crc-tiles", FIRST, _both(sam, mam), 6.0)
        for kind, sam, mam in (("kmeans", 87.0, 86.0), ("sift", 56, 56), ("row", 58, 58), ("sbn", 60, 60))
    ),
    *(
        Case("sival6-mipl", r, "sival6", FIRST, _both(sam, mam), 6.0)
        for r, sam, mam in ((1, 94.0, 93.0), (2, 93.0, 92.0), (3, 90.0, 88.0))
    ),
    *(
        Case("birdsong-mipl", r, "hja-birdsong", tuple(range(1, 8)), _both(sam, mam), 5.0)
        for r, sam, mam in ((1, 83.5, 82.5), (2, 82.0, 81.5), (3, 80.5, 80.0))
    ),
    *(
        Case("mnist-mipl", r, "mnist", FIRST, {"mam-cn": least}, 2.0)
        for r, least in ((1, 99.5), (2, 99.5), (3, 99.0))
    ),
    *(
        Case("fmnist-mipl", r, "fashion-mnist", FIRST, {"mam-cn": least}, ece)
        for r, least, ece in ((1, 91.0, 6.0), (2, 88.0, 7.0), (3, 82.0, 9.0))
    ),
    Case("labelme", None, "labelme", (1,), _both(85.0, 85.0), 5.0),
)  # fmt: skip


def jobs_of(
    case: Case, bags: Bags, method: str, given: dict[str, Any], raw: Path, store: Path, seed: int = 0
) -> list[Job]:
    """Return the runs of a method on a data set."""
    official = case.dataset == "mnist-mipl"
    kind = "official" if official or own_split(bags) is not None else "stratified"
    folder = str(raw / "mnist-mipl-splits") if official else ""
    return [
        Job(
            source=case.source(raw, store),
            method=method,
            params={"recipe": "stable", **given},
            split=split,
            seed=seed,
            data_digest=bags.digest(),
            split_digest=split_digest(bags, split_of(bags, kind, split, folder=folder)),
            store=str(store),
            splits=kind,
            split_folder=folder,
            provenance=dict(bags.provenance),
            vectors=len(bags.feature_shape) == 1,
        )
        for split in case.splits
    ]


def planned(cases: Sequence[Case], raw: Path, store: Path) -> Iterable[list[Job]]:
    """Yield the runs, the most telling first: the defaults, then simple methods, then single networks."""
    bags = {case.title: case.source(raw, store).open() for case in cases}
    vectors = [case for case in cases if not case.images]
    stages: list[tuple[Sequence[Case], Sequence[str], dict[str, Any]]] = [
        (vectors, ("sam-cn",), {}),
        ([case for case in cases if case.images], ("mam-cn",), {}),
        (vectors, ("mam-cn",), {}),
        (vectors, SIMPLE, {}),
        (vectors, ("sam-cn", "mam-cn"), {"ensemble": 1}),
    ]
    ablated = [dataclasses.replace(case, splits=FIRST) for case in cases if (case.dataset, case.r) in ABLATED]
    stages += [([case for case in ablated if case.images], ("mam-cn",), given) for given in OUT.values()]
    stages += [([case for case in ablated if not case.images], ("sam-cn",), given) for given in OUT.values()]
    for chosen, methods, given in stages:
        yield [
            job
            for case in chosen
            for method in methods
            if matters(given, case)
            for job in jobs_of(case, bags[case.title], method, given, raw, store)
        ]
    varied = [dataclasses.replace(case, splits=(1,)) for case in cases if (case.dataset, case.r) == VARIED]
    yield [
        job
        for case in varied
        for seed in SEEDS
        for job in jobs_of(case, bags[case.title], "mam-cn", {"ensemble": 1}, raw, store, seed)
    ]


def matters(given: dict[str, Any], case: Case) -> bool:
    """Return whether a setting that removes a part changes anything on a data set."""
    of_images, of_vectors = {"pretrain"} & given.keys(), {"weight_decay"} & given.keys()
    narrow = "components" in given and not (case.images or "lite0" in case.dataset)
    return not narrow and not (of_images and not case.images) and not (of_vectors and case.images)


def regressions(cases: Sequence[Case], raw: Path, store: Path) -> list[Row]:
    """Return rows of logistic regression on mean features, with one candidate of each bag as its label.

    The candidate is the one with most votes where there are votes, and a random one elsewhere.
    """
    rows = []
    for case in (case for case in cases if not case.images):
        bags = case.source(raw, store).open()
        assert bags.labels is not None
        means = np.stack([bag.instances.mean(axis=0) for bag in bags])
        rng = rng_for("candidate", case.title)
        weights = bags.candidate_sets.astype(np.float64) if bags.weights is None else bags.weights
        label = (weights + 1e-3 * rng.random(weights.shape)).argmax(axis=1)
        kind = "stratified" if own_split(bags) is None else "official"
        for split in case.splits:
            train, test = split_of(bags, kind, split)
            for name, strength in REGRESSIONS.items():
                model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=1000))
                model.fit(means[train], label[train])
                p = np.zeros((len(test), bags.k))
                p[:, model.classes_] = model.predict_proba(means[test])
                rows.append(_row(case.dataset, case.r, name, split, {}, p, bags.labels[test]))
    return rows


def known_rows() -> dict[str, Row]:
    """Return the rows of the present recipe that are written already, by the hash of their run."""
    if not RESULTS.is_file():
        return {}
    found = json.loads(RESULTS.read_text(encoding="utf-8"))
    present = found["recipe_version"] == RECIPE_VERSION
    return {row["hash"]: row for row in found["rows"] if "hash" in row} if present else {}


def recorded(store: Path) -> list[Row]:
    """Return one row per run of the present recipe, of the store and of those written already."""
    rows = []
    for record in Store(store):
        if not is_present(record):
            continue
        spec, info = record.spec, record.info
        row = {"hash": info["hash"]} | _row(
            spec["dataset"], spec["r"], spec["method"], spec["split"], info.get("given", {}),
            record.arrays["probabilities"], record.arrays["labels"],
        )  # fmt: skip
        for name in ("temperature", "weight_decay"):
            row[name] = info.get(name)
        row["seed"] = spec["seed"]
        rows.append({**row, "seconds": info["seconds"]["fit_processor"]})
    every = {**known_rows(), **{row["hash"]: row for row in rows}}
    return sorted(every.values(), key=lambda row: json.dumps([row.get(name) for name in KEY]))


def _row(
    dataset: str,
    r: int | None,
    method: str,
    split: int,
    given: dict[str, Any],
    p: NDArray[np.floating[Any]],
    labels: NDArray[np.int64],
) -> Row:
    confidence, right = p.max(axis=1), p.argmax(axis=1) == labels
    band = (confidence >= 0.85) & (confidence <= 0.95)
    return {
        "dataset": dataset,
        "r": r,
        "method": method,
        "split": split,
        "given": given,
        "bags": len(labels),
        "accuracy": accuracy(p, labels),
        "ece": expected_calibration_error(p, labels),
        "ece_if_calibrated": calibration_error_if_calibrated(p, draws=200),
        "nll": negative_log_likelihood(p, labels),
        "confidence": float(confidence.mean()),
        "right": np.packbits(right).tobytes().hex(),  # one bit per test bag
        "in_band": int(band.sum()),
        "right_in_band": int(right[band].sum()),
    }


def rows_of(rows: Sequence[Row], case: Case, method: str, given: dict[str, Any] | None = None) -> list[Row]:
    """Return the rows of a method on the splits of a case, in their order."""
    found = {
        row["split"]: row
        for row in rows
        if (row["dataset"], row["r"], row["method"]) == (case.dataset, case.r, method)
        and row["given"] == (given or {})
        and row.get("seed", 0) == 0
    }
    return [found[split] for split in case.splits if split in found]


def mean_of(rows: Sequence[Row], name: str) -> float:
    """Return the mean of a metric over rows."""
    return float(np.mean([row[name] for row in rows]))


def error_over_bags(own: Row, other: Row) -> float:
    """Return the standard error, over the test bags, of the difference of two accuracies on one split."""
    bits = [np.unpackbits(np.frombuffer(bytes.fromhex(row["right"]), np.uint8)) for row in (own, other)]
    difference = (bits[0].astype(np.int64) - bits[1])[: own["bags"]]
    return float(difference.std(ddof=1) / np.sqrt(len(difference)))


def error_of(values: Sequence[float]) -> float:
    """Return the standard error of a mean; not a number for one value."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def default_table(rows: Sequence[Row], method: str) -> str:
    """Return the table of the defaults of one method against what is asked for."""
    lines = [
        "| data | splits | accuracy | asked | ECE | if calibrated | asked | NLL | "
        "single network: accuracy / ECE, NLL |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for case in CASES:
        own = rows_of(rows, case, method)
        if not own or method not in case.wanted:
            continue
        single = rows_of(rows, case, method, {"ensemble": 1})
        beside = _metrics(single) if single else "–"
        spread = error_of([row["accuracy"] for row in own])
        reached, ece, if_calibrated = (
            100 * mean_of(own, name) for name in ("accuracy", "ece", "ece_if_calibrated")
        )
        least, most = case.wanted[method], max(case.ece, if_calibrated + 2)
        plus = "" if np.isnan(spread) else f" ± {100 * spread:.1f}"
        lines.append(
            f"| {case.title} | {len(own)} | {reached:.1f}{plus}{'' if reached >= least else ' ✗'} | "
            f"{least:g} | {ece:.1f}{'' if ece <= most else ' ✗'} | {if_calibrated:.1f} | {case.ece:g} | "
            f"{mean_of(own, 'nll'):.3f} | {beside} |"
        )
    return "\n".join(lines)


def regret_table(rows: Sequence[Row]) -> str:
    """Return the default beside the simple alternative that is best in a metric, on each vector set."""
    lines = [
        "| data | sam-cn: accuracy, NLL | most accurate alternative | difference ± error | "
        "alternative of lowest NLL | difference ± error |",
        "|---|---|---|---|---|---|",
    ]
    for case in CASES:
        own = rows_of(rows, case, "sam-cn")
        others = simple_rows(rows, case)
        if case.images or not own or not others:
            continue
        cells = [f"{100 * mean_of(own, 'accuracy'):.1f}, {mean_of(own, 'nll'):.3f}"]
        for metric, sign, scale, most in (("accuracy", 1, 100, 1.0), ("nll", -1, 1, 0.02)):
            name = max(others, key=lambda name, m=metric, s=sign: s * mean_of(others[name], m))
            by_split = {row["split"]: row for row in others[name]}
            pairs = [(row, by_split[row["split"]]) for row in own if row["split"] in by_split]
            differences = [scale * sign * (row[metric] - other[metric]) for row, other in pairs]
            mean, error = float(np.mean(differences)), error_of(differences)
            if len(pairs) == 1 and metric == "accuracy":
                error = scale * error_over_bags(*pairs[0])
            fine = mean >= -most or (not np.isnan(error) and mean >= -2 * error)
            digits = 1 if metric == "accuracy" else 3
            plus = "" if np.isnan(error) else f" ± {error:.{digits}f}"
            value = mean_of(others[name], metric) * scale
            cells += [f"{name} {value:.{digits}f}", f"{mean:+.{digits}f}{plus}{'' if fine else ' ✗'}"]
        lines.append(f"| {case.title} | {' | '.join(cells)} |")
    return "\n".join(lines)


def overview_table(rows: Sequence[Row]) -> str:
    """Return the README's table: the default and the most accurate simple alternative on some data sets."""
    lines = [
        "| data | method | splits | accuracy | ECE | if calibrated | NLL | "
        "most accurate simple alternative: accuracy / ECE, NLL |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in (case for case in CASES if (case.dataset, case.r) in OVERVIEW):
        method = "mam-cn" if case.images else "sam-cn"
        own = rows_of(rows, case, method)
        if not own:
            continue
        others, beside = simple_rows(rows, case), "–"
        if others:
            best = max(others, key=lambda name: mean_of(others[name], "accuracy"))
            beside = f"{best}: {_metrics(others[best])}"
        values = [100 * mean_of(own, name) for name in ("accuracy", "ece", "ece_if_calibrated")]
        lines.append(
            f"| {case.title} | {method} | {len(own)} | {values[0]:.1f} | {values[1]:.1f} | {values[2]:.1f} | "
            f"{mean_of(own, 'nll'):.2f} | {beside} |"
        )
    return "\n".join(lines)


def simple_rows(rows: Sequence[Row], case: Case) -> dict[str, list[Row]]:
    """Return the rows of the simple alternatives on a case, by method; those without rows are left out."""
    return {name: found for name in (*SIMPLE, *REGRESSIONS) if (found := rows_of(rows, case, name))}


def _metrics(rows: Sequence[Row]) -> str:
    values = [mean_of(rows, name) for name in ("accuracy", "ece", "nll")]
    return f"{100 * values[0]:.1f} / {100 * values[1]:.1f}, {values[2]:.2f}"


def band_table(rows: Sequence[Row], method: str) -> str:
    """Return how many predictions with confidence 0.85 to 0.95 are right, all splits pooled.

    Sets with fewer than 50 such predictions are pooled in the last row.
    """
    lines = ["| data | predictions | right | 95% interval |", "|---|---|---|---|"]
    few, rest, names = 0, 0, []
    for case in CASES:
        own = rows_of(rows, case, method)
        number, right = (sum(row[name] for row in own) for name in ("in_band", "right_in_band"))
        if not own or method not in case.wanted:
            continue
        if number < 50:
            few, rest, names = few + number, rest + right, [*names, case.title]
            continue
        lines.append(_band_line(case.title, number, right))
    if few:
        lines.append(_band_line(f"pooled: {', '.join(names)}", few, rest))
    return "\n".join(lines)


def ablation_table(rows: Sequence[Row]) -> str:
    """Return the change of accuracy and ECE without each part, on the splits that both have, in points."""
    cases = [case for case in CASES if (case.dataset, case.r) in ABLATED]
    lines = [f"| without | {' | '.join(case.title for case in cases)} |", "|---" * (1 + len(cases)) + "|"]
    whole = {case.title: rows_of(rows, case, "mam-cn" if case.images else "sam-cn") for case in cases}
    first = [
        f"{100 * mean_of(own, 'accuracy'):.1f} / {100 * mean_of(own, 'ece'):.1f}" if own else "–"
        for own in whole.values()
    ]
    lines.append(f"| nothing: accuracy / ECE | {' | '.join(first)} |")
    for name, given in OUT.items():
        cells = []
        for case in cases:
            with_it = {row["split"]: row for row in whole[case.title]}
            without = rows_of(rows, case, "mam-cn" if case.images else "sam-cn", given)
            both = [row for row in without if row["split"] in with_it] if matters(given, case) else []
            changes = []
            for metric in ("accuracy", "ece") if both else ():
                change = [100 * (row[metric] - with_it[row["split"]][metric]) for row in both]
                error = error_of(change)
                plus = "" if np.isnan(error) else f" ± {error:.1f}"
                changes.append(f"{np.mean(change):+.1f}{plus}")
            cells.append(" / ".join(changes) or "–")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def seed_table(rows: Sequence[Row]) -> str:
    """Return the accuracy of a single network on one split, with several random seeds."""
    own = {
        row.get("seed", 0): row
        for row in rows
        if (row["dataset"], row["r"], row["given"], row["split"]) == (*VARIED, {"ensemble": 1}, 1)
    }
    lines = ["| seed | accuracy | ECE | NLL |", "|---|---|---|---|"]
    for seed, row in sorted(own.items()):
        lines.append(f"| {seed} | {100 * row['accuracy']:.1f} | {100 * row['ece']:.1f} | {row['nll']:.2f} |")
    return "\n".join(lines)


def _band_line(title: str, number: int, right: int) -> str:
    low = 0.0 if right == 0 else float(beta.ppf(0.025, right, number - right + 1))
    high = 1.0 if right == number else float(beta.ppf(0.975, right + 1, number - right))
    fine = low <= 0.95 and high >= 0.85
    shown = f"{100 * low:.1f}–{100 * high:.1f}{'' if fine else ' ✗'}"
    return f"| {title} | {number} | {100 * right / number:.1f}% | {shown} |"


def tables(found: dict[str, Any]) -> dict[str, str]:
    """Return the tables of the page by name."""
    rows = found["rows"]
    return {
        **{f"{method} defaults": default_table(rows, method) for method in ("sam-cn", "mam-cn")},
        "no regret": regret_table(rows),
        "seeds": seed_table(rows),
        **{f"{method} band": band_table(rows, method) for method in ("sam-cn", "mam-cn")},
    }


def main() -> None:
    """Make the runs that are missing, then the rows and the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--raw", type=Path, required=True)
    parser.add_argument("--store", type=Path, required=True)
    parser.add_argument("--only", help="data sets, separated by commas")
    parser.add_argument("--stages", default="1-99", help="which stages of the plan; 0: only the pages")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    cases = [case for case in CASES if given.only is None or case.dataset in given.only.split(",")]
    first, _, last = given.stages.partition("-")
    done = known_rows()
    for number, stage in enumerate(planned(cases, given.raw, given.store), start=1):
        jobs = [job for job in stage if job.spec.hash not in done]
        if int(first) <= number <= int(last or first):
            for job, reason in run_jobs(jobs, "local", given.jobs):
                print(f"{job.title} failed: {reason}")
    kept = {record.info["hash"]: record for folder in (PACK, given.store) for record in Store(folder)}
    write_pack([record for record in kept.values() if is_present(record)], PACK)
    rows = [*recorded(given.store), *regressions(CASES, given.raw, given.store)]
    found = {
        "command": "python benchmarks/defaults.py --raw FOLDER --store DIR",
        "recipe_version": RECIPE_VERSION,
        "rows": rows,
    }
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), tables(found)), encoding="utf-8")
    overview = {"results": overview_table(found["rows"])}
    README.write_text(filled(README.read_text(encoding="utf-8"), overview), encoding="utf-8")
    every = {"results": markdown(result_rows(Store(PACK), is_present, paper_results()))}
    RUNS_PAGE.write_text(filled(RUNS_PAGE.read_text(encoding="utf-8"), every), encoding="utf-8")
    ablation = {"ablation": ablation_table(found["rows"])}
    TRAINING.write_text(filled(TRAINING.read_text(encoding="utf-8"), ablation), encoding="utf-8")


if __name__ == "__main__":
    main()
