"""Prints every case: product against peer and goals, then where the step's time goes.

    summary.py RESULTS [CASES]     RESULTS: folder of product.jsonl and peer.jsonl; CASES: cases.txt with the goals

Times are medians over rounds with the fastest and slowest step of all rounds; a ratio is peer time / product time.
"""
import collections
import json
import operator
import pathlib
import re
import statistics
import sys

COMPARE = {">=": operator.ge, "<=": operator.le}
NEAR = 0.03  # a goal missed by no more is "within 3 %"


def load(path, key):
    rows = collections.defaultdict(list)
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            rows[key(row)].append(row)
    return rows


def read_cases(path):
    """name -> (the peer's key or None, [(metric, sign, value)])"""
    cases = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        if not line.strip() or line.startswith("#"):
            continue
        name, _, peer, goals = (part.strip() for part in line.split("|"))
        key = None
        if peer != "-":
            model, layers, seq, mbs, precision = peer.split()
            key = (model, int(layers), int(seq), int(mbs), precision[:3])
        cases[name] = (key, re.findall(r"(\w+)(>=|<=)([\d.]+)", goals))
    return cases


def median(rows, key):
    return statistics.median(row[key] for row in rows)


def judge(value, sign, goal):
    if COMPARE[sign](value, goal):
        return "met"
    off = abs(value / goal - 1)
    return f"{'within 3 %' if off <= NEAR else 'MISSED'} ({off:.1%} off)"


def main():
    folder = pathlib.Path(sys.argv[1])
    shipped = pathlib.Path(__file__).with_name("cases.txt")
    cases = read_cases(pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else shipped)
    product = load(folder / "product.jsonl", lambda r: r["name"])
    peers = load(folder / "peer.jsonl", lambda r: (r["case"], r["layers"], r["seq"], r["mbs"], r["prec"][:3]))
    if not product:
        print("no product row: nothing was measured")
    for name, rows in product.items():
        peer_key, goals = cases.get(name, (None, []))
        row = rows[0]
        low, high = min(r["spread"][0] for r in rows), max(r["spread"][1] for r in rows)
        print(f"{name}: {row['states']}; {row['micro_batches']} x {row['mbs']} x {row['seq']} tokens, n={len(rows)}")
        values = {key: median(rows, key) for key in ("fwdbwd_ms", "step_ms", "tokens_s")}
        half, whole = values["fwdbwd_ms"], values["step_ms"]
        text = f"  forward + backward {half:.1f} ms, step {whole:.1f} [{low:.1f}, {high:.1f}] ms"
        text += f", {values['tokens_s']:.0f} tokens/s, MFU (bf16) {row['mfu_bf16_causal']:.1%} causal"
        text += f" {row['mfu_bf16_full']:.1%} full, first timed step after {median(rows, 'launch_s'):.1f} s"
        print(text)
        if peer_key in peers:
            peer = peers[peer_key]
            for key in ("fwdbwd_ms", "step_ms"):
                values[key.replace("_ms", "_ratio")] = median(peer, key) / values[key]
            times = f"{median(peer, 'fwdbwd_ms'):.1f} / {median(peer, 'step_ms'):.1f} ms (bf16 weights and moments)"
            print(f"  peer {times}: ratio {values['fwdbwd_ratio']:.3f} / {values['step_ratio']:.3f}")
        for metric, sign, goal in goals:
            if metric in values:
                verdict = judge(values[metric], sign, float(goal))
                print(f"  goal {metric} {sign} {goal}: {values[metric]:.4g}, {verdict}")
            else:
                print(f"  goal {metric} {sign} {goal}: no peer in this run")
        if "sm_mhz" in row:
            print(f"  {median(rows, 'sm_mhz'):.0f} MHz, {median(rows, 'power_w'):.0f} W,"
                  f" power cap in {median(rows, 'power_capped'):.0%} of samples, {row['temperature_c']:.0f} C")
        if "parts" in row:
            lost = ", ".join(f"{part} {p['lost_ms']:.1f} of {p['ms']:.1f}" for part, p in row["parts"].items())
            ratios = f"step efficiency {row['step_efficiency']:.3f}, floor ratio {row['floor_ratio']:.3f}"
            print(f"  {ratios}; ms lost: {lost}, between ops {row['between_ops_ms']:.1f}")


main()
