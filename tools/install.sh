#!/bin/sh
# Installs the packages that building (install.sh build) or testing (install.sh test) needs and that are missing.
# Debian 12 and 13, Ubuntu 22.04 and 24.04. Says what it installs, and asks unless CI=true or nobody is there to
# answer. Elsewhere it names what is missing and leaves it to you.
set -eu
what=${1:-build}
python=${PYTHON:-python3}

have() { command -v "$1" >/dev/null 2>&1; }
lib() { have pkg-config && pkg-config --exists "$1" 2>/dev/null; }
header() { have cc && printf '#include <stdio.h>\n#include <%s>\n' "$1" | cc -E -x c - >/dev/null 2>&1; }
nginx_there() { have nginx || [ -x /usr/sbin/nginx ]; }
module() { have "$python" && "$python" -c "import $1" >/dev/null 2>&1; }

missing=
need() { # PACKAGE CHECK...
    package=$1
    shift
    "$@" || missing="$missing $package"
}
need gcc have cc
need libc6-dev header stdio.h
need meson have meson
need ninja-build have ninja
need pkg-config have pkg-config
need libjansson-dev lib jansson
need libutf8proc-dev lib libutf8proc
need libjpeg-dev lib libjpeg
need libpng-dev lib libpng
need zlib1g-dev lib zlib
need libwebp-dev lib libwebpdemux
need libgif-dev header gif_lib.h
need libssl-dev lib libssl
need libcurl4-openssl-dev lib libcurl
need ca-certificates test -s /etc/ssl/certs/ca-certificates.crt
need libevent-dev lib libevent_core
need libwslay-dev header wslay/wslay.h
need libhiredis-dev lib hiredis
need libcmocka-dev lib cmocka
if [ "$what" = test ]; then
    need binutils have objdump
    need python3 have python3
    need python3-numpy module numpy
    need python3-pytest module pytest
    need python3-pip module pip
    need curl have curl
    need redis-server have redis-server
    need openssl have openssl
    need nginx-light nginx_there
    need python3-yaml module yaml
    need systemd have systemd-analyze
    need nodejs have node
    need npm have npm
    # For the page's tests. Ubuntu has it as a snap only; the tests say then that they were left out.
    if grep -q '^ID=debian' /etc/os-release 2>/dev/null; then need chromium have chromium; fi
fi
[ -n "$missing" ] || exit 0

if ! have apt-get; then
    echo "install.sh: missing (named as in Debian):$missing" >&2
    echo "install.sh: there is no apt-get here; please install these by your system's means" >&2
    exit 1
fi
root=
if [ "$(id -u)" != 0 ]; then
    have sudo || { echo "install.sh: as root, please: apt-get install$missing" >&2; exit 1; }
    root=sudo
fi
echo "install.sh: missing packages:$missing" >&2
if [ "${CI:-}" != true ] && [ -t 0 ]; then
    printf 'install.sh: install them with apt-get? [Y/n] ' >&2
    read -r answer
    case $answer in [nN]*) exit 1 ;; esac
fi

try() { # up to three times; the network fails now and then
    for pause in 2 10 0; do
        "$@" >&2 </dev/null && return 0
        sleep $pause
    done
    echo "install.sh: failed: $*" >&2
    return 1
}
export DEBIAN_FRONTEND=noninteractive
apt="$root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o Dpkg::Use-Pty=0"
try $apt update
# shellcheck disable=SC2086
try $apt install -y --no-install-recommends $missing
