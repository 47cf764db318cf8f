"""`ci/gpu/run` with programs that only speak: cases run in turn with their peers, what fails is named, time is kept."""
import json
import os
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
STEP = """#!/bin/sh
case "$*" in
  *bad-model*) echo "no such model" >&2; exit 4 ;;
esac
echo '{"name": "'$2'", "case": "m", "layers": 2, "seq": 64, "mbs": 1, "micro_batches": 1, "prec": "bf16",'\\
  '"states": "fp32", "launch_s": 1, "spread": [9, 12], "mfu_bf16_causal": 0.5, "mfu_bf16_full": 0.6,'\\
  '"fwdbwd_ms": 8, "step_ms": 10, "tokens_s": 1000}'
"""
# A module that stands for the packages the peer imports.
TORCH = """import sys, types
__path__ = []
for name in ("_dynamo", "_inductor", "_inductor.compile_fx", "nn", "nn.attention"):
    sys.modules["torch." + name] = types.ModuleType("torch." + name)
sys.modules["torch.nn.attention"].SDPBackend = types.SimpleNamespace(CUDNN_ATTENTION=0)
cuda = types.SimpleNamespace(is_available=lambda: True)
"""
LLAMA = """import json
def run(name, layers, seq, mbs, fp8, backend):
    assert name == "m", "no peer " + name
    print("a line that is none")
    print(json.dumps(dict(case=name, layers=layers, seq=seq, mbs=mbs, prec="bf16", fwdbwd_ms=9.0, step_ms=12.0)))
"""
CASES = """one | --model one | m 2 64 1 bf16 | fwdbwd_ratio>=1.05
two | --model two | m 2 64 1 bf16 |
bad | --model bad-model | - |
left-out | --model one | - |
lonely | --model three | unknown 2 64 1 bf16 |
"""


def run(folder, *flags):
    command = [HERE / "run", "-b", folder / "build", "-p", folder / "peers", "-c", folder / "c", *flags,
               "-k", "one|two|bad|lonely", "-o", folder / "results"]
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, LC_ALL="C.UTF-8"))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "build" / "bin").mkdir(parents=True)
        (folder / "peers").mkdir()
        (folder / "build" / "bin" / "libmbbench_cuda.so").write_text("")
        step = folder / "build" / "bin" / "mbbench-step"
        step.write_text(STEP)
        step.chmod(0o755)
        (folder / "peers" / "torch.py").write_text(TORCH)
        (folder / "peers" / "torch_llama.py").write_text(LLAMA)
        (folder / "c").write_text(CASES)
        done = run(folder, "-n", "1")
        results = folder / "results"
        assert done.returncode == 1, done  # one case and one peer failed
        assert [row["name"] for row in lines(results / "product.jsonl")] == ["one", "two", "three"]
        assert len(lines(results / "peer.jsonl")) == 1, "cases that have one peer share its run"
        assert "no peer unknown" in (results / "peer.err").read_text()
        assert "bad: no such model" in done.stderr and "goal fwdbwd_ratio >= 1.05: 1.125, met" in done.stdout, done
        late = run(folder, "-n", "1", "-t", "0")
        assert late.returncode == 0 and "one: not run in round 1" in (results / "environment.txt").read_text(), late


main()
