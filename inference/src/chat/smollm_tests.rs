//! SmolLM2's tokenizer and template, read from its GGUF file. The ids come from two independent makers: those of
//! `tests/golden/smollm2.json` from transformers, those below from a byte-level BPE written by its definition in Python.

use std::path::Path;

use serde_json::{Value, json};

use super::ChatTokenizer;
use super::fixture::look_tool;

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

/// The demo's model, where it has been fetched.
fn smollm() -> Option<ChatTokenizer> {
    let path = Path::new(FOLDER).join("../.setup/models/smollm2-135m-instruct-q4_1.gguf");
    if !path.is_file() {
        println!("skipped: {} isn't there; `make setup` fetches it", path.display());
        return None;
    }
    Some(ChatTokenizer::load(&path).unwrap())
}

#[test]
fn the_templates_ids_are_those_of_transformers() {
    let Some(tokenizer) = smollm() else { return };
    let rendered = tokenizer
        .render(&[json!({"role": "user", "content": "What is gravity?"})], None, true)
        .unwrap();
    assert_eq!(
        rendered.text,
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n"
    );
    assert_eq!(
        rendered.token_ids,
        [
            1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182,
            2, 198, 1, 4093, 198, 1780, 314, 9354, 47, 2, 198, 1, 520, 9531, 198
        ]
    );
    assert_eq!(
        (tokenizer.stop_token_ids(), tokenizer.vocab_size()),
        ([2].as_slice(), 49152)
    );
}

#[test]
fn texts_have_the_ids_of_the_goldens() {
    let Some(tokenizer) = smollm() else { return };
    let path = Path::new(FOLDER).join("../tests/golden/smollm2.json");
    let goldens: Vec<Value> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    for golden in goldens {
        let token_ids = tokenizer.encode_raw(golden["prompt"].as_str().unwrap(), true).unwrap();
        assert_eq!(json!(token_ids), golden["token_ids"], "{}", golden["prompt"]);
    }
    let text = "It's 72.5°F at 14:30,  we've  3 days — naïve café 漢字 😀\n\n\tdef f(x):\n    return x**2\r\n  ";
    let token_ids = [
        1589, 506, 216, 39, 34, 30, 37, 4742, 54, 418, 216, 33, 36, 42, 35, 32, 28, 216, 392, 3543, 256, 35, 2009,
        1841, 15486, 46494, 37366, 17097, 137, 112, 36518, 40303, 218, 1116, 197, 1604, 275, 24, 104, 727, 472, 1003,
        1792, 828, 34, 2738, 256,
    ];
    assert_eq!(tokenizer.encode_text(text), token_ids);
    assert_eq!(tokenizer.decode(&token_ids, true), text);
    let call = "<tool_call>\n{\"name\": \"get_forecast\", \"arguments\": {\"latitude\": 39.7456, \"longitude\": -97.0892}}\n</tool_call>";
    let token_ids = [
        44, 19324, 79, 4350, 46, 198, 39428, 1245, 1799, 476, 726, 79, 892, 4288, 1002, 476, 24370, 1799, 9583, 37962,
        1799, 216, 35, 41, 30, 39, 36, 37, 38, 28, 476, 5480, 3074, 1799, 731, 41, 39, 30, 32, 40, 41, 34, 17859, 198,
        9617, 19324, 79, 4350, 46,
    ];
    assert_eq!(tokenizer.encode_text(call), token_ids);
}

#[test]
fn tools_cost_few_tokens() {
    let Some(tokenizer) = smollm() else { return };
    let messages = [
        json!({"role": "system", "content": "x"}),
        json!({"role": "user", "content": "x"}),
    ];
    let n_tokens = |tools: Option<&[Value]>| tokenizer.render(&messages, tools, true).unwrap().token_ids.len();
    let tool = look_tool();
    let one = n_tokens(Some(std::slice::from_ref(&tool))) - n_tokens(None);
    let two = n_tokens(Some(&[tool.clone(), tool])) - n_tokens(None);
    assert!(
        one - (two - one) <= 60,
        "the frame costs {} tokens, a tool {}",
        one - (two - one),
        two - one
    );
}

#[test]
fn a_file_without_a_vocabulary_is_refused_by_name() {
    let path = Path::new(FOLDER).join("../tests/golden/tiny-gguf/model.gguf");
    let refusal = ChatTokenizer::load(&path).err().map(|error| error.to_string());
    assert!(
        refusal.is_some_and(|text| text.contains("model.gguf")),
        "a file without a vocabulary is no tokenizer"
    );
}
