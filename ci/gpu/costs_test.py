"""A card's cost table as costs.py writes it from a floor whose answers are known."""
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).parent


def attention(direction, dimension, seq, rate, half, us):
    flops = 1e12 if direction == "forward" else 2.5e12
    like_forward = 1e12 if direction == "forward" else 2e12
    ms = like_forward * (1 + half / seq) / rate * 1e-9 + us * 1e-3
    return {"section": "attention", "name": f"cudnn {direction}", "uses": "m", "flops": flops, "seq": seq,
            "head_dim": dimension, "ms": ms}


def refused(status, text, *arguments):
    done = subprocess.run([sys.executable, str(HERE / "costs.py"), *arguments], capture_output=True, text=True)
    assert done.returncode == status and text in done.stderr and "Traceback" not in done.stderr, done


def main():
    rows = [{"section": "copy", "name": "device copy", "uses": "", "bytes": 1, "tb_s": 4.2709}]
    for direction, rate, half, us in (("forward", 600, 360, 8), ("backward", 420, 980, 43)):
        rows += [attention(direction, 128, seq, rate, half, us) for seq in (1024, 4096, 8192)]
        rows.append(attention(direction, 64, 1024, rate / 2, half, us))
    rows += [
        {"section": "gemm", "name": "m8 n16 k32 nt bf16 bf16 bf16 beta0", "uses": "a qkv fprop x8", "tflop_s": 700.04},
        {"section": "gemm", "name": "m2 n16 k32 nt bf16 bf16 bf16 beta0", "uses": "b qkv fprop x8", "tflop_s": 600},
        {"section": "gemm", "name": "m8 n16 k32 tn bf16 bf16 fp32 beta1", "uses": "a qkv wgrad x0", "tflop_s": 650},
        {"section": "gemm", "name": "m8 n16 k32 tn bf16 bf16 bf16 beta1", "uses": "b qkv wgrad x0", "tflop_s": 999},
        {"section": "gemm", "name": "m8 n16 k32 nt e4m3 e5m2 bf16 beta0", "uses": "a fc1 dgrad x8", "tflop_s": 1300},
        {"section": "gemm", "name": "m9 n16 k32 nt e4m3 e5m2 bf16 beta0", "uses": "a fc1 dgrad x8", "skipped": "no"}]
    micro = {"benchmarks": [{"name": "llama3-8b/bf16/rmsnorm:bf16/8192x1x4096/iterations:1", "GB/s": 1, "share": 0.75,
                             "MiB": 128},
                            {"name": "other/bf16/rmsnorm:bf16/4096x7168/iterations:1", "GB/s": 1, "share": 0.85,
                             "MiB": 112},
                            {"name": "other/fp8/quantize:bf16/8192x4096/iterations:1", "GB/s": 1, "share": 0.90,
                             "MiB": 192, "again_MiB": 64},
                            {"name": "llama3-8b/bf16/add:bf16/8x8/iterations:1", "GB/s": 1},
                            {"name": "llama3-8b/bf16/gemm:fprop:bf16/8x8/iterations:1", "TFLOP/s": 1, "share": 1}]}
    with tempfile.TemporaryDirectory() as folder:
        floor, case = pathlib.Path(folder, "floor.json"), pathlib.Path(folder, "micro.json")
        floor.write_text(json.dumps({"environment": {"device": "card"}, "seconds": 1.0, "rows": rows}))
        case.write_text(json.dumps(micro))
        text = subprocess.run([sys.executable, str(HERE / "costs.py"), str(floor), str(case)], check=True,
                              capture_output=True, text=True).stdout
        refused(64, "arguments are FLOOR")
        refused(64, "arguments are FLOOR", "--nope")
        refused(4, "cannot be read", f"{floor}.not-there")
        refused(4, "is not what `mbbench-floor --out` writes", str(case))
        refused(4, "is not what `mbbench micro --benchmark_out` writes", str(floor), str(floor))
        helped = subprocess.run([sys.executable, str(HERE / "costs.py"), "--help"], capture_output=True, text=True)
        assert helped.returncode == 0 and "FLOOR: `mbbench-floor --out`" in helped.stdout, helped
    for part in ("copy_gb_s = 4271", "rmsnorm = 0.80", "quantize = 0.60",
                 "forward = [[64, 300, 360, 8], [128, 600, 360, 8]]",
                 "backward = [[64, 210, 980, 43], [128, 420, 980, 43]]",
                 "[gemm.bf16]\nfprop = [\n  [2, 16, 32, 600.0], [8, 16, 32, 700.0],\n]\ndgrad = [\n]\n",
                 "wgrad_accumulate = [\n  [8, 16, 32, 650.0],\n]", "[gemm.fp8]", "[8, 16, 32, 1300.0]"):
        assert part in text, f"{part!r} is not in\n{text}"
    for part in ("add =", "gemm =", "[9,"):
        assert part not in text, f"{part!r} is in\n{text}"


if __name__ == "__main__":
    main()
