"""What mbbench-step, mbbench-floor and mbbench-comm say to arguments they cannot take, and where there is no GPU.

    arguments_test.py PROGRAM
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

STEP = (
    (64, "unknown flag --nope", ["--nope"]),
    (64, "--layers needs a value", ["--layers"]),
    (64, "--layers x: a whole number from 1", ["--model", "tiny-gpt", "--layers", "x"]),
    (64, "--steps 1x: a whole number from 1", ["--model", "tiny-gpt", "--steps", "1x"]),
    (64, "--mbs 0: a whole number from 1", ["--mbs", "0"]),
    (64, "--ops -1: a whole number from 0", ["--ops", "-1"]),
    (64, "--recipe fp64: not one of its values", ["--recipe", "fp64"]),
    (4, "or with --device cpu", ["--model", "llama3-8b", "--layers", "1", "--seq", "16", "--mbs", "1"]))
FLOOR = (
    (64, "unknown flag --nope", ["--nope"]),
    (64, "--seconds needs a value", ["--seconds"]),
    (64, "--seconds 1x: a number", ["--seconds", "1x"]),
    (64, "--seconds 0: a number", ["--seconds", "0"]),
    (64, "no case is called 'nope'", ["--cases", "llama3-8b,nope"]),
    (64, "--without " + __file__ + ": not results", ["--without", __file__]),
    (64, "no/such/file", ["--without", "no/such/file"]),
    (4, "it needs one", ["--cases", "llama3-8b"]))
COMM = (
    (64, "unknown flag --nope", ["--nope"]),
    (64, "unknown flag all_reduce", ["all_reduce"]),
    (64, "--mib needs a value", ["--registered", "--mib"]),
    (64, "--mib 0: a whole number from 1", ["--mib", "0"]),
    (64, "--mib 20000: a whole number from 1 to 16384", ["--mib", "20000"]),
    (64, "--gpus 2x: a whole number from 2", ["--gpus", "2x"]),
    (64, "--gpus 0: a whole number from 2", ["--gpus", "0"]),
    (64, "--gpus 1: a whole number from 2", ["--gpus", "1"]),
    (4, "two GPUs are needed", []),
    (4, "two GPUs are needed", ["--gpus", "2"]))


def run(program, arguments):
    hidden = dict(os.environ, CUDA_VISIBLE_DEVICES="")
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=hidden)


def lists_products(program):
    """The products follow the cases: micro-batches, types of main gradients, experts' models."""
    def listed(case):
        return run(program, ["--list", "--only", "", "--cases", case]).stdout

    qwen = listed("qwen2.5-1.5b")
    assert "m16384 n1536 k8960 nt bf16 bf16 bf16 beta0" in qwen and "fp32" not in qwen and "e4m3" not in qwen, qwen
    assert "m1536 n8960 k16384 tn bf16 bf16 bf16 beta1" in qwen, qwen
    fp8 = listed("qwen2.5-7b-fp8")
    assert "m2048 n37888 k3584 nt e4m3" in fp8 and "m2048 n152064 k3584 nt bf16" in fp8 and "fp32" not in fp8, fp8
    llama = listed("llama3-8b")
    assert "m4096 n14336 k8192 tn bf16 bf16 bf16 beta0" in llama and "tn bf16 bf16 bf16 beta1" not in llama, llama
    assert "mixtral-8x7b router wgrad x2" in listed("mixtral-8x7b")
    assert "deepseek-v3 shared_fc1 fprop x1" in listed("deepseek-v3")
    all_of_them = run(program, ["--list"]).stdout.splitlines()
    assert all_of_them[-1] == f"{len(all_of_them) - 1} products"
    with tempfile.TemporaryDirectory() as folder:
        measured = pathlib.Path(folder) / "before.json"
        measured.write_text(json.dumps({"rows": [
            {"section": "gemm", "name": all_of_them[0][:58].rstrip(), "ms": 1.0},
            {"section": "gemm", "name": all_of_them[1][:58].rstrip(), "skipped": "no algorithm"}]}))
        left = run(program, ["--list", "--without", str(measured)]).stdout.splitlines()
        assert left[:-1] == all_of_them[1:-1] and left[-1] == f"{len(left) - 1} products", left[:2]


def main():
    program = sys.argv[1]
    name = pathlib.Path(program).name
    for status, text, arguments in {"mbbench-step": STEP, "mbbench-floor": FLOOR, "mbbench-comm": COMM}[name]:
        done = run(program, arguments)
        assert done.returncode == status and text in done.stderr and not done.stdout, (arguments, done)
    if name == "mbbench-floor":
        lists_products(program)
    for flag in ("--help", "-h"):
        done = run(program, [flag])
        assert done.returncode == 0 and done.stdout.startswith(name) and not done.stderr, done


main()
