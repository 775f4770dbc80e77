//! Bars of τ with their intervals, in groups one below the other.
use std::fmt::Write;

use crate::draw::{Axis, label, line};
use crate::html::chart::{Chart, WIDTH, colour, marker, taus};
use crate::html::markup::{Table, short};
use crate::interval::with_digits;

/// Where bars begin.
pub(super) const LEFT: f64 = 12.0;
/// Where the longest bar ends; the figures stand behind it.
pub(super) const RIGHT: f64 = WIDTH - 58.0;
/// Heights of a bar, of the name over a group, and of the room behind a group.
pub(super) const BAR: f64 = 17.0;
pub(super) const NAME: f64 = 20.0;
pub(super) const GAP: f64 = 6.0;
/// Letters of a name that have room.
const LETTERS: usize = 56;
/// Groups that are drawn; the table has all.
const GROUPS: usize = 24;

/// τ of something.
pub(crate) struct Bar {
    /// Whose colour and marker it has.
    pub(crate) series: usize,
    /// What it is of, in the table.
    pub(crate) label: String,
    pub(crate) tau: Option<f64>,
    pub(crate) interval: Option<[f64; 2]>,
}

/// Bars that stand together under a name.
pub(crate) type Group = (String, Vec<Bar>);

/// What a chart of bars is called.
pub(crate) struct Named<'a> {
    pub(crate) id: String,
    pub(crate) title: &'a str,
    /// Of what, where the page has several such charts.
    pub(crate) of: &'a str,
}

/// The chart of these, each group under its name, with room for a τ of `reach`. Bars begin at τ = 1, at which a drafter does nothing.
pub(crate) fn figure(named: Named, above: &str, groups: &[Group], reach: Option<f64>) -> String {
    let Some(most) = highest(groups).map(|most| most.max(reach.unwrap_or(most))) else {
        return String::new();
    };
    let marks = taus(most);
    let x = Axis {
        from: LEFT,
        to: RIGHT,
        low: 1.0,
        high: marks.last().copied().unwrap_or(2.0),
    };
    let drawn = &groups[..groups.len().min(GROUPS)];
    let tall: f64 = drawn
        .iter()
        .map(|(_, bars)| NAME + BAR * bars.len() as f64 + GAP)
        .sum();
    let mut svg = String::new();
    for &tau in &marks {
        line(
            &mut svg,
            (x.at(tau), 4.0),
            (x.at(tau), tall),
            "class=\"grid\"",
        );
        label(
            &mut svg,
            (x.at(tau), tall + 18.0),
            "middle",
            &tau.to_string(),
        );
    }
    label(
        &mut svg,
        (0.5 * (LEFT + RIGHT), tall + 37.0),
        "middle",
        "τ, tokens per pass of the target",
    );
    let mut top = 0.0;
    for (name, bars) in drawn {
        label(&mut svg, (LEFT, top + 15.0), "start", &short(name, LETTERS));
        top += NAME;
        for bar in bars {
            draw(&mut svg, bar, &x, top);
            top += BAR;
        }
        top += GAP;
    }
    let (table, told) = figures(groups);
    let more = match groups.len() - drawn.len() {
        0 => String::new(),
        more => format!("<p class=\"quiet\">The table has {more} more.</p>\n"),
    };
    let chart = Chart {
        id: named.id,
        title: named.title.to_owned(),
        of: named.of.to_owned(),
        description: format!("τ with its 95 % interval. {told}."),
        height: tall + 46.0,
        svg,
    };
    chart.figure(&format!("{above}{more}"), &table)
}

/// The largest τ, or end of an interval.
pub(crate) fn highest(groups: &[Group]) -> Option<f64> {
    let end = |bar: &Bar| bar.interval.map(|[_, high]| high).or(bar.tau);
    let ends = groups.iter().flat_map(|(_, bars)| bars).filter_map(end);
    ends.reduce(f64::max)
}

fn draw(svg: &mut String, bar: &Bar, x: &Axis, top: f64) {
    let middle = top + 0.5 * BAR;
    let Some(tau) = bar.tau else {
        return label(svg, (LEFT, middle + 4.5), "start", "–");
    };
    _ = writeln!(
        svg,
        "<rect class=\"bar pale {}\" x=\"{LEFT:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\"/>",
        colour(bar.series),
        top + 2.0,
        (x.at(tau) - LEFT).max(0.0),
        BAR - 4.0
    );
    let mut end = x.at(tau);
    if let Some([low, high]) = bar.interval {
        let paint = format!("class=\"whisker {}\"", colour(bar.series));
        line(svg, (x.at(low), middle), (x.at(high), middle), &paint);
        for tip in [low, high] {
            line(
                svg,
                (x.at(tip), middle - 4.0),
                (x.at(tip), middle + 4.0),
                &paint,
            );
        }
        end = end.max(x.at(high));
    }
    marker(svg, (x.at(tau), middle), bar.series);
    label(
        svg,
        (end + 10.0, middle + 4.5),
        "start",
        &format!("{tau:.2}"),
    );
}

/// The same as a table and in words.
fn figures(groups: &[Group]) -> (Table, String) {
    let mut table = Table::new("τ [95 % CI]", 1, &[""]);
    let mut columns: Vec<&str> = Vec::new();
    for bar in groups.iter().flat_map(|(_, bars)| bars) {
        if !columns.contains(&&*bar.label) {
            columns.push(&bar.label);
        }
    }
    table
        .head
        .extend(columns.iter().map(|&column| column.to_owned()));
    let mut told = Vec::new();
    for (name, bars) in groups {
        let cell = |column: &&str| {
            let bar = bars.iter().find(|bar| bar.label == *column);
            bar.map_or("–".to_owned(), |bar| {
                with_digits(bar.tau, bar.interval, 2)
            })
        };
        let cells: Vec<String> = columns.iter().map(cell).collect();
        told.push(format!("{name}: {}", cells.join(", ")));
        table
            .rows
            .push(std::iter::once(name.clone()).chain(cells).collect());
    }
    (table, told.join("; "))
}
