"""Read damaged files in a process of its own: python read_damaged.py FOLDER < cases > outcomes.

A case is a line ``KIND SEED``; its outcome one line of JSON, written before the next case begins. Memory is
limited, and a case that does not end is interrupted.
"""

import contextlib
import json
import resource
import signal
import sys
import traceback
import warnings
from pathlib import Path

import numpy as np
from mutations import KINDS, damaged, originals

SECONDS = 30
BYTES = 4 * 2**30  # of address space beyond what the libraries take


class DidNotEndError(BaseException):
    """Not an Exception, so that no reader takes it for a damaged file."""


def read(kind: str, path: Path) -> None:
    """Read a file as the library would, values included."""
    from mipl.data.sources import Source

    stem = kind.partition(".")[0]
    if stem == "bags" or kind == "partial.mat":
        bags = Source(str(path)).open()
        bags.digest()
        if path.suffix == ".npz":
            with contextlib.suppress(OSError):  # may be compressed, which cannot be mapped
                type(bags).load(path, mapped=True).digest()
    elif stem == "slide":
        Source(str(path.parent)).open().digest()
    elif stem == "labels":
        from mipl.data.formats.table import read_label_table

        read_label_table(path)
    elif stem in ("votes", "wide"):
        from mipl.data.votes import agreement, candidates, read_votes

        votes = read_votes(path)
        agreement(votes)
        candidates(votes)
    elif stem == "predictions":
        from mipl.data.formats.table import read_predictions

        read_predictions(path)
    elif stem in ("splits_1", "index1"):
        from mipl.data.splits import official_split

        official_split(BAGS[0], path.parent, 1)
    elif stem == "body":
        from mipl.serve.requests import HDF5, JSON, NPY, Limits, read_bags

        form = {".json": JSON, ".npy": NPY, ".h5": HDF5}[path.suffix]
        read_bags(path.read_bytes(), form, (4,), Limits())
    elif stem == "train":
        from mipl.data.formats.idx import read_idx

        read_idx(path.parent, "train.idx")
    elif stem == "arrays":
        from mipl.data.formats.arrays import read_arrays

        read_arrays(path, {"features": (None, 4), "coords": (None, 2)})
    elif stem == "sival":
        from mipl.data.formats.c45 import read_c45

        read_c45(path)
    else:
        from mipl.data.images import generate, make_generator

        generate(path.parent, make_generator("row"), path.parent / "out")


BAGS = []  # the bags that split files speak of


def interrupted(*_: object) -> None:
    raise DidNotEndError


def outcome(kind: str, seed: int, content: bytes, folder: Path) -> dict[str, object]:
    """Return what became of one case: read, refused with one line, or what is wrong."""
    from mipl.errors import MiplError

    rng = np.random.default_rng([KINDS.index(kind), seed])
    for old in sorted(folder.rglob("*"), reverse=True):
        old.rmdir() if old.is_dir() else old.unlink()
    path = folder / kind
    path.write_bytes(damaged(content, rng))
    signal.alarm(SECONDS)
    try:
        read(kind, path)
        said = "read"
    except MiplError as error:
        said = "refused" if str(error).strip() and "\n" not in str(error) else f"not one line: {error!s:.500}"
    except DidNotEndError:
        said = f"did not end: {traceback.format_exc()[-1500:]}"
    except BaseException:
        said = traceback.format_exc()[-3000:]
    finally:
        signal.alarm(0)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"case": f"{kind} {seed}", "said": said, "megabytes": peak}


def main() -> None:
    folder = Path(sys.argv[1])
    warnings.simplefilter("ignore")
    contents = originals(folder / "valid")
    from mutations import _bags

    BAGS.append(_bags())
    place = folder / "damaged"
    place.mkdir()
    for kind in KINDS:  # everything is imported, and a valid file of every kind is read
        (place / kind).write_bytes(contents[kind])
        read(kind, place / kind)
        for old in sorted(place.rglob("*"), reverse=True):
            old.rmdir() if old.is_dir() else old.unlink()
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (pages + BYTES, pages + BYTES))
    signal.signal(signal.SIGALRM, interrupted)
    start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    print(json.dumps({"case": "start", "said": "read", "megabytes": start}), flush=True)
    for line in sys.stdin:
        kind, seed = line.split()
        print(json.dumps({"case": f"{kind} {seed}", "said": "crashed"}), flush=True)
        print(json.dumps(outcome(kind, int(seed), contents[kind], place)), flush=True)


if __name__ == "__main__":
    main()
