"""`ci/gpu/sanitize` with a sanitizer that only speaks: our hazards make it fail, cuBLASLt's own do not."""
import os
import pathlib
import subprocess
import tempfile

HERE = pathlib.Path(__file__).parent
TOOL = """#!/bin/sh
tool=$2
echo "========= COMPUTE-SANITIZER"
if [ $tool = racecheck ]; then
  [ -z "$RACE" ] || echo "========= Error: Race reported between Read access at $RACE+0xe40"
  echo "[  PASSED  ] 3 tests."
  [ -z "$FAILS" ] || echo "[  FAILED  ] 1 test, listed below:"
  echo "========= RACECHECK SUMMARY: ${RACE:+1 hazard displayed}${RACE:-0 hazards displayed}"
  [ -z "$RACE" ] || exit 9
else
  echo "[  PASSED  ] 3 tests."
  echo "========= ERROR SUMMARY: 0 errors"
fi
[ -z "$FAILS" ] || exit 1
"""


def main():
    with tempfile.TemporaryDirectory() as folder:
        home = pathlib.Path(folder)
        for name, text in (("compute-sanitizer", TOOL), ("cuda_gpu", "#!/bin/sh\n")):
            (home / name).write_text(text)
            (home / name).chmod(0o755)

        def sanitize(**variables):
            environment = {**os.environ, "PATH": f"{home}:{os.environ['PATH']}", **variables}
            command = [str(HERE / "sanitize"), str(home / "cuda_gpu"), "*", "2"]
            return subprocess.run(command, env=environment, capture_output=True, text=True)

        clean = sanitize()
        assert clean.returncode == 0 and "racecheck: 6 tests, clean, " in clean.stdout, clean
        theirs = sanitize(RACE="nvjet_sm90_qqtst")
        assert theirs.returncode == 0, theirs
        assert "racecheck: 6 tests, clean, 2 hazards in kernels of cuBLASLt" in theirs.stdout, theirs
        ours = sanitize(RACE="void mbb::trainer::cuda::norm_kernel")
        assert ours.returncode == 1 and "racecheck: 6 tests, NOT CLEAN" in ours.stdout, ours
        assert "Race reported between Read access at void mbb" in ours.stdout, ours
        failed = sanitize(RACE="nvjet_sm90_qqtst", FAILS="1")
        assert failed.returncode == 1 and "racecheck: 6 tests, NOT CLEAN" in failed.stdout, failed


if __name__ == "__main__":
    main()
