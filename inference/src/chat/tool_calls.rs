//! Sampled text → content and tool calls, in the Hermes form (`<tool_call>{"name": …, "arguments": …}</tool_call>`).
//!
//! Content streams as it comes. A call is handed on once it is complete: what has been sent can't be taken back, and text that turns
//! out not to be a call must reach the agent as content, nothing lost.

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::hermes::{CALL_CLOSE, CALL_OPEN};

/// A call that the model made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolCall {
    /// Unique; the agent sends it back with the result.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// A JSON object, letter for letter as it was sampled.
    pub arguments: String,
}

impl ToolCall {
    /// In OpenAI's form.
    pub fn to_json(&self) -> Value {
        json!({"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}})
    }
}

/// Something that the parser is sure of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ParserEvent {
    /// Text for the agent, never empty.
    Content(String),
    /// A complete call.
    Call(ToolCall),
}

/// A whole answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedAnswer {
    /// The text outside of calls; `None` where there is none but calls.
    pub content: Option<String>,
    /// The calls in their order.
    pub tool_calls: Vec<ToolCall>,
}

impl ParsedAnswer {
    /// Adds what the parser found next.
    pub fn add(&mut self, event: ParserEvent) {
        match event {
            ParserEvent::Content(text) => self.content.get_or_insert_default().push_str(&text),
            ParserEvent::Call(call) => self.tool_calls.push(call),
        }
    }

    /// Content as OpenAI has it: null beside calls, an empty string where nothing was said at all.
    pub fn content_json(&self) -> Value {
        match &self.content {
            Some(text) => json!(text),
            None if self.tool_calls.is_empty() => json!(""),
            None => Value::Null,
        }
    }
}

/// An incremental parser; how the text is cut into pieces makes no difference to what comes out in all.
#[derive(Debug, Default)]
pub struct ToolCallParser {
    /// Text that is not decided yet.
    buffer: String,
    /// Set inside a call.
    open: Option<OpenCall>,
    has_content: bool,
    has_calls: bool,
}

/// A call whose end hasn't been seen; its text is the parser's buffer.
#[derive(Debug, Default)]
struct OpenCall {
    /// White space that stood before it, which belongs to the content if this is no call after all.
    space_before: String,
    /// Bytes of the buffer that were looked at.
    scanned: usize,
    in_string: bool,
    escaped: bool,
}

impl ToolCallParser {
    /// A parser at the beginning of an answer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next text.
    pub fn push(&mut self, text: &str) -> Vec<ParserEvent> {
        self.buffer.push_str(text);
        let mut events = Vec::new();
        while self.advance(&mut events) {}
        events
    }

    /// Ends the answer: what was held back comes out, a call without its closing tag if it is complete otherwise.
    pub fn finish(&mut self) -> Vec<ParserEvent> {
        let mut events = Vec::new();
        while let Some(open) = self.open.take() {
            let inner = std::mem::take(&mut self.buffer);
            if let Some(call) = parse_call(without_partial_close(&inner)) {
                self.emit_call(call, &mut events);
            } else if let Some(end) = inner.find(CALL_CLOSE) {
                // An unbalanced quote hid the closing tag; what follows it may be a proper call.
                let end = end + CALL_CLOSE.len();
                self.emit_content(
                    &format!("{}{CALL_OPEN}{}", open.space_before, &inner[..end]),
                    &mut events,
                );
                self.buffer = inner[end..].to_owned();
                while self.advance(&mut events) {}
            } else {
                self.emit_content(&format!("{}{CALL_OPEN}{inner}", open.space_before), &mut events);
            }
        }
        let rest = std::mem::take(&mut self.buffer);
        if !(self.has_calls && rest.trim().is_empty()) {
            self.emit_content(&rest, &mut events);
        }
        events
    }

    /// Decides what can be decided; true if there may be more.
    fn advance(&mut self, events: &mut Vec<ParserEvent>) -> bool {
        match self.open.take() {
            Some(open) => self.advance_call(open, events),
            None => self.advance_text(events),
        }
    }

    fn advance_text(&mut self, events: &mut Vec<ParserEvent>) -> bool {
        if let Some(start) = self.buffer.find(CALL_OPEN) {
            let rest = self.buffer.split_off(start + CALL_OPEN.len());
            let before = std::mem::replace(&mut self.buffer, rest);
            let before = &before[..start];
            let text = before.trim_end();
            self.open = Some(OpenCall {
                space_before: before[text.len()..].to_owned(),
                ..OpenCall::default()
            });
            self.emit_content(text, events);
            return true;
        }
        let sure = self.buffer.len() - undecided(&self.buffer);
        let rest = self.buffer.split_off(sure);
        let text = std::mem::replace(&mut self.buffer, rest);
        self.emit_content(&text, events);
        false
    }

    fn advance_call(&mut self, mut open: OpenCall, events: &mut Vec<ParserEvent>) -> bool {
        let Some(end) = open.scan(&self.buffer) else {
            self.open = Some(open);
            return false;
        };
        let rest = self.buffer.split_off(end + CALL_CLOSE.len());
        let inner = std::mem::replace(&mut self.buffer, rest);
        match parse_call(&inner[..end]) {
            Some(call) => self.emit_call(call, events),
            None => self.emit_content(&format!("{}{CALL_OPEN}{inner}", open.space_before), events),
        }
        true
    }

    fn emit_call(&mut self, call: ToolCall, events: &mut Vec<ParserEvent>) {
        self.has_calls = true;
        events.push(ParserEvent::Call(call));
    }

    fn emit_content(&mut self, text: &str, events: &mut Vec<ParserEvent>) {
        // Behind calls, white space only separates; it becomes content only after content.
        let text = if self.has_calls && !self.has_content {
            text.trim_start()
        } else {
            text
        };
        if text.is_empty() {
            return;
        }
        self.has_content = true;
        match events.last_mut() {
            Some(ParserEvent::Content(last)) => last.push_str(text),
            _ => events.push(ParserEvent::Content(text.to_owned())),
        }
    }
}

impl OpenCall {
    /// Where the closing tag begins, outside of JSON strings; goes on where it stopped.
    fn scan(&mut self, buffer: &str) -> Option<usize> {
        let bytes = buffer.as_bytes();
        while self.scanned < bytes.len() {
            let rest = &bytes[self.scanned..];
            match rest[0] {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_string => self.escaped = true,
                b'"' => self.in_string = !self.in_string,
                b'<' if !self.in_string => {
                    if rest.starts_with(CALL_CLOSE.as_bytes()) {
                        return Some(self.scanned);
                    }
                    if CALL_CLOSE.as_bytes().starts_with(rest) {
                        return None;
                    }
                }
                _ => {}
            }
            self.scanned += 1;
        }
        None
    }
}

/// Length of the end of `text` that a call could still begin in: white space and a part of the opening tag.
fn undecided(text: &str) -> usize {
    let tag = (1..CALL_OPEN.len())
        .rev()
        .find(|length| text.ends_with(&CALL_OPEN[..*length]))
        .unwrap_or(0);
    let before = &text[..text.len() - tag];
    tag + before.len() - before.trim_end().len()
}

fn without_partial_close(text: &str) -> &str {
    let partial = (1..CALL_CLOSE.len())
        .rev()
        .find(|length| text.ends_with(&CALL_CLOSE[..*length]))
        .unwrap_or(0);
    &text[..text.len() - partial]
}

#[derive(Deserialize)]
struct RawCall<'a> {
    name: String,
    #[serde(borrow, default, alias = "parameters")]
    arguments: Option<&'a RawValue>,
}

/// A call, if `text` is one: an object with a name, and an object (or nothing) for arguments.
fn parse_call(text: &str) -> Option<ToolCall> {
    let call: RawCall<'_> = serde_json::from_str(text.trim()).ok()?;
    let arguments = call.arguments.map_or("{}", RawValue::get);
    if call.name.is_empty() || !arguments.starts_with('{') {
        return None;
    }
    Some(ToolCall {
        id: format!("call_{}", uuid::Uuid::now_v7().simple()),
        name: call.name,
        arguments: arguments.to_owned(),
    })
}
