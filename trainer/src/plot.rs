//! `reward.svg`: mean reward and success over the steps of a run.

use std::path::Path;

use plotters::prelude::*;

use crate::error::TrainError;

/// One step of the plot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlotRow {
    /// Number of the step.
    pub step: u64,
    /// Mean reward of the step's episodes.
    pub reward: f64,
    /// Share of the step's episodes that succeeded, 0 to 1; `None` where the environment doesn't say.
    pub success: Option<f64>,
}

const SIZE: (u32, u32) = (800, 420);
const REWARD_COLOUR: RGBColor = RGBColor(0, 90, 160);
const SUCCESS_COLOUR: RGBColor = RGBColor(200, 90, 0);
/// Steps in the moving mean that is drawn over the single steps.
const SMOOTHING: usize = 5;

/// Draws the rows, thin lines for the single steps and thick ones for their moving mean, to an SVG file.
///
/// # Errors
/// The file can't be written.
pub fn reward_svg(rows: &[PlotRow], path: &Path) -> Result<(), TrainError> {
    let drawing = draw(rows).map_err(|error| TrainError::Plot {
        path: path.to_owned(),
        reason: error.to_string(),
    })?;
    std::fs::write(path, drawing).map_err(TrainError::io("write", path))
}

fn draw(rows: &[PlotRow]) -> Result<String, Box<dyn std::error::Error>> {
    let mut drawing = String::new();
    {
        let reward: Vec<(f64, f64)> = rows.iter().map(|row| (row.step as f64, row.reward)).collect();
        let success: Vec<(f64, f64)> = rows
            .iter()
            .filter_map(|row| Some((row.step as f64, row.success?)))
            .collect();
        let values = || {
            reward
                .iter()
                .chain(&success)
                .map(|(_, value)| *value)
                .filter(|value| value.is_finite())
        };
        let (low, high) = (values().fold(0.0, f64::min), values().fold(1.0, f64::max));
        let first = rows.first().map_or(0.0, |row| row.step as f64);
        let last = rows.last().map_or(1.0, |row| row.step as f64).max(first + 1.0);
        let root = SVGBackend::with_string(&mut drawing, SIZE).into_drawing_area();
        root.fill(&WHITE)?;
        let mut chart = ChartBuilder::on(&root)
            .caption("Reward and success per step", ("sans-serif", 20))
            .margin(12)
            .x_label_area_size(36)
            .y_label_area_size(48)
            .build_cartesian_2d(first..last, low..high)?;
        chart
            .configure_mesh()
            .x_desc("step")
            .x_label_formatter(&|step| format!("{step:.0}"))
            .y_label_formatter(&|value| format!("{value:.1}"))
            .light_line_style(WHITE)
            .draw()?;
        for (points, colour, name) in [
            (reward, REWARD_COLOUR, "mean reward"),
            (success, SUCCESS_COLOUR, "success"),
        ] {
            if points.is_empty() {
                continue;
            }
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.mix(0.35)))?;
            let smooth = moving_mean(&points);
            chart
                .draw_series(LineSeries::new(smooth, colour.stroke_width(3)))?
                .label(name)
                .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(3)));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::LowerRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK.mix(0.3))
            .draw()?;
        root.present()?;
    }
    Ok(drawing)
}

/// Mean of the last steps up to each.
fn moving_mean(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    (0..points.len())
        .map(|index| {
            let window = &points[(index + 1).saturating_sub(SMOOTHING)..=index];
            (
                points[index].0,
                window.iter().map(|(_, value)| value).sum::<f64>() / window.len() as f64,
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_has_both_lines_and_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reward.svg");
        let rows: Vec<PlotRow> = (1..=20)
            .map(|step| PlotRow {
                step,
                reward: step as f64 / 20.0,
                success: Some(0.5),
            })
            .collect();
        reward_svg(&rows, &path).unwrap();
        let drawing = std::fs::read_to_string(&path).unwrap();
        assert!(drawing.starts_with("<svg") && drawing.trim_end().ends_with("</svg>"));
        assert!(drawing.matches("<polyline").count() >= 6, "four lines and two legends");
        assert!(drawing.contains("mean reward") && drawing.contains("success"));
    }

    #[test]
    fn no_row_or_one_row_is_a_plot_too() {
        draw(&[]).unwrap();
        let drawing = draw(&[PlotRow {
            step: 1,
            reward: -2.0,
            success: None,
        }])
        .unwrap();
        assert!(!drawing.contains(">\nsuccess\n<"));
    }
}
