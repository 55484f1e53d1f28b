//! Which implicit episode a plain call continues.
//!
//! A call belongs to the conversation whose earlier messages and answer it begins with. Conversations are known by a
//! running hash over their messages, reduced to what survives an agent's bookkeeping: role, text, tool calls (arguments
//! as parsed JSON) and tool call ids. The caller's key is part of the hash, so two callers never share an episode.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::Value;
use trajectory::EpisodeId;

/// The ends of known conversations.
#[derive(Debug, Default)]
pub(crate) struct Threads {
    ends: Mutex<HashMap<u64, (EpisodeId, Instant)>>,
}

impl Threads {
    /// The episode whose conversation `hashes` (as of [`prefix_hashes`]) extend; the longest match wins.
    pub(crate) fn find(&self, hashes: &[u64]) -> Option<EpisodeId> {
        let ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        hashes
            .iter()
            .rev()
            .find_map(|hash| ends.get(hash))
            .map(|(episode, _)| episode.clone())
    }

    /// Notes that the episode's conversation has come to this hash.
    pub(crate) fn remember(&self, end: u64, episode: &EpisodeId) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.insert(end, (episode.clone(), Instant::now()));
    }

    /// Forgets conversations that have not grown for that long.
    pub(crate) fn forget_idle(&self, idle: Duration) {
        let mut ends = self.ends.lock().unwrap_or_else(PoisonError::into_inner);
        ends.retain(|_, (_, grown)| grown.elapsed() < idle);
    }
}

/// The hash of a named thread of this caller.
pub(crate) fn named(caller: &str, name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    ("named", caller, name).hash(&mut hasher);
    hasher.finish()
}

/// One running hash for each prefix of the messages, the shortest first.
pub(crate) fn prefix_hashes(caller: &str, messages: &[Value]) -> Vec<u64> {
    let mut hasher = DefaultHasher::new();
    caller.hash(&mut hasher);
    messages
        .iter()
        .map(|message| {
            hash_message(message, &mut hasher);
            hasher.clone().finish()
        })
        .collect()
}

/// The hash of a conversation that ends with `answer`.
pub(crate) fn end_hash(caller: &str, messages: &[Value], answer: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    caller.hash(&mut hasher);
    messages
        .iter()
        .chain([answer])
        .for_each(|message| hash_message(message, &mut hasher));
    hasher.finish()
}

fn hash_message(message: &Value, hasher: &mut DefaultHasher) {
    let text = |key: &str| message.get(key).and_then(Value::as_str).unwrap_or_default();
    text("role").hash(hasher);
    text("tool_call_id").hash(hasher);
    match message.get("content") {
        None | Some(Value::Null) => "".hash(hasher),
        Some(Value::String(content)) => content.hash(hasher),
        // A single text part is the same message as plain text.
        Some(Value::Array(parts)) => match parts.as_slice() {
            [part] if part.get("type").is_some_and(|kind| kind == "text") => {
                part.get("text")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .hash(hasher);
            }
            parts => parts.iter().for_each(|part| hash_value(part, hasher)),
        },
        Some(other) => hash_value(other, hasher),
    }
    for call in message
        .get("tool_calls")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let field = |pointer: &str| call.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        field("/id").hash(hasher);
        field("/function/name").hash(hasher);
        let arguments = field("/function/arguments");
        match serde_json::from_str::<Value>(arguments) {
            Ok(arguments) => hash_value(&arguments, hasher),
            Err(_) => arguments.hash(hasher),
        }
    }
}

/// Equal for values that differ in the order of keys only.
fn hash_value(value: &Value, hasher: &mut DefaultHasher) {
    match value {
        Value::Object(object) => {
            let mut members: Vec<_> = object.iter().collect();
            members.sort_unstable_by_key(|(key, _)| key.as_str());
            members.len().hash(hasher);
            for (key, value) in members {
                key.hash(hasher);
                hash_value(value, hasher);
            }
        }
        Value::Array(list) => {
            list.len().hash(hasher);
            list.iter().for_each(|value| hash_value(value, hasher));
        }
        scalar => scalar.hash(hasher),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_request_that_extends_messages_and_answer_continues() {
        let threads = Threads::default();
        let first = [json!({"role": "user", "content": "hi"})];
        let answer = json!({"role": "assistant", "content": null, "refusal": null, "tool_calls":
            [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1, \"y\": 2}"}}]});
        let episode = EpisodeId::new();
        assert_eq!(threads.find(&prefix_hashes("key", &first)), None);
        threads.remember(end_hash("key", &first, &answer), &episode);
        let second = [
            json!({"role": "user", "content": [{"type": "text", "text": "hi"}]}),
            json!({"role": "assistant", "tool_calls":
                [{"id": "a", "function": {"name": "f", "arguments": "{\"y\":2,\"x\":1}"}}]}),
            json!({"role": "tool", "tool_call_id": "a", "content": "1"}),
        ];
        assert_eq!(threads.find(&prefix_hashes("key", &second)), Some(episode));
        assert_eq!(threads.find(&prefix_hashes("another key", &second)), None);
        assert_eq!(
            threads.find(&prefix_hashes("key", &first)),
            None,
            "the same beginning is another conversation"
        );
        threads.forget_idle(Duration::ZERO);
        assert_eq!(threads.find(&prefix_hashes("key", &second)), None);
    }
}
