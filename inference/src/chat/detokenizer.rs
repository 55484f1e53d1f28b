//! Text of tokens as they are sampled.

use super::ChatTokenizer;

/// How many tokens can hold back text: a character has at most four bytes, so more than this many unfinished ones are no character.
const LONGEST_CHARACTER: usize = 4;

/// Turns a stream of ids into text. A character whose bytes are spread over tokens comes out with its last one; bytes that can't
/// become one are U+FFFD; control tokens give no text.
#[derive(Debug, Clone, Default)]
pub struct Detokenizer {
    /// Byte-level vocabularies: the beginning of a character.
    bytes: Vec<u8>,
    /// Other vocabularies: the last tokens. Those before `read` have given their text and stay as context, since a token's text can
    /// depend on the one before it.
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
        match tokenizer.token_bytes(token_id) {
            Some(bytes) => {
                self.bytes.extend_from_slice(&bytes);
                take_characters(&mut self.bytes)
            }
            None => self.push_by_decoding(tokenizer, token_id),
        }
    }

    fn push_by_decoding(&mut self, tokenizer: &ChatTokenizer, token_id: u32) -> String {
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

/// Takes the finished characters out of `bytes`; the beginning of one stays.
fn take_characters(bytes: &mut Vec<u8>) -> String {
    let mut text = String::new();
    let mut done = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        done += chunk.valid().len();
        let is_beginning = done + chunk.invalid().len() == bytes.len()
            && std::str::from_utf8(chunk.invalid()).is_err_and(|error| error.error_len().is_none());
        if !is_beginning {
            if !chunk.invalid().is_empty() {
                text.push('\u{FFFD}');
            }
            done += chunk.invalid().len();
        }
    }
    bytes.drain(..done);
    text
}
