#!/bin/sh
# Installs MCP servers that other people wrote into .servers, for the tests in tests/mcp_servers/test_public_servers.py.
# What cannot be installed is said, and its tests are skipped: this never fails. Safe to run again.
#
# New versions: edit requirements.in and package.json beside their locks, then
#   cd scripts/public_servers && npm install --package-lock-only && uv pip compile --universal --python-version 3.11 \
#       --generate-hashes --no-emit-index-url --no-header requirements.in -o requirements.txt
set -eu
cd "$(dirname "$0")/.."
locks=scripts/public_servers
home=.servers
python=.venv/bin/python
[ -x "$python" ] || python=${PYTHON:-python3}
mkdir -p "$home"
echo '*' >"$home/.gitignore"

# They are written for older versions of the SDK than ours, so they have an environment of their own.
install_python() {
    sum=$(cksum <"$locks/requirements.txt")
    [ -f "$home/python.sum" ] && [ "$(cat "$home/python.sum")" = "$sum" ] && return
    echo "Installing MCP servers from PyPI for the tests …"
    rm -rf "$home/python" "$home/python.sum"
    if "$python" -m venv "$home/python" >/dev/null 2>&1 &&
        "$home/python/bin/python" -m pip install --quiet --disable-pip-version-check --timeout 15 --retries 1 \
            --require-hashes --no-deps -r "$locks/requirements.txt" >"$home/python.log" 2>&1; then
        echo "$sum" >"$home/python.sum"
    else
        rm -rf "$home/python"
        echo "The servers from PyPI could not be installed (see $home/python.log): their tests will be skipped." >&2
    fi
}

install_node() {
    sum=$(cksum <"$locks/package-lock.json")
    [ -f "$home/node.sum" ] && [ "$(cat "$home/node.sum")" = "$sum" ] && return
    if ! command -v npm >/dev/null 2>&1 || ! command -v node >/dev/null 2>&1; then
        echo "There is no Node.js with npm here: the tests of the servers from npm will be skipped." >&2
        return
    fi
    echo "Installing MCP servers from npm for the tests …"
    rm -rf "$home/node" "$home/node.sum"
    mkdir -p "$home/node"
    cp "$locks/package.json" "$locks/package-lock.json" "$home/node"
    if npm ci --prefix "$home/node" --ignore-scripts --no-audit --no-fund --fetch-timeout=15000 --fetch-retries=1 \
        >"$home/node.log" 2>&1; then
        echo "$sum" >"$home/node.sum"
    else
        rm -rf "$home/node"
        echo "The servers from npm could not be installed (see $home/node.log): their tests will be skipped." >&2
    fi
}

install_python &
install_node
wait
