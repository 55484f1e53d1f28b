//! Stop strings: the engine knows tokens, so texts that end an answer are looked for here.

/// Watches a text that comes in pieces. Text that could be the beginning of a stop string is held back.
#[derive(Debug, Clone, Default)]
pub(super) struct StopStrings {
    strings: Vec<String>,
    keep: bool,
    held: String,
}

/// What a piece of text amounts to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Watched {
    /// Text that is surely part of the answer.
    pub text: String,
    /// The stop string that was found; the answer ends.
    pub stopped_by: Option<String>,
}

impl StopStrings {
    /// Watches for `strings`; a found one stays in the text if `keep`.
    pub(super) fn new(strings: Vec<String>, keep: bool) -> Self {
        Self {
            strings,
            keep,
            held: String::new(),
        }
    }

    pub(super) fn push(&mut self, text: &str) -> Watched {
        if self.strings.is_empty() {
            return Watched {
                text: text.to_owned(),
                stopped_by: None,
            };
        }
        self.held.push_str(text);
        let found = self
            .strings
            .iter()
            .filter_map(|string| Some((self.held.find(string.as_str())?, string)));
        // The earliest one ends the answer; of two at one place the shorter was there first.
        if let Some((start, string)) = found.min_by_key(|(start, string)| (*start + string.len(), *start)) {
            let end = if self.keep { start + string.len() } else { start };
            let stopped_by = Some(string.clone());
            let text = self.held[..end].to_owned();
            self.held.clear();
            return Watched { text, stopped_by };
        }
        let sure = self.held.len()
            - self
                .strings
                .iter()
                .map(|string| overlap(&self.held, string))
                .max()
                .unwrap_or(0);
        let rest = self.held.split_off(sure);
        Watched {
            text: std::mem::replace(&mut self.held, rest),
            stopped_by: None,
        }
    }

    /// What was held back, at the end of the answer.
    pub(super) fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }
}

/// Length of the longest end of `text` that `string` begins with.
fn overlap(text: &str, string: &str) -> usize {
    let lengths = string.char_indices().map(|(position, _)| position).skip(1);
    lengths
        .filter(|length| text.ends_with(&string[..*length]))
        .max()
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch(strings: &[&str], keep: bool, pieces: &[&str]) -> (String, Option<String>) {
        let mut watcher = StopStrings::new(strings.iter().map(|string| (*string).to_owned()).collect(), keep);
        let mut text = String::new();
        for piece in pieces {
            let watched = watcher.push(piece);
            text.push_str(&watched.text);
            if watched.stopped_by.is_some() {
                return (text, watched.stopped_by);
            }
        }
        text.push_str(&watcher.finish());
        (text, None)
    }

    #[test]
    fn a_stop_string_over_pieces_ends_the_text_before_it() {
        assert_eq!(
            watch(&["\nUser:"], false, &["Hi\n", "Us", "er: x"]),
            ("Hi".into(), Some("\nUser:".into()))
        );
        assert_eq!(
            watch(&["END"], true, &["a EN", "D b"]),
            ("a END".into(), Some("END".into()))
        );
    }

    #[test]
    fn a_beginning_that_comes_to_nothing_is_not_lost() {
        assert_eq!(
            watch(&["aab", "ü!"], false, &["aa", "a", "c ü"]),
            ("aaac ü".into(), None)
        );
    }
}
