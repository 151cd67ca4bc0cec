"""What applies to every request: host and token checks, the access log, and security headers."""

from __future__ import annotations

import hmac
import json
import logging
import time
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOG = logging.getLogger("mipl.serve")
PUBLIC_PATHS = {"/health", "/", "/page.js", "/page.css"}  # without data; the page itself asks for the token
SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


class JsonFormatter(logging.Formatter):
    """Format a log record as one line of JSON; client input is escaped, so it cannot forge a line."""

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


class RequestMiddleware:
    """ASGI middleware around the whole application.

    Args:
        app: The application.
        token: Bearer token that requests must send; None: no token is needed.
        hosts: Host names under which the server answers; None: any.
    """

    def __init__(self, app: ASGIApp, token: str | None, hosts: frozenset[str] | None) -> None:
        self.app, self.hosts = app, hosts
        self.authorization = None if token is None else f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status, answered = time.perf_counter(), 500, False

        async def send_with_headers(message: Message) -> None:
            nonlocal status, answered
            if message["type"] == "http.response.start":
                status, answered = message["status"], True
                message = {**message, "headers": [*message.get("headers", []), *SECURITY_HEADERS]}
            await send(message)

        try:
            if (refusal := self._refusal(scope)) is not None:
                await _send_error(send_with_headers, *refusal)
            else:
                await self.app(scope, receive, send_with_headers)
        except Exception:
            LOG.exception("failure")
            if not answered:
                await _send_error(send_with_headers, 500, "Internal server error; see the server's log.")
        finally:
            fields = {
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "milliseconds": round(1000 * (time.perf_counter() - start), 2),
                "client": (scope.get("client") or ("", 0))[0],
            }
            LOG.info("request", extra={"fields": fields})

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Return the status and message with which a request is refused, or None if it is allowed."""
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").rpartition("@")[2]
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
        if self.hosts is not None and name.strip("[]").lower() not in self.hosts:
            # DNS rebinding: a web page whose host name resolves to this machine could read the answers
            return 421, "This server only answers local requests: use localhost or 127.0.0.1 as the host."
        if self.authorization is None or scope["path"] in PUBLIC_PATHS:
            return None
        if not hmac.compare_digest(headers.get(b"authorization", b""), self.authorization):
            return 401, "The token is missing or wrong: send the header 'Authorization: Bearer TOKEN'."
        return None


async def _send_error(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
