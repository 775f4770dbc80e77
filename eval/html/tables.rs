//! The tables of all settings and of the spread over prompts.
use crate::html::markup::{Table, percent, values};
use crate::html::panel::Panel;
use crate::interval::with_digits;
use crate::report::DatasetReport;

/// What is known of each setting and dataset.
pub(crate) fn settings(panels: &[Panel]) -> String {
    let head = [
        "setting",
        "dataset",
        "prompts",
        "tokens",
        "τ [95 % CI]",
        "α [95 % CI]",
        "α₁, α₂, …",
        "drafted per pass",
        "speed-up [95 % CI]",
        "by the formula",
        "memory-bound",
        "drafting, s",
        "verifying, s",
        "other, s",
        "plain, s",
    ];
    let mut table = Table::new("By setting and dataset", 2, &head);
    for (heading, dataset) in rows(panels) {
        let speedup = dataset.speedup;
        let seconds = dataset.seconds;
        let cells = [
            dataset.prompts.to_string(),
            dataset.tokens.to_string(),
            with_digits(dataset.tau, dataset.tau_ci95, 2),
            with_digits(dataset.alpha, dataset.alpha_ci95, 2),
            values(&dataset.conditional),
            with_digits(dataset.draft_tokens_per_pass, None, 2),
            with_digits(
                speedup.map(|speedup| speedup.wall),
                speedup.and_then(|speedup| speedup.wall_ci95),
                2,
            ),
            with_digits(speedup.and_then(|speedup| speedup.model), None, 2),
            with_digits(speedup.and_then(|speedup| speedup.memory_bound), None, 2),
            with_digits(Some(seconds.draft), None, 2),
            with_digits(Some(seconds.verify), None, 2),
            with_digits(Some(seconds.other), None, 2),
            with_digits(seconds.autoregressive, None, 2),
        ];
        let names = [heading.to_owned(), dataset.name.clone()];
        table.rows.push(names.into_iter().chain(cells).collect());
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.html()
}

/// How acceptance and speed differ between prompts.
pub(crate) fn spread(panels: &[Panel]) -> String {
    let head = [
        "setting",
        "dataset",
        "τ, pooled",
        "τ, mean over prompts",
        "τ, worst tenth",
        "slowed below 1x, %",
        "conversations",
        "turns left out",
    ];
    let mut table = Table::new("Spread over prompts, with 95 % intervals", 2, &head);
    let known = rows(panels).filter(|(_, dataset)| dataset.spread.tau_mean.is_some());
    for (heading, dataset) in known {
        let spread = &dataset.spread;
        let count = |count: Option<u64>| count.map_or("–".to_owned(), |count| count.to_string());
        let cells = [
            with_digits(dataset.tau, dataset.tau_ci95, 2),
            with_digits(spread.tau_mean, spread.tau_mean_ci95, 2),
            with_digits(spread.tau_worst_tenth, spread.tau_worst_tenth_ci95, 2),
            percent(spread.slowed, spread.slowed_ci95),
            count(spread.conversations),
            count(spread.turns_left_out),
        ];
        let names = [heading.to_owned(), dataset.name.clone()];
        table.rows.push(names.into_iter().chain(cells).collect());
    }
    if table.rows.is_empty() {
        return String::new();
    }
    table.html()
        + "<p class=\"quiet\">The pooled τ counts every pass alike, the mean every prompt. The worst tenth is that of the \
           conversations in which τ is smallest; slowed are those that take longer with the drafter than without.</p>\n"
}

fn rows<'a>(panels: &'a [Panel]) -> impl Iterator<Item = (&'a str, &'a DatasetReport)> {
    let series = panels.iter().flat_map(|panel| &panel.series);
    series.flat_map(|series| {
        series
            .setting
            .shown()
            .map(|dataset| (&*series.heading, dataset))
    })
}
