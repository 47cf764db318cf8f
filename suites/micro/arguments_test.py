"""What mbbench-step and mbbench-floor say to arguments they cannot take, and where there is no GPU.

    arguments_test.py PROGRAM
"""
import os
import pathlib
import subprocess
import sys

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
    (4, "it needs one", ["--cases", "llama3-8b"]))


def run(program, arguments):
    hidden = dict(os.environ, CUDA_VISIBLE_DEVICES="")
    return subprocess.run([program, *arguments], capture_output=True, text=True, env=hidden)


def main():
    program = sys.argv[1]
    name = pathlib.Path(program).name
    for status, text, arguments in {"mbbench-step": STEP, "mbbench-floor": FLOOR}[name]:
        done = run(program, arguments)
        assert done.returncode == status and text in done.stderr and not done.stdout, (arguments, done)
    for flag in ("--help", "-h"):
        done = run(program, [flag])
        assert done.returncode == 0 and done.stdout.startswith(name) and not done.stderr, done


main()
