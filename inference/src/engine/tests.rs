//! The whole engine with a tiny random model, compared with plain forward passes of the same model.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use tch::{Device, IndexOp, Kind, Tensor};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::oneshot;

use super::handle::Message;
use super::*;
use crate::model::{AdapterRows, CausalAttention, FusedLora, LoadOptions, LoraAdapter, LoraConfig, Model, ModelConfig};

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

/// An adapter that changes the answers a good deal, and its directory.
struct TestAdapter {
    adapter: LoraAdapter,
    directory: tempfile::TempDir,
}

impl TestAdapter {
    fn new(seed: u64) -> Self {
        let _no_grad = tch::no_grad_guard();
        let adapter = LoraAdapter::new(
            &LoraConfig {
                rank: 4,
                ..LoraConfig::default()
            },
            &model_config(),
            seed,
            Device::Cpu,
        );
        for (index, (name, mut parameter)) in adapter.parameters().into_iter().enumerate() {
            if name.contains("lora_B") {
                let n = parameter.numel() as i64;
                let phase = (seed * 1000 + index as u64) as f64;
                parameter.copy_(
                    &((Tensor::arange(n, (Kind::Float, Device::Cpu)) * 1.7 + phase).sin() * 0.1).view_as(&parameter),
                );
            }
        }
        let directory = tempfile::tempdir().unwrap();
        adapter.save(directory.path(), "base").unwrap();
        Self { adapter, directory }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().to_owned()
    }

    fn fused(&self) -> FusedLora {
        tch::no_grad(|| self.adapter.fuse(Kind::Float))
    }
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

fn with_adapter(mut request: GenerateRequest, name: &str) -> GenerateRequest {
    request.adapter = Some(name.to_owned());
    request
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
async fn adapters_and_base_share_a_batch() {
    let engine = start(engine_config());
    let adapters = [TestAdapter::new(1), TestAdapter::new(2)];
    engine
        .load_adapter("policy@1", &adapters[0].path(), false)
        .await
        .unwrap();
    engine
        .load_adapter("policy@2", &adapters[1].path(), false)
        .await
        .unwrap();
    let names: Vec<_> = engine.adapters().into_iter().map(|adapter| adapter.name).collect();
    assert_eq!(names, ["policy@1", "policy@2"]);
    let tokens = prompt(3, 45);
    let base = || request(tokens.clone(), 12);
    let requests = [
        base(),
        with_adapter(base(), "policy@1"),
        with_adapter(base(), "policy@2"),
        with_adapter(base(), "policy@1"),
    ];
    let receivers: Vec<_> = requests
        .into_iter()
        .map(|request| engine.generate(request).unwrap())
        .collect();
    let fused = [
        None,
        Some(adapters[0].fused()),
        Some(adapters[1].fused()),
        Some(adapters[0].fused()),
    ];
    let mut answers = Vec::new();
    for (receiver, fused) in receivers.into_iter().zip(&fused) {
        let (answer, _) = collect(receiver).await;
        assert_matches(&tokens, &answer, fused.as_ref(), true);
        answers.push(answer);
    }
    assert!((answers[0][0].logprob - answers[1][0].logprob).abs() > 1e-2);
    assert!((answers[1][0].logprob - answers[2][0].logprob).abs() > 1e-2);
}

/// Case L1: no cached block of another version is used, also under the same name.
#[tokio::test]
async fn a_swap_leaves_no_cached_block_of_the_other_version() {
    let engine = start(engine_config());
    let adapters = [TestAdapter::new(1), TestAdapter::new(2)];
    let tokens = prompt(4, 100);
    let ask = || with_adapter(request(tokens.clone(), 6), "policy");
    engine.load_adapter("policy", &adapters[0].path(), false).await.unwrap();
    assert_matches(
        &tokens,
        &generate(&engine, ask()).await,
        Some(&adapters[0].fused()),
        true,
    );
    engine.load_adapter("policy", &adapters[1].path(), true).await.unwrap();
    assert_matches(
        &tokens,
        &generate(&engine, ask()).await,
        Some(&adapters[1].fused()),
        true,
    );
    engine.unload_adapter("policy").await.unwrap();
    engine.load_adapter("policy", &adapters[0].path(), false).await.unwrap();
    assert_matches(
        &tokens,
        &generate(&engine, ask()).await,
        Some(&adapters[0].fused()),
        true,
    );
    assert_eq!(engine.stats().prompt_tokens_cached, 0);
    assert_matches(
        &tokens,
        &generate(&engine, request(tokens.clone(), 6)).await,
        None,
        true,
    );
}

/// Case L3: a call that runs while its adapter is replaced and unloaded ends with the weights it began with.
#[tokio::test]
async fn an_unloaded_adapter_serves_its_running_requests_to_the_end() {
    let engine = start(engine_config());
    let adapters = [TestAdapter::new(1), TestAdapter::new(2)];
    engine
        .load_adapter("policy@1", &adapters[0].path(), false)
        .await
        .unwrap();
    let tokens = prompt(8, 20);
    let mut receiver = engine
        .generate(with_adapter(request(tokens.clone(), 300), "policy@1"))
        .unwrap();
    let Some(GenerateEvent::Token(first)) = receiver.recv().await else {
        panic!("no token")
    };
    engine
        .load_adapter("policy@1", &adapters[1].path(), true)
        .await
        .unwrap();
    engine.unload_adapter("policy@1").await.unwrap();
    let (rest, _) = collect(receiver).await;
    let all: Vec<_> = std::iter::once(first).chain(rest).collect();
    assert_eq!(all.len(), 300);
    assert_matches(&tokens, &all, Some(&adapters[0].fused()), true);
    let refused = engine.generate(with_adapter(request(tokens, 1), "policy@1"));
    assert!(matches!(refused, Err(EngineError::UnknownAdapter { .. })));
}

#[tokio::test]
async fn adapters_that_cannot_be_had_are_refused() {
    let engine = start(engine_config());
    let adapter = TestAdapter::new(1);
    engine.load_adapter("a", &adapter.path(), false).await.unwrap();
    let taken = engine.load_adapter("a", &adapter.path(), false).await;
    assert!(matches!(taken, Err(EngineError::AdapterAlreadyLoaded { .. })));
    let missing = engine.load_adapter("b", &adapter.path().join("nothing"), false).await;
    assert!(matches!(missing, Err(EngineError::InvalidAdapter { .. })));
    assert!(matches!(
        engine.unload_adapter("b").await,
        Err(EngineError::UnknownAdapter { .. })
    ));
    let unknown = engine.generate(with_adapter(request(prompt(1, 3), 1), "b"));
    assert_eq!(unknown.unwrap_err().to_string(), "no adapter named `b` is loaded");
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
async fn a_panic_in_a_step_fails_its_requests_and_the_engine_goes_on() {
    let engine = start(engine_config());
    let healthy = engine.generate(request(prompt(1, 20), 350)).unwrap();
    // Weights of another model, past the checks of `load_adapter`.
    let other = ModelConfig {
        hidden_size: 32,
        ..model_config()
    };
    let weights = LoraAdapter::new(&LoraConfig::default(), &other, 1, Device::Cpu).fuse(Kind::Float);
    let adapter = LoadedAdapter {
        name: "broken".into(),
        path: PathBuf::new(),
    };
    let (reply, answer) = oneshot::channel();
    engine
        .messages
        .send(Message::InstallAdapter {
            adapter,
            weights,
            in_place: false,
            reply,
        })
        .unwrap();
    answer.await.unwrap().unwrap();
    let mut broken = engine
        .generate(with_adapter(request(prompt(2, 20), 5), "broken"))
        .unwrap();
    let Some(GenerateEvent::Error(error)) = broken.recv().await else {
        panic!("no error")
    };
    assert!(error.starts_with("the engine failed in a step: "), "{error}");
    let mut healthy = healthy;
    loop {
        match healthy.recv().await {
            Some(GenerateEvent::Token(_)) => {}
            Some(GenerateEvent::Error(_)) => break,
            other => panic!("{other:?}"),
        }
    }
    let tokens = generate(&engine, request(prompt(1, 20), 5)).await;
    assert_matches(&prompt(1, 20), &tokens, None, true);
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
