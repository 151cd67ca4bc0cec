"""The HTTP application: predictions of a model and, for one data set, the review page."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import importlib.resources
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

import mipl
from mipl.errors import MiplError, StorageError
from mipl.estimators import BagClassifier
from mipl.serve.dashboard import Dashboard
from mipl.serve.middleware import RequestMiddleware
from mipl.serve.openapi import (
    PREDICT_DESCRIPTION,
    STATUSES,
    docs_page,
    error_responses,
    predict_body,
    review_body,
)
from mipl.serve.requests import JSON, Limits, RequestError, parse_json, read_bags, read_body
from mipl.serve.reviews import Reviews

MAX_REVIEW_BYTES = 4096  # a bag's id, a class, a name and a comment
ASSETS = {"page.js": "text/javascript", "page.css": "text/css"}
Result = TypeVar("Result")


class AsciiJSONResponse(JSONResponse):
    """JSON in ASCII, because text from a client may contain what UTF-8 cannot encode."""

    def render(self, content: Any) -> bytes:
        """Return the encoded content."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class Workers:
    """One thread for the model and one for writing reviews.

    The model computes one answer at a time: torch uses all cores, and queued requests can be cancelled.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._model = concurrent.futures.ThreadPoolExecutor(1, "model")
        self._writer = concurrent.futures.ThreadPoolExecutor(1, "reviews")

    async def compute(self, function: Callable[[], Result]) -> Result:
        """Run a function of the model, within the time limit."""
        future = asyncio.get_running_loop().run_in_executor(self._model, function)
        try:
            return await asyncio.wait_for(future, self.seconds)
        except TimeoutError as error:
            raise RequestError(
                503, f"There was no answer within {self.seconds:g} s: send fewer bags, or try again."
            ) from error

    async def write(self, function: Callable[[], None]) -> None:
        """Run a write to completion; it does not wait for predictions."""
        await asyncio.get_running_loop().run_in_executor(self._writer, function)

    def shutdown(self) -> None:
        """Cancel queued computations and finish queued writes."""
        self._model.shutdown(cancel_futures=True)
        self._writer.shutdown()


def make_app(
    model: BagClassifier,
    dashboard: Dashboard | None = None,
    reviews: Reviews | None = None,
    *,
    limits: Limits | None = None,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
) -> FastAPI:
    """Return the application for a trained model.

    Args:
        model: The trained classifier.
        dashboard: The bags of the review page; None: no review page.
        reviews: The file of reviews, together with ``dashboard``.
        limits: Limits of one request.
        token: Bearer token that requests must send; None: no token is needed.
        hosts: Host names under which a browser may call the server; None: any.
    """
    limits = limits or Limits()
    workers = Workers(limits.seconds)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        workers.shutdown()
        if reviews is not None:
            reviews.close()

    app = FastAPI(
        title="mipl",
        version=mipl.__version__,
        description="Calibrated predictions for bags of instances.",
        docs_url=None,  # FastAPI's pages load scripts from other sites
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=AsciiJSONResponse,
    )
    app.add_middleware(RequestMiddleware, token=token, hosts=hosts)
    _add_error_handlers(app)
    _add_prediction_routes(app, model, workers, limits)
    if dashboard is not None and reviews is not None:
        _add_review_routes(app, dashboard, reviews, workers)
    _add_pages(app, has_review_page=reviews is not None)
    return app


def _add_prediction_routes(app: FastAPI, model: BagClassifier, workers: Workers, limits: Limits) -> None:
    @app.get("/health", summary="Check that the server is running")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/model", summary="Describe the model and the request limits", responses=error_responses(401))
    async def describe() -> dict[str, Any]:
        return _describe(model, limits)

    @app.post(
        "/predict",
        summary="Predict the label, confidence and probabilities of each bag",
        description=PREDICT_DESCRIPTION,
        responses=error_responses(400, 401, 408, 413, 415, 422, 503),
        openapi_extra={"requestBody": predict_body()},
    )
    async def predict(request: Request) -> AsciiJSONResponse:
        body = await read_body(request, limits.bytes, limits.seconds)
        content_type = request.headers.get("content-type", "")

        def answer() -> dict[str, Any]:
            bags = read_bags(body, content_type, model.feature_shape_, limits)
            return _predictions(model, bags.ids.tolist(), model.predict_proba(bags))

        return AsciiJSONResponse(await workers.compute(answer))


def _add_review_routes(app: FastAPI, dashboard: Dashboard, reviews: Reviews, workers: Workers) -> None:
    def check_place(place: int) -> None:
        count = len(dashboard.bags)
        if not 0 <= place < count:
            raise RequestError(404, f"There is no bag {place}: the {count} bags are numbered from 0.")

    @app.get("/bags", summary="List all bags, the least confident first", responses=error_responses(401, 503))
    async def overview() -> AsciiJSONResponse:
        return AsciiJSONResponse(
            await workers.compute(lambda: dashboard.overview(reviews.latest(), reviews.audit()))
        )

    @app.get(
        "/bags/{place}",
        summary="Show one bag with its instances of highest attention",
        responses=error_responses(401, 404, 422, 503),
    )
    async def bag(place: int) -> AsciiJSONResponse:
        check_place(place)
        return AsciiJSONResponse(await workers.compute(lambda: dashboard.bag(place)))

    @app.get(
        "/bags/{place}/image",
        summary="Show the image of one bag",
        responses={200: {"content": {"image/jpeg": {}}}, **error_responses(401, 404, 422, 503)},
        response_class=Response,
    )
    async def image(place: int) -> Response:
        check_place(place)
        images, bag_id = dashboard.images, str(dashboard.bags.ids[place])
        if images is None or bag_id not in images:
            raise RequestError(404, f"There is no image of the bag {place}.")
        return Response(await workers.compute(lambda: images.jpeg(bag_id)), media_type="image/jpeg")

    @app.post(
        "/reviews",
        summary="Save a reviewer's label of a bag; null removes it",
        responses=error_responses(400, 401, 408, 413, 415, 422, 503),
        openapi_extra={"requestBody": review_body()},
    )
    async def review(request: Request) -> dict[str, Any]:
        given = await _read_review(request, workers.seconds)
        await workers.write(lambda: reviews.add(**given))
        reviewed = len({each.bag for each in reviews.latest()})
        return {"bag_id": given["bag"], "label": given["label"], "reviewed": reviewed}

    @app.get(
        "/reviews.csv",
        summary="Export the reviews as a label table for 'mipl fit --labels'",
        responses={
            200: {"content": {"text/csv": {"schema": {"type": "string"}}}},
            **error_responses(401, 422),
        },
        response_class=Response,
    )
    async def export() -> Response:
        return Response(
            reviews.table().encode("utf-8"),
            media_type="text/csv",
            headers={"Content-Disposition": 'attachment; filename="reviews.csv"'},
        )


async def _read_review(request: Request, seconds: float) -> dict[str, Any]:
    """Return the bag, the label (None: it is removed), the reviewer and the comment of a review."""
    # a page of another site cannot send this content type without a preflight request, which is refused
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != JSON:
        raise RequestError(415, f"Send a review as {JSON}.")
    content = parse_json(await read_body(request, MAX_REVIEW_BYTES, seconds))
    text = {name: content.get(name, "") for name in ("reviewer", "comment")}
    valid = isinstance(content.get("bag_id"), str) and isinstance(content.get("label"), str | None)
    valid &= {"bag_id", "label"} <= content.keys() <= {"bag_id", "label", *text}
    if not valid or not all(isinstance(value, str) for value in text.values()):
        raise RequestError(
            422,
            "A review has the fields 'bag_id', a string, and 'label', a class or null; and, if you like, "
            "'reviewer' and 'comment', strings.",
        )
    return {"bag": content["bag_id"], "label": content["label"], **text}


def _add_pages(app: FastAPI, has_review_page: bool) -> None:
    async def docs() -> HTMLResponse:
        return HTMLResponse(docs_page(app.openapi()))

    # read once: paths from a client are only compared with these names and never opened
    folder = importlib.resources.files("mipl.serve") / "page"
    for name, media_type in ASSETS.items():
        app.get(f"/{name}", include_in_schema=False)(_file((folder / name).read_bytes(), media_type))
    index = _file((folder / "index.html").read_bytes(), "text/html") if has_review_page else docs
    app.get("/", include_in_schema=False)(index)
    app.get("/docs", include_in_schema=False)(docs)


def _file(content: bytes, media_type: str) -> Callable[[], Awaitable[Response]]:
    async def file() -> Response:
        return Response(content, media_type=media_type)

    return file


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


def _describe(model: BagClassifier, limits: Limits) -> dict[str, Any]:
    calibration = model.calibration_
    return {
        "method": model._method_name(),
        "classes": model.classes_.tolist(),
        "feature_shape": list(model.feature_shape_),
        "feature_names": model.trained_on_.get("feature_names"),
        "features": model.trained_on_["provenance"].get("features"),
        "trained_on": {name: model.trained_on_[name] for name in ("bags", "instances", "candidates_per_bag")},
        "calibrated_by": None if calibration is None else calibration.by,
        "limits": dataclasses.asdict(limits),
        "version": mipl.__version__,
    }


def _add_error_handlers(app: FastAPI) -> None:
    def respond(status: int, detail: str, headers: Any = None) -> AsciiJSONResponse:
        return AsciiJSONResponse({"detail": detail}, status, headers)

    async def mipl_error(_: Request, error: Exception) -> AsciiJSONResponse:
        if isinstance(error, RequestError):
            # the rest of a body that timed out is not waited for
            headers = {"connection": "close"} if error.status == 408 else None
            return respond(error.status, str(error), headers)
        return respond(503 if isinstance(error, StorageError) else 422, str(error))

    async def http_error(_: Request, error: Exception) -> AsciiJSONResponse:
        assert isinstance(error, HTTPException)
        detail = STATUSES.get(error.status_code, str(error.detail))
        return respond(error.status_code, detail, error.headers)

    async def validation_error(_: Request, error: Exception) -> AsciiJSONResponse:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        return respond(422, f"{field}: {first['msg']}.")

    app.add_exception_handler(MiplError, mipl_error)
    app.add_exception_handler(HTTPException, http_error)
    app.add_exception_handler(RequestValidationError, validation_error)
