#!/bin/bash
# Kerberos (GSSAPI) for Kafka: builds librdkafka with it, and its Python client, into the virtual environment of the
# agent. The client of the Python package index has no GSSAPI.
#
#   bash kafka-gssapi.sh /opt/flafka                          # takes about a minute
#   bash kafka-gssapi.sh /opt/flafka librdkafka-2.15.1.tar.gz   # without a connection to GitHub
#
# The second form takes librdkafka's source as a directory or a .tar.gz. The package kafka-javascript of the npm
# registry has it as well: npm pack @confluentinc/kafka-javascript@1.10.1. The source of the Python client comes from
# the package index that pip uses.
#
# It needs no root, if these packages are installed:
#   Debian, Ubuntu:  apt-get install gcc make curl tar libsasl2-dev libssl-dev libcurl4-openssl-dev libzstd-dev \
#                        zlib1g-dev python3-dev
#                    and, also on hosts that only run the agent: libsasl2-modules-gssapi-mit
#   Red Hat:         dnf install gcc make curl tar cyrus-sasl-devel openssl-devel libcurl-devel libzstd-devel \
#                        zlib-devel python3-devel
#                    and, also on hosts that only run the agent: cyrus-sasl-gssapi
# A Python that is not the system's has its headers already, or in a package with its version, as python3.12-dev.
# CPPFLAGS and LDFLAGS name other directories of headers and libraries. Run it again after each upgrade of
# confluent-kafka by pip, which brings back the client without GSSAPI.
set -euo pipefail

version=2.15.1
here=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
fail() { printf '%s\n' "kafka-gssapi: $*" >&2; exit 1; }

(($# == 1 || $# == 2)) || fail "usage: bash $here VIRTUAL_ENVIRONMENT [SOURCE_OF_LIBRDKAFKA]"
[[ -x $1/bin/python ]] || fail "$1 is no virtual environment: it has no bin/python"
environment=$(cd "$1" && pwd)
python=$environment/bin/python
source=${2:-}
[[ -z $source || -e $source ]] || fail "there is no $source"
prefix=$environment/librdkafka

# --- everything that is missing, at once

missing=()
for program in cc make; do
    command -v "$program" >/dev/null || missing+=("the program $program (gcc, make)")
done
[[ -n $source ]] || command -v curl >/dev/null || missing+=("the program curl, or the source as the second argument,")
[[ -d $source ]] || command -v tar >/dev/null || missing+=("the program tar")
headers() { # NAME DEBIAN RED_HAT FLAGS…
    local name=$1 packages="$2 on Debian, $3 on Red Hat"
    shift 3
    # shellcheck disable=SC2086  # CPPFLAGS has several words
    echo "#include <$name>" | cc ${CPPFLAGS:-} "$@" -E - >/dev/null 2>&1 || missing+=("$name ($packages)")
}
if command -v cc >/dev/null; then
    headers sasl/sasl.h libsasl2-dev cyrus-sasl-devel -include stddef.h
    headers openssl/ssl.h libssl-dev openssl-devel
    headers curl/curl.h libcurl4-openssl-dev libcurl-devel
    headers zstd.h libzstd-dev libzstd-devel
    headers zlib.h zlib1g-dev zlib-devel
    headers Python.h python3-dev python3-devel "-I$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')"
fi
"$python" -m pip --version >/dev/null 2>&1 || "$python" -m ensurepip >/dev/null 2>&1 || missing+=("pip in $environment")
if ((${#missing[@]})); then
    printf 'kafka-gssapi: %s is missing\n' "${missing[@]}" >&2
    exit 1
fi

# --- librdkafka

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ -z $source ]]; then
    source=$work/librdkafka.tar.gz
    url=https://github.com/confluentinc/librdkafka/archive/refs/tags/v$version.tar.gz
    curl -fsSL -o "$source" "$url" || fail "cannot download $url: name the source of librdkafka, see the head of $here"
fi
mkdir "$work/source"
if [[ -d $source ]]; then
    cp -R "$source/." "$work/source"
else
    tar -xzf "$source" -C "$work/source" || fail "$source is no .tar.gz"
fi
header=$(find "$work/source" -path '*/src/rdkafka.h' | head -n 1)
[[ -n $header ]] || fail "$source has no source of librdkafka: no src/rdkafka.h"
printf -v number '0x%02x%02x%02xff' ${version//./ }
grep -q "define RD_KAFKA_VERSION *$number" "$header" || fail "$source is not version $version of librdkafka"

log=$work/log
run() { "$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2; fail "failed: $*"; }; }
echo "building librdkafka $version into $prefix"
cd "${header%/src/rdkafka.h}"
run ./configure --prefix="$prefix" --enable-gssapi --enable-ssl --enable-curl --enable-zstd --disable-lz4-ext \
    ${CPPFLAGS:+--CPPFLAGS="$CPPFLAGS"} ${LDFLAGS:+--LDFLAGS="$LDFLAGS"}
run make -C src -j "$(nproc)"
run make -C src install

# --- its Python client

echo "building confluent-kafka $version into $environment"
export C_INCLUDE_PATH=$prefix/include LIBRARY_PATH=$prefix/lib LDFLAGS="-Wl,-rpath,$prefix/lib ${LDFLAGS:-}"
run "$python" -m pip install --force-reinstall --no-deps --no-cache-dir --no-binary confluent-kafka "confluent-kafka==$version"

cd /
"$python" -c '
import confluent_kafka as k
k.Producer({"security.protocol": "SASL_SSL", "sasl.mechanism": "GSSAPI", "sasl.kerberos.min.time.before.relogin": 0, "log_level": 0})
print(f"librdkafka {k.libversion()[0]} accepts sasl.mechanism = GSSAPI")'

IFS=: read -ra directories <<<"${SASL_PATH:-}"
modules=$(find "${directories[@]}" /usr/lib /usr/lib64 -maxdepth 3 -name 'libgssapiv2.so*' 2>/dev/null || true)
if [[ -z $modules ]]; then
    echo "still missing: the GSSAPI module of libsasl2 (libsasl2-modules-gssapi-mit on Debian, cyrus-sasl-gssapi on Red Hat)"
fi
