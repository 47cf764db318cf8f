#!/usr/bin/env bash
# Runs beside the carried programs on the GPU machine: facts, GPU tests, then product and peer in turn for every case.
# Results go to ./results: environment.txt, tests.log, product.jsonl, peer.jsonl, ops.txt.
#   on_device.sh [ROUNDS] [CASES] [SECONDS]   CASES: a regular expression of names; no case begins after SECONDS
# Exit status: 0; 1 a test, case or peer failed; 4 no GPU.
set -u
rounds=${1:-2} only=${2:-.} budget=${3:-86400}
mkdir -p results
nvidia-smi -L 2> /dev/null | grep -q '^GPU' || {
  echo "no GPU on $(hostname): nvidia-smi lists none, nothing is measured" | tee results/environment.txt
  exit 4
}

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

# begin_peer MODEL LAYERS SEQ MICRO_BATCH PRECISION: imports; end_peer: measures, prints the peer's line.
trap '' PIPE  # a peer may have ended
begin_peer() {
  coproc PEER { exec timeout 300 python3 peer.py "$@" 2>>results/peer.err; }
  peer_pid=$PEER_PID
  exec {to_peer}>&"${PEER[1]}" {from_peer}<&"${PEER[0]}"
}
end_peer() {
  echo go >&"$to_peer"
  grep '^{' <&"$from_peer" || echo "peer $*: no line" >&2
  exec {to_peer}>&- {from_peer}<&-
  wait "$peer_pid"
}
# Product and peer in turn; cases in a row that have one peer share its run.
for round in $(seq "$rounds"); do
  last_peer=
  while IFS='|' read -r name args peer goals; do
    name=$(echo $name) peer=$(echo $peer)
    case $name in ''|'#'*) continue ;; esac
    [[ $name =~ $only ]] || continue
    if [ "$SECONDS" -ge "$budget" ]; then
      echo "$name: not run in round $round, $budget s were over" | tee -a results/environment.txt
      continue
    fi
    with_peer=
    if [ -f torch_llama.py ] && [ "$peer" != - ] && [ "$peer" != "$last_peer" ]; then
      with_peer=$peer last_peer=$peer
      begin_peer $peer
    fi
    ops=0; [ "$round" != 1 ] || ops=2
    # GEMMs are chosen once, so that the timed launches are warm and all run the same.
    tuned=results/tuning-$name.txt
    [ -f "$tuned" ] ||
      timeout 300 ./mbbench-step $args host.gemm_tuning_file="$tuned" --tune brief >> results/tune.log 2>&1
    file=; [ ! -f "$tuned" ] || file=host.gemm_tuning_file=$tuned
    out=$(timeout 300 ./mbbench-step $args --name "$name" --ops $ops $file 2>&1 < /dev/null) || failed=1
    echo "$out" | grep '^{' >> results/product.jsonl || echo "$name: $(echo "$out" | tail -2)"
    { echo "$name"; echo "$out" | grep -v '^{'; } >> results/ops.txt
    [ -z "$with_peer" ] || end_peer $with_peer >> results/peer.jsonl 2>> results/peer.err || failed=1
    echo "$name: $SECONDS s"
  done < cases.txt
done
nvidia-smi --query-gpu=$facts --format=csv,noheader | tee -a results/environment.txt
exit $failed
