//! What a run says of a drafter: `report.json`, and the same as a table.
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use spectrain_checkpoints::Mismatch;
use spectrain_models::Sampling;

use crate::chosen::chosen;
use crate::counts::Counts;
use crate::deploy::report::Recommendation;
use crate::draft::DraftReport;
use crate::error::{Error, Result};
use crate::estimate::report::EstimateReport;
use crate::greedy_test::{Comparison, Difference};
use crate::groups::Groups;
use crate::opinions::{Counted, TrainedReport};
use crate::reliability::CalibrationReport;
use crate::report::ends::EndsReport;
use crate::sample::report::SampleReport;
use crate::sampling_test::SamplingReport;
use crate::served::report::{InTree, Role, ServedReport};
use crate::spread::SpreadReport;
use crate::texts::report::TextsReport;
use crate::token_class::ClassReport;

pub(crate) mod ends;
pub(crate) mod table;
pub(crate) mod verdict;
pub(crate) mod words;

/// Version of the shape of `report.json` that is written here.
const SCHEMA: u32 = 1;

/// Differences of greedy outputs that a table names.
const SHOWN_DIFFERENCES: usize = 5;

/// `report.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Version of this shape.
    pub schema: u32,
    /// Version of the program.
    pub spectrain: String,
    /// The resolved recipe.
    pub recipe: Value,
    /// The model that verified; the first of several.
    pub target: TargetReport,
    /// All of them, where there were several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub targets: Vec<TargetReport>,
    /// The drafter judged.
    pub drafter: DrafterReport,
    /// What it ran on.
    pub device: Map<String, Value>,
    /// Sequences decoded at a time, with the drafter and without; left out if one.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub batch_size: usize,
    /// One for each target, temperature and draft.
    pub settings: Vec<SettingReport>,
    /// Whether the output is the target's own.
    pub lossless: LosslessReport,
    /// What training found of the same weights, where this is the report of a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trained: Option<TrainedReport>,
    /// SHA-256 of what was prepared of `data.train` and `data.eval`, under `train` and `eval`, where this is the report of a run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub prepared: BTreeMap<String, String>,
    /// How many of the evaluated prompts are no news to the drafter, where it is that of a run and there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub known_prompts: Option<KnownPrompts>,
    /// How many of the evaluated prompts chose the weights, where the drafter is that of a run and there are some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub choosing_prompts: Option<ChoosingPrompts>,
    /// The texts that all of it is computed from, where nothing was decoded: one for each temperature.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub texts: Vec<TextsReport>,
    /// What servers did with the same prompts: one for each server, temperature and number of requests under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub served: Vec<ServedReport>,
    /// The beginning of some outputs, with what was drafted and rejected.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<SampleReport>,
    /// What to deploy: one for each target, temperature and batch size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings_recommended: Vec<Recommendation>,
    /// Seeds by purpose.
    pub seeds: BTreeMap<String, u64>,
}

fn one() -> usize {
    1
}

fn is_one(number: &usize) -> bool {
    *number == 1
}

/// Prompts that the drafter was trained on as well: acceptance over them says less of what others would see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct KnownPrompts {
    /// So many.
    pub known: u64,
    /// Of so many that are evaluated.
    pub of: u64,
}

impl fmt::Display for KnownPrompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} prompts are also in the training data, so acceptance may be higher here than elsewhere",
            self.known, self.of
        )
    }
}

/// Evaluated prompts by which training has chosen its weights: acceptance over them is that of the luckiest weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChoosingPrompts {
    /// So many.
    pub chose: u64,
    /// Of so many that are evaluated.
    pub of: u64,
}

impl fmt::Display for ChoosingPrompts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} evaluated prompts also chose the weights, which makes τ a little too high",
            self.chose, self.of
        )
    }
}

/// The target of a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct TargetReport {
    /// Hub id or folder.
    pub model: String,
    /// Revision, where the hub names one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Hash of its weights; left out where not all of them were there, as a server had them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
    /// Type of its weights; left out where nothing was computed with them here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dtype: String,
}

/// The drafter of a report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DrafterReport {
    /// Its family.
    pub kind: String,
    /// Its folder.
    pub path: String,
    /// Trained parameters.
    pub parameters: u64,
    /// Hash of its weights.
    pub sha256: String,
    /// Whether it makes all steps of a draft in one pass; left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub one_pass: bool,
}

/// The results of one way of decoding.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SettingReport {
    /// The target that verified, where there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// What drafted, where that is not the drafter of the report but one without training.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drafter: Option<String>,
    /// Temperature; 0 is greedy.
    pub temperature: f64,
    /// Most likely tokens kept, where sampling was restricted to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Probability kept, where sampling was restricted to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The verifier that decided.
    pub verifier: String,
    /// Whether that verifier lets the output stray from the target's distribution; left out if not.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub lossy: bool,
    /// What was drafted.
    pub draft: DraftReport,
    /// Where the outputs end, where that is known; reports of earlier versions do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends: Option<EndsReport>,
    /// One for each dataset.
    pub datasets: Vec<DatasetReport>,
    /// All prompts pooled.
    pub overall: DatasetReport,
    /// Whether sampled outputs follow the target's distribution, where that was tested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingReport>,
    /// The same acceptance without decoding, a second opinion, where it can be computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<EstimateReport>,
    /// How the drafter's confidence goes with what is accepted, where it can be computed; of chains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<CalibrationReport>,
    /// Acceptance by the labels and lengths of prompts, and by places in the output.
    #[serde(default, skip_serializing_if = "Groups::is_empty")]
    pub groups: Groups,
    /// Acceptance by what the target's token is, where that is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub token_classes: Vec<ClassReport>,
}

/// Acceptance and speed over some prompts. What no event tells is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct DatasetReport {
    /// The dataset.
    pub name: String,
    /// Prompts continued.
    pub prompts: u64,
    /// Tokens that decoding passes emitted; the first of each output, which the prompt's pass gives, is not counted.
    pub tokens: u64,
    /// Decoding passes of the target.
    pub passes: u64,
    /// Mean acceptance length τ, `tokens / passes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau: Option<f64>,
    /// Its 95 % interval over prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// Acceptance rate α of the draft steps judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
    /// Its 95 % interval over prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha_ci95: Option<[f64; 2]>,
    /// The analytic α, mean of `Σ min(p, q)` over the draft steps judged, where drafts are drawn and nothing was decoded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha_analytic: Option<f64>,
    /// `α_k` from `k = 1`: accepted, of the passes in which step `k` was judged.
    pub conditional: Vec<f64>,
    /// `s_k` from `k = 1`: passes that accepted at least `k`; `τ = 1 + Σ s_k`.
    pub survival: Vec<f64>,
    /// Passes that accepted 0, 1, … tokens.
    pub accepted_histogram: Vec<u64>,
    /// Tokens drafted for each pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub draft_tokens_per_pass: Option<f64>,
    /// Against decoding without a drafter, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speedup: Option<Speedup>,
    /// Where the time of the passes went.
    pub seconds: SecondsReport,
    /// How acceptance and speed are spread over its prompts.
    #[serde(flatten)]
    pub spread: SpreadReport,
    /// Tokens and passes of each conversation, to be compared with those of another drafter on the same prompts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Counts>,
    /// Hash of the prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts_sha256: Option<String>,
}

/// How many times faster decoding is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Speedup {
    /// Tokens per second of decoding passes, against the same code without a drafter.
    pub wall: f64,
    /// Its 95 % interval over prompts: how steady the machine was is not in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wall_ci95: Option<[f64; 2]>,
    /// The same of the passes of full batches alone, which is what `predicted` is to be compared with: at the end no prompts are
    /// left for the places of those that are done. Left out where all batches were full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_batches: Option<f64>,
    /// Its 95 % interval over prompts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub full_batches_ci95: Option<[f64; 2]>,
    /// What the textbook formula gives, `τ / (D c + 1)`: with `D` passes of the drafter, one after the other, for each of
    /// the target, and `c` the measured time of one of them over that of a pass of the target without a drafter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<f64>,
    /// The same with `c` the parameters that a pass of the drafter reads, over those of the target.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bound: Option<f64>,
    /// What τ and the cost of passes, timed apart from these outputs, give; only of all prompts together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// Its 95 % interval, over prompts and timings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub predicted_ci95: Option<[f64; 2]>,
    /// Whether the machine's pace changed between the outputs without a drafter and those with one, so that no measured speed-up of
    /// the setting is to be trusted; only of all prompts together, and left out where an interval is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace_changed: Option<bool>,
}

impl Speedup {
    /// Takes in what is predicted, with its interval, and so whether what was measured is to be trusted.
    pub(crate) fn predict(&mut self, predicted: f64, interval: Option<[f64; 2]>) {
        (self.predicted, self.predicted_ci95) = (Some(predicted), interval);
        self.judge_pace();
    }

    /// Holds what was measured against what is predicted. Outputs without a drafter are decoded before those with one, while what is
    /// predicted rests on passes that took turns: where one interval lies beside the other, the machine's pace changed in between.
    fn judge_pace(&mut self) {
        let measured = if self.full_batches.is_some() {
            self.full_batches_ci95
        } else {
            self.wall_ci95
        };
        let intervals = measured.zip(self.predicted_ci95);
        self.pace_changed =
            intervals.map(|([least, most], [low, high])| most < low || high < least);
    }

    /// The predicted speed-up with its interval, where what was measured is not to be trusted.
    pub(crate) fn in_turns(&self) -> Option<(f64, Option<[f64; 2]>)> {
        let predicted = self.predicted.filter(|_| self.pace_changed == Some(true))?;
        Some((predicted, self.predicted_ci95))
    }

    /// The measured speed-up with its interval or, where that is not to be trusted, the predicted one.
    pub(crate) fn trusted(&self) -> (f64, Option<[f64; 2]>) {
        self.in_turns().unwrap_or((self.wall, self.wall_ci95))
    }
}

/// Seconds of decoding passes, prompts left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SecondsReport {
    /// The drafter.
    pub draft: f64,
    /// The target's passes and the verdicts.
    pub verify: f64,
    /// Everything else.
    pub other: f64,
    /// The same prompts without a drafter, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoregressive: Option<f64>,
}

/// Whether the output is the target's own.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct LosslessReport {
    /// Greedy outputs compared with plain decoding.
    #[serde(default)]
    pub greedy_outputs: u64,
    /// Greedy outputs that differ from plain decoding.
    pub greedy_mismatches: u64,
    /// Of these, the ones that differ first where the target's own arithmetic cannot tell two tokens apart.
    #[serde(default)]
    pub greedy_ties: u64,
    /// Tokens compared, in each output up to the first difference; 0 when nothing was compared.
    pub greedy_tokens: u64,
    /// Each of the differences.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub differences: Vec<Difference>,
    /// Sampled outputs against the target's distribution, over all settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampling: Option<SamplingReport>,
}

impl LosslessReport {
    /// What greedy outputs and the settings' sampled outputs show.
    pub fn new(greedy: Comparison, settings: &[SettingReport]) -> Self {
        let ties = greedy.differences.iter().filter(|found| found.is_tie());
        Self {
            greedy_outputs: greedy.outputs,
            greedy_mismatches: greedy.differences.len() as u64,
            greedy_ties: ties.count() as u64,
            greedy_tokens: greedy.tokens,
            differences: greedy.differences,
            sampling: SamplingReport::pooled(settings.iter().filter_map(|s| s.sampling.as_ref())),
        }
    }

    /// How many greedy outputs were not the target's own, where any were compared, and where the first of them differ.
    pub(crate) fn greedy_lines(&self) -> String {
        if self.greedy_tokens == 0 {
            return String::new();
        }
        let ties = match self.greedy_ties {
            0 => String::new(),
            ties => format!(
                ", {ties} of them beginning at a token that the target's own arithmetic cannot tell from another"
            ),
        };
        let mut text = format!(
            "\nGreedy output: {} of {} outputs differ from plain decoding ({} tokens compared){ties}.\n",
            self.greedy_mismatches, self.greedy_outputs, self.greedy_tokens
        );
        let real = self.differences.iter().filter(|found| !found.is_tie());
        for found in real.take(SHOWN_DIFFERENCES) {
            _ = writeln!(text, "- {found}");
        }
        text
    }
}

impl SettingReport {
    /// How tokens were chosen.
    pub fn sampling(&self) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_k: self.top_k.unwrap_or(0),
            top_p: self.top_p.unwrap_or(1.0),
        }
    }

    /// What has a row in tables: each dataset, and all of them pooled.
    pub(crate) fn shown(&self) -> impl Iterator<Item = &DatasetReport> {
        // With one dataset the pooled row would only repeat it.
        let overall = (self.datasets.len() != 1).then_some(&self.overall);
        self.datasets.iter().chain(overall)
    }

    /// All prompts and then each dataset, where there are several, each with what stands behind a heading for it.
    pub(crate) fn pooled_and_each(&self) -> Vec<(String, &DatasetReport)> {
        let mut parts = vec![(String::new(), &self.overall)];
        if self.datasets.len() > 1 {
            let each = self.datasets.iter();
            parts.extend(each.map(|dataset| (format!(" on `{}`", dataset.name), dataset)));
        }
        parts
    }

    /// The setting in a few words, behind the drafter's name where it is not that of the report.
    pub fn heading(&self) -> String {
        let drafter = self.drafter.iter().map(|name| format!("{name}, "));
        drafter.collect::<String>() + &self.way()
    }

    /// The same behind the target's name, where there were several.
    pub fn of_target(&self) -> String {
        self.behind_target(&self.heading())
    }

    /// Words behind the target's name, where there were several.
    pub(crate) fn behind_target(&self, words: &str) -> String {
        let target = self.target.iter().map(|name| format!("{name}, "));
        target.collect::<String>() + words
    }

    /// The setting in a few words, whatever drafted.
    pub(crate) fn way(&self) -> String {
        format!("{}, {}", self.decided(), self.draft)
    }

    /// The same of a chain that stands beside those of other lengths.
    pub(crate) fn at_own_length(&self) -> String {
        let tokens = match self.draft {
            DraftReport::Chain { tokens, .. } => tokens,
            _ => None,
        };
        let tokens = tokens.map_or(String::new(), |tokens| format!(", {tokens}"));
        format!("{}, each at its own length{tokens}", self.decided())
    }

    /// How tokens were chosen and drafts verified, in a few words.
    fn decided(&self) -> String {
        let lossy = if self.lossy { " (lossy)" } else { "" };
        format!("{}, {}{lossy}", self.sampled(), self.verifier)
    }

    /// How tokens were chosen, in a few words.
    pub(crate) fn sampled(&self) -> String {
        chosen(self.temperature, self.top_k, self.top_p)
    }
}

impl Report {
    /// A report of what was evaluated, still without recipe, device, hashes and seeds.
    pub fn new(target: TargetReport, drafter: DrafterReport, settings: Vec<SettingReport>) -> Self {
        Self {
            schema: SCHEMA,
            spectrain: env!("CARGO_PKG_VERSION").into(),
            recipe: Value::Object(Map::new()),
            target,
            targets: Vec::new(),
            drafter,
            device: Map::new(),
            batch_size: 1,
            settings,
            lossless: LosslessReport::default(),
            trained: None,
            prepared: BTreeMap::new(),
            known_prompts: None,
            choosing_prompts: None,
            texts: Vec::new(),
            served: Vec::new(),
            samples: Vec::new(),
            settings_recommended: Vec::new(),
            seeds: BTreeMap::new(),
        }
    }

    /// The setting that decodes for the same target in the same way, if there is one. Trees that are not the same may have one
    /// heading.
    pub(crate) fn like(&self, setting: &SettingReport) -> Option<&SettingReport> {
        let heading = setting.heading();
        let mut all = self.settings.iter();
        all.find(|known| {
            known.heading() == heading
                && known.target == setting.target
                && known.draft.is_as_asked(&setting.draft)
        })
    }

    /// Every target, one or several.
    pub fn all_targets(&self) -> &[TargetReport] {
        if self.targets.is_empty() {
            std::slice::from_ref(&self.target)
        } else {
            &self.targets
        }
    }

    /// Whether drafters without training are in it.
    pub(crate) fn has_free(&self) -> bool {
        self.settings.iter().any(|one| one.drafter.is_some())
    }

    /// Whether it is of drafters without training alone.
    pub(crate) fn has_no_drafter(&self) -> bool {
        self.has_free() && self.drafter.kind.is_empty() && self.drafter.path.is_empty()
    }

    /// The target that verified in `setting`.
    pub(crate) fn target_report(&self, setting: &SettingReport) -> &TargetReport {
        let is_its = |target: &&TargetReport| setting.target.as_ref() == Some(&target.model);
        self.targets.iter().find(is_its).unwrap_or(&self.target)
    }

    /// The name of the target that verified in `setting`.
    pub fn target_of<'a>(&'a self, setting: &'a SettingReport) -> &'a str {
        setting.target.as_ref().unwrap_or(&self.target.model)
    }

    /// The text of `report.json`, in which a number that is not finite is `null`.
    ///
    /// # Errors
    /// A part of it that JSON cannot hold; of the types here none is known.
    pub fn to_json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Reads the text of a `report.json`.
    ///
    /// # Errors
    /// It is not JSON, lacks a key, or is of another schema.
    pub fn from_json(text: &str) -> Result<Self> {
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let Version { schema } = serde_json::from_str(text)?;
        if schema != SCHEMA {
            return Err(Error::Schema {
                mismatch: Mismatch::new(SCHEMA, schema),
            });
        }
        let mut report: Self = serde_json::from_str(text)?;
        // Reports of earlier versions do not say it.
        let settings = report.settings.iter_mut();
        let speedups = settings.filter_map(|setting| setting.overall.speedup.as_mut());
        speedups.for_each(Speedup::judge_pace);
        Ok(report)
    }

    /// τ of each setting by who counted it.
    pub(crate) fn counted(&self) -> Vec<Counted> {
        let is_decoded = self.texts.is_empty();
        let of = |setting: &SettingReport| {
            let trained = self.trained.as_ref().zip(self.length_in_training(setting));
            let overall = &setting.overall;
            let overall = overall.tau.map(|tau| (tau, overall.tau_ci95));
            let estimate = setting.estimate.as_ref();
            let estimate = estimate.map(|found| (found.tau, found.tau_ci95));
            let served = self.served.iter().filter_map(|served| {
                let is_same = self.is_in_tree(setting, served.in_tree.as_ref()?);
                let figures = served.figures.as_ref()?;
                let tau = (figures.tau?, figures.tau_ci95);
                (served.role == Role::Drafter && is_same).then_some((tau, served.concurrency))
            });
            Counted {
                simulated: trained.and_then(|(found, length)| found.simulated(length)),
                validated: trained.and_then(|(found, length)| found.validated(length)),
                estimated: if is_decoded { estimate } else { overall },
                decoded: overall.filter(|_| is_decoded),
                served: served.collect(),
                setting: setting.of_target(),
            }
        };
        self.settings.iter().map(of).collect()
    }

    /// Tokens in the chain of a setting, where it drafts as training does: greedily, with the report's own drafter and for the first
    /// target.
    fn length_in_training(&self, setting: &SettingReport) -> Option<usize> {
        let is_alike = setting.drafter.is_none()
            && setting.temperature == 0.0
            && self.target_of(setting) == self.target.model;
        match setting.draft {
            DraftReport::Chain { length, .. } if is_alike => Some(length),
            _ => None,
        }
    }

    /// Whether what stands beside a server's figures is of this setting; earlier versions took the first target's.
    fn is_in_tree(&self, setting: &SettingReport, found: &InTree) -> bool {
        let target = found.target.as_ref().unwrap_or(&self.target.model);
        found.setting == setting.heading() && target == self.target_of(setting)
    }
}

#[cfg(test)]
pub(crate) mod examples;

#[cfg(test)]
mod tests;
