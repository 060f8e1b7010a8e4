#!/usr/bin/env bash
# What CI does not see: the tests that want a GPU, then what is measured on one, about 15 minutes.
#
#     benchmarks/on_a_gpu.sh OUTPUT CORPUS MODEL
#
# CORPUS: passages, as --corpus takes them; MODEL: an encoder of BERT-base's shape. PYTHON: with isthmus
# and pytest, .venv/bin/python by default. One log for each part, and its end on the screen; a part that
# fails does not stop the others.
set -uo pipefail
cd "$(dirname "$0")/.."
output=$1 corpus=$2 model=$3
python=${PYTHON:-.venv/bin/python}
mkdir -p "$output"

part() {
    local name=$1
    shift
    echo "== $name"
    timeout 600 "$@" > "$output/$name.log" 2>&1 || echo "   failed ($?)"
    tail -n "${LINES_SHOWN:-15}" "$output/$name.log"
}

speed() { "$python" -m isthmus benchmark speed --output "$output/$1" "${@:2}" --set rounds=3 --set steps=10; }
export -f speed
export python output

part tests "$python" -m pytest -q -rs -o addopts= --import-mode=importlib \
    tests/unit/pretraining/test_devices.py tests/unit/pretraining/test_every_recipe.py \
    tests/unit/nn tests/unit/encoders \
    tests/unit/training/test_trainer.py
part attention "$python" benchmarks/attention.py --tiles
part norm_gelu "$python" benchmarks/norm_gelu.py --tiles
part step-512 "$python" benchmarks/pretraining_step.py --length 512 --batch 64
part step-144 "$python" benchmarks/pretraining_step.py --length 144 --batch 256 --corpus "$corpus"
recipes=(mlm bow autoencoding autoregressive retromae lexmae cdmae cotmae condenser)
chosen=("${recipes[@]/#/--recipe=}")
part recipes-512 bash -c 'speed "$@"' _ 512 --length 512 --batch 64 --init base "${chosen[@]}"
part recipes-144 bash -c 'speed "$@"' _ 144 --length 144 --batch 256 --model "$model" --corpus "$corpus" \
    "${chosen[@]}"
part lexmae-2048 bash -c 'speed "$@"' _ 2048 --length 144 --batch 2048 --model "$model" --corpus "$corpus" \
    --recipe=lexmae
part encode-dense "$python" benchmarks/encode.py --model "$model" --kind dense --corpus "$corpus"
part encode-sparse "$python" benchmarks/encode.py --model "$model" --kind sparse --corpus "$corpus"
part masking "$python" benchmarks/masking.py
part lexicon-head "$python" benchmarks/lexicon_head.py
part cross-entropy "$python" benchmarks/cross_entropy.py
