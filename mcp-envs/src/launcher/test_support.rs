//! What tests of agents share: scripts on disk, and a look at whether a process has ended.

use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A Python script in a folder of its own.
pub(crate) struct Script {
    folder: tempfile::TempDir,
}

impl Script {
    pub(crate) fn new(source: &str) -> Self {
        let script = Self {
            folder: tempfile::tempdir().unwrap(),
        };
        std::fs::create_dir(script.packages()).unwrap();
        std::fs::create_dir(script.folder.path().join("script")).unwrap();
        script.beside("agent", source);
        script
    }

    /// A module in the same folder as the script.
    pub(crate) fn beside(&self, name: &str, source: &str) {
        std::fs::write(self.folder.path().join("script").join(format!("{name}.py")), source).unwrap();
    }

    /// A module elsewhere, as an installed one would be.
    pub(crate) fn package(&self, name: &str, source: &str) {
        std::fs::write(self.packages().join(format!("{name}.py")), source).unwrap();
    }

    pub(crate) fn packages(&self) -> PathBuf {
        self.folder.path().join("packages")
    }

    pub(crate) fn command(&self) -> Vec<String> {
        vec![
            "python3".into(),
            "-B".into(),
            self.folder.path().join("script/agent.py").display().to_string(),
        ]
    }
}

/// Fails unless the process ends within two seconds. One that only waits to be reaped counts as ended.
pub(crate) fn assert_ended(pid: u32) {
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
        if matches!(state, None | Some('Z' | 'X')) {
            return;
        }
        assert!(Instant::now() < deadline, "process {pid} is still there: {stat}");
        std::thread::yield_now();
    }
}
