#!/usr/bin/env bash
# Runs beside the carried programs on the GPU machine: facts, GPU tests, then product and peer in turn for every case.
# Results go to ./results: environment.txt, tests.log, product.jsonl, peer.jsonl, ops.txt.
set -u
rounds=${1:-2}
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

# A line of cases.txt: model layers seq micro-batch precision.
peer() {
  python3 - "$@" <<'PY' 2>results/peer.err
import sys, torch_llama as t
from torch.nn.attention import SDPBackend
name, layers, seq, mbs, precision = sys.argv[1:]
names = {"llama3-70b-tp4shard": "llama3-70b-tp4"}
fp8 = precision.startswith("fp8")
t.run(names.get(name, name), int(layers), int(seq), int(mbs), fp8, SDPBackend.CUDNN_ATTENTION)
PY
}
while read -r model layers seq mbs precision; do
  case $model in ''|'#'*) continue ;; esac
  for round in $(seq "$rounds"); do
    ops=0; [ "$round" != 1 ] || ops=1
    out=$(./mbbench-step --model "$model" --layers "$layers" --seq "$seq" --mbs "$mbs" --recipe "$precision" \
      --ops $ops 2>&1) || failed=1
    echo "$out" | grep '^{' | tee -a results/product.jsonl || echo "$model $precision: $(echo "$out" | tail -2)"
    { echo "$model $layers $seq $mbs $precision"; echo "$out" | grep -v '^{'; } >> results/ops.txt
    [ ! -f torch_llama.py ] || peer "$model" "$layers" "$seq" "$mbs" "$precision" | tee -a results/peer.jsonl
  done
done < cases.txt
exit $failed
