use super::*;

fn assemble(chunks: impl IntoIterator<Item = Value>) -> Assembled {
    let mut assembler = Assembler::default();
    chunks.into_iter().for_each(|chunk| assembler.push(chunk));
    assembler.finish()
}

fn delta(delta: Value) -> Value {
    json!({"id": "c", "model": "m", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta}]})
}

fn message(assembled: &Assembled) -> &Value {
    &assembled.response.as_ref().unwrap()["choices"][0]["message"]
}

#[test]
fn text_ids_and_logprobs_of_a_stream() {
    let assembled = assemble([
        json!({"id": "c", "prompt_token_ids": [1, 2], "prompt_text": "x",
               "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}),
        json!({"id": "c", "choices": [{"index": 0, "delta": {"content": "He"}, "token_ids": [7],
               "logprobs": {"content": [{"token": "He", "logprob": -0.5}]}}]}),
        // P9: ids without text.
        json!({"id": "c", "choices": [{"index": 0, "delta": {}, "token_ids": [8, 9],
               "logprobs": {"content": [{"token": "", "logprob": -1.0}, {"token": "", "logprob": -2.0}]}}]}),
        json!({"id": "c", "choices": [{"index": 0, "delta": {"content": "llo", "reasoning_content": "r"}, "token_ids": [2],
               "logprobs": {"content": [{"token": "", "logprob": 0.0}]}, "finish_reason": "stop", "stop_reason": null}]}),
        json!({"id": "c", "choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 4}}),
    ]);
    let response = assembled.response.as_ref().unwrap();
    assert_eq!(
        *response,
        json!({"id": "c", "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello", "reasoning_content": "r"},
                         "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 2, "completion_tokens": 4}})
    );
    assert_eq!(assembled.prompt_token_ids, Some(vec![1, 2]));
    assert_eq!(assembled.choices[0].token_ids, [7, 8, 9, 2]);
    assert_eq!(assembled.choices[0].behaviour_logprobs, [-0.5, -1.0, -2.0, 0.0]);
    assert_eq!(assembled.choices[0].finish_reason.as_deref(), Some("stop"));
    assert!(assembled.finished && assembled.defect.is_none());
}

#[test]
fn p1_arguments_one_character_at_a_time() {
    let arguments = r#"{"location":"Zürich \"old town\"","days":3}"#;
    let first = delta(json!({"role": "assistant", "tool_calls":
        [{"index": 0, "id": "call_1", "type": "function", "function": {"name": "forecast", "arguments": ""}}]}));
    let rest = arguments
        .chars()
        .map(|c| delta(json!({"tool_calls": [{"index": 0, "function": {"arguments": c.to_string()}}]})));
    let assembled = assemble([first].into_iter().chain(rest));
    assert_eq!(
        message(&assembled)["tool_calls"],
        json!([{"id": "call_1", "type": "function", "function": {"name": "forecast", "arguments": arguments}}])
    );
}

#[test]
fn p2_and_p3_whole_call_in_one_delta_and_empty_arguments() {
    let assembled = assemble([
        delta(
            json!({"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}),
        ),
        delta(
            json!({"tool_calls": [{"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": "{\"x\""}}]}),
        ),
        delta(json!({"tool_calls": [{"index": 1, "function": {"arguments": ""}}]})),
        delta(json!({"tool_calls": [{"index": 1, "function": {"arguments": ":1}"}}]})),
    ]);
    let calls = &message(&assembled)["tool_calls"];
    assert_eq!(calls[0]["function"], json!({"name": "f", "arguments": "{}"}));
    assert_eq!(calls[1]["function"], json!({"name": "g", "arguments": "{\"x\":1}"}));
}

#[test]
fn p4_deltas_without_index() {
    let assembled = assemble([
        delta(
            json!({"tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\""}}]}),
        ),
        delta(json!({"tool_calls": [{"function": {"arguments": ":1}"}}]})),
        delta(json!({"tool_calls": [{"id": "b", "type": "function", "function": {"name": "g", "arguments": "{"}}]})),
        delta(json!({"tool_calls": [{"id": "b", "function": {"arguments": "}"}}]})),
    ]);
    let calls = message(&assembled)["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!(calls[0]["function"]["arguments"], "{\"x\":1}");
    assert_eq!(calls[1]["function"]["arguments"], "{}");
}

#[test]
fn p10_choices_keep_their_own_ids() {
    let chunk = |index: u32, id: u32| {
        json!({"choices": [{"index": index, "delta": {"content": "x"}, "token_ids": [id],
            "logprobs": {"content": [{"logprob": -f64::from(id)}]}}]})
    };
    let assembled = assemble([chunk(2, 5), chunk(0, 6), chunk(1, 7), chunk(2, 8)]);
    let ids: Vec<_> = assembled
        .choices
        .iter()
        .map(|choice| (choice.index, choice.token_ids.clone()))
        .collect();
    assert_eq!(ids, [(0, vec![6]), (1, vec![7]), (2, vec![5, 8])]);
    assert_eq!(assembled.choices[2].behaviour_logprobs, [-5.0, -8.0]);
    assert!(!assembled.finished);
}

#[test]
fn missing_logprobs_are_a_defect() {
    let assembled = assemble([json!({"choices": [{"index": 0, "delta": {}, "token_ids": [1, 2],
        "logprobs": {"content": [{"logprob": -1.0}]}}]})]);
    assert!(assembled.defect.unwrap().contains("2 token ids but 1 logprobs"));
    assert!(assembled.choices[0].behaviour_logprobs.is_empty());
}

#[test]
fn an_answer_that_was_not_streamed() {
    let answer = json!({"id": "c", "model": "m", "prompt_token_ids": [1], "prompt_logprobs": null, "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length", "token_ids": [4, 5],
         "logprobs": {"content": [{"logprob": -1.0}, {"logprob": -2.0}]}}], "usage": null});
    let assembled = read_completion(&answer, Keep::default());
    assert_eq!(
        assembled.response,
        Some(json!({"id": "c", "model": "m", "prompt_logprobs": null, "choices": [
            {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "length"}], "usage": null}))
    );
    assert_eq!(assembled.choices[0].behaviour_logprobs, [-1.0, -2.0]);
    assert_eq!(assembled.usage.map(|usage| usage.completion_tokens), Some(2));
    let kept = read_completion(
        &answer,
        Keep {
            logprobs: true,
            token_ids: true,
        },
    );
    assert_eq!(kept.response, Some(answer));
}
