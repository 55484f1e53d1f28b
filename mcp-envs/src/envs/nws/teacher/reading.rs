//! Finding values in the tools' text, the way a reader would: the line that begins with a name, then the value's label.

/// The rest of the line that begins with `name` and a colon.
pub(super) fn line<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

/// The first whole number after `label`; from the beginning where the label is empty.
pub(super) fn number_after(text: &str, label: &str) -> Option<i64> {
    let rest = text.get(text.find(label)? + label.len()..)?;
    let start = rest.find(|letter: char| letter.is_ascii_digit())?;
    let digits = rest.get(start..)?;
    let end = digits
        .find(|letter: char| !letter.is_ascii_digit())
        .unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

/// The word after `label`.
pub(super) fn word_after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    let rest = text.get(text.find(label)? + label.len()..)?;
    rest.split([' ', ',', '.']).find(|word| !word.is_empty())
}

/// The id of the station with this name in a list of stations.
pub(super) fn station_id<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (id, rest) = line.split_once(' ')?;
        (rest.rsplit_once(", ").map_or(rest, |(listed, _)| listed) == name).then_some(id)
    })
}
