"""Prints product against peer for every case: medians over rounds, spread, ratio (peer time / product time)."""
import collections
import json
import pathlib
import statistics
import sys


def load(path):
    rows = collections.defaultdict(list)
    if path.exists():
        for line in path.read_text().splitlines():
            row = json.loads(line)
            name = {"llama3-70b-tp4": "llama3-70b-tp4shard"}.get(row["case"], row["case"])
            rows[(name, row["layers"], row["seq"], row["mbs"], row["prec"][:3])].append(row)
    return rows


def cell(rows, key):
    values = [row[key] for row in rows]
    return statistics.median(values), min(values), max(values)


def main():
    folder = pathlib.Path(sys.argv[1])
    product, peer = load(folder / "product.jsonl"), load(folder / "peer.jsonl")
    for case, rows in product.items():
        for key in ("fwdbwd_ms", "step_ms"):
            mid, low, high = cell(rows, key)
            line = f"{' '.join(map(str, case)):<44} {key:<10} {mid:8.2f} ms [{low:.2f}, {high:.2f}] n={len(rows)}"
            if case in peer:
                other = cell(peer[case], key)
                line += f"   peer {other[0]:8.2f} [{other[1]:.2f}, {other[2]:.2f}]   ratio {other[0] / mid:.3f}"
            print(line)
    if not product:
        print("no product row: nothing was measured")


main()
