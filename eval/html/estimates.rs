//! What decoding counted beside what the estimator says without decoding, and what training and engines counted.
use crate::estimate::report::EstimateReport;
use crate::html::bars::{self, Bar, Group, Named};
use crate::html::markup::Table;
use crate::html::panel::{Panel, Series, legend};
use crate::interval::with_digits;
use crate::opinions;
use crate::report::Report;

/// What is compared, in the order of its colours.
const COMPARED: [&str; 2] = ["decoded", "estimated"];

/// A chart and a table of the settings that were estimated.
pub(crate) fn estimates(panels: &[Panel]) -> String {
    let series = panels.iter().flat_map(|panel| &panel.series);
    let all: Vec<(&Series, &EstimateReport)> = series
        .filter_map(|series| Some((series, series.setting.estimate.as_ref()?)))
        .collect();
    if all.is_empty() {
        return String::new();
    }
    let group = |(series, estimate): &(&Series, &EstimateReport)| -> Group {
        let overall = &series.setting.overall;
        let taus = [
            (overall.tau, overall.tau_ci95),
            (Some(estimate.tau), estimate.tau_ci95),
        ];
        let bars = taus.into_iter().zip(COMPARED).enumerate();
        let bar = |(series, ((tau, interval), label)): (usize, (_, &str))| Bar {
            series,
            label: label.to_owned(),
            tau,
            interval,
        };
        (series.heading.clone(), bars.map(bar).collect())
    };
    let groups: Vec<Group> = all.iter().map(group).collect();
    let named = Named {
        id: "estimate".to_owned(),
        title: "τ as decoded and as estimated",
        of: "",
    };
    let signs = legend(COMPARED.into_iter().enumerate());
    let chart = bars::figure(named, &signs, &groups, None);
    format!(
        "<div class=\"charts\">\n{chart}</div>\n{}",
        table(&all).html()
    )
}

/// τ of each report's drafter by who counts it.
pub(crate) fn by_all(reports: &[(String, Report)]) -> String {
    let table = |(name, report): &(String, Report)| {
        let (head, rows) = opinions::opinions(&report.counted())?;
        let caption = match reports.len() {
            1 => opinions::CAPTION.to_owned(),
            _ => format!("{}: {name}", opinions::CAPTION),
        };
        let mut table = Table::new(&caption, 1, &head);
        table.rows = rows;
        Some(table.html())
    };
    reports.iter().filter_map(table).collect()
}

fn table(all: &[(&Series, &EstimateReport)]) -> Table {
    let head = [
        "setting",
        "in short",
        "τ decoded",
        "τ estimated",
        "α decoded",
        "α estimated",
        "α analytic",
        "more passes than expected",
    ];
    let mut table = Table::new(
        "Decoding beside the estimator, which reads the same outputs in one pass",
        2,
        &head,
    );
    for (series, estimate) in all {
        let overall = &series.setting.overall;
        let verdict = match estimate.differing_outputs {
            Some(0) => "the same passes",
            Some(_) => "differ in some outputs",
            None => estimate.chance(),
        };
        table.rows.push(vec![
            series.heading.clone(),
            verdict.to_owned(),
            with_digits(overall.tau, overall.tau_ci95, 2),
            with_digits(Some(estimate.tau), estimate.tau_ci95, 2),
            with_digits(overall.alpha, overall.alpha_ci95, 2),
            with_digits(estimate.alpha, None, 2),
            with_digits(estimate.alpha_analytic, None, 2),
            format!("{:+.1}", estimate.more_passes),
        ]);
    }
    table
}
