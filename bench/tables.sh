#!/usr/bin/env bash
# Tables side by side on one accelerator: a process for each line of a plan (or as many as its --processes says), so that one's host work hides behind the
# others' kernels (under NVIDIA's MPS, where it can be started). What is finished when time is up stays finished: give the
# same plan again to go on.
#
#   bench/tables.sh PLAN DATA OUT SECONDS [AT_ONCE]
#
# AT_ONCE processes at a time (all, if not given), in the order of the plan.
# A line of PLAN: a name, a colon, and commands of torso separated by semicolons, such as
#   babu: reproduce fedbabu/13 --only method=fedbabu --seeds 3; reproduce fedbabu/12 --only method=fedbabu --seeds 3
# What follows four spaces and a # is a comment. Each process has a folder OUT/NAME. OUT/NAME.txt is what it printed, OUT/runs.tgz all runs
# without checkpoints.
set -u
plan=$1 data=$2 out=$3 seconds=$4 at_once=${5:-1000}
export TORSO_DATA=$data
mkdir -p "$out"
. "$(dirname "$0")/mps.sh"
while IFS=: read -r name commands; do
  case $name in '' | '#'*) continue ;; esac
  while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
  (
    IFS=';' read -ra each <<<"${commands%%    #*}"
    for words in "${each[@]}"; do
      left=$((seconds - SECONDS))
      case $words in *--processes*) share= ;; *) share="--processes 1" ;; esac
      # shellcheck disable=SC2086  # a command is several words
      [ "$left" -gt 5 ] && timeout -s INT "$left" python3 -m torso $words $share --precision bf16 --out "$out/$name" >>"$out/$name.txt" 2>&1
    done
    echo "$name: done after $SECONDS s"
  ) &
done <"$plan"
wait
find "$out" -mindepth 2 -type f -not -name '*.safetensors' -not -size +2M -printf '%P\0' | tar -C "$out" -czf "$out/runs.tgz" --null -T -
