#!/bin/sh
# Compiles llama-server for bench/server/versus.py, from the llama.cpp sources in llama-cpp-python's source package on PyPI,
# the release that bench/peers uses: one llama.cpp in both comparisons. Run bench/peers/setup.sh before it.
#
# usage: setup.sh [FOLDER]      default /opt/peers; the program goes to FOLDER/llama-server/bin; done steps are skipped
#
# Release, for this very machine (but for AMX, see bench/peers/setup.sh), without its page.
set -eu
venv=${1:-/opt/peers}
version=0.3.36
out=$venv/llama-server

[ -x "$venv/bin/python" ] || { echo "run bench/peers/setup.sh first" >&2; exit 1; }
[ "$(cat "$out/version" 2>/dev/null)" != "$version" ] || { echo "llama-server: ready in $out"; exit 0; }
mkdir -p "$out/src" "$out/build"
if [ ! -e "$out/src/llama_cpp_python-$version" ]; then
    "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
        -d "$out/src" "llama-cpp-python==$version"
    tar xzf "$out/src/llama_cpp_python-$version.tar.gz" -C "$out/src"
fi
have=-DGGML_NATIVE=ON
! grep -q amx_tile /proc/cpuinfo || have="-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON \
    -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX_VNNI=ON -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON \
    -DGGML_AVX512_BF16=ON"
# shellcheck disable=SC2086
cmake -S "$out/src/llama_cpp_python-$version/vendor/llama.cpp" -B "$out/build" -DCMAKE_BUILD_TYPE=Release $have \
    -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF -DLLAMA_BUILD_UI=OFF \
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_SERVER=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_BUILD_NUMBER=0
nice -n 15 cmake --build "$out/build" --target llama-server -j "${JOBS:-2}"
mkdir -p "$out/bin"
cp "$out/build/bin/llama-server" "$out/bin/"
echo "$version" >"$out/version"
echo "llama-server: ready in $out"
