#!/usr/bin/env bash
# Makes .venv from the lock and installs this tree into it. Does nothing when that is already so: `make` calls it often.
# Needs Python 3.11 or later. What is missing on Debian it installs when it is root; else it says what to install.
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '%s\n' "setup: $*" >&2; }
fail() { say "$@"; exit 2; }

install_packages() { # $1: what for; then the Debian packages
    local purpose=$1
    shift
    if [ "$(id -u)" != 0 ]; then
        fail "$purpose. Install it and try again:  sudo apt-get install $*"
    fi
    command -v apt-get >/dev/null || fail "$purpose. There is no apt-get here: install the equivalent of: $*"
    say "$purpose: apt-get install $* (up to a minute)"
    local log
    log=$(mktemp)
    if ! { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } </dev/null >"$log" 2>&1; then
        tail -n 20 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

watched() { # $1: how many; $2: where uv unpacks each package; $3: the process; a moving count, where somebody watches
    if [ -t 2 ]; then
        while kill -0 "$3" 2>/dev/null; do
            printf '\rsetup:   %d of %d' "$(find "$2" -mindepth 1 -maxdepth 1 2>/dev/null | wc -l)" "$1" >&2
            sleep 0.3
        done
        printf '\r\033[K' >&2
    fi
    wait "$3"
}

unpack_beside() { # $1: a Debian package that must not be installed here; $2: a file of it; then packages to go with it
    local package=$1 file=$2 place=.venv/interop/$1 fetched each
    shift 2
    if [ -x "$place/$file" ]; then return; fi
    command -v apt-get >/dev/null && command -v dpkg >/dev/null || { say "$package cannot be had here: its tests will be skipped"; return; }
    fetched=$(mktemp -d)
    for each in "$package" "$@"; do
        (cd "$fetched" && apt-get download -qq "$each" >&2 && dpkg -x "$each"_*.deb unpacked) ||
            { say "$each could not be fetched: the tests with $package will be skipped"; rm -rf "$fetched"; return; }
    done
    mkdir -p .venv/interop
    rm -rf "$place"
    mv "$fetched/unpacked" "$place"
    rm -rf "$fetched"
}

find_python() { # the system's own first: distributions build it with profile-guided optimization; pyenv does not, and is a third slower
    local candidate
    for candidate in "${PYTHON:-}" /usr/bin/python3 python3.11 python3 python3.14 python3.13 python3.12; do
        if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
}

if [ "${1:-}" = interop ]; then # what `make test-all` and `make bench` need beyond Python
    missing=()
    [ -x /usr/sbin/postfix ] || missing+=(postfix)
    [ -x /usr/sbin/dovecot ] || missing+=(dovecot-core)  # SASL of a smart host
    [ -x /usr/sbin/haproxy ] || missing+=(haproxy)
    [ -x /usr/bin/rspamd ] || missing+=(rspamd)
    command -v m4 >/dev/null || missing+=(m4) # Sendmail's configuration
    command -v unshare >/dev/null || missing+=(util-linux)
    command -v ip >/dev/null || missing+=(iproute2) # nodes in network namespaces, to cut them apart
    command -v systemd-analyze >/dev/null || missing+=(systemd)
    for library in libidn12 libgnutls-dane0 libdb5.3 libevent-2.1-7 libwrap0 libnsl2 libpcre2-8-0; do # of Exim, OpenSMTPD, Sendmail
        dpkg -s "$library" >/dev/null 2>&1 || missing+=("$library")
    done
    command -v swaks >/dev/null || missing+=(swaks)
    perl -MNet::SSLeay -e '' 2>/dev/null || missing+=(libnet-ssleay-perl)
    command -v chromium >/dev/null || missing+=(chromium) # the report's page in a real browser; 350 MB, so not for `make test`
    if [ ${#missing[@]} -gt 0 ]; then
        if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
            install_packages "${missing[*]} missing (interop tests and benchmark)" "${missing[@]}"
        else
            say "${missing[*]} missing: the tests that need them will be skipped. For them:  sudo apt-get install ${missing[*]}"
        fi
    fi
    unpack_beside exim4-daemon-light usr/sbin/exim4
    unpack_beside opensmtpd usr/sbin/smtpd
    unpack_beside sendmail-bin usr/libexec/sendmail/sendmail sendmail-cf
    unpack_beside prometheus usr/bin/promtool # the whole package brings a server that starts
    exit 0
fi

java_version() { java -version 2>&1 | sed -nE '1s/.*version "(1\.)?([0-9]+).*/\2/p'; }
has_java() { [ "$(java_version)" -ge 17 ] 2>/dev/null; }
version_of() { "$1" -c 'import sys; print(sys.version)' 2>/dev/null; }

python=$(find_python)
stamp=.venv/.shadowrelay-setup
wanted_of() { version_of "$1" | cat - requirements/dev.txt pyproject.toml requirements/setup.sh | sha256sum; }
is_ready() { [ -n "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$(wanted_of "$python")" ] && .venv/bin/python -c '' 2>/dev/null; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
if is_ready && { has_java || ! can_install; }; then
    [ -w "$stamp" ] && touch "$stamp"
    exit 0
fi

# ---- what this system lacks: all of it at once, in order of need
needed=()
has_venv() { .venv/bin/python -m pip --version >/dev/null 2>&1 && [ "$(version_of .venv/bin/python)" = "$(version_of "$python")" ]; }
if [ -z "$python" ]; then
    needed=(python3 python3-venv)
elif ! has_venv && ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then # Debian splits the standard library
    needed=("$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')")
fi
useful=()
has_java || useful=(default-jre-headless) # the report on service levels runs on Spark; the relay does without
if [ ${#needed[@]} -gt 0 ] && ! can_install; then
    fail "missing: ${needed[*]}${useful[*]:+; and for the report on service levels, without which all else works, ${useful[*]}}." \
        "Install it and try again:  sudo apt-get install ${needed[*]} ${useful[*]}"
elif [ ${#useful[@]} -gt 0 ] && ! can_install; then
    say "Java 17 or later is missing: no report on service levels, all else works. For it:  sudo apt-get install ${useful[*]}"
elif [ $((${#needed[@]} + ${#useful[@]})) -gt 0 ]; then
    install_packages "Debian's packages" "${needed[@]}" "${useful[@]}" ||
        { [ ${#needed[@]} -eq 0 ] || install_packages "without Java" "${needed[@]}"; } || fail "apt-get could not install ${needed[*]}: see above"
    has_java || say "Java could not be installed: no report on service levels, all else works"
fi
python=$(find_python)
[ -n "$python" ] || fail "the python3 of this system is older than 3.11; install a newer one and set PYTHON=/path/to/python3"
if is_ready; then exit 0; fi

if ! has_venv; then
    say "creating .venv with $python"
    "$python" -m venv --clear .venv
fi

# ---- the lock: uv fetches, builds and unpacks all at once, which pip does one after the other; pip, where uv cannot be had or fails
pip=(.venv/bin/python -m pip --disable-pip-version-check --no-input)
work=.venv/.setup
rm -rf "$work" && mkdir "$work"
trap 'rm -rf "$work"' EXIT
count=$(grep -c '==' requirements/dev.txt)
configured() { "${pip[@]}" config list 2>/dev/null | sed -nE "s/^(:env:|install|global)\.$1='(.*)'$/\2/p" | tail -n 1; }
has_uv() {
    awk '/^[a-z0-9]/ { inside = ($1 ~ /^uv==/) } inside' requirements/dev.txt >"$work/uv.txt"
    "${pip[@]}" install --quiet --no-compile --require-hashes --no-deps --only-binary :all: -r "$work/uv.txt" >"$work/log" 2>&1
}
with_uv() { # its own cache, on the same disk, so that files are linked instead of copied; it goes away
    local index certificates
    index=$(configured index-url) certificates=$(configured cert)
    export UV_CACHE_DIR=$work/fetched UV_NO_CONFIG=1 UV_SYSTEM_CERTS=1 UV_HTTP_TIMEOUT=180
    if [ -n "$index" ]; then export UV_DEFAULT_INDEX=$index; fi
    if [ -n "$certificates" ]; then export SSL_CERT_FILE=$certificates; fi
    # PySpark comes as source, of which a wheel is made: to compress that would take longer than all the rest
    .venv/bin/uv pip install --quiet --python .venv/bin/python --require-hashes --no-deps --build-constraints requirements/dev.txt \
        --config-settings-package 'pyspark:--build-option=--compression=stored' -r requirements/dev.txt >"$work/log" 2>&1 &
    watched "$count" "$work/fetched/archive-v0" $!
}
say "installing $count locked packages (requirements/dev.txt; half a minute, or more by the network)"
if ! { has_uv && with_uv; }; then
    say "uv could not do it ($(tail -n 1 "$work/log")); pip does, in some minutes"
    "${pip[@]}" install --quiet --no-compile --require-hashes --no-deps -r requirements/dev.txt >"$work/log" 2>&1 ||
        { tail -n 20 "$work/log" >&2; fail "pip could not install the locked packages: see above"; }
fi
"${pip[@]}" install --quiet --no-build-isolation --no-deps --editable .
say "compiling them (seconds)" # not what single tests use: that is compiled at its first use
packages=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
.venv/bin/python -m compileall -q -j 2 -x '/(tests?|pip|setuptools|mypyc?|moto|schemathesis|graphql|playwright|botocore)/' "$packages" \
    >/dev/null 2>&1 || true # some have files for other versions
if has_java && [ "${1:-}" = demo ]; then # beside the demo, which mostly waits; Ctrl-C ends both
    say "keeping Spark's classes for later reports, beside the demo"
    env --default-signal=INT nice -n 19 .venv/bin/shadowrelay sla prepare </dev/null >/dev/null 2>&1 &
elif has_java; then
    say "keeping Spark's classes for the next starts (up to a minute)"
    .venv/bin/shadowrelay sla prepare >/dev/null 2>&1 || say "Spark's classes could not be kept: reports start a few seconds later, all else works"
fi
wanted_of "$python" >"$stamp"
