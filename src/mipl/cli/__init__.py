"""The command line: thin verbs over the library."""

from __future__ import annotations

import sys
import warnings


def main(argv: list[str] | None = None) -> int:
    """Run ``mipl`` and return its exit code; an error that a user can mend is one sentence and 2."""
    # they add their verbs
    from mipl.cli import data, experiments, models, paper, serve, show, trust  # noqa: F401
    from mipl.cli.app import app
    from mipl.errors import MiplError

    with warnings.catch_warnings():
        warnings.showwarning = _notice
        try:
            app(args=argv, prog_name="mipl")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except MiplError as error:
            print(f"mipl: {error}", file=sys.stderr)
            return 2
    return 0


def _notice(message: Warning | str, *_: object, **__: object) -> None:
    print(f"mipl: note: {message}", file=sys.stderr)
