//! Text of tokens as they are sampled.

use super::ChatTokenizer;

/// How many tokens can hold back text: a character has at most four bytes, so more than this many unfinished ones are no character.
const LONGEST_CHARACTER: usize = 4;

/// Turns a stream of ids into text. A character whose bytes are spread over tokens comes out with its last one; control tokens give
/// no text.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// The last tokens; those before `read` have given their text and stay as context, since a token's text can depend on the
    /// one before it.
    window: Vec<u32>,
    read: usize,
    read_text: String,
}

impl Detokenizer {
    /// A stream that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that `token_id` completes, often empty.
    pub fn push(&mut self, tokenizer: &ChatTokenizer, token_id: u32) -> String {
        if tokenizer.is_special(token_id) {
            return String::new();
        }
        self.window.push(token_id);
        let text = tokenizer.decode(&self.window, true);
        let unfinished = text.ends_with('\u{FFFD}') && self.window.len() - self.read <= LONGEST_CHARACTER;
        if unfinished || text.len() <= self.read_text.len() {
            return String::new();
        }
        let new = text.get(self.read_text.len()..).unwrap_or_default().to_owned();
        self.window.drain(..self.read);
        self.read = self.window.len();
        self.read_text = tokenizer.decode(&self.window, true);
        new
    }
}
