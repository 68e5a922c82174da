#!/usr/bin/env bash
# The measured part of docs/privacy.md: accuracy under client-level differential privacy, and audits of its claims, on one
# accelerator, in a given time.
#
#   bench/privacy.sh OUT SECONDS [flags of python -m torso.papers.privacy]
#
# Audits and accuracy run at the same time; both stop when the time is up. OUT/privacy.tgz has the json files of both: unpack it into
# docs/privacy, then run python -m torso.papers.docs. Cells whose json is in docs/privacy are not run again. OUT/privacy.txt and
# OUT/audits.txt are what was printed. AUDITS=0 leaves the audits out. RUNS and ROUNDS make the audits smaller.
set -u -o pipefail
out=$1 seconds=$2
shift 2
folder=docs/privacy
mkdir -p "$out" $folder/audits
python3 -c "import dp_accounting" || exit 2
. "$(dirname "$0")/mps.sh"
export PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1
left=$((seconds - SECONDS))

# audit NAME NOISE [more flags]: 200 clients with 7 images each, a network with two hidden layers
audit() {
  local name=$1 noise=$2
  shift 2
  echo "== $name"
  timeout "$left" python3 -m torso audit fedavg --quiet --runs "${RUNS:-256}" --canaries 32 --out $folder/audits/$name.json \
    --set data.clients=200 --set data.partition=iid --set model.body=mlp --set train.rounds="${ROUNDS:-10}" --set train.fraction=0.2 \
    --set train.local_epochs=1 --set train.batch_size=10 --set train.weighting=uniform --set privacy.delta=1e-5 \
    --set privacy.clip=0.5 --set privacy.noise="$noise" "$@"
}

audits() {
  audit noise-2.0 2.0 & audit noise-1.3 1.3 & audit noise-0.9 0.9 & audit noise-0.7 0.7 &
  audit noise-0.7-last 0.7 --sees last & audit broken-0.7 0.7 --claimed-noise 1.05 &
  wait
}

audited=
if [ "${AUDITS:-1}" != 0 ]; then
  audits >"$out/audits.txt" 2>&1 &
  audited=$!
fi
timeout -s INT $((left + 25)) python3 -m torso.papers.privacy --seconds "$left" "$@" 2>&1 | tee "$out/privacy.txt"
[ -z "$audited" ] || wait "$audited"
cat "$out/audits.txt" 2>/dev/null
(cd $folder && find . -name '*.json' | tar -czf "$OLDPWD/privacy.tgz.part" -T -) && mv privacy.tgz.part "$out/privacy.tgz"
