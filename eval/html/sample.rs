//! Pieces of decoded text, with what was drafted and kept, what was rejected, and what the target added.
use std::fmt::Write;

use crate::draw::escape;
use crate::html::markup::Table;
use crate::report::Report;
use crate::sample::report::{SamplePass, SampleReport};

/// What the signs of a sample mean.
const LEGEND: &str = "<p class=\"quiet\"><ins>underlined</ins>: drafted and kept; <b class=\"bonus\">bold</b>: the target's own \
                      token, one for each pass; <del>struck through</del>: drafted and rejected. Grey text is the prompt's end.</p>\n";

/// The samples of each report.
pub(crate) fn samples(reports: &[(String, Report)]) -> String {
    let several = reports.len() > 1;
    let all = reports.iter().flat_map(|(name, report)| {
        let named = several.then_some(name);
        report.samples.iter().map(move |sample| (named, sample))
    });
    let shown: String = all.map(|(name, of)| sample(name, of)).collect();
    if shown.is_empty() {
        return shown;
    }
    format!("{LEGEND}<div class=\"samples\">\n{shown}</div>\n")
}

fn sample(name: Option<&String>, sample: &SampleReport) -> String {
    let name = name.map_or(String::new(), |name| format!("{name}: "));
    let caption = format!(
        "{name}{}, prompt {}; {}",
        sample.dataset, sample.prompt, sample.setting
    );
    let mut text = format!("<span class=\"quiet\">{}</span>", lines(&sample.before));
    for pass in &sample.passes {
        for (part, open, close) in [
            (lines(&pass.accepted), "<ins>", "</ins>"),
            (in_line(&pass.rejected), "<del>", "</del>"),
            (lines(&pass.bonus), "<b class=\"bonus\">", "</b>"),
        ] {
            if !part.is_empty() {
                _ = write!(text, "{open}{part}{close}");
            }
        }
    }
    format!(
        "<figure>\n<figcaption>{}</figcaption>\n<pre class=\"sample\" tabindex=\"0\">{text}</pre>\n\
         <details><summary>Pass by pass</summary>\n{}</details>\n</figure>\n",
        escape(&caption),
        table(&caption, &sample.passes).html()
    )
}

/// The same in words.
fn table(caption: &str, passes: &[SamplePass]) -> Table {
    let head = [
        "pass",
        "kept",
        "rejected",
        "the target's own",
        "tokens kept",
    ];
    let mut table = Table::new(&format!("{caption}, pass by pass"), 4, &head);
    for (number, pass) in passes.iter().enumerate() {
        let number = match number {
            0 => "prompt".to_owned(),
            number => number.to_string(),
        };
        let mut row = vec![number];
        let parts = [&pass.accepted, &pass.rejected, &pass.bonus];
        row.extend(parts.map(|part| visible(part)));
        row.push(pass.tokens[0].to_string());
        table.rows.push(row);
    }
    table
}

/// Text whose lines stay lines.
fn lines(text: &str) -> String {
    let text = text.replace('\t', "    ");
    let lines: Vec<String> = text.split('\n').map(escape).collect();
    lines.join("\n")
}

/// Text in one line, an indent as one space.
fn in_line(text: &str) -> String {
    let mut line = visible(text);
    while line.contains("  ") {
        line = line.replace("  ", " ");
    }
    escape(&line)
}

fn visible(text: &str) -> String {
    text.replace('\n', "⏎").replace('\t', "→")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_has_its_sign_and_lines_stay_lines() {
        let report = SampleReport {
            setting: "T=0".into(),
            dataset: "eval".into(),
            prompt: 3,
            before: "def f(<x>):\n".into(),
            passes: vec![SamplePass {
                accepted: "\treturn\n".into(),
                rejected: "\n    x".into(),
                bonus: "y".into(),
                tokens: [2, 2, 1],
            }],
        };
        let html = sample(None, &report);
        let text = "<span class=\"quiet\">def f(&lt;x&gt;):\n</span><ins>    return\n</ins><del>⏎ x</del><b class=\"bonus\">y</b></pre>";
        assert!(html.contains(text), "{html}");
        assert!(
            html.contains("<td>→return⏎</td><td>⏎    x</td><td>y</td><td class=\"n\">2</td>"),
            "{html}"
        );
        assert!(html.contains("eval, prompt 3; T=0"), "{html}");
    }
}
