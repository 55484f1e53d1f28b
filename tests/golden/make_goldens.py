"""Makes the goldens of the model: tiny random Llama models with the logprobs that transformers and PEFT compute.

    pip install torch==2.13.0 transformers==5.24.0 peft==0.21.2 gguf safetensors
    python tests/golden/make_goldens.py [path to smollm2-135m-instruct-q4_1.gguf]

Without an argument the goldens of SmolLM2 are left as they are. Every golden.json holds `token_ids` [tokens] and
`logprobs` [tokens][vocab], the log-softmax in float32 of the logits at each position; `adapter_logprobs` is the same
with the PEFT adapter beside it. `adapter_gradients.safetensors` holds the gradients of the adapter's parameters for the
loss -sum(logprob of each next token). blocks.safetensors holds what the gguf package makes of the blocks in blocks.gguf.
"""

import json
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import torch
from peft import LoraConfig, get_peft_model
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

HERE = Path(__file__).parent
N_TOKENS = 24


def logprobs(model, token_ids):
    with torch.no_grad():
        logits = model(torch.tensor([token_ids])).logits[0].float()
    return torch.log_softmax(logits, -1)


def rounded(matrix):
    return [[round(value, 6) for value in row] for row in matrix.tolist()]


def random_model(seed, **sizes):
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**sizes)).float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            # Far from the usual small initialisation, so that every part shows in the logprobs.
            parameter.copy_(1 + 0.3 * torch.randn_like(parameter) if "norm" in name else 0.2 * torch.randn_like(parameter))
    return model


def hugging_face(name, seed, adapter, dtype=torch.float32, shard="10GB", **sizes):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model = random_model(seed, **sizes)
    model.to(dtype).save_pretrained(folder, max_shard_size=shard)
    (folder / "generation_config.json").unlink(missing_ok=True)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    token_ids = torch.randint(sizes["vocab_size"], (N_TOKENS,)).tolist()
    golden = {"token_ids": token_ids, "logprobs": rounded(logprobs(model, token_ids))}

    model = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **adapter))
    loss = torch.nn.functional.cross_entropy(
        model(torch.tensor([token_ids])).logits[0, :-1], torch.tensor(token_ids[1:]), reduction="sum"
    )
    loss.backward()
    golden["adapter_logprobs"] = rounded(logprobs(model, token_ids))
    model.save_pretrained(folder / "adapter")
    (folder / "adapter" / "README.md").unlink(missing_ok=True)
    settings = folder / "adapter" / "adapter_config.json"
    config = json.loads(settings.read_text())
    # Not the path of the machine that made it, and the same order whenever it is made.
    config |= {"base_model_name_or_path": name, "target_modules": sorted(config["target_modules"])}
    settings.write_text(json.dumps(config, indent=2) + "\n")
    gradients = {
        parameter.replace(".default", ""): value.grad for parameter, value in model.named_parameters() if value.requires_grad
    }
    save_file(gradients, folder / "adapter_gradients.safetensors")
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


def random_blocks(kind, shape, generator):
    """Random bytes, with scales that are small finite float16 numbers."""
    n_values, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    blocks = generator.integers(0, 256, (shape[0] * shape[1] // n_values, n_bytes), dtype=np.uint8)
    places = {"Q4_K": [0, 2], "Q6_K": [n_bytes - 2]}[kind.name]
    for place in places:
        scales = generator.uniform(-0.1, 0.1, len(blocks)).astype(np.float16)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(shape[0], -1)


def quantised_blocks():
    """One tensor of each supported block format, and metadata of every type."""
    folder = HERE / "gguf"
    folder.mkdir(exist_ok=True)
    generator = np.random.default_rng(5)
    writer = gguf.GGUFWriter(folder / "blocks.gguf", "llama")
    writer.add_uint32("test.unsigned", 7)
    writer.add_int64("test.signed", -7)
    writer.add_float32("test.float", 0.25)
    writer.add_bool("test.bool", True)
    writer.add_string("test.string", "Grüße")
    writer.add_array("test.strings", ["a", "", "ß"])
    writer.add_array("test.integers", [1, -2, 3])
    writer.add_array("test.floats", [0.5, -1.5])
    expected = {}
    for name in ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q6_K"]:
        kind = gguf.GGMLQuantizationType[name]
        shape = (2, 512 if name.endswith("_K") else 96)
        if name.endswith("_K"):
            data = random_blocks(kind, shape, generator)
        else:
            data = gguf.quants.quantize(generator.normal(0, 0.7, shape).astype(np.float32), kind)
        writer.add_tensor(name, data, raw_dtype=kind)
        expected[name] = gguf.quants.dequantize(data, kind).astype(np.float32)
    close(writer)
    save_numpy(expected, folder / "blocks.safetensors")


def close(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def permute(weight, n_heads):
    """As llama.cpp's converter stores query and key rows."""
    out, width = weight.shape
    return weight.reshape(n_heads, 2, out // n_heads // 2, width).swapaxes(1, 2).reshape(out, width)


def gguf_model():
    """A quantised model in a GGUF file, with the logprobs of its dequantised weights."""
    folder = HERE / "tiny-gguf"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    sizes = dict(vocab_size=64, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
                 num_key_value_heads=2, max_position_embeddings=256, rope_theta=5000.0, rms_norm_eps=1e-5,
                 tie_word_embeddings=False)
    model = random_model(3, **sizes)
    writer = gguf.GGUFWriter(folder / "model.gguf", "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(64)
    writer.add_block_count(2)
    writer.add_feed_forward_length(96)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(5000.0)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(64)
    parts = {
        "self_attn.q_proj": ("attn_q", "Q4_1"), "self_attn.k_proj": ("attn_k", "Q8_0"), "self_attn.v_proj": ("attn_v", "Q4_0"),
        "self_attn.o_proj": ("attn_output", "F16"), "mlp.gate_proj": ("ffn_gate", "Q4_0"), "mlp.up_proj": ("ffn_up", "BF16"),
        "mlp.down_proj": ("ffn_down", "Q4_1"), "input_layernorm": ("attn_norm", "F32"),
        "post_attention_layernorm": ("ffn_norm", "F32"),
    }
    whole = {"model.embed_tokens": ("token_embd", "Q8_0"), "model.norm": ("output_norm", "F32"), "lm_head": ("output", "F16")}
    n_heads = {"self_attn.q_proj": 4, "self_attn.k_proj": 2}
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            name = parameter_name.removesuffix(".weight")
            part = None
            if name in whole:
                stored, kind = whole[name]
            else:
                _, _, layer, part = name.split(".", 3)
                stored, kind = parts[part]
                stored = f"blk.{layer}.{stored}"
            kind = gguf.GGMLQuantizationType[kind]
            # Blocks run along rows, so quantising commutes with the permutation of rows.
            data = gguf.quants.quantize(parameter.numpy(), kind)
            value = gguf.quants.dequantize(data, kind).astype(np.float32)
            parameter.copy_(torch.from_numpy(value))
            if part in n_heads:
                data = permute(data, n_heads[part])
            writer.add_tensor(f"{stored}.weight", data, raw_dtype=kind)
    close(writer)
    token_ids = torch.randint(64, (N_TOKENS,)).tolist()
    golden = {"token_ids": token_ids, "logprobs": rounded(logprobs(model, token_ids))}
    (folder / "golden.json").write_text(json.dumps(golden) + "\n")


def smollm2(path):
    """What transformers computes on the dequantised weights; `logprobs` here are those of each next token only."""
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    prompts = [
        "The National Weather Service issues a winter storm warning when heavy snow or ice is expected.",
        "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\nThe capital of France is Paris.<|im_end|>",
    ]
    goldens = []
    for prompt in prompts:
        token_ids = tokenizer(prompt)["input_ids"]
        rows = logprobs(model, token_ids)
        following = [rows[index, token_id].item() for index, token_id in enumerate(token_ids[1:])]
        top = torch.topk(rows[-1], 5)
        goldens.append({
            "prompt": prompt, "token_ids": token_ids, "next_token_logprobs": [round(value, 6) for value in following],
            "last_top_ids": top.indices.tolist(), "last_top_logprobs": [round(value, 6) for value in top.values.tolist()],
        })
    (HERE / "smollm2.json").write_text(json.dumps(goldens, indent=1) + "\n")


def main():
    hugging_face(
        "tiny-tied", 1, dict(r=3, lora_alpha=7, target_modules="all-linear"),
        vocab_size=67, hidden_size=36, intermediate_size=52, num_hidden_layers=2, num_attention_heads=6,
        num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )
    hugging_face(
        "tiny-untied", 2, dict(r=4, lora_alpha=6, use_rslora=True, target_modules=["k_proj", "up_proj", "down_proj"]),
        dtype=torch.bfloat16, shard="20KB",
        vocab_size=61, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=1, head_dim=10, max_position_embeddings=256, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters=dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                             original_max_position_embeddings=32),
    )
    quantised_blocks()
    gguf_model()
    if len(sys.argv) > 1:
        smollm2(Path(sys.argv[1]))


main()
