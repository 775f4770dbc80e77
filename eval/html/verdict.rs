//! Whether the output is the target's own, in words and with a sign.
use std::fmt::Write;

use crate::chi_square::LEVEL;
use crate::draw::escape;
use crate::html::markup::prose;
use crate::report::{LosslessReport, Report};

/// What the tests of a report say together, the worst last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Untested,
    Same,
    Ties,
    Unlikely,
    Differs,
}

impl Verdict {
    fn of(lossless: &LosslessReport) -> Self {
        let greedy = match (lossless.greedy_tokens, lossless.greedy_mismatches) {
            (0, _) => Self::Untested,
            (_, 0) => Self::Same,
            (_, mismatches) if mismatches == lossless.greedy_ties => Self::Ties,
            _ => Self::Differs,
        };
        let tested = |p_value: f64| {
            if p_value < LEVEL {
                Self::Unlikely
            } else {
                Self::Same
            }
        };
        let sampling = lossless.sampling.filter(|sampling| sampling.each.dof > 0);
        let sampled = sampling.map_or(Self::Untested, |sampling| {
            let tuples = sampling.tuples.map_or(1.0, |tuples| tuples.test.p_value);
            tested(sampling.each.p_value).max(tested(tuples))
        });
        greedy.max(sampled)
    }

    /// The class of its colour, its sign and its words.
    fn shown(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Untested => ("unsure", "–", "Not tested whether anything is lost"),
            Self::Same => ("good", "✓", "Lossless in every test"),
            Self::Ties => (
                "good",
                "≈",
                "Lossless but for ties of the target's own arithmetic",
            ),
            Self::Unlikely => (
                "unsure",
                "?",
                "Sampled output strays further than chance often does",
            ),
            Self::Differs => ("bad", "✗", "Output differs from plain decoding"),
        }
    }
}

/// The verdict on each report.
pub(crate) fn verdicts(reports: &[(String, Report)]) -> String {
    let several = reports.len() > 1;
    let decoded = reports
        .iter()
        .filter(|(_, report)| !report.settings.is_empty() && report.texts.is_empty());
    let verdict =
        |(name, report): &(String, Report)| verdict(several.then_some(name), &report.lossless);
    decoded.map(verdict).collect()
}

fn verdict(name: Option<&String>, lossless: &LosslessReport) -> String {
    let (class, sign, words) = Verdict::of(lossless).shown();
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
