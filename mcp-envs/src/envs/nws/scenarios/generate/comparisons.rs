//! Questions that compare: the warmest day, two days, two places. The right one leads by enough to be unmistakable.

use super::{Dice, ExpectedAnswer, Generator, Kind, Period, Place, Question, SHOWN_PERIODS};
use super::{at, fill, forecast_call, line_of, ways_to_say, when, words};

/// Degrees by which the warmest day leads.
const WARMEST_LEAD: i64 = 2;
/// Degrees and percent by which two places or days differ.
const WARMER_LEAD: i64 = 8;
const RAINIER_LEAD: i64 = 30;

impl Generator {
    pub(super) fn warmest_day(&self, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = self.place(turn)?;
        let periods = self.weather.periods(place.latitude, place.longitude)?;
        let mut shown: Vec<&Period> = periods.get(..SHOWN_PERIODS)?.iter().collect();
        shown.sort_by_key(|period| std::cmp::Reverse(period.temperature));
        let (warmest, rest) = shown.split_first()?;
        if warmest.temperature - rest.first()?.temperature < WARMEST_LEAD {
            return None;
        }
        let answer = ExpectedAnswer::Names {
            groups: vec![ways_to_say(&warmest.name)],
            others: rest.iter().flat_map(|period| ways_to_say(&period.name)).collect(),
            allowed: vec![warmest.temperature],
        };
        // All of them have to be seen: the line of the warmest one alone does not say that it is.
        let mut evidence: Vec<String> = shown.iter().map(|period| line_of(&period.name)).collect();
        evidence.push(warmest.temperature.to_string());
        let evidence: Vec<&str> = evidence.iter().map(String::as_str).collect();
        let call = forecast_call(place, &evidence);
        let facts = self.facts(&[place.label()], "warmest", vec![call], answer);
        let prompt = fill(Kind::WarmestDay, "warmest", dice, &[("{place}", &at(place))])?;
        Some(Question { prompt, facts })
    }

    pub(super) fn day_comparison(&self, turn: usize, dice: &mut Dice) -> Option<Question> {
        let place = self.place(turn)?;
        let periods = self.weather.periods(place.latitude, place.longitude)?;
        let mut days: Vec<&Period> = periods
            .get(..SHOWN_PERIODS)?
            .iter()
            .filter(|period| period.is_daytime)
            .collect();
        dice.shuffle(&mut days);
        let (first, second) = (*days.first()?, *days.get(1)?);
        if (first.rain - second.rain).abs() < RAINIER_LEAD {
            return None;
        }
        let (right, wrong) = if first.rain > second.rain {
            (first, second)
        } else {
            (second, first)
        };
        let answer = ExpectedAnswer::Choice {
            right: ways_to_say(&right.name),
            wrong: ways_to_say(&wrong.name),
            allowed: vec![right.rain, wrong.rain],
        };
        let (first_rain, second_rain) = (first.rain.to_string(), second.rain.to_string());
        let (first_line, second_line) = (line_of(&first.name), line_of(&second.name));
        let call = forecast_call(place, &[&first_line, &first_rain, &second_line, &second_rain]);
        let mut facts = self.facts(&[place.label()], "rain", vec![call], answer);
        facts.periods = vec![first.name.clone(), second.name.clone()];
        let parts = [
            ("{place}", at(place)),
            ("{first}", when(&first.name)),
            ("{second}", when(&second.name)),
        ];
        let parts = parts.each_ref().map(|(name, value)| (*name, value.as_str()));
        let prompt = fill(Kind::DayComparison, "rain", dice, &parts)?;
        Some(Question { prompt, facts })
    }

    pub(super) fn place_comparison(&self, index: usize, turn: usize, dice: &mut Dice) -> Option<Question> {
        let first = self.place(turn)?;
        let second = *dice.pick(&self.ground.places)?;
        // One name must not be part of the other.
        let (first_words, second_words) = (words(&first.name), words(&second.name));
        if first_words.iter().any(|word| second_words.contains(word)) {
            return None;
        }
        let period_index = dice.between(0, SHOWN_PERIODS as i64 - 1) as usize;
        let period_of = |place: &Place| {
            self.weather
                .periods(place.latitude, place.longitude)
                .and_then(|periods| periods.get(period_index).cloned())
        };
        let (first_period, second_period) = (period_of(first)?, period_of(second)?);
        let (measure, lead, value): (_, _, fn(&Period) -> i64) = if index % 3 == 2 {
            ("rain", RAINIER_LEAD, |period| period.rain)
        } else {
            ("temperature", WARMER_LEAD, |period| period.temperature)
        };
        let (first_value, second_value) = (value(&first_period), value(&second_period));
        if (first_value - second_value).abs() < lead {
            return None;
        }
        let (right, wrong) = if first_value > second_value {
            (first, second)
        } else {
            (second, first)
        };
        let answer = ExpectedAnswer::Choice {
            right: vec![right.name.clone()],
            wrong: vec![wrong.name.clone()],
            allowed: vec![first_value, second_value],
        };
        let name = &first_period.name;
        let line = line_of(name);
        let calls = vec![
            forecast_call(first, &[&line, &first_value.to_string()]),
            forecast_call(second, &[&line, &second_value.to_string()]),
        ];
        let mut facts = self.facts(&[first.label(), second.label()], measure, calls, answer);
        facts.periods = vec![name.clone()];
        let parts = [("{place}", at(first)), ("{other}", at(second)), ("{when}", when(name))];
        let parts = parts.each_ref().map(|(name, value)| (*name, value.as_str()));
        let prompt = fill(Kind::PlaceComparison, measure, dice, &parts)?;
        Some(Question { prompt, facts })
    }
}
