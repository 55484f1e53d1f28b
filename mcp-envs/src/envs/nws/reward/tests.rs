//! What agents that do not do the work earn, over all scenarios; and what one that does earns.

use serde_json::{Value, json};
use trajectory::ToolCall;

use super::*;
use crate::environment::Environment;
use crate::nws::scenarios::{ExpectedAnswer, Target};
use crate::nws::teacher::Teacher;
use crate::nws::test_world::{World, text};
use crate::scenario::Scenario;

/// Success rate and mean reward.
#[derive(Debug, Default)]
struct Tally {
    n: usize,
    successes: usize,
    reward: f64,
}

impl Tally {
    fn add(&mut self, reward: &Reward) {
        self.n += 1;
        self.successes += usize::from(reward.is_success());
        self.reward += reward.reward;
    }

    fn success(&self) -> f64 {
        self.successes as f64 / self.n as f64
    }

    fn mean(&self) -> f64 {
        self.reward / self.n as f64
    }
}

fn facts(scenario: &Scenario) -> Facts {
    serde_json::from_value(scenario.data.clone()).unwrap()
}

/// Makes exactly the needed calls.
async fn needed_calls(world: &World, scenario: &Scenario) -> Vec<ToolCall> {
    let mut calls = Vec::new();
    for call in facts(scenario).calls {
        let arguments = match call.target {
            Target::Point(latitude, longitude) => json!({ "latitude": latitude, "longitude": longitude }),
            Target::State(state) => json!({ "state": state }),
            Target::Station(station) => json!({ "station": station }),
        };
        calls.push(world.call(&call.tools[0], for_tool(&call.tools[0], &arguments)).await);
    }
    calls
}

/// The same place for a tool, and everything that it has of it.
fn for_tool(tool: &str, arguments: &Value) -> Value {
    let mut arguments = arguments.clone();
    if let Some(arguments) = arguments.as_object_mut() {
        arguments.retain(|name, _| name != "period" && name != "hour");
    }
    match tool {
        "get_forecast" => arguments["period"] = json!("all"),
        "get_hourly_forecast" => arguments["hour"] = json!("all"),
        _ => {}
    }
    arguments
}

#[tokio::test]
async fn the_right_calls_and_a_right_answer_earn_everything() {
    for seed in [crate::nws::test_world::SEED, 1] {
        let world = World::with_seed(seed).await;
        let scenarios = world.environment.scenarios().unwrap();
        let teacher = Teacher::new(&scenarios);
        // All of the default seed, some of another.
        let step = if seed == crate::nws::test_world::SEED { 1 } else { 5 };
        for scenario in scenarios.iter().step_by(step) {
            let (calls, answer) = world.taught(&teacher, scenario).await;
            let reward = world.score(scenario, &calls, &answer);
            let shown: Vec<String> = calls.iter().map(text).collect();
            assert!(reward.is_success(), "{scenario:?}\n{shown:?}\n{answer}\n{reward:?}");
            assert_eq!(reward.reward, 1.0);
        }
    }
}

#[tokio::test]
async fn answers_without_work_earn_nothing() {
    let world = World::new().await;
    let scenarios = world.environment.scenarios().unwrap();
    let teacher = Teacher::new(&scenarios);
    for scenario in scenarios.iter().step_by(5) {
        let (_, answer) = world.taught(&teacher, scenario).await;
        let constants = [
            "70 F",
            "Tuesday",
            "There are no active alerts.",
            "The service has no data.",
            "NW",
            "20%",
        ];
        for guess in constants.iter().copied().chain([answer.as_str(), &scenario.prompt, ""]) {
            assert_eq!(world.score(scenario, &[], guess).reward, 0.0, "{} {guess}", scenario.id);
        }
    }
}

#[tokio::test]
async fn right_calls_with_lazy_answers_score_low() {
    let world = World::new().await;
    let mut tallies: Vec<(&str, Tally)> = ["constant", "echo", "copy", "copy first line", "silence", "all at once"]
        .map(|name| (name, Tally::default()))
        .into();
    for scenario in world.environment.scenarios().unwrap() {
        let calls = needed_calls(&world, &scenario).await;
        let results: Vec<String> = calls.iter().map(text).collect();
        let copy = results.join("\n");
        let first_line = results
            .last()
            .and_then(|result| result.lines().next())
            .unwrap_or_default()
            .to_owned();
        let everything = "No data. There are no active alerts. 70 F on Tuesday, 20%, NW, Duluth";
        let answers = [
            "It will be 70 F on Tuesday.",
            &scenario.prompt,
            &copy,
            &first_line,
            "",
            everything,
        ];
        for ((_, tally), answer) in tallies.iter_mut().zip(answers) {
            tally.add(&world.score(&scenario, &calls, answer));
        }
    }
    for (name, tally) in &tallies {
        println!(
            "{name}: success {:.3}, mean reward {:.3}",
            tally.success(),
            tally.mean()
        );
        // "No active alerts in MN." is the answer, copied or not, and so is one half of a choice.
        assert!(tally.success() < 0.06, "{name} {tally:?}");
        assert!(tally.mean() < 0.36, "{name} {tally:?}");
    }
}

#[tokio::test]
async fn calling_every_tool_scores_low() {
    let world = World::new().await;
    let scenarios = world.environment.scenarios().unwrap();
    let teacher = Teacher::new(&scenarios);
    let mut tally = Tally::default();
    for scenario in scenarios.iter().step_by(7) {
        let (mut calls, answer) = world.taught(&teacher, scenario).await;
        let arguments = calls[0].arguments.clone();
        for tool in [
            "get_forecast",
            "get_hourly_forecast",
            "get_current_weather",
            "get_alerts",
            "find_stations",
            "get_point",
        ] {
            calls.push(world.call(tool, for_tool(tool, &arguments)).await);
        }
        // Even with the right answer.
        tally.add(&world.score(scenario, &calls, &answer));
    }
    println!(
        "every tool: success {:.3}, mean reward {:.3}",
        tally.success(),
        tally.mean()
    );
    assert!(tally.success() == 0.0 && tally.mean() < 0.25, "{tally:?}");
}

#[tokio::test]
async fn each_right_step_earns_something() {
    let world = World::new().await;
    let scenarios = world.environment.scenarios().unwrap();
    let chain = scenarios
        .iter()
        .find(|scenario| scenario.kind == "station_observation")
        .unwrap();
    let calls = needed_calls(&world, chain).await;
    let wrong_place = world
        .call("find_stations", json!({ "latitude": 40.0, "longitude": -100.0 }))
        .await;
    let answer = "I could not find it.";
    let nothing = world.score(chain, &[], answer).reward;
    let tool_only = world.score(chain, &[wrong_place], answer).reward;
    let first_step = world.score(chain, &calls[..1], answer).reward;
    let both_steps = world.score(chain, &calls, answer).reward;
    let Some(Value::Object(mut rest)) = calls[1]
        .result
        .clone()
        .map(|result| result["structuredContent"].clone())
    else {
        panic!("the second call has structure");
    };
    let value = rest.remove("temperature").unwrap();
    let unclean = world.score(chain, &calls, &format!("{value} F, perhaps 12 F")).reward;
    let clean = world.score(chain, &calls, &format!("{value} F")).reward;
    let ladder = [nothing, tool_only, first_step, both_steps, unclean, clean];
    assert!(ladder.windows(2).all(|pair| pair[0] < pair[1]), "{ladder:?}");
    assert!(nothing == 0.0 && unclean <= 0.5 && clean == 1.0, "{ladder:?}");
}

#[tokio::test]
async fn an_error_or_too_few_days_back_nothing() {
    let world = World::new().await;
    let scenarios = world.environment.scenarios().unwrap();
    let scenario = scenarios
        .iter()
        .find(|scenario| scenario.kind == "temperature" && facts(scenario).periods == ["Thursday"]);
    let scenario = scenario.unwrap();
    let mut calls = needed_calls(&world, scenario).await;
    let teacher = Teacher::new(&scenarios);
    let (_, answer) = world.taught(&teacher, scenario).await;
    let mut arguments = calls[0].arguments.clone();
    arguments["days"] = json!(1);
    let too_few = world.call("get_forecast", arguments).await;
    assert!(world.score(scenario, &[too_few], &answer).reward <= 0.1 + 1e-9);
    calls[0].is_error = true;
    assert!(world.score(scenario, &calls, &answer).reward <= 0.1 + 1e-9);
    calls[0].is_error = false;
    assert_eq!(world.score(scenario, &calls, &answer).reward, 1.0);
}

/// The first scenario of a kind that has such facts.
fn find<'a>(scenarios: &'a [Scenario], kind: &str, fits: impl Fn(&Facts) -> bool) -> &'a Scenario {
    let found = scenarios
        .iter()
        .find(|scenario| scenario.kind == kind && fits(&facts(scenario)));
    found.unwrap()
}

#[tokio::test]
async fn another_states_silence_backs_nothing() {
    let world = World::new().await;
    let scenarios = world.environment.scenarios().unwrap();
    let quiet = find(&scenarios, "alerts", |facts| {
        matches!(facts.answer, ExpectedAnswer::Nothing { .. })
    });
    let asked = &facts(quiet).calls[0].target;
    let Target::State(code) = asked else {
        panic!("alerts are of a state")
    };
    let other = scenarios.iter().find_map(|scenario| match &facts(scenario) {
        Facts {
            calls,
            answer: ExpectedAnswer::Nothing { of, .. },
            ..
        } if of == "alerts" && calls[0].target != *asked => Some(calls[0].target.clone()),
        _ => None,
    });
    let Some(Target::State(other)) = other else {
        panic!("another state is quiet too")
    };
    let answer = format!("There are no active alerts in {code}.");
    let name = &facts(quiet).subjects[0];
    for (arguments, expected) in [
        (json!({ "state": code }), true),
        (json!({ "state": name }), true),
        (json!({ "state": code.to_lowercase() }), true),
        (json!({ "state": other }), false),
        // That there is no extreme one leaves room for others.
        (json!({ "state": code, "severity": "extreme" }), false),
    ] {
        let call = world.call("get_alerts", arguments.clone()).await;
        assert!(!call.is_error, "{arguments}");
        let reward = world.score(quiet, &[call], &answer);
        assert_eq!(reward.is_success(), expected, "{arguments} {reward:?}");
    }
}

#[tokio::test]
async fn the_warmest_day_alone_does_not_show_that_it_is_the_warmest() {
    let world = World::new().await;
    let scenarios = world.environment.scenarios().unwrap();
    let teacher = Teacher::new(&scenarios);
    for warmest in ["Thursday", "Tuesday"] {
        let scenario = find(&scenarios, "warmest_day", |facts| match &facts.answer {
            ExpectedAnswer::Names { groups, .. } => groups[0] == [warmest],
            _ => false,
        });
        let (calls, answer) = world.taught(&teacher, scenario).await;
        assert!(world.score(scenario, &calls, &answer).is_success());
        for (name, value) in [("period", json!(warmest)), ("days", json!(3))] {
            let mut arguments = calls[0].arguments.clone();
            arguments[name] = value;
            let call = world.call("get_forecast", arguments).await;
            assert!(!call.is_error);
            assert!(!world.score(scenario, &[call], &answer).is_success(), "{name}");
        }
    }
}

#[tokio::test]
async fn a_night_shows_nothing_of_its_day() {
    let world = World::new().await;
    let scenarios = world.environment.scenarios().unwrap();
    let scenario = find(&scenarios, "temperature", |facts| facts.periods == ["Thursday"]);
    let (mut calls, answer) = world.taught(&Teacher::new(&scenarios), scenario).await;
    assert!(world.score(scenario, &calls, &answer).is_success());
    let value = facts(scenario).calls[0].evidence[1].clone();
    calls[0].result = Some(json!({ "content": [{ "type": "text", "text": format!("Thursday Night: {value} F") }] }));
    let reward = world.score(scenario, &calls, &answer);
    assert!(!reward.is_success(), "{reward:?}");
}

#[tokio::test]
async fn a_list_of_offices_names_none() {
    let world = World::new().await;
    let scenarios = world.environment.scenarios().unwrap();
    let scenario = find(&scenarios, "grid_point", |facts| facts.measure == "office");
    let (calls, answer) = world.taught(&Teacher::new(&scenarios), scenario).await;
    assert!(world.score(scenario, &calls, &answer).is_success());
    let offices = crate::nws::geography::geography().offices.iter();
    let all: Vec<&str> = offices.map(|office| office.id.as_str()).collect();
    for guess in all.windows(30).map(|ids| ids.join(" ")) {
        assert!(!world.score(scenario, &calls, &guess).is_success(), "{guess}");
    }
}
