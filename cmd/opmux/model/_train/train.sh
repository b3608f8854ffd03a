#!/bin/sh
# Everything from nothing: the corpus, the Python packages, the training, the exported file and its figures.
#   VENV=folder for the packages (2 GB, outside the repository)
#   PYTHON=the interpreter to make it with
# Arguments go to train.py.
set -eu
cd "$(dirname "$0")"
command -v bible >/dev/null || apt-get install -y bible-kjv
venv=${VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/opmux-train}
[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install -q -r requirements.txt
# Without these the two threads spin for each other on a busy machine, and every large tensor is a fresh mapping to fault in.
export OMP_WAIT_POLICY=passive MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=20000000000 MALLOC_TOP_PAD_=200000000
export PYTHONDONTWRITEBYTECODE=1
"$venv/bin/python" train.py "$@"
"$venv/bin/python" evaluate.py
