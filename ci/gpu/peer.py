"""One case of the PyTorch peer: imports, waits for a line on standard input, then measures and prints its JSON line.

    peer.py MODEL LAYERS SEQ MICRO_BATCH bf16|fp8

The import takes seconds and no GPU: it is done beside the product's launch, and the GPU is touched when the line comes.
"""
import sys

import torch
import torch._dynamo
import torch._inductor.compile_fx  # what compiling would import
import torch_llama
from torch.nn.attention import SDPBackend

name, layers, seq, mbs, precision = sys.argv[1:]
if sys.stdin.readline() and torch.cuda.is_available():
    torch_llama.run(name, int(layers), int(seq), int(mbs), precision == "fp8", SDPBackend.CUDNN_ATTENTION)
