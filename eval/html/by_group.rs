//! Charts of τ by the labels, length and turn of prompts.
use crate::groups::GroupReport;
use crate::html::bars::{self, Bar, Group, Named};
use crate::html::panel::Panel;

/// What each column is called; `position` has a chart of its own.
const COLUMNS: [(&str, &str); 5] = [
    ("category", "τ by category"),
    ("language", "τ by language"),
    ("prompt_length", "τ by the prompt's length in tokens"),
    ("turn", "τ by turn of the conversation"),
    ("part", "τ while thinking and in the answer"),
];

/// One chart for each column that the panel's settings are broken down by.
pub(crate) fn figures(panel: &Panel) -> String {
    let figure = |(column, title): (&str, &str)| {
        let groups = groups(panel, column);
        let id = format!("{}-{}", column.replace('_', "-"), panel.number);
        let of = &*panel.title;
        bars::figure(Named { id, title, of }, &panel.legend(), &groups, None)
    };
    COLUMNS.into_iter().map(figure).collect()
}

fn groups(panel: &Panel, column: &str) -> Vec<Group> {
    let mut all: Vec<Group> = Vec::new();
    for held in &panel.series {
        for group in held.setting.groups.get(column).into_iter().flatten() {
            let bar = bar(held.paint, &held.label, group);
            match all.iter_mut().find(|(name, _)| *name == group.name) {
                Some((_, bars)) => bars.push(bar),
                None => all.push((group.name.clone(), vec![bar])),
            }
        }
    }
    all
}

fn bar(series: usize, label: &str, group: &GroupReport) -> Bar {
    Bar {
        series,
        label: label.to_owned(),
        tau: group.tau,
        interval: group.tau_ci95,
    }
}
