#!/usr/bin/env bash
# Methods × attacks × server rules with malicious clients (docs/robustness-study.md):
#
#   bench/robust.sh OUT SECONDS [flags of python -m torso.papers.robust]
exec "$(dirname "$0")/evidence.sh" robust docs/robustness/cifar10 "$@"
