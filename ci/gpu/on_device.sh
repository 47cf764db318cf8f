#!/usr/bin/env bash
# Runs beside the carried programs on the GPU machine: facts, GPU tests, then product and peer in turn for every case.
# Results go to ./results: environment.txt, tests.log, product.jsonl, peer.jsonl, ops.txt.
#   on_device.sh [ROUNDS] [CASES]   CASES: a regular expression of names
set -u
rounds=${1:-2} only=${2:-.}
mkdir -p results

# The libraries a Python installation carries serve too, where the system has none.
for library in libcublasLt.so.13 libcudnn.so.9; do
  ldconfig -p 2>/dev/null | grep -q "$library" && continue
  found=$(python3 - "$library" <<'PY' 2>/dev/null
import glob, site, sys
print(next((f for d in site.getsitepackages() for f in glob.glob(d + "/nvidia/**/" + sys.argv[1], recursive=True)), ""))
PY
  )
  [ -z "$found" ] || export LD_LIBRARY_PATH=$(dirname "$found"):${LD_LIBRARY_PATH:-}
done
export NCCL_NVLS_ENABLE=0

facts=name,driver_version,clocks.sm,clocks.mem,power.draw,power.limit,temperature.gpu
nvidia-smi --query-gpu=$facts --format=csv | tee results/environment.txt
failed=0
if [ -x ./cuda_gpu ]; then
  ./cuda_gpu > results/tests.log 2>&1 || failed=1
  tail -3 results/tests.log
fi

# model layers seq micro-batch precision
peer() {
  python3 - "$@" <<'PY' 2>>results/peer.err
import sys, torch_llama as t
from torch.nn.attention import SDPBackend
name, layers, seq, mbs, precision = sys.argv[1:]
t.run(name, int(layers), int(seq), int(mbs), precision == "fp8", SDPBackend.CUDNN_ATTENTION)
PY
}
# Product and peer in turn; cases in a row that have one peer share its run.
for round in $(seq "$rounds"); do
  last_peer=
  while IFS='|' read -r name args peer goals; do
    name=$(echo $name) peer=$(echo $peer)
    case $name in ''|'#'*) continue ;; esac
    [[ $name =~ $only ]] || continue
    ops=0; [ "$round" != 1 ] || ops=2
    # Chosen once, so that the timed launches are warm and all run the same GEMMs.
    tuned=results/tuning-$name.txt
    [ -f "$tuned" ] ||
      timeout 300 ./mbbench-step $args host.gemm_tuning_file="$tuned" --tune brief >> results/tune.log 2>&1
    file=; [ ! -f "$tuned" ] || file=host.gemm_tuning_file=$tuned
    out=$(timeout 300 ./mbbench-step $args --name "$name" --ops $ops $file 2>&1) || failed=1
    echo "$out" | grep '^{' | tee -a results/product.jsonl || echo "$name: $(echo "$out" | tail -2)"
    { echo "$name"; echo "$out" | grep -v '^{'; } >> results/ops.txt
    if [ -f torch_llama.py ] && [ "$peer" != - ] && [ "$peer" != "$last_peer" ]; then
      peer $peer | tee -a results/peer.jsonl
      last_peer=$peer
    fi
  done < cases.txt
done
nvidia-smi --query-gpu=$facts --format=csv,noheader | tee -a results/environment.txt
exit $failed
