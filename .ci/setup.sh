#!/bin/sh
# Make .venv ready: .ci/setup.sh [GROUP...], where GROUP is test, lint or docs. Called by make, from the top of the clone.
#
# PYTHON=... names another interpreter. Nothing happens when what is asked for is there already.
set -eu

NEEDED_KB=3000000  # .venv takes 2 GB with compiled bytecode; what is downloaded is unpacked beside it
VENV=.venv

say() { printf '%s\n' "$@" >&2; }
fail() { say "" "$@"; exit 1; }

# What a caller's shell has set must not decide what is installed, or where. Some shells call it a failure to unset what is
# not set, which is why these two may fail.
unset VIRTUAL_ENV CONDA_PREFIX PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE PYTHONPYCACHEPREFIX 2>/dev/null || true
unset UV_PYTHON UV_SYSTEM_PYTHON UV_PROJECT_ENVIRONMENT UV_TARGET UV_PREFIX PIP_TARGET PIP_PREFIX PIP_USER 2>/dev/null || true

stamp() { { pwd; cat pyproject.toml constraints.txt; } | cksum; }

# The first interpreter that fits; what was looked at goes to stderr when none does.
find_python() {
    seen=""
    for candidate in "$@"; do
        version=$("$candidate" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null) || continue
        case $version in
            3.11.* | 3.12.* | 3.13.*)
                if "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
                    printf '%s\n' "$candidate"
                    return
                fi
                seen="$seen
  $candidate is $version, without the modules venv and ensurepip (on Debian: apt install python${version%.*}-venv)" ;;
            *) seen="$seen
  $candidate is $version" ;;
        esac
    done
    fail "Python 3.11, 3.12 or 3.13 is needed. Looked at:${seen:- nothing that runs: $*}" \
         "Install one, or name it: make PYTHON=/path/to/python3.11 ..."
}

check_disk() {
    needed=$NEEDED_KB
    [ ! -x "$VENV/bin/airflow" ] || needed=$((NEEDED_KB / 6))
    free=$(df -Pk . | awk 'NR == 2 { print $4 }')
    [ "$free" -ge "$needed" ] ||
        fail "$((free / 1000)) MB are free in $(pwd); installing needs $((needed / 1000)) MB." "Free space there and start again."
}

# A clone that was moved or copied, or whose interpreter is gone, gets a new environment: scripts in it hold its path. One
# that somebody else made here is used as it is.
venv_fits() {
    [ -x "$VENV/bin/python" ] && [ "$(cat "$VENV/.place" 2>/dev/null || pwd)" = "$(pwd)" ] &&
        made_of=$("$VENV/bin/python" -c 'import sys; print(sys.base_prefix) if (3, 11) <= sys.version_info < (3, 14) else sys.exit(1)' 2>/dev/null) &&
        { [ -z "${PYTHON:-}" ] || [ "$("$PYTHON" -c 'import sys; print(sys.base_prefix)' 2>/dev/null)" = "$made_of" ]; }
}

make_venv() {
    if [ -n "${PYTHON:-}" ]; then
        python=$(find_python "$PYTHON")
    else
        python=$(find_python python3.11 python3.12 python3.13 python3 python)
    fi
    say "Creating $VENV with $("$python" -V) ($python)."
    "$python" -m venv --clear "$VENV" || fail "Python could not create $(pwd)/$VENV; see above."
}

install() {
    network="Installing failed; the reason is above. If it is the network or a proxy, set it right and start again: what is downloaded is kept."
    if [ ! -x "$VENV/bin/uv" ]; then
        say "Installing uv, which installs the rest."
        "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check uv || fail "$network"
    fi
    # Where the system has certificates of its own, an organisation's may be among them.
    for certificates in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
        [ ! -s "$certificates" ] || export UV_SYSTEM_CERTS=true
    done
    # uv does not read pip's settings; an index that somebody set for pip is meant for this too. Where none is set, pip
    # answers with a failure.
    if [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}" ]; then
        index=$("$VENV/bin/python" -m pip config get global.index-url 2>/dev/null || true)
        index=${PIP_INDEX_URL:-$index}
        [ -z "$index" ] || export UV_DEFAULT_INDEX="$index"
    fi
    groups=""
    for group in "$@"; do groups="$groups --group $group"; done
    say "Installing Airflow, Ray, JAX and what they need into $VENV: 2 GB, some minutes the first time."
    # shellcheck disable=SC2086 - group names have no spaces
    "$VENV/bin/uv" pip install --python "$VENV/bin/python" --compile-bytecode -c constraints.txt $groups -e '.[demo]' ||
        fail "$network"
}

[ -f pyproject.toml ] || fail "Run this from the top of the clone: there is no pyproject.toml in $(pwd)."
# One set-up of a clone at a time; the second then finds everything done.
if command -v flock >/dev/null; then
    exec 9< pyproject.toml
    flock -n 9 || { say "Waiting for another set-up of this clone."; flock 9; }
fi
now=$(stamp)
wanted=""
for group in demo "$@"; do
    [ "$(cat "$VENV/.stamp-$group" 2>/dev/null)" = "$now" ] || wanted="$wanted $group"
done
if [ -n "$wanted" ] || ! venv_fits; then
    check_disk
    venv_fits || make_venv
    pwd > "$VENV/.place"
    install "$@"
    for group in demo "$@"; do printf '%s\n' "$now" > "$VENV/.stamp-$group"; done
    say "Ready."
fi
