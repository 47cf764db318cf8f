"""Writes expected.tsv: conversions and quantized matrices, computed with PyTorch's float8 types.

Run with PyTorch, numpy and ml_dtypes (whose E2M1 stands in: PyTorch stores that type but does not convert to it):
python3 make_expected.py [OUTPUT]. formats_contract_test.cpp beside this folder repeats the inputs.
Lines, tab-separated:
  cast    TYPE  then pairs BITS:CODE: the fp32 value and its code, saturated
  decode  TYPE  the fp32 bits of codes 0, 1, ...
  matrix  NAME  ROWS  COLUMNS  hash of the codes, the first 16 codes, hash of the scales as kept, the first 4 scales
"""
import os
import sys

import ml_dtypes
import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
MASK = (1 << 64) - 1
TYPES = {"e4m3": (torch.float8_e4m3fn, 448.0), "e5m2": (torch.float8_e5m2, 57344.0)}


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def fnv(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def bits_of(x):
    return torch.tensor(x, dtype=torch.float32).view(torch.int32).item() & 0xFFFFFFFF


def inputs(kind):
    """Random bit patterns of moderate exponents, and the middles between neighbouring codes with their neighbours."""
    out = []
    for i in range(160):
        word = mix(0x1234 + i)
        exponent = 127 - 20 + word % 40 if kind != "e2m1" else 127 - 4 + word % 8
        out.append((((word >> 20) & 1) << 31) | (exponent << 23) | ((word >> 30) & 0x7FFFFF))
    codes = torch.arange(0, 127, 5, dtype=torch.uint8)
    if kind in TYPES:
        low = codes.view(TYPES[kind][0]).float()
        high = (codes + 1).view(TYPES[kind][0]).float()
    else:
        low = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4])
        high = torch.tensor([0.5, 1, 1.5, 2, 3, 4, 6])
    for a, b in zip(low.tolist(), high.tolist()):
        middle = bits_of((a + b) / 2)
        out += [middle - 1, middle, middle + 1, middle | 0x80000000]
    out += [0, 0x80000000, 0x7F7FFFFF, 0xFF7FFFFF, 1, 0x00800000]
    values = torch.tensor([v - (1 << 32) if v >> 31 else v for v in out], dtype=torch.int32).view(torch.float32)
    return [b for b, v in zip(out, values.tolist()) if v == v]


def as_floats(bits):
    return torch.tensor([b - (1 << 32) if b >> 31 else b for b in bits], dtype=torch.int32).view(torch.float32)


def to_fp4(x):
    """Codes, saturated."""
    clamped = x.clamp(-6, 6).numpy().astype(ml_dtypes.float4_e2m1fn)
    return torch.from_numpy(clamped.view(np.uint8).copy()) & 15


def cast(kind, x):
    if kind == "e2m1":
        return to_fp4(x)
    dtype, largest = TYPES[kind]
    return x.clamp(-largest, largest).to(dtype).view(torch.uint8)


def matrix(rows, cols):
    """bf16 values whose magnitudes differ by row and column."""
    x = torch.empty(rows * cols, dtype=torch.float32)
    for i in range(rows * cols):
        word = mix(i + 99)
        x[i] = ((word >> 40) - (1 << 23)) * 2.0 ** (-22 - (word & 7) - (i // cols) % 5)
    return x.reshape(rows, cols).bfloat16().float()


def line(name, rows, cols, codes, scales):
    codes = codes.reshape(-1).tolist()
    scales = scales.reshape(-1).tolist()
    width = 4 if max(scales) > 255 else 1
    raw = b"".join(int(s).to_bytes(width, "little") for s in scales)
    return "\t".join(["matrix", name, str(rows), str(cols), f"{fnv(bytes(codes)):016x}",
                      "".join(f"{c:02x}" for c in codes[:16]), f"{fnv(raw):016x}",
                      "".join(f"{int(s):0{2 * width}x}" for s in scales[:4])])


def word(x):
    return x.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def tensorwise(kind, rows=32, cols=256):
    x = matrix(rows, cols)
    scale = torch.tensor(TYPES[kind][1]) / x.abs().max()
    return line(f"tensorwise-{kind}", rows, cols, cast(kind, x * scale), word((1.0 / scale).reshape(1)))


def blockwise(name, high, power_of_two, rows, cols):
    x = matrix(rows, cols)
    blocks = x.reshape(rows // high, high, cols // 128, 128)
    # A number over a tensor would be its reciprocal times the number, rounded twice.
    scale = torch.tensor(448.0) / blocks.abs().amax(dim=(1, 3), keepdim=True)
    if power_of_two:
        scale = (scale.view(torch.int32) & -8388608).view(torch.float32)
    codes = cast("e4m3", (blocks * scale).reshape(rows, cols))
    return line(name, rows, cols, codes, word(1.0 / scale))


def mxfp8(rows=32, cols=256):
    x = matrix(rows, cols)
    blocks = x.reshape(rows, cols // 32, 32)
    amax = blocks.abs().amax(dim=2, keepdim=True).double()
    exponent = torch.ceil(torch.log2(amax / 448.0))
    scale = torch.exp2(exponent).float()
    codes = cast("e4m3", (blocks / scale).reshape(rows, cols))
    kept = scale.to(torch.float8_e8m0fnu).view(torch.uint8)
    assert torch.equal(kept.view(torch.float8_e8m0fnu).float(), scale)
    return line("mxfp8", rows, cols, codes, kept.to(torch.int64))


def nvfp4(name, high, rows=32, cols=256):
    x = matrix(rows, cols)
    whole = torch.tensor(448.0 * 6.0) / x.abs().max()
    blocks = x.reshape(rows // high, high, cols // 16, 16)
    amax = blocks.abs().amax(dim=(1, 3), keepdim=True)
    kept = (amax / 6.0 * whole).clamp(max=448.0).to(torch.float8_e4m3fn)
    factor = torch.where(kept.float() == 0, 0.0, whole / kept.float())
    codes = to_fp4((blocks * factor).reshape(rows, cols))
    return line(name, rows, cols, codes, kept.view(torch.uint8).to(torch.int64))


def main():
    lines = []
    for kind in ("e4m3", "e5m2", "e2m1"):
        bits = inputs(kind)
        pairs = " ".join(f"{b:08x}:{c:02x}" for b, c in zip(bits, cast(kind, as_floats(bits)).tolist()))
        lines.append(f"cast\t{kind}\t{pairs}")
    codes = torch.arange(256, dtype=torch.int64).to(torch.uint8)
    fp4 = np.arange(16, dtype=np.uint8).view(ml_dtypes.float4_e2m1fn).astype(np.float32)
    for kind, values in (("e4m3", codes.view(torch.float8_e4m3fn).float()),
                         ("e5m2", codes.view(torch.float8_e5m2).float()),
                         ("e8m0", codes.view(torch.float8_e8m0fnu).float()), ("e2m1", torch.from_numpy(fp4))):
        lines.append(f"decode\t{kind}\t" + " ".join(f"{w:08x}" for w in word(values).tolist()))
    lines += [tensorwise("e4m3"), tensorwise("e5m2"), blockwise("1x128", 1, True, 32, 256),
              blockwise("1x128-f32", 1, False, 32, 256), blockwise("128x128", 128, True, 256, 256), mxfp8(),
              nvfp4("nvfp4", 1), nvfp4("nvfp4-square", 16)]
    with open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "expected.tsv"), "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
