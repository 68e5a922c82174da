#!/usr/bin/env bash
# Experiments of a TOML file (python -m torso.papers.NAME) on one accelerator, in a given time.
#
#   bench/evidence.sh NAME FOLDER OUT SECONDS [flags of python -m torso.papers.NAME]
#
# What has a result in FOLDER (docs/…) is not run again, so a second call goes on where the first ended: unpack OUT/NAME.tgz
# into FOLDER between them, then run python -m torso.papers.docs. OUT/NAME.txt is what was printed.
set -u -o pipefail
name=$1 folder=$2 out=$3 seconds=$4
shift 4
mkdir -p "$out"
. "$(dirname "$0")/mps.sh"
left=$((seconds - SECONDS))
PYTHONUNBUFFERED=1 timeout -s INT $((left + 25)) python3 -m "torso.papers.$name" --seconds "$left" --folder "$folder" --pack "$out/$name.tgz" "$@" 2>&1 | tee "$out/$name.txt"
