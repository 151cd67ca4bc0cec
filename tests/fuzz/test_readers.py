"""No damaged file ends in anything but bags or one sentence, takes long, or fills the memory."""

import json
import os
import subprocess
import sys
from pathlib import Path

from fuzz.mutations import KINDS

HERE = Path(__file__).parent
SEEDS = 5040 // len(KINDS)  # damaged files of each kind
MEGABYTES = 200  # of memory that reading small files may take


def test_damaged_files_are_read_or_refused(fuzz, tmp_path):
    cases = list(fuzz("damaged files", [f"{kind} {seed}" for kind in KINDS for seed in range(SEEDS)]))
    done = subprocess.run(
        [sys.executable, str(HERE / "read_damaged.py"), str(tmp_path)],
        input="\n".join(cases) + "\n",
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
    )
    outcomes = {}
    for line in done.stdout.splitlines():
        found = json.loads(line)
        outcomes[found["case"]] = found  # the last line of a case counts; its first says that it crashed
    assert "start" in outcomes, done.stderr[-3000:]
    wrong = {
        case: found["said"] for case, found in outcomes.items() if found["said"] not in ("read", "refused")
    }
    assert wrong == {}
    assert done.returncode == 0, done.stderr[-3000:]
    assert set(cases) <= outcomes.keys()
    assert {found["said"] for found in outcomes.values()} == {"read", "refused"}
    peak = max(found["megabytes"] for found in outcomes.values())
    assert peak - outcomes["start"]["megabytes"] < MEGABYTES
