#!/bin/sh
# Prints what Megatron-Bridge prints, without training anything: tests of command cells run it.
#   stand_in_bridge.sh [--iters N] [--gbs N] [--seq N] [--gpus N] [--step-ms N] [--fail STATUS] [--hang] [--quiet]
# --fail ends with that status after half the steps, --hang stops printing there, --quiet prints no step at all.
iters=40 gbs=8 seq=4096 gpus=8 step_ms=500 fail=0 hang=0 quiet=0
while [ $# -gt 0 ]; do
  case $1 in
    --iters) iters=$2; shift ;;
    --gbs) gbs=$2; shift ;;
    --seq) seq=$2; shift ;;
    --gpus) gpus=$2; shift ;;
    --step-ms) step_ms=$2; shift ;;
    --fail) fail=$2; shift ;;
    --hang) hang=1 ;;
    --quiet) quiet=1 ;;
    *) echo "stand_in_bridge.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done

echo "using world size: $gpus, data-parallel size: $gpus, context-parallel size: 1"
cat <<CONFIG
------- Task Configuration -------
_target_: megatron.bridge.training.config.ConfigContainer
dataset:
  sequence_length: $seq
train:
  global_batch_size: $gbs
  micro_batch_size: 1
  train_iters: $iters

----------------------------------
Training ...
CONFIG
if [ "$quiet" = 1 ]; then exit 0; fi

i=1
while [ "$i" -le "$iters" ]; do
  # The first step is slow; the others differ by a few tenths of a millisecond.
  tenths=$((step_ms * 10 + (i * 7) % 5))
  if [ "$i" = 1 ]; then tenths=$((tenths * 6)); fi
  loss=$(((1200000 - i * 9000) / 100))
  seconds=$((tenths / 10000)).$(printf %02d $((tenths % 10000 / 100)))
  echo "Step Time : ${seconds}s GPU utilization: 412.3MODEL_TFLOP/s/GPU"
  printf ' [2025-10-06 03:%02d:%02d] iteration %8d/%8d |' $((i / 60)) $((i % 60)) "$i" "$iters"
  printf ' consumed samples: %12d |' $((i * gbs))
  printf ' elapsed time per iteration (ms): %d.%d |' $((tenths / 10)) $((tenths % 10))
  printf ' learning rate: 1.500000E-06 | global batch size: %5d |' "$gbs"
  printf ' lm loss: %d.%03dE+00 | loss scale: 1.0 | grad norm: 1.055 |' $((loss / 1000)) $((loss % 1000))
  printf ' number of skipped iterations:   0 | number of nan iterations:   0 |\n'
  if [ "$i" = 1 ]; then
    printf '[Rank 0] (after 1 iterations) memory (GB) |'
    printf ' mem-max-allocated-gigabytes: 60.5 | mem-max-reserved-gigabytes: 64.25\n'
  fi
  if [ "$i" -ge $((iters / 2)) ]; then
    if [ "$fail" != 0 ]; then echo "RuntimeError: NCCL error" >&2; exit "$fail"; fi
    if [ "$hang" = 1 ]; then sleep 600; fi
  fi
  i=$((i + 1))
done
