#!/bin/sh
# Makes the Python environments of the peers, from PyPI only. Needs python3 with venv, a C++ compiler and cmake for
# llama.cpp (compiled here for this very machine: 6 minutes on two quiet cores), and 9 GB of disk.
#
# usage: setup.sh [FOLDER]      default /opt/peers; done steps are skipped, so it can be repeated
#
# FOLDER         OpenVINO and llama.cpp, and what exports our checkpoint to their files:
#   openvino, openvino-genai, openvino-tokenizers   the runtime and its VLMPipeline
#   optimum-intel, nncf, torch, torchvision         the exporter; it takes transformers up to 4.57 only
#   llama-cpp-python                                llama.cpp with libmtmd, from its source package
#   gguf, pillow                                    writing GGUF files, reading pictures
# FOLDER/newer   the transformers that margay is checked against (the newest that was out), on the same torch
set -eu
venv=${1:-/opt/peers}
python=${PYTHON:-python3}

say() { printf 'peers: %s\n' "$*"; }
has() { "$1" -c "import importlib.metadata as m, sys; sys.exit(m.version('$2') != '$3')" 2>/dev/null; }

[ -x "$venv/bin/python" ] || { say "making $venv"; "$python" -m venv "$venv"; }
pip="nice -n 15 $venv/bin/python -m pip install --quiet --disable-pip-version-check"

say "OpenVINO, its exporter, gguf, pillow"
$pip openvino==2026.4.1 openvino-genai==2026.4.1.0 openvino-tokenizers==2026.4.1.0 optimum-intel==2.2.0 nncf==3.4.0 \
    torch==2.15.0 torchvision==0.29.2 transformers==4.57.6 gguf==0.19.0 pillow

if ! has "$venv/bin/python" llama_cpp_python 0.3.36; then
    say "compiling llama.cpp"
    # GGML_NATIVE: all that this processor has. No wheel on PyPI is compiled for more than a common processor.
    # Where that includes AMX, this llama.cpp compiled by gcc 12 dies of an illegal instruction (a tile is cleared before
    # the tiles are configured), so there all but AMX is named.
    have=-DGGML_NATIVE=ON
    ! grep -q amx_tile /proc/cpuinfo || have="-DGGML_NATIVE=OFF -DGGML_SSE42=ON -DGGML_AVX=ON -DGGML_AVX2=ON -DGGML_FMA=ON \
        -DGGML_F16C=ON -DGGML_BMI2=ON -DGGML_AVX_VNNI=ON -DGGML_AVX512=ON -DGGML_AVX512_VBMI=ON -DGGML_AVX512_VNNI=ON \
        -DGGML_AVX512_BF16=ON"
    CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-2} \
        CMAKE_ARGS="$have -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF" \
        $pip --no-cache-dir --no-binary llama-cpp-python llama-cpp-python==0.3.36
fi

if ! has "$venv/newer/bin/python" transformers 5.24.0; then
    say "transformers 5.24"
    "$venv/bin/python" -m venv "$venv/newer"
    site() { "$1" -c 'import site; print(site.getsitepackages()[0])'; }
    # what is not installed there itself, torch above all, is taken from the first environment
    site "$venv/bin/python" >"$(site "$venv/newer/bin/python")/zz-peers.pth"
    nice -n 15 "$venv/newer/bin/python" -m pip install --quiet --disable-pip-version-check transformers==5.24.0 2>&1 |
        grep -v -e "dependency resolver" -e "optimum-intel .* requires" || :
fi

"$venv/bin/python" -c 'import llama_cpp, openvino_genai, optimum.intel, gguf, PIL' >/dev/null
"$venv/newer/bin/python" -c 'from transformers import Qwen3VLForConditionalGeneration' >/dev/null
say "ready in $venv"
