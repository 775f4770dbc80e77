//! What to deploy: predicted speed-ups against the length of a draft, and the fastest draft for each batch size.
use std::collections::BTreeSet;
use std::fmt::Write;

use crate::deploy::report::{CandidateReport, CostSource, Recommendation, about, commands};
use crate::draft::{ChainTokens, DraftReport};
use crate::draw::{Axis, escape, label, line, polyline};
use crate::html::chart::{BOTTOM, Chart, RIGHT, TOP, colour, marker};
use crate::html::markup::{Table, prose};
use crate::html::palette::MOST;
use crate::html::panel::legend;
use crate::interval::with_digits;
use crate::report::Report;

const LEFT: f64 = 46.0;
/// Radius of the ring around what is recommended.
const RING: f64 = 9.0;

/// What is drawn in one chart: chains of one report, whose tokens are chosen in one way.
struct Curves<'a> {
    title: String,
    curves: Vec<(&'a Recommendation, Vec<(usize, &'a CandidateReport)>)>,
}

/// Charts, a table of the recommended drafts, and the commands that serve them.
pub(crate) fn deploy(reports: &[(String, Report)]) -> String {
    let several = reports.len() > 1;
    let mut all: Vec<(String, &Recommendation)> = Vec::new();
    for (name, report) in reports {
        let name = if several {
            format!("{name}: ")
        } else {
            String::new()
        };
        let recommended = report.settings_recommended.iter();
        all.extend(recommended.map(|one| (name.clone(), one)));
    }
    if all.is_empty() {
        return String::new();
    }
    let charts: String = (charts(&all).iter().enumerate())
        .map(|(number, curves)| chart(number, curves))
        .collect();
    let mut html = match &*charts {
        "" => String::new(),
        charts => format!("<div class=\"charts\">\n{charts}</div>\n"),
    };
    html += &table(&all).html();
    html += &beside(reports);
    _ = writeln!(
        html,
        "<p class=\"quiet\">{}</p>",
        prose(&about(all.iter().map(|(_, one)| *one)))
    );
    for (name, one) in &all {
        if let Some(told) = one.unsteady() {
            let told = format!("{name}{}: {told}", one.heading());
            _ = writeln!(html, "<p class=\"quiet\">{}</p>", prose(&told));
        }
    }
    for (heading, commands) in commands(&all) {
        _ = writeln!(
            html,
            "<p>{}</p>\n<pre tabindex=\"0\">{}</pre>",
            escape(&heading),
            escape_lines(&commands)
        );
    }
    html
}

fn escape_lines(lines: &[&str]) -> String {
    let lines: Vec<String> = lines.iter().map(|line| escape(line)).collect();
    lines.join("\n")
}

/// One chart for each report, target, temperature and way of choosing tokens, where more than one length is known.
fn charts<'a>(all: &[(String, &'a Recommendation)]) -> Vec<Curves<'a>> {
    let mut charts: Vec<Curves> = Vec::new();
    for (name, one) in all {
        for tokens in [None, Some(ChainTokens::Likeliest), Some(ChainTokens::Drawn)] {
            let of_way = |candidate: &'a CandidateReport| match candidate.draft {
                DraftReport::Chain { length, tokens: of } if of == tokens => {
                    Some((length, candidate))
                }
                _ => None,
            };
            let curve: Vec<_> = one.candidates.iter().filter_map(of_way).collect();
            if curve.len() < 2 {
                continue;
            }
            let tokens = tokens.map_or(String::new(), |tokens| format!(", {tokens} tokens"));
            let title = format!("{name}{}{tokens}", one.decoding());
            let curve = (*one, curve);
            match charts.iter_mut().find(|known| known.title == title) {
                Some(known) => known.curves.push(curve),
                None => charts.push(Curves {
                    title,
                    curves: vec![curve],
                }),
            }
        }
    }
    charts
}

fn chart(number: usize, of: &Curves) -> String {
    let drawn = &of.curves[..of.curves.len().min(MOST)];
    let longest = drawn
        .iter()
        .flat_map(|(_, curve)| curve.iter().map(|(length, _)| *length));
    let longest = longest.max().unwrap_or(1).max(1);
    let speedups = drawn
        .iter()
        .flat_map(|(_, curve)| curve.iter().map(|(_, of)| of.speedup));
    let mut svg = String::new();
    let y = speedup_axis(&mut svg, speedups.fold(1.0, f64::max));
    let x = Axis {
        from: LEFT + 14.0,
        to: RIGHT - 8.0,
        low: 1.0,
        high: longest as f64,
    };
    for length in (1..=longest).step_by(longest.div_ceil(12)) {
        let place = (x.at(length as f64), BOTTOM + 19.0);
        label(&mut svg, place, "middle", &length.to_string());
    }
    let middle = (0.5 * (LEFT + RIGHT), BOTTOM + 38.0);
    label(&mut svg, middle, "middle", "tokens of a draft");
    for (series, (one, curve)) in drawn.iter().enumerate() {
        draw(&mut svg, series, (one, curve), (&x, &y));
    }
    let labels: Vec<String> = drawn.iter().map(|(one, _)| one.at_once()).collect();
    let signs = legend(labels.iter().map(String::as_str).enumerate());
    let (table, told) = figures(of);
    let chart = Chart {
        id: format!("deploy-{number}"),
        title: format!("Predicted speed-up by the length of a draft: {}", of.title),
        of: String::new(),
        description: format!(
            "Predicted speed-up over no drafter, one line for each batch size. Lengths with a marker were timed; a ring is around \
             the fastest draft of all. {told}."
        ),
        height: BOTTOM + 48.0,
        svg,
    };
    chart.figure(&signs, &table)
}

/// An upright axis of speed-ups from 0, with its lines; that of no drafter stands out.
fn speedup_axis(svg: &mut String, most: f64) -> Axis {
    let step = [0.25, 0.5, 1.0, 2.0, 5.0]
        .into_iter()
        .find(|step| most / step <= 7.0);
    let step = step.unwrap_or(most.ceil() / 5.0);
    let count = (1.05 * most / step).ceil();
    let axis = Axis {
        from: BOTTOM,
        to: TOP,
        low: 0.0,
        high: count * step,
    };
    for number in 0..=count as usize {
        let value = number as f64 * step;
        let height = axis.at(value);
        line(svg, (LEFT, height), (RIGHT, height), "class=\"grid\"");
        label(svg, (LEFT - 6.0, height + 4.0), "end", &value.to_string());
    }
    let even = axis.at(1.0);
    line(svg, (LEFT, even), (RIGHT, even), "class=\"curve thin c8\"");
    axis
}

fn draw(
    svg: &mut String,
    series: usize,
    (one, curve): (&Recommendation, &[(usize, &CandidateReport)]),
    (x, y): (&Axis, &Axis),
) {
    let place = |(length, of): &(usize, &CandidateReport)| (x.at(*length as f64), y.at(of.speedup));
    let paint = format!("class=\"curve {}\"", colour(series));
    polyline(svg, curve.iter().map(place), &paint);
    for at in curve {
        let (across, down) = place(at);
        if at.1.timed {
            marker(svg, (across, down), series);
        }
        if one
            .best
            .as_ref()
            .is_some_and(|best| best.draft == at.1.draft)
        {
            _ = writeln!(
                svg,
                "<circle class=\"curve {}\" cx=\"{across:.1}\" cy=\"{down:.1}\" r=\"{RING}\" fill=\"none\"/>",
                colour(series)
            );
        }
    }
}

/// The same as a table and in words.
fn figures(of: &Curves) -> (Table, String) {
    let mut table = Table::new(
        "Predicted speed-up [95 % CI] by the length of a draft",
        1,
        &["tokens"],
    );
    let heads = of.curves.iter().map(|(one, _)| one.at_once());
    table.head.extend(heads);
    let known = of.curves.iter().flat_map(|(_, curve)| curve);
    // A report says any length.
    let lengths: BTreeSet<usize> = known.map(|(length, _)| *length).collect();
    for length in lengths {
        let cell = |(_, curve): &(&Recommendation, Vec<(usize, &CandidateReport)>)| {
            let found = curve.iter().find(|(of, _)| *of == length).map(|(_, of)| of);
            with_digits(
                found.map(|of| of.speedup),
                found.and_then(|of| of.speedup_ci95),
                2,
            )
        };
        let name = std::iter::once(length.to_string());
        let row = name.chain(of.curves.iter().map(cell)).collect();
        table.rows.push(row);
    }
    let told = |(one, curve): &(&Recommendation, Vec<(usize, &CandidateReport)>)| {
        let values: Vec<String> = (curve.iter())
            .map(|(length, of)| format!("{:.2} with {length}", of.speedup))
            .collect();
        format!("{}: {}", one.at_once(), values.join(", "))
    };
    let told: Vec<String> = of.curves.iter().map(told).collect();
    (table, told.join("; "))
}

/// The predicted speed-up of what was decoded, beside the measured one.
fn beside(reports: &[(String, Report)]) -> String {
    let several = reports.len() > 1;
    let mut table = Table::new(
        "What was decoded: speed-up predicted and measured",
        1,
        &["setting", "predicted", "measured", "in full batches"],
    );
    for (name, report) in reports {
        for setting in &report.settings {
            let Some(speedup) = setting.overall.speedup else {
                continue;
            };
            let name = if several {
                format!("{name}: ")
            } else {
                String::new()
            };
            table.rows.push(vec![
                format!("{name}{}", setting.of_target()),
                with_digits(speedup.predicted, speedup.predicted_ci95, 2),
                with_digits(Some(speedup.wall), speedup.wall_ci95, 2),
                with_digits(speedup.full_batches, speedup.full_batches_ci95, 2),
            ]);
        }
    }
    table.html()
}

fn table(all: &[(String, &Recommendation)]) -> Table {
    let head = [
        "decoding",
        "sequences at a time",
        "costs from",
        "draft",
        "predicted speed-up",
        "over the second best",
        "over the drafter's own length",
    ];
    let mut table = Table::new("What to deploy", 4, &head);
    for (name, one) in all {
        let costs = match one.costs {
            CostSource::Decoder => "this decoder",
            CostSource::Server => "the server",
        };
        let [second, default] = one.over();
        table.rows.push(vec![
            format!("{name}{}", one.decoding()),
            one.batch_size.to_string(),
            costs.to_owned(),
            one.words(),
            one.speedup(),
            second,
            default,
        ]);
    }
    table
}
