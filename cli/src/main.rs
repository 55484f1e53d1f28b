//! The `trainyard` command: reads arguments, starts the parts that the other crates bring, and maps the end to an exit code.
//!
//! Reading order: `args.rs` (what can be asked), `commands/` (one file a command), `train/` (the whole loop),
//! `config.rs` (a run's configuration), `failure.rs` (what a user can mend), `telemetry.rs`, `shutdown.rs`.

#![forbid(unsafe_code)]

mod args;
mod commands;
#[cfg(feature = "torch")]
mod config;
#[cfg(feature = "torch")]
mod demonstration;
mod failure;
#[cfg(feature = "torch")]
mod recorded;
mod shutdown;
mod suggestion;
mod telemetry;
mod toml_file;
#[cfg(feature = "torch")]
mod train;

use std::process::ExitCode;

use clap::Parser;

use crate::args::Arguments;
use crate::failure::UsageError;

/// Wrong usage or configuration.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // clap prints help to standard output and errors to standard error, with its own exit code 2.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    telemetry::start();
    // Both reqwest and rustls leave the choice of cryptography to the program.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(&anyhow::Error::from(error).context("can't start the runtime")),
    };
    let result = runtime.block_on(commands::run(arguments.command));
    // A blocking thread may wait for input that never comes (standard input of a tool server).
    runtime.shutdown_background();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(&error),
    }
}

/// Prints what went wrong, with its causes and what to do.
fn fail(error: &anyhow::Error) -> ExitCode {
    let usage = error.chain().find_map(|cause| cause.downcast_ref::<UsageError>());
    let hint = usage.and_then(UsageError::advice);
    let mut text = String::from("error: ");
    let mut last = String::new();
    for (position, cause) in error.chain().enumerate() {
        let message = cause.to_string();
        // Some libraries repeat their source in their own message.
        if position > 0 && last.contains(&message) {
            continue;
        }
        if position > 0 {
            text.push_str(": ");
        }
        text.push_str(&message);
        last = message;
    }
    if let Some(hint) = hint {
        text.push_str("\n  hint: ");
        text.push_str(hint);
    }
    telemetry::print_error(&text);
    ExitCode::from(if usage.is_some() { USAGE } else { 1 })
}
