//! What the upstream is asked, given what the agent asked.

use std::sync::Arc;

use bytes::Bytes;
use serde_json::{Map, Value};
use trajectory::PolicyVersion;

use crate::answer_edit::AnswerEdit;
use crate::assemble::Keep;
use crate::error::ApiError;
use crate::json_edit::set_members;
use crate::policy::{CurrentPolicy, PolicyLease};
use crate::upstream::Upstream;

/// Fields that an episode's overrides may not touch, since the proxy or the agent depends on them.
pub(crate) const RESERVED_FIELDS: [&str; 8] = [
    "model",
    "messages",
    "stream",
    "stream_options",
    "logprobs",
    "top_logprobs",
    "return_token_ids",
    "prompt",
];

/// Two names of one limit: setting one removes the other.
const MAX_TOKENS_NAMES: [&str; 2] = ["max_tokens", "max_completion_tokens"];

/// Fields of a request that say how tokens are drawn.
const SAMPLING_FIELDS: [&str; 16] = [
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "n",
    "max_tokens",
    "max_completion_tokens",
    "min_tokens",
    "stop",
    "stop_token_ids",
    "ignore_eos",
    "presence_penalty",
    "frequency_penalty",
    "repetition_penalty",
    "logit_bias",
];

/// Fields by which a grammar is imposed on the answer.
const GRAMMAR_FIELDS: [&str; 6] = [
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
];

/// What is sent, and how the answer is treated.
pub(crate) struct Plan {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) body: Bytes,
    /// What is taken out of the answer.
    pub(crate) edit: AnswerEdit,
    /// What the recorded response keeps.
    pub(crate) keep: Keep,
    /// The agent's name for the model.
    pub(crate) model: String,
    /// The upstream's name for it.
    pub(crate) upstream_model: String,
    /// Held while the call is in flight; `None` where the policy does not answer.
    pub(crate) lease: Option<PolicyLease>,
    /// How tokens are drawn, as sent upstream.
    pub(crate) sampling: Value,
    pub(crate) grammar_constrained: bool,
}

impl Plan {
    /// The version that answers; `None` where the policy does not.
    pub(crate) fn version(&self) -> Option<PolicyVersion> {
        self.lease.as_ref().map(PolicyLease::version)
    }

    /// Plans a chat call. `text` is the body as the agent sent it and `request` the same, parsed.
    pub(crate) fn chat(
        text: &Bytes,
        request: &Value,
        upstream: &Arc<Upstream>,
        policy: &Arc<CurrentPolicy>,
        overrides: &Map<String, Value>,
    ) -> Result<Self, ApiError> {
        let model = request
            .get("model")
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned();
        let asks = |field: &str| request.get(field).and_then(Value::as_bool).unwrap_or(false);
        let keep = Keep {
            logprobs: asks("logprobs"),
            token_ids: asks("return_token_ids"),
        };
        if !upstream.policy {
            return Ok(Self {
                upstream: upstream.clone(),
                body: text.clone(),
                edit: AnswerEdit::default(),
                keep: Keep {
                    logprobs: true,
                    token_ids: true,
                },
                upstream_model: model.clone(),
                model,
                lease: None,
                sampling: sampling(request, &Map::new()),
                grammar_constrained: grammar_constrained(request),
            });
        }
        let lease = policy.lease();
        let upstream_model = policy_name(lease.version(), upstream, &model);
        let mut changes: Vec<(&str, Option<String>)> = vec![("model", Some(json_text(&upstream_model)))];
        if !keep.logprobs {
            changes.push(("logprobs", Some("true".into())));
            changes.push(("top_logprobs", Some("0".into())));
        }
        changes.push(("return_token_ids", Some("true".into())));
        for (field, value) in overrides {
            changes.push((field, Some(value.to_string())));
        }
        let max_tokens_set = MAX_TOKENS_NAMES.map(|name| overrides.contains_key(name));
        match max_tokens_set {
            [true, false] => changes.push((MAX_TOKENS_NAMES[1], None)),
            [false, true] => changes.push((MAX_TOKENS_NAMES[0], None)),
            _ => {}
        }
        let not_an_object = || ApiError::bad_request("invalid_json", "the request body is not a JSON object");
        let text = std::str::from_utf8(text).map_err(|_| not_an_object())?;
        let body = set_members(text, &changes).ok_or_else(not_an_object)?;
        let renamed = (upstream_model != model).then(|| model.clone());
        Ok(Self {
            upstream: upstream.clone(),
            body: body.into(),
            edit: AnswerEdit {
                strip_logprobs: !keep.logprobs,
                strip_token_ids: !keep.token_ids,
                model: renamed,
            },
            keep,
            upstream_model,
            model,
            lease: Some(lease),
            sampling: sampling(request, overrides),
            grammar_constrained: grammar_constrained(request),
        })
    }
}

/// The inference server's name for a policy version.
pub(crate) fn policy_name(version: PolicyVersion, upstream: &Upstream, agents_name: &str) -> String {
    match (version, &upstream.base_model) {
        (PolicyVersion(0), Some(base)) => base.clone(),
        (PolicyVersion(0), None) => agents_name.to_owned(),
        (PolicyVersion(version), _) => format!("policy@{version}"),
    }
}

fn sampling(request: &Value, overrides: &Map<String, Value>) -> Value {
    let overridden_limit = MAX_TOKENS_NAMES.iter().any(|name| overrides.contains_key(*name));
    let fields = SAMPLING_FIELDS.iter().filter_map(|field| {
        let sent = || {
            if overridden_limit && MAX_TOKENS_NAMES.contains(field) {
                None
            } else {
                request.get(*field)
            }
        };
        Some(((*field).to_owned(), overrides.get(*field).or_else(sent)?.clone()))
    });
    Value::Object(fields.collect())
}

fn grammar_constrained(request: &Value) -> bool {
    let format = request.pointer("/response_format/type").and_then(Value::as_str);
    let choice = request.get("tool_choice");
    matches!(format, Some("json_object" | "json_schema"))
        || choice.is_some_and(|choice| choice.is_object() || choice == "required")
        || GRAMMAR_FIELDS
            .iter()
            .any(|field| request.get(*field).is_some_and(|value| !value.is_null()))
}

fn json_text(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{ProxyConfig, UpstreamConfig};
    use crate::upstream::Upstreams;
    use serde_json::json;
    use trajectory::Policy;

    fn plan(body: &str, version: u64, policy: bool, overrides: Value) -> Plan {
        let config = UpstreamConfig {
            policy,
            base_model: Some("base".into()),
            ..UpstreamConfig::new("u", "http://h")
        };
        let upstreams = Upstreams::new(&ProxyConfig::new(vec![config])).unwrap();
        let policy = CurrentPolicy::new(Policy {
            version: PolicyVersion(version),
            adapter: None,
        });
        let request = serde_json::from_str(body).unwrap();
        let overrides = overrides.as_object().unwrap();
        Plan::chat(
            &Bytes::from(body.to_owned()),
            &request,
            upstreams.default(),
            &policy,
            overrides,
        )
        .unwrap()
    }

    #[test]
    fn the_policy_is_asked_for_ids_and_the_rest_stays_as_sent() {
        let body =
            "{\"model\": \"gpt-x\", \"messages\" : [], \"top_logprobs\":null,\"new_field\":{ }, \"temperature\":0.70}";
        let plan = plan(body, 3, true, json!({"temperature": 0, "max_tokens": 9}));
        assert_eq!(
            plan.body,
            "{\"model\": \"policy@3\", \"messages\" : [], \"top_logprobs\":0,\"new_field\":{ }, \"temperature\":0,\
             \"logprobs\":true,\"return_token_ids\":true,\"max_tokens\":9}"
        );
        let edit = AnswerEdit {
            strip_logprobs: true,
            strip_token_ids: true,
            model: Some("gpt-x".into()),
        };
        assert_eq!(plan.edit, edit);
        assert_eq!(plan.version(), Some(PolicyVersion(3)));
        assert_eq!(plan.sampling, json!({"temperature": 0, "max_tokens": 9}));
    }

    #[test]
    fn what_the_agent_asked_for_it_gets() {
        let body =
            r#"{"model":"a","logprobs":true,"top_logprobs":5,"return_token_ids":true,"max_completion_tokens":7}"#;
        let plan = plan(body, 0, true, json!({"max_tokens": 9}));
        assert_eq!(
            plan.body,
            r#"{"model":"base","logprobs":true,"top_logprobs":5,"return_token_ids":true,"max_tokens":9}"#
        );
        assert_eq!(
            plan.edit,
            AnswerEdit {
                model: Some("a".into()),
                ..AnswerEdit::default()
            }
        );
        assert_eq!(plan.sampling, json!({"max_tokens": 9}));
    }

    #[test]
    fn other_upstreams_get_the_request_as_it_is() {
        let body = r#"{"model":"a", "response_format":{"type":"json_object"}}"#;
        let plan = plan(body, 3, false, json!({"temperature": 0}));
        assert_eq!(plan.body, body);
        assert!(plan.edit.is_identity() && plan.version().is_none() && plan.grammar_constrained);
    }
}
