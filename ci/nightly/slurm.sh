#!/usr/bin/env bash
# The nightly job on one GPU node of a Slurm cluster, submitted from this tree:
#   sbatch ci/nightly/slurm.sh [arguments of ci/nightly/run]
# The job's exit status is that of ci/nightly/run; its reports lie where that says, on the last line of the job's log.
#SBATCH --job-name=mbbench-nightly
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --exclusive
#SBATCH --time=02:00:00
# To the batch script, which stops the gate and archives what has finished.
#SBATCH --signal=B:TERM@120
set -euo pipefail
# Slurm runs a copy of this file, from elsewhere.
cd "${SLURM_SUBMIT_DIR:-.}"
[ -x ci/nightly/run ] ||
  { echo "ci/nightly/slurm.sh: no ci/nightly/run in $PWD: submit from the tree's root" >&2; exit 4; }
exec ci/nightly/run "$@"
