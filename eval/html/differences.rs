//! Differences by pairs: between reports, and between a drafter and those without training.
use crate::html::markup::{Table, prose};
use crate::interval::with_digits;
use crate::paired::against_free;
use crate::paired::difference::{PairedReport, PairedVerdict};
use crate::paired::parts::paired_parts;
use crate::report::Report;

/// Each report against the first, and each against the drafters without training that it holds.
pub(crate) fn differences(reports: &[(String, Report)]) -> String {
    let mut html = String::new();
    if let Some(((first_name, first), others)) = reports.split_first() {
        for (name, report) in others {
            let title = format!("{name} against {first_name}");
            html += &match paired_parts(first, report, others.len()) {
                Ok(pairs) => {
                    let remarks = pairs.remarks.iter();
                    let remarks = remarks.map(|told| quiet(&format!("{title}: {told}.")));
                    table(&title, "setting", &pairs.found) + &remarks.collect::<String>()
                }
                Err(error) => quiet(&format!("{title}: not compared by pairs, as {error}")),
            };
        }
    }
    let several = reports.len() > 1;
    for (name, report) in reports {
        let title = match several {
            true => format!("{name} against drafters without training"),
            false => "Against drafters without training".to_owned(),
        };
        html += &table(&title, "settings", &against_free(report));
    }
    if html.contains("<table") {
        html += "<p class=\"quiet\">Both τ of a difference come from the same prompts, and its interval draws the same conversations anew \
                 for both, so it can tell drafters apart where two separate intervals cannot. A verdict needs 6 conversations; where \
                 several reports are compared with the first it allows for all of them, and needs 20.</p>\n";
    }
    html
}

fn quiet(told: &str) -> String {
    format!("<p class=\"quiet\">{}</p>\n", prose(told))
}

fn table(title: &str, first: &str, found: &[PairedReport]) -> String {
    if found.is_empty() {
        return String::new();
    }
    let head = [
        first,
        "verdict",
        "difference of τ [95 % CI]",
        "τ [95 % CI]",
        "τ of the other [95 % CI]",
        "larger in",
        "smaller in",
        "conversations",
        "p of the sign test",
    ];
    let mut table = Table::new(title, 2, &head);
    for pair in found {
        let verdict = pair.verdict();
        let sign = match verdict {
            PairedVerdict::Better => "▲",
            PairedVerdict::Worse => "▼",
            PairedVerdict::NotToldApart => "≈",
            PairedVerdict::TooFew => "–",
        };
        table.rows.push(vec![
            pair.heading(),
            format!("{sign} {verdict}"),
            with_digits(Some(pair.difference), pair.ci95, 2),
            with_digits(Some(pair.tau), pair.tau_ci95, 2),
            with_digits(Some(pair.baseline_tau), pair.baseline_ci95, 2),
            pair.better.to_string(),
            pair.worse.to_string(),
            pair.conversations.to_string(),
            pair.p_value(),
        ]);
    }
    table.html()
}
