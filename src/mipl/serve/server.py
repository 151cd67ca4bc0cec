"""The process: a socket, uvicorn over it, logs as JSON lines, and an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import http
import ipaddress
import json
import logging
import signal
import socket
import sys
from collections.abc import Callable

import h11
import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from mipl.errors import SettingError, StorageError
from mipl.serve.door import JsonLines

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
CONNECTIONS = 128  # at once; more are told to come again
PATIENCE = 10  # seconds that requests in progress have at the end
HEADERS = 10.0  # seconds after which headers that have not arrived are waited for no longer
LINGER = 1.0  # seconds that a refused connection has to read its answer
SHORTEST_TOKEN = 16


class Prompt(H11Protocol):
    """HTTP/1.1 that gives up connections whose headers do not come: they would keep the places of others."""

    patience = HEADERS
    refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait."""
        super().connection_made(transport)
        self.loop.call_later(self.patience, self._look, None)

    def data_received(self, data: bytes) -> None:
        """Read what a client sends, unless it was refused already."""
        if not self.refused:
            super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(400, "This is not a valid HTTP request, or its headers are too long.")

    def _look(self, before: object) -> None:
        """Give up if no request has begun since the last look, when ``before`` was the latest one."""
        if self.refused or self.transport.is_closing():
            return
        if self.conn.their_state is h11.IDLE and self.scope is before:
            self._refuse(408, "The headers of a request did not arrive in time.")
        else:
            self.loop.call_later(self.patience, self._look, self.scope)

    def _refuse(self, status: int, sentence: str) -> None:
        self.refused = True
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):  # there was an answer already
            self.transport.close()
            return
        body = json.dumps({"detail": sentence}).encode()
        said = [("content-type", "application/json"), ("content-length", str(len(body)))]
        reason = http.HTTPStatus(status).phrase.encode()
        answer = h11.Response(status_code=status, headers=[*said, ("connection", "close")], reason=reason)
        for event in (answer, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event) or b"")
        # what still comes is dropped for a while: closed at once, with that unread, the answer might be lost
        self.transport.write_eof()
        self.loop.call_later(LINGER, self.transport.close)


class Announced(uvicorn.Server):
    """A server that says when it can be reached."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections."""
        await super().startup(sockets)
        self.ready()


def is_local(host: str) -> bool:
    """Return whether an address is reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Raise an error unless strangers who reach ``host`` have to show a token that they cannot guess."""
    if token is None and not is_local(host):
        raise SettingError(
            f"{host} is reached from other machines, so a token is needed: set MIPL_TOKEN to "
            f"{SHORTEST_TOKEN} or more random letters."
        )
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise SettingError(f"The token needs {SHORTEST_TOKEN} or more printable ASCII letters.")


def listen(host: str, port: int) -> socket.socket:
    """Return a bound socket; port 0 takes any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    found = socket.socket(family, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((host, port))
    except (OSError, OverflowError) as error:
        found.close()
        raise StorageError(
            f"Cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}."
        ) from error
    return found


def configured(app: FastAPI) -> uvicorn.Config:
    """Return how the application is served."""
    return uvicorn.Config(
        app,
        http=Prompt,
        ws="none",
        log_config=None,
        access_log=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
        server_header=False,
        proxy_headers=False,
    )


def run(app: FastAPI, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are answered first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("mipl.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    host, port = listening.getsockname()[:2]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    server = Announced(configured(app), lambda: ready(address))

    def stop(*_: object) -> None:
        server.should_exit = True

    # for a signal before uvicorn listens to them, and the same one that it sends again when it is done: by
    # then the end was orderly, and its code is 0
    before = signal.signal(signal.SIGTERM, stop)
    try:
        with listening, contextlib.suppress(KeyboardInterrupt):
            server.run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, before)
