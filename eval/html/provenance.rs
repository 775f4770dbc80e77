//! What the figures are of: models, prompts, device, seeds and recipe.
use std::fmt::Write;

use crate::draw::escape;
use crate::report::words::plain;
use crate::report::{Report, TargetReport};

/// The facts of each report, under its name where there are several.
pub(crate) fn provenance(reports: &[(String, Report)]) -> String {
    let several = reports.len() > 1;
    let of = |(name, report): &(String, Report)| {
        let heading = if several {
            format!("<h3>{}</h3>\n", escape(name))
        } else {
            String::new()
        };
        format!("{heading}{}", facts(report))
    };
    reports.iter().map(of).collect()
}

fn facts(report: &Report) -> String {
    let mut facts: Vec<(String, String)> = Vec::new();
    let drafter = &report.drafter;
    let add = |facts: &mut Vec<_>, name: &str, fact: String| facts.push((name.to_owned(), fact));
    add(&mut facts, "drafter", drafter.path.clone());
    if !drafter.kind.is_empty() {
        add(&mut facts, "its family", drafter.kind.clone());
        add(&mut facts, "its parameters", drafter.parameters.to_string());
        add(&mut facts, "its SHA-256", drafter.sha256.clone());
    }
    for target in report.all_targets() {
        add(&mut facts, "target", named(target));
        add(&mut facts, "its SHA-256", target.sha256.clone());
    }
    let datasets = report.settings.first().map(|setting| &setting.datasets);
    for dataset in datasets.into_iter().flatten() {
        add(
            &mut facts,
            "prompts",
            format!("{} of {}", dataset.prompts, dataset.name),
        );
    }
    let device = report
        .device
        .iter()
        .map(|(name, value)| format!("{name}: {}", plain(value)));
    add(&mut facts, "device", device.collect::<Vec<_>>().join(", "));
    let seeds = report
        .seeds
        .iter()
        .map(|(name, seed)| format!("{name}: {seed}"));
    add(&mut facts, "seeds", seeds.collect::<Vec<_>>().join(", "));
    add(&mut facts, "spectrain", report.spectrain.clone());
    let mut html = String::from("<dl class=\"facts\">\n");
    for (name, fact) in facts.iter().filter(|(_, fact)| !fact.is_empty()) {
        _ = writeln!(html, "<div><dt>{name}</dt><dd>{}</dd></div>", escape(fact));
    }
    html.push_str("</dl>\n");
    let recipe = &report.recipe;
    if recipe.as_object().is_none_or(|held| !held.is_empty()) {
        let lines = format!("{recipe:#}");
        let lines: Vec<String> = lines.lines().map(escape).collect();
        _ = writeln!(
            html,
            "<details><summary>Recipe</summary>\n<pre tabindex=\"0\">{}</pre></details>",
            lines.join("\n")
        );
    }
    html
}

fn named(target: &TargetReport) -> String {
    let revision = target
        .revision
        .as_ref()
        .map_or(String::new(), |revision| format!(" at {revision}"));
    let dtype = match &*target.dtype {
        "" => String::new(),
        dtype => format!(", {dtype}"),
    };
    format!("{}{revision}{dtype}", target.model)
}
