//! The whole engine with a tiny random model, compared with plain forward passes of the same model.

use std::time::{Duration, Instant};

use tch::{Device, IndexOp, Kind, Tensor};
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::model::{AdapterRows, CausalAttention, FusedLora, LoadOptions, Model, ModelConfig};

mod adapters;

const VOCAB_SIZE: i64 = 96;

fn model_config() -> ModelConfig {
    ModelConfig {
        vocab_size: VOCAB_SIZE,
        hidden_size: 48,
        intermediate_size: 64,
        n_layers: 3,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
        max_position: 512,
        tie_word_embeddings: true,
    }
}

fn model() -> Model {
    Model::random(model_config(), 1, &LoadOptions::default())
}

fn engine_config() -> EngineConfig {
    EngineConfig {
        max_batch_tokens: 64,
        max_sequences: 8,
        kv_cache_tokens: 2048,
        max_model_len: 400,
        max_waiting: 64,
        eos_token_ids: Vec::new(),
    }
}

fn start(config: EngineConfig) -> EngineHandle {
    EngineHandle::start(model(), config).unwrap()
}

fn prompt(seed: u32, n_tokens: usize) -> Vec<u32> {
    (0..n_tokens as u32)
        .map(|index| (seed * 31 + index * index * 7 + index * (seed + 3)) % VOCAB_SIZE as u32)
        .collect()
}

fn request(prompt_token_ids: Vec<u32>, max_tokens: usize) -> GenerateRequest {
    let sampling = SamplingParams {
        temperature: 0.0,
        max_tokens,
        ..SamplingParams::default()
    };
    GenerateRequest {
        prompt_token_ids,
        adapter: None,
        sampling,
    }
}

async fn collect(mut events: UnboundedReceiver<GenerateEvent>) -> (Vec<SampledToken>, FinishReason) {
    let mut tokens = Vec::new();
    loop {
        match events.recv().await.expect("a request ends with an event") {
            GenerateEvent::Token(token) => tokens.push(token),
            GenerateEvent::Finished(reason) => return (tokens, reason),
            GenerateEvent::Error(error) => panic!("{error}"),
        }
    }
}

async fn generate(engine: &EngineHandle, request: GenerateRequest) -> Vec<SampledToken> {
    collect(engine.generate(request).unwrap()).await.0
}

fn ids(tokens: &[SampledToken]) -> Vec<u32> {
    tokens.iter().map(|token| token.token_id).collect()
}

/// Checks sampled tokens against one forward pass over prompt and answer: logprobs within 1e-4, and greedy choices.
#[track_caller]
fn assert_matches(prompt: &[u32], tokens: &[SampledToken], adapter: Option<&FusedLora>, greedy: bool) {
    let _no_grad = tch::no_grad_guard();
    let all: Vec<i64> = prompt.iter().copied().chain(ids(tokens)).map(i64::from).collect();
    let model = model();
    let rows = adapter.map_or(AdapterRows::Base, AdapterRows::All);
    let positions = Tensor::arange(all.len() as i64, (Kind::Int64, Device::Cpu));
    let hidden = model.forward(&Tensor::from_slice(&all), &positions, &rows, &mut CausalAttention);
    let logprobs = model.logits(&hidden).log_softmax(-1, Kind::Float);
    for (index, token) in tokens.iter().enumerate() {
        let row = logprobs.i((prompt.len() + index) as i64 - 1);
        let expected = row.double_value(&[i64::from(token.token_id)]);
        assert!(
            (expected - f64::from(token.logprob)).abs() < 1e-4,
            "token {index}: {expected} and {}",
            token.logprob
        );
        if greedy {
            assert!(
                row.max().double_value(&[]) - expected < 1e-4,
                "token {index} is not the likeliest"
            );
        }
    }
}

async fn wait_until(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !condition() {
        assert!(Instant::now() < deadline, "{what} did not come about in 10 s");
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_batch_gives_what_each_request_gives_alone() {
    let engine = start(engine_config());
    let requests: Vec<_> = (0..12)
        .map(|seed| request(prompt(seed, 3 + 17 * seed as usize), 5 + seed as usize))
        .collect();
    let receivers: Vec<_> = requests
        .iter()
        .map(|request| engine.generate(request.clone()).unwrap())
        .collect();
    for (request, receiver) in requests.iter().zip(receivers) {
        let (tokens, reason) = collect(receiver).await;
        assert_eq!(
            (tokens.len(), reason),
            (request.sampling.max_tokens, FinishReason::Length)
        );
        assert_matches(&request.prompt_token_ids, &tokens, None, true);
        let fresh = start(engine_config());
        assert_eq!(ids(&generate(&fresh, request.clone()).await), ids(&tokens));
    }
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting), (0, 0));
    assert_eq!(
        stats.tokens_sampled,
        requests
            .iter()
            .map(|request| request.sampling.max_tokens as u64)
            .sum::<u64>()
    );
}

#[tokio::test]
async fn a_known_prefix_is_not_computed_again_and_changes_nothing() {
    let engine = start(engine_config());
    let long = prompt(5, 150);
    let first = generate(&engine, request(long.clone(), 20)).await;
    assert_eq!(
        (
            engine.stats().prompt_tokens_computed,
            engine.stats().prompt_tokens_cached
        ),
        (150, 0)
    );
    let second = generate(&engine, request(long.clone(), 20)).await;
    assert_eq!(
        (
            engine.stats().prompt_tokens_computed,
            engine.stats().prompt_tokens_cached
        ),
        (156, 144)
    );
    assert_eq!(ids(&first), ids(&second));
    assert_matches(&long, &second, None, true);
    // A next turn extends prompt and answer; the answer's full blocks are known too.
    let mut turn: Vec<u32> = long.iter().copied().chain(ids(&first)).collect();
    turn.extend(prompt(6, 10));
    let third = generate(&engine, request(turn.clone(), 10)).await;
    assert_eq!(engine.stats().prompt_tokens_cached, 144 + 160);
    assert_matches(&turn, &third, None, true);
}

#[tokio::test]
async fn requests_of_one_prompt_that_arrive_together_compute_it_once() {
    let engine = start(engine_config());
    let shared = prompt(9, 130);
    let receivers: Vec<_> = (0..8)
        .map(|seed| {
            let mut request = request(shared.clone(), 10);
            request.sampling.temperature = 1.0;
            request.sampling.seed = Some(seed);
            engine.generate(request).unwrap()
        })
        .collect();
    for receiver in receivers {
        let (tokens, _) = collect(receiver).await;
        assert_matches(&shared, &tokens, None, false);
    }
    let stats = engine.stats();
    assert_eq!(
        (stats.prompt_tokens_computed, stats.prompt_tokens_cached),
        (130 + 7 * 2, 7 * 128)
    );
}

#[tokio::test]
async fn an_abandoned_request_leaves_the_batch() {
    let engine = start(engine_config());
    let mut receiver = engine.generate(request(prompt(1, 30), 360)).unwrap();
    assert!(matches!(receiver.recv().await, Some(GenerateEvent::Token(_))));
    let waiting: Vec<_> = (0..20)
        .map(|seed| engine.generate(request(prompt(seed, 30), 360)).unwrap())
        .collect();
    drop((receiver, waiting));
    wait_until("an empty batch", || {
        engine.stats().running + engine.stats().waiting == 0
    })
    .await;
    assert!(engine.stats().tokens_sampled < 360);
    assert_eq!(generate(&engine, request(prompt(2, 30), 3)).await.len(), 3);
}

#[tokio::test]
async fn a_seed_repeats_whatever_else_is_in_the_batch() {
    let engine = start(engine_config());
    let sampled = |seed, prompt_seed| {
        let mut request = request(prompt(prompt_seed, 25), 30);
        request.sampling.temperature = 1.3;
        request.sampling.seed = seed;
        request
    };
    let alone = ids(&generate(&engine, sampled(Some(11), 1)).await);
    let others: Vec<_> = (2..7)
        .map(|seed| engine.generate(sampled(None, seed)).unwrap())
        .collect();
    let together = ids(&generate(&engine, sampled(Some(11), 1)).await);
    assert_eq!(alone, together);
    assert_ne!(alone, ids(&generate(&engine, sampled(Some(12), 1)).await));
    for receiver in others {
        assert_eq!(collect(receiver).await.0.len(), 30);
    }
}

#[tokio::test]
async fn sequences_end_at_stop_tokens_and_lengths() {
    let probe = ids(&generate(&start(engine_config()), request(prompt(1, 10), 12)).await);
    let first_of = |token: u32| probe.iter().position(|&other| other == token).unwrap() + 1;
    let engine = start(EngineConfig {
        eos_token_ids: vec![probe[7]],
        ..engine_config()
    });
    let (tokens, reason) = collect(engine.generate(request(prompt(1, 10), 12)).unwrap()).await;
    assert_eq!((tokens.len(), reason), (first_of(probe[7]), FinishReason::Stop));
    let mut ignoring = request(prompt(1, 10), 12);
    ignoring.sampling.ignore_eos = true;
    assert_eq!(ids(&generate(&engine, ignoring.clone()).await), probe);
    ignoring.sampling.stop_token_ids = vec![probe[3]];
    let (tokens, reason) = collect(engine.generate(ignoring.clone()).unwrap()).await;
    assert_eq!((tokens.len(), reason), (first_of(probe[3]), FinishReason::Stop));
    // The model's length ends it where max_tokens does not.
    ignoring.sampling.stop_token_ids.clear();
    ignoring.sampling.max_tokens = 10_000;
    let (tokens, reason) = collect(engine.generate(ignoring).unwrap()).await;
    assert_eq!((tokens.len(), reason), (390, FinishReason::Length));
}

#[tokio::test]
async fn requests_that_cannot_be_served_are_refused_with_the_reason() {
    let engine = start(engine_config());
    let message = |request| engine.generate(request).unwrap_err().to_string();
    assert_eq!(
        message(request(Vec::new(), 1)),
        "the prompt is empty, send at least one token"
    );
    let too_long = "the prompt has 400 tokens and this model's limit is 400 with the answer, shorten the prompt";
    assert_eq!(message(request(prompt(1, 400), 1)), too_long);
    assert_eq!(
        message(request(vec![5, 96], 1)),
        "token id 96 is outside the vocabulary of 96"
    );
    let mut hot = request(vec![1], 1);
    hot.sampling.temperature = -1.0;
    assert_eq!(message(hot), "temperature must be a finite number of at least 0");
    assert_eq!(message(request(vec![1], 0)), "max_tokens must be at least 1");
    let full = start(EngineConfig {
        max_waiting: 0,
        ..engine_config()
    });
    assert!(matches!(
        full.generate(request(vec![1], 1)),
        Err(EngineError::QueueFull { .. })
    ));
    let tiny = EngineHandle::start(
        model(),
        EngineConfig {
            max_batch_tokens: 4,
            ..engine_config()
        },
    );
    assert!(matches!(
        tiny,
        Err(EngineError::InvalidConfig {
            setting: "max_batch_tokens",
            ..
        })
    ));
}

#[tokio::test]
async fn a_full_cache_makes_requests_wait_and_give_way() {
    // 20 blocks: one sequence of 300 tokens nearly fills it.
    let engine = start(EngineConfig {
        kv_cache_tokens: 320,
        max_model_len: 320,
        ..engine_config()
    });
    let requests: Vec<_> = (0..6).map(|seed| request(prompt(seed, 40), 80)).collect();
    let receivers: Vec<_> = requests
        .iter()
        .map(|request| engine.generate(request.clone()).unwrap())
        .collect();
    for (request, receiver) in requests.iter().zip(receivers) {
        let (tokens, _) = collect(receiver).await;
        assert_eq!(tokens.len(), 80);
        assert_matches(&request.prompt_token_ids, &tokens, None, true);
    }
    assert!(engine.stats().preemptions > 0);
}

#[tokio::test]
async fn shutdown_ends_requests_and_refuses_new_ones() {
    let engine = start(engine_config());
    let mut receiver = engine.generate(request(prompt(1, 20), 370)).unwrap();
    assert!(matches!(receiver.recv().await, Some(GenerateEvent::Token(_))));
    engine.clone().shutdown();
    assert_eq!(collect(receiver).await.1, FinishReason::Abort);
    assert!(matches!(
        engine.generate(request(prompt(1, 20), 1)),
        Err(EngineError::Stopped)
    ));
}

#[tokio::test]
async fn top_logprobs_are_reported() {
    let engine = start(engine_config());
    let mut request = request(prompt(1, 20), 4);
    request.sampling.top_logprobs = 5;
    for token in generate(&engine, request).await {
        assert_eq!(token.top_logprobs.len(), 5);
        assert_eq!(token.top_logprobs[0], (token.token_id, token.logprob));
        assert!(token.top_logprobs.is_sorted_by(|a, b| a.1 >= b.1));
    }
}
