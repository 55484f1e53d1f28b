//! `trainyard score`: logprobs of given tokens, so that anybody can check the model's mathematics from outside.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use inference::model::{AdapterRows, CausalAttention, FusedLora, LoadOptions, LoraAdapter, Model};
use serde::Deserialize;
use serde_json::json;
use tch::{Kind, Tensor};

use crate::failure::{UsageError, chain};
use crate::telemetry::stdout_closed;

/// Rows whose logits exist at a time: 256 rows of a vocabulary of 50 000 are 50 MB.
const ROWS: i64 = 256;

/// Arguments of `trainyard score`.
#[derive(Debug, Args)]
pub(crate) struct ScoreArgs {
    /// Hugging Face folder or GGUF file
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// LoRA adapter (PEFT folder); the base model if absent
    #[arg(long, value_name = "FOLDER")]
    adapter: Option<PathBuf>,
    /// JSON lines {"token_ids":[…]}; - reads standard input
    #[arg(long, value_name = "FILE")]
    tokens: PathBuf,
    /// cpu or cuda:N
    #[arg(long, default_value = "cpu")]
    device: String,
    /// float32 or bfloat16
    #[arg(long, default_value = "float32")]
    dtype: String,
}

#[derive(Deserialize)]
struct Line {
    token_ids: Vec<i64>,
}

/// Prints {"logprobs":[null,…]} for each line: the log-probability of each token given those before it.
pub(crate) fn run(args: &ScoreArgs) -> anyhow::Result<()> {
    let usage = |error: &dyn std::error::Error| UsageError::new(chain(error));
    let options = LoadOptions::parse(&args.device, &args.dtype).map_err(|error| usage(&error))?;
    let lines = read(&args.tokens)?;
    let model = Model::load(&args.model, &options).map_err(|error| usage(&error))?;
    check(&args.tokens, &lines, &model)?;
    let adapter = match &args.adapter {
        Some(folder) => {
            let adapter = LoraAdapter::load(folder, model.config(), model.device()).map_err(|error| usage(&error))?;
            Some(adapter.fuse(model.kind()))
        }
        None => None,
    };
    let mut out = BufWriter::new(std::io::stdout().lock());
    let done = lines.iter().try_for_each(|line| {
        let logprobs = tch::no_grad(|| logprobs(&model, adapter.as_ref(), &line.token_ids))?;
        writeln!(out, "{}", json!({"logprobs": logprobs}))?;
        Ok(out.flush()?)
    });
    done.or_else(|error: anyhow::Error| if stdout_closed(&error) { Ok(()) } else { Err(error) })
}

fn read(path: &Path) -> Result<Vec<Line>, UsageError> {
    let wrong = |line: usize, problem: &dyn std::fmt::Display| {
        UsageError::new(format!("{}:{line}: {problem}", path.display())).hint("each line is {\"token_ids\":[1,2,3]}")
    };
    let reader: Box<dyn BufRead> = if path == Path::new("-") {
        Box::new(BufReader::new(std::io::stdin()))
    } else {
        let file = File::open(path)
            .map_err(|source| UsageError::new(format!("can't read the tokens {}: {source}", path.display())))?;
        Box::new(BufReader::new(file))
    };
    let mut lines = Vec::new();
    for (text, number) in reader.lines().zip(1..) {
        let text = text.map_err(|error| wrong(number, &error))?;
        if !text.trim().is_empty() {
            lines.push(serde_json::from_str(&text).map_err(|error| wrong(number, &error))?);
        }
    }
    Ok(lines)
}

/// Every token must be one of the model's, before any is scored.
fn check(path: &Path, lines: &[Line], model: &Model) -> Result<(), UsageError> {
    let (vocab_size, longest) = (model.config().vocab_size, model.config().max_position);
    for (line, number) in lines.iter().zip(1..) {
        let problem = if let Some(id) = line.token_ids.iter().find(|id| !(0..vocab_size).contains(*id)) {
            format!("token id {id} is outside the model's vocabulary of {vocab_size}")
        } else if line.token_ids.len() as i64 > longest {
            format!("{} tokens are more than the model's {longest}", line.token_ids.len())
        } else {
            continue;
        };
        return Err(UsageError::new(format!(
            "{}: sequence {number}: {problem}",
            path.display()
        )));
    }
    Ok(())
}

/// One value a token; none for the first, which nothing precedes.
fn logprobs(model: &Model, adapter: Option<&FusedLora>, token_ids: &[i64]) -> anyhow::Result<Vec<Option<f32>>> {
    let mut logprobs = vec![None; token_ids.len().min(1)];
    if token_ids.len() < 2 {
        return Ok(logprobs);
    }
    let ids = Tensor::from_slice(token_ids).to_device(model.device());
    let n_tokens = token_ids.len() as i64;
    let positions = Tensor::arange(n_tokens, (Kind::Int64, model.device()));
    let adapters = adapter.map_or(AdapterRows::Base, AdapterRows::All);
    let hidden = model.forward(&ids, &positions, &adapters, &mut CausalAttention);
    for start in (0..n_tokens - 1).step_by(ROWS as usize) {
        let n_rows = ROWS.min(n_tokens - 1 - start);
        let rows = model
            .logits(&hidden.narrow(0, start, n_rows))
            .log_softmax(-1, Kind::Float);
        let chosen = rows
            .gather(1, &ids.narrow(0, start + 1, n_rows).unsqueeze(1), false)
            .squeeze_dim(1);
        logprobs.extend(
            Vec::<f32>::try_from(chosen.to_device(tch::Device::Cpu))?
                .into_iter()
                .map(Some),
        );
    }
    Ok(logprobs)
}
