//! The figures that a reader should take away.
use std::fmt::Write;

use crate::draw::escape;
use crate::html::bars::{self, Bar, Group, Named};
use crate::html::panel::{Panel, Series};
use crate::interval::with_digits;
use crate::report::{Report, SettingReport};

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
    // The report is of a drafter; those without training stand below, unless there is no other.
    let mut shown: Vec<&Series> = all.clone();
    if all.iter().any(|series| series.setting.drafter.is_none()) {
        shown.retain(|series| series.setting.drafter.is_none());
    }
    shown.truncate(CARDS);
    let mut html = String::from("<ul class=\"cards\">\n");
    html.extend(shown.iter().map(|series| card(series, &all)));
    html.push_str("</ul>\n");
    if all.len() > shown.len() {
        _ = writeln!(
            html,
            "<p class=\"quiet\">The tables below have {} more settings.</p>",
            all.len() - shown.len()
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

/// The speed-up of a setting over that of the best drafter without training at the same temperature, and its name.
fn over_free(series: &Series, all: &[&Series]) -> Option<(String, f64)> {
    let speedup = |setting: &SettingReport| Some(setting.overall.speedup?.trusted().0);
    let own = series.setting;
    let free = all.iter().map(|other| other.setting).filter(|other| {
        other.target == own.target && other.sampling() == own.sampling() && !other.lossy
    });
    let free = free.filter_map(|other| Some((other.drafter.clone()?, speedup(other)?)));
    let (name, best) = free.max_by(|one, other| one.1.total_cmp(&other.1))?;
    let is_own = own.drafter.is_none() && !own.lossy;
    is_own.then(|| Some((name, speedup(own)? / best)))?
}

fn card(series: &Series, all: &[&Series]) -> String {
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
        let (times, interval) = speedup.trusted();
        let name = match speedup.in_turns() {
            Some(_) => "speed-up, passes in turns",
            None => "speed-up",
        };
        let times = with_digits(Some(times), interval, 2);
        facts.push((name, format!("{times} ×")));
    }
    if let Some((name, ratio)) = over_free(series, all) {
        let name = escape(&name);
        facts.push((
            "over the best without training",
            format!("{ratio:.2} × {name}"),
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
