#!/usr/bin/env bash
# After bench/tables.sh bench/plans/board.plan: what its processes have run becomes one board in OUT/board, the search is
# closed, each of its finds goes through the board in a process of its own, and the whole is printed.
#
#   bench/board.sh DATA OUT SECONDS
set -u
data=$1 out=$2 seconds=$3
export TORSO_DATA=$data
torso() { # OUT command ...
  local left=$((seconds - SECONDS)) to=$1
  shift
  [ "$left" -gt 5 ] && timeout -s INT "$left" python3 -m torso leaderboard "$@" --precision bf16 --out "$to"
}
gather() { # runs by hard link; lists are made anew
  mkdir -p "$out/board/leaderboard"
  for runs in "$out"/*/leaderboard; do
    [ "$runs" = "$out/board/leaderboard" ] && continue
    find "$runs" -mindepth 1 -maxdepth 1 -type d -exec cp -rlf -t "$out/board/leaderboard" {} +
  done
}
gather
torso "$out/board" --search >"$out/search.txt" 2>&1
tail -3 "$out/search.txt"
found=$out/board/leaderboard/found.json
for name in $(python3 -c 'import json, sys; print(*(row["name"] for row in json.load(open(sys.argv[1]))["entered"]))' "$found"); do
  place=$out/find-$name
  mkdir -p "$place/leaderboard"
  cp "$found" "$place/leaderboard"
  cp -rlf -t "$place/leaderboard" "$out"/board/leaderboard/*-"$name"-* 2>/dev/null
  torso "$place" --processes 1 --only "method=$name" >"$place.txt" 2>&1 &
done
wait
gather
torso "$out/board" >"$out/board.txt" 2>&1
tail -5 "$out/board.txt"
