//! Drafters that were judged with chains of other lengths: each is taken at its own.
use std::collections::BTreeSet;

use spectrain_models::USUAL_DRAFT;

use crate::draft::{ChainTokens, DraftReport};
use crate::report::{Report, SettingReport};

/// The length of a chain of the report's own drafter, and how its tokens were chosen.
fn chain(setting: &SettingReport) -> Option<(usize, Option<ChainTokens>)> {
    match setting.draft {
        DraftReport::Chain { length, tokens } if setting.drafter.is_none() => {
            Some((length, tokens))
        }
        _ => None,
    }
}

/// Whether the chains of two settings differ in length.
pub(super) fn differ_in_length(one: &SettingReport, other: &SettingReport) -> bool {
    let lengths = chain(one).zip(chain(other));
    lengths.is_some_and(|((one, _), (other, _))| one != other)
}

/// Whether two settings were decided in the same way, whatever was drafted.
fn are_decided_alike(one: &SettingReport, other: &SettingReport) -> bool {
    one.target == other.target
        && one.sampling() == other.sampling()
        && one.verifier == other.verifier
        && one.lossy == other.lossy
}

/// The only chain of a report that may differ in length from that of `like`, and in nothing else.
fn only<'a>(report: &'a Report, like: &SettingReport) -> Option<&'a SettingReport> {
    let (_, tokens) = chain(like)?;
    let is_alike = |setting: &&SettingReport| {
        chain(setting).is_some_and(|(_, own)| own == tokens) && are_decided_alike(setting, like)
    };
    let mut alike = report.settings.iter().filter(is_alike);
    let first = alike.next()?;
    alike.next().is_none().then_some(first)
}

/// The setting of `other` that `setting` of `report` is compared with: the one that decodes in the same way; or, where the two
/// drafters have no way of decoding in common, the only chain for that target, sampling, verifier and kind of tokens, if each has
/// one.
pub(crate) fn counterpart<'a>(
    other: &'a Report,
    report: &Report,
    setting: &SettingReport,
) -> Option<&'a SettingReport> {
    if let Some(same) = other.like(setting) {
        return Some(same);
    }
    let mut own = report.settings.iter().filter(|own| own.drafter.is_none());
    if own.any(|own| other.like(own).is_some()) {
        return None;
    }
    only(report, setting)?;
    only(other, setting)
}

/// The settings of `baseline` whose counterparts in `report` have chains of another length, each with its counterpart.
pub(super) fn at_other_lengths<'a>(
    baseline: &'a Report,
    report: &'a Report,
) -> Vec<[&'a SettingReport; 2]> {
    let pair = |setting: &'a SettingReport| {
        let found = counterpart(report, baseline, setting)?;
        differ_in_length(setting, found).then_some([setting, found])
    };
    baseline.settings.iter().filter_map(pair).collect()
}

/// What must be known where chains of these settings are compared; nothing where all have one length.
pub(super) fn remark<'s>(settings: impl Iterator<Item = &'s SettingReport>) -> Option<String> {
    let lengths: BTreeSet<usize> = settings
        .filter_map(chain)
        .map(|(length, _)| length)
        .collect();
    let shortest = lengths.first().filter(|_| lengths.len() > 1)?;
    let all: Vec<String> = lengths.iter().map(usize::to_string).collect();
    Some(format!(
        "the lengths differ: chains of {} tokens. A longer chain can reach a larger τ, and each of its passes costs more: the \
         speed-up tells which drafter is faster. To compare τ at one length, judge each drafter by `spectrain evaluate --draft-length \
         {shortest}`, or run its recipe with `--set 'evaluate.draft_lengths=[{shortest}]'`",
        all.join(" and ")
    ))
}

/// What gives two reports a way of decoding in common.
pub(super) fn advice(one: &Report, other: &Report) -> String {
    let mut pairs = one.settings.iter().flat_map(|one| {
        let pairs = other.settings.iter();
        pairs.map(move |other| (one, other))
    });
    if !pairs.any(|(one, other)| are_decided_alike(one, other)) {
        return "judge both drafters by the same targets, `--temperature`, `--top-k`, `--top-p` and `--verifier` of `spectrain evaluate` (in \
                a recipe `temperatures`, `top_k`, `top_p` and `verifier` of `[evaluate]`)"
            .to_owned();
    }
    let longest = |report: &Report| {
        let lengths = report.settings.iter().filter_map(chain);
        lengths.map(|(length, _)| length).max()
    };
    let length = [longest(one), longest(other)].into_iter().flatten().min();
    let length = length.unwrap_or(USUAL_DRAFT);
    format!(
        "for a chain that both have, run the recipes with `--set 'evaluate.draft_lengths=[{length}]'`, or judge both drafters by \
         `spectrain evaluate --draft-length {length}`"
    )
}

/// The settings of several reports that stand together although the lengths of their chains differ.
pub(crate) struct OwnLengths<'a>(Vec<&'a SettingReport>);

impl<'a> OwnLengths<'a> {
    /// Those that are compared with one of the first report.
    pub(crate) fn of(reports: &'a [(String, Report)]) -> Self {
        let mut all = Vec::new();
        if let [(_, first), others @ ..] = reports {
            for setting in &first.settings {
                let beside = others.iter();
                let beside = beside.filter_map(|(_, other)| counterpart(other, first, setting));
                all.extend(Self::beside(setting, beside.collect()).0);
            }
        }
        Self(all)
    }

    /// A setting and those that are compared with it: all of them where lengths differ, else none.
    pub(crate) fn beside(setting: &'a SettingReport, others: Vec<&'a SettingReport>) -> Self {
        match others.iter().any(|other| differ_in_length(setting, other)) {
            true => Self([vec![setting], others].concat()),
            false => Self(Vec::new()),
        }
    }

    /// Whether a setting is one of them.
    pub(crate) fn has(&self, setting: &SettingReport) -> bool {
        self.0.iter().any(|own| std::ptr::eq(*own, setting))
    }

    /// What a setting stands under.
    pub(crate) fn heading(&self, setting: &SettingReport) -> String {
        match self.has(setting) {
            true => setting.at_own_length(),
            false => setting.heading(),
        }
    }

    /// What a setting of the report `name` is called there.
    pub(crate) fn row(&self, name: &str, setting: &SettingReport) -> String {
        match chain(setting).filter(|_| self.has(setting)) {
            Some((length, _)) => format!("{name} (chain {length})"),
            None => name.to_owned(),
        }
    }

    /// What must be known of them.
    pub(crate) fn note(&self) -> Option<String> {
        let remark = remark(self.0.iter().copied())?;
        Some(format!(
            "These drafters have no draft in common, so each is compared at its own length; {remark}."
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paired::difference::PairedVerdict;
    use crate::paired::tests::{of, report};
    use crate::paired::{paired, parts::paired_parts};

    /// A report with a chain of each length, in which conversations take so many passes.
    fn with_chains(lengths: &[usize], passes: u64) -> Report {
        let mut report = report(vec![of(passes); 24], "p", "t");
        let one = report.settings.remove(0);
        let chains = lengths.iter().map(|&length| SettingReport {
            draft: DraftReport::Chain {
                length,
                tokens: None,
            },
            ..one.clone()
        });
        report.settings = chains.collect();
        report
    }

    /// The same above temperature 0, with tokens chosen in this way.
    fn warm(mut report: Report, chosen: ChainTokens) -> Report {
        for setting in &mut report.settings {
            setting.temperature = 1.0;
            if let DraftReport::Chain { tokens, .. } = &mut setting.draft {
                *tokens = Some(chosen);
            }
        }
        report
    }

    #[test]
    fn two_drafters_without_a_length_in_common_are_compared_each_at_its_own() {
        let (short, long) = (with_chains(&[5], 60), with_chains(&[15], 40));
        let found = paired_parts(&short, &long, 1).unwrap();
        let [pair] = &found.found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(pair.setting, "T=0, greedy, chain 15 against chain 5");
        assert_eq!((pair.baseline_tau, pair.tau), (2.0, 3.0));
        assert_eq!(pair.verdict(), PairedVerdict::Better);
        assert!(pair.other_lengths);
        let [remark] = &found.remarks[..] else {
            panic!("{found:?}")
        };
        for told in [
            "chains of 5 and 15 tokens",
            "the speed-up tells which drafter is faster",
            "`spectrain evaluate --draft-length 5`",
            "`--set 'evaluate.draft_lengths=[5]'`",
        ] {
            assert!(remark.contains(told), "no `{told}`: {remark}");
        }
        // A gate asks for the same chain.
        assert_eq!(
            found.uncompared,
            ["T=0, greedy, chain 5 (only with chain 15)"]
        );
        // A smaller τ of a shorter chain is no fall.
        let back = &paired(&long, &short, 1).unwrap()[0];
        assert_eq!(back.verdict(), PairedVerdict::Worse);
        assert!(!back.falls_below(-0.05));
    }

    #[test]
    fn a_length_that_both_have_is_the_one_that_is_compared() {
        let (both, long) = (with_chains(&[5, 15], 60), with_chains(&[15], 40));
        let found = paired_parts(&both, &long, 1).unwrap();
        let settings: Vec<&str> = found.found.iter().map(|pair| &*pair.setting).collect();
        assert_eq!(settings, ["T=0, greedy, chain 15"]);
        assert_eq!(found.uncompared, ["T=0, greedy, chain 5"]);
        assert!(counterpart(&long, &both, &both.settings[0]).is_none());
    }

    #[test]
    fn where_a_drafter_has_several_chains_it_is_said_how_to_have_one_in_common() {
        let (several, long) = (with_chains(&[3, 7], 60), with_chains(&[15], 40));
        for [one, other] in [[&several, &long], [&long, &several]] {
            let told = paired(one, other, 1).unwrap_err().to_string();
            assert!(
                told.contains("`--set 'evaluate.draft_lengths=[7]'`"),
                "{told}"
            );
            assert!(
                told.contains("`spectrain evaluate --draft-length 7`"),
                "{told}"
            );
        }
        let cold = with_chains(&[5], 60);
        let warm = warm(with_chains(&[15], 40), ChainTokens::Drawn);
        let told = paired(&cold, &warm, 1).unwrap_err().to_string();
        assert!(
            told.contains("`--temperature`") && !told.contains("draft_lengths"),
            "{told}"
        );
    }

    #[test]
    fn drawn_and_likeliest_tokens_and_drafters_without_training_are_kept_apart() {
        let of = |length, chosen| warm(with_chains(&[length], 40), chosen);
        let drawn = of(5, ChainTokens::Drawn);
        let likeliest = of(15, ChainTokens::Likeliest);
        assert!(counterpart(&likeliest, &drawn, &drawn.settings[0]).is_none());
        let mut both = of(15, ChainTokens::Drawn);
        both.settings.extend(likeliest.settings);
        let found = counterpart(&both, &drawn, &drawn.settings[0]).unwrap();
        assert_eq!(found.draft, both.settings[0].draft);

        let (mut short, mut long) = (with_chains(&[5], 60), with_chains(&[15], 40));
        for report in [&mut short, &mut long] {
            let mut free = report.settings[0].clone();
            free.drafter = Some("prompt-lookup".into());
            report.settings.push(free);
        }
        assert!(counterpart(&long, &short, &short.settings[0]).is_some());
        assert!(counterpart(&long, &short, &short.settings[1]).is_none());
        // That both have the same of a drafter without training says nothing of their own.
        long.settings[1] = short.settings[1].clone();
        assert_eq!(paired(&short, &long, 1).unwrap().len(), 2);
    }

    #[test]
    fn settings_of_other_lengths_stand_under_one_heading_with_their_lengths() {
        let reports = [("a", 5), ("b", 15), ("c", 5)]
            .map(|(name, length)| (name.to_owned(), with_chains(&[length], 40)));
        let own = OwnLengths::of(&reports);
        let told = reports.iter().map(|(name, report)| {
            let setting = &report.settings[0];
            (own.heading(setting), own.row(name, setting))
        });
        let heading = "T=0, greedy, each at its own length";
        let rows = ["a (chain 5)", "b (chain 15)", "c (chain 5)"];
        let expected = rows.map(|row| (heading.to_owned(), row.to_owned()));
        assert_eq!(told.collect::<Vec<_>>(), expected);
        let alike = [&reports[0], &reports[2]].map(Clone::clone);
        let own = OwnLengths::of(&alike);
        assert!(own.note().is_none());
        assert_eq!(own.row("a", &alike[0].1.settings[0]), "a");
        let drawn = warm(with_chains(&[5], 40), ChainTokens::Drawn);
        assert_eq!(
            drawn.settings[0].at_own_length(),
            "T=1, greedy, each at its own length, drawn"
        );
    }
}
