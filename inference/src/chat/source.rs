//! Where tokenizer and template come from: a Hugging Face folder, or the metadata of a GGUF file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizers::models::bpe::{BPE, Vocab};
use tokenizers::normalizers::unicode::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::digits::Digits;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::tokenizer::normalizer::SplitDelimiterBehavior;
use tokenizers::{AddedToken, PreTokenizerWrapper, Tokenizer};

use super::prompt::ControlToken;
use super::{ChatError, SamplingDefaults};
use crate::model::gguf::GgufFile;

/// What [`super::ChatTokenizer`] is made of.
pub(super) struct Parts {
    pub tokenizer: Tokenizer,
    pub controls: Vec<ControlToken>,
    /// Chat templates by name: `default`, perhaps `tool_use`.
    pub templates: BTreeMap<String, String>,
    /// Variables of the template: `bos_token` and so on.
    pub special_tokens: BTreeMap<String, String>,
    pub stop_token_ids: Vec<u32>,
    pub sampling_defaults: SamplingDefaults,
    /// Put before a plain text where the tokenizer has no post-processor that says so.
    pub prepend: Vec<u32>,
}

pub(super) fn load(source: &Path) -> Result<Parts, ChatError> {
    let metadata = source.metadata().map_err(|error| ChatError::Read {
        path: source.to_owned(),
        source: error,
    })?;
    if metadata.is_dir() {
        load_folder(source)
    } else {
        load_gguf(source)
    }
}

fn load_folder(folder: &Path) -> Result<Parts, ChatError> {
    let path = folder.join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|source| ChatError::Read {
        path: path.clone(),
        source,
    })?;
    let fail = |error: tokenizers::Error| ChatError::Tokenizer {
        path: path.clone(),
        reason: error.to_string(),
    };
    let mut tokenizer = Tokenizer::from_bytes(&bytes).map_err(fail)?;
    tokenizer.with_padding(None);
    tokenizer.with_truncation(None).map_err(fail)?;

    let config = read_json(folder.join("tokenizer_config.json"))?.unwrap_or_default();
    let map = read_json(folder.join("special_tokens_map.json"))?.unwrap_or_default();
    let mut special_tokens = BTreeMap::new();
    for name in [
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "sep_token",
        "cls_token",
        "mask_token",
    ] {
        let entry = if config[name].is_null() {
            &map[name]
        } else {
            &config[name]
        };
        if let Some(literal) = entry.as_str().or_else(|| entry["content"].as_str()) {
            special_tokens.insert(name.to_owned(), literal.to_owned());
        }
    }
    // Tokens that only the configuration calls special are special all the same.
    let known: Vec<AddedToken> = special_tokens
        .values()
        .filter(|literal| tokenizer.token_to_id(literal).is_some())
        .map(|literal| AddedToken::from(literal.clone(), true))
        .collect();
    let missing: Vec<AddedToken> = known
        .into_iter()
        .filter(|token| !tokenizer.get_added_vocabulary().is_special_token(&token.content))
        .collect();
    tokenizer.add_special_tokens(missing).map_err(fail)?;

    let generation: Option<Value> = read_json(folder.join("generation_config.json"))?;
    let mut stop_token_ids = Vec::new();
    stop_token_ids.extend(
        special_tokens
            .get("eos_token")
            .and_then(|literal| tokenizer.token_to_id(literal)),
    );
    match &generation {
        Some(generation) => stop_token_ids.extend(ids(&generation["eos_token_id"])),
        None => {
            let model = read_json(folder.join("config.json"))?.unwrap_or_default();
            stop_token_ids.extend(ids(&model["eos_token_id"]));
        }
    }
    Ok(Parts {
        controls: control_tokens(&tokenizer),
        tokenizer,
        templates: folder_templates(folder, &config)?,
        special_tokens,
        stop_token_ids: without_repeats(stop_token_ids),
        sampling_defaults: generation
            .and_then(|generation| serde_json::from_value(generation).ok())
            .unwrap_or_default(),
        prepend: Vec::new(),
    })
}

fn folder_templates(folder: &Path, config: &Value) -> Result<BTreeMap<String, String>, ChatError> {
    let path = folder.join("chat_template.jinja");
    match std::fs::read_to_string(&path) {
        Ok(template) => return Ok(BTreeMap::from([("default".to_owned(), template)])),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(ChatError::Read { path, source }),
    }
    let mut templates = BTreeMap::new();
    match &config["chat_template"] {
        Value::String(template) => {
            templates.insert("default".to_owned(), template.clone());
        }
        Value::Array(named) => {
            for entry in named {
                if let (Some(name), Some(template)) = (entry["name"].as_str(), entry["template"].as_str()) {
                    templates.insert(name.to_owned(), template.to_owned());
                }
            }
        }
        _ => {}
    }
    Ok(templates)
}

fn read_json(path: PathBuf) -> Result<Option<Value>, ChatError> {
    match std::fs::read(&path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|source| ChatError::Json { path, source }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(ChatError::Read { path, source }),
    }
}

/// `eos_token_id` is an id or a list of them.
fn ids(value: &Value) -> Vec<u32> {
    let single = value.as_u64().into_iter();
    let list = value.as_array().into_iter().flatten().filter_map(Value::as_u64);
    single.chain(list).filter_map(|id| u32::try_from(id).ok()).collect()
}

fn without_repeats(ids: Vec<u32>) -> Vec<u32> {
    let mut seen = Vec::with_capacity(ids.len());
    for id in ids {
        if !seen.contains(&id) {
            seen.push(id);
        }
    }
    seen
}

fn control_tokens(tokenizer: &Tokenizer) -> Vec<ControlToken> {
    let added = tokenizer.get_added_tokens_decoder();
    let special = added.into_iter().filter(|(_, token)| token.special);
    special
        .map(|(id, token)| ControlToken {
            literal: token.content,
            id,
            strip_left: token.lstrip,
            strip_right: token.rstrip,
        })
        .collect()
}

/// Kinds of token in a GGUF vocabulary.
const CONTROL: i64 = 3;
const USER_DEFINED: i64 = 4;

fn load_gguf(path: &Path) -> Result<Parts, ChatError> {
    let file = GgufFile::open(path)?;
    let fail = |reason: String| ChatError::Tokenizer {
        path: path.to_owned(),
        reason,
    };
    let text = |key: &str| file.metadata(key).and_then(|value| value.as_str());
    let id = |key: &str| {
        file.metadata(key)
            .and_then(|value| value.as_i64())
            .and_then(|id| u32::try_from(id).ok())
    };
    let strings = |key: &str| {
        file.metadata(key)
            .and_then(|value| value.as_strings())
            .ok_or_else(|| fail(format!("metadata {key} is missing")))
    };
    let model = text("tokenizer.ggml.model").unwrap_or("none");
    if model != "gpt2" {
        return Err(fail(format!(
            "its vocabulary is of kind `{model}`, only `gpt2` (byte-level BPE) can be read; use the Hugging Face folder of the model"
        )));
    }
    let tokens = strings("tokenizer.ggml.tokens")?;
    let merges = strings("tokenizer.ggml.merges")?
        .iter()
        .map(|merge| {
            merge
                .split_once(' ')
                .map(|(left, right)| (left.to_owned(), right.to_owned()))
        })
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| fail("a merge has no two parts; fetch the file again".into()))?;
    let vocabulary: Vocab = (0..).zip(tokens).map(|(id, token)| (token.clone(), id)).collect();
    let (normaliser, pre_tokenizer, whole_words_first) = pre_tokenizer(text("tokenizer.ggml.pre").unwrap_or("default"))
        .ok_or_else(|| {
            let name = text("tokenizer.ggml.pre").unwrap_or_default();
            fail(format!(
                "pre-tokenizer `{name}` isn't known; use the Hugging Face folder of the model"
            ))
        })?;
    let bpe = BPE::builder()
        .vocab_and_merges(vocabulary, merges)
        .ignore_merges(whole_words_first)
        .build();
    let tokenizer_error = |error: tokenizers::Error| fail(error.to_string());
    let mut tokenizer = Tokenizer::new(bpe.map_err(tokenizer_error)?);
    tokenizer.with_normalizer(normaliser).map_err(tokenizer_error)?;
    tokenizer.with_pre_tokenizer(Some(pre_tokenizer));
    tokenizer.with_decoder(Some(ByteLevel::default()));
    let kinds = file
        .metadata("tokenizer.ggml.token_type")
        .and_then(|value| value.as_integers())
        .unwrap_or_default();
    let added = tokens
        .iter()
        .zip(kinds)
        .filter(|(_, kind)| [CONTROL, USER_DEFINED].contains(kind));
    let added = added.map(|(token, kind)| AddedToken::from(token.clone(), *kind == CONTROL).normalized(false));
    tokenizer.add_tokens(added).map_err(tokenizer_error)?;

    let named = ["bos", "eos", "unknown", "padding"]
        .into_iter()
        .zip(["bos", "eos", "unk", "pad"]);
    let special_tokens = named
        .filter_map(|(key, name)| {
            let id = id(&format!("tokenizer.ggml.{key}_token_id"))?;
            Some((format!("{name}_token"), tokens.get(id as usize)?.clone()))
        })
        .collect();
    let stop = [id("tokenizer.ggml.eos_token_id"), id("tokenizer.ggml.eot_token_id")];
    let adds_bos = file
        .metadata("tokenizer.ggml.add_bos_token")
        .and_then(|value| value.as_bool())
        .unwrap_or(false);
    let template = text("tokenizer.chat_template").map(|template| ("default".to_owned(), template.to_owned()));
    Ok(Parts {
        controls: control_tokens(&tokenizer),
        tokenizer,
        templates: template.into_iter().collect(),
        special_tokens,
        stop_token_ids: without_repeats(stop.into_iter().flatten().collect()),
        sampling_defaults: SamplingDefaults::default(),
        prepend: id("tokenizer.ggml.bos_token_id")
            .filter(|_| adds_bos)
            .into_iter()
            .collect(),
    })
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Normaliser, pre-tokenizer and whether a word that is a token skips the merges, for llama.cpp's name of a pre-tokenizer; as in
/// the `tokenizer.json` of the models that have that name.
fn pre_tokenizer(name: &str) -> Option<(Option<NFC>, PreTokenizerWrapper, bool)> {
    let byte_level = |use_regex| ByteLevel::new(false, true, use_regex);
    let split = |pattern: &str| {
        let pattern = SplitPattern::Regex(pattern.to_owned());
        let split = Split::new(pattern, SplitDelimiterBehavior::Isolated, false).ok()?;
        Some(Sequence::new(vec![split.into(), byte_level(false).into()]).into())
    };
    match name {
        "smollm" | "starcoder" | "refact" | "command-r" | "codeshell" | "exaone" => {
            let sequence = Sequence::new(vec![Digits::new(true).into(), byte_level(true).into()]);
            Some((None, sequence.into(), false))
        }
        "default" | "gpt-2" => Some((None, byte_level(true).into(), false)),
        "llama-bpe" | "llama3" | "llama-v3" => Some((None, split(LLAMA3)?, true)),
        "qwen2" => Some((Some(NFC), split(QWEN2)?, false)),
        _ => None,
    }
}
