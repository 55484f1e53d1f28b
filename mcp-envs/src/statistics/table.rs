//! Results of several policies side by side.

use std::collections::BTreeSet;

use super::{Results, SuccessRate};

/// One policy of a table.
#[derive(Clone, Copy, Debug)]
pub struct Column<'a> {
    /// Its heading, such as "base" or "GRPO".
    pub label: &'a str,
    /// Its results; `None` leaves the column empty.
    pub results: Option<&'a Results>,
}

/// The table for a README: a row for each kind of question, the last for all of them with 95 % intervals.
pub fn markdown_table(columns: &[Column<'_>]) -> String {
    let rows = rows(columns);
    let mut text = String::new();
    for (position, row) in rows.iter().enumerate() {
        text.push_str(&format!("| {} |\n", row.join(" | ")));
        if position == 0 {
            text.push_str(&format!("| --- |{}\n", " ---: |".repeat(row.len() - 1)));
        }
    }
    text
}

/// The same for a terminal, in aligned columns.
pub fn text_table(columns: &[Column<'_>]) -> String {
    let rows = rows(columns);
    let width_of = |column: usize| {
        rows.iter()
            .map(|row| row[column].chars().count())
            .max()
            .unwrap_or_default()
    };
    let widths: Vec<usize> = (0..=columns.len() + 1).map(width_of).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (position, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Words to the left, figures to the right.
            let cell = if position == 0 {
                format!("{cell:<width$}")
            } else {
                format!("  {cell:>width$}")
            };
            line.push_str(&cell);
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// Cells: kind, number of scenarios, then a cell for each column.
fn rows(columns: &[Column<'_>]) -> Vec<Vec<String>> {
    let results: Vec<Option<&Results>> = columns.iter().map(|column| column.results).collect();
    let kinds: BTreeSet<&str> = results
        .iter()
        .flatten()
        .flat_map(|results| results.by_kind.keys())
        .map(String::as_str)
        .collect();
    let row = |name: String, rates: Vec<Option<&SuccessRate>>, cell: fn(&SuccessRate) -> String| {
        let n = rates.iter().flatten().map(|rate| rate.n).max().unwrap_or_default();
        let cells = rates.into_iter().map(|rate| rate.map_or_else(|| "–".to_owned(), cell));
        [name, n.to_string()].into_iter().chain(cells).collect::<Vec<_>>()
    };
    let header = ["kind of question", "n"]
        .into_iter()
        .chain(columns.iter().map(|column| column.label))
        .map(str::to_owned);
    let mut rows = vec![header.collect()];
    for kind in kinds {
        let rates = results
            .iter()
            .map(|results| results.and_then(|results| results.by_kind.get(kind)))
            .collect();
        rows.push(row(kind.replace('_', " "), rates, percent));
    }
    let all: Vec<Option<&SuccessRate>> = results
        .iter()
        .map(|results| results.map(|results| &results.all))
        .collect();
    rows.push(row("all".to_owned(), all.clone(), percent_with_interval));
    let n = rows.last().map(|row: &Vec<String>| row[1].clone()).unwrap_or_default();
    let rewards = all
        .into_iter()
        .map(|rate| rate.map_or_else(|| "–".to_owned(), |rate| format!("{:.3}", rate.mean_reward)));
    rows.push(["mean reward".to_owned(), n].into_iter().chain(rewards).collect());
    rows
}

fn percent(rate: &SuccessRate) -> String {
    format!("{:.0} %", 100.0 * rate.success)
}

fn percent_with_interval(rate: &SuccessRate) -> String {
    format!(
        "{:.1} % ({:.0}–{:.0})",
        100.0 * rate.success,
        100.0 * rate.low,
        100.0 * rate.high
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn rate(success: f64, n: usize) -> SuccessRate {
        SuccessRate {
            success,
            low: success / 2.0,
            high: (1.0 + success) / 2.0,
            n,
            mean_reward: success,
        }
    }

    fn results(wind: f64, alerts: f64) -> Results {
        let by_kind = BTreeMap::from([
            ("wind".to_owned(), rate(wind, 10)),
            ("active_alerts".to_owned(), rate(alerts, 10)),
        ]);
        Results {
            all: rate((wind + alerts) / 2.0, 20),
            n_failed: 0,
            by_kind,
        }
    }

    #[test]
    fn tables_show_every_kind_and_leave_missing_columns_empty() {
        let (base, grpo) = (results(0.1, 0.0), results(0.9, 1.0));
        let columns = [
            Column {
                label: "base",
                results: Some(&base),
            },
            Column {
                label: "warm start",
                results: None,
            },
            Column {
                label: "GRPO",
                results: Some(&grpo),
            },
        ];
        let expected = "\
| kind of question | n | base | warm start | GRPO |
| --- | ---: | ---: | ---: | ---: |
| active alerts | 10 | 0 % | – | 100 % |
| wind | 10 | 10 % | – | 90 % |
| all | 20 | 5.0 % (2–52) | – | 95.0 % (48–98) |
| mean reward | 20 | 0.050 | – | 0.950 |
";
        assert_eq!(markdown_table(&columns), expected);
        let text = text_table(&columns);
        let widths: Vec<usize> = text.lines().map(|line| line.chars().count()).collect();
        assert_eq!(text.lines().count(), 5);
        assert!(widths.iter().all(|width| *width == widths[0]), "{text}");
    }
}
