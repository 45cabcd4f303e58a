#!/bin/sh
# Installs packages of Debian, if this is root on Debian: those that are given, or else those that `make test` uses;
# with --all, what only `make test-all` uses as well.
# What cannot be installed is said, and its tests are skipped. Safe to run again.
set -eu

can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; }
install_packages() {
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y -qq "$@" >/dev/null
}
update_packages() { apt-get -o DPkg::Lock::Timeout=600 update -qq >/dev/null 2>&1 || true; }
has() { command -v "$1" >/dev/null 2>&1; }

all=
if [ "${1:-}" = --all ]; then
    all=yes
    shift
fi
if [ $# -gt 0 ]; then
    can_install || exit 1
    update_packages
    install_packages "$@"
    exit
fi

packages=
# The tests of the Postgres store start a private server.
has initdb || ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || packages="$packages postgresql"
# The browser tests use the Chromium of the system.
has chromium || has chromium-browser || has google-chrome || packages="$packages chromium"
# The tests of MySQL start a private MariaDB.
[ -z "$all" ] || [ -x /usr/sbin/mariadbd ] || has mariadbd || packages="$packages mariadb-server"
if [ "$(uname)" = Linux ]; then
    # The tests of python_executor isolate programs with bubblewrap; chaos scenarios cut networks and set clocks.
    has bwrap || packages="$packages bubblewrap"
    has ip || packages="$packages iproute2"
    has faketime || packages="$packages faketime"
fi

if [ -n "$packages" ] && can_install; then
    echo "Installing for the tests:$packages …"
    update_packages
    # Together if possible: one package that cannot be installed must not prevent the others.
    # shellcheck disable=SC2086  # several words
    install_packages $packages || for package in $packages; do
        install_packages "$package" || echo "$package could not be installed: its tests will be skipped." >&2
    done
fi
