use std::collections::{BTreeMap, HashSet};

use super::*;
use crate::nws::test_world::SEED;

fn facts(scenario: &Scenario) -> Facts {
    serde_json::from_value(scenario.data.clone()).unwrap()
}

#[test]
fn every_kind_has_its_number_in_both_splits() {
    for seed in [SEED, 0, 1, 2, 3, 42, 2026] {
        let mut counts: BTreeMap<(String, Split), usize> = BTreeMap::new();
        for scenario in generate(seed) {
            *counts.entry((scenario.kind, scenario.split)).or_default() += 1;
        }
        for (kind, n_train, n_held_out) in KINDS {
            let count = |split| {
                counts
                    .get(&(kind.name().to_owned(), split))
                    .copied()
                    .unwrap_or_default()
            };
            assert_eq!(
                (count(Split::Train), count(Split::HeldOut)),
                (n_train, n_held_out),
                "{seed} {}",
                kind.name()
            );
        }
    }
}

#[test]
fn there_are_enough_and_a_quarter_needs_a_comparison() {
    let total = |split| generate(SEED).iter().filter(|scenario| scenario.split == split).count();
    assert!(total(Split::Train) >= 400 && total(Split::HeldOut) >= 110);
    let hard = [Kind::WarmestDay, Kind::DayComparison, Kind::PlaceComparison];
    let n_hard: usize = KINDS
        .iter()
        .filter(|(kind, ..)| hard.contains(kind))
        .map(|(_, _, held_out)| held_out)
        .sum();
    let share = n_hard as f64 / total(Split::HeldOut) as f64;
    assert!((0.2..0.3).contains(&share), "{share}");
}

#[test]
fn held_out_places_are_not_trained_on() {
    let mut subjects: BTreeMap<Split, HashSet<String>> = BTreeMap::new();
    for scenario in generate(SEED) {
        let facts = facts(&scenario);
        // The second subject of a chain is a station, which its place brings along.
        let n_places = if scenario.kind == Kind::StationObservation.name() {
            1
        } else {
            facts.subjects.len()
        };
        subjects
            .entry(scenario.split)
            .or_default()
            .extend(facts.subjects.into_iter().take(n_places));
    }
    let (train, held_out) = (&subjects[&Split::Train], &subjects[&Split::HeldOut]);
    assert!(
        train.is_disjoint(held_out),
        "{:?}",
        train.intersection(held_out).collect::<Vec<_>>()
    );
    assert!(
        train.len() > 150 && held_out.len() > 50,
        "{} and {}",
        train.len(),
        held_out.len()
    );
}

#[test]
fn ids_and_prompts_are_unique_and_prompts_give_no_answer_away() {
    let scenarios = generate(SEED);
    let ids: HashSet<&str> = scenarios.iter().map(|scenario| scenario.id.as_str()).collect();
    let prompts: HashSet<&str> = scenarios.iter().map(|scenario| scenario.prompt.as_str()).collect();
    assert_eq!((ids.len(), prompts.len()), (scenarios.len(), scenarios.len()));
    for scenario in &scenarios {
        assert!(!scenario.prompt.contains('{'), "{}", scenario.prompt);
        // Coordinates, or a state's code.
        assert!(scenario.prompt.contains('('), "{}", scenario.prompt);
    }
}

#[test]
fn the_same_seed_gives_the_same_scenarios_and_another_one_others() {
    assert_eq!(generate(SEED), generate(SEED));
    assert_ne!(generate(SEED), generate(SEED + 1));
}

#[test]
fn kinds_are_phrased_in_five_ways_at_least() {
    for (kind, ..) in KINDS {
        for measure in [
            "temperature",
            "rain",
            "wind_speed",
            "wind_direction",
            "humidity",
            "grid",
            "office",
        ] {
            assert!(templates::templates(kind, measure).len() >= 5, "{}", kind.name());
        }
    }
}
