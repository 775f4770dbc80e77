//! The chart of how many tokens a pass accepts.
use std::fmt::Write;

use crate::draw::label;
use crate::html::chart::{BOTTOM, Chart, RIGHT, colour, marker, shares};
use crate::html::markup::{Table, percent};
use crate::html::panel::Panel;

const LEFT: f64 = 52.0;
const TOP: f64 = 24.0;
/// The widest bar.
const BAR: f64 = 34.0;

/// The share of passes that accept exactly 0, 1, 2, … drafted tokens.
pub(crate) fn figure(panel: &Panel) -> String {
    let all: Vec<Vec<f64>> = panel
        .series
        .iter()
        .map(|series| rates(&series.setting.overall.accepted_histogram))
        .collect();
    let most = all.iter().map(Vec::len).max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let highest = all.iter().flatten().copied().fold(0.0, f64::max);
    let mut svg = String::new();
    let y = shares(&mut svg, (LEFT, RIGHT), (TOP, BOTTOM), highest);
    let group = (RIGHT - LEFT) / most as f64;
    let width = (0.82 * group / all.len() as f64).min(BAR);
    for accepted in 0..most {
        let middle = LEFT + (accepted as f64 + 0.5) * group;
        let start = middle - 0.5 * width * all.len() as f64;
        for (at, shares) in all.iter().enumerate() {
            let share = shares.get(accepted).copied().unwrap_or(0.0);
            let left = start + at as f64 * width;
            bar(
                &mut svg,
                (left, width),
                (share, y.at(share)),
                panel.series[at].paint,
            );
            if all.len() == 1 {
                let place = (left + 0.5 * width, y.at(share) - 9.0);
                label(&mut svg, place, "middle", &percent(Some(share), None));
            }
        }
        if accepted % most.div_ceil(12) == 0 {
            label(
                &mut svg,
                (middle, BOTTOM + 19.0),
                "middle",
                &accepted.to_string(),
            );
        }
    }
    label(
        &mut svg,
        (0.5 * (LEFT + RIGHT), BOTTOM + 38.0),
        "middle",
        "accepted tokens",
    );
    let (table, told) = figures(panel, &all, most);
    let chart = Chart {
        id: format!("histogram-{}", panel.number),
        title: "Accepted tokens of a pass".to_owned(),
        of: panel.title.clone(),
        description: format!("Per cent of the passes that accept 0, 1, 2, … tokens. {told}."),
        height: BOTTOM + 48.0,
        svg,
    };
    chart.figure(&panel.legend(), &table)
}

/// The bar of a share that ends at `top`, with its marker.
fn bar(svg: &mut String, (left, width): (f64, f64), (share, top): (f64, f64), paint: usize) {
    _ = writeln!(
        svg,
        "<rect class=\"bar {}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        colour(paint),
        (width - 1.0).max(1.0),
        BOTTOM - top
    );
    if share > 0.0 {
        marker(svg, (left + 0.5 * width, top), paint);
    }
}

/// Of counts, which a report that was altered may have as large as it likes, the share of each.
fn rates(counts: &[u64]) -> Vec<f64> {
    let total: f64 = counts.iter().map(|&count| count as f64).sum();
    let share = |&count: &u64| count as f64 / total;
    if total == 0.0 {
        Vec::new()
    } else {
        counts.iter().map(share).collect()
    }
}

/// The same as a table and in words.
fn figures(panel: &Panel, all: &[Vec<f64>], most: usize) -> (Table, String) {
    let mut table = Table::new(
        "Per cent of the passes that accept so many tokens",
        1,
        &["setting"],
    );
    table
        .head
        .extend((0..most).map(|accepted| accepted.to_string()));
    let mut told = Vec::new();
    for (series, shares) in panel.series.iter().zip(all) {
        let cells: Vec<String> = (0..most)
            .map(|at| percent(shares.get(at).copied(), None))
            .collect();
        told.push(format!("{}: {}", series.label, cells.join(" ")));
        table
            .rows
            .push(std::iter::once(series.label.clone()).chain(cells).collect());
    }
    (table, told.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_any_size_have_shares() {
        assert_eq!(rates(&[1, 3]), [0.25, 0.75]);
        assert_eq!(rates(&[u64::MAX, u64::MAX]), [0.5, 0.5]);
        assert_eq!(rates(&[0, 0]), [0.0; 0]);
    }
}
