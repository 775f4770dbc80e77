//! What servers did with the prompts, beside what this program decoded.
use std::fmt::Write;

use crate::html::bars::{self, Bar, Group, Named};
use crate::html::markup::{Table, prose, values};
use crate::html::panel::legend;
use crate::interval::with_digits;
use crate::report::Report;
use crate::served::latency::Latency;
use crate::served::report::{INTERVALS, ServedReport};

/// What is compared, in the order of its colours.
const COMPARED: [&str; 2] = ["decoded here", "served"];

/// A chart of both τ, a table of all figures, and what must be said of them.
pub(crate) fn served(reports: &[(String, Report)]) -> String {
    let several = reports.len() > 1;
    let all = reports
        .iter()
        .flat_map(|(name, report)| report.served.iter().map(move |served| (name, served)));
    let all: Vec<(String, &ServedReport)> = all
        .map(|(name, served)| {
            let heading = served.heading();
            (
                if several {
                    format!("{name}: {heading}")
                } else {
                    heading
                },
                served,
            )
        })
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let groups: Vec<Group> = all.iter().filter_map(group).collect();
    let named = Named {
        id: "served-tau".to_owned(),
        title: "τ as decoded here and as served",
        of: "",
    };
    let signs = legend(COMPARED.into_iter().enumerate());
    let chart = bars::figure(named, &signs, &groups, None);
    let mut html = table(&all).html();
    let lines: String = all.iter().map(|(_, served)| served.lines()).collect();
    let items = lines
        .lines()
        .map(|line| prose(line.trim_start().trim_start_matches("- ")));
    let items: String = items.map(|item| format!("<li>{item}</li>\n")).collect();
    if !items.is_empty() {
        _ = writeln!(html, "<ul>{items}</ul>");
    }
    _ = writeln!(
        html,
        "<p class=\"quiet\">Times are means with their intervals, in milliseconds. {INTERVALS} τ of this program is of drafts that \
         get shorter where an output ends; engines draft in full there.</p>"
    );
    if chart.is_empty() {
        return html;
    }
    format!("<div class=\"charts\">\n{chart}</div>\n{html}")
}

fn group((heading, served): &(String, &ServedReport)) -> Option<Group> {
    let figures = served
        .figures
        .as_ref()
        .filter(|figures| figures.tau.is_some())?;
    let here = served.in_tree.as_ref();
    let taus = [
        (
            here.and_then(|found| found.tau),
            here.and_then(|found| found.tau_ci95),
        ),
        (figures.tau, figures.tau_ci95),
    ];
    let bars = taus.into_iter().zip(COMPARED).enumerate();
    let bars = bars.map(|(series, ((tau, interval), label))| Bar {
        series,
        label: label.to_owned(),
        tau,
        interval,
    });
    Some((heading.clone(), bars.collect()))
}

fn table(all: &[(String, &ServedReport)]) -> Table {
    let head = [
        "server",
        "address",
        "model",
        "prompts",
        "tokens",
        "τ served",
        "τ decoded here",
        "at least 1, 2, … accepted",
        "tokens/s",
        "speed-up",
        "first token, ms",
        "each further token, ms",
    ];
    let mut table = Table::new("As served", 3, &head);
    for (heading, served) in all {
        let names = [
            heading.clone(),
            served.url.clone(),
            served.model.clone(),
            served.prompts.to_string(),
        ];
        let figures = match &served.figures {
            None => vec!["failed".to_owned()],
            Some(found) => {
                let here = served.in_tree.as_ref();
                vec![
                    found.tokens.to_string(),
                    with_digits(found.tau, found.tau_ci95, 2),
                    with_digits(
                        here.and_then(|found| found.tau),
                        here.and_then(|found| found.tau_ci95),
                        2,
                    ),
                    values(&found.survival),
                    with_digits(
                        Some(found.tokens_per_second),
                        found.tokens_per_second_ci95,
                        1,
                    ),
                    with_digits(found.speedup, found.speedup_ci95, 2),
                    milliseconds(found.first_token.as_ref()),
                    milliseconds(found.between_tokens.as_ref()),
                ]
            }
        };
        let mut row: Vec<String> = names.into_iter().chain(figures).collect();
        row.resize(head.len(), "–".to_owned());
        table.rows.push(row);
    }
    table
}

fn milliseconds(latency: Option<&Latency>) -> String {
    let scaled = |seconds: f64| 1000.0 * seconds;
    let interval = latency.and_then(|found| found.mean_ci95);
    with_digits(
        latency.map(|found| scaled(found.mean)),
        interval.map(|ends| ends.map(scaled)),
        1,
    )
}
