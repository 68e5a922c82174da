#!/usr/bin/env bash
# FedNCM's claims on bodies trained elsewhere (docs/pretrained.md), on one accelerator, in a given time.
#
#   bench/pretrained.sh OUT SECONDS [flags of python -m torso.papers.pretrained]
#
# Cells whose json is in docs/pretrained are not run again, so a second call goes on where the first ended: unpack OUT/pretrained.tgz
# into docs/pretrained between them, then run python -m torso.papers.docs. OUT/pretrained.txt is what was printed.
set -u -o pipefail
out=$1 seconds=$2
shift 2
mkdir -p "$out"
. "$(dirname "$0")/mps.sh"
left=$((seconds - SECONDS))
PYTHONUNBUFFERED=1 timeout -s INT $((left + 25)) python3 -m torso.papers.pretrained --seconds "$left" --pack "$out/pretrained.tgz" "$@" 2>&1 | tee "$out/pretrained.txt"
