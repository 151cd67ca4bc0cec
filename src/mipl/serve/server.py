"""The server process: a socket, uvicorn, logs as JSON lines, and a graceful shutdown."""

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
from mipl.serve.middleware import JsonFormatter

LOCAL_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
MIN_TOKEN_LENGTH = 16
# limits of uvicorn; docs/serve.md says what they do not cover and what a reverse proxy adds
MAX_CONNECTIONS = 128  # from this number on requests are answered with 503
MAX_HEADER_BYTES = 64 * 2**10  # of headers that have not ended
KEEP_ALIVE_SECONDS = 5  # that a connection may stay idle between two requests
SHUTDOWN_SECONDS = 10  # for requests in progress


def is_local(host: str) -> bool:
    """Return whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_token(host: str, token: str | None) -> None:
    """Raise an error unless ``host`` is local or there is a token that is hard to guess."""
    if token is None and not is_local(host):
        raise SettingError(
            f"--host {host} can be reached from other machines, so a token is needed: set MIPL_TOKEN to "
            f"{MIN_TOKEN_LENGTH} or more random characters."
        )
    if token is not None and (
        len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable()
    ):
        raise SettingError(f"The token needs {MIN_TOKEN_LENGTH} or more printable ASCII characters.")


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; port 0 chooses a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen()
    except (OSError, OverflowError) as error:
        listening.close()
        raise StorageError(
            f"Cannot listen on {host}, port {port}: {getattr(error, 'strerror', None) or error}."
        ) from error
    return listening


def make_server(app: FastAPI) -> uvicorn.Server:
    """Return the uvicorn server of an application, with its limits."""
    return uvicorn.Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            log_config=None,
            access_log=False,
            limit_concurrency=MAX_CONNECTIONS,
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            server_header=False,
            proxy_headers=False,
        )
    )


def run(app: FastAPI, listening: socket.socket, announce: Callable[[str], None]) -> None:
    """Serve until SIGTERM or SIGINT; requests in progress are answered first.

    Args:
        app: The application.
        listening: A socket from :func:`listen`, closed at the end.
        announce: Called with the address; connections made from then on are answered.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in ("mipl.serve", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO)
    host, port = listening.getsockname()[:2]
    server = make_server(app)

    def stop(*_: object) -> None:
        server.should_exit = True

    # For a signal before uvicorn installs its handlers, and for the one that it raises again after shutting
    # down: the shutdown was graceful by then, and the exit code is 0.
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        with listening, contextlib.suppress(KeyboardInterrupt):
            announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")
            server.run(sockets=[listening])
    finally:
        signal.signal(signal.SIGTERM, previous)
