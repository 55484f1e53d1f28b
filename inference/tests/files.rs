//! Damaged, foreign and incomplete files end in one message that names the file and what is wrong with it.

use std::path::{Path, PathBuf};

use inference::InferenceError;
use inference::model::{GgufFile, LoadOptions, LoraAdapter, LoraConfig, Model, ModelConfig};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};
use tch::Device;

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

/// A copy of a golden folder's files, to damage.
fn copy_of(name: &str) -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("a temporary folder");
    for entry in std::fs::read_dir(golden_folder().join(name)).expect("the golden is in the repository") {
        let entry = entry.expect("an entry");
        if entry.file_type().expect("a type").is_file() {
            std::fs::copy(entry.path(), copy.path().join(entry.file_name())).expect("copy");
        }
    }
    copy
}

fn load_error(path: &Path) -> String {
    chain(&Model::load(path, &LoadOptions::default()).expect_err("it can't load"))
}

fn chain(error: &dyn std::error::Error) -> String {
    std::iter::successors(Some(error), |error| error.source())
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

fn assert_says(message: &str, words: &[&str]) {
    for word in words {
        assert!(message.contains(word), "`{word}` isn't in: {message}");
    }
}

fn truncate(path: &Path, by: usize) {
    let bytes = std::fs::read(path).expect("read");
    std::fs::write(path, &bytes[..bytes.len() - by]).expect("write");
}

/// Writes the tensors of a safetensors file again, after `change`.
fn rewrite(path: &Path, change: impl Fn(&mut Vec<(String, Vec<usize>, Vec<u8>)>)) {
    let bytes = std::fs::read(path).expect("read");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let mut tensors: Vec<_> = file
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, view.shape().to_vec(), view.data().to_vec()))
        .collect();
    change(&mut tensors);
    let views = tensors.iter().map(|(name, shape, data)| {
        (
            name.as_str(),
            TensorView::new(Dtype::F32, shape.clone(), data).expect("a view"),
        )
    });
    std::fs::write(path, safetensors::serialize(views, None).expect("serialise")).expect("write");
}

#[test]
fn a_source_that_is_no_model_says_what_to_give() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    assert_says(
        &load_error(&folder.path().join("nowhere")),
        &["nowhere", "no such file or folder", ".gguf"],
    );
    assert_says(&load_error(folder.path()), &["config.json"]);
    let text = folder.path().join("model.txt");
    std::fs::write(&text, "hello").expect("write");
    assert_says(&load_error(&text), &["model.txt", ".gguf"]);
}

#[test]
fn safetensors_faults_are_named() {
    let copy = copy_of("tiny-tied");
    let weights = copy.path().join("model.safetensors");
    let original = std::fs::read(&weights).expect("read");

    truncate(&weights, 1);
    assert_says(
        &load_error(copy.path()),
        &["model.safetensors", "damaged", "the end is missing"],
    );
    std::fs::write(&weights, b"").expect("write");
    assert_says(&load_error(copy.path()), &["model.safetensors", "empty"]);
    std::fs::write(&weights, [0xff; 64]).expect("write");
    assert_says(&load_error(copy.path()), &["model.safetensors", "damaged"]);
    std::fs::remove_file(&weights).expect("remove");
    assert_says(&load_error(copy.path()), &["model.safetensors", "can't read"]);

    let norm = "model.layers.1.input_layernorm.weight";
    std::fs::write(&weights, &original).expect("write");
    rewrite(&weights, |tensors| tensors.retain(|(name, ..)| name != norm));
    assert_says(
        &load_error(copy.path()),
        &["model.safetensors", norm, "missing", "[36]"],
    );
    std::fs::write(&weights, &original).expect("write");
    rewrite(&weights, |tensors| {
        tensors.push(("model.extra.weight".to_owned(), vec![1], vec![0; 4]))
    });
    assert_says(
        &load_error(copy.path()),
        &["model.safetensors", "model.extra.weight", "no part"],
    );
    std::fs::write(&weights, &original).expect("write");
    rewrite(&weights, |tensors| {
        let tensor = tensors
            .iter_mut()
            .find(|(name, ..)| name.ends_with("0.self_attn.k_proj.weight"))
            .expect("one");
        tensor.1.reverse();
    });
    assert_says(
        &load_error(copy.path()),
        &["0.self_attn.k_proj.weight", "[36, 12]", "[12, 36]"],
    );
}

#[test]
fn the_unused_copy_of_a_tied_head_is_no_fault() {
    let copy = copy_of("tiny-tied");
    rewrite(&copy.path().join("model.safetensors"), |tensors| {
        tensors.push(("lm_head.weight".to_owned(), vec![1], vec![0; 4]));
        tensors.push((
            "model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(),
            vec![1],
            vec![0; 4],
        ));
    });
    Model::load(copy.path(), &LoadOptions::default()).expect("it loads");
}

#[test]
fn shard_faults_are_named() {
    let copy = copy_of("tiny-untied");
    let second = copy.path().join("model-00002-of-00002.safetensors");
    let index = copy.path().join("model.safetensors.index.json");
    let text = std::fs::read_to_string(&index).expect("read");

    std::fs::write(&index, text.replace("model.norm.weight", "model.other.weight")).expect("write");
    assert_says(&load_error(copy.path()), &["model.norm.weight", "shard"]);
    std::fs::write(&index, text.replace("model-00001", "../model-00001")).expect("write");
    assert_says(&load_error(copy.path()), &["index.json", "plain file name"]);
    std::fs::write(&index, "{\"weight_map\": 3}").expect("write");
    assert_says(&load_error(copy.path()), &["index.json", "weight_map"]);
    std::fs::write(&index, &text).expect("write");
    std::fs::remove_file(&second).expect("remove");
    assert_says(
        &load_error(copy.path()),
        &["model-00002-of-00002.safetensors", "can't read"],
    );
}

#[test]
fn gguf_faults_are_named() {
    let copy = copy_of("tiny-gguf");
    let path = copy.path().join("model.gguf");
    let original = std::fs::read(&path).expect("read");
    let message = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("write");
        load_error(&path)
    };
    let replaced = |from: &[u8], to: &[u8]| {
        let at = original
            .windows(from.len())
            .position(|window| window == from)
            .expect("it is in the file");
        let mut bytes = original.clone();
        bytes[at..at + to.len()].copy_from_slice(to);
        bytes
    };
    assert_says(
        &message(&original[..original.len() - 1000]),
        &["model.gguf", "tensor", "shape", "bytes"],
    );
    assert_says(&message(&original[..40]), &["model.gguf", "damaged", "room"]);
    assert_says(
        &message(&original[..1200]),
        &["model.gguf", "damaged", "ends at byte 1200"],
    );
    assert_says(&message(b""), &["model.gguf", "empty"]);
    assert_says(&message(b"GGML nonsense"), &["model.gguf", "GGUF"]);
    assert_says(
        &message(&replaced(b"blk.1.attn_q", b"blk.1.attn_x")),
        &["blk.1.attn_q.weight", "missing", "[64, 64]"],
    );
    assert_says(
        &message(&replaced(b"llama.block_count", b"llama.block_xxxxx")),
        &["llama.block_count"],
    );
    assert_says(&message(&replaced(&[3, 0, 0, 0], &[9, 0, 0, 0])), &["version 9"]);
    let mut huge = original.clone();
    huge[8..16].fill(0xff);
    assert_says(&message(&huge), &["number of tensors", "room"]);
}

#[test]
fn adapter_faults_are_named() {
    let model = ModelConfig::from_hugging_face(&golden_folder().join("tiny-untied/config.json")).expect("valid");
    let copy = copy_of("tiny-untied/adapter");
    let config = copy.path().join("adapter_config.json");
    let weights = copy.path().join("adapter_model.safetensors");
    let text = std::fs::read_to_string(&config).expect("read");
    let bytes = std::fs::read(&weights).expect("read");
    let message = || chain(&LoraAdapter::load(copy.path(), &model, Device::Cpu).expect_err("it can't load"));

    for (from, to, words) in [
        ("\"LORA\"", "\"IA3\"", vec!["IA3", "LORA"]),
        ("\"use_dora\": false", "\"use_dora\": true", vec!["use_dora"]),
        (
            "\"modules_to_save\": null",
            "\"modules_to_save\": [\"lm_head\"]",
            vec!["modules_to_save"],
        ),
        (
            "\"rank_pattern\": {}",
            "\"rank_pattern\": {\"q_proj\": 2}",
            vec!["rank_pattern"],
        ),
        ("\"bias\": \"none\"", "\"bias\": \"all\"", vec!["bias"]),
        ("\"k_proj\"", "\"lm_head\"", vec!["lm_head", "q_proj"]),
        ("\"r\": 4", "\"r\": 0", vec!["rank", "0"]),
        ("\"r\": 4", "\"r\": 5", vec!["lora_A.weight", "[4, ", "expected [5, "]),
        ("\"r\": 4", "\"r\": \"x\"", vec!["adapter_config.json"]),
    ] {
        assert!(text.contains(from), "{from}");
        std::fs::write(&config, text.replace(from, to)).expect("write");
        assert_says(&message(), &words);
    }
    std::fs::write(&config, &text).expect("write");
    truncate(&weights, 4);
    assert_says(&message(), &["adapter_model.safetensors", "damaged"]);
    std::fs::write(&weights, &bytes).expect("write");
    let b = "base_model.model.model.layers.1.mlp.down_proj.lora_B.weight";
    rewrite(&weights, |tensors| tensors.retain(|(name, ..)| name != b));
    assert_says(&message(), &[b, "missing", "[24, 4]"]);
    std::fs::write(&weights, &bytes).expect("write");
    std::fs::write(
        &config,
        text.replace("\"up_proj\",", "").replace(",\n    \"up_proj\"", ""),
    )
    .expect("write");
    assert_says(&message(), &["up_proj", "no target module"]);
    let other = ModelConfig::from_hugging_face(&golden_folder().join("tiny-tied/config.json")).expect("valid");
    std::fs::write(&config, &text).expect("write");
    let error = LoraAdapter::load(copy.path(), &other, Device::Cpu).expect_err("another model's");
    assert!(matches!(error, InferenceError::Tensor { .. }), "{error}");
}

#[test]
fn an_adapter_survives_the_disk() {
    let model = ModelConfig::from_hugging_face(&golden_folder().join("tiny-tied/config.json")).expect("valid");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let config = LoraConfig {
        rank: 2,
        alpha: 5.0,
        target_modules: vec!["v_proj".to_owned(), "q_proj".to_owned()],
    };
    let adapter = LoraAdapter::new(&config, &model, 9, Device::Cpu);
    let directory = folder.path().join("a/policy@1");
    adapter.save(&directory, "tiny-tied").expect("it saves");
    let read = LoraAdapter::load(&directory, &model, Device::Cpu).expect("it loads");
    assert_eq!((read.config().rank, read.config().alpha), (2, 5.0));
    let (written, read) = (adapter.parameters(), read.parameters());
    assert_eq!(written.len(), 2 * 2 * 2);
    for ((name, tensor), (read_name, read_tensor)) in written.iter().zip(&read) {
        assert_eq!((name, tensor), (read_name, read_tensor));
        assert_eq!(
            name.contains("lora_B"),
            tensor.abs().max().double_value(&[]) == 0.0,
            "B starts at zero: {name}"
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// A GGUF file with any bytes changed is read or refused; it never panics.
    #[test]
    fn no_gguf_bytes_cause_a_panic(
        changes in prop::collection::vec((0_usize..2600, any::<u8>()), 1..12),
        cut in prop::option::of(0_usize..4192),
    ) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("changed.gguf");
        let mut bytes = std::fs::read(golden_folder().join("gguf/blocks.gguf")).expect("read");
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        bytes.truncate(cut.unwrap_or(bytes.len()));
        std::fs::write(&path, &bytes).expect("write");
        if let Ok(file) = GgufFile::open(&path) {
            for name in file.tensor_names() {
                file.read_tensor(name).expect("an opened file's tensors can be read");
            }
            let _ = ModelConfig::from_gguf(&file);
        }
    }
}
