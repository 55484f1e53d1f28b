//! `GET /health`, `/version` and `/metrics`.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Value, json};

use super::{ApiState, PROTOCOL_VERSION};

pub(super) async fn health() -> StatusCode {
    StatusCode::OK
}

pub(super) async fn version() -> Json<Value> {
    Json(json!({"version": PROTOCOL_VERSION, "server": "trainyard", "server_version": env!("CARGO_PKG_VERSION")}))
}

/// Prometheus text, under vLLM's names, so that dashboards for it work.
pub(super) async fn metrics(State(state): State<ApiState>) -> impl IntoResponse {
    let stats = state.generator().stats();
    let model = state
        .config()
        .model_name
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n");
    let queries = stats.prompt_tokens_computed + stats.prompt_tokens_cached;
    let metrics: [(&str, &str, &str, u64); 8] = [
        (
            "vllm:num_requests_running",
            "gauge",
            "Sequences in the batch.",
            stats.running as u64,
        ),
        (
            "vllm:num_requests_waiting",
            "gauge",
            "Requests that wait for a place in the batch.",
            stats.waiting as u64,
        ),
        (
            "vllm:prompt_tokens_total",
            "counter",
            "Prompt tokens read, computed or from the cache.",
            queries,
        ),
        (
            "vllm:generation_tokens_total",
            "counter",
            "Tokens sampled.",
            stats.tokens_sampled,
        ),
        (
            "vllm:prefix_cache_queries_total",
            "counter",
            "Prompt tokens looked up in the prefix cache.",
            queries,
        ),
        (
            "vllm:prefix_cache_hits_total",
            "counter",
            "Prompt tokens found there.",
            stats.prompt_tokens_cached,
        ),
        (
            "vllm:num_preemptions_total",
            "counter",
            "Sequences that lost their cache for another.",
            stats.preemptions,
        ),
        (
            "trainyard:engine_steps_total",
            "counter",
            "Forward passes.",
            stats.steps,
        ),
    ];
    let lines = metrics.iter().map(|(name, kind, help, value)| {
        format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name}{{model_name=\"{model}\"}} {value}\n")
    });
    (
        [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        lines.collect::<String>(),
    )
}
