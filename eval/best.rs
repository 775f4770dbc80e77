//! Which of several reports has the largest τ, and whether that is sure, in words.
use crate::counts::Counts;
use crate::error::Error;
use crate::interval::with_signs;
use crate::paired::difference::{PairedReport, PairedVerdict};
use crate::paired::matched::{check_comparable, pairs};
use crate::paired::own::{OwnLengths, counterpart};
use crate::paired::{ONE_TRAINING, are_trainings};
use crate::report::{Report, SettingReport};

/// A sentence for each way of decoding that all of several reports have, or have a chain of their own length for, or why there is
/// none.
pub(crate) fn best(reports: &[(String, Report)]) -> Vec<String> {
    let [(first_name, first), others @ ..] = reports else {
        return Vec::new();
    };
    let is_decoded = |(_, report): &(String, Report)| !report.settings.is_empty();
    if others.is_empty() || !reports.iter().all(is_decoded) {
        return Vec::new();
    }
    for (name, other) in others {
        let why = match check_comparable(first, other) {
            Ok(()) => continue,
            Err(Error::OtherPrompts { .. }) => format!(
                "{name} and {first_name} were judged on different prompts. `spectrain evaluate` with the same `--target` and `--prompts` for \
                 each drafter makes reports that can be compared"
            ),
            Err(Error::Setting { mismatch, .. }) => format!("of {name}, {mismatch}"),
            Err(error) => format!("of {name}, {error}"),
        };
        return vec![format!("No verdict on which is best: {why}.")];
    }
    let own = OwnLengths::of(reports);
    let settings = first.settings.iter();
    let verdicts = settings.filter_map(|setting| of_setting(reports, setting, &own));
    let verdicts: Vec<Verdict> = verdicts.collect();
    let of_trainings = verdicts.iter().any(|verdict| verdict.of_trainings);
    let sentences = verdicts.into_iter().map(|verdict| verdict.sentence);
    let mut found: Vec<String> = sentences.collect();
    if !found.is_empty() {
        found.extend(own.note());
    }
    found.extend(of_trainings.then(|| format!("Of what is ahead: {ONE_TRAINING}.")));
    found
}

/// Who is best in one way of decoding.
struct Verdict {
    sentence: String,
    /// Whether it tells a training from another one.
    of_trainings: bool,
}

/// A report in one way of decoding.
struct Place<'a> {
    name: &'a str,
    report: &'a Report,
    setting: &'a SettingReport,
    tau: f64,
    /// Of which length its chain is, where lengths differ.
    length: String,
}

/// Who is best in one way of decoding of the first report; none where not all have it.
fn of_setting(
    reports: &[(String, Report)],
    setting: &SettingReport,
    lengths: &OwnLengths,
) -> Option<Verdict> {
    let (_, first) = reports.first()?;
    let mut places = Vec::new();
    for (name, report) in reports {
        let own = counterpart(report, first, setting)?;
        let counts = own.datasets.iter().flat_map(|of| &of.counts).copied();
        let length = match lengths.has(setting) {
            true => format!(", {}", own.draft),
            false => String::new(),
        };
        places.push(Place {
            name,
            report,
            setting: own,
            tau: counts.sum::<Counts>().tau()?,
            length,
        });
    }
    places.sort_by(|one, other| other.tau.total_cmp(&one.tau));
    let [best, second, ..] = &places[..] else {
        return None;
    };
    let pairs = pairs(second.report, (second.setting, best.setting)).ok()?;
    let way = lengths.heading(setting);
    let found = PairedReport::of(setting.behind_target(&way), &pairs, reports.len() - 1)?;
    let is_ahead = found.choice() == PairedVerdict::Better;
    Some(Verdict {
        sentence: sentence(&found, best, second),
        of_trainings: is_ahead && are_trainings(best.report, second.report),
    })
}

fn sentence(found: &PairedReport, best: &Place, second: &Place) -> String {
    let way = &found.setting;
    let has = format!(
        "{way}: {} has the largest τ, {:.2}{}",
        best.name, best.tau, best.length
    );
    let second = format!(
        "the second, {} ({:.2}{})",
        second.name, second.tau, second.length
    );
    let by = with_signs(found.difference, found.joint, 2) + " by pairs of prompts";
    let allows = match found.among {
        0 | 1 => String::new(),
        among => format!(", which allows for {among} comparisons"),
    };
    match found.choice() {
        PairedVerdict::Better => format!("{has}, and is ahead of {second}: {by}{allows}."),
        PairedVerdict::TooFew => format!(
            "{has}, but {} prompts are too few to tell it from {second}.",
            found.conversations
        ),
        PairedVerdict::Worse | PairedVerdict::NotToldApart => {
            format!("{has}, but is not told apart from {second}: {by}{allows}.")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DraftReport;
    use crate::paired::tests::{of, report};

    fn named(name: &str, passes: [u64; 3]) -> (String, Report) {
        (
            name.into(),
            report(passes.map(of).repeat(14), "prompts", "target"),
        )
    }

    #[test]
    fn the_best_of_several_is_named_with_how_sure_that_is() {
        let (slow, fast) = (named("slow", [60; 3]), named("fast", [40; 3]));
        assert_eq!(
            best(&[slow.clone(), fast.clone()]),
            [
                "T=0, greedy, chain 5: fast has the largest τ, 3.00, and is ahead of the second, slow (2.00): +1.00 \
                 [+1.00, +1.00] by pairs of prompts."
            ]
        );
        let near = named("near", [20, 40, 70]);
        let all = [slow, fast.clone(), near];
        let told = best(&all).remove(0);
        assert!(
            told.contains(
                "fast has the largest τ, 3.00, but is not told apart from the second, near (2.77)"
            ),
            "{told}"
        );
        assert!(told.ends_with("which allows for 2 comparisons."), "{told}");
        assert!(best(&all[..1]).is_empty());
    }

    #[test]
    fn of_trainings_it_is_said_once_that_their_seeds_are_not_in_the_interval() {
        let of_weights = |name: &str, passes: u64| {
            let (name, mut report) = named(name, [passes; 3]);
            report.drafter.sha256.clone_from(&name);
            let mut warm = report.settings[0].clone();
            warm.temperature = 1.0;
            report.settings.push(warm);
            (name, report)
        };
        let (slow, fast) = (of_weights("slow", 60), of_weights("fast", 40));
        let told = best(&[slow.clone(), fast]);
        assert_eq!(told.len(), 3, "{told:?}");
        assert_eq!(told[2], format!("Of what is ahead: {ONE_TRAINING}."));
        // Nobody is ahead.
        let told = best(&[slow, of_weights("like", 60)]);
        assert_eq!(told.len(), 2, "{told:?}");
    }

    #[test]
    fn drafters_without_a_length_in_common_get_a_verdict_that_says_so() {
        let (short, mut long) = (named("short", [60; 3]), named("long", [40; 3]));
        long.1.settings[0].draft = DraftReport::Chain {
            length: 15,
            tokens: None,
        };
        let told = best(&[short, long.clone()]);
        let [verdict, note] = &told[..] else {
            panic!("{told:?}")
        };
        assert_eq!(
            verdict,
            "T=0, greedy, each at its own length: long has the largest τ, 3.00, chain 15, and is ahead of the second, short (2.00, \
             chain 5): +1.00 [+1.00, +1.00] by pairs of prompts."
        );
        assert!(note.contains("chains of 5 and 15 tokens"), "{note}");
        // Of two chains it is not said which is the drafter's own.
        let mut several = named("several", [60; 3]);
        let mut further = several.1.settings[0].clone();
        further.draft = DraftReport::Chain {
            length: 7,
            tokens: None,
        };
        several.1.settings.push(further);
        let told = best(&[several, long]);
        let [told] = &told[..] else {
            panic!("{told:?}")
        };
        assert!(
            told.starts_with("No verdict on which is best: of long, expected one of the settings"),
            "{told}"
        );
        assert!(
            told.contains("`--set 'evaluate.draft_lengths=[7]'`"),
            "{told}"
        );
    }

    #[test]
    fn few_prompts_and_other_ones_allow_no_verdict() {
        let few = |passes| report(vec![of(passes); 3], "prompts", "target");
        let told = best(&[("a".into(), few(40)), ("b".into(), few(60))]).remove(0);
        assert!(told.contains("but 3 prompts are too few"), "{told}");
        let other = ("other".to_owned(), report(vec![of(40)], "q", "target"));
        let told = best(&[named("a", [40; 3]), other]).remove(0);
        assert!(
            told.starts_with(
                "No verdict on which is best: other and a were judged on different prompts."
            ),
            "{told}"
        );
        let other = ("other".to_owned(), report(vec![of(40)], "q", "another"));
        assert_eq!(best(&[named("a", [40; 3]), other]).len(), 1);
    }

    #[test]
    fn a_report_with_one_dataset_more_allows_no_verdict() {
        let (mut more, less) = (named("more", [40; 3]), named("less", [60; 3]));
        let mut dataset = more.1.settings[0].datasets[0].clone();
        dataset.name = "code".into();
        dataset.prompts_sha256 = Some("other prompts".into());
        more.1.settings[0].datasets.push(dataset);
        for reports in [[more.clone(), less.clone()], [less, more]] {
            let told = best(&reports);
            assert!(
                told[0].starts_with("No verdict on which is best: "),
                "{told:?}"
            );
            assert!(
                told[0].contains("were judged on different prompts"),
                "{told:?}"
            );
        }
    }
}
