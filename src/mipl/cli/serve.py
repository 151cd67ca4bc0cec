"""The verb ``serve``: a trained model over HTTP, with a review page."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mipl.cli.app import ModelArg, app
from mipl.cli.options import DataOptions, expand_options
from mipl.errors import MiplError, SettingError, counted, listed

if TYPE_CHECKING:
    from mipl.data.bags import Bags
    from mipl.estimators import BagClassifier
    from mipl.serve.dashboard import Dashboard
    from mipl.serve.reviews import Reviews


@dataclasses.dataclass(frozen=True)
class AddressOptions:
    """Where the server listens, and the token that it asks for."""

    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; any but a loopback address needs a token.")
    ] = "127.0.0.1"
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any free port.")] = 8000
    token: Annotated[
        str | None,
        typer.Option(
            "--token", envvar="MIPL_TOKEN", show_envvar=True, help="Bearer token that requests must send."
        ),
    ] = None


@dataclasses.dataclass(frozen=True)
class LimitOptions:
    """Limits of one request."""

    max_bytes: Annotated[int, typer.Option("--max-bytes", help="Size of a request body.")] = 16 * 2**20
    max_bags: Annotated[int, typer.Option("--max-bags", help="Bags in a request.")] = 1000
    max_instances: Annotated[int, typer.Option("--max-instances", help="Instances in a request.")] = 100_000
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds to receive a request body, and again to answer it.")
    ] = 30.0


@app.command()
@expand_options
def serve(
    model: ModelArg,
    *,
    data: Annotated[
        str | None, typer.Option("--data", metavar="DATA", help="Bags to review on the page at /.")
    ] = None,
    reviews: Annotated[
        Path, typer.Option("--reviews", metavar="FILE", help="SQLite file for the reviews.")
    ] = Path("reviews.sqlite"),
    images: Annotated[
        Path | None,
        typer.Option(
            "--images",
            metavar="DIR",
            help="Images of the bags: tiles, or thumbnails of slides, named as they.",
        ),
    ] = None,
    audit: Annotated[
        int | None,
        typer.Option(
            "--audit",
            min=1,
            metavar="N",
            help="First review N bags drawn at random; only these measure an error without bias.",
        ),
    ] = None,
    address: AddressOptions,
    limits: LimitOptions,
    options: DataOptions,
) -> None:
    """Serve predictions over HTTP and, with --data, a web page on which a person reviews the bags."""
    try:
        from mipl.serve.app import make_app
        from mipl.serve.server import LOCAL_HOSTS, check_token, is_local, listen, run
    except ImportError as error:
        raise SettingError(f"Serving needs {error.name}: pip install 'mipl[serve]'.") from error
    from mipl.estimators import load
    from mipl.serve.requests import Limits

    request_limits = Limits(limits.max_bytes, limits.max_bags, limits.max_instances, limits.timeout)
    check_token(address.host, address.token)
    with listen(address.host, address.port) as listening:
        classifier = load(model)
        dashboard = review_file = None
        if data is not None:
            dashboard, review_file = _review_page(classifier, options.open(data), reviews, images, audit)
        elif images is not None or audit is not None:
            option = "--images" if audit is None else "--audit"
            raise SettingError(f"{option} is for the review page: give --data DATA too.")
        hosts = LOCAL_HOSTS | {address.host} if is_local(address.host) else None
        served = make_app(
            classifier,
            dashboard,
            review_file,
            limits=request_limits,
            token=address.token,
            hosts=hosts,
        )
        run(served, listening, lambda url: typer.echo(f"Serving on {url}"))


def _review_page(
    classifier: BagClassifier, bags: Bags, path: Path, images: Path | None, audit: int | None
) -> tuple[Dashboard, Reviews]:
    """Return what the review page shows, and its file of reviews."""
    from mipl.serve.dashboard import Dashboard
    from mipl.serve.images import Images
    from mipl.serve.reviews import Reviews

    shown = None if images is None else Images(images, bags.ids.tolist())
    if shown is not None and len(shown) < len(bags):
        missing = [bag for bag in bags.ids.tolist() if bag not in shown]
        typer.echo(
            f"mipl: note: {counted(len(missing), 'bag')} without an image: {listed(missing)}", err=True
        )
    dashboard = Dashboard(classifier, bags, shown)
    reviews = Reviews(path, dashboard.index, dashboard.classes)
    if audit is not None:
        order = sorted(dashboard.index)
        groups = None if bags.groups is None else [str(bags.groups[dashboard.index[bag]]) for bag in order]
        try:
            reviews.start_audit(audit, groups)
        except MiplError:
            reviews.close()
            raise
    return dashboard, reviews
