#!/bin/sh
# Installs into .servers what other people wrote: MCP servers, for tests/kinds/mcp/test_public_servers.py, and the
# official conformance suite of MCP (with the Node.js it needs), for tests/server/test_conformance.py.
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
        PIP_TIMEOUT=15 PIP_RETRIES=1 scripts/install.sh "$home/python/bin/python" --require-hashes --no-deps \
            -r "$locks/requirements.txt" >"$home/python.log" 2>&1; then
        echo "$sum" >"$home/python.sum"
    else
        rm -rf "$home/python"
        echo "The servers from PyPI could not be installed (see $home/python.log): their tests will be skipped." >&2
    fi
}

# A folder with a package.json and its lock, and what is in it.
install_node() {
    folder=$1 name=$2 what=$3
    sum=$(cksum <"$folder/package-lock.json")
    [ -f "$home/$name.sum" ] && [ "$(cat "$home/$name.sum")" = "$sum" ] && return
    if ! command -v npm >/dev/null 2>&1 || ! command -v node >/dev/null 2>&1; then
        echo "There is no Node.js with npm here: the tests with $what will be skipped." >&2
        return
    fi
    echo "Installing $what from npm for the tests …"
    rm -rf "$home/$name" "$home/$name.sum"
    mkdir -p "$home/$name"
    cp "$folder/package.json" "$folder/package-lock.json" "$home/$name"
    if npm ci --prefix "$home/$name" --ignore-scripts --no-audit --no-fund --fetch-timeout=15000 --fetch-retries=1 \
        >"$home/$name.log" 2>&1; then
        echo "$sum" >"$home/$name.sum"
    else
        rm -rf "$home/$name"
        echo "From npm, $what could not be installed (see $home/$name.log): its tests will be skipped." >&2
    fi
}

install_python &
install_node "$locks" node "MCP servers"
install_node scripts/conformance conformance "the conformance suite of MCP"
wait
