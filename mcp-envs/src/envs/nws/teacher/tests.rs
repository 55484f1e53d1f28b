use serde_json::{Value, json};

use super::*;
use crate::nws::server::NwsServer;
use crate::nws::test_world::SEED;

fn scenarios() -> Vec<Scenario> {
    crate::nws::scenarios::generate(SEED)
}

async fn served() -> (String, tokio_util::sync::DropGuard) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    tokio::spawn(serve(listener, Teacher::new(&scenarios()), stop.clone()));
    let _ = rustls::crypto::ring::default_provider().install_default();
    (format!("http://{address}/v1"), stop.drop_guard())
}

async fn post(url: &str, body: &Value) -> (u16, String) {
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let response = client
        .post(format!("{url}/chat/completions"))
        .json(body)
        .send()
        .await
        .unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn it_calls_the_tool_and_then_reads_the_result() {
    let (url, _stop) = served().await;
    let scenario = scenarios()
        .into_iter()
        .find(|scenario| scenario.kind == "rain_chance")
        .unwrap();
    let facts: Facts = serde_json::from_value(scenario.data.clone()).unwrap();
    let mut messages = vec![
        json!({ "role": "system", "content": "Use the tools." }),
        json!({ "role": "user", "content": [{ "type": "text", "text": scenario.prompt }] }),
    ];
    let request =
        |messages: &Vec<Value>| json!({ "model": "m", "messages": messages, "tools": NwsServer::openai_tools() });
    let (status, body) = post(&url, &request(&messages)).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &body["model"]), (200, &json!("m")));
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    let function = &body["choices"][0]["message"]["tool_calls"][0]["function"];
    assert_eq!(function["name"], "get_forecast");
    let arguments = function["arguments"].as_str().unwrap();
    assert!(arguments.starts_with("{\"latitude\": "), "{arguments}");
    messages.push(body["choices"][0]["message"].clone());
    let result = format!("{}: 71 F, rain 40%, wind NW 10 mph, Sunny", facts.periods[0]);
    messages.push(json!({ "role": "tool", "tool_call_id": "x", "content": result }));
    let (_, body) = post(&url, &request(&messages)).await;
    let body: Value = serde_json::from_str(&body).unwrap();
    let answer = body["choices"][0]["message"]["content"].as_str().unwrap();
    assert!(answer.contains("40%"), "{answer}");
}

#[tokio::test]
async fn it_streams_the_same() {
    let (url, _stop) = served().await;
    let scenario = scenarios()
        .into_iter()
        .find(|scenario| scenario.kind == "alerts")
        .unwrap();
    let messages = json!([{ "role": "user", "content": scenario.prompt }]);
    let request = json!({ "model": "m", "stream": true, "messages": messages, "tools": NwsServer::openai_tools() });
    let (status, body) = post(&url, &request).await;
    assert_eq!(status, 200);
    let events: Vec<&str> = body.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(events.last(), Some(&"[DONE]"));
    let chunks: Vec<Value> = events[..events.len() - 1]
        .iter()
        .map(|event| serde_json::from_str(event).unwrap())
        .collect();
    let call = chunks
        .iter()
        .find_map(|chunk| chunk.pointer("/choices/0/delta/tool_calls/0"))
        .unwrap();
    assert_eq!(
        (&call["index"], &call["function"]["name"]),
        (&json!(0), &json!("get_alerts"))
    );
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn what_it_cannot_teach_it_refuses() {
    let (url, _stop) = served().await;
    let prompt = scenarios()[0].prompt.clone();
    for (body, said) in [
        (
            json!({ "messages": [{ "role": "user", "content": "Hello?" }] }),
            "knows no scenario",
        ),
        (json!({ "messages": [] }), "no user message"),
        (
            json!({ "messages": [{ "role": "user", "content": prompt }] }),
            "no tool named get_forecast",
        ),
        (json!({ "prompt": "x" }), "not a chat completion"),
    ] {
        let (status, answer) = post(&url, &body).await;
        let answer: Value = serde_json::from_str(&answer).unwrap();
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(status == 400 && message.contains(said), "{message}");
    }
}

#[test]
fn it_gives_up_when_the_service_fails() {
    let scenario = scenarios().remove(0);
    let teacher = Teacher::new(std::slice::from_ref(&scenario));
    let messages = [
        json!({ "role": "user", "content": format!("Question: {}", scenario.prompt) }),
        json!({ "role": "tool", "content": "Weather service error: Unexpected Problem. Try again later." }),
    ];
    let next = teacher.next(&messages, &[]).unwrap();
    assert_eq!(next, Move::Answer("I could not get the weather.".to_owned()));
}
