#!/bin/sh
# Installs Python packages into an environment: scripts/install.sh PYTHON ARGUMENTS-OF-PIP-INSTALL
# uv does it in a sixth of pip's time; it is told where pip would look, because it does not read pip's settings.
# Where uv is missing or fails, pip does it.
set -eu
python=$1
shift

pip_setting() {
    "$python" -m pip config list 2>/dev/null | sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" | head -n 1
}

uv=$(dirname "$0")/../.venv/bin/uv
if [ -x "$uv" ]; then
    index=$(pip_setting index-url) more=$(pip_setting extra-index-url) links=$(pip_setting find-links)
    "$uv" pip install --quiet --no-config --system-certs --index-strategy unsafe-best-match \
        --python "$python" ${index:+--default-index "$index"} ${more:+--index "$more"} \
        ${links:+--find-links "$links"} "$@" && exit
    echo "uv could not install these packages, so pip tries it." >&2
fi
exec "$python" -m pip install --quiet --disable-pip-version-check --no-compile "$@"
