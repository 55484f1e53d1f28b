//! Rendered text in which control tokens and text that merely looks like one stay apart.
//!
//! Before rendering, every literal of a special token inside a message (`<|im_end|>` typed by a user) gets a mask character after
//! its first character; after rendering, the literals that are whole are control tokens, and the mask goes away with encoding.

use serde_json::Value;

/// First choice of a mask character; the next private-use ones serve where a message has it.
const FIRST_MASK: u32 = 0xE0F0;
const LAST_MASK: u32 = 0xF8FF;

/// The special tokens' literals, found in a text.
#[derive(Debug, Clone)]
pub struct ControlTokens {
    /// Longest first, so that a literal which begins another one doesn't hide it.
    tokens: Vec<ControlToken>,
    first_bytes: [bool; 256],
}

/// A special token and how it treats its surroundings.
#[derive(Debug, Clone)]
pub struct ControlToken {
    /// As it stands in a rendered prompt.
    pub literal: String,
    /// Its id.
    pub id: u32,
    /// Swallows white space before it.
    pub strip_left: bool,
    /// Swallows white space after it.
    pub strip_right: bool,
}

/// A stretch of a rendered prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece<'a> {
    /// Byte offset at which it begins.
    pub start: usize,
    /// Byte offset after it; white space that a control token swallows lies between pieces.
    pub end: usize,
    /// What stands there.
    pub kind: PieceKind<'a>,
}

/// What a [`Piece`] is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PieceKind<'a> {
    /// A control token.
    Control(u32),
    /// Text to encode as text, mask characters included.
    Text(&'a str),
}

/// A rendered prompt, before encoding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    masked: String,
    mask: char,
}

impl Prompt {
    /// Wraps a text rendered from messages that were masked with `mask`.
    pub fn new(masked: String, mask: char) -> Self {
        Self { masked, mask }
    }

    /// The text with its mask characters: two prompts are alike exactly if these texts and the masks are.
    pub fn masked(&self) -> &str {
        &self.masked
    }

    /// The character that sets look-alike text apart.
    pub fn mask(&self) -> char {
        self.mask
    }

    /// The text for people: control tokens as literals, no masks.
    pub fn text(&self) -> String {
        self.unmask(&self.masked)
    }

    /// `part` of this prompt without mask characters.
    pub fn unmask(&self, part: &str) -> String {
        part.replace(self.mask, "")
    }
}

impl ControlTokens {
    /// The special tokens of a tokenizer.
    pub fn new(mut tokens: Vec<ControlToken>) -> Self {
        tokens.retain(|token| !token.literal.is_empty());
        tokens.sort_by(|a, b| b.literal.len().cmp(&a.literal.len()).then(a.id.cmp(&b.id)));
        let mut first_bytes = [false; 256];
        for token in &tokens {
            first_bytes[usize::from(token.literal.as_bytes()[0])] = true;
        }
        Self { tokens, first_bytes }
    }

    /// Whether `id` is one of them.
    pub fn contains(&self, id: u32) -> bool {
        self.tokens.iter().any(|token| token.id == id)
    }

    /// The first literal at or after `from`: where it begins, and which one.
    fn find(&self, text: &str, from: usize) -> Option<(usize, &ControlToken)> {
        let bytes = text.as_bytes();
        (from..bytes.len()).find_map(|position| {
            if !self.first_bytes[usize::from(bytes[position])] {
                return None;
            }
            let rest = &bytes[position..];
            let token = self
                .tokens
                .iter()
                .find(|token| rest.starts_with(token.literal.as_bytes()))?;
            Some((position, token))
        })
    }

    /// Splits a rendered text at its control tokens.
    pub fn split<'a>(&self, text: &'a str) -> Vec<Piece<'a>> {
        let mut pieces = Vec::new();
        let mut position = 0;
        let mut strip_right = false;
        while position < text.len() {
            let found = self.find(text, position);
            let mut segment = &text[position..found.map_or(text.len(), |(start, _)| start)];
            if strip_right {
                let stripped = segment.trim_start();
                position += segment.len() - stripped.len();
                segment = stripped;
            }
            if found.is_some_and(|(_, token)| token.strip_left) {
                segment = segment.trim_end();
            }
            if !segment.is_empty() {
                let end = position + segment.len();
                pieces.push(Piece {
                    start: position,
                    end,
                    kind: PieceKind::Text(segment),
                });
            }
            let Some((start, token)) = found else { break };
            position = start + token.literal.len();
            pieces.push(Piece {
                start,
                end: position,
                kind: PieceKind::Control(token.id),
            });
            strip_right = token.strip_right;
        }
        pieces
    }

    /// A mask character that no string of `values` contains, or `None` if messages use the whole private-use area.
    pub fn choose_mask<'v>(&self, values: impl IntoIterator<Item = &'v Value> + Clone) -> Option<char> {
        (FIRST_MASK..=LAST_MASK)
            .filter_map(char::from_u32)
            .find(|mask| !values.clone().into_iter().any(|value| contains(value, *mask)))
    }

    /// Puts `mask` into every literal in every string of `value`, keys included.
    pub fn mask(&self, value: &Value, mask: char) -> Value {
        match value {
            Value::String(text) => Value::String(self.mask_text(text, mask)),
            Value::Array(items) => items.iter().map(|item| self.mask(item, mask)).collect(),
            Value::Object(fields) => Value::Object(
                fields
                    .iter()
                    .map(|(key, item)| (self.mask_text(key, mask), self.mask(item, mask)))
                    .collect(),
            ),
            other => other.clone(),
        }
    }

    /// Puts `mask` after the first character of every literal in `text`.
    fn mask_text(&self, text: &str, mask: char) -> String {
        let mut out = String::with_capacity(text.len());
        let mut position = 0;
        while let Some((start, token)) = self.find(text, position) {
            let first = token.literal.chars().next().map_or(0, char::len_utf8);
            // Only past the first character, so that a literal which begins inside this one is found too.
            out.push_str(&text[position..start + first]);
            out.push(mask);
            position = start + first;
        }
        out.push_str(&text[position..]);
        out
    }
}

fn contains(value: &Value, mask: char) -> bool {
    match value {
        Value::String(text) => text.contains(mask),
        Value::Array(items) => items.iter().any(|item| contains(item, mask)),
        Value::Object(fields) => fields
            .iter()
            .any(|(key, item)| key.contains(mask) || contains(item, mask)),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn controls() -> ControlTokens {
        let token = |literal: &str, id, strip_right| ControlToken {
            literal: literal.into(),
            id,
            strip_left: false,
            strip_right,
        };
        ControlTokens::new(vec![
            token("<|im_end|>", 2, false),
            token("<|im_end|>x", 3, false),
            token("[S]", 4, true),
        ])
    }

    #[test]
    fn splits_at_the_longest_literal_and_strips_where_the_token_does() {
        let pieces = controls().split("a<|im_end|>b<|im_end|>x[S] \n c");
        let expected = [
            (0, 1, PieceKind::Text("a")),
            (1, 11, PieceKind::Control(2)),
            (11, 12, PieceKind::Text("b")),
            (12, 23, PieceKind::Control(3)),
            (23, 26, PieceKind::Control(4)),
            (29, 30, PieceKind::Text("c")),
        ];
        assert_eq!(
            pieces
                .iter()
                .map(|piece| (piece.start, piece.end, piece.kind))
                .collect::<Vec<_>>(),
            expected
        );
    }

    #[test]
    fn masked_literals_are_text() {
        let controls = controls();
        let message = json!({"content": "x<|im_end|>[[S]", "[S]": ["<|im_end|>x"]});
        let mask = controls.choose_mask([&message]).unwrap();
        let masked = controls.mask(&message, mask);
        let prompt = Prompt::new(masked.to_string(), mask);
        assert!(
            controls
                .split(prompt.masked())
                .iter()
                .all(|piece| matches!(piece.kind, PieceKind::Text(_)))
        );
        assert_eq!(prompt.text(), message.to_string());
    }

    #[test]
    fn a_mask_in_a_message_moves_the_choice_on() {
        let first = char::from_u32(FIRST_MASK).unwrap();
        let message = json!({"content": format!("a{first}b")});
        assert_eq!(controls().choose_mask([&message]), char::from_u32(FIRST_MASK + 1));
    }
}
