"""The command line: thin verbs over the library."""

from __future__ import annotations

import sys
import warnings


def main(argv: list[str] | None = None) -> int:
    """Run ``mipl`` and return its exit code; a user error prints one sentence and returns 2."""
    # importing these modules registers their verbs
    from mipl.cli import (  # noqa: F401
        annotators,
        calibrate,
        data,
        doctor,
        evaluate,
        experiments,
        models,
        paper,
        results,
        serve,
        show,
        triage,
        watch,
    )
    from mipl.cli.app import app
    from mipl.errors import MiplError

    with warnings.catch_warnings():
        warnings.showwarning = _print_note
        try:
            app(args=argv, prog_name="mipl")
        except SystemExit as end:
            return end.code if isinstance(end.code, int) else int(end.code is not None)
        except MiplError as error:
            print(f"mipl: {error}", file=sys.stderr)
            return 2
    return 0


def _print_note(message: Warning | str, *_: object, **__: object) -> None:
    print(f"mipl: note: {message}", file=sys.stderr)
