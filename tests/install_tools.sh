#!/bin/sh
# Tools that only some tests need: promtool (alert rules) and chromium (the page). Where they are absent and this system
# cannot install them, the tests that need them are skipped and counted. Never fails, never takes long.
# Usage: sh tests/install_tools.sh DIRECTORY
tools=$(mkdir -p "$1" 2>/dev/null && cd "$1" && pwd) || exit 0
tried=$tools/tried
log=$tools/install.log

missing=
[ -x "$tools/usr/bin/promtool" ] || command -v promtool >/dev/null 2>&1 || missing="$missing promtool"
command -v chromium >/dev/null 2>&1 || command -v chromium-browser >/dev/null 2>&1 || missing="$missing chromium"
[ -n "$missing" ] || exit 0
# One attempt a day: a machine without a package index must not wait for it at every start.
[ -z "$(find "$tried" -mmin -1440 2>/dev/null)" ] || exit 0
command -v apt-get >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || exit 0
: >"$tried"
echo "Installing$missing for the tests that need them (once; at most 5 minutes) ..." >&2
export DEBIAN_FRONTEND=noninteractive
timeout 90 apt-get -qq update >"$log" 2>&1
case $missing in *promtool*)
    # Unpacked, not installed: the package would start a server.
    (cd "$tools" && timeout 60 apt-get -qq download prometheus >>"$log" 2>&1 &&
        dpkg -x prometheus_*.deb . && rm -f prometheus_*.deb) || echo "  promtool: not available" >&2 ;;
esac
case $missing in *chromium*)
    timeout 150 apt-get -qq install -y --no-install-recommends chromium >>"$log" 2>&1 || echo "  chromium: not available" >&2 ;;
esac
exit 0
