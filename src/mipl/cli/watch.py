"""The verb ``watch``: are new bags still like the held-out ones?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mipl.cli.app import DataArg, JsonOpt, ModelArg, app, print_json
from mipl.cli.options import DataOptions, expand_options
from mipl.errors import SettingError

if TYPE_CHECKING:
    from mipl.watch import Course

ALARM = 3  # exit code
CAUSES = {
    "confidence": "the model is less or more confident than on the held-out bags",
    "features": "the features are unlike those of the held-out bags (stain, scanner, encoder?)",
}


@app.command()
@expand_options
def watch(
    model: ModelArg,
    data: DataArg,
    *,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="DATA2",
            help="Held-out bags to compare with, without labels; by default those of 'mipl calibrate'.",
        ),
    ] = None,
    level: Annotated[
        float, typer.Option("--level", help="Probability of a false alarm, however many bags follow.")
    ] = 0.01,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="CSV to write: the evidence after each bag of DATA."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the order of equal scores.")] = 0,
    options: DataOptions,
    as_json: JsonOpt = False,
) -> None:
    """Say when new bags are no longer like the held-out ones and guarantees end; no label is needed.

    The bags count in the order of DATA. The exit code is 3 for an alarm and 0 without.
    """
    from mipl.calibration.reference import Reference, bag_scores
    from mipl.data.datasets import DATASETS
    from mipl.data.splits import one_per_group
    from mipl.estimators import load
    from mipl.files import check_place
    from mipl.watch import watch as watch_scores
    from mipl.watch import write_course

    if out is not None:
        check_place(out)
    classifier = load(model)
    bags = options.open(data)
    if reference is not None:
        own = options if reference in DATASETS else DataOptions(ignore=options.ignore)
        known = Reference.of(classifier, own.open(reference))
    elif classifier.calibration_ is not None and classifier.calibration_.reference is not None:
        known = classifier.calibration_.reference
    else:
        raise SettingError(
            f"{model} has no held-out bags to compare with: run 'mipl calibrate' first, or give --reference "
            "DATA2."
        )
    bags = bags[one_per_group(bags, "watch")]
    course = watch_scores(known.scores, bag_scores(classifier, bags), level=level, seed=seed)
    if out is not None:
        write_course(out, bags.ids.tolist(), course)
    if as_json:
        print_json({**course.to_dict(), "course": None if out is None else str(out)})
    else:
        _print_course(course, bags.ids.tolist(), out)
    if course.alarm is not None:
        raise typer.Exit(ALARM)


def _print_course(course: Course, ids: list[str], out: Path | None) -> None:
    compared = f"{len(ids)} new bags compared with {course.reference} held-out bags"
    if course.alarm is None:
        typer.echo(
            f"No alarm: {compared}; the evidence of a change is {course.combined[-1]:.3g} (alarm at "
            f"{1 / course.level:.3g})."
        )
    else:
        name = course.strongest
        cause = CAUSES.get(name, f"{name} is distributed differently (another class mix?)")
        typer.echo(
            f"ALARM at bag {course.alarm + 1} ('{ids[course.alarm]}'): {compared}; {cause}. Guarantees and "
            "calibration do not apply to these bags: label some of them and calibrate again."
        )
    if out is not None:
        typer.echo(f"Course written to {out}")
