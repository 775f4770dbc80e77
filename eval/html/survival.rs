//! The chart of how deep drafts are accepted.
use crate::draw::{Axis, label, polyline};
use crate::html::chart::{BOTTOM, Chart, RIGHT, TOP, colour, marker, shares};
use crate::html::markup::{Table, values};
use crate::html::panel::Panel;

const LEFT: f64 = 52.0;

/// The share of passes that accept at least 0, 1, 2, … drafted tokens.
pub(crate) fn figure(panel: &Panel) -> String {
    let curves = || {
        panel
            .series
            .iter()
            .map(|series| &series.setting.overall.survival)
    };
    let deepest = curves().map(Vec::len).max().unwrap_or(0);
    if deepest == 0 {
        return String::new();
    }
    let mut svg = String::new();
    let y = shares(&mut svg, (LEFT, RIGHT), (TOP, BOTTOM), 1.0);
    let x = Axis {
        from: LEFT + 8.0,
        to: RIGHT,
        low: 0.0,
        high: deepest as f64,
    };
    for depth in (0..=deepest).step_by(deepest.div_ceil(12)) {
        let place = (x.at(depth as f64), BOTTOM + 19.0);
        label(&mut svg, place, "middle", &depth.to_string());
    }
    let middle = (x.at(deepest as f64 / 2.0), BOTTOM + 38.0);
    label(&mut svg, middle, "middle", "accepted tokens, at least");
    let paints = panel.series.iter().map(|series| series.paint);
    for (at, survival) in paints.zip(curves()) {
        let all = std::iter::once(&1.0).chain(survival).enumerate();
        let points: Vec<(f64, f64)> = all
            .map(|(depth, &share)| (x.at(depth as f64), y.at(share)))
            .collect();
        let paint = format!("class=\"curve {}\"", colour(at));
        polyline(&mut svg, points.iter().copied(), &paint);
        points.iter().for_each(|&point| marker(&mut svg, point, at));
    }
    let (table, told) = figures(panel, deepest);
    let chart = Chart {
        id: format!("survival-{}", panel.number),
        title: "Passes that accept at least so many drafted tokens".to_owned(),
        of: panel.title.clone(),
        description: format!("Share of passes that accept at least 1, 2, … tokens. {told}."),
        height: BOTTOM + 48.0,
        svg,
    };
    chart.figure(&panel.legend(), &table)
}

/// The same as a table and in words.
fn figures(panel: &Panel, deepest: usize) -> (Table, String) {
    let mut table = Table::new(
        "Share of passes that accept at least 1, 2, … tokens",
        1,
        &["setting"],
    );
    table
        .head
        .extend((1..=deepest).map(|depth| format!("≥ {depth}")));
    let mut told = Vec::new();
    for series in &panel.series {
        let survival = &series.setting.overall.survival;
        let cell = |depth: usize| {
            survival
                .get(depth)
                .map_or("–".to_owned(), |share| format!("{share:.3}"))
        };
        let name = std::iter::once(series.label.clone());
        table
            .rows
            .push(name.chain((0..deepest).map(cell)).collect());
        told.push(format!("{}: {}", series.label, values(survival)));
    }
    (table, told.join("; "))
}
