//! The `trainyard` executable as a user starts it.

use std::path::PathBuf;
use std::process::Command;

/// A command that starts the executable of this build; nothing of the surroundings' configuration.
///
/// # Panics
/// If the executable was not built: `cargo build --release -p cli` makes it.
pub fn trainyard() -> Command {
    let path = executable();
    assert!(
        path.is_file(),
        "{} is missing; run: cargo build --release -p cli",
        path.display()
    );
    Command::new(path)
}

/// Path of the executable beside this test's own.
pub fn executable() -> PathBuf {
    let mut path = std::env::current_exe().unwrap_or_default();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.join("trainyard")
}
