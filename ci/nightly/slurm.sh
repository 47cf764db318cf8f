#!/usr/bin/env bash
# The nightly job on one GPU node of a Slurm cluster: sbatch ci/nightly/slurm.sh [arguments of ci/nightly/run]
#SBATCH --job-name=mbbench-nightly
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --exclusive
#SBATCH --time=02:00:00
# To the batch script, which stops the gate and archives what has finished.
#SBATCH --signal=B:TERM@120
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:-.}"
exec ci/nightly/run "$@"
