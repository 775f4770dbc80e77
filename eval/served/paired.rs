//! Two drafters in an engine on the same prompts: the difference, by pairs of conversations.
use super::figures::{CountedBy, ServedFigures};
use super::report::{Role, ServedReport};
use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::paired::PairedReports;
use crate::paired::difference::PairedReport;
use crate::paired::matched::other_target;
use crate::report::Report;

/// What a run tells, or why it does not.
type Known<T> = std::result::Result<T, String>;

/// Tokens by which drafts of one length may differ: an engine drafts less where a context is full.
const SAME_LENGTH: f64 = 0.5;

/// The runs of a report on its server with a drafter.
fn runs(report: &Report) -> impl Iterator<Item = &ServedReport> {
    let is_drafter = |run: &&ServedReport| run.role == Role::Drafter;
    report.served.iter().filter(is_drafter)
}

/// The runs of `one` that `other` does not have, in words.
pub(crate) fn runs_alone(one: &Report, other: &Report) -> Vec<String> {
    let has = |run: &ServedReport| runs(other).any(|known| known.is_like(run));
    let alone = runs(one).filter(|run| !has(run));
    alone.map(ServedReport::way_served).collect()
}

/// Whether it has any.
pub(crate) fn has_runs(report: &Report) -> bool {
    runs(report).next().is_some()
}

/// Every run on a server that `report` shares with `baseline`; `among` so many reports that are compared with it.
///
/// # Errors
/// They share none, were asked other prompts, or are of different targets; or no run of both has counts of single conversations.
pub(crate) fn paired_runs(
    baseline: &Report,
    report: &Report,
    among: usize,
) -> Result<PairedReports> {
    let mut pairs = PairedReports::default();
    pairs.remarks.extend(on_targets(baseline, report)?);
    let mut whys = Vec::new();
    for ours in runs(report) {
        let Some(theirs) = runs(baseline).find(|theirs| theirs.is_like(ours)) else {
            continue;
        };
        if let (Some(expected), Some(asked)) = (&theirs.asked, &ours.asked) {
            expected.check_same(asked)?;
        }
        match pair([theirs, ours], among) {
            Ok(found) => {
                pairs.found.push(found);
                let mut remarks = on_drafts([theirs, ours]);
                remarks.retain(|remark| !pairs.remarks.contains(remark));
                pairs.remarks.extend(remarks);
            }
            Err(why) => {
                let way = ours.way_served();
                // Of a run without counts nothing was to be expected.
                if counts(theirs, "the baseline").is_ok() {
                    pairs.uncompared.push(way.clone());
                }
                whys.push((format!("{way}{}", taus([theirs, ours])), why));
            }
        }
    }
    if pairs.found.is_empty() {
        return Err(nothing_shared(baseline, report, whys.first()));
    }
    let told = whys.iter();
    let told = told.map(|(way, why)| format!("{way}, not compared by pairs: {why}"));
    pairs.remarks.extend(told);
    Ok(pairs)
}

/// That no runs can be compared: because of what is told of the first that both reports have, else as they share none.
fn nothing_shared(baseline: &Report, report: &Report, first: Option<&(String, String)>) -> Error {
    if let Some((way, why)) = first {
        let found = format!("none ({way}): {why}");
        return Error::unpaired("counts of each conversation", found);
    }
    let ways = |report: &Report| {
        let all: Vec<String> = runs(report).map(ServedReport::way_served).collect();
        all.join("; ")
    };
    let theirs = ways(baseline);
    let expected = format!("one of the runs {theirs} (`--temperature`, `--concurrency`)");
    Error::unpaired(expected, ways(report))
}

/// Fails where the targets are known to be different; a remark where that is not known.
fn on_targets(baseline: &Report, report: &Report) -> Result<Option<String>> {
    let [theirs, ours] = [&baseline.target, &report.target];
    let is_known = !theirs.sha256.is_empty() && !ours.sha256.is_empty();
    if is_known {
        return match theirs.sha256 == ours.sha256 {
            true => Ok(None),
            false => Err(other_target(theirs, ours)),
        };
    }
    Ok((theirs.model != ours.model).then(|| {
        format!(
            "the targets are called `{}` and `{}`, and not all their weights were there to be compared: τ of different targets says \
             nothing of the drafters",
            theirs.model, ours.model
        )
    }))
}

/// The difference of a run from that of the baseline, which stands first; or why there is none.
fn pair(runs: [&ServedReport; 2], among: usize) -> Known<PairedReport> {
    let [theirs, ours] = runs;
    let (theirs, of_ours) = (
        counts(theirs, "the baseline")?,
        counts(ours, "this report")?,
    );
    if theirs.len() != of_ours.len() {
        return Err(format!(
            "the baseline has counts of {} conversations, this report of {}",
            theirs.len(),
            of_ours.len()
        ));
    }
    let pairs = theirs.iter().zip(of_ours);
    let pairs: Vec<[Counts; 2]> = pairs.map(|(&one, &other)| [one, other]).collect();
    PairedReport::of(ours.way_served(), &pairs, among)
        .ok_or_else(|| "one of the servers drafted nothing, so it has no τ".to_owned())
}

/// Tokens and passes of each conversation of a run, or why they are not known; `whose` names its report.
fn counts<'a>(run: &'a ServedReport, whose: &str) -> Known<&'a [Counts]> {
    let Some(figures) = &run.figures else {
        return Err(format!("the run of {whose} failed"));
    };
    if run.asked.is_none() {
        return Err(format!(
            "{whose} was written by an older spectrain, which kept no counts of single conversations; measure that server again"
        ));
    }
    match figures.counted_by {
        _ if !figures.counts.is_empty() => Ok(&figures.counts),
        None => Err(format!("the server of {whose} told nothing of drafts")),
        Some(CountedBy::CountersAroundAll) => Err(format!(
            "the counters of the server of {whose} were read before and after the whole run, which says nothing of single \
             conversations; measure with `--concurrency 1`, or start vLLM with `--per-request-spec-decode-metrics summary`"
        )),
        Some(CountedBy::Answer | CountedBy::CountersAroundEach) => Err(format!(
            "other clients used the server of {whose} meanwhile, and its counters have their drafts too; measure it again without them"
        )),
    }
}

/// Both τ, where they are known.
fn taus(runs: [&ServedReport; 2]) -> String {
    let [theirs, ours] = runs.map(|run| run.figures.as_ref().and_then(|figures| figures.tau));
    match (theirs, ours) {
        (Some(theirs), Some(ours)) => format!(": τ {ours:.3} against {theirs:.3}"),
        _ => String::new(),
    }
}

/// In what the drafts of two runs differ beside the drafter.
fn on_drafts([theirs, ours]: [&ServedReport; 2]) -> Vec<String> {
    let mut remarks = Vec::new();
    let length = |run: &ServedReport| run.figures.as_ref().and_then(ServedFigures::draft_length);
    if let (Some(theirs), Some(ours)) = (length(theirs), length(ours))
        && (theirs - ours).abs() >= SAME_LENGTH
    {
        let shown = |length: f64| (10.0 * length).round() / 10.0;
        remarks.push(format!(
            "the drafts have {} tokens here and {} in the baseline, and a longer draft has the larger τ: serve both drafters with the \
             same number of draft tokens (`num_speculative_tokens`), or the difference is also that of the lengths",
            shown(ours),
            shown(theirs)
        ));
    }
    if let (Some(theirs), Some(ours)) = (theirs.engine, ours.engine)
        && theirs != ours
    {
        remarks.push(format!(
            "this report is of {ours} and the baseline of {theirs}, so the difference is also that of the engines"
        ));
    }
    if theirs.prompts != ours.prompts {
        remarks.push(format!(
            "{} turns of the conversations were asked here, {} in the baseline: one of the servers has less room",
            ours.prompts, theirs.prompts
        ));
    }
    remarks
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::paired::difference::PairedVerdict;
    use crate::report::{DrafterReport, TargetReport};
    use crate::served::acceptance::DraftCounts;
    use crate::served::asked::AskedReport;
    use crate::served::counters::Engine;
    use crate::served::report::tests::run;

    /// A report of one run on a server: answers of at most so many tokens, and conversations of 120 tokens in so many passes.
    pub(crate) fn served(max_new_tokens: usize, passes: &[u64]) -> Report {
        let counts: Vec<Counts> = passes
            .iter()
            .map(|&passes| [120.0, passes as f64].into())
            .collect();
        let drafts: u64 = passes.iter().sum();
        let all = DraftCounts {
            drafts,
            drafted: Some(3 * drafts),
            accepted: 120 * passes.len() as u64 - drafts,
            reaching: Vec::new(),
        };
        let figures = ServedFigures {
            counted_by: Some(CountedBy::Answer),
            tau: all.tau(),
            draft_tokens_per_pass: all.draft_tokens_per_pass(),
            drafts: Some(all),
            counts,
            ..ServedFigures::default()
        };
        let run = ServedReport {
            prompts: passes.len() as u64,
            asked: Some(AskedReport {
                max_new_tokens,
                ..AskedReport::default()
            }),
            ..run(Role::Drafter, 1, figures)
        };
        let target = TargetReport {
            model: "target".into(),
            sha256: "t".into(),
            ..TargetReport::default()
        };
        let mut report = Report::new(target, DrafterReport::default(), Vec::new());
        report.served = vec![run];
        report
    }

    fn passes(more: u64) -> Vec<u64> {
        (0..40).map(|at| 30 + at % 37 + more).collect()
    }

    fn figures(report: &mut Report) -> &mut ServedFigures {
        report.served[0].figures.as_mut().unwrap()
    }

    #[test]
    fn a_small_difference_on_every_conversation_is_told() {
        let pairs = paired_runs(&served(8, &passes(1)), &served(8, &passes(0)), 1).unwrap();
        let [found] = &pairs.found[..] else {
            panic!("{pairs:?}");
        };
        assert_eq!(found.setting, "served, T=0, 1 at once");
        assert_eq!(found.verdict(), PairedVerdict::Better);
        assert_eq!((found.better, found.worse), (40, 0));
        let [low, high] = found.tau_ci95.unwrap();
        assert!(low < found.tau && found.tau < high && low < found.baseline_tau);
        assert!(pairs.remarks.is_empty(), "{pairs:?}");
    }

    #[test]
    fn what_else_differs_is_told() {
        let (theirs, mut ours) = (served(8, &passes(1)), served(8, &passes(0)));
        figures(&mut ours).draft_tokens_per_pass = Some(4.97);
        ours.served[0].engine = Some(Engine::Sglang);
        ours.served[0].prompts = 41;
        ours.target.sha256 = String::new();
        ours.target.model = "other".into();
        let remarks = paired_runs(&theirs, &ours, 1).unwrap().remarks;
        for (remark, words) in remarks.iter().zip([
            "the targets are called `target` and `other`",
            "the drafts have 5 tokens here and 3 in the baseline",
            "this report is of SGLang and the baseline of vLLM",
            "41 turns of the conversations were asked here, 40 in the baseline",
        ]) {
            assert!(remark.starts_with(words), "{remark}");
        }
        assert_eq!(remarks.len(), 4, "{remarks:?}");
        ours.target.sha256 = "u".into();
        let refused = paired_runs(&theirs, &ours, 1).unwrap_err().to_string();
        assert!(refused.contains("weights of the target"), "{refused}");
    }

    #[test]
    fn runs_without_counts_of_conversations_say_why() {
        let theirs = served(8, &passes(1));
        let why = |ours: &Report| paired_runs(&theirs, ours, 1).unwrap_err().to_string();
        let mut old = served(8, &passes(0));
        old.served[0].asked = None;
        figures(&mut old).counts.clear();
        assert!(
            why(&old).contains("this report was written by an older spectrain"),
            "{}",
            why(&old)
        );
        assert!(
            why(&old).contains("served, T=0, 1 at once: τ 2."),
            "{}",
            why(&old)
        );
        let mut other = served(8, &passes(0));
        figures(&mut other).counts.clear();
        for (counted_by, words) in [
            (Some(CountedBy::CountersAroundAll), "`--concurrency 1`"),
            (
                Some(CountedBy::CountersAroundEach),
                "other clients used the server of this report",
            ),
            (None, "told nothing of drafts"),
        ] {
            figures(&mut other).counted_by = counted_by;
            assert!(why(&other).contains(words), "{}", why(&other));
        }
        other.served[0].figures = None;
        assert!(why(&other).contains("the run of this report failed"));
        let none = served(8, &[0; 40]);
        assert!(why(&none).contains("drafted nothing"));
        let fewer = served(8, &passes(0)[1..]);
        assert!(why(&fewer).contains("of 40 conversations, this report of 39"));
        let mut warm = served(8, &passes(0));
        warm.served[0].temperature = 1.0;
        let told = why(&warm);
        assert!(
            told.contains("one of the runs served, T=0, 1 at once") && told.contains("T=1"),
            "{told}"
        );
    }

    #[test]
    fn a_run_that_can_be_compared_is_enough() {
        let with_more = |more: u64| {
            let mut report = served(8, &passes(more));
            let mut whole = report.served[0].clone();
            whole.concurrency = 4;
            let figures = whole.figures.as_mut().unwrap();
            figures.counted_by = Some(CountedBy::CountersAroundAll);
            figures.counts.clear();
            report.served.insert(0, whole);
            report
        };
        let pairs = paired_runs(&with_more(1), &with_more(0), 1).unwrap();
        assert_eq!(pairs.found.len(), 1);
        let [remark] = &pairs.remarks[..] else {
            panic!("{pairs:?}");
        };
        assert!(
            remark.starts_with("served, T=0, 4 at once: τ 2."),
            "{remark}"
        );
        assert!(remark.contains("not compared by pairs"), "{remark}");
        assert!(pairs.uncompared.is_empty(), "{pairs:?}");
        // Where the baseline could be compared, the other run is missed.
        let mut failed = with_more(0);
        failed.served.push(served(8, &passes(0)).served.remove(0));
        failed.served[2].concurrency = 2;
        let mut baseline = failed.clone();
        failed.served[2].figures = None;
        let pairs = paired_runs(&baseline, &failed, 1).unwrap();
        assert_eq!(pairs.uncompared, ["served, T=0, 2 at once"]);
        baseline.served.remove(2);
        let alone = runs_alone(&failed, &baseline);
        assert_eq!(alone, ["served, T=0, 2 at once"]);
    }
}
