//! A random Llama model of a few thousand parameters, as a Hugging Face folder.

use std::collections::HashMap;
use std::path::Path;

use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

const HIDDEN: usize = 32;
const INTERMEDIATE: usize = 64;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD: usize = HIDDEN / HEADS;

/// Writes `config.json`, `model.safetensors` and `tokenizer.json` into `folder`. Tokens are the 256 bytes and three
/// control tokens; weights are random but the same for a `seed`.
pub fn write(folder: &Path, seed: u64) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let vocabulary = byte_vocabulary();
    let size = vocabulary.len() + 3;
    let write_json = |name: &str, value: &Value| std::fs::write(folder.join(name), value.to_string());
    write_json(
        "config.json",
        &json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu",
            "hidden_size": HIDDEN, "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
            "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": size,
            "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false,
            "bos_token_id": 257, "eos_token_id": 258, "torch_dtype": "float32",
        }),
    )?;
    let controls = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let added: Vec<Value> = controls
        .iter()
        .enumerate()
        .map(|(i, content)| {
            json!({"id": 256 + i, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                   "normalized": false, "special": true})
        })
        .collect();
    let mut vocab: serde_json::Map<String, Value> = vocabulary
        .iter()
        .enumerate()
        .map(|(id, token)| (token.clone(), json!(id)))
        .collect();
    vocab.extend(
        controls
            .iter()
            .enumerate()
            .map(|(i, token)| ((*token).to_owned(), json!(256 + i))),
    );
    write_json(
        "tokenizer.json",
        &json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "post_processor": null,
            "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                      "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": []},
        }),
    )?;
    write_json(
        "tokenizer_config.json",
        &json!({
            "bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "tokenizer_class": "PreTrainedTokenizerFast",
            "chat_template": "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] \
                + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
        }),
    )?;
    write_weights(&folder.join("model.safetensors"), size, seed)
}

fn write_weights(path: &Path, vocabulary: usize, seed: u64) -> std::io::Result<()> {
    let mut shapes: Vec<(String, Vec<usize>)> = vec![
        ("model.embed_tokens.weight".into(), vec![vocabulary, HIDDEN]),
        ("model.norm.weight".into(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}.weight");
        shapes.extend([
            (name("input_layernorm"), vec![HIDDEN]),
            (name("post_attention_layernorm"), vec![HIDDEN]),
            (name("self_attn.q_proj"), vec![HEADS * HEAD, HIDDEN]),
            (name("self_attn.k_proj"), vec![KV_HEADS * HEAD, HIDDEN]),
            (name("self_attn.v_proj"), vec![KV_HEADS * HEAD, HIDDEN]),
            (name("self_attn.o_proj"), vec![HIDDEN, HEADS * HEAD]),
            (name("mlp.gate_proj"), vec![INTERMEDIATE, HIDDEN]),
            (name("mlp.up_proj"), vec![INTERMEDIATE, HIDDEN]),
            (name("mlp.down_proj"), vec![HIDDEN, INTERMEDIATE]),
        ]);
    }
    let mut state = seed;
    let mut data: HashMap<String, (Vec<usize>, Vec<u8>)> = HashMap::new();
    for (name, shape) in shapes {
        let scale = if name.contains("norm") { 0.0 } else { 0.4 };
        let values = (0..shape.iter().product::<usize>()).flat_map(|_| {
            let value = if scale == 0.0 { 1.0 } else { scale * uniform(&mut state) };
            value.to_le_bytes()
        });
        data.insert(name, (shape, values.collect()));
    }
    let views: Result<HashMap<&str, TensorView<'_>>, _> = data
        .iter()
        .map(|(name, (shape, bytes))| {
            TensorView::new(Dtype::F32, shape.clone(), bytes).map(|view| (name.as_str(), view))
        })
        .collect();
    let views = views.map_err(std::io::Error::other)?;
    safetensors::serialize_to_file(views, None, path).map_err(std::io::Error::other)
}

/// Uniform in [-1, 1) by SplitMix64.
fn uniform(state: &mut u64) -> f32 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    ((mixed >> 40) as f32) / ((1u64 << 23) as f32) - 1.0
}

/// The printable stand-ins of byte-level BPE for the bytes 0 to 255, in order.
fn byte_vocabulary() -> Vec<String> {
    let printable = |byte: u32| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    let mut next = 256;
    (0..256u32)
        .map(|byte| {
            let code = if printable(byte) { byte } else { next };
            next += u32::from(!printable(byte));
            char::from_u32(code).map(String::from).unwrap_or_default()
        })
        .collect()
}
