"""`ci/gpu/run` with programs that only speak: cases run in turn with their peers, what fails is named, time is kept."""
import itertools
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


NAMES = ("-k", "one|two|bad|lonely")


def run(folder, *flags, prefix=(), gpus=1):
    smi = folder / "bin" / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\n[ \"$1\" != -L ] || [ {gpus} = 0 ] || echo 'GPU 0: a card'\n")
    smi.chmod(0o755)
    command = [HERE / "run", "-b", folder / "build", "-p", folder / "peers", "-c", folder / "c", *flags, *prefix]
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(command, capture_output=True, text=True, env=dict(os.environ, LC_ALL="C.UTF-8", PATH=path))


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def plant(folder):
    (folder / "bin").mkdir()
    (folder / "build" / "bin").mkdir(parents=True)
    (folder / "peers").mkdir()
    (folder / "build" / "bin" / "libmbbench_cuda.so").write_text("")
    step = folder / "build" / "bin" / "mbbench-step"
    step.write_text(STEP)
    step.chmod(0o755)
    (folder / "peers" / "torch.py").write_text(TORCH)
    (folder / "peers" / "torch_llama.py").write_text(LLAMA)
    (folder / "c").write_text(CASES)


def measures(folder):
    results = folder / "results"
    done = run(folder, "-n", "1", *NAMES, "-o", results)
    assert done.returncode == 1, done  # one case and one peer failed
    assert [row["name"] for row in lines(results / "product.jsonl")] == ["one", "two", "three"]
    assert len(lines(results / "peer.jsonl")) == 1, "cases that have one peer share its run"
    assert "no peer unknown" in (results / "peer.err").read_text()
    assert "bad: no such model" in done.stderr and "goal fwdbwd_ratio >= 1.05: 1.125, met" in done.stdout, done
    again = run(folder, "-n", "1", *NAMES, "-o", results)
    assert again.returncode == 64 and "name a new folder" in again.stderr and not again.stdout, again
    late = run(folder, "-n", "1", "-t", "0", *NAMES, "-o", folder / "late")
    assert late.returncode == 4 and "nothing was measured" in late.stderr, late
    assert "one: not run in round 1" in (folder / "late" / "environment.txt").read_text()


def refuses(folder):
    """Each of these ends at once, with a line that says why and no table."""
    fresh = itertools.count()
    for status, text, flags, more in (
            (64, "-n abc: a number of rounds", ("-n", "abc"), {}),
            (64, "-n 0: a number of rounds", ("-n", "0"), {}),
            (64, "-t abc: a whole number of seconds", ("-t", "abc"), {}),
            (64, "-k (: not a regular expression", ("-k", "("), {}),
            (64, "[-k NAMES]", ("-z",), {}),
            (4, "-k zzz: no case of", ("-k", "zzz"), {}),
            (4, "nonexist: no file that can be read", ("-c", "/nonexist"), {}),
            (4, "mbbench_cuda.so is not there", ("-b", folder / "nowhere"), {}),
            (4, "no GPU on", ("-k", "one"), {"gpus": 0}),
            (4, "no results came back (false ended with status 1)", ("-k", "one"), {"prefix": ["false"]})):
        results = folder / f"fresh{next(fresh)}"
        done = run(folder, *flags, "-o", results, **more)
        assert not results.exists(), done
        assert done.returncode == status and text in done.stderr and "goal" not in done.stdout, done
    for program, text in (("run", "[-k NAMES]"), ("sanitize", "[CUDA_GPU [FILTER [SHARDS]]]")):
        for flag in ("-h", "--help"):
            helped = subprocess.run([HERE / program, flag], capture_output=True, text=True)
            assert helped.returncode == 0 and text in helped.stdout, helped


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        plant(folder)
        measures(folder)
        refuses(folder)


main()
