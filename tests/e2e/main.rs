//! Whole-system tests, one behaviour area a file.
#![expect(
    clippy::unwrap_used,
    reason = "clippy.toml allows it in tests, and the helpers here are used by tests alone"
)]

mod failures;
mod interruptions;
mod ring;
mod tidy;
