//! The token view of one branch of an episode.

use serde::{Deserialize, Serialize};

use crate::id::PolicyVersion;

/// The tokens of one branch, with what the policy did at each place. The four arrays have equal length; the last three
/// are `false` or `None` where the policy didn't sample the token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    /// Ids as the server read and sampled them.
    pub token_ids: Vec<u32>,
    /// True where the policy sampled the token, and this branch is the one that trains it. 0 or 1 in JSON.
    #[serde(with = "mask")]
    pub sampled_mask: Vec<bool>,
    /// Logprob of each sampled token as its server reported it; also `None` where that server gave none.
    pub behaviour_logprobs: Vec<Option<f32>>,
    /// The version that sampled each token; also `None` where it wasn't the policy.
    pub policy_versions: Vec<Option<PolicyVersion>>,
}

impl Trajectory {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        self.token_ids.len()
    }

    /// Whether there are no tokens.
    pub fn is_empty(&self) -> bool {
        self.token_ids.is_empty()
    }

    /// Number of tokens that the policy sampled.
    pub fn n_sampled(&self) -> usize {
        self.sampled_mask.iter().filter(|sampled| **sampled).count()
    }

    /// Whether every sampled token has a behaviour logprob, which importance ratios need.
    pub fn has_behaviour_logprobs(&self) -> bool {
        self.sampled_mask
            .iter()
            .zip(&self.behaviour_logprobs)
            .all(|(sampled, logprob)| !sampled || logprob.is_some())
    }

    /// The oldest version that sampled a token; `None` where no version is known.
    pub fn oldest_version(&self) -> Option<PolicyVersion> {
        self.policy_versions.iter().flatten().min().copied()
    }

    /// What is wrong with the arrays, if anything: unequal lengths, or values where nothing was sampled.
    pub(crate) fn defect(&self) -> Option<String> {
        let n = self.token_ids.len();
        let lengths = [
            ("sampled_mask", self.sampled_mask.len()),
            ("behaviour_logprobs", self.behaviour_logprobs.len()),
            ("policy_versions", self.policy_versions.len()),
        ];
        if let Some((name, length)) = lengths.into_iter().find(|(_, length)| *length != n) {
            return Some(format!("token_ids has {n} entries and {name} has {length}"));
        }
        let stray = (0..n).find(|&place| {
            !self.sampled_mask[place]
                && (self.behaviour_logprobs[place].is_some() || self.policy_versions[place].is_some())
        });
        stray.map(|place| format!("token {place} isn't sampled but has a behaviour logprob or a policy version"))
    }

    /// Appends tokens that were read.
    pub(crate) fn push_read(&mut self, token_ids: &[u32]) {
        let length = self.token_ids.len() + token_ids.len();
        self.token_ids.extend_from_slice(token_ids);
        self.sampled_mask.resize(length, false);
        self.behaviour_logprobs.resize(length, None);
        self.policy_versions.resize(length, None);
    }

    /// Appends tokens that were sampled; `logprobs` of another length than `token_ids` are taken as not given.
    pub(crate) fn push_sampled(&mut self, token_ids: &[u32], logprobs: &[f32], version: Option<PolicyVersion>) {
        let length = self.token_ids.len() + token_ids.len();
        self.token_ids.extend_from_slice(token_ids);
        self.sampled_mask.resize(length, true);
        if logprobs.len() == token_ids.len() {
            self.behaviour_logprobs.extend(logprobs.iter().copied().map(Some));
        } else {
            self.behaviour_logprobs.resize(length, None);
        }
        self.policy_versions.resize(length, version);
    }
}

/// The mask as 0 and 1; booleans are read too.
mod mask {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Bit {
        Flag(bool),
        Number(u8),
    }

    pub(super) fn serialize<S: Serializer>(mask: &[bool], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(mask.iter().map(|sampled| u8::from(*sampled)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<bool>, D::Error> {
        let bits = Vec::<Bit>::deserialize(deserializer)?;
        bits.into_iter()
            .map(|bit| match bit {
                Bit::Flag(flag) => Ok(flag),
                Bit::Number(0) => Ok(false),
                Bit::Number(1) => Ok(true),
                Bit::Number(other) => Err(serde::de::Error::custom(format!(
                    "sampled_mask holds {other}; use 0 or 1"
                ))),
            })
            .collect()
    }
}
