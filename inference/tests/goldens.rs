//! The model's logprobs and gradients against those of transformers and PEFT, made by `tests/golden/make_goldens.py`.

use std::path::{Path, PathBuf};

use inference::model::{
    AdapterRows, Attention, CausalAttention, GgufFile, LoadOptions, LoraAdapter, MetadataValue, Model,
};
use serde::Deserialize;
use tch::{Device, Kind, Tensor};

/// The agreement that is promised, for logprobs in float32.
const TOLERANCE: f64 = 1e-4;

#[derive(Deserialize)]
struct Golden {
    token_ids: Vec<i64>,
    logprobs: Vec<Vec<f32>>,
    adapter_logprobs: Option<Vec<Vec<f32>>>,
}

fn golden_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/golden")
}

fn read_golden(name: &str) -> Golden {
    let path = golden_folder().join(name).join("golden.json");
    let text = std::fs::read_to_string(&path).expect("the golden is in the repository");
    serde_json::from_str(&text).expect("a golden")
}

fn matrix(rows: &[Vec<f32>]) -> Tensor {
    Tensor::from_slice(&rows.concat()).view([rows.len() as i64, -1])
}

fn logprobs(model: &Model, token_ids: &[i64], adapters: &AdapterRows<'_>) -> Tensor {
    let positions = Tensor::arange(token_ids.len() as i64, (Kind::Int64, Device::Cpu));
    let hidden = model.forward(
        &Tensor::from_slice(token_ids),
        &positions,
        adapters,
        &mut CausalAttention,
    );
    model.logits(&hidden).log_softmax(-1, Kind::Float)
}

fn assert_close(actual: &Tensor, expected: &Tensor, tolerance: f64, what: &str) {
    assert_eq!(actual.size(), expected.size(), "{what}");
    let difference = (actual - expected).abs().max().double_value(&[]);
    assert!(
        difference < tolerance,
        "{what}: largest difference {difference:.2e}, tolerance {tolerance:.0e}"
    );
}

fn load(name: &str) -> Model {
    Model::load(&golden_folder().join(name), &LoadOptions::default()).expect("the model loads")
}

fn load_adapter(name: &str, model: &Model) -> LoraAdapter {
    LoraAdapter::load(&golden_folder().join(name).join("adapter"), model.config(), Device::Cpu).expect("it loads")
}

/// Two sequences of equal length, one after the other.
struct TwoSequences;

impl Attention for TwoSequences {
    fn attend(&mut self, layer: usize, q: &Tensor, k: &Tensor, v: &Tensor) -> Tensor {
        let half = q.size()[0] / 2;
        let part = |start| {
            let rows = |tensor: &Tensor| tensor.narrow(0, start, half);
            CausalAttention.attend(layer, &rows(q), &rows(k), &rows(v))
        };
        Tensor::cat(&[part(0), part(half)], 0)
    }
}

#[test]
fn logprobs_equal_those_of_transformers() {
    let _no_grad = tch::no_grad_guard();
    for (name, file) in [("tiny-tied", ""), ("tiny-untied", ""), ("tiny-gguf", "model.gguf")] {
        let model = load(&Path::new(name).join(file).to_string_lossy());
        let golden = read_golden(name);
        let actual = logprobs(&model, &golden.token_ids, &AdapterRows::Base);
        assert_close(&actual, &matrix(&golden.logprobs), TOLERANCE, name);
    }
}

#[test]
fn adapter_logprobs_equal_those_of_peft() {
    let _no_grad = tch::no_grad_guard();
    for name in ["tiny-tied", "tiny-untied"] {
        let model = load(name);
        let lora = load_adapter(name, &model).fuse(Kind::Float);
        let golden = read_golden(name);
        let expected = matrix(&golden.adapter_logprobs.expect("the golden has an adapter"));
        let actual = logprobs(&model, &golden.token_ids, &AdapterRows::All(&lora));
        assert_close(&actual, &expected, TOLERANCE, name);
        let base = matrix(&golden.logprobs);
        assert!(
            (&base - &expected).abs().max().double_value(&[]) > 0.1,
            "{name}: the adapter changes something"
        );

        // The base model and the adapter side by side in one batch.
        let n = golden.token_ids.len() as i64;
        let positions = Tensor::arange(n, (Kind::Int64, Device::Cpu)).repeat([2]);
        let token_ids = Tensor::from_slice(&golden.token_ids).repeat([2]);
        let segments = [(n, None), (n, Some(&lora))];
        let hidden = model.forward(
            &token_ids,
            &positions,
            &AdapterRows::Segments(&segments),
            &mut TwoSequences,
        );
        let actual = model.logits(&hidden).log_softmax(-1, Kind::Float);
        assert_close(&actual, &Tensor::cat(&[base, expected], 0), TOLERANCE, name);
    }
}

#[test]
fn adapter_gradients_equal_those_of_peft() {
    for name in ["tiny-tied", "tiny-untied"] {
        let model = load(name);
        let mut adapter = load_adapter(name, &model);
        adapter.set_requires_grad(true);
        let token_ids = read_golden(name).token_ids;
        let n = token_ids.len() as i64;
        let lora = adapter.fuse(Kind::Float);
        let following = Tensor::from_slice(&token_ids[1..]).unsqueeze(1);
        let logprobs = logprobs(&model, &token_ids, &AdapterRows::All(&lora));
        logprobs
            .narrow(0, 0, n - 1)
            .gather(1, &following, false)
            .sum(Kind::Float)
            .neg()
            .backward();

        let bytes =
            std::fs::read(golden_folder().join(name).join("adapter_gradients.safetensors")).expect("it is there");
        let expected = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
        let parameters = adapter.parameters();
        assert_eq!(parameters.len(), expected.len());
        for (parameter, tensor) in parameters {
            let view = expected.tensor(&parameter).expect("PEFT has the same names");
            let shape: Vec<i64> = view.shape().iter().map(|&size| size as i64).collect();
            let expected = Tensor::from_data_size(view.data(), &shape, Kind::Float);
            let scale = expected.abs().max().double_value(&[]).max(1.0);
            assert_close(
                &(tensor.grad() / scale),
                &(expected / scale),
                TOLERANCE,
                &format!("{name} {parameter}"),
            );
        }
    }
}

#[test]
fn gguf_blocks_equal_those_of_the_gguf_package() {
    let folder = golden_folder().join("gguf");
    let file = GgufFile::open(&folder.join("blocks.gguf")).expect("it opens");
    let bytes = std::fs::read(folder.join("blocks.safetensors")).expect("it is there");
    let expected = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    assert_eq!(file.tensor_names().count(), 8);
    for name in file.tensor_names() {
        let view = expected.tensor(name).expect("the golden has it");
        let values: Vec<f32> = view
            .data()
            .chunks_exact(4)
            .map(|bytes| f32::from_le_bytes(bytes.try_into().expect("four")))
            .collect();
        let tensor = file.read_tensor(name).expect("it reads");
        assert_eq!(
            tensor.shape,
            view.shape().iter().map(|&size| size as i64).collect::<Vec<_>>(),
            "{name}"
        );
        for (actual, expected) in tensor.values.iter().zip(&values) {
            // The package multiplies in another order.
            assert!(
                (actual - expected).abs() <= 1e-6 * expected.abs().max(0.1),
                "{name}: {actual} {expected}"
            );
        }
    }
    for (key, expected) in [
        ("test.unsigned", MetadataValue::Integer(7)),
        ("test.signed", MetadataValue::Integer(-7)),
        ("test.float", MetadataValue::Float(0.25)),
        ("test.bool", MetadataValue::Bool(true)),
        ("test.string", MetadataValue::String("Grüße".to_owned())),
        (
            "test.strings",
            MetadataValue::Strings(["a", "", "ß"].map(str::to_owned).to_vec()),
        ),
        ("test.integers", MetadataValue::Integers(vec![1, -2, 3])),
        ("test.floats", MetadataValue::Floats(vec![0.5, -1.5])),
    ] {
        assert_eq!(file.metadata(key), Some(&expected), "{key}");
    }
}

#[test]
fn bfloat16_stays_near_float32() {
    let _no_grad = tch::no_grad_guard();
    let options = LoadOptions {
        device: Device::Cpu,
        kind: Kind::BFloat16,
    };
    let model = Model::load(&golden_folder().join("tiny-tied"), &options).expect("the model loads");
    let golden = read_golden("tiny-tied");
    let lora = load_adapter("tiny-tied", &model).fuse(Kind::BFloat16);
    for (adapters, expected) in [
        (AdapterRows::Base, golden.logprobs),
        (
            AdapterRows::All(&lora),
            golden.adapter_logprobs.expect("the golden has an adapter"),
        ),
    ] {
        let actual = logprobs(&model, &golden.token_ids, &adapters);
        assert_eq!(actual.kind(), Kind::Float);
        let mean = (actual - matrix(&expected)).abs().mean(Kind::Float).double_value(&[]);
        assert!(mean < 0.1, "mean difference {mean}");
    }
}

#[derive(Deserialize)]
struct PromptGolden {
    token_ids: Vec<i64>,
    next_token_logprobs: Vec<f32>,
    last_top_ids: Vec<i64>,
    last_top_logprobs: Vec<f32>,
}

#[test]
fn smollm2_equals_transformers() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.setup/models/smollm2-135m-instruct-q4_1.gguf");
    if !path.is_file() {
        println!("skipped: {} isn't there; `make setup` fetches it", path.display());
        return;
    }
    let _no_grad = tch::no_grad_guard();
    let model = Model::load(&path, &LoadOptions::default()).expect("the model loads");
    let text = std::fs::read_to_string(golden_folder().join("smollm2.json")).expect("the golden is in the repository");
    let goldens: Vec<PromptGolden> = serde_json::from_str(&text).expect("goldens");
    for golden in goldens {
        let actual = logprobs(&model, &golden.token_ids, &AdapterRows::Base);
        let n = golden.token_ids.len() as i64;
        let following = Tensor::from_slice(&golden.token_ids[1..]).unsqueeze(1);
        let next = actual.narrow(0, 0, n - 1).gather(1, &following, false).squeeze_dim(1);
        assert_close(
            &next,
            &Tensor::from_slice(&golden.next_token_logprobs),
            TOLERANCE,
            "next tokens",
        );
        let last = actual
            .get(n - 1)
            .index_select(0, &Tensor::from_slice(&golden.last_top_ids));
        assert_close(
            &last,
            &Tensor::from_slice(&golden.last_top_logprobs),
            TOLERANCE,
            "most probable tokens",
        );
    }
}
