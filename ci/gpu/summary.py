"""Prints every case: product against peer and goals, then where the step's time goes.

    summary.py RESULTS [CASES]     RESULTS: folder of product.jsonl and peer.jsonl; CASES: cases.txt with the goals

Times are medians over rounds with the fastest and slowest step of all rounds; a ratio is peer time / product time.
Exit status 0; 4 where nothing was measured or a file cannot be read, 64 where the arguments are wrong.
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


def fail(status, text):
    print(f"summary.py: {text}", file=sys.stderr)
    sys.exit(status)


def read(path):
    try:
        return path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        fail(4, f"{path} cannot be read: {getattr(error, 'strerror', None) or 'not text'}")


def load(path, key):
    rows = collections.defaultdict(list)
    for number, line in enumerate(read(path) if path.exists() else [], 1):
        try:
            row = json.loads(line)
            rows[key(row)].append(row)
        except (ValueError, KeyError, TypeError) as error:
            fail(4, f"{path}:{number} is no row of results ({type(error).__name__}: {error})")
    return rows


def read_cases(path):
    """name -> (the peer's key or None, [(metric, sign, value)])"""
    cases = {}
    for number, line in enumerate(read(path), 1):
        if not line.strip() or line.startswith("#"):
            continue
        parts = [part.strip() for part in line.split("|")]
        if len(parts) != 4 or parts[2] != "-" and not re.fullmatch(r"\S+ \d+ \d+ \d+ \S+", parts[2]):
            fail(4, f"{path}:{number}: a case: name | arguments | model layers seq mbs precision, or - | goals")
        name, _, peer, goals = parts
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


def account(row):
    """Lines on where the step's time goes; rows of other programs may hold times without ceilings."""
    parts = row["parts"]
    if all("lost_ms" in p for p in parts.values()) and "floor_ratio" in row:
        lost = ", ".join(f"{part} {p['lost_ms']:.1f} of {p['ms']:.1f}" for part, p in parts.items())
        ratios = f"step efficiency {row['step_efficiency']:.3f}, floor ratio {row['floor_ratio']:.3f}"
        if "forward_backward_floor_ratio" in row:
            ratios += f" (forward + backward {row['forward_backward_floor_ratio']:.3f})"
        text = f"  {ratios}; ms lost: {lost}, between ops {row['between_ops_ms']:.1f}"
        groups = ", ".join(f"{name} {g['ms']:.2f} ({g['share']:.1%})" for name, g in row.get("groups", {}).items())
        return text + (f"\n  ms, of the step: {groups}" if groups else "")
    times = ", ".join(f"{part} {p['ms']:.1f} ({p['ms'] / row['step_ms']:.1%})" for part, p in parts.items())
    return f"  ms, of the step: {times}; no ceilings in this row"


def report(name, rows, case, peers):
    peer_key, goals = case
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
        print(account(row))


def main():
    arguments = sys.argv[1:]
    if "-h" in arguments or "--help" in arguments:
        print(__doc__.strip())
        return
    if len(arguments) not in (1, 2) or any(a.startswith("-") for a in arguments):
        fail(64, "arguments are RESULTS [CASES]: a folder that ci/gpu/run wrote and a file like ci/gpu/cases.txt")
    folder = pathlib.Path(arguments[0])
    if not folder.is_dir():
        fail(4, f"{folder} is no folder: name one that ci/gpu/run wrote, with product.jsonl in it")
    shipped = pathlib.Path(__file__).with_name("cases.txt")
    cases = read_cases(pathlib.Path(arguments[1]) if len(arguments) > 1 else shipped)
    product = load(folder / "product.jsonl", lambda r: r["name"])
    peers = load(folder / "peer.jsonl", lambda r: (r["case"], r["layers"], r["seq"], r["mbs"], r["prec"][:3]))
    if not product:
        state = "is empty" if (folder / "product.jsonl").exists() else "is not there"
        fail(4, f"nothing was measured: {folder / 'product.jsonl'} {state}")
    for name, rows in product.items():
        try:
            report(name, rows, cases.get(name, (None, [])), peers)
        except KeyError as missing:
            fail(4, f"{folder / 'product.jsonl'}: a row of {name} has no {missing}")


if __name__ == "__main__":
    main()
