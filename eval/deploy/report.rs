//! The part of a report that says what to deploy.
use std::cmp::Ordering;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::candidates::{Candidate, Speedups, Taus};
use super::price::Prices;
use crate::bootstrap::middle;
use crate::chosen::chosen;
use crate::draft::{ChainTokens, DraftReport};
use crate::interval::with_interval;
use crate::speculate::Seconds;

/// So many times as long as a longer chain a shorter one takes where something is wrong with the timings: a longer one drafts and
/// judges more.
const FALLS: f64 = 1.15;
/// Batch sizes that are timed beside the one that was decoded with.
pub(super) const BATCHES: [usize; 3] = [1, 4, 16];

/// What costs were taken from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CostSource {
    /// Passes of this program's decoder, timed on this device.
    Decoder,
    /// The sweep of a server and of one without a drafter.
    Server,
}

/// What times batch sizes that took too long or too much memory.
pub(crate) const TIMES_ALL: &str = "`--batch-size N` (in a recipe `evaluate.batch_size`) decodes N at a time, of N prompts or more, \
                                    and times that in any case.";

/// The drafts that could be deployed for one way of choosing tokens and one batch size, and which is the fastest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The target that verified, where there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Temperature; 0 is greedy.
    pub temperature: f64,
    /// Most likely tokens kept, where sampling was restricted to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Probability kept, where sampling was restricted to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Sequences decoded at a time; of a server the requests under way.
    pub batch_size: usize,
    /// What costs were taken from.
    pub costs: CostSource,
    /// How often each pass was timed; left out of a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounds: Option<usize>,
    /// Seconds of a pass without drafts, of all sequences together.
    pub plain_seconds: f64,
    /// The drafts, chains by their length.
    pub candidates: Vec<CandidateReport>,
    /// The fastest of them; left out where none is predicted to be faster than no drafter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub best: Option<BestDraft>,
}

/// A draft that could be deployed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CandidateReport {
    /// Its shape.
    pub draft: DraftReport,
    /// Tokens that a pass gives to a sequence.
    pub tau: f64,
    /// Seconds of a pass of all sequences together: their drafts, judging them and everything else.
    pub seconds: f64,
    /// Of these the drafter's; left out of a server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_seconds: Option<f64>,
    /// Whether passes with this draft were timed, and their cost not taken from shorter and longer ones.
    pub timed: bool,
    /// The predicted speed-up over no drafter.
    pub speedup: f64,
    /// Its 95 % interval: conversations and timings drawn anew.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup_ci95: Option<[f64; 2]>,
}

/// The fastest draft.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BestDraft {
    /// Its shape.
    pub draft: DraftReport,
    /// The predicted speed-up over no drafter.
    pub speedup: f64,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup_ci95: Option<[f64; 2]>,
    /// The second best, where there is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_second: Option<Over>,
    /// The chain that nothing else is said of, where that is another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over_default: Option<Over>,
    /// What serves it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub commands: Vec<String>,
}

/// How much faster the best draft is than another one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Over {
    /// The other one.
    pub draft: DraftReport,
    /// Speed over that of the other one.
    pub ratio: f64,
    /// Its 95 % interval: an interval with 1 in it says that they have not been told apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_ci95: Option<[f64; 2]>,
}

/// On which side of 1 a ratio of speeds lies beyond doubt; none where its interval holds 1 or is not known.
fn side(interval: Option<[f64; 2]>) -> Option<Ordering> {
    let [low, high] = interval?;
    let greater = (low > 1.0).then_some(Ordering::Greater);
    greater.or((high < 1.0).then_some(Ordering::Less))
}

/// Why nothing follows from a prediction with this interval, by which a draft may also be `otherwise`: faster, or slower.
fn doubt(interval: Option<[f64; 2]>, otherwise: &str) -> String {
    match interval {
        Some(_) => format!("this interval does not rule out that it is {otherwise}"),
        None => "no interval says how sure that is".to_owned(),
    }
}

/// What is known of the candidates at one batch size.
pub(crate) struct Found<'a> {
    pub(crate) candidates: &'a [Candidate],
    pub(crate) taus: &'a Taus,
    pub(crate) prices: &'a Prices,
    pub(crate) speedups: &'a Speedups,
    /// The length of the chain that nothing else is said of.
    pub(crate) own_length: usize,
}

impl Found<'_> {
    /// One candidate's report.
    pub(crate) fn report(&self, at: usize) -> CandidateReport {
        let (candidate, drafted) = (&self.candidates[at], self.taus.drafted[at]);
        let rounds = Vec::from_iter(0..self.prices.rounds());
        let drafter = |seconds: &Seconds| seconds.draft;
        CandidateReport {
            draft: candidate.draft.clone(),
            tau: self.taus.counted[at],
            seconds: self.prices.drafted(&candidate.costs, drafted, &rounds),
            draft_seconds: Some(
                self.prices
                    .part(&candidate.costs, drafted, &rounds, drafter),
            ),
            timed: candidate.costs.is_timed(),
            speedup: self.speedups.measured[at],
            speedup_ci95: self.interval(self.speedups.of(at)),
        }
    }

    /// The fastest candidate, where it is faster than no drafter.
    pub(crate) fn best(&self) -> Option<BestDraft> {
        let measured = &self.speedups.measured;
        let mut order = Vec::from_iter(0..measured.len());
        order.sort_by(|&one, &other| measured[other].total_cmp(&measured[one]));
        let best = *order.first().filter(|&&best| measured[best] > 1.0)?;
        let over = |other: usize| Over {
            draft: self.candidates[other].draft.clone(),
            ratio: measured[best] / measured[other],
            ratio_ci95: self.interval(self.speedups.over(best, other)),
        };
        let default = order.iter().find(|&&at| self.is_default(at));
        Some(BestDraft {
            draft: self.candidates[best].draft.clone(),
            speedup: measured[best],
            speedup_ci95: self.interval(self.speedups.of(best)),
            over_second: order.get(1).map(|&second| over(second)),
            over_default: default.filter(|&&at| at != best).map(|&at| over(at)),
            commands: Vec::new(),
        })
    }

    /// The 95 % interval that figures give, each of conversations and rounds that were drawn anew.
    fn interval(&self, drawn: Vec<f64>) -> Option<[f64; 2]> {
        // Of few of either little is known of how much others spread.
        let items = self.taus.conversations.min(self.prices.rounds());
        middle(drawn, items)
    }

    fn is_default(&self, at: usize) -> bool {
        let DraftReport::Chain { length, tokens } = self.candidates[at].draft else {
            return false;
        };
        length == self.own_length && tokens != Some(ChainTokens::Drawn)
    }
}

impl BestDraft {
    /// Whether it is faster than no drafter beyond doubt.
    fn is_sure(&self) -> bool {
        side(self.speedup_ci95) == Some(Ordering::Greater)
    }
}

impl Over {
    /// Whether the best draft is faster than this one beyond doubt.
    fn is_sure(&self) -> bool {
        side(self.ratio_ci95) == Some(Ordering::Greater)
    }
}

impl Recommendation {
    /// How tokens were chosen, and by which target.
    pub(crate) fn decoding(&self) -> String {
        let chosen = chosen(self.temperature, self.top_k, self.top_p);
        let served = match self.costs {
            CostSource::Decoder => "",
            CostSource::Server => ", served",
        };
        match &self.target {
            Some(target) => format!("{target}, {chosen}{served}"),
            None => format!("{chosen}{served}"),
        }
    }

    /// How many sequences were decoded at a time.
    pub(crate) fn at_once(&self) -> String {
        format!("{} at a time", self.batch_size)
    }

    /// Both.
    pub(crate) fn heading(&self) -> String {
        format!("{}, {}", self.decoding(), self.at_once())
    }

    /// The draft to deploy, where one is faster beyond doubt and the timings that say so can be right.
    fn recommended(&self) -> Option<&BestDraft> {
        let best = self.best.as_ref().filter(|best| best.is_sure());
        best.filter(|_| self.falling().is_none())
    }

    /// A timed chain that took clearly longer than a longer one whose tokens are chosen in the same way, that longer one, and how
    /// many times as long; of several such pairs the worst.
    fn falling(&self) -> Option<(&CandidateReport, &CandidateReport, f64)> {
        let chain = |candidate: &CandidateReport| match candidate.draft {
            DraftReport::Chain { length, tokens } => Some((length, tokens)),
            _ => None,
        };
        // The times of a server's passes follow from its speed at one length.
        let is_timed = |of: &&CandidateReport| of.timed && self.costs == CostSource::Decoder;
        let timed = self.candidates.iter().filter(is_timed);
        let timed = timed.filter_map(|candidate| Some((chain(candidate)?, candidate)));
        let timed: Vec<_> = timed.collect();
        let mut worst = None;
        let mut most = FALLS;
        for &((short, chosen), one) in &timed {
            for &((long, of), other) in &timed {
                let ratio = one.seconds / other.seconds;
                if short < long && chosen == of && ratio > most {
                    most = ratio;
                    worst = Some((one, other, ratio));
                }
            }
        }
        worst
    }

    /// The fastest draft, faster than no drafter or not.
    fn fastest(&self) -> Option<&CandidateReport> {
        (self.candidates.iter()).max_by(|a, b| a.speedup.total_cmp(&b.speedup))
    }

    /// A draft that may be faster than no drafter, though even it, the fastest, is predicted not to be.
    fn hope(&self) -> Option<&CandidateReport> {
        let fastest = self.fastest().filter(|_| self.best.is_none())?;
        (side(fastest.speedup_ci95) != Some(Ordering::Less)).then_some(fastest)
    }

    /// The draft to deploy in words, where one is faster beyond doubt, or that there is none, where all are slower beyond doubt.
    pub(crate) fn words(&self) -> String {
        match &self.best {
            Some(best) if self.recommended().is_some() => best.draft.to_string(),
            Some(best) => format!("not sure; the fastest is {}", best.draft),
            None if self.falling().is_some() => "not sure".to_owned(),
            None if self.hope().is_some() => "not sure; rather no drafter".to_owned(),
            None => "no drafter".to_owned(),
        }
    }

    /// That nothing is recommended, where the timings cannot be right.
    pub(crate) fn unsteady(&self) -> Option<String> {
        let (short, long, ratio) = self.falling()?;
        Some(format!(
            "nothing is recommended. A pass with {} was timed at {ratio:.2} times the seconds of one with {}, which drafts and judges \
             more: a busy machine does that. Evaluate again when it does nothing else.",
            short.draft, long.draft
        ))
    }

    /// The same as a sentence.
    pub(crate) fn told(&self) -> String {
        let (heading, speedup) = (self.heading(), self.speedup());
        if let Some(told) = self.unsteady() {
            return format!("deploy, {heading}: {told}");
        }
        if let Some(hope) = self.hope() {
            let why = doubt(hope.speedup_ci95, "faster");
            return format!(
                "deploy, {heading}: nothing is recommended. Even the fastest draft, {}, is predicted to be only {speedup} times as \
                 fast as no drafter, but {why}.",
                hope.draft
            );
        }
        let Some(best) = &self.best else {
            return format!(
                "deploy, {heading}: no drafter, as even the fastest draft is predicted to be only {speedup} times as fast as none."
            );
        };
        let predicted = format!("predicted to be {speedup} times as fast as no drafter");
        if !best.is_sure() {
            let why = doubt(best.speedup_ci95, "slower");
            return format!(
                "deploy, {heading}: nothing is recommended. The fastest draft, {}, is {predicted}, but {why}.",
                best.draft
            );
        }
        let over = match &best.over_second {
            Some(over) if over.is_sure() => format!(
                ", and {} times as fast as the next best, {}",
                with_interval(Some(over.ratio), over.ratio_ci95),
                over.draft
            ),
            Some(over) => format!("; not told apart from the next best, {}", over.draft),
            None => String::new(),
        };
        format!("deploy, {heading}: {}, {predicted}{over}.", best.draft)
    }

    /// The predicted speed-up of the best draft, faster than no drafter or not.
    pub(crate) fn speedup(&self) -> String {
        let fastest = self.fastest();
        with_interval(
            fastest.map(|fastest| fastest.speedup),
            fastest.and_then(|fastest| fastest.speedup_ci95),
        )
    }

    /// How much faster the best draft is than two others.
    pub(crate) fn over(&self) -> [String; 2] {
        let best = self.best.as_ref();
        let others = [
            best.and_then(|best| best.over_second.as_ref()),
            best.and_then(|best| best.over_default.as_ref()),
        ];
        others.map(|over| match over {
            Some(over) => {
                let ratio = with_interval(Some(over.ratio), over.ratio_ci95);
                format!("{ratio} × {}", over.draft)
            }
            None => "–".to_owned(),
        })
    }
}

/// What stands below the figures of these.
pub(crate) fn about<'a>(all: impl Iterator<Item = &'a Recommendation>) -> String {
    let sources: Vec<CostSource> = all.map(|one| one.costs).collect();
    let mut text =
        "Predicted: τ · seconds of a pass without drafts / seconds of one with them.".to_owned();
    if sources.contains(&CostSource::Decoder) {
        text +=
            " Passes of this program were timed on this device; a serving engine has other costs.";
    }
    if sources.contains(&CostSource::Server) {
        text += " The cost of a server's passes follows from its tokens per second, and that of drafts is taken to grow with their passes.";
    }
    text + " A draft is recommended only where its interval lies above 1, no drafter only where that of the fastest draft lies below 1, \
            and either only where no longer chain was timed at clearly less. Where an interval of `over` has 1 in it, the two drafts \
            have not been told apart."
}

/// Which batch sizes took too long or too much memory to be timed, where others were.
pub(crate) fn not_timed(all: &[Recommendation]) -> Option<String> {
    let timed = all.iter().filter(|one| one.costs == CostSource::Decoder);
    let mut ways: Vec<(String, Vec<usize>)> = Vec::new();
    for one in timed {
        let way = one.decoding();
        match ways.iter_mut().find(|(known, _)| *known == way) {
            Some((_, sizes)) => sizes.push(one.batch_size),
            None => ways.push((way, vec![one.batch_size])),
        }
    }
    let missing = ways.iter().filter_map(|(way, sizes)| {
        let missing = BATCHES.iter().filter(|size| !sizes.contains(size));
        let missing: Vec<String> = missing.map(usize::to_string).collect();
        (!missing.is_empty()).then(|| format!("{way}, {} at a time", missing.join(" and ")))
    });
    let missing: Vec<String> = missing.collect();
    (!missing.is_empty()).then(|| {
        format!(
            "Not timed, as it would have taken too long or too much memory: {}.",
            missing.join("; ")
        )
    })
}

/// A table with a row for each, and the commands below it.
pub(crate) fn to_markdown(all: &[Recommendation]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nWhat to deploy:\n\n");
    text += "| decoding | draft | predicted speed-up [95 % CI] | over the second best | over the drafter's own length |\n";
    text += "|---|---|---|---|---|\n";
    for one in all {
        let [second, default] = one.over();
        let (heading, words, speedup) = (one.heading(), one.words(), one.speedup());
        _ = writeln!(
            text,
            "| {heading} | {words} | {speedup} | {second} | {default} |"
        );
    }
    _ = write!(text, "\n{}\n", about(all.iter()));
    for one in all {
        if let Some(told) = one.unsteady() {
            _ = write!(text, "\n{}: {told}\n", one.heading());
        }
    }
    if let Some(not_timed) = not_timed(all) {
        _ = write!(text, "\n{not_timed} {TIMES_ALL}\n");
    }
    let all: Vec<(String, &Recommendation)> = all.iter().map(|one| (String::new(), one)).collect();
    for (heading, commands) in commands(&all) {
        _ = write!(text, "\n{heading}:\n\n");
        commands
            .iter()
            .for_each(|command| _ = writeln!(text, "    {command}"));
    }
    text
}

/// The commands that serve what is recommended, each set of them once, with the settings that they are for behind the names in
/// front of these; and each remark once.
pub(crate) fn commands<'a>(all: &[(String, &'a Recommendation)]) -> Vec<(String, Vec<&'a str>)> {
    let mut found: Vec<(String, &[String])> = Vec::new();
    for (name, one) in all {
        let best = one.recommended();
        let Some(best) = best.filter(|best| !best.commands.is_empty()) else {
            continue;
        };
        let heading = format!("{name}{}", one.heading());
        match found.iter_mut().find(|(_, known)| *known == best.commands) {
            Some((headings, _)) => _ = write!(headings, "; {heading}"),
            None => found.push((heading, &best.commands)),
        }
    }
    let mut remarks: Vec<&str> = Vec::new();
    let mut shown = Vec::new();
    for (heading, commands) in found {
        let mut lines: Vec<&str> = Vec::new();
        for line in commands {
            let is_remark = line.starts_with('#');
            if is_remark && remarks.contains(&line.as_str()) {
                continue;
            }
            if is_remark {
                remarks.push(line);
            }
            lines.push(line);
        }
        shown.push((heading, lines));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::deploy::candidates::{speedups, taus};
    use crate::deploy::price::Costs;
    use crate::report::examples::recommended;
    use crate::speculate::PassRecord;
    use crate::speculate::rehearsal::{Rehearsed, Timed};
    use crate::statistics::Acceptance;

    /// The first of these, whose best draft has this interval.
    fn with_interval_of(interval: Option<[f64; 2]>) -> Recommendation {
        let mut one = recommended().remove(0);
        one.candidates[0].speedup_ci95 = interval;
        if let Some(best) = &mut one.best {
            best.speedup_ci95 = interval;
        }
        one
    }

    #[test]
    fn a_draft_is_recommended_only_where_it_is_faster_beyond_doubt() {
        let sure = with_interval_of(Some([1.25, 1.75]));
        assert_eq!(
            sure.told(),
            "deploy, T=0, 1 at a time: chain 1, predicted to be 1.50 [1.25, 1.75] times as fast as no drafter, and 1.20 [1.10, 1.30] \
             times as fast as the next best, chain 2."
        );
        assert_eq!(sure.words(), "chain 1");
        let unsure = with_interval_of(Some([0.9, 2.5]));
        assert_eq!(
            unsure.told(),
            "deploy, T=0, 1 at a time: nothing is recommended. The fastest draft, chain 1, is predicted to be 1.50 [0.90, 2.50] times \
             as fast as no drafter, but this interval does not rule out that it is slower."
        );
        assert_eq!(unsure.words(), "not sure; the fastest is chain 1");
        let unknown = with_interval_of(None);
        assert!(unknown.told().contains("nothing is recommended"));
        let told = recommended()[1].told();
        assert!(
            told.contains("no drafter, as even the fastest draft is predicted to be only 0.50 [0.25, 0.75] times"),
            "{told}"
        );
        let named = |one| vec![(String::new(), one)];
        assert_eq!(commands(&named(&sure)).len(), 1);
        for one in [&unsure, &unknown] {
            assert!(commands(&named(one)).is_empty());
        }
    }

    #[test]
    fn no_drafter_is_recommended_only_where_drafts_are_slower_beyond_doubt() {
        let with_interval_of = |interval| {
            let mut one = recommended().remove(1);
            one.candidates[0].speedup_ci95 = interval;
            one
        };
        assert_eq!(with_interval_of(Some([0.25, 0.75])).words(), "no drafter");
        let why = "this interval does not rule out that it is faster";
        for (interval, shown, why) in [
            (Some([0.25, 1.0]), " [0.25, 1.00]", why),
            (Some([0.25, 1.5]), " [0.25, 1.50]", why),
            (None, "", "no interval says how sure that is"),
        ] {
            let one = with_interval_of(interval);
            let expected = format!(
                "deploy, T=0, 16 at a time: nothing is recommended. Even the fastest draft, chain 1, is predicted to be only 0.50{shown} \
                 times as fast as no drafter, but {why}."
            );
            assert_eq!(one.told(), expected);
            assert_eq!(one.words(), "not sure; rather no drafter");
        }
    }

    #[test]
    fn nothing_is_recommended_by_times_that_fall_as_chains_get_longer() {
        let timed = |seconds: [f64; 2], change: fn(&mut CandidateReport)| {
            let mut one = with_interval_of(Some([1.25, 1.75]));
            for (candidate, seconds) in one.candidates.iter_mut().zip(seconds) {
                candidate.seconds = seconds;
            }
            change(&mut one.candidates[1]);
            one
        };
        let falling = timed([1.0, 0.5], |_| {});
        assert_eq!(
            falling.told(),
            "deploy, T=0, 1 at a time: nothing is recommended. A pass with chain 1 was timed at 2.00 times the seconds of one with \
             chain 2, which drafts and judges more: a busy machine does that. Evaluate again when it does nothing else."
        );
        assert_eq!(falling.words(), "not sure; the fastest is chain 1");
        let table = to_markdown(std::slice::from_ref(&falling));
        assert!(
            table.contains("\nT=0, 1 at a time: nothing is recommended. A pass"),
            "{table}"
        );
        let unsure = Recommendation {
            best: None,
            ..falling.clone()
        };
        assert_eq!(unsure.words(), "not sure");
        assert!(commands(&[(String::new(), &falling)]).is_empty());
        // A little less is chance, a longer chain that was not timed says nothing, and drawn tokens may cost more.
        let drawn = |candidate: &mut CandidateReport| {
            candidate.draft = DraftReport::Chain {
                length: 2,
                tokens: Some(ChainTokens::Drawn),
            };
        };
        for one in [
            timed([0.5, 0.45], |_| {}),
            timed([0.5, 1.0], |_| {}),
            timed([1.0, 0.5], |candidate| candidate.timed = false),
            timed([1.0, 0.5], drawn),
        ] {
            assert_eq!(one.words(), "chain 1", "{one:?}");
            assert_eq!(commands(&[(String::new(), &one)]).len(), 1);
        }
    }

    #[test]
    fn drafts_that_are_not_told_apart_are_not_ranked() {
        let mut one = recommended().remove(0);
        let second = one.best.as_mut().unwrap().over_second.as_mut().unwrap();
        second.ratio_ci95 = Some([0.9, 1.5]);
        let told = one.told();
        assert!(
            told.ends_with("as no drafter; not told apart from the next best, chain 2."),
            "{told}"
        );
    }

    #[test]
    fn an_interval_is_as_wide_as_the_fewer_of_conversations_and_rounds_ask_for() {
        let counts = |accepted: usize| {
            Acceptance::of(&[PassRecord {
                drafted: 1,
                depth: 1,
                tested: 1,
                accepted,
                emitted: accepted + 1,
                ..PassRecord::default()
            }])
        };
        let outputs = [Vec::from_iter((0..20).map(|at| counts(at % 2)))];
        let candidates = [Candidate {
            draft: DraftReport::Chain {
                length: 1,
                tokens: None,
            },
            outputs: 0,
            steps: None,
            costs: Costs::Way(0),
        }];
        let taus = taus(&candidates, &outputs, 1).unwrap();
        // All passes take as long, so that only the conversations spread.
        let timed = Timed {
            seconds: Seconds {
                verify: 1.0,
                ..Seconds::default()
            },
            drafted: 1,
        };
        let width = |rounds: usize| {
            let prices = Prices {
                batch_size: 1,
                timed: Rehearsed {
                    plain: vec![1.0; rounds],
                    ways: vec![vec![timed; rounds]],
                },
            };
            let found = Found {
                candidates: &candidates,
                taus: &taus,
                prices: &prices,
                speedups: &speedups(&candidates, &taus, &prices, 2),
                own_length: 1,
            };
            let [low, high] = found.report(0).speedup_ci95.unwrap();
            high - low
        };
        assert_eq!(width(30), width(20));
        assert!(width(4) > width(20), "{} {}", width(4), width(20));
    }

    #[test]
    fn a_remark_on_commands_stands_once() {
        let with = |command: &str| {
            let mut one = recommended().remove(0);
            one.best.as_mut().unwrap().commands = vec![command.into(), "# a remark".into()];
            one
        };
        let (one, other) = (with("serve 1"), with("serve 2"));
        let found = commands(&[("a: ".into(), &one), ("b: ".into(), &other)]);
        let heading = |name: &str| format!("{name}: T=0, 1 at a time");
        assert_eq!(
            found,
            [
                (heading("a"), vec!["serve 1", "# a remark"]),
                (heading("b"), vec!["serve 2"]),
            ]
        );
    }
}
