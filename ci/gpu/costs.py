"""Prints the measured half of a card's cost table (baselines/kernels/<card>.toml).

    costs.py FLOOR[,FLOOR...] [MICRO ...]     FLOOR: `mbbench-floor --out`, the first to have a row wins;
                                              MICRO: `mbbench micro --benchmark_out`

[kernel] copy bandwidth and shares of it by op kind (median over tensors that do not stay in L2), [attention] of cuDNN
fitted by head dimension, [gemm] by role. Network, terms with their uncertainties, and whole steps are written by hand.
Exit status 0; 4 where a file cannot be read, 64 where the arguments are wrong.
"""
import collections
import json
import math
import pathlib
import re
import statistics
import sys

ROLES = ("fprop", "dgrad", "wgrad", "wgrad_accumulate")
LIKE_FORWARD = 0.8  # the backward's FLOPs are counted 2.5 times the forward's there, twice here


def fail(status, text):
    print(f"costs.py: {text}", file=sys.stderr)
    sys.exit(status)


def read(name, keys, writer):
    """A JSON document with these keys."""
    try:
        document = json.loads(pathlib.Path(name).read_text())
    except OSError as error:
        fail(4, f"{name} cannot be read: {error.strerror}")
    except ValueError:
        document = None
    if not isinstance(document, dict) or any(key not in document for key in keys):
        fail(4, f"{name} is not what `{writer}` writes: no JSON with {', '.join(keys)}")
    return document


def products(rows):
    """{"bf16" | "fp8": {role: {(m, n, k): TFLOP/s}}}"""
    found = {"bf16": {role: {} for role in ROLES}, "fp8": {role: {} for role in ROLES}}
    for row in rows:
        if row["section"] != "gemm" or "skipped" in row:
            continue
        m, n, k = (int(x) for x in re.match(r"m(\d+) n(\d+) k(\d+) ", row["name"]).groups())
        role = re.search(r" (fprop|dgrad|wgrad) x", row["uses"]).group(1)
        if "beta1" in row["name"]:
            role += "_accumulate"
        table = found["fp8" if re.search(r"e4m3|e5m2", row["name"]) else "bf16"][role]
        if role.startswith("wgrad") and " bf16 beta" in row["name"]:
            table.setdefault((m, n, k), row["tflop_s"])  # into bf16: only where no row writes fp32
        else:
            table[m, n, k] = row["tflop_s"]
    return found


def merged(floors):
    rows = {}
    for floor in floors:
        for row in floor["rows"]:
            rows.setdefault((row["section"], row["name"], row.get("seq"), row.get("head_dim"), row["uses"]), row)
    return list(rows.values())


def fit(points):
    """(rate, keys at half of it, us) of points (FLOPs, keys of a row, ms) with the smallest largest error, and that."""
    best = None
    for half in range(0, 2001, 20):
        for us in range(0, 61):
            logs = [math.log(flops * (1 + half / keys) / (ms * 1e3 - us) * 1e-6) if ms * 1e3 > us else None
                    for flops, keys, ms in points]
            if None in logs:
                break
            rate = math.exp(statistics.mean(logs))
            error = max(abs(math.log((flops / rate * 1e-6 * (1 + half / keys) + us) / (ms * 1e3)))
                        for flops, keys, ms in points)
            if best is None or error < best[0]:
                best = error, rate, half, us
    return best


def attention(rows, direction):
    """[head dimension, TFLOP/s, keys, us] by head dimension, and the largest error of each."""
    by_dimension = collections.defaultdict(list)
    for row in rows:
        if row["section"] == "attention" and row["name"].startswith(f"cudnn {direction}") and "ms" in row:
            flops = row["flops"] * (LIKE_FORWARD if direction == "backward" else 1)
            by_dimension[row["head_dim"]].append((flops, row["seq"], row["ms"]))
    if not by_dimension:
        return {}
    fits, most = {}, max(by_dimension, key=lambda d: len(by_dimension[d]))
    fits[most] = fit(by_dimension[most])
    _, _, half, us = fits[most]
    for dimension, points in by_dimension.items():
        if dimension != most:  # too few points for three numbers: the rate alone
            rates = [flops * (1 + half / keys) / (ms * 1e3 - us) * 1e-6 for flops, keys, ms in points]
            fits[dimension] = None, statistics.mean(rates), half, us
    return {d: fits[d] for d in sorted(fits)}


def shares(files):
    """{op kind: share of copy bandwidth, operands counted once}, of rows whose operands are large enough to say."""
    found = collections.defaultdict(list)
    for file in files:
        for row in file["benchmarks"]:
            if "share" in row and "GB/s" in row:
                found[re.split(r"[:/]", row["name"].split("/", 2)[2])[0]].append(
                    row["share"] * (1 - row.get("again_MiB", 0) / row["MiB"]))
    return {kind: statistics.median(found[kind]) for kind in sorted(found)}


def rows_of(table):
    cells = [f"[{m}, {n}, {k}, {rate:.1f}]" for (m, n, k), rate in sorted(table.items())]
    return "".join("  " + ", ".join(cells[i:i + 4]) + ",\n" for i in range(0, len(cells), 4))


def main():
    arguments = sys.argv[1:]
    if "-h" in arguments or "--help" in arguments:
        print(__doc__.strip())
        return
    if not arguments or any(a.startswith("-") for a in arguments):
        fail(64, "arguments are FLOOR[,FLOOR...] [MICRO ...]: files of `mbbench-floor --out`, of `mbbench micro`")
    floors = [read(name, ("rows", "environment", "seconds"), "mbbench-floor --out") for name in arguments[0].split(",")]
    micros = [read(name, ("benchmarks",), "mbbench micro --benchmark_out") for name in arguments[1:]]
    rows = merged(floors)
    print(f"# {floors[0]['environment']['device']}, {floors[0]['seconds']} s a row")
    print("[kernel]")
    for row in rows:
        if row["section"] == "copy":
            print("copy_gb_s =", round(1e3 * row["tb_s"]))
    print("[kernel.shares]")
    for kind, share in shares(micros).items():
        print(f"{kind} = {share:.2f}")
    print("\n[attention]")
    for direction in ("forward", "backward"):
        fits = attention(rows, direction)
        if not fits:
            continue
        cells = ", ".join(f"[{d}, {rate:.0f}, {half}, {us}]" for d, (_, rate, half, us) in fits.items())
        worst = max(error for error, *_ in fits.values() if error is not None)
        print(f"{direction} = [{cells}]  # within {100 * worst:.0f} %")
    for precision, roles in products(rows).items():
        print(f"\n[gemm.{precision}]")
        for role, table in roles.items():
            print(f"{role} = [\n{rows_of(table)}]")


if __name__ == "__main__":
    main()
