#!/bin/sh
# Install the method, compare it with five others on own data over five splits, and write a page.
# compare.sh DATA OUT [options of `mipl run`, for example --set epochs=20]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
data=$1 out=$(cd "$2" && pwd)
shift 2

cp "$here/pyproject.toml" "$here"/*.py "$out" # so that building leaves nothing beside the source
python -m pip install --quiet --no-deps --no-build-isolation --target "$out/site" "$out"
export PYTHONPATH="$out/site${PYTHONPATH:+:$PYTHONPATH}"

mipl run "$data" --methods robust-set,sam-cn,sam-mdl,abmil-cn,proden,fastmipl \
  --splits 1-5 --out "$out/runs" "$@"
mipl compare "$out/runs" --reference robust-set --out "$out/comparison.html"
