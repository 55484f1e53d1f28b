//! Episodes as a table.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use trajectory::{Episode, EpisodeState};

const TITLES: [&str; 7] = ["EPISODE", "OPENED", "SPLIT", "SCENARIO", "GROUP", "REWARD", "STATE"];

/// One line an episode, with aligned columns.
pub(super) fn table(episodes: &[Episode]) -> String {
    let mut rows = vec![TITLES.map(str::to_owned)];
    rows.extend(episodes.iter().map(row));
    let widths: Vec<usize> = (0..TITLES.len())
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        text.push_str(cells.join("  ").trim_end());
        text.push('\n');
    }
    text
}

fn row(episode: &Episode) -> [String; 7] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let mut state = episode.state.to_string();
    if episode.state == EpisodeState::Closed
        && let Some(reason) = &episode.stop_reason
    {
        state = reason.clone();
    }
    if let Some(failure) = &episode.failure {
        state = format!("failed ({})", failure.cause);
    }
    if episode.tainted.is_some() {
        state.push_str(", tainted");
    }
    [
        episode.id.to_string(),
        clock(episode.opened_at_ms),
        or_dash(episode.split.map(|split| split.to_string())),
        or_dash(episode.scenario_id.as_ref().map(ToString::to_string)),
        or_dash(episode.group_id.as_ref().map(ToString::to_string)),
        or_dash(episode.reward.map(|reward| format!("{reward:.3}"))),
        state,
    ]
}

/// Local time.
pub(super) fn clock(milliseconds: i64) -> String {
    match Timestamp::from_millisecond(milliseconds) {
        Ok(time) => time
            .to_zoned_datetime(TimeZone::system())
            .strftime("%Y-%m-%d %H:%M:%S")
            .to_string(),
        Err(_) => "-".to_owned(),
    }
}
