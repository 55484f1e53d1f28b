//! Adapters: several in a batch, loaded and unloaded while requests run.

use std::path::PathBuf;

use tokio::sync::oneshot;

use super::*;
use crate::engine::handle::Message;
use crate::model::{LoraAdapter, LoraConfig};

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

fn with_adapter(mut request: GenerateRequest, name: &str) -> GenerateRequest {
    request.adapter = Some(name.to_owned());
    request
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
