"""The process: a socket, uvicorn over it, logs as JSON lines, and an orderly end."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import signal
import socket
import sys
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from mipl.errors import SettingError, StorageError
from mipl.serve.door import JsonLines

LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
CONNECTIONS = 128  # at once; more are told to come again
PATIENCE = 10  # seconds that requests in progress have at the end
SHORTEST_TOKEN = 16


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


def run(app: FastAPI, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are answered first."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in ("mipl.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        limit_concurrency=CONNECTIONS,
        timeout_graceful_shutdown=PATIENCE,
        server_header=False,
        proxy_headers=False,
    )
    host, port = listening.getsockname()[:2]
    server = Announced(config, lambda: ready(f"http://{f'[{host}]' if ':' in host else host}:{port}"))

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
