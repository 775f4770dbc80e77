//! The part of a report that says what to deploy.
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::candidates::{Candidate, Speedups, Taus};
use super::price::Prices;
use crate::bootstrap::middle;
use crate::chosen::chosen;
use crate::draft::{ChainTokens, DraftReport};
use crate::interval::with_interval;
use crate::speculate::Seconds;

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
    /// The fastest of them; left out where none is faster than no drafter.
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
        let candidate = &self.candidates[at];
        let rounds = Vec::from_iter(0..self.prices.rounds());
        let drafter = |seconds: &Seconds| seconds.draft;
        CandidateReport {
            draft: candidate.draft.clone(),
            tau: self.taus.counted[at],
            seconds: self.prices.drafted(&candidate.costs, &rounds),
            draft_seconds: Some(self.prices.part(&candidate.costs, &rounds, drafter)),
            timed: candidate.costs.is_timed(),
            speedup: self.speedups.measured[at],
            speedup_ci95: middle(self.speedups.of(at)),
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
            ratio_ci95: middle(self.speedups.over(best, other)),
        };
        let default = order.iter().find(|&&at| self.is_default(at));
        Some(BestDraft {
            draft: self.candidates[best].draft.clone(),
            speedup: measured[best],
            speedup_ci95: middle(self.speedups.of(best)),
            over_second: order.get(1).map(|&second| over(second)),
            over_default: default.filter(|&&at| at != best).map(|&at| over(at)),
            commands: Vec::new(),
        })
    }

    fn is_default(&self, at: usize) -> bool {
        let DraftReport::Chain { length, tokens } = self.candidates[at].draft else {
            return false;
        };
        length == self.own_length && tokens != Some(ChainTokens::Drawn)
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

    /// The draft to deploy in words.
    pub(crate) fn words(&self) -> String {
        match &self.best {
            Some(best) => best.draft.to_string(),
            None => "no drafter".to_owned(),
        }
    }

    /// The predicted speed-up of the best draft, faster than no drafter or not.
    pub(crate) fn speedup(&self) -> String {
        let fastest = (self.candidates.iter()).max_by(|a, b| a.speedup.total_cmp(&b.speedup));
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
    text + " Where an interval of `over` has 1 in it, the two drafts have not been told apart."
}

/// Which batch sizes took too long to be timed, where others were.
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
    let missing = ways.iter().flat_map(|(way, sizes)| {
        let missing = BATCHES.iter().filter(|size| !sizes.contains(size));
        missing.map(move |size| format!("{way}, {size} at a time"))
    });
    let missing: Vec<String> = missing.collect();
    (!missing.is_empty()).then(|| {
        format!(
            "Not timed, as it would have taken too long: {}. `--batch-size N` (in a recipe `evaluate.batch_size`) decodes N \
             at a time, and times that however long it takes.",
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
    if let Some(not_timed) = not_timed(all) {
        _ = write!(text, "\n{not_timed}\n");
    }
    for (heading, commands) in commands(all) {
        _ = write!(text, "\n{heading}:\n\n");
        commands
            .iter()
            .for_each(|command| _ = writeln!(text, "    {command}"));
    }
    text
}

/// The commands, each set of them once, with the settings that they are for.
pub(crate) fn commands(all: &[Recommendation]) -> Vec<(String, &[String])> {
    let mut found: Vec<(String, &[String])> = Vec::new();
    for one in all {
        let Some(best) = one.best.as_ref().filter(|best| !best.commands.is_empty()) else {
            continue;
        };
        match found.iter_mut().find(|(_, known)| *known == best.commands) {
            Some((headings, _)) => _ = write!(headings, "; {}", one.heading()),
            None => found.push((one.heading(), &best.commands)),
        }
    }
    found
}
