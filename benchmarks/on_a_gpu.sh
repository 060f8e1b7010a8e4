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

speed() { part "$1" "$python" benchmarks/training_speed.py --corpus "$corpus" --rounds 3 --steps 10 "${@:2}"; }

part tests "$python" -m pytest -q -rs -o addopts= --import-mode=importlib \
    tests/unit/pretraining/test_devices.py tests/unit/pretraining/test_every_recipe.py \
    tests/unit/nn tests/unit/encoders \
    tests/unit/training/test_trainer.py
# The same step on our kernels, and without any of them.
ways=(--recipe mlm --recipe "mlm training.kernels=false" --recipe "mlm training.kernels=false training.graphs=false")
speed kernels-512 --full --length 512 --batch 64 "${ways[@]}"
speed kernels-144 --length 144 --batch 256 "${ways[@]}"
recipes=(bow autoencoding autoregressive retromae lexmae cdmae cotmae condenser)
chosen=("${recipes[@]/#/--recipe=}")
speed recipes-512 --full --length 512 --batch 64 "${chosen[@]}"
speed recipes-144 --length 144 --batch 256 --model "$model" "${chosen[@]}"
speed lexmae-2048 --length 144 --batch 2048 --model "$model" --recipe=lexmae
part encode-dense "$python" benchmarks/encode.py --model "$model" --kind dense --corpus "$corpus"
part encode-sparse "$python" benchmarks/encode.py --model "$model" --kind sparse --corpus "$corpus"
