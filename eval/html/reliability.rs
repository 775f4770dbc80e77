//! Charts of how the drafter's confidence goes with what is accepted.
use crate::draw::{Axis, label, line, polyline};
use crate::html::chart::{Chart, TOP, WIDTH, colour, marker, shares};
use crate::html::markup::Table;
use crate::html::panel::{Panel, Series, legend};
use crate::interval::with_digits;
use crate::reliability::{CalibrationReport, ReliabilityReport};

const LEFT: f64 = 52.0;
const RIGHT: f64 = WIDTH - 24.0;
const BOTTOM: f64 = 292.0;
/// Percent between the marks of confidence.
const STEP: u32 = 25;

/// Of which confidence, in its title and in the page's references.
type Curve = (
    &'static str,
    &'static str,
    fn(&CalibrationReport) -> Option<&ReliabilityReport>,
);

const CURVES: [Curve; 2] = [
    (
        "Is the likeliest token as often right as the drafter believes?",
        "reliability",
        |found| Some(&found.likeliest),
    ),
    (
        "Is a step as often accepted as the drafter's head guesses?",
        "reliability-head",
        |found| found.head.as_ref(),
    ),
];

/// One chart for each kind of confidence that the drafters of the panel have.
pub(crate) fn figures(panel: &Panel) -> String {
    CURVES.iter().map(|curve| figure(panel, curve)).collect()
}

fn figure(panel: &Panel, (title, id, of): &Curve) -> String {
    let known = |series: &'_ &Series| series.setting.calibration.as_ref().and_then(of).is_some();
    let series: Vec<&Series> = panel.series.iter().filter(known).collect();
    let curves = || {
        series.iter().filter_map(|series| {
            let found = series.setting.calibration.as_ref().and_then(of)?;
            Some((*series, found))
        })
    };
    if series.is_empty() {
        return String::new();
    }
    let mut svg = String::new();
    let y = shares(&mut svg, (LEFT, RIGHT), (TOP, BOTTOM), 1.0);
    let x = Axis {
        from: LEFT,
        to: RIGHT,
        low: 0.0,
        high: 1.0,
    };
    for percent in (0..=100).step_by(STEP as usize) {
        let at = x.at(f64::from(percent) / 100.0);
        label(
            &mut svg,
            (at, BOTTOM + 19.0),
            "middle",
            &format!("{percent} %"),
        );
    }
    let middle = (x.at(0.5), BOTTOM + 38.0);
    label(&mut svg, middle, "middle", "the drafter's confidence");
    let (from, to) = ((x.at(0.0), y.at(0.0)), (x.at(1.0), y.at(1.0)));
    line(&mut svg, from, to, "class=\"diagonal\"");
    for (series, found) in curves() {
        let points = found.bins.iter();
        let points: Vec<(f64, f64)> = points
            .map(|bin| (x.at(bin.confidence), y.at(bin.right)))
            .collect();
        let paint = format!("class=\"curve {}\"", colour(series.paint));
        polyline(&mut svg, points.iter().copied(), &paint);
        for (&point, bin) in points.iter().zip(&found.bins) {
            marker(&mut svg, point, series.paint);
            // Of several curves the table has the counts.
            if curves().count() == 1 {
                let above = (point.0, (point.1 - 9.0).max(TOP + 2.0));
                label(&mut svg, above, "middle", &format!("{:.0}", bin.steps));
            }
        }
    }
    let (table, told) = figures_of(curves());
    let labels = series.iter().map(|series| (series.paint, &*series.label));
    let chart = Chart {
        id: format!("{id}-{}", panel.number),
        title: (*title).to_owned(),
        of: panel.title.clone(),
        description: format!(
            "Share of the steps judged that were right, by the confidence in them, in ten bins; on the diagonal both are equal. {told}."
        ),
        height: BOTTOM + 48.0,
        svg,
    };
    chart.figure(&legend(labels), &table)
}

/// The same as a table and in words.
fn figures_of<'a>(
    curves: impl Iterator<Item = (&'a Series<'a>, &'a ReliabilityReport)>,
) -> (Table, String) {
    let mut table = Table::new(
        "Steps judged by the confidence in them",
        1,
        &[
            "setting",
            "from",
            "to",
            "steps",
            "mean confidence, %",
            "right, %",
        ],
    );
    let mut told = Vec::new();
    for (series, found) in curves {
        let percent = |share: f64| format!("{:.1}", 100.0 * share);
        let row = |bin: &crate::reliability::ReliabilityBin| {
            vec![
                series.label.clone(),
                format!("{:.1}", bin.from),
                format!("{:.1}", bin.to),
                format!("{:.0}", bin.steps),
                percent(bin.confidence),
                percent(bin.right),
            ]
        };
        table.rows.extend(found.bins.iter().map(row));
        told.push(format!(
            "{}: expected calibration error {}, {:.0} steps",
            series.label,
            with_digits(Some(found.ece), found.ece_ci95, 3),
            found.steps
        ));
    }
    (table, told.join("; "))
}
