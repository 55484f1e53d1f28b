use super::*;

const PROMPT: &str = "What will the temperature be on Tuesday in Duluth, MN (46.79, -92.1)?";

fn facts(answer: ExpectedAnswer, periods: &[&str]) -> Facts {
    Facts {
        seed: 0,
        subjects: vec!["Duluth, MN".to_owned()],
        periods: owned(periods),
        measure: String::new(),
        calls: Vec::new(),
        answer,
    }
}

fn owned(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// The verdict on each answer: `+` right and clean, `~` right but not clean, `-` wrong.
#[track_caller]
fn check(facts: &Facts, results: &[&str], answers: &[(&str, char)]) {
    for (answer, expected) in answers {
        let verdict = judge(PROMPT, facts, answer, &owned(results));
        let found = match (verdict.right_value, verdict.clean) {
            (true, true) => '+',
            (true, false) => '~',
            (false, _) => '-',
        };
        assert_eq!(found, *expected, "{answer}");
    }
}

#[test]
fn a_number_has_to_be_whole_and_alone() {
    let facts = facts(
        ExpectedAnswer::Numbers {
            values: vec![61],
            allowed: vec![],
        },
        &["Tuesday"],
    );
    let result = "Tuesday: 61 F, rain 20%, wind NW 10 mph, Sunny";
    check(
        &facts,
        &[result],
        &[
            ("61", '+'),
            ("It will be 61 F on Tuesday.", '+'),
            ("61°F", '+'),
            ("In Duluth, MN (46.79, -92.1) it will be 61 degrees.", '+'),
            ("161 F", '-'),
            ("61.5 F", '-'),
            ("It will be warm.", '-'),
            ("", '-'),
            ("It will be 60 to 61 F.", '~'),
            ("It will be 61 F on Wednesday.", '~'),
            ("It will be 61 F on Tuesday Night.", '~'),
            ("61?", '~'),
            (result, '~'),
            (&"61 ".repeat(41), '~'),
        ],
    );
}

#[test]
fn two_numbers_come_in_their_order() {
    let values = vec![107, 60];
    let allowed = Vec::new();
    check(
        &facts(ExpectedAnswer::Numbers { values, allowed }, &[]),
        &["Office MPX, grid 107,60, near Duluth, time zone America/Chicago"],
        &[
            ("The grid cell is 107,60.", '+'),
            ("Duluth, MN (46.79, -92.1): x 107, y 60.", '+'),
            ("The grid cell is 60,107.", '-'),
            ("107", '-'),
        ],
    );
}

#[test]
fn the_present_is_today_and_no_other_day() {
    let (values, allowed) = (vec![61], Vec::new());
    check(
        &facts(ExpectedAnswer::Numbers { values, allowed }, &[]),
        &[],
        &[
            ("It is 61 F now.", '+'),
            ("It is 61 F today.", '+'),
            ("It is 61 F on Tuesday.", '~'),
            ("It is 61 F tonight.", '~'),
        ],
    );
}

#[test]
fn a_night_may_be_called_by_its_day_and_today_has_two_names() {
    let night = facts(
        ExpectedAnswer::Numbers {
            values: vec![61],
            allowed: vec![],
        },
        &["Tuesday Night"],
    );
    check(
        &night,
        &[],
        &[
            ("61 F on Tuesday Night", '+'),
            ("61 F on Tuesday", '+'),
            ("61 F tonight", '~'),
        ],
    );
    let today = facts(
        ExpectedAnswer::Numbers {
            values: vec![61],
            allowed: vec![],
        },
        &["Today"],
    );
    check(
        &today,
        &[],
        &[("61 F today", '+'), ("61 F on Monday", '+'), ("61 F on Tuesday", '~')],
    );
    let hour = facts(
        ExpectedAnswer::Numbers {
            values: vec![61],
            allowed: vec![],
        },
        &["5 PM"],
    );
    check(
        &hour,
        &[],
        &[("61 F", '+'), ("61 F today", '+'), ("61 F on Tuesday", '~')],
    );
}

#[test]
fn names_must_be_the_right_ones_and_no_others() {
    let answer = ExpectedAnswer::Names {
        groups: vec![owned(&["Flash Flood Warning"]), owned(&["Severe"])],
        others: owned(&["Flood Warning", "Wind Advisory", "Extreme", "Moderate"]),
        allowed: vec![6],
    };
    check(
        &facts(answer, &[]),
        &["Severe: Flash Flood Warning until Tue 6 PM, Duluth"],
        &[
            ("There is a severe Flash Flood Warning.", '+'),
            (
                "The most severe alert is a Flash Flood Warning, severity Severe, until 6 PM.",
                '+',
            ),
            ("The most severe alert is a Flash Flood Warning.", '-'),
            ("A severe Flood Warning.", '-'),
            ("A severe Flash Flood Warning and a moderate Wind Advisory.", '~'),
            ("Severe: Flash Flood Warning until Tue 6 PM, Duluth", '~'),
        ],
    );
}

#[test]
fn a_direction_is_no_part_of_another_or_of_a_place() {
    let answer = ExpectedAnswer::Names {
        groups: vec![owned(&["NW", "northwest"])],
        others: owned(&["N", "north", "W", "west", "S", "south"]),
        allowed: vec![10],
    };
    let facts = Facts {
        subjects: owned(&["West Fargo, ND"]),
        ..facts(answer, &["Tuesday"])
    };
    check(
        &facts,
        &[],
        &[
            ("The wind is from the NW.", '+'),
            ("Northwest at 10 mph in West Fargo, ND.", '+'),
            ("From the west.", '-'),
            ("NW or W.", '~'),
        ],
    );
}

#[test]
fn a_choice_is_what_was_decided_for() {
    let answer = ExpectedAnswer::Choice {
        right: owned(&["Thursday"]),
        wrong: owned(&["Tuesday"]),
        allowed: vec![20, 70],
    };
    check(
        &facts(answer, &["Tuesday", "Thursday"]),
        &[],
        &[
            ("Thursday.", '+'),
            ("Tuesday 20%, Thursday 70%, so Thursday.", '+'),
            ("Rain is more likely on Thursday than on Tuesday.", '+'),
            ("On Thursday, not Tuesday.", '+'),
            ("Thursday 70%, Tuesday 20%, so Tuesday.", '-'),
            ("Is rain more likely on Tuesday or Thursday?", '-'),
            ("Compare Tuesday and Thursday: which one is higher?", '~'),
            ("Thursday is less likely.", '-'),
            ("Thursday Night.", '-'),
            ("Either.", '-'),
            ("Tuesday 30%, Thursday 70%, so Thursday.", '~'),
        ],
    );
}

#[test]
fn the_point_of_a_saint_ends_no_sentence() {
    let (right, wrong) = (owned(&["St. Louis"]), owned(&["Austin"]));
    let answer = ExpectedAnswer::Choice {
        right,
        wrong,
        allowed: vec![84, 93],
    };
    check(
        &facts(answer, &["Thursday"]),
        &[],
        &[
            ("Austin 84 F, St. Louis 93 F, so St. Louis.", '+'),
            ("St. Louis 93 F, Austin 84 F, so Austin.", '-'),
            ("St. Louis is warmer than Austin.", '+'),
        ],
    );
}

#[test]
fn nothing_is_said_plainly() {
    let nothing = |of: &str, others: &[&str]| {
        facts(
            ExpectedAnswer::Nothing {
                others: owned(others),
                of: of.to_owned(),
            },
            &["Tuesday"],
        )
    };
    check(
        &nothing("data", &[]),
        &["No data: this point is outside the area that the weather service covers."],
        &[
            ("The service has no data for Duluth.", '+'),
            ("I can't get the weather there.", '+'),
            ("It will be 71 F.", '-'),
            ("There is no data, but it will be 71 F.", '~'),
            (
                "No data: this point is outside the area that the weather service covers.",
                '~',
            ),
        ],
    );
    check(
        &nothing("alerts", &["Flood Warning", "Severe"]),
        &["No active alerts in MN."],
        &[
            ("No active alerts in MN.", '+'),
            ("There are no alerts.", '+'),
            ("There is a Flood Warning.", '-'),
            ("There is no alert but a Flood Warning.", '~'),
        ],
    );
}

#[test]
fn numbers_are_read_as_written() {
    assert_eq!(
        numbers("46.79, -92.1: 5-10 mph at 6. 97,98 and v2"),
        [46.79, 92.1, 5.0, 10.0, 6.0, 97.0, 98.0, 2.0]
    );
    assert_eq!(
        words("Coeur d'Alene, ID: it’s 'warm'"),
        ["coeur", "d'alene", "id", "it's", "warm"]
    );
}
