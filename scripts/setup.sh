#!/bin/sh
# Makes .venv with everything the project needs. Used by the Makefile; safe to run again.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Ferrule needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1). Try: make PYTHON=python3.12" >&2
    exit 1
}

if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv 2>/dev/null || {
        rm -rf .venv
        scripts/system_packages.sh python3-venv ||
            { echo "Cannot make a virtual environment: install python3-venv and try again." >&2; exit 1; }
        "$python" -m venv .venv
    }
fi

stamp=.venv/requirements.sum
sum=$(cat requirements.txt pyproject.toml | cksum)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$sum" ]; then
    echo "Installing the packages Ferrule needs …"
    # The lines of uv: its version, and the hashes below it.
    sed -n '/^uv==/,/[^\\]$/p' requirements.txt >.venv/uv.txt
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r .venv/uv.txt || true
    scripts/install.sh .venv/bin/python --require-hashes -r requirements.txt
    scripts/install.sh .venv/bin/python --no-deps --no-build-isolation -e .
    # On all cores. Some packages contain files for other versions of Python.
    .venv/bin/python -m compileall -qq -j 0 .venv/lib || true
    echo "$sum" >"$stamp"
fi
