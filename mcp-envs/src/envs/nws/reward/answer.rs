//! Whether an answer says the right thing, and nothing that competes with it.
//!
//! An answer is compared by words and whole numbers: `61` is in "61 F" and in "61.", not in "161" or "61.5".

use crate::nws::scenarios::{ExpectedAnswer, Facts};

/// Words of an answer; one that is longer tells too much to be an answer.
const MAX_WORDS: usize = 40;
/// A line of a tool result of at least so many words is not an answer when copied as it is.
const COPIED_WORDS: usize = 6;
/// What follows these within a sentence is what the choice was made against.
const AGAINST: [&str; 7] = ["than", "not", "compared", "versus", "rather", "instead", "unlike"];
/// Comparisons that turn a choice round; an answer with one of them does not say what was asked.
const REVERSED: [&str; 8] = [
    "less", "lower", "cooler", "colder", "coolest", "drier", "lowest", "least",
];
const DAYS: [&str; 7] = [
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
    "Sunday",
];

/// What an answer is worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// It holds the right value.
    pub right_value: bool,
    /// It is short, and a copy neither of a tool result nor of the question.
    pub own: bool,
    /// It is the agent's own, and holds nothing that competes with the right value.
    pub clean: bool,
}

/// Judges an answer to `prompt`. `results` are the texts of the tool results that the agent saw.
pub fn judge(prompt: &str, facts: &Facts, answer: &str, results: &[String]) -> Verdict {
    let mut answer_words = words(answer);
    if answer_words.is_empty() {
        return Verdict {
            right_value: false,
            own: false,
            clean: false,
        };
    }
    // A question is no answer, nor is the given question.
    let own = answer_words.len() <= MAX_WORDS
        && !is_copied(&answer_words, results)
        && !contains_phrase(&answer_words, &words(prompt))
        && !answer.contains('?');
    // "The most severe one" says nothing about a severity, and a place's name nothing about a wind.
    for phrase in ["most severe", "how severe"] {
        remove_phrase(&mut answer_words, &words(phrase));
    }
    let content = match &facts.answer {
        ExpectedAnswer::Choice { right, wrong, allowed } => Content {
            right_value: choice(answer, right, wrong),
            competing: !other_numbers(prompt, answer, &[], allowed).is_empty(),
        },
        ExpectedAnswer::Numbers { values, allowed } => {
            let given = numbers(answer);
            Content {
                right_value: occur_in_order(values, &given),
                competing: !other_numbers(prompt, answer, values, allowed).is_empty()
                    || names_other_period(&answer_words, &facts.periods),
            }
        }
        ExpectedAnswer::Names {
            groups,
            others,
            allowed,
        } => {
            for subject in &facts.subjects {
                remove_phrase(&mut answer_words, &words(subject));
            }
            let said = mentions(&answer_words, groups.iter().flatten().chain(others));
            let is_said = |name: &String| said.contains(&lower(name));
            // The kinds that name a day as their answer have no period in the question.
            let other_period = !facts.periods.is_empty() && names_other_period(&answer_words, &facts.periods);
            Content {
                right_value: groups.iter().all(|group| group.iter().any(is_said)),
                competing: others.iter().any(is_said)
                    || other_period
                    || !other_numbers(prompt, answer, &[], allowed).is_empty(),
            }
        }
        ExpectedAnswer::Nothing { others, of } => Content {
            right_value: denies(&answer_words, of),
            competing: !mentions(&answer_words, others.iter()).is_empty()
                || !other_numbers(prompt, answer, &[], &[]).is_empty(),
        },
    };
    Verdict {
        right_value: content.right_value,
        own,
        clean: own && !content.competing,
    }
}

struct Content {
    right_value: bool,
    competing: bool,
}

/// Lower-case words: runs of letters, digits and apostrophes.
pub fn words(text: &str) -> Vec<String> {
    text.to_lowercase()
        .replace('’', "'")
        .split(|letter: char| !letter.is_alphanumeric() && letter != '\'')
        .map(|word| word.trim_matches('\''))
        .filter(|word| !word.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Numbers of a text without their signs; a point counts only between digits.
pub fn numbers(text: &str) -> Vec<f64> {
    let mut numbers = Vec::new();
    let mut current = String::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let continues = letter == '.'
            && !current.is_empty()
            && !current.contains('.')
            && letters.peek().is_some_and(char::is_ascii_digit);
        if letter.is_ascii_digit() || continues {
            current.push(letter);
        } else {
            numbers.extend(current.parse::<f64>());
            current.clear();
        }
    }
    numbers.extend(current.parse::<f64>());
    numbers
}

/// Whether the phrase occurs as a run of whole words.
pub fn contains_phrase(words: &[String], phrase: &[String]) -> bool {
    !phrase.is_empty() && words.windows(phrase.len()).any(|window| window == phrase)
}

/// The names that occur, in lower case. Where one name is part of another ("Flood Warning" of "Flash Flood Warning"),
/// only the longer one counts.
fn mentions<'a>(text: &[String], names: impl Iterator<Item = &'a String>) -> Vec<String> {
    let mut names: Vec<(&String, Vec<String>)> = names.map(|name| (name, words(name))).collect();
    names.sort_by_key(|(_, words)| std::cmp::Reverse(words.len()));
    let mut text = text.to_vec();
    let mut said = Vec::new();
    for (name, phrase) in names {
        if remove_phrase(&mut text, &phrase) {
            said.push(lower(name));
        }
    }
    said
}

/// Replaces each occurrence by a gap that joins nothing; true where there was one.
fn remove_phrase(text: &mut Vec<String>, phrase: &[String]) -> bool {
    let mut found = false;
    let mut start = 0;
    while !phrase.is_empty() && start + phrase.len() <= text.len() {
        if text.get(start..start + phrase.len()) == Some(phrase) {
            text.splice(start..start + phrase.len(), [String::new()]);
            found = true;
        }
        start += 1;
    }
    found
}

/// Whether the values occur among the numbers in their order: the x of a grid cell is not its y.
fn occur_in_order(values: &[i64], given: &[f64]) -> bool {
    let mut rest = given.iter();
    values.iter().all(|value| rest.any(|number| *number == *value as f64))
}

fn lower(name: &str) -> String {
    words(name).join(" ")
}

/// Numbers of the answer that are neither asked for, nor in the question, nor allowed.
fn other_numbers(prompt: &str, answer: &str, values: &[i64], allowed: &[i64]) -> Vec<f64> {
    let given = numbers(prompt);
    let is_known =
        |number: &f64| given.contains(number) || values.iter().chain(allowed).any(|value| *value as f64 == *number);
    numbers(answer).into_iter().filter(|number| !is_known(number)).collect()
}

/// Whether the answer names a half day that the question does not.
fn names_other_period(answer: &[String], periods: &[String]) -> bool {
    let nights: Vec<String> = DAYS.iter().map(|day| format!("{day} Night")).collect();
    let days = DAYS.iter().map(|day| (*day).to_owned());
    let all: Vec<String> = days
        .chain(nights)
        .chain(["Today", "Tonight"].map(str::to_owned))
        .collect();
    let asked: Vec<String> = periods.iter().map(|period| canonical(&lower(period))).collect();
    mentions(answer, all.iter())
        .iter()
        .map(|said| canonical(said))
        .any(|said| {
            // An hour is one of today, and so is the present, where no period is asked for; "Tuesday" will do for
            // "Tuesday Night", which was asked about.
            let same = |asked: &String| {
                *asked == said || *asked == format!("{said} night") || !is_period(asked) && said == "monday"
            };
            let is_present = asked.is_empty() && said == "monday";
            !is_present && !asked.iter().any(same)
        })
}

fn is_period(name: &str) -> bool {
    DAYS.iter().any(|day| name.starts_with(&day.to_lowercase()))
}

/// The first day by its weekday.
fn canonical(period: &str) -> String {
    match period {
        "today" => "monday".to_owned(),
        "tonight" => "monday night".to_owned(),
        _ => period.to_owned(),
    }
}

/// Whether the answer decides for the right one: the last one that it names, less what it names as beaten.
fn choice(answer: &str, right: &[String], wrong: &[String]) -> bool {
    // The point of "St. Louis" ends no sentence.
    let mut answer = answer.to_owned();
    for name in right.iter().chain(wrong).filter(|name| name.contains('.')) {
        answer = answer.replace(name.as_str(), &name.replace('.', ""));
    }
    let phrases = |names: &[String]| -> Vec<Vec<String>> { names.iter().map(|name| words(name)).collect() };
    let (right, wrong) = (phrases(right), phrases(wrong));
    let mut decision = None;
    for sentence in sentences(&answer) {
        let sentence = words(sentence);
        if sentence.iter().any(|word| REVERSED.contains(&word.as_str())) {
            return false;
        }
        let against = sentence
            .iter()
            .position(|word| AGAINST.contains(&word.as_str()))
            .unwrap_or(sentence.len());
        let sentence = sentence.get(..against).unwrap_or_default();
        let (last_right, last_wrong) = (last(sentence, &right), last(sentence, &wrong));
        // "Tuesday or Thursday" decides nothing.
        let between = match (last_right, last_wrong) {
            (Some(right), Some(wrong)) => sentence.get(right.min(wrong)..right.max(wrong)).unwrap_or_default(),
            _ => &[],
        };
        if between.iter().any(|word| word == "or") {
            return false;
        }
        if last_right.is_some() || last_wrong.is_some() {
            decision = Some(last_right > last_wrong);
        }
    }
    decision.unwrap_or(false)
}

/// Where the last of these phrases begins. "Tuesday" is not said by "Tuesday Night".
fn last(sentence: &[String], phrases: &[Vec<String>]) -> Option<usize> {
    let starts = phrases.iter().filter_map(|phrase| {
        (0..sentence.len()).rev().find(|start| {
            let end = start + phrase.len();
            sentence.get(*start..end) == Some(phrase.as_slice()) && sentence.get(end).is_none_or(|next| next != "night")
        })
    });
    starts.max()
}

fn sentences(text: &str) -> impl Iterator<Item = &str> {
    text.split(['.', '!', '?', '\n', ';'])
}

/// Whether the answer says that there is nothing.
fn denies(answer: &[String], of: &str) -> bool {
    const DATA: [&str; 16] = [
        "no data",
        "no forecast",
        "no weather",
        "no information",
        "not available",
        "unavailable",
        "outside",
        "not covered",
        "not cover",
        "doesn't cover",
        "no coverage",
        "cannot",
        "can't",
        "could not",
        "couldn't",
        "unable",
    ];
    const ALERTS: [&str; 9] = [
        "no active",
        "no alerts",
        "no alert",
        "no weather alerts",
        "no current",
        "none",
        "not any",
        "aren't any",
        "no warnings",
    ];
    let phrases: &[&str] = if of == "alerts" { &ALERTS } else { &DATA };
    phrases.iter().any(|phrase| contains_phrase(answer, &words(phrase)))
}

/// Whether the answer holds a whole line of a tool result.
fn is_copied(answer: &[String], results: &[String]) -> bool {
    let lines = results.iter().flat_map(|result| result.lines()).map(words);
    lines
        .into_iter()
        .any(|line| line.len() >= COPIED_WORDS && contains_phrase(answer, &line))
}

#[cfg(test)]
mod tests;
