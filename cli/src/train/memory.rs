//! The memory of the whole process tree, sampled while a run goes on.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// How often the tree is measured. Agents live for seconds, so their peak is seen.
const INTERVAL: Duration = Duration::from_secs(1);

/// Peak of the resident size of this process and the proportional set size of all its descendants, in bytes.
///
/// Proportional set size counts a page that forked agents share once in total, where the sum of resident sizes would
/// count it once an agent. The kernel walks a process's pages for it: gigabytes in this process, which shares next to
/// nothing with anybody, so its resident size is taken, which the kernel keeps anyway.
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
        let this = std::process::id();
        let command = command_line(this);
        let size = |pid| match pid == this {
            true => resident_size(pid),
            // A child that has not yet become another program still has this one's memory, which would count twice.
            false if command_line(pid) == command => 0,
            false => proportional_set_size(pid),
        };
        let total = process_tree(this).into_iter().map(size).sum::<u64>();
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

/// `None` for a process that has ended.
fn command_line(pid: u32) -> Option<Vec<u8>> {
    std::fs::read(format!("/proc/{pid}/cmdline")).ok()
}

/// 0 for a process that has ended.
fn resident_size(pid: u32) -> u64 {
    bytes_in(pid, "status", "VmRSS:").unwrap_or(0)
}

/// The resident size where the kernel doesn't tell.
fn proportional_set_size(pid: u32) -> u64 {
    bytes_in(pid, "smaps_rollup", "Pss:").unwrap_or_else(|| resident_size(pid))
}

/// The field `key` of one of a process's files, which count in KiB.
fn bytes_in(pid: u32, file: &str, key: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/{file}")).ok()?;
    let field = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = field.split_whitespace().next()?.parse().ok()?;
    Some(1024 * kibibytes)
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
