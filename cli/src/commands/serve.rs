//! `trainyard serve`

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use inference::api::{ApiConfig, ApiState};
use inference::chat::ChatTokenizer;
use inference::engine::{EngineConfig, EngineHandle};
use inference::model::{LoadOptions, Model};

use super::listen;
use crate::failure::{UsageError, chain};
use crate::shutdown;
use crate::telemetry::print;

/// Arguments of `trainyard serve`.
#[derive(Debug, Args)]
pub(crate) struct ServeArgs {
    /// Hugging Face folder or GGUF file
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// A LoRA adapter (PEFT folder) under a name of its own; may be repeated
    #[arg(long = "adapter", value_name = "NAME=FOLDER", value_parser = adapter)]
    adapters: Vec<(String, PathBuf)>,
    /// Address; port 0 picks a free one
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000")]
    listen: String,
    /// Name of the base model
    #[arg(long, value_name = "NAME", default_value = "base")]
    served_model_name: String,
    /// cpu or cuda:N
    #[arg(long, default_value = "cpu")]
    device: String,
    /// float32 or bfloat16
    #[arg(long, default_value = "float32")]
    dtype: String,
    /// Most tokens of a prompt and its answer
    #[arg(long, value_name = "TOKENS", default_value_t = 4096)]
    max_model_len: usize,
    /// Most sequences in one batch
    #[arg(long, value_name = "N", default_value_t = 32)]
    max_sequences: usize,
    /// Tokens that the KV cache has room for
    #[arg(long, value_name = "TOKENS", default_value_t = 32_768)]
    kv_cache_tokens: usize,
    /// Key that requests must carry; demanded beyond loopback
    #[arg(long, value_name = "KEY", env = "TRAINYARD_TOKEN", hide_env_values = true)]
    api_key: Option<String>,
}

fn adapter(text: &str) -> Result<(String, PathBuf), String> {
    let (name, folder) = text.split_once('=').ok_or("give NAME=FOLDER")?;
    if name.is_empty() {
        Err("the name is empty".into())
    } else {
        Ok((name.to_owned(), folder.into()))
    }
}

/// Serves until a signal; the first line on standard output is the address.
pub(crate) async fn run(args: ServeArgs) -> anyhow::Result<()> {
    let shutdown = shutdown::on_signal()?;
    let listener = listen(&args.listen).await?;
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() && args.api_key.is_none() {
        return Err(UsageError::new(format!(
            "{address} is reachable from other machines, and there is no key"
        ))
        .hint("set --api-key or TRAINYARD_TOKEN, or listen on 127.0.0.1")
        .into());
    }
    let usage = |error: &dyn std::error::Error| UsageError::new(chain(error));
    let options = LoadOptions::parse(&args.device, &args.dtype).map_err(|error| usage(&error))?;
    let tokenizer = ChatTokenizer::load(&args.model).map_err(|error| {
        usage(&error)
            .hint("--model takes a Hugging Face folder (config.json, safetensors, tokenizer.json) or a GGUF file")
    })?;
    let model = Model::load(&args.model, &options).map_err(|error| usage(&error))?;
    let engine = EngineHandle::start(
        model,
        EngineConfig {
            max_sequences: args.max_sequences,
            kv_cache_tokens: args.kv_cache_tokens,
            max_model_len: args.max_model_len,
            max_batch_tokens: EngineConfig::default().max_batch_tokens.max(args.max_sequences),
            ..EngineConfig::default()
        },
    )
    .map_err(|error| usage(&error))?;
    for (name, folder) in &args.adapters {
        engine
            .load_adapter(name.clone(), folder, false)
            .await
            .map_err(|error| usage(&error))?;
    }
    let api = ApiConfig {
        model_name: args.served_model_name,
        model_path: args.model,
        max_model_len: engine.config().max_model_len,
        api_key: args.api_key,
    };
    print(format!("http://{address}"));
    let state = ApiState::new(api, engine.clone(), Arc::new(tokenizer));
    inference::api::serve(listener, state, shutdown).await?;
    engine.shutdown();
    Ok(())
}
