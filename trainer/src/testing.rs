//! Tiny models, adapters and groups for this crate's tests.

use inference::model::{LoadOptions, LoraAdapter, Model, ModelConfig};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tch::{Kind, Tensor};
use trajectory::{EpisodeId, GroupEpisode, GroupId, PolicyVersion, Trajectory, TrajectoryGroup};

use crate::config::{RawTrainerConfig, TrainerConfig};
use crate::step::Trainer;

/// Sizes that differ from each other, so that a swapped dimension shows.
pub(crate) fn tiny_config() -> ModelConfig {
    ModelConfig {
        vocab_size: 37,
        hidden_size: 24,
        intermediate_size: 40,
        n_layers: 3,
        n_heads: 6,
        n_kv_heads: 2,
        head_dim: 8,
        rms_norm_eps: 1e-5,
        rope_theta: 10_000.0,
        rope_scaling: None,
        max_position: 256,
        tie_word_embeddings: true,
    }
}

pub(crate) fn tiny_model() -> Model {
    // Tests run side by side; a thread team for each of them would only wait for itself.
    tch::set_num_threads(1);
    Model::random(tiny_config(), 7, &LoadOptions::default())
}

pub(crate) fn raw_config() -> RawTrainerConfig {
    RawTrainerConfig {
        base_model: "tiny".to_owned(),
        rank: 4,
        alpha: 8.0,
        ..RawTrainerConfig::default()
    }
}

pub(crate) fn tiny_trainer(raw: RawTrainerConfig) -> Trainer {
    Trainer::new(tiny_model(), TrainerConfig::try_from(raw).unwrap(), 11).unwrap()
}

/// A new adapter's B is 0, so half of its gradients are; this one has none of that.
pub(crate) fn fill_randomly(adapter: &LoraAdapter, seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    tch::no_grad(|| {
        for (_, mut parameter) in adapter.parameters() {
            let values: Vec<f32> = (0..parameter.numel()).map(|_| random.random_range(-0.2..0.2)).collect();
            parameter.copy_(&Tensor::from_slice(&values).view(parameter.size()[..].as_ref()));
        }
    });
}

pub(crate) fn trajectory(token_ids: &[u32], sampled: &[usize], logprobs: &[f32]) -> Trajectory {
    let mut trajectory = Trajectory {
        token_ids: token_ids.to_vec(),
        sampled_mask: vec![false; token_ids.len()],
        behaviour_logprobs: vec![None; token_ids.len()],
        policy_versions: vec![None; token_ids.len()],
    };
    for (&position, &logprob) in sampled.iter().zip(logprobs) {
        trajectory.sampled_mask[position] = true;
        trajectory.behaviour_logprobs[position] = Some(logprob);
        trajectory.policy_versions[position] = Some(PolicyVersion(1));
    }
    trajectory
}

/// A group with one episode for each (reward, trajectory).
pub(crate) fn group(episodes: impl IntoIterator<Item = (f64, Trajectory)>) -> TrajectoryGroup {
    TrajectoryGroup {
        group_id: GroupId::new(),
        scenario_id: None,
        episodes: episodes
            .into_iter()
            .map(|(reward, trajectory)| GroupEpisode {
                episode_id: EpisodeId::new(),
                reward,
                metrics: serde_json::Map::new(),
                trajectories: vec![trajectory],
            })
            .collect(),
        n_failed: 0,
    }
}

pub(crate) fn weights(trainer: &Trainer) -> Vec<(String, Tensor)> {
    trainer
        .adapter()
        .parameters()
        .into_iter()
        .map(|(name, tensor)| (name, tensor.detach().copy()))
        .collect()
}

pub(crate) fn gradients(adapter: &LoraAdapter) -> Vec<(String, Tensor)> {
    adapter
        .parameters()
        .into_iter()
        .map(|(name, tensor)| (name, tensor.grad().copy()))
        .collect()
}

/// |left − right| / |right| of the whole tensor, in double precision.
pub(crate) fn relative_difference(left: &Tensor, right: &Tensor) -> f64 {
    let norm = |tensor: &Tensor| {
        tensor
            .to_kind(Kind::Double)
            .square()
            .sum(Kind::Double)
            .sqrt()
            .double_value(&[])
    };
    norm(&(left - right)) / norm(right)
}

/// Trajectories that branch anywhere: each new one copies a random prefix of an earlier one, at times all of it, and
/// goes on at random. Sampled places are random and may be shared.
pub(crate) fn random_tree(seed: u64, n_trajectories: usize) -> Vec<Trajectory> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut trajectories: Vec<Trajectory> = Vec::new();
    while trajectories.len() < n_trajectories {
        let mut token_ids: Vec<u32> = Vec::new();
        if !trajectories.is_empty() && random.random_bool(0.9) {
            let other = &trajectories[random.random_range(0..trajectories.len())].token_ids;
            token_ids.extend_from_slice(&other[..random.random_range(1..=other.len())]);
        }
        let n_new = if random.random_bool(0.3) {
            random.random_range(0..2)
        } else {
            random.random_range(1..14)
        };
        token_ids.extend((0..n_new).map(|_| random.random_range(0..37u32)));
        if token_ids.len() < 2 {
            continue;
        }
        let mut sampled: Vec<usize> = (1..token_ids.len()).filter(|_| random.random_bool(0.4)).collect();
        if sampled.is_empty() {
            sampled.push(token_ids.len() - 1);
        }
        let logprobs: Vec<f32> = sampled.iter().map(|_| random.random_range(-5.0..-2.5)).collect();
        trajectories.push(trajectory(&token_ids, &sampled, &logprobs));
    }
    trajectories
}
