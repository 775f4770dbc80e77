//! What reports say beside their figures.
use serde_json::Value;

use super::{Report, SettingReport};
use crate::draft::DraftReport;
use crate::interval::with_interval;

/// What stands below a table with settings that are not exact.
const LOSSY: &str = "Lossy settings change what the target says: do not compare their τ and speed-up with those of exact ones.";

/// What stands below a table in which the tokens of a chain are chosen in one of two ways.
const CHOSEN: &str = "Above temperature 0 a chain has the `likeliest` tokens, as engines draft by default, or `drawn` ones; \
                      the launch commands of the drafter say which engine does what.";

/// What it means that a drafter drafts and nothing of it is accepted.
pub const NOTHING_ACCEPTED: &str = "nothing that was drafted was accepted, so drafting only costs time. Usually the drafter was \
                                    trained for another target or for other weights of it, reads other layers than in training, saw \
                                    another chat template in training, or has hardly been trained";

/// What it means that no answer had a token to be drafted.
const NOTHING_DRAFTED: &str = "the target ended every answer at once, so there was nothing to draft. Usually it saw another chat \
                               template than in its training, or has hardly been trained";

/// What settings need to have said of them, below their table.
pub(crate) fn legend<'a>(settings: impl Iterator<Item = &'a SettingReport> + Clone) -> String {
    let is_chosen = |setting: &SettingReport| matches!(&setting.draft, DraftReport::Chain { tokens, .. } if tokens.is_some());
    let lossy = settings
        .clone()
        .any(|setting| setting.lossy)
        .then_some(LOSSY);
    let chosen = settings.clone().any(is_chosen).then_some(CHOSEN);
    let tuned = settings.filter_map(|setting| {
        let how = setting.draft.how_tuned()?;
        Some(format!("{}: {how}.", setting.of_target()))
    });
    let parts = chosen.into_iter().chain(lossy).map(str::to_owned);
    parts
        .chain(tuned)
        .map(|part| format!("\n{part}\n"))
        .collect()
}

/// A value of the recipe or the device without the quotes of a string.
pub(crate) fn plain(value: &Value) -> String {
    value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned)
}

/// Which speed-ups of `reports` are not to be trusted, each behind the name of its report.
pub(crate) fn pace_notes(reports: &[(String, Report)]) -> Vec<String> {
    let named = |(name, report): &(String, Report)| -> Vec<String> {
        let notes = report.pace_notes();
        notes.map(|note| format!("{name}: {note}")).collect()
    };
    reports.iter().flat_map(named).collect()
}

impl Report {
    /// Which speed-ups are not to be trusted, and what they are by passes that took turns.
    pub(crate) fn pace_notes(&self) -> impl Iterator<Item = String> {
        let note = |setting: &SettingReport| {
            let speedup = setting.overall.speedup?;
            let (times, interval) = speedup.in_turns()?;
            let measured = with_interval(Some(speedup.wall), speedup.wall_ci95);
            let in_turns = with_interval(Some(times), interval);
            Some(format!(
                "{}: the machine's pace changed between plain and drafted outputs, so do not trust the speed-up of {measured}, nor \
                 which conversations are slowed: measured with passes that took turns it is {in_turns}.",
                setting.of_target()
            ))
        };
        self.settings.iter().filter_map(note)
    }

    /// What the speeds are of, where several sequences were decoded at a time.
    pub(crate) fn batch_note(&self) -> Option<String> {
        (self.batch_size > 1).then(|| {
            format!(
                "Speeds are of {} sequences at a time, with the drafter and without.",
                self.batch_size
            )
        })
    }

    /// How to have speeds, where nobody wanted to measure any.
    pub(crate) fn baseline_note(&self) -> Option<String> {
        let unwanted = self.recipe.pointer("/evaluate/baseline") == Some(&Value::Bool(false));
        let is_decoded = self.texts.is_empty() && !self.settings.is_empty();
        (unwanted && is_decoded).then(|| {
            "Not timed: without `--no-baseline` (in a recipe with `evaluate.baseline = true`) prompts are also decoded without a \
             drafter, for the speed-up and the check that nothing is lost."
                .to_owned()
        })
    }

    /// That longer chains were asked for than the report's own drafter can draft.
    pub(crate) fn shorter_chains_note(&self) -> Option<String> {
        let is_chain = |draft: &&Value| draft["shape"] == "chain";
        let evaluate = &self.recipe["evaluate"];
        let lengths = evaluate["draft_lengths"].as_array().into_iter().flatten();
        let drafts = evaluate["drafts"].as_array().into_iter().flatten();
        let drafts = drafts.filter(is_chain).map(|draft| &draft["length"]);
        let own = self.settings.iter().filter(|one| one.drafter.is_none());
        let chains = own.filter_map(|setting| match setting.draft {
            DraftReport::Chain { length, .. } => Some(length as u64),
            _ => None,
        });
        let longest = chains.max()?;
        let mut longer: Vec<u64> = lengths.chain(drafts).filter_map(Value::as_u64).collect();
        longer.retain(|&length| length > longest);
        longer.sort_unstable();
        longer.dedup();
        let longer: Vec<String> = longer.iter().map(u64::to_string).collect();
        (!longer.is_empty()).then(|| {
            format!(
                "Chains of {} tokens were asked for; this drafter drafts at most {longest}, so in their place are chains of {longest}.",
                longer.join(" and ")
            )
        })
    }

    /// In which ways of decoding nothing was drafted, or nothing of what the report's own drafter drafted was accepted, and what that
    /// usually means.
    pub(crate) fn nothing_gained_notes(&self) -> impl Iterator<Item = String> {
        let drafts_nothing =
            |setting: &&SettingReport| setting.overall.prompts > 0 && setting.overall.passes == 0;
        let accepts_nothing = |setting: &&SettingReport| {
            let overall = &setting.overall;
            let drafted = overall.draft_tokens_per_pass.unwrap_or_default();
            setting.drafter.is_none() && drafted > 0.0 && overall.tau.is_some_and(|tau| tau <= 1.0)
        };
        let note = |headings: Vec<String>, words: &str| {
            (!headings.is_empty()).then(|| format!("{}: {words}.", headings.join("; ")))
        };
        let settings = || self.settings.iter();
        let undrafted = settings()
            .filter(drafts_nothing)
            .map(SettingReport::of_target);
        let useless = settings()
            .filter(accepts_nothing)
            .map(SettingReport::of_target);
        let notes = [
            note(undrafted.collect(), NOTHING_DRAFTED),
            note(useless.collect(), NOTHING_ACCEPTED),
        ];
        notes.into_iter().flatten()
    }
}
