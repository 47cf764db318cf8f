"""The summary of GPU cases judges goals as it should, and every line of cases.txt can be read."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent
ROW = {"case": "m", "layers": 2, "seq": 64, "mbs": 1, "micro_batches": 1, "prec": "bf16", "states": "fp32",
       "launch_s": 1.0, "spread": [9, 12], "mfu_bf16_causal": 0.5, "mfu_bf16_full": 0.6}
CASES = """# a comment
met | --model m | m 2 64 1 bf16 | fwdbwd_ratio>=1.05 step_ms<=11
near | --model m | - | tokens_s>=1000
missed | --model m | - | step_ms<=9 fwdbwd_ratio>=1
"""


BARE = {"gemm": {"ms": 6.0}, "memory": {"ms": 2.5}}
FULL = {part: dict(p, ceiling_ms=p["ms"] - 0.5, lost_ms=0.5) for part, p in BARE.items()}
GROUPS = {"groups": {"routing": {"ms": 0.25, "share": 0.025, "ceiling_ms": 0.2}}, "forward_backward_floor_ratio": 0.7}
RATIOS = {"step_efficiency": 0.85, "floor_ratio": 0.75, "between_ops_ms": 1.5}


def run(*arguments):
    return subprocess.run([sys.executable, str(HERE / "summary.py"), *arguments], capture_output=True, text=True)


def summary(folder):
    done = run(folder, f"{folder}/cases.txt")
    assert done.returncode == 0, done
    return done.stdout


def refused(status, text, *arguments):
    done = run(*arguments)
    assert done.returncode == status and text in done.stderr and "Traceback" not in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as folder:
        rows = [dict(ROW, name="met", fwdbwd_ms=8.0, step_ms=10.0, tokens_s=1100),
                dict(ROW, name="met", fwdbwd_ms=8.2, step_ms=10.2, tokens_s=1090),
                dict(ROW, name="near", fwdbwd_ms=8.0, step_ms=10.0, tokens_s=975, parts=BARE),
                dict(ROW, name="missed", fwdbwd_ms=8.0, step_ms=10.0, tokens_s=975, parts=FULL, **RATIOS, **GROUPS)]
        path = pathlib.Path(folder)
        (path / "cases.txt").write_text(CASES)
        (path / "product.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
        peer = {"case": "m", "layers": 2, "seq": 64, "mbs": 1, "prec": "bf16", "fwdbwd_ms": 9.0, "step_ms": 12.0}
        (path / "peer.jsonl").write_text(json.dumps(peer) + "\n")
        text = summary(folder)
        for wanted in ("met: fp32; 1 x 1 x 64 tokens, n=2", "goal fwdbwd_ratio >= 1.05: 1.111, met",
                       "goal step_ms <= 11: 10.1, met", "goal tokens_s >= 1000: 975, within 3 % (2.5% off)",
                       "goal step_ms <= 9: 10, MISSED (11.1% off)", "goal fwdbwd_ratio >= 1: no peer in this run",
                       "gemm 6.0 (60.0%), memory 2.5 (25.0%); no ceilings in this row",
                       "ms, of the step: routing 0.25 (2.5%)",
                       "floor ratio 0.750 (forward + backward 0.700); ms lost: gemm 0.5 of 6.0",
                       "memory 0.5 of 2.5, between ops 1.5"):
            assert wanted in text, f"{wanted!r} is not in\n{text}"
        (path / "product.jsonl").write_text('{"name": "met"}\n')
        refused(4, "a row of met has no 'spread'", folder)
        (path / "product.jsonl").write_text("not JSON\n")
        refused(4, "product.jsonl:1 is no row of results", folder)
        (path / "product.jsonl").unlink()
        refused(4, "nothing was measured", folder)
        refused(4, "is no folder", f"{folder}/nowhere")
        refused(4, "nowhere cannot be read", folder, f"{folder}/nowhere")
        refused(64, "arguments are RESULTS [CASES]")
        refused(64, "arguments are RESULTS [CASES]", "--nope", folder)
        assert "RESULTS: folder of" in run("--help").stdout and run("--help").returncode == 0
    for line in (HERE / "cases.txt").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, args, peer, goals = (part.strip() for part in line.split("|"))
        assert args.startswith("--model "), line
        assert peer == "-" or len(peer.split()) == 5, line
        goal = re.compile(r"(fwdbwd_ratio|step_ratio|step_ms|tokens_s)(>=|<=)[\d.]+")
        assert all(goal.fullmatch(g) for g in goals.split()), line


main()
