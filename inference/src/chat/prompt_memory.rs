//! Append-only prompts: the ids behind a text that was read or sampled before.
//!
//! Encoding a conversation's text again can give other ids than those that were sampled, and an agent may write a call's arguments in
//! another way than the model did. Then the next prompt wouldn't extend the last one. So after each answer the memory keeps the
//! rendered text up to the end of that turn, and the ids behind it (prompt as read, answer as sampled). A new prompt that begins with a
//! remembered text begins with those ids; only the rest is encoded. A template that changes the history gives a text that begins with
//! nothing remembered, and is obeyed.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::messages::{assistant_message, for_each_call};
use super::prompt::{Piece, PieceKind};
use super::{ChatError, ChatTokenizer, ParsedAnswer, Prompt, ToolCall};

/// Bounds of the memory; the least recently used goes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryLimits {
    /// Bytes of texts and ids.
    pub max_bytes: usize,
    /// Tool calls whose sampled arguments are kept.
    pub max_calls: usize,
}

impl Default for MemoryLimits {
    fn default() -> Self {
        Self {
            max_bytes: 128 << 20,
            max_calls: 1 << 16,
        }
    }
}

/// The memory; shared by all requests, whatever adapter they use.
#[derive(Debug, Default)]
pub struct PromptMemory {
    limits: MemoryLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// By hash of the text. Equal texts can have several entries: other ids, or another conversation.
    entries: HashMap<u64, Vec<Entry>>,
    /// Time of last use → hash of its text, the oldest first.
    by_use: BTreeMap<u64, u64>,
    clock: u64,
    bytes: usize,
    /// Arguments as sampled, by tool call id.
    arguments: HashMap<String, Arc<str>>,
    arguments_by_age: VecDeque<String>,
}

#[derive(Debug, Clone)]
struct Entry {
    text: Arc<str>,
    mask: char,
    /// Ids of the conversation's tool calls up to here: tells conversations with equal text apart.
    call_ids: Vec<String>,
    token_ids: Arc<[u32]>,
    /// The text stops before the control token that ends the turn, because that was not sampled.
    turn_is_open: bool,
    used: u64,
}

/// A finished answer, to be remembered.
#[derive(Debug, Clone, Copy)]
pub struct FinishedAnswer<'a> {
    /// The request's messages, arguments as sampled (see [`PromptMemory::restore_arguments`]).
    pub messages: &'a [Value],
    /// The request's tools.
    pub tools: Option<&'a [Value]>,
    /// The request's rendered prompt.
    pub prompt: &'a Prompt,
    /// The ids that were read.
    pub prompt_ids: &'a [u32],
    /// The ids that were sampled, the one that ended the turn included.
    pub sampled_ids: &'a [u32],
    /// The answer as the agent gets it.
    pub answer: &'a ParsedAnswer,
}

impl PromptMemory {
    /// An empty memory.
    pub fn new(limits: MemoryLimits) -> Self {
        Self {
            limits,
            state: Mutex::default(),
        }
    }

    /// Gives calls that this server sampled their arguments back letter for letter, where the agent sends the same value written in
    /// another way.
    pub fn restore_arguments(&self, messages: &mut [Value]) {
        let state = self.lock();
        for_each_call(messages, |call| {
            let Some(sampled) = call["id"].as_str().and_then(|id| state.arguments.get(id)) else {
                return;
            };
            let sent = &call["function"]["arguments"];
            let same = match sent {
                Value::String(text) => text.as_str() == &**sampled || same_json(text, sampled),
                other => serde_json::from_str::<Value>(sampled).is_ok_and(|value| value == *other),
            };
            if same {
                call["function"]["arguments"] = Value::String(sampled.to_string());
            }
        });
    }

    /// The ids of `prompt`: those remembered for the longest beginning, the rest encoded.
    ///
    /// # Errors
    /// [`ChatError::Encode`] where the tokenizer refuses the rest.
    pub fn resolve(
        &self,
        tokenizer: &ChatTokenizer,
        prompt: &Prompt,
        messages: &[Value],
    ) -> Result<Vec<u32>, ChatError> {
        let pieces = tokenizer.split(prompt.masked());
        let Some((length, entry)) = self.lock().longest(prompt, &pieces, &call_ids(messages)) else {
            return tokenizer.encode_prompt(prompt);
        };
        let mut token_ids = entry.token_ids.to_vec();
        let mut rest = &pieces[pieces.partition_point(|piece| piece.start < length)..];
        // The model may have sampled the very token that the template puts next.
        if entry.turn_is_open
            && let Some(Piece {
                kind: PieceKind::Control(next),
                ..
            }) = rest.first()
            && token_ids.last() == Some(next)
        {
            rest = &rest[1..];
        }
        tokenizer.encode_pieces(rest, Some(prompt), false, &mut token_ids)?;
        Ok(token_ids)
    }

    /// Keeps what was sampled, so that the next request of this conversation extends it. Answers that the template would not render
    /// as they are (it drops their reasoning, say) are not kept.
    pub fn remember(&self, tokenizer: &ChatTokenizer, finished: FinishedAnswer<'_>) {
        self.remember_arguments(&finished.answer.tool_calls);
        match entry_of(tokenizer, finished) {
            Ok(Some(entry)) => self.lock().insert(entry, self.limits.max_bytes),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "an answer can't be rendered as history; it isn't remembered"),
        }
    }

    fn remember_arguments(&self, calls: &[ToolCall]) {
        let mut state = self.lock();
        for call in calls {
            state.arguments.insert(call.id.clone(), call.arguments.as_str().into());
            state.arguments_by_age.push_back(call.id.clone());
        }
        while state.arguments_by_age.len() > self.limits.max_calls {
            if let Some(oldest) = state.arguments_by_age.pop_front() {
                state.arguments.remove(&oldest);
            }
        }
    }

    /// The state is consistent between statements, so a panic elsewhere does it no harm.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn entry_of(tokenizer: &ChatTokenizer, finished: FinishedAnswer<'_>) -> Result<Option<Entry>, ChatError> {
    let FinishedAnswer { prompt, answer, .. } = finished;
    let mut history = finished.messages.to_vec();
    history.push(assistant_message(answer.content.as_deref(), &answer.tool_calls));
    let rendered = tokenizer.prompt(&history, finished.tools, false)?;
    if rendered.mask() != prompt.mask() {
        return Ok(None);
    }
    let text = rendered.masked();
    let Some(turn) = text.strip_prefix(prompt.masked()) else {
        return Ok(None);
    };
    let content = answer.content.as_deref().unwrap_or_default().trim();
    if !rendered.unmask(turn).contains(content) {
        return Ok(None);
    }
    let stop_ids = tokenizer.stop_token_ids();
    let ended = finished.sampled_ids.last().is_some_and(|last| stop_ids.contains(last));
    let beginning = prompt.masked().len();
    let pieces = tokenizer.split(text);
    let end = pieces
        .iter()
        .rev()
        .take_while(|piece| piece.start >= beginning)
        .find(|piece| matches!(piece.kind, PieceKind::Control(id) if stop_ids.contains(&id)));
    // The end token that was sampled stands for the template's own; where none was sampled, none is taken as read.
    let (length, turn_is_open) = match end {
        Some(piece) if ended => (piece.end, false),
        Some(piece) => (piece.start, true),
        None => (text.len(), true),
    };
    let token_ids = [finished.prompt_ids, finished.sampled_ids].concat().into();
    let call_ids = call_ids(&history);
    Ok(Some(Entry {
        text: text[..length].into(),
        mask: prompt.mask(),
        call_ids,
        token_ids,
        turn_is_open,
        used: 0,
    }))
}

impl State {
    /// The entry with the longest text that `prompt` begins with, and the text's length.
    fn longest(&mut self, prompt: &Prompt, pieces: &[Piece<'_>], call_ids: &[String]) -> Option<(usize, Entry)> {
        let text = prompt.masked();
        let mut hash = Hash::default();
        let mut candidates = Vec::new();
        for (position, hash) in boundaries(pieces, text.len()).map(|position| (position, hash.up_to(text, position))) {
            if self.entries.contains_key(&hash) {
                candidates.push((position, hash));
            }
        }
        for (length, hash) in candidates.into_iter().rev() {
            let entries = self.entries.get_mut(&hash).into_iter().flatten();
            let fitting = entries.filter(|entry| entry.mask == prompt.mask() && *entry.text == text[..length]);
            // This conversation's own entry, else the newest.
            let best = fitting.max_by_key(|entry| {
                let own = call_ids.starts_with(&entry.call_ids);
                (own, if own { entry.call_ids.len() } else { 0 }, entry.used)
            });
            if let Some(entry) = best {
                self.clock += 1;
                self.by_use.remove(&entry.used);
                entry.used = self.clock;
                self.by_use.insert(entry.used, hash);
                return Some((length, entry.clone()));
            }
        }
        None
    }

    fn insert(&mut self, mut entry: Entry, max_bytes: usize) {
        let hash = Hash::default().up_to(&entry.text, entry.text.len());
        let same_text = self.entries.entry(hash).or_default();
        let twin = same_text
            .iter()
            .position(|other| other.text == entry.text && other.mask == entry.mask && other.call_ids == entry.call_ids);
        if let Some(position) = twin {
            let old = same_text.swap_remove(position);
            self.bytes -= old.bytes();
            self.by_use.remove(&old.used);
        }
        self.clock += 1;
        entry.used = self.clock;
        self.bytes += entry.bytes();
        self.by_use.insert(entry.used, hash);
        same_text.push(entry);
        while self.bytes > max_bytes {
            let Some((used, hash)) = self.by_use.pop_first() else {
                break;
            };
            if let Some(entries) = self.entries.get_mut(&hash) {
                let gone = entries.extract_if(.., |entry| entry.used == used);
                self.bytes -= gone.map(|entry| entry.bytes()).sum::<usize>();
                if entries.is_empty() {
                    self.entries.remove(&hash);
                }
            }
        }
    }
}

impl Entry {
    fn bytes(&self) -> usize {
        const OVERHEAD: usize = 256;
        let call_ids: usize = self.call_ids.iter().map(String::len).sum();
        self.text.len() + size_of_val(&*self.token_ids) + call_ids + OVERHEAD
    }
}

/// Where a remembered text can end: before and after each control token, and at the end; ascending, without repeats.
fn boundaries(pieces: &[Piece<'_>], length: usize) -> impl Iterator<Item = usize> {
    let controls = pieces
        .iter()
        .filter(|piece| matches!(piece.kind, PieceKind::Control(_)));
    let mut positions: Vec<usize> = controls
        .flat_map(|piece| [piece.start, piece.end])
        .chain([length])
        .collect();
    positions.dedup();
    positions.into_iter()
}

/// FNV-1a over a growing beginning of a text. Hits are compared in full, so speed is all that matters.
struct Hash {
    value: u64,
    length: usize,
}

impl Default for Hash {
    fn default() -> Self {
        Self {
            value: 0xcbf2_9ce4_8422_2325,
            length: 0,
        }
    }
}

impl Hash {
    fn up_to(&mut self, text: &str, length: usize) -> u64 {
        for byte in &text.as_bytes()[self.length..length] {
            self.value = (self.value ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
        self.length = length;
        self.value
    }
}

/// Ids of the tool calls in a history, in their order.
fn call_ids(messages: &[Value]) -> Vec<String> {
    let calls = messages
        .iter()
        .filter_map(|message| message["tool_calls"].as_array())
        .flatten();
    calls
        .filter_map(|call| call["id"].as_str())
        .map(str::to_owned)
        .collect()
}

fn same_json(left: &str, right: &str) -> bool {
    match (
        serde_json::from_str::<Value>(left),
        serde_json::from_str::<Value>(right),
    ) {
        (Ok(left), Ok(right)) => left == right,
        _ => false,
    }
}
