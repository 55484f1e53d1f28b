//! Tokens per second of the embedded engine, alone and with an adapter, at 1, 8 and 16 requests at a time.
//!
//! `cargo bench -p inference --bench engine -- --model PATH [--prompt-tokens N] [--new-tokens N] [--concurrency N,N] [--out FILE]`.
//! Each request has a prompt of its own (nothing is shared) and samples a fixed number of tokens. Prints a table and writes `target/bench/engine.json`.

#![expect(clippy::print_stdout, reason = "a table for the person who runs it")]

use std::error::Error;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use inference::engine::{EngineConfig, EngineHandle, GenerateEvent, GenerateRequest, SamplingParams};
use inference::model::{LoadOptions, LoraAdapter, LoraConfig, Model, ModelConfig};
use serde_json::{Map, Value, json};

const ADAPTER: &str = "bench";

struct Args {
    model: PathBuf,
    prompt_tokens: usize,
    new_tokens: usize,
    concurrencies: Vec<usize>,
    out: PathBuf,
}

impl Args {
    fn parse() -> Result<Self, Box<dyn Error>> {
        let out = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/bench/engine.json");
        let mut args = Self {
            model: PathBuf::new(),
            prompt_tokens: 322,
            new_tokens: 64,
            concurrencies: vec![1, 8, 16],
            out,
        };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--model" => args.model = value()?.into(),
                "--prompt-tokens" => args.prompt_tokens = value()?.parse()?,
                "--new-tokens" => args.new_tokens = value()?.parse()?,
                "--concurrency" => {
                    args.concurrencies = value()?.split(',').map(str::parse).collect::<Result<_, _>>()?;
                }
                "--out" => args.out = value()?.into(),
                // Cargo's own.
                "--bench" => {}
                other => return Err(format!("unknown argument {other}").into()),
            }
        }
        if args.model.as_os_str().is_empty() {
            return Err("name a model folder or GGUF file: --model PATH".into());
        }
        // Cargo runs benches in the crate's folder; a relative path is meant from the workspace's.
        if args.model.is_relative() && !args.model.try_exists()? {
            args.model = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(&args.model);
        }
        Ok(args)
    }
}

/// What one round of concurrent requests took.
struct Round {
    /// New tokens of all requests, over the time from the first request to the last token.
    tokens_per_second: f64,
    /// New tokens while every request was past its prompt and none had ended, over that time.
    decode_tokens_per_second: f64,
    /// Prompt tokens over the time to the last first token.
    prompt_tokens_per_second: f64,
    /// Mean time from a request to its first token.
    time_to_first_token: Duration,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse()?;
    let model = Model::load(&args.model, &LoadOptions::default())?;
    let config = model.config().clone();
    let engine = EngineHandle::start(
        model,
        EngineConfig {
            max_sequences: 16,
            ..EngineConfig::default()
        },
    )?;
    let directory = tempfile::tempdir()?;
    LoraAdapter::new(&LoraConfig::default(), &config, 1, tch::Device::Cpu).save(directory.path(), "base")?;
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    runtime.block_on(engine.load_adapter(ADAPTER, directory.path(), false))?;

    println!(
        "{} prompt tokens of its own and {} new ones a request, {} threads",
        args.prompt_tokens,
        args.new_tokens,
        tch::get_num_threads()
    );
    println!(
        "{:>5} {:>9} {:>14} {:>16} {:>16} {:>12}",
        "", "requests", "tokens/s", "decode tokens/s", "prompt tokens/s", "first token"
    );
    let mut report = Map::new();
    let mut seed = 0;
    for (name, adapter) in [("base", None), ("lora", Some(ADAPTER))] {
        // Warm the thread's memory and libtorch's kernels up.
        runtime.block_on(round(&engine, &config, &args, adapter, 2, &mut seed))?;
        let mut of_name = Map::new();
        for &concurrency in &args.concurrencies {
            let round = runtime.block_on(round(&engine, &config, &args, adapter, concurrency, &mut seed))?;
            println!(
                "{name:>5} {concurrency:>9} {:>14.1} {:>16.1} {:>16.1} {:>9.0} ms",
                round.tokens_per_second,
                round.decode_tokens_per_second,
                round.prompt_tokens_per_second,
                round.time_to_first_token.as_secs_f64() * 1e3
            );
            of_name.insert(
                concurrency.to_string(),
                json!({
                    "tokens_per_second": round.tokens_per_second,
                    "decode_tokens_per_second": round.decode_tokens_per_second,
                    "prompt_tokens_per_second": round.prompt_tokens_per_second,
                    "ttft_ms": round.time_to_first_token.as_secs_f64() * 1e3,
                }),
            );
        }
        report.insert(name.to_owned(), Value::Object(of_name));
    }
    engine.shutdown();
    if let Some(parent) = args.out.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(&args.out, serde_json::to_string_pretty(&Value::Object(report))?)?;
    println!("written to {}", args.out.display());
    Ok(())
}

async fn round(
    engine: &EngineHandle,
    model: &ModelConfig,
    args: &Args,
    adapter: Option<&str>,
    concurrency: usize,
    seed: &mut u64,
) -> Result<Round, Box<dyn Error>> {
    let began = Instant::now();
    let mut receivers = Vec::with_capacity(concurrency);
    for _ in 0..concurrency {
        *seed += 1;
        let sampling = SamplingParams {
            seed: Some(*seed),
            max_tokens: args.new_tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        };
        let prompt_token_ids = prompt(*seed, args.prompt_tokens, model.vocab_size as u64);
        receivers.push(engine.generate(GenerateRequest {
            prompt_token_ids,
            adapter: adapter.map(str::to_owned),
            sampling,
        })?);
    }
    let requests: Vec<_> = receivers
        .into_iter()
        .map(|mut receiver| async move {
            let mut times = Vec::new();
            while let Some(event) = receiver.recv().await {
                match event {
                    GenerateEvent::Token(_) => times.push(began.elapsed().as_secs_f64()),
                    GenerateEvent::Finished(_) => break,
                    GenerateEvent::Error(error) => return Err(error),
                }
            }
            Ok(times)
        })
        .collect();
    let times: Vec<Vec<f64>> = futures_util::future::join_all(requests)
        .await
        .into_iter()
        .collect::<Result<_, _>>()?;
    let firsts: Vec<f64> = times.iter().filter_map(|times| times.first().copied()).collect();
    let (last_first, end) = (max(firsts.iter().copied()), max(times.iter().flatten().copied()));
    let first_end = times
        .iter()
        .filter_map(|times| times.last().copied())
        .fold(end, f64::min);
    let together = |time: f64| time > last_first && time <= first_end;
    let n_together = times.iter().flatten().filter(|&&time| together(time)).count();
    Ok(Round {
        tokens_per_second: times.iter().map(Vec::len).sum::<usize>() as f64 / end,
        decode_tokens_per_second: n_together as f64 / (first_end - last_first).max(f64::MIN_POSITIVE),
        prompt_tokens_per_second: (concurrency * args.prompt_tokens) as f64 / last_first,
        time_to_first_token: Duration::from_secs_f64(firsts.iter().sum::<f64>() / firsts.len() as f64),
    })
}

fn max(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::MIN_POSITIVE, f64::max)
}

/// A prompt that shares nothing with another seed's.
fn prompt(seed: u64, n_tokens: usize, vocab_size: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (0..n_tokens)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) % vocab_size) as u32
        })
        .collect()
}
