#!/usr/bin/env bash
# Build the wheel, install it alone into a fresh environment and import it from there, not from the source tree.
# The dependencies (torch is large) are lent by the environment given as $1 through a .pth file: a path added by
# a .pth has its own .pth files ignored, so the editable install in the lender stays invisible.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "${1:-.venv}" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$venv/bin/python" -m build --quiet --wheel --no-isolation --outdir "$work/dist" .
"$venv/bin/python" -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --no-deps "$work"/dist/*.whl
"$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/lender.pth"

cd "$work"
"$work/venv/bin/python" -I - <<'PY'
import importlib
import sys
import sysconfig

home = sysconfig.get_path("purelib")
for name in ("durable_core", "lightning_durable", "accelerate_durable"):
    module = importlib.import_module(name)
    place = module.__file__ or next(iter(module.__path__))
    if not place.startswith(home):
        sys.exit(f"{name} was imported from {place}, not from the installed wheel")
    print(f"{name}: imported from the wheel")
PY
"$work/venv/bin/durable" --help > "$work/help.txt"
grep -q "audit" "$work/help.txt" || { cat "$work/help.txt"; echo "durable --help names no audit command"; exit 1; }
echo "durable --help: answered from the wheel"
