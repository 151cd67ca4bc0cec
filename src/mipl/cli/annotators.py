"""The verb ``annotators``: quality of annotators, agreement, open bags, and whom to ask next."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from mipl.cli.app import JsonOpt, app, console, print_json
from mipl.cli.options import DataOptions, TrainingOptions, expand_options
from mipl.errors import SettingError

if TYPE_CHECKING:
    from mipl.annotators.report import Question
    from mipl.data.bags import Bags

SHOWN = 10  # bags to ask about that are printed; the table has all


@app.command()
@expand_options
def annotators(
    data: Annotated[
        str | None,
        typer.Argument(
            metavar="[DATA]",
            help="Bags to train on, as for 'mipl fit'; without them the votes alone are used.",
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Folder for annotators.csv and bags.csv."),
    ] = None,
    method: Annotated[str, typer.Option("--method", help="A name from 'mipl methods'.")] = "sam-cn",
    mass: Annotated[
        float,
        typer.Option(
            "--mass", min=0.5, max=1.0, help="Posterior probability of a bag's set of possible labels."
        ),
    ] = 0.95,
    training: TrainingOptions,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Report the quality of annotators, their agreement, bags that are open, and whom to ask next.

    With DATA, an ensemble is trained as 'mipl fit' does, and the posterior of a bag's label rests on its
    votes and on predictions of networks that did not see it.
    """
    from mipl.annotators.report import next_questions, posterior_sets, quality
    from mipl.data.votes import agreement, read_votes
    from mipl.files import check_folder

    if options.votes is None:
        raise SettingError("Give the table of votes with --votes.")
    if out is not None:
        check_folder(out, "annotators.csv")
    votes = read_votes(options.votes)
    bags, names, rows, found, posterior = _estimate(data, votes, method, training, options, as_json)
    ids, classes = bags
    people = quality(votes.annotators, found, posterior.mean(axis=0))
    questions = next_questions(posterior, found.confusion[0].numpy(), rows)
    sets = posterior_sets(posterior, mass)
    agreed = agreement(votes)
    open_bags = int((sets.sum(axis=1) > 1).sum())
    quality_rows = [_quality_row(person, classes, agreed["annotator_agreement"]) for person in people]
    bag_rows = _bag_rows(ids, classes, posterior, sets, questions, names)
    if out is not None:
        _write(out, quality_rows, bag_rows)
    if as_json:
        print_json(
            {
                "out": None if out is None else str(out),
                "agreement": agreed,
                "annotators": quality_rows,
                "strength": float(found.strength[0]),
                "open": open_bags,
                "next": [row for row in bag_rows[:SHOWN] if row["ask"]],
            }
        )
        return
    title = f"{open_bags} of {len(ids)} bags are open: no label alone has a probability of {mass:g}"
    _print(agreed, quality_rows, bag_rows, title)
    if out is not None:
        typer.echo(f"annotators.csv and bags.csv written to {out}; bags.csv can be used with --labels")


def _estimate(
    data: str | None, votes: Any, method: str, training: TrainingOptions, options: DataOptions, quiet: bool
) -> tuple[tuple[list[str], list[str]], tuple[str, ...], Any, Any, Any]:
    """Return (ids, classes), annotators, rows of votes, the estimate and the posterior (m, k)."""
    import numpy as np

    from mipl.annotators import VoteTable, votes_alone
    from mipl.estimators import make_classifier

    if data is None:
        if options.gold is not None:
            raise SettingError("--gold needs DATA: without bags only the votes are used.")
        rows = np.stack([votes.bag, votes.annotator, votes.label], axis=1)
        table = VoteTable.of(rows, len(votes.ids), len(votes.annotators), len(votes.classes))
        found, posterior = votes_alone(table)
        return (list(votes.ids), list(votes.classes)), votes.annotators, rows, found, posterior
    bags: Bags = options.open(data)
    params = training.params(method)
    model = make_classifier(method, random_state=training.seed, verbose=not quiet, **params).fit(bags)
    if model.annotators_ is None or model.posterior_ is None:
        raise SettingError(
            "Annotators are estimated from out-of-fold predictions of an ensemble: leave out ensemble=1 and "
            "votes=…, and give at least three bags."
        )
    names = (bags.ids.tolist(), [str(name) for name in bags.classes])
    return names, bags.annotators, bags.votes, model.annotators_, model.posterior_


def _quality_row(person: Any, classes: Sequence[str], agreement: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "annotator": person.annotator,
        "votes": person.votes,
        "accuracy": person.accuracy,
        "accuracy_low": person.accuracy_interval[0],
        "accuracy_high": person.accuracy_interval[1],
        "random": person.random,
        "random_low": person.random_interval[0],
        "random_high": person.random_interval[1],
        "agreement": agreement.get(person.annotator),
    }
    for number, (true, label, rate, interval) in enumerate(person.confusions, 1):
        row |= {
            f"confusion_{number}": f"{classes[true]} as {classes[label]}",
            f"rate_{number}": rate,
            f"rate_{number}_low": interval[0],
            f"rate_{number}_high": interval[1],
        }
    return row


def _bag_rows(
    ids: Sequence[str],
    classes: Sequence[str],
    posterior: Any,
    sets: Any,
    questions: Iterable[Question],
    names: Sequence[str],
) -> list[dict[str, Any]]:
    """Return a row for each bag: those to ask about first, then the others in the order of the data."""
    asked = {question.bag: question for question in questions}
    rows = []
    for i in [*asked, *(i for i in range(len(ids)) if i not in asked)]:
        question = asked.get(i)
        rows.append(
            {
                "bag_id": ids[i],
                "candidates": "|".join(classes[j] for j in sets[i].nonzero()[0]),
                "most_probable": classes[int(posterior[i].argmax())],
                "probability": float(posterior[i].max()),
                "ask": "" if question is None else names[question.annotator],
                "expected_gain": None if question is None else question.gain,
            }
        )
    return rows


def _write(out: Path, quality_rows: list[dict[str, Any]], bag_rows: list[dict[str, Any]]) -> None:
    from mipl.files import atomic_folder

    with atomic_folder(out, "annotators.csv") as folder:
        for name, rows in (("annotators.csv", quality_rows), ("bags.csv", bag_rows)):
            with (folder / name).open("w", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]) if rows else ["bag_id"])
                writer.writeheader()
                writer.writerows(rows)


def _print(
    agreed: dict[str, Any], quality_rows: list[dict[str, Any]], bag_rows: list[dict[str, Any]], title: str
) -> None:
    overall = Table("agreement", "value", title_justify="left")
    for key, value in agreed.items():
        if not isinstance(value, dict):
            overall.add_row(key.replace("_", " "), f"{value:.3f}" if isinstance(value, float) else str(value))
    people = Table("annotator", "votes", "accuracy", "random votes", "worst confusion", "second", "agreement")
    for row in sorted(quality_rows, key=lambda row: -row["votes"]):
        share = row["agreement"]
        people.add_row(
            row["annotator"],
            str(row["votes"]),
            _interval(row, "accuracy"),
            _interval(row, "random"),
            *(f"{row[f'confusion_{n}']} {_interval(row, f'rate_{n}')}" for n in (1, 2) if f"rate_{n}" in row),
            "n/a" if share is None else f"{100 * share:.0f}%",
        )
    ask = Table("ask about", "whom", "expected gain, nats", "labels", title=title, title_justify="left")
    for row in bag_rows[:SHOWN]:
        if row["ask"]:
            ask.add_row(row["bag_id"], row["ask"], f"{row['expected_gain']:.3f}", row["candidates"])
    for table in (overall, people, ask):
        console().print(table)


def _interval(row: dict[str, Any], name: str) -> str:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return f"{100 * row[name]:.0f}% ({100 * low:.0f}–{100 * high:.0f})"
