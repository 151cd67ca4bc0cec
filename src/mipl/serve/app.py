"""The HTTP application: predictions for whoever asks, and the review page for one data set."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import html
import importlib.resources
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

import mipl
from mipl.errors import MiplError, StorageError
from mipl.estimators import BagClassifier
from mipl.serve.board import Board
from mipl.serve.bodies import HDF5, JSON, NPY, Limits, RefusedError, parse_json, read_bags
from mipl.serve.door import Door
from mipl.serve.reviews import Reviews

REVIEW_BYTES = 4096  # a bag's id and a class
PAGE = {"page.js": "text/javascript", "page.css": "text/css"}
STATUSES = {
    400: "The body cannot be read.",
    401: "The token is missing or wrong.",
    404: "There is nothing of this name.",
    405: "There is this address, but not for this method.",
    408: "The body took too long to arrive.",
    413: "The body, or what it holds, is above a limit.",
    415: "The content type is not one that is read here.",
    422: "The content is not valid: the sentence says which bag or field, and what to do.",
    503: "The server is busy or cannot write: try again.",
}
Result = TypeVar("Result")


class Json(JSONResponse):
    """JSON in ASCII: a client's text may hold what UTF-8 cannot."""

    def render(self, content: Any) -> bytes:
        """Return the bytes."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


def make_app(
    model: BagClassifier,
    board: Board | None = None,
    reviews: Reviews | None = None,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """Return the application for a trained model.

    ``board``, with ``reviews``: the bags of the review page. ``token``: what every request must show; None:
    nothing. ``hosts``: the names under which a browser may speak to it; None: any.
    """
    allowed = limits or Limits()
    # one at a time: torch uses the cores by itself, and what waits here can still be cancelled
    worker = concurrent.futures.ThreadPoolExecutor(1, "model")
    writer = concurrent.futures.ThreadPoolExecutor(1, "reviews")

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        worker.shutdown(cancel_futures=True)
        writer.shutdown()
        if reviews is not None:
            reviews.close()

    app = FastAPI(
        title="mipl",
        version=mipl.__version__,
        description="Calibrated predictions for bags of instances.",
        docs_url=None,  # the usual pages load their code from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=Json,
    )
    app.add_middleware(Door, token=token, hosts=hosts)
    _add_errors(app)

    async def run(what: Callable[[], Result]) -> Result:
        future = asyncio.get_running_loop().run_in_executor(worker, what)
        try:
            return await asyncio.wait_for(future, allowed.seconds)
        except TimeoutError as error:
            raise RefusedError(
                503, f"There was no answer within {allowed.seconds:g} s: send fewer bags, or try again."
            ) from error

    @app.get("/health", summary="Whether the server answers", responses=_says())
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model", summary="What the model is, and what one request may ask for", responses=_says(401))
    async def about() -> dict[str, Any]:
        return _about(model, allowed)

    @app.post(
        "/predict",
        summary="The label, confidence and probabilities of each bag",
        description='A bag is instances × features. JSON: `{"bags": [[[…], …], …], "ids": […]}`; an `.npy` '
        "array of one bag, or of several with one more dimension; an HDF5 file with one bag as `features`.",
        responses=_says(400, 401, 408, 413, 415, 422, 503),
        openapi_extra={"requestBody": _predict_body()},
    )
    async def predict(request: Request) -> Json:
        body = await _body(request, allowed.bytes, allowed.seconds)
        kind = request.headers.get("content-type", "")

        def answer() -> dict[str, Any]:
            bags = read_bags(body, kind, model.feature_shape_, allowed)
            p = model.predict_proba(bags)
            return _predictions(model, bags.ids.tolist(), p)

        return Json(await run(answer))

    # read once: what a client writes in an address is compared with names, never opened
    page = importlib.resources.files("mipl.serve") / "page"
    for name, kind in PAGE.items():
        app.get(f"/{name}", include_in_schema=False)(_file((page / name).read_bytes(), kind))
    index = _docs(app)
    if board is not None and reviews is not None:
        index = _file((page / "index.html").read_bytes(), "text/html")
        _add_reviews(app, board, reviews, run, writer, allowed)
    app.get("/", include_in_schema=False)(index)
    app.get("/docs", include_in_schema=False)(_docs(app))
    return app


def _add_reviews(
    app: FastAPI,
    board: Board,
    reviews: Reviews,
    run: Callable[[Callable[[], Any]], Any],
    writer: concurrent.futures.Executor,
    limits: Limits,
) -> None:
    @app.get("/bags", summary="Every bag, the most doubtful first", responses=_says(401, 503))
    async def overview() -> Json:
        return Json(await run(lambda: board.overview(reviews.labels())))

    @app.get(
        "/bags/{place}",
        summary="One bag with the instances that the model looked at most",
        responses=_says(401, 404, 422, 503),
    )
    async def bag(place: int) -> Json:
        if not 0 <= place < len(board.bags):
            raise RefusedError(404, f"There is no bag {place}: there are {len(board.bags)}, counted from 0.")
        return Json(await run(lambda: board.bag(place)))

    @app.post(
        "/reviews",
        summary="Keep a reviewer's label of a bag; null takes it back",
        responses=_says(400, 401, 408, 413, 415, 422, 503),
        openapi_extra={"requestBody": _review_body()},
    )
    async def review(request: Request) -> dict[str, Any]:
        # a page of another site cannot send this type without asking first, and is then refused
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
            raise RefusedError(415, f"A review is sent as {JSON}.")
        content = parse_json(await _body(request, REVIEW_BYTES, limits.seconds))
        bag_id, label = content.get("bag_id"), content.get("label")
        named = isinstance(bag_id, str) and (label is None or isinstance(label, str))
        if not named or content.keys() != {"bag_id", "label"}:
            raise RefusedError(422, "A review has 'bag_id', a text, and 'label', a class or null.")
        # its own thread: a review waits for no prediction, and once begun it is not given up
        await asyncio.get_running_loop().run_in_executor(writer, lambda: reviews.add(str(bag_id), label))
        return {"bag_id": bag_id, "label": label, "reviewed": len(reviews.labels())}

    @app.get(
        "/reviews.csv",
        summary="The reviews as a label table for 'mipl fit --labels'",
        responses={200: {"content": {"text/csv": {"schema": {"type": "string"}}}}, **_says(401, 422)},
        response_class=Response,
    )
    async def export() -> Response:
        text = board.table(reviews.labels())
        return Response(
            text.encode("utf-8"),
            media_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="reviews.csv"'},
        )


async def _body(request: Request, most: int, seconds: float) -> bytes:
    """Return the body, which may be neither larger than ``most`` bytes nor slower than ``seconds``."""
    too_large = RefusedError(413, f"The body is above the limit of {most} bytes: send less at a time.")
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > most:
        raise too_large
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_large
                parts.append(part)
    except TimeoutError as error:
        raise RefusedError(408, f"The body did not arrive within {seconds:g} s.") from error
    except ClientDisconnect as error:
        raise RefusedError(400, "The client left before its body had arrived.") from error
    return b"".join(parts)


def _predictions(model: BagClassifier, ids: list[str], probabilities: Any) -> dict[str, Any]:
    classes = model.classes_.tolist()
    rows = zip(ids, probabilities.argmax(axis=1).tolist(), probabilities.tolist(), strict=True)
    return {
        "classes": classes,
        "predictions": [
            {"bag_id": bag, "label": classes[top], "confidence": row[top], "probabilities": row}
            for bag, top, row in rows
        ],
    }


def _about(model: BagClassifier, limits: Limits) -> dict[str, Any]:
    calibration = model.calibration_
    return {
        "method": model._method_name(),
        "classes": model.classes_.tolist(),
        "feature_shape": list(model.feature_shape_),
        "feature_names": model.trained_on_.get("feature_names"),
        "trained_on": {name: model.trained_on_[name] for name in ("bags", "instances", "candidates_per_bag")},
        "calibrated_by": None if calibration is None else calibration.by,
        "limits": {
            "bytes": limits.bytes,
            "bags": limits.bags,
            "instances": limits.instances,
            "seconds": limits.seconds,
        },
        "version": mipl.__version__,
    }


# ---- errors and documents ------------------------------------------------------------------------------


def _add_errors(app: FastAPI) -> None:
    def sentence(status: int, text: str, headers: Any = None) -> Json:
        return Json({"detail": text}, status, headers)

    async def mended(_: Request, error: Exception) -> Json:
        if isinstance(error, RefusedError):
            # the rest of a body that was given up is not waited for
            return sentence(
                error.status, str(error), {"connection": "close"} if error.status == 408 else None
            )
        return sentence(503 if isinstance(error, StorageError) else 422, str(error))

    async def plain(_: Request, error: Exception) -> Json:
        assert isinstance(error, HTTPException)
        return sentence(error.status_code, STATUSES.get(error.status_code, str(error.detail)), error.headers)

    async def invalid(_: Request, error: Exception) -> Json:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        return sentence(422, f"{where}: {first['msg']}.")

    app.add_exception_handler(MiplError, mended)
    app.add_exception_handler(HTTPException, plain)
    app.add_exception_handler(RequestValidationError, invalid)


def _says(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of refusals: one sentence each."""
    schema = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    return {
        status: {"description": STATUSES[status], "content": {JSON: {"schema": schema}}}
        for status in statuses
    }


def _predict_body() -> dict[str, Any]:
    numbers = {"type": "array", "items": {}}
    binary = {"schema": {"type": "string", "format": "binary"}}
    bags = {
        "type": "object",
        "properties": {
            "bags": {
                "type": "array",
                "minItems": 1,
                "items": {"type": "array", "minItems": 1, "items": numbers},
            },
            "ids": {"type": "array", "items": {"type": "string", "minLength": 1}},
            "feature_names": {"type": "array", "items": {"type": "string", "minLength": 1}},
        },
        "required": ["bags"],
        "additionalProperties": False,
    }
    return {"required": True, "content": {JSON: {"schema": bags}, NPY: binary, HDF5: binary}}


def _review_body() -> dict[str, Any]:
    properties = {"bag_id": {"type": "string"}, "label": {"type": ["string", "null"]}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _file(content: bytes, kind: str) -> Callable[[], Any]:
    async def file() -> Response:
        return Response(content, media_type=kind)

    return file


def _docs(app: FastAPI) -> Callable[[], Any]:
    async def docs() -> HTMLResponse:
        """Return the OpenAPI document as a page that needs nothing else."""
        parts = []
        for path, methods in app.openapi()["paths"].items():
            for method, about in methods.items():
                kinds = ", ".join(about.get("requestBody", {}).get("content", {}))
                answers = "".join(
                    f"<dt>{status}</dt><dd>{html.escape(answer['description'])}</dd>"
                    for status, answer in sorted(about["responses"].items())
                )
                said = html.escape(f"{about['summary']}. {about.get('description', '')}")
                said = re.sub("`(.+?)`", r"<code>\1</code>", said)
                parts.append(
                    f"<section class=card><h2><code>{method.upper()} {html.escape(path)}</code></h2>"
                    f"<p>{said}</p>"
                    + (f"<p>Body: {html.escape(kinds)}</p>" if kinds else "")
                    + f"<dl>{answers}</dl></section>"
                )
        return HTMLResponse(DOCS.format(body="".join(parts)))

    return docs


DOCS = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mipl: HTTP interface</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<meta name="color-scheme" content="light dark"><link rel="stylesheet" href="/page.css"></head>
<body><header><h1>mipl</h1><p>For programs: <a href="/openapi.json">openapi.json</a></p></header>
<main class="docs">{body}</main></body></html>"""
