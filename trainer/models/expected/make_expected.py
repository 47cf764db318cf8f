"""Writes expected.tsv: loss and gradients of small models, computed by Hugging Face `transformers`.

Run with PyTorch and transformers: python3 make_expected.py [OUTPUT]. Each NAME.json beside this script is a model's
configuration. Weights and tokens are formulas (hash of path and element), which expected_contract_test.cpp beside this
folder repeats, so only small numbers are stored: the mean loss, and for every tensor of this project the norm of its
gradient and four of its values. Weights are leaf tensors in this project's layout; the model is called with
parameters that are functions of
them, so that autograd gives gradients in the same layout.
"""
import json
import math
import os
import sys
import traceback

import torch
import torch.nn.functional as F
import transformers

HERE = os.path.dirname(os.path.abspath(__file__))
MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
BATCH, LENGTH, ENCODER_LENGTH = 2, 12, 10


def mix(x):
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def path_hash(path):
    value = 0xCBF29CE484222325
    for byte in path.encode():
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def formula(path, shape, one_plus):
    """Norm weights around one (around zero where one is added), vectors and biases small, matrices wide."""
    start = path_hash(path)
    count = math.prod(shape)
    units = [(mix((start + i * GAMMA) & MASK) >> 40) * 2.0**-24 * 2 - 1 for i in range(count)]
    if path.endswith("norm.weight"):
        values = [(0.0 if one_plus else 1.0) + 0.1 * u for u in units]
    elif len(shape) == 1 or path.endswith("bias"):
        values = [0.1 * u for u in units]
    else:
        values = [0.3 * u for u in units]
    return torch.tensor(values, dtype=torch.float32).reshape(shape)


class Weights:
    """Tensors of this project by path, and the model's parameters made of them."""

    def __init__(self, model, one_plus):
        self.model, self.one_plus = model, one_plus
        self.leaves, self.parameters = {}, {}
        self.known = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())

    def leaf(self, path, *shape):
        if path not in self.leaves:
            self.leaves[path] = formula(path, shape, self.one_plus).requires_grad_()
        return self.leaves[path]

    def set(self, name, value):
        if name not in self.known:
            raise KeyError(f"no parameter {name}; there are {sorted(self.known)}")
        if tuple(self.known[name].shape) != tuple(value.shape):
            raise ValueError(f"{name} is {tuple(self.known[name].shape)}, not {tuple(value.shape)}")
        self.parameters[name] = value

    def norm(self, name, path):
        width = self.known[name + ".weight"].shape[0]
        self.set(name + ".weight", self.leaf(path + ".weight", width))
        if name + ".bias" in self.known:
            self.set(name + ".bias", self.leaf(path + ".bias", width))

    def linear(self, name, path):
        """A linear layer of the same layout; its bias where it has one."""
        shape = self.known[name + ".weight"].shape
        self.set(name + ".weight", self.leaf(path + ".weight", *shape))
        if name + ".bias" in self.known:
            self.set(name + ".bias", self.leaf(path + ".bias", shape[0]))

    def packed(self, names, path):
        """Several linear layers whose outputs stand one after another in one of ours."""
        rows = [self.known[n + ".weight"].shape[0] for n in names]
        columns = self.known[names[0] + ".weight"].shape[1]
        parts = self.leaf(path + ".weight", sum(rows), columns).split(rows)
        for name, part in zip(names, parts):
            self.set(name + ".weight", part)
        if names[0] + ".bias" in self.known:
            for name, part in zip(names, self.leaf(path + ".bias", sum(rows)).split(rows)):
                self.set(name + ".bias", part)

    def check(self):
        missing = [n for n, _ in self.model.named_parameters() if n not in self.parameters]
        if missing:
            raise KeyError(f"parameters without a value: {missing}")


def gpt2(w, config):
    def transposed(name, path):
        rows, columns = w.known[name + ".weight"].shape
        w.set(name + ".weight", w.leaf(path + ".weight", columns, rows).T)
        w.set(name + ".bias", w.leaf(path + ".bias", columns))

    table = w.leaf("embedding.weight", *w.known["transformer.wte.weight"].shape)
    w.set("transformer.wte.weight", table)
    w.set("lm_head.weight", table)
    w.set("transformer.wpe.weight", w.leaf("position_embedding.weight", *w.known["transformer.wpe.weight"].shape))
    for i in range(config.n_layer):
        theirs, ours = f"transformer.h.{i}", f"layers.{i}"
        w.norm(f"{theirs}.ln_1", f"{ours}.attn.norm")
        transposed(f"{theirs}.attn.c_attn", f"{ours}.attn.qkv")
        transposed(f"{theirs}.attn.c_proj", f"{ours}.attn.proj")
        w.norm(f"{theirs}.ln_2", f"{ours}.mlp.norm")
        transposed(f"{theirs}.mlp.c_fc", f"{ours}.mlp.fc1")
        transposed(f"{theirs}.mlp.c_proj", f"{ours}.mlp.fc2")
    w.norm("transformer.ln_f", "final_norm")


def experts(w, theirs, ours, interleaved):
    """Fused expert parameters, [E, out, in] or [E, in, out]; gate and up one after the other, or alternating."""
    name = f"{theirs}.gate_up_proj"
    hidden = w.model.config.hidden_size
    count, first, second = w.known[name].shape
    width = second if first == hidden else first
    up = w.leaf(f"{ours}.experts.fc1.weight", count, width, hidden)
    down = w.leaf(f"{ours}.experts.fc2.weight", count, hidden, width // 2)

    def alternating(x):
        gate, value = x.chunk(2, dim=1)
        return torch.stack([gate, value], dim=2).reshape(x.shape) if interleaved else x

    w.set(name, alternating(up).transpose(1, 2) if first == hidden else alternating(up))
    w.set(f"{theirs}.down_proj", down.transpose(1, 2) if first == hidden else down)
    if name + "_bias" in w.known:
        w.set(name + "_bias", alternating(w.leaf(f"{ours}.experts.fc1.bias", count, width)))
        w.set(f"{theirs}.down_proj_bias", w.leaf(f"{ours}.experts.fc2.bias", count, hidden))


def feed_forward(w, theirs, ours):
    """Dense, or experts with their router."""
    router = next((r for r in ("gate", "router") if f"{theirs}.{r}.weight" in w.known), None)
    if router is None:
        if f"{theirs}.gate_proj.weight" in w.known:
            w.packed([f"{theirs}.gate_proj", f"{theirs}.up_proj"], f"{ours}.fc1")
        else:
            w.linear(f"{theirs}.up_proj", f"{ours}.fc1")
        w.linear(f"{theirs}.down_proj", f"{ours}.fc2")
        return
    w.linear(f"{theirs}.{router}", f"{ours}.router")
    correction = f"{theirs}.{router}.e_score_correction_bias"
    if correction in w.known:
        w.set(correction, formula(f"{ours}.router.expert_bias", tuple(w.known[correction].shape), False))
    experts(w, f"{theirs}.experts", ours, interleaved=w.model.config.model_type == "gpt_oss")
    if f"{theirs}.shared_experts.gate_proj.weight" in w.known:
        w.packed([f"{theirs}.shared_experts.gate_proj", f"{theirs}.shared_experts.up_proj"], f"{ours}.shared.fc1")
        w.linear(f"{theirs}.shared_experts.down_proj", f"{ours}.shared.fc2")


def attention(w, theirs, ours):
    if f"{theirs}.kv_a_proj_with_mqa.weight" in w.known:
        w.linear(f"{theirs}.q_a_proj", f"{ours}.q_down")
        w.norm(f"{theirs}.q_a_layernorm", f"{ours}.q_norm")
        w.linear(f"{theirs}.q_b_proj", f"{ours}.q_up")
        rope = w.model.config.qk_rope_head_dim
        rows, hidden = w.known[f"{theirs}.kv_a_proj_with_mqa.weight"].shape
        down = w.leaf(f"{ours}.kv_down.weight", rows - rope, hidden)
        w.set(f"{theirs}.kv_a_proj_with_mqa.weight", torch.cat([down, w.leaf(f"{ours}.k_rope.weight", rope, hidden)]))
        w.norm(f"{theirs}.kv_a_layernorm", f"{ours}.kv_norm")
        w.linear(f"{theirs}.kv_b_proj", f"{ours}.kv_up")
    else:
        w.packed([f"{theirs}.{x}_proj" for x in "qkv"], f"{ours}.qkv")
    for x in "qk":
        if f"{theirs}.{x}_norm.weight" in w.known:
            w.norm(f"{theirs}.{x}_norm", f"{ours}.{x}_norm")
    if f"{theirs}.sinks" in w.known:
        w.set(f"{theirs}.sinks", w.leaf(f"{ours}.sinks", *w.known[f"{theirs}.sinks"].shape))
    w.linear(f"{theirs}.o_proj", f"{ours}.proj")


def decoder(w, config):
    table = w.leaf("embedding.weight", *w.known["model.embed_tokens.weight"].shape)
    w.set("model.embed_tokens.weight", table)
    w.set("lm_head.weight", table if config.tie_word_embeddings else w.leaf("lm_head.weight", *table.shape))
    for i in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{i}", f"layers.{i}"
        w.norm(f"{theirs}.input_layernorm", f"{ours}.attn.norm")
        attention(w, f"{theirs}.self_attn", f"{ours}.attn")
        w.norm(f"{theirs}.post_attention_layernorm", f"{ours}.mlp.norm")
        block = "mlp" if any(n.startswith(f"{theirs}.mlp.") for n in w.known) else "block_sparse_moe"
        feed_forward(w, f"{theirs}.{block}", f"{ours}.mlp")
    w.norm("model.norm", "final_norm")


def t5(w, config):
    table = w.leaf("embedding.weight", *w.known["shared.weight"].shape)
    for name in ("shared.weight", "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"):
        if name in w.known:
            w.set(name, table)
    w.set("lm_head.weight", table if config.tie_word_embeddings else w.leaf("lm_head.weight", *table.shape))
    sides = (("encoder", "encoder.", config.num_layers), ("decoder", "", config.num_decoder_layers))
    for side, prefix, layers in sides:
        bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        buckets, heads = w.known[bias].shape
        w.set(bias, w.leaf(f"{prefix}relative_bias.weight", heads, buckets).T)
        for i in range(layers):
            theirs, ours = f"{side}.block.{i}.layer", f"{prefix}layers.{i}"
            w.norm(f"{theirs}.0.layer_norm", f"{ours}.attn.norm")
            w.packed([f"{theirs}.0.SelfAttention.{x}" for x in "qkv"], f"{ours}.attn.qkv")
            w.linear(f"{theirs}.0.SelfAttention.o", f"{ours}.attn.proj")
            if side == "decoder":
                w.norm(f"{theirs}.1.layer_norm", f"{ours}.cross.norm")
                w.linear(f"{theirs}.1.EncDecAttention.q", f"{ours}.cross.q")
                w.packed([f"{theirs}.1.EncDecAttention.{x}" for x in "kv"], f"{ours}.cross.kv")
                w.linear(f"{theirs}.1.EncDecAttention.o", f"{ours}.cross.proj")
            last = f"{theirs}.{2 if side == 'decoder' else 1}"
            w.norm(f"{last}.layer_norm", f"{ours}.mlp.norm")
            w.packed([f"{last}.DenseReluDense.wi_0", f"{last}.DenseReluDense.wi_1"], f"{ours}.mlp.fc1")
            w.linear(f"{last}.DenseReluDense.wo", f"{ours}.mlp.fc2")
        w.norm(f"{side}.final_layer_norm", f"{prefix}final_norm")


def tokens(vocabulary, length, a, b, c, d):
    return torch.tensor([[(a * n + b * s * s + c * s + d) % vocabulary for s in range(length)] for n in range(BATCH)])


def router_logits_of(model):
    """Logits of every router, as its input and weight give them: what a version returns under that name varies."""
    seen = []

    def hook(module, inputs):
        x = inputs[0].reshape(-1, inputs[0].shape[-1])
        seen.append(F.linear(x, module.weight, getattr(module, "bias", None)))

    for name, module in model.named_modules():
        if name.endswith((".gate", ".router")) and hasattr(module, "weight"):
            module.register_forward_pre_hook(hook)
    return seen


def losses(name, model, w, config):
    inputs = tokens(config.vocab_size, LENGTH + 1, 7, 5, 3, 1)
    call = {"input_ids": inputs[:, :-1], "use_cache": False}
    if name == "t5":
        encoder = tokens(config.vocab_size, ENCODER_LENGTH, 11, 3, 1, 2)
        call = {"input_ids": encoder, "decoder_input_ids": inputs[:, :-1], "use_cache": False}
    seen = router_logits_of(model)
    logits = torch.func.functional_call(model, w.parameters, (), call).logits
    loss = F.cross_entropy(logits.reshape(-1, logits.shape[-1]).float(), inputs[:, 1:].reshape(-1))
    balance = 0.0
    coefficient = getattr(config, "router_aux_loss_coef", 0.0) if name in ("mixtral", "qwen3_moe") else 0.0
    if coefficient:
        from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func
        count = getattr(config, "num_local_experts", None) or config.num_experts
        assert len(seen) == config.num_hidden_layers, len(seen)
        for layer in seen:
            balance = balance + load_balancing_loss_func((layer,), count, config.num_experts_per_tok)
        balance = coefficient * balance / config.num_experts_per_tok
    return loss, loss + balance


def rows_of(name):
    settings = json.load(open(os.path.join(HERE, name + ".json")))
    kind = settings.pop("model_type")
    settings.pop("architectures")
    config = transformers.AutoConfig.for_model(kind, **settings)
    config._attn_implementation = "eager"
    auto = transformers.AutoModelForSeq2SeqLM if name == "t5" else transformers.AutoModelForCausalLM
    model = auto.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    w = Weights(model, one_plus=name == "nemotron")
    {"gpt2": gpt2, "t5": t5}.get(name, decoder)(w, config)
    w.check()
    loss, objective = losses(name, model, w, config)
    objective.backward()
    yield [name, "loss", "1", f"{loss.item():.9g}"]
    for path, leaf in sorted(w.leaves.items()):
        grad = leaf.grad.reshape(-1).double()
        at = [grad[i].item() for i in (0, len(grad) // 3, 2 * len(grad) // 3, len(grad) - 1)]
        yield [name, path, str(len(grad)), f"{grad.norm().item():.9g}"] + [f"{v:.9g}" for v in at]


def main():
    torch.manual_seed(0)
    names = sorted(f[:-5] for f in os.listdir(HERE) if f.endswith(".json"))
    failed = 0
    lines = [f"# transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}: "
             "model, tensor, elements, gradient norm, gradient at 0, n/3, 2n/3, n-1"]
    for name in names:
        try:
            lines += ["\t".join(row) for row in rows_of(name)]
            print(name, "done", flush=True)
        except Exception:
            failed += 1
            print(name, "failed", traceback.format_exc()[-3000:], flush=True)
    with open(sys.argv[1] if len(sys.argv) > 1 else os.path.join(HERE, "expected.tsv"), "w") as out:
        out.write("\n".join(lines) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
