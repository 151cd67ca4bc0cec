"""The OpenAPI descriptions of requests and errors, and a documentation page made from them."""

from __future__ import annotations

import html
import re
from typing import Any

from mipl.serve.requests import HDF5, JSON, NPY

STATUSES = {
    400: "The request body cannot be read.",
    401: "The token is missing or wrong.",
    404: "Not found.",
    405: "The method is not allowed for this address.",
    408: "The body took too long to arrive.",
    413: "The body or its content exceeds a limit.",
    415: "The content type is not supported.",
    422: "The content is invalid; the message names the bag or field and the fix.",
    503: "The server is busy or cannot write: try again.",
}
PREDICT_DESCRIPTION = (
    'A bag has shape instances × features. JSON: `{"bags": [[[…], …], …], "ids": […]}`; an `.npy` array of '
    "one bag, or of several with one more dimension; an HDF5 file with one bag as `features`."
)
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mipl: HTTP interface</title>
<meta name="viewport" content="width=device-width, initial-scale=1"><link rel="icon" href="data:,">
<meta name="color-scheme" content="light dark"><link rel="stylesheet" href="/page.css"></head>
<body><header><h1>mipl</h1><p>OpenAPI document: <a href="/openapi.json">openapi.json</a></p></header>
<main class="docs">{body}</main></body></html>"""


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI entries of error responses."""
    schema = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
    return {
        status: {"description": STATUSES[status], "content": {JSON: {"schema": schema}}}
        for status in statuses
    }


def predict_body() -> dict[str, Any]:
    """Return the OpenAPI description of the body of ``POST /predict``."""
    binary = {"schema": {"type": "string", "format": "binary"}}
    names = {"type": "array", "items": {"type": "string", "minLength": 1}}
    bag = {"type": "array", "minItems": 1, "items": {"type": "array", "items": {}}}
    bags = {"type": "array", "minItems": 1, "items": bag}
    schema = _object({"bags": bags, "ids": names, "feature_names": names}, required=["bags"])
    return {"required": True, "content": {JSON: {"schema": schema}, NPY: binary, HDF5: binary}}


def review_body() -> dict[str, Any]:
    """Return the OpenAPI description of the body of ``POST /reviews``."""
    properties = {
        "bag_id": {"type": "string"},
        "label": {"type": ["string", "null"]},
        "reviewer": {"type": "string", "maxLength": 100},
        "comment": {"type": "string", "maxLength": 500},
    }
    schema = _object(properties, required=["bag_id", "label"])
    return {"required": True, "content": {JSON: {"schema": schema}}}


def _object(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def docs_page(document: dict[str, Any]) -> str:
    """Return an OpenAPI document as an HTML page that loads nothing from other sites."""
    sections = [
        _section(method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    return PAGE.format(body="".join(sections))


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    types = ", ".join(operation.get("requestBody", {}).get("content", {}))
    responses = "".join(
        f"<dt>{status}</dt><dd>{html.escape(response['description'])}</dd>"
        for status, response in sorted(operation["responses"].items())
    )
    text = html.escape(f"{operation['summary']}. {operation.get('description', '')}")
    text = re.sub("`(.+?)`", r"<code>\1</code>", text)
    return (
        f"<section class=card><h2><code>{method.upper()} {html.escape(path)}</code></h2><p>{text}</p>"
        + (f"<p>Body: {html.escape(types)}</p>" if types else "")
        + f"<dl>{responses}</dl></section>"
    )
