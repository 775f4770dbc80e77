//! What a table of costs needs beside acceptance: what was measured on what, and the seconds of passes.
use crate::csv::cells::{optional, said};
use crate::deploy::report::CostSource;
use crate::report::{DatasetReport, Report, SettingReport};

/// Of what the figures are, and where they were measured: conversations, models, prompts, lengths and the device.
pub(super) fn measured_on(
    report: &Report,
    setting: &SettingReport,
    dataset: &DatasetReport,
) -> [String; 9] {
    let drafter = setting.drafter.is_none().then_some(&report.drafter);
    let conversations = dataset.spread.conversations.unwrap_or(dataset.prompts);
    let device = |key: &str| said(report.device.get(key));
    [
        conversations.to_string(),
        optional(drafter.map(|drafter| &drafter.path)),
        optional(drafter.map(|drafter| &drafter.sha256)),
        report.target_report(setting).sha256.clone(),
        optional(dataset.prompts_sha256.as_ref()),
        optional(setting.ends.as_ref().map(|ends| ends.max_new_tokens)),
        report.batch_size.to_string(),
        device("name"),
        device("model"),
    ]
}

/// Seconds of all passes over a dataset, and where it is `all` prompts those of one pass: with this draft, the drafter's part of them,
/// and without drafts.
pub(super) fn took(
    report: &Report,
    setting: &SettingReport,
    (dataset, is_all): (&DatasetReport, bool),
) -> [String; 7] {
    let seconds = &dataset.seconds;
    // Where nothing was decoded, nothing was timed.
    let is_timed = seconds.draft + seconds.verify + seconds.other > 0.0;
    let timed = |seconds: f64| optional(is_timed.then_some(seconds));
    let is_own = is_all && setting.drafter.is_none();
    let mut of_setting = report.settings_recommended.iter().filter(|one| {
        is_own
            && one.costs == CostSource::Decoder
            && one.batch_size == report.batch_size
            && one.target == setting.target
            && one.temperature == setting.temperature
            && (one.top_k, one.top_p) == (setting.top_k, setting.top_p)
    });
    let pass = of_setting.find_map(|one| {
        let mut drafts = one.candidates.iter();
        let found = drafts.find(|found| found.draft == setting.draft)?;
        Some((found, one.plain_seconds))
    });
    [
        timed(seconds.draft),
        timed(seconds.verify),
        timed(seconds.other),
        optional(seconds.autoregressive),
        optional(pass.map(|(found, _)| found.seconds)),
        optional(pass.and_then(|(found, _)| found.draft_seconds)),
        optional(pass.map(|(_, plain)| plain)),
    ]
}
