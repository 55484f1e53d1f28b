//! "Did you mean": the known word that is nearest to an unknown one.

/// A hint for serde's message about an unknown field or variant, which lists the known ones; `None` for any other
/// message, and where nothing known is near.
pub(crate) fn suggestion(message: &str) -> Option<String> {
    let message = message
        .strip_prefix("unknown field ")
        .or_else(|| message.strip_prefix("unknown variant "))?;
    let mut words = message.split('`').skip(1).step_by(2);
    let unknown = words.next()?;
    let (nearest, distance) = words
        .map(|word| (word, distance(unknown, word)))
        .min_by_key(|(_, distance)| *distance)?;
    // Further away it is another word and not a slip.
    let near = distance <= 1 + unknown.chars().count() / 4;
    near.then(|| format!("did you mean `{nearest}`?"))
}

/// How many characters must be inserted, removed, replaced or swapped with their neighbour to make one from the other.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for row in 0..left.len() {
        let mut this = vec![row + 1];
        for column in 0..right.len() {
            let replaced = last[column] + usize::from(left[row] != right[column]);
            let mut least = replaced.min(last[column + 1] + 1).min(this[column] + 1);
            let swapped = row > 0 && column > 0 && left[row] == right[column - 1] && left[row - 1] == right[column];
            if swapped {
                least = least.min(before_last[column - 1] + 1);
            }
            this.push(least);
        }
        before_last = std::mem::replace(&mut last, this);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised() {
        let check = |message: &str, expected: Option<&str>| {
            let expected = expected.map(|word| format!("did you mean `{word}`?"));
            assert_eq!(suggestion(message), expected, "{message}");
        };
        check(
            "unknown field `lerning_rate`, expected one of `steps`, `learning_rate`",
            Some("learning_rate"),
        );
        check("unknown field `pahts`, expected `path` or `device`", Some("path"));
        check("unknown variant `gropo`, expected `grpo` or `cispo`", Some("grpo"));
        check("unknown field `colour`, expected one of `steps`, `learning_rate`", None);
        check("invalid type: string \"a\", expected u64", None);
    }

    #[test]
    fn distances_count_edits() {
        for (left, right, edits) in [
            ("", "abc", 3),
            ("abc", "abc", 0),
            ("abc", "acb", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!((distance(left, right), distance(right, left)), (edits, edits));
        }
    }
}
