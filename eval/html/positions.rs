//! The chart of τ by the place in the output.
use crate::draw::{Axis, label, line, polyline};
use crate::groups::GroupReport;
use crate::html::chart::{BOTTOM, Chart, RIGHT, TOP, colour, marker, taus};
use crate::html::markup::Table;
use crate::html::panel::Panel;
use crate::interval::with_digits;

const LEFT: f64 = 36.0;

/// τ of the passes that begin in each range of places.
pub(crate) fn figure(panel: &Panel) -> String {
    let of = |at: usize| {
        panel.series[at]
            .setting
            .groups
            .get("position")
            .map_or(&[][..], Vec::as_slice)
    };
    let all: Vec<&[GroupReport]> = (0..panel.series.len()).map(of).collect();
    let Some(longest) = all
        .iter()
        .max_by_key(|groups| groups.len())
        .filter(|groups| !groups.is_empty())
    else {
        return String::new();
    };
    let places: Vec<&str> = longest.iter().map(|group| &*group.name).collect();
    let mut svg = String::new();
    let y = axis(&mut svg, &all);
    let step = (RIGHT - LEFT) / places.len() as f64;
    let middle = |place: usize| LEFT + (place as f64 + 0.5) * step;
    for (at, place) in places.iter().enumerate() {
        label(&mut svg, (middle(at), BOTTOM + 19.0), "middle", place);
    }
    label(
        &mut svg,
        (0.5 * (LEFT + RIGHT), BOTTOM + 38.0),
        "middle",
        "tokens of the output",
    );
    // Side by side, so that no interval hides another.
    let apart = (0.5 * step / all.len() as f64).min(14.0);
    for (at, groups) in all.iter().enumerate() {
        let shift = (at as f64 - 0.5 * (all.len() - 1) as f64) * apart;
        let place = |group: &GroupReport| places.iter().position(|place| *place == group.name);
        let points = groups
            .iter()
            .filter_map(|group| Some((middle(place(group)?) + shift, group.tau?, group.tau_ci95)));
        draw(
            &mut svg,
            &points.collect::<Vec<_>>(),
            &y,
            panel.series[at].paint,
        );
    }
    let (table, told) = figures(panel, &all, &places);
    let chart = Chart {
        id: format!("position-{}", panel.number),
        title: "τ by the place in the output".to_owned(),
        of: panel.title.clone(),
        description: format!(
            "τ with its 95 % interval, by the place at which a pass begins. {told}."
        ),
        height: BOTTOM + 48.0,
        svg,
    };
    chart.figure(&panel.legend(), &table)
}

/// The upright axis of τ, with its lines.
fn axis(svg: &mut String, all: &[&[GroupReport]]) -> Axis {
    let highest = |group: &GroupReport| group.tau_ci95.map(|[_, high]| high).or(group.tau);
    let ends = all.iter().copied().flatten().filter_map(highest);
    let marks = taus(ends.fold(1.0, f64::max));
    let y = Axis {
        from: BOTTOM,
        to: TOP,
        low: 1.0,
        high: marks.last().copied().unwrap_or(2.0),
    };
    for tau in marks {
        let height = y.at(tau);
        line(svg, (LEFT, height), (RIGHT, height), "class=\"grid\"");
        label(svg, (LEFT - 6.0, height + 4.0), "end", &tau.to_string());
    }
    y
}

/// The curve through points with their intervals.
fn draw(svg: &mut String, points: &[(f64, f64, Option<[f64; 2]>)], y: &Axis, series: usize) {
    let class = colour(series);
    let ends = points.iter().map(|&(x, tau, _)| (x, y.at(tau)));
    polyline(svg, ends.clone(), &format!("class=\"curve thin {class}\""));
    for &(x, _, interval) in points {
        if let Some([low, high]) = interval {
            line(
                svg,
                (x, y.at(low)),
                (x, y.at(high)),
                &format!("class=\"whisker {class}\""),
            );
        }
    }
    ends.for_each(|end| marker(svg, end, series));
}

/// The same as a table and in words.
fn figures(panel: &Panel, all: &[&[GroupReport]], places: &[&str]) -> (Table, String) {
    let mut table = Table::new("τ [95 % CI] by the place in the output", 1, &["setting"]);
    table
        .head
        .extend(places.iter().map(|&place| place.to_owned()));
    let mut told = Vec::new();
    for (series, groups) in panel.series.iter().zip(all) {
        let cell = |place: &&str| {
            let group = groups.iter().find(|group| group.name == *place);
            group.map_or("–".to_owned(), |group| {
                with_digits(group.tau, group.tau_ci95, 2)
            })
        };
        let cells: Vec<String> = places.iter().map(cell).collect();
        told.push(format!("{}: {}", series.label, cells.join(", ")));
        table
            .rows
            .push(std::iter::once(series.label.clone()).chain(cells).collect());
    }
    (table, told.join("; "))
}
