//! Speed and memory of one GRPO step on agent-like data: `cargo bench -p trainer --bench step -- MODEL [GROUPS] [micro_batch_tokens]`.
//!
//! Groups of 8 episodes share a system prompt with tool schemas (600 tokens) and a question (25); each samples one of
//! several tool calls (35), reads its result (220) and samples an answer (25). Tokens are random: time doesn't depend
//! on them.

use std::path::Path;

use inference::model::{LoadOptions, Model};
use trainer::{RawTrainerConfig, Trainer, TrainerConfig};
use trajectory::{EpisodeId, GroupEpisode, GroupId, PolicyVersion, Trajectory, TrajectoryGroup};

/// A small generator, so that the data is the same everywhere.
struct Tokens(u64);

impl Tokens {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }

    fn some(&mut self, count: usize) -> Vec<u32> {
        (0..count).map(|_| self.next(40_000) as u32).collect()
    }
}

fn push(trajectory: &mut Trajectory, token_ids: &[u32], sampled: bool) {
    for &token_id in token_ids {
        trajectory.token_ids.push(token_id);
        trajectory.sampled_mask.push(sampled);
        trajectory.behaviour_logprobs.push(sampled.then_some(-2.0));
        trajectory.policy_versions.push(sampled.then_some(PolicyVersion(1)));
    }
}

fn groups(count: usize) -> Vec<TrajectoryGroup> {
    let mut tokens = Tokens(1);
    let system = tokens.some(600);
    (0..count)
        .map(|_| {
            let question = tokens.some(25);
            let calls: Vec<(Vec<u32>, Vec<u32>)> = (0..6).map(|_| (tokens.some(35), tokens.some(220))).collect();
            let episodes = (0..8).map(|episode| {
                let mut trajectory = Trajectory::default();
                push(&mut trajectory, &system, false);
                push(&mut trajectory, &question, false);
                let (call, result) = &calls[tokens.next(6) as usize];
                push(&mut trajectory, call, true);
                push(&mut trajectory, result, false);
                push(&mut trajectory, &tokens.some(25), true);
                GroupEpisode {
                    episode_id: EpisodeId::new(),
                    reward: f64::from(episode % 3),
                    metrics: serde_json::Map::new(),
                    trajectories: vec![trajectory],
                }
            });
            TrajectoryGroup {
                group_id: GroupId::new(),
                scenario_id: None,
                episodes: episodes.collect(),
                n_failed: 0,
            }
        })
        .collect()
}

/// Peak and present resident memory, as the kernel words it.
fn memory() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let lines: Vec<String> = status
        .lines()
        .filter(|line| line.starts_with("VmHWM") || line.starts_with("VmRSS"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    lines.join(", ")
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with("--"))
        .collect();
    let Some(model) = arguments.first() else {
        eprintln!("give the path of a model: a Hugging Face folder or a GGUF file");
        return Ok(());
    };
    let number = |index: usize, default: usize| {
        arguments
            .get(index)
            .and_then(|text| text.parse().ok())
            .unwrap_or(default)
    };
    let model = Model::load(Path::new(model), &LoadOptions::default())?;
    let raw = RawTrainerConfig {
        micro_batch_tokens: number(2, 1024),
        ..RawTrainerConfig::default()
    };
    let mut trainer = Trainer::new(model, TrainerConfig::try_from(raw)?, 1)?;
    eprintln!("loaded: {}", memory());
    let groups = groups(number(1, 4));
    for _ in 0..2 {
        let report = trainer.grpo_step(&groups, PolicyVersion(0))?;
        eprintln!(
            "{} distinct of {} tokens, {} sampled, {:.2} s: {:.0} distinct tokens/s, {:.0} tokens/s, loss {:.4}, {}",
            report.tokens_distinct,
            report.tokens_total,
            report.tokens_sampled,
            report.seconds,
            report.tokens_distinct as f64 / report.seconds,
            report.tokens_total as f64 / report.seconds,
            report.loss,
            memory(),
        );
    }
    Ok(())
}
