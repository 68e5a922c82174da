#!/bin/sh
# What issue 22 asks of an accelerator, in one call of at most six minutes: sh bench/speed_h200.sh CIFAR10 [OUT]
# CIFAR10: cifar10_jpeg.npz or the folder that holds it; OUT: a folder for the JSON files, default build/speed.
# PYTHON names the interpreter. A part that takes too long is cut off, and the others go on.
set -u
data=${1:?where CIFAR-10 is}
out=${2:-build/speed}
python=${PYTHON:-.venv/bin/python}
here=$(dirname "$0")
device=${DEVICE:-cuda}
mkdir -p "$out"
export PYTHONPATH="$here/../src${PYTHONPATH:+:$PYTHONPATH}"
export TORSO_CACHE="${TORSO_CACHE:-$out/cache}"

part() { # NAME SECONDS COMMAND…
	name=$1 most=$2
	shift 2
	began=$(date +%s)
	timeout -k 5 "$most" "$@" >"$out/$name.json" 2>"$out/$name.log"
	echo "$name: exit $?, $(($(date +%s) - began)) s"
	tail -c 1500 "$out/$name.json"
}

# the second process finds decoded images and compiled kernels; the first one of this pays for both
part start 75 "$python" "$here/start.py" --data "$data" --device "$device" --repeats 2
# pfl-research's benchmark: training and process seconds, accuracy; the first run has compiled what the second finds
part pfl_first 70 "$python" -m torso bench pfl --root "$data" --device "$device" --precision bf16 --rounds "${ROUNDS:-1500}" --quiet --json
part pfl_bf16 60 "$python" -m torso bench pfl --root "$data" --device "$device" --precision bf16 --rounds "${ROUNDS:-1500}" --quiet --json
part pfl_tf32 60 "$python" -m torso bench pfl --root "$data" --device "$device" --precision tf32 --rounds "${ROUNDS:-1500}" --quiet --json
# rounds against steps alone, and Dirichlet against equal clients
part rounds 80 "$python" "$here/whole_rounds.py" --device "$device" --precision bf16
