//! Records to rows and back.

use rusqlite::types::FromSql;
use rusqlite::{Connection, Row, named_params};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::schema::{CALLS, CHOICES, EPISODES, TOOL_CALLS};
use super::sqlite::Fault;
use crate::call::{CallTimings, ModelCall, SampledChoice, ToolCall, Usage};
use crate::episode::{Episode, Failure};
use crate::id::PolicyVersion;

/// Inserts an episode.
pub(crate) fn insert_episode(connection: &Connection, episode: &Episode) -> Result<(), Fault> {
    connection.prepare(&EPISODES.insert())?.execute(named_params! {
        ":id": episode.id.as_str(),
        ":secret": episode.secret,
        ":scenario_id": episode.scenario_id.as_ref().map(|id| id.as_str()),
        ":group_id": episode.group_id.as_ref().map(|id| id.as_str()),
        ":split": episode.split.map(|split| split.as_str()),
        ":metadata": json(&episode.metadata),
        ":overrides": json(&episode.overrides),
        ":upstream": episode.upstream,
        ":agent_command": episode.agent_command,
        ":implicit": episode.implicit,
        ":state": episode.state.as_str(),
        ":stop_reason": episode.stop_reason,
        ":failure_cause": episode.failure.as_ref().map(|failure| failure.cause.as_str()),
        ":failure_message": episode.failure.as_ref().map(|failure| failure.message.as_str()),
        ":metrics": json(&episode.metrics),
        ":tainted": episode.tainted,
        ":opened_at_ms": episode.opened_at_ms,
        ":closed_at_ms": episode.closed_at_ms,
    })?;
    Ok(())
}

/// Selects episodes with the newest reward and the metrics of all revisions; a condition follows.
pub(crate) fn select_episodes() -> String {
    format!(
        "SELECT {}, \
         (SELECT reward FROM rewards WHERE episode_id = episodes.id ORDER BY revision DESC LIMIT 1) AS reward, \
         (SELECT json_group_array(json(metrics)) FROM \
             (SELECT metrics FROM rewards WHERE episode_id = episodes.id ORDER BY revision)) AS reward_metrics \
         FROM episodes",
        EPISODES.column_list_qualified()
    )
}

/// Reads a row of [`select_episodes`].
pub(crate) fn read_episode(row: &Row<'_>) -> Result<Episode, Fault> {
    let failure = match (
        optional_word(row, "failure_cause")?,
        get::<Option<String>>(row, "failure_message")?,
    ) {
        (Some(cause), message) => Some(Failure {
            cause,
            message: message.unwrap_or_default(),
        }),
        (None, _) => None,
    };
    let mut metrics: Map<String, Value> = read_json(row, "metrics")?;
    for revision in read_json::<Vec<Map<String, Value>>>(row, "reward_metrics")? {
        metrics.extend(revision);
    }
    Ok(Episode {
        id: get::<String>(row, "id")?.into(),
        secret: get(row, "secret")?,
        scenario_id: get::<Option<String>>(row, "scenario_id")?.map(Into::into),
        group_id: get::<Option<String>>(row, "group_id")?.map(Into::into),
        split: optional_word(row, "split")?,
        metadata: read_json(row, "metadata")?,
        overrides: read_json(row, "overrides")?,
        upstream: get(row, "upstream")?,
        agent_command: get(row, "agent_command")?,
        implicit: get(row, "implicit")?,
        state: word(row, "state")?,
        reward: get(row, "reward")?,
        metrics,
        stop_reason: get(row, "stop_reason")?,
        failure,
        tainted: get(row, "tainted")?,
        opened_at_ms: get(row, "opened_at_ms")?,
        closed_at_ms: get(row, "closed_at_ms")?,
    })
}

/// Inserts a call and its choices.
pub(crate) fn insert_call(connection: &Connection, call: &ModelCall) -> Result<(), Fault> {
    connection.prepare(&CALLS.insert())?.execute(named_params! {
        ":id": call.id.as_str(),
        ":episode_id": call.episode_id.as_str(),
        ":sequence": call.sequence,
        ":endpoint": call.endpoint.as_str(),
        ":model": call.model,
        ":upstream_model": call.upstream_model,
        ":request": json(&call.request),
        ":response": call.response.as_ref().map(json),
        ":prompt_token_ids": call.prompt_token_ids.as_deref().map(ids_to_blob),
        ":policy_version": call.policy_version.map(|version| to_integer(version.0)),
        ":sampling": json(&call.sampling),
        ":grammar_constrained": call.grammar_constrained,
        ":status": call.status.as_str(),
        ":upstream_status": call.upstream_status,
        ":error": call.error,
        ":prompt_tokens": call.usage.map(|usage| to_integer(usage.prompt_tokens)),
        ":completion_tokens": call.usage.map(|usage| to_integer(usage.completion_tokens)),
        ":received_at_ms": call.timings.received_at_ms,
        ":first_token_ms": call.timings.first_token_ms.map(to_integer),
        ":total_ms": to_integer(call.timings.total_ms),
    })?;
    let mut insert = connection.prepare(&CHOICES.insert())?;
    for choice in &call.choices {
        insert.execute(named_params! {
            ":call_id": call.id.as_str(),
            ":choice": choice.index,
            ":token_ids": ids_to_blob(&choice.token_ids),
            ":behaviour_logprobs": logprobs_to_blob(&choice.behaviour_logprobs),
            ":finish_reason": choice.finish_reason,
        })?;
    }
    Ok(())
}

/// Reads a row of calls, without the choices.
pub(crate) fn read_call(row: &Row<'_>) -> Result<ModelCall, Fault> {
    let usage = match (
        optional_unsigned(row, "prompt_tokens")?,
        optional_unsigned(row, "completion_tokens")?,
    ) {
        (Some(prompt_tokens), Some(completion_tokens)) => Some(Usage {
            prompt_tokens,
            completion_tokens,
        }),
        _ => None,
    };
    let response: Option<String> = get(row, "response")?;
    Ok(ModelCall {
        id: get::<String>(row, "id")?.into(),
        episode_id: get::<String>(row, "episode_id")?.into(),
        sequence: get(row, "sequence")?,
        endpoint: word(row, "endpoint")?,
        model: get(row, "model")?,
        upstream_model: get(row, "upstream_model")?,
        request: read_json(row, "request")?,
        response: response.map(|text| parse_json("response", &text)).transpose()?,
        prompt_token_ids: optional_ids(row, "prompt_token_ids")?,
        choices: Vec::new(),
        policy_version: optional_unsigned(row, "policy_version")?.map(PolicyVersion),
        sampling: read_json(row, "sampling")?,
        grammar_constrained: get(row, "grammar_constrained")?,
        status: word(row, "status")?,
        upstream_status: get(row, "upstream_status")?,
        error: get(row, "error")?,
        usage,
        timings: CallTimings {
            received_at_ms: get(row, "received_at_ms")?,
            first_token_ms: optional_unsigned(row, "first_token_ms")?,
            total_ms: optional_unsigned(row, "total_ms")?.unwrap_or(0),
        },
    })
}

/// Reads a row of choices.
pub(crate) fn read_choice(row: &Row<'_>) -> Result<SampledChoice, Fault> {
    Ok(SampledChoice {
        index: get(row, "choice")?,
        token_ids: blob_to_ids("token_ids", &get::<Vec<u8>>(row, "token_ids")?)?,
        behaviour_logprobs: blob_to_logprobs("behaviour_logprobs", &get::<Vec<u8>>(row, "behaviour_logprobs")?)?,
        finish_reason: get(row, "finish_reason")?,
    })
}

/// Inserts a tool call.
pub(crate) fn insert_tool_call(connection: &Connection, call: &ToolCall) -> Result<(), Fault> {
    connection.prepare(&TOOL_CALLS.insert())?.execute(named_params! {
        ":id": call.id.as_str(),
        ":episode_id": call.episode_id.as_str(),
        ":sequence": call.sequence,
        ":server": call.server,
        ":tool": call.tool,
        ":arguments": json(&call.arguments),
        ":result": call.result.as_ref().map(json),
        ":is_error": call.is_error,
        ":error": call.error,
        ":started_at_ms": call.started_at_ms,
        ":duration_ms": to_integer(call.duration_ms),
    })?;
    Ok(())
}

/// Reads a row of tool calls.
pub(crate) fn read_tool_call(row: &Row<'_>) -> Result<ToolCall, Fault> {
    let result: Option<String> = get(row, "result")?;
    Ok(ToolCall {
        id: get::<String>(row, "id")?.into(),
        episode_id: get::<String>(row, "episode_id")?.into(),
        sequence: get(row, "sequence")?,
        server: get(row, "server")?,
        tool: get(row, "tool")?,
        arguments: read_json(row, "arguments")?,
        result: result.map(|text| parse_json("result", &text)).transpose()?,
        is_error: get(row, "is_error")?,
        error: get(row, "error")?,
        started_at_ms: get(row, "started_at_ms")?,
        duration_ms: optional_unsigned(row, "duration_ms")?.unwrap_or(0),
    })
}

pub(crate) fn get<T: FromSql>(row: &Row<'_>, column: &'static str) -> Result<T, Fault> {
    Ok(row.get(column)?)
}

/// A number that is never negative.
pub(crate) fn optional_unsigned(row: &Row<'_>, column: &'static str) -> Result<Option<u64>, Fault> {
    let number: Option<i64> = get(row, column)?;
    let convert = |number: i64| {
        u64::try_from(number).map_err(|_| Fault::Value {
            column,
            problem: format!("{number} is negative"),
        })
    };
    number.map(convert).transpose()
}

pub(crate) fn optional_ids(row: &Row<'_>, column: &'static str) -> Result<Option<Vec<u32>>, Fault> {
    get::<Option<Vec<u8>>>(row, column)?
        .map(|blob| blob_to_ids(column, &blob))
        .transpose()
}

/// SQLite's integers are signed; nothing that is counted here comes near the bound.
pub(crate) fn to_integer(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// JSON text. Our values have string keys, so this can't fail.
pub(crate) fn json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned())
}

pub(crate) fn parse_json<T: DeserializeOwned>(column: &'static str, text: &str) -> Result<T, Fault> {
    serde_json::from_str(text).map_err(|error| Fault::Value {
        column,
        problem: error.to_string(),
    })
}

fn read_json<T: DeserializeOwned>(row: &Row<'_>, column: &'static str) -> Result<T, Fault> {
    parse_json(column, &get::<String>(row, column)?)
}

pub(crate) fn word<T: std::str::FromStr<Err = crate::UnknownName>>(
    row: &Row<'_>,
    column: &'static str,
) -> Result<T, Fault> {
    parse_word(column, &get::<String>(row, column)?)
}

fn optional_word<T: std::str::FromStr<Err = crate::UnknownName>>(
    row: &Row<'_>,
    column: &'static str,
) -> Result<Option<T>, Fault> {
    get::<Option<String>>(row, column)?
        .map(|text| parse_word(column, &text))
        .transpose()
}

fn parse_word<T: std::str::FromStr<Err = crate::UnknownName>>(column: &'static str, text: &str) -> Result<T, Fault> {
    text.parse().map_err(|error: crate::UnknownName| Fault::Value {
        column,
        problem: error.to_string(),
    })
}

fn ids_to_blob(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn logprobs_to_blob(logprobs: &[f32]) -> Vec<u8> {
    logprobs.iter().flat_map(|logprob| logprob.to_le_bytes()).collect()
}

fn blob_to_ids(column: &'static str, blob: &[u8]) -> Result<Vec<u32>, Fault> {
    Ok(words(column, blob)?
        .iter()
        .map(|word| u32::from_le_bytes(*word))
        .collect())
}

fn blob_to_logprobs(column: &'static str, blob: &[u8]) -> Result<Vec<f32>, Fault> {
    Ok(words(column, blob)?
        .iter()
        .map(|word| f32::from_le_bytes(*word))
        .collect())
}

fn words<'a>(column: &'static str, blob: &'a [u8]) -> Result<&'a [[u8; 4]], Fault> {
    match blob.as_chunks::<4>() {
        (words, []) => Ok(words),
        _ => Err(Fault::Value {
            column,
            problem: format!("{} bytes are not whole 4-byte numbers", blob.len()),
        }),
    }
}
