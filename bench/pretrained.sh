#!/usr/bin/env bash
# FedNCM's claims on bodies trained elsewhere (docs/pretrained.md):
#
#   bench/pretrained.sh OUT SECONDS [flags of python -m torso.papers.pretrained]
exec "$(dirname "$0")/evidence.sh" pretrained docs/pretrained "$@"
