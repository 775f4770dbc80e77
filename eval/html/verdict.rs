//! Whether the output is the target's own, in words and with a sign.
use std::fmt::Write;

use crate::draw::escape;
use crate::html::markup::prose;
use crate::report::verdict::Verdict;
use crate::report::{LosslessReport, Report};

/// The class of a verdict's colour, and its sign.
fn shown(verdict: Verdict) -> (&'static str, &'static str) {
    match verdict {
        Verdict::Untested => ("unsure", "–"),
        Verdict::Same => ("good", "✓"),
        Verdict::Ties => ("good", "≈"),
        Verdict::Unlikely => ("unsure", "?"),
        Verdict::Differs => ("bad", "✗"),
    }
}

/// The verdict on each report.
pub(crate) fn verdicts(reports: &[(String, Report)]) -> String {
    let several = reports.len() > 1;
    let decoded = reports
        .iter()
        .filter_map(|(name, report)| Some((name, &report.lossless, report.verdict()?)));
    decoded
        .map(|(name, lossless, found)| verdict(several.then_some(name), lossless, found))
        .collect()
}

fn verdict(name: Option<&String>, lossless: &LosslessReport, found: Verdict) -> String {
    let ((class, sign), words) = (shown(found), escape(found.words()));
    let name = name.map_or(String::new(), |name| format!("{}: ", escape(name)));
    let mut html = format!(
        "<div class=\"verdict {class}\"><p><span aria-hidden=\"true\">{sign}</span> <strong>{name}{words}</strong></p>\n"
    );
    let greedy = lossless.greedy_lines();
    let mut lines = greedy.lines().filter(|line| !line.is_empty());
    if let Some(first) = lines.next() {
        _ = writeln!(html, "<p>{}</p>", prose(first));
    }
    let items: String = lines
        .map(|line| format!("<li>{}</li>\n", prose(line.trim_start_matches("- "))))
        .collect();
    if !items.is_empty() {
        _ = writeln!(html, "<ul>{items}</ul>");
    }
    if let Some(sampling) = &lossless.sampling {
        _ = writeln!(html, "<p>{}</p>", prose(&sampling.to_string()));
    }
    html + "</div>\n"
}
