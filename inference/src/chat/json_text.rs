//! JSON as Python's `json.dumps(value, ensure_ascii=False)` writes it, which is the form chat templates were trained on.

use std::fmt::Write as _;

use serde_json::Value;

/// `value` on one line with Python's separators `", "` and `": "`; key order is kept.
pub(crate) fn python_json(value: &Value) -> String {
    let mut out = String::new();
    write_value(&mut out, value, None, 0);
    out
}

/// `value` with `indent` spaces a level, as `json.dumps(value, indent=indent)`.
pub(crate) fn python_json_indented(value: &Value, indent: usize) -> String {
    let mut out = String::new();
    write_value(&mut out, value, Some(indent), 0);
    out
}

fn write_value(out: &mut String, value: &Value, indent: Option<usize>, depth: usize) {
    match value {
        Value::Null => out.push_str("null"),
        Value::Bool(flag) => out.push_str(if *flag { "true" } else { "false" }),
        Value::Number(number) => match number.as_f64() {
            Some(float) if number.is_f64() => out.push_str(&python_float(float)),
            _ => {
                let _ = write!(out, "{number}");
            }
        },
        Value::String(text) => write_string(out, text),
        Value::Array(items) => {
            out.push('[');
            for (position, item) in items.iter().enumerate() {
                separate(out, position, indent, depth + 1);
                write_value(out, item, indent, depth + 1);
            }
            close(out, items.is_empty(), indent, depth);
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (position, (key, item)) in fields.iter().enumerate() {
                separate(out, position, indent, depth + 1);
                write_string(out, key);
                out.push_str(": ");
                write_value(out, item, indent, depth + 1);
            }
            close(out, fields.is_empty(), indent, depth);
            out.push('}');
        }
    }
}

/// What stands before an item: a comma but for the first, then a new line (with indent) or a space.
fn separate(out: &mut String, position: usize, indent: Option<usize>, depth: usize) {
    if position > 0 {
        out.push(',');
    }
    match indent {
        Some(width) => new_line(out, width * depth),
        None if position > 0 => out.push(' '),
        None => {}
    }
}

fn close(out: &mut String, empty: bool, indent: Option<usize>, depth: usize) {
    if let (Some(width), false) = (indent, empty) {
        new_line(out, width * depth);
    }
}

fn new_line(out: &mut String, n_spaces: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n(' ', n_spaces));
}

fn write_string(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            control if (control as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", control as u32);
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Python's `repr` of a finite float: the shortest digits, an exponent below 1e-4 and from 1e16 on.
fn python_float(value: f64) -> String {
    let magnitude = value.abs();
    if magnitude != 0.0 && !(1e-4..1e16).contains(&magnitude) {
        let scientific = format!("{value:e}");
        let Some((mantissa, exponent)) = scientific.split_once('e') else {
            return scientific;
        };
        let (sign, digits) = match exponent.strip_prefix('-') {
            Some(digits) => ('-', digits),
            None => ('+', exponent),
        };
        return format!("{mantissa}e{sign}{digits:0>2}");
    }
    let plain = format!("{value}");
    if plain.contains('.') {
        plain
    } else {
        format!("{plain}.0")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn writes_as_python_does() {
        let value =
            json!({"b": [1, 2.0, 1e-5, 1e16, 0.1, -3], "a": {"k": "ü\n\"\u{1}"}, "e": [], "n": null, "t": true});
        assert_eq!(
            python_json(&value),
            "{\"b\": [1, 2.0, 1e-05, 1e+16, 0.1, -3], \"a\": {\"k\": \"ü\\n\\\"\\u0001\"}, \"e\": [], \"n\": null, \"t\": true}"
        );
    }

    #[test]
    fn indents_as_python_does() {
        assert_eq!(
            python_json_indented(&json!({"a": [1, {}], "b": {}}), 2),
            "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": {}\n}"
        );
    }
}
