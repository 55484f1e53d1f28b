//! Edits JSON text in place, so that every byte that is not edited stays as its author wrote it.
//!
//! The scanner only finds where members and elements begin and end; it does not validate. Callers hand it text that
//! `serde_json` has accepted, and get `None` where the text is not what they took it for.

use std::borrow::Cow;
use std::ops::Range;

/// Where one member of an object lies in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Member {
    /// The key with its quotes.
    pub(crate) key: Range<usize>,
    /// The value, without the space around it.
    pub(crate) value: Range<usize>,
}

impl Member {
    /// The key as text, with escapes resolved.
    pub(crate) fn name<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let quoted = &text[self.key.clone()];
        if quoted.contains('\\') {
            serde_json::from_str::<String>(quoted).map_or(Cow::Borrowed(quoted), Cow::Owned)
        } else {
            Cow::Borrowed(&quoted[1..quoted.len() - 1])
        }
    }
}

/// The members of the object that begins at or after `start`, in order.
pub(crate) fn members(text: &str, start: usize) -> Option<Vec<Member>> {
    let mut scanner = Scanner {
        bytes: text.as_bytes(),
        at: start,
    };
    scanner.expect(b'{')?;
    let mut found = Vec::new();
    if scanner.peek()? == b'}' {
        return Some(found);
    }
    loop {
        scanner.skip_space();
        let key = scanner.string()?;
        scanner.expect(b':')?;
        found.push(Member {
            key,
            value: scanner.value()?,
        });
        match scanner.next()? {
            b',' => {}
            b'}' => return Some(found),
            _ => return None,
        }
    }
}

/// The elements of the array that begins at or after `start`, in order.
pub(crate) fn elements(text: &str, start: usize) -> Option<Vec<Range<usize>>> {
    let mut scanner = Scanner {
        bytes: text.as_bytes(),
        at: start,
    };
    scanner.expect(b'[')?;
    let mut found = Vec::new();
    if scanner.peek()? == b']' {
        return Some(found);
    }
    loop {
        found.push(scanner.value()?);
        match scanner.next()? {
            b',' => {}
            b']' => return Some(found),
            _ => return None,
        }
    }
}

/// Replacements for ranges of one text. Ranges are added in ascending order and do not overlap.
#[derive(Debug, Default)]
pub(crate) struct Edits<'a> {
    list: Vec<(Range<usize>, Cow<'a, str>)>,
}

impl<'a> Edits<'a> {
    /// Replaces `range` with `text`.
    pub(crate) fn replace(&mut self, range: Range<usize>, text: impl Into<Cow<'a, str>>) {
        self.list.push((range, text.into()));
    }

    /// Removes the member at `index`, with the comma that its removal makes superfluous. `kept_before` says whether
    /// a member before it stays.
    pub(crate) fn remove_member(&mut self, members: &[Member], index: usize, kept_before: bool) {
        let range = match (kept_before, members.get(index + 1)) {
            (true, _) => members[index - 1].value.end..members[index].value.end,
            (false, Some(next)) => members[index].key.start..next.key.start,
            (false, None) => members[index].key.start..members[index].value.end,
        };
        self.list.push((range, Cow::Borrowed("")));
    }

    /// The text with all edits made; the text itself where there are none.
    pub(crate) fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if self.list.is_empty() {
            return Cow::Borrowed(text);
        }
        let grown: usize = self.list.iter().map(|(_, new)| new.len()).sum();
        let mut edited = String::with_capacity(text.len() + grown);
        let mut from = 0;
        for (range, new) in &self.list {
            edited.push_str(&text[from..range.start]);
            edited.push_str(new);
            from = range.end;
        }
        edited.push_str(&text[from..]);
        Cow::Owned(edited)
    }
}

/// Sets (`Some`, as JSON text) or removes (`None`) members of the object that is the whole of `text`. A member that
/// is there keeps its place, a new one goes to the end.
pub(crate) fn set_members(text: &str, changes: &[(&str, Option<String>)]) -> Option<String> {
    let members = members(text, 0)?;
    let mut edits = Edits::default();
    let mut seen = vec![false; changes.len()];
    let mut kept_before = false;
    for (index, member) in members.iter().enumerate() {
        let name = member.name(text);
        match changes.iter().position(|(key, _)| *key == name) {
            None => kept_before = true,
            Some(change) => {
                seen[change] = true;
                match &changes[change].1 {
                    Some(value) => {
                        edits.replace(member.value.clone(), value.as_str());
                        kept_before = true;
                    }
                    None => edits.remove_member(&members, index, kept_before),
                }
            }
        }
    }
    let mut added = String::new();
    for ((key, value), _) in changes.iter().zip(&seen).filter(|(_, seen)| !**seen) {
        let Some(value) = value else { continue };
        if kept_before || !added.is_empty() {
            added.push(',');
        }
        added.push_str(&serde_json::Value::from(*key).to_string());
        added.push(':');
        added.push_str(value);
    }
    if !added.is_empty() {
        let end = match members.last() {
            Some(member) => member.value.end,
            None => text.find('{')? + 1,
        };
        edits.replace(end..end, added);
    }
    Some(edits.apply(text).into_owned())
}

struct Scanner<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn skip_space(&mut self) {
        while matches!(self.bytes.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn peek(&mut self) -> Option<u8> {
        self.skip_space();
        self.bytes.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn expect(&mut self, wanted: u8) -> Option<()> {
        (self.next()? == wanted).then_some(())
    }

    /// The string that begins here, with its quotes.
    fn string(&mut self) -> Option<Range<usize>> {
        let start = self.at;
        if *self.bytes.get(start)? != b'"' {
            return None;
        }
        self.at += 1;
        loop {
            match self.bytes.get(self.at)? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(start..self.at)
    }

    fn value(&mut self) -> Option<Range<usize>> {
        self.skip_space();
        let start = self.at;
        match self.bytes.get(start)? {
            b'"' => return self.string(),
            b'{' | b'[' => {
                let mut depth = 0usize;
                loop {
                    match self.bytes.get(self.at)? {
                        b'"' => {
                            self.string()?;
                            continue;
                        }
                        b'{' | b'[' => depth += 1,
                        b'}' | b']' => depth = depth.checked_sub(1)?,
                        _ => {}
                    }
                    self.at += 1;
                    if depth == 0 {
                        break;
                    }
                }
            }
            _ => {
                while !matches!(
                    self.bytes.get(self.at)?,
                    b',' | b']' | b'}' | b' ' | b'\t' | b'\r' | b'\n'
                ) {
                    self.at += 1;
                }
            }
        }
        (self.at > start).then_some(start..self.at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    #[test]
    fn a_set_member_keeps_its_place_and_the_rest_its_bytes() {
        let text = "{ \"model\" : \"a\",\n  \"x\": [1, {\"model\": 2}],\"y\":1.50 }\n";
        let edited = set_members(
            text,
            &[("model", Some("\"b\"".into())), ("logprobs", Some("true".into()))],
        );
        let want = "{ \"model\" : \"b\",\n  \"x\": [1, {\"model\": 2}],\"y\":1.50,\"logprobs\":true }\n";
        assert_eq!(edited.as_deref(), Some(want));
    }

    #[test]
    fn removal_takes_the_right_comma() {
        for (text, want) in [
            (r#"{"a":1,"b":2,"c":3}"#, r#"{"b":2}"#),
            (r#"{"a":1}"#, r#"{}"#),
            (r#"{"a":1,"c":3,"b":2}"#, r#"{"b":2}"#),
            (r#"{"b":2,"a":1,"c":3}"#, r#"{"b":2}"#),
            (r#"{"\u0061":1,"b":2}"#, r#"{"b":2}"#),
        ] {
            assert_eq!(
                set_members(text, &[("a", None), ("c", None)]).as_deref(),
                Some(want),
                "{text}"
            );
        }
        assert_eq!(
            set_members("{}", &[("a", Some("1".into()))]).as_deref(),
            Some(r#"{"a":1}"#)
        );
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-d\"\\\\{}]{0,2}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn agrees_with_a_parsed_edit(
            object in prop::collection::btree_map("[a-d\"\\\\]{0,2}", value(), 0..5),
            pretty: bool,
            set in "[a-d]",
            remove in "[a-d]",
        ) {
            prop_assume!(set != remove);
            let object: Map<String, Value> = object.into_iter().collect();
            let before = Value::Object(object.clone());
            let text = if pretty { serde_json::to_string_pretty(&before).unwrap() } else { before.to_string() };
            let edited = set_members(&text, &[(&set, Some("[7]".into())), (&remove, None)]).unwrap();
            let mut want = object;
            want.insert(set, json!([7]));
            want.shift_remove(&remove);
            prop_assert_eq!(serde_json::from_str::<Value>(&edited).unwrap(), Value::Object(want));
        }

        #[test]
        fn never_panics(text in "[{}\\[\\]\",:a1 \\\\]{0,24}") {
            let _ = members(&text, 0);
            let _ = elements(&text, 0);
        }
    }
}
