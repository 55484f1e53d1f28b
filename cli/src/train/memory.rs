//! The memory of the whole process tree, sampled while a run goes on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// How often the tree is measured. Agents live for seconds, so their peak is seen.
const INTERVAL: Duration = Duration::from_millis(500);

/// Peak of the proportional set size of this process and all its descendants, in bytes.
///
/// Proportional set size counts a page that forked agents share once in total, where the sum of resident sizes would
/// count it once an agent. Where the kernel doesn't tell, the resident size of this process stands in.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeakMemory(Arc<AtomicU64>);

impl PeakMemory {
    /// Starts sampling until `stop`; `known` is the peak of an earlier part of the same run.
    pub(crate) fn watch(known: u64, stop: CancellationToken) -> Self {
        let peak = Self(Arc::new(AtomicU64::new(known)));
        let sampled = peak.clone();
        std::thread::spawn(move || {
            while !stop.is_cancelled() {
                sampled.sample();
                std::thread::sleep(INTERVAL);
            }
        });
        peak
    }

    /// Largest sum seen so far, in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.sample();
        self.0.load(Ordering::Relaxed)
    }

    fn sample(&self) {
        let total = process_tree(std::process::id())
            .into_iter()
            .map(proportional_set_size)
            .sum::<u64>();
        self.0.fetch_max(total, Ordering::Relaxed);
    }
}

/// This process and its descendants.
fn process_tree(root: u32) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        if let Some(parent) = parent_of(pid) {
            children.entry(parent).or_default().push(pid);
        }
    }
    let (mut tree, mut next) = (vec![root], 0);
    while let Some(pid) = tree.get(next).copied() {
        tree.extend(children.remove(&pid).unwrap_or_default());
        next += 1;
    }
    tree
}

fn parent_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The command may hold spaces and parentheses; the fields follow the last parenthesis: state, parent.
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn proportional_set_size(pid: u32) -> u64 {
    let kilobytes = |file: &str, key: &str| -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(key))?;
        line.split_whitespace().next()?.parse().ok()
    };
    1024 * kilobytes("smaps_rollup", "Pss:")
        .or_else(|| kilobytes("status", "VmRSS:"))
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_this_process_is_seen() {
        let stop = CancellationToken::new();
        let peak = PeakMemory::watch(0, stop.clone());
        let block = vec![1u8; 64 << 20];
        assert!(peak.bytes() > 64 << 20);
        assert!(block[1 << 20] == 1);
        stop.cancel();
    }

    #[test]
    fn a_child_belongs_to_the_tree() {
        let mut child = std::process::Command::new("sleep").arg("5").spawn().unwrap();
        assert!(process_tree(std::process::id()).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
