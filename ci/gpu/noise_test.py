"""`ci/gpu/noise` with a program that only speaks: suites in turn, only their tuned cells, going on where it ended."""
import os
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
PROGRAM = """#!/bin/sh
echo "$@" >> "$CALLS"
case "$1 $2" in
  "list suites") printf 'suite cells\\na-bf16 2\\nb-fp8 1\\nmappings-2gpus 1\\nc-cpu 1\\nlarge 1\\n' ;;
  "suite a-bf16") printf 'a-bf16: a suite\ncell GPUs class\nslice-2gpu-tp2 2 projected\nwide-12gpu 12 projected\n' ;;
  suite*) echo "error: suite $2: no cell matches --only '*2gpu*'"; exit 4 ;;
  "tune --suite") [ "$3" = large ] && { echo 'suite large has no cell of one GPU to tune'; exit 4; }; echo one: tuned ;;
  "noise b-fp8") echo 'cell one: out of memory' >&2; exit 4 ;;
  noise*) echo '{"table": "noise"}' ;;
esac
"""


def main():
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        for name, text in (("mbbench", PROGRAM), ("nvidia-smi", "#!/bin/sh\necho card\n")):
            (home / name).write_text(text)
            (home / name).chmod(0o755)
        calls = home / "calls"
        environment = {**os.environ, "CALLS": str(calls), "PATH": f"{home}:{os.environ['PATH']}"}

        def noise(*arguments):
            command = [str(HERE / "noise"), "-p", str(home / "mbbench"), "-o", str(home / "out"), *arguments]
            return subprocess.run(command, env=environment, capture_output=True, text=True)

        first = noise("-n", "2")
        assert first.returncode == 1, first
        assert "b-fp8: exit 4, cell one: out of memory" in first.stdout, first
        assert "large" not in first.stdout, first
        said = calls.read_text()
        assert "noise a-bf16 --only one --launches 2 --quiet --json train_iters=12" in said, said
        assert "mappings" not in said and "c-cpu" not in said, said
        assert (home / "out/a-bf16.json").read_text() == '{"table": "noise"}\n'
        assert not (home / "out/b-fp8.json").exists()
        calls.write_text("")
        again = noise()
        assert "noise a-bf16" not in calls.read_text() and "noise b-fp8" in calls.read_text(), again
        calls.write_text("")
        two = noise("-g", "2", "-o", str(home / "two"))
        assert "noise a-bf16 --only slice-2gpu-tp2 --launches 3" in calls.read_text(), two
        assert "wide" not in calls.read_text() and "tune" not in calls.read_text(), calls.read_text()
        assert "b-fp8" not in two.stdout, two
        (home / "mine.toml").write_text("")
        mine = noise("-o", str(home / "three"), str(home / "mine.toml"))
        assert mine.returncode == 0 and (home / "three/mine.json").exists(), mine
        nothing = noise("-p", "/bin/true")
        assert nothing.returncode == 4 and "lists no suite" in nothing.stderr, nothing
        for arguments in (("-n", "x"), ("-t", "0"), ("-q",)):
            assert noise(*arguments).returncode == 64, arguments
        missing = subprocess.run([str(HERE / "noise"), "-p", str(home / "nope")], env=environment, capture_output=True,
                                 text=True)
        assert missing.returncode == 4 and "is not there" in missing.stderr, missing


if __name__ == "__main__":
    main()
