//! A byte-level tokenizer small enough to build in a test, with SmolLM2's special tokens and template, in a Hugging Face folder.

use std::path::Path;

use serde_json::{Value, json};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;

use super::ChatTokenizer;

pub(crate) const END_OF_TEXT: u32 = 0;
pub(crate) const TURN_START: u32 = 1;
pub(crate) const TURN_END: u32 = 2;

/// SmolLM2's: no tools.
pub(crate) const TEMPLATE: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/// The tokenizer with `template`; an empty one leaves it out.
pub(crate) fn tokenizer(template: &str) -> ChatTokenizer {
    let folder = tempfile::tempdir().unwrap();
    write_folder(folder.path(), template);
    ChatTokenizer::load(folder.path()).unwrap()
}

/// Writes `tokenizer.json`, `tokenizer_config.json` and `generation_config.json`.
pub(crate) fn write_folder(folder: &Path, template: &str) {
    let specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"];
    let mut bytes: Vec<String> = ByteLevel::alphabet().into_iter().map(String::from).collect();
    bytes.sort();
    let merges = [
        ("h", "e"),
        ("l", "l"),
        ("he", "ll"),
        ("hell", "o"),
        ("Ġ", "w"),
        ("Ċ", "Ċ"),
    ];
    let merged = merges.iter().map(|(left, right)| format!("{left}{right}"));
    let tokens = specials
        .iter()
        .map(|token| (*token).to_owned())
        .chain(bytes)
        .chain(merged);
    let vocabulary: serde_json::Map<String, Value> = tokens.zip(0..).map(|(token, id)| (token, json!(id))).collect();
    let added = specials.iter().zip(0..).map(|(token, id)| {
        json!({"id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true})
    });
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    let digits = json!({"type": "Digits", "individual_digits": true});
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [digits, byte_level]},
        "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "vocab": vocabulary,
            "merges": merges.iter().map(|(left, right)| format!("{left} {right}")).collect::<Vec<_>>()},
    });
    let mut config = json!({"bos_token": "<|im_start|>", "eos_token": {"content": "<|im_end|>"}});
    if !template.is_empty() {
        config["chat_template"] = json!(template);
    }
    for (name, value) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", config),
        (
            "generation_config.json",
            json!({"eos_token_id": [TURN_END, END_OF_TEXT]}),
        ),
    ] {
        std::fs::write(folder.join(name), value.to_string()).unwrap();
    }
}

/// A tool as an agent defines it.
pub(crate) fn look_tool() -> Value {
    json!({"type": "function", "function": {"name": "look", "description": "Looks.",
        "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}})
}
