//! The figures that a reader should take away.
use std::fmt::Write;

use crate::draw::escape;
use crate::html::bars::{self, Bar, Group, Named};
use crate::html::panel::{Panel, Series};
use crate::interval::with_digits;
use crate::report::Report;

/// Cards that stand at the top; the tables have all settings.
const CARDS: usize = 6;

/// A card for each setting of one report; of several reports a chart for each way of decoding.
pub(crate) fn headline(reports: &[(String, Report)], panels: &[Panel]) -> String {
    if reports.len() > 1 {
        let all: Vec<(&Panel, Vec<Group>)> =
            panels.iter().map(|panel| (panel, taus(panel))).collect();
        // One scale for all of them.
        let reach = all
            .iter()
            .filter_map(|(_, groups)| bars::highest(groups))
            .reduce(f64::max);
        let chart = |(panel, groups): &(&Panel, Vec<Group>)| {
            let named = Named {
                id: format!("tau-{}", panel.number),
                title: &panel.title,
                of: "τ",
            };
            bars::figure(named, "", groups, reach)
        };
        let charts: String = all.iter().map(chart).collect();
        return format!("<div class=\"charts\">\n{charts}</div>\n");
    }
    let all: Vec<&Series> = panels.iter().flat_map(|panel| &panel.series).collect();
    let mut html = String::from("<ul class=\"cards\">\n");
    all.iter()
        .take(CARDS)
        .for_each(|series| html.push_str(&card(series)));
    html.push_str("</ul>\n");
    if all.len() > CARDS {
        _ = writeln!(
            html,
            "<p class=\"quiet\">The tables below have {} more settings.</p>",
            all.len() - CARDS
        );
    }
    if all.is_empty() {
        return String::new();
    }
    html.push_str(
        "<p class=\"quiet\">τ is the mean number of tokens that one pass of the target gives: 1 without a drafter. In brackets \
         stands the 95 % interval. The speed-up is that of this program on this machine.</p>\n",
    );
    html
}

fn card(series: &Series) -> String {
    let overall = &series.setting.overall;
    let tau = overall
        .tau
        .map_or("–".to_owned(), |tau| format!("{tau:.2}"));
    let interval = overall.tau_ci95.map_or(String::new(), |[low, high]| {
        format!(" [{low:.2}, {high:.2}]")
    });
    let mut facts = vec![(
        "α, acceptance",
        with_digits(overall.alpha, overall.alpha_ci95, 2),
    )];
    if let Some(speedup) = overall.speedup {
        facts.push((
            "speed-up",
            format!(
                "{} ×",
                with_digits(Some(speedup.wall), speedup.wall_ci95, 2)
            ),
        ));
    }
    facts.push(("prompts", overall.prompts.to_string()));
    let mut html = format!(
        "<li><h3>{}</h3><p class=\"big\"><abbr title=\"mean acceptance length\">τ</abbr> {tau}<small>{interval}</small></p><dl>",
        escape(&series.heading)
    );
    for (name, fact) in facts {
        _ = write!(html, "<div><dt>{name}</dt><dd>{fact}</dd></div>");
    }
    html + "</dl></li>\n"
}

/// τ of each report.
fn taus(panel: &Panel) -> Vec<Group> {
    let bar = |series: &Series| -> Group {
        let overall = &series.setting.overall;
        let bar = Bar {
            series: series.paint,
            label: "τ [95 % CI]".to_owned(),
            tau: overall.tau,
            interval: overall.tau_ci95,
        };
        (series.label.clone(), vec![bar])
    };
    panel.series.iter().map(bar).collect()
}
