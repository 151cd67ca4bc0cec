"""serve: a trained model over HTTP, with a page for review."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mipl.cli.app import (
    DataSeedOpt,
    IgnoreOpt,
    LabelsOpt,
    MissingTruthOpt,
    ModelArg,
    RawOpt,
    ROpt,
    SkipMissingOpt,
    app,
    source_of,
)
from mipl.errors import SettingError


@app.command()
def serve(
    model: ModelArg,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DATA", help="Bags to review on the page at /.")
    ] = None,
    reviews: Annotated[
        Path, typer.Option("--reviews", metavar="FILE", help="SQLite file that reviews are kept in.")
    ] = Path("reviews.sqlite"),
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; other than loopback needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8000,
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="MIPL_TOKEN", show_envvar=True, help="What every request has to show."
        ),
    ] = None,
    max_bytes: Annotated[int, typer.Option("--max-bytes", help="Size of a request's body.")] = 16 * 2**20,
    max_bags: Annotated[int, typer.Option("--max-bags", help="Bags in a request.")] = 1000,
    max_instances: Annotated[int, typer.Option("--max-instances", help="Instances in a request.")] = 100_000,
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to send a request, and again to answer it.")
    ] = 30.0,
    r: ROpt = None,
    raw: RawOpt = None,
    labels: LabelsOpt = None,
    skip_missing: SkipMissingOpt = False,
    ignore: IgnoreOpt = None,
    missing_truth: MissingTruthOpt = False,
    data_seed: DataSeedOpt = None,
) -> None:
    """Answer predictions over HTTP and, with --data, show a page on which a person reviews the bags."""
    try:
        from mipl.serve.app import make_app
        from mipl.serve.server import LOCAL, check_token, is_local, listen, run
    except ImportError as error:
        raise SettingError(f"Serving needs {error.name}: pip install 'mipl[serve]'.") from error
    from mipl.estimators import load
    from mipl.serve.board import Board
    from mipl.serve.bodies import Limits
    from mipl.serve.reviews import Reviews

    limits = Limits(max_bytes, max_bags, max_instances, timeout)
    check_token(host, token)
    with listen(host, port) as listening:
        classifier = load(model)
        board = kept = None
        if data is not None:
            source = source_of(data, r, data_seed, raw, labels, skip_missing, ignore, missing_truth)
            board = Board(classifier, source.open())
            kept = Reviews(reviews, board.place, board.classes)
        hosts = LOCAL | {host} if is_local(host) else None
        made = make_app(classifier, board, kept, limits=limits, token=token, hosts=hosts)
        run(made, listening, lambda address: typer.echo(f"Serving on {address}"))
