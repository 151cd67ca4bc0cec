"""What every request passes: checks of host and token, a line in the log, headers against other sources."""

from __future__ import annotations

import hmac
import json
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("mipl.serve")
OPEN = {"/health", "/", "/page.js", "/page.css"}  # they hold no data, and the page asks for the token itself
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


class JsonLines(logging.Formatter):
    """One JSON object a line; what a client wrote is escaped, so that no line can be forged."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        when = time.gmtime(record.created)
        line: dict[str, Any] = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', when)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line)


class Door:
    """Middleware around the whole application."""

    def __init__(self, app: ASGIApp, token: str | None, hosts: frozenset[str] | None) -> None:
        self.app, self.hosts = app, hosts
        self.token = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status, answered = time.perf_counter(), 500, False

        async def noting(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                message = {**message, "headers": [*message.get("headers", []), *HEADERS]}
            await send(message)

        try:
            if (refusal := self._refusal(scope)) is not None:
                await _answer(noting, *refusal)
            else:
                await self.app(scope, receive, noting)
        except Exception:
            LOG.exception("failure")
            if not answered:
                await _answer(noting, 500, "The server failed on this request; its log says why.")
        finally:
            fields = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "milliseconds": round(1000 * (time.perf_counter() - begun), 2),
                "client": (scope.get("client") or ("", 0))[0],
            }
            LOG.info("request", extra={"fields": fields})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").rpartition("@")[2]
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if self.hosts is not None and name.strip("[]").lower() not in self.hosts:
            # else a page on the web, under a name that leads here, could read what is served
            return 421, "This server answers on its own machine only: call it as localhost or 127.0.0.1."
        if self.token is not None and scope["path"] not in OPEN:
            given = headers.get(b"authorization", b"")
            if not hmac.compare_digest(given, self.token):
                return 401, "The token is missing or wrong: send the header 'Authorization: Bearer TOKEN'."
        return None


async def _answer(send: Send, status: int, sentence: str) -> None:
    body = json.dumps({"detail": sentence}).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
