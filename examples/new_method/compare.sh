#!/bin/sh
# Install the method, compare it with five others on own data over five splits, and write a page.
# compare.sh DATA OUT [options of `mipl run`, for example --set epochs=20]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
data=$1 out=$2
shift 2

mkdir -p "$out"
cp "$here/pyproject.toml" "$here"/*.py "$out" # so that building leaves nothing beside the source
python -m pip install --quiet --no-deps --no-build-isolation --target "$out/site" "$out"
export PYTHONPATH="$out/site${PYTHONPATH:+:$PYTHONPATH}"

  --splits 1-5 --out "$out/runs" "$@"
mipl compare "$out/runs" --reference robust-set --out "$out/comparison.html"
