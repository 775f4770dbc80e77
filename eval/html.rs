//! Reports as one page that needs nothing but itself: `report.html`.
//!
//! Its drawings are made here and not by a library of charts: every chart takes its colours from the page's style, which knows
//! light and dark, and carries its name, its description and its figures as a table.
use std::fmt::Write;

use crate::compare;
use crate::curves::Curves;
use crate::draw::escape;
use crate::html::markup::{prose, section};
use crate::html::panel::{Panel, panels};
use crate::report::Report;
use crate::report::words::{legend, pace_notes};

mod bars;
mod by_class;
mod by_group;
mod chart;
mod curves;
mod deploy;
mod differences;
mod estimates;
mod headline;
mod histogram;
mod markup;
mod palette;
mod panel;
mod positions;
mod provenance;
mod reliability;
mod sample;
mod served;
mod survival;
mod tables;
mod verdict;

/// How the page looks.
const STYLE: &str = include_str!("html/style.css");
/// What a browser may load for the page: nothing.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'";

/// One page of `reports`, each under its name, with `remarks` at its top.
pub fn page(reports: &[(String, Report)], remarks: &[String]) -> String {
    page_with_curves(reports, remarks, &[])
}

/// The same with the curves of the trainings that made the drafters, as far as they are known.
pub fn page_with_curves(
    reports: &[(String, Report)],
    remarks: &[String],
    trainings: &[(String, Vec<Curves>)],
) -> String {
    let panels = panels(reports);
    let title = title(reports);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<header>\n<h1>{title}</h1>\n{}</header>\n<main>\n{}{}</main>\n\
         </body>\n</html>\n",
        about(reports),
        notes(reports, remarks),
        sections(reports, &panels, trainings)
    )
}

/// What the page says, part by part.
fn sections(
    reports: &[(String, Report)],
    panels: &[Panel],
    trainings: &[(String, Vec<Curves>)],
) -> String {
    let charts = |figure: fn(&Panel) -> String| -> String {
        panels
            .iter()
            .map(|panel| panel.charts(&figure(panel)))
            .collect()
    };
    [
        section("headline", "In short", &headline::headline(reports, panels)),
        section(
            "lossless",
            "Is the output the target's own?",
            &verdict::verdicts(reports),
        ),
        section(
            "depth",
            "How deep drafts are accepted",
            &charts(|panel| survival::figure(panel) + &histogram::figure(panel)),
        ),
        section(
            "where",
            "Where they are accepted",
            &charts(|panel| {
                by_group::figures(panel) + &positions::figure(panel) + &by_class::figure(panel)
            }),
        ),
        section(
            "confidence",
            "Does the drafter know itself?",
            &charts(reliability::figures),
        ),
        section("sample", "What it looks like", &sample::samples(reports)),
        section(
            "differences",
            "Differences by pairs of prompts",
            &differences::differences(reports),
        ),
        section("settings", "All settings", &by_setting(reports, panels)),
        section("spread", "From prompt to prompt", &tables::spread(panels)),
        section(
            "estimates",
            "Without decoding",
            &(estimates::estimates(panels) + &estimates::by_all(reports)),
        ),
        section("deploy", "What to deploy", &deploy::deploy(reports)),
        section(
            "training",
            "How it was trained",
            &curves::figures(trainings),
        ),
        section("served", "In a serving engine", &served::served(reports)),
        section(
            "provenance",
            "What was measured on what",
            &provenance::provenance(reports),
        ),
    ]
    .concat()
}

/// The table of all settings, with what must be said of them.
fn by_setting(reports: &[(String, Report)], panels: &[Panel]) -> String {
    let table = tables::settings(panels);
    if table.is_empty() {
        return table;
    }
    let below = legend(reports.iter().flat_map(|(_, report)| &report.settings));
    let below = below.lines().filter(|line| !line.is_empty());
    let batches = reports.iter().filter_map(|(_, report)| report.batch_note());
    let below = below.map(str::to_owned).chain(batches);
    let below = below.map(|line| format!("<p class=\"quiet\">{}</p>\n", prose(&line)));
    table + &below.collect::<String>()
}

/// What the page is called.
fn title(reports: &[(String, Report)]) -> String {
    let names: Vec<String> = reports.iter().map(|(name, _)| escape(name)).collect();
    match &names[..] {
        [name] => format!("Acceptance of {name}"),
        names => format!("Acceptance compared: {}", names.join(", ")),
    }
}

/// One line for each report.
fn about(reports: &[(String, Report)]) -> String {
    let mut html = String::new();
    for (name, report) in reports {
        let drafter = &report.drafter;
        let name = if reports.len() > 1 {
            format!("<strong>{}</strong>: ", escape(name))
        } else {
            String::new()
        };
        let targets: Vec<String> = report
            .all_targets()
            .iter()
            .map(|target| format!("<code>{}</code>", escape(&target.model)))
            .collect();
        let path = escape(&drafter.path);
        let kind = match &*drafter.kind {
            "" if report.has_no_drafter() => "drafters without training".to_owned(),
            "" => format!("drafter <code>{path}</code>"),
            kind => format!(
                "{} drafter, {} parameters, <code>{path}</code>",
                escape(kind),
                drafter.parameters
            ),
        };
        _ = writeln!(html, "<p>{name}{kind} for {}</p>", targets.join(", "));
    }
    html
}

/// What a reader must know before the figures.
fn notes(reports: &[(String, Report)], remarks: &[String]) -> String {
    let texts = reports.iter().flat_map(|(name, report)| {
        let told = report.texts.iter();
        told.map(move |texts| format!("{name}: acceptance was {texts}."))
    });
    let known = reports.iter().filter_map(|(name, report)| {
        let known = report.known_prompts?;
        Some(format!("{name}: {known}."))
    });
    let choosing = reports.iter().filter_map(|(name, report)| {
        let choosing = report.choosing_prompts?;
        Some(format!("{name}: {choosing}."))
    });
    let all = remarks
        .iter()
        .cloned()
        .chain(texts)
        .chain(known)
        .chain(choosing)
        .chain(pace_notes(reports))
        .chain(compare::differences(reports));
    let items: String = all
        .map(|remark| format!("<li>{}</li>\n", prose(&remark)))
        .collect();
    if items.is_empty() {
        return items;
    }
    format!("<section class=\"notes\" aria-label=\"Notes\"><ul>\n{items}</ul></section>\n")
}

#[cfg(test)]
mod tests;
