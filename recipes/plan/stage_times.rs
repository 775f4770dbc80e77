//! How long each stage takes: by what it multiplies and reads, and by guesses where only the run itself will tell.

use serde_json::{Map, Value, json};
use spectrain_checkpoints::columns::{beside, wrapped};
use spectrain_data::in_order::threads;
use spectrain_data::words::by_count;
use spectrain_eval::{DraftChoice, Reach, drafted};
use spectrain_models::Sampling;

use super::data::{TrainingData, answers_to_write};
use super::estimate::Estimate;
use super::pace::{Pace, Passed};
use super::words::{count, duration, grouped};
use crate::families::footprint::Packed;
use crate::plan::preflight::Asked;
use crate::recipe::tables::FeatureMode;
use crate::runs::stage_names;
use crate::runtime::device;
use crate::runtime::prompt_sets;
use crate::runtime::sizes::{Sizes, body_parameters};

/// Tokens a second that a thread of the stage `prepare` makes of texts, measured where one has all.
const PREPARED: f64 = 250e3;
/// Threads that are as many times as fast: a guess, as one thread alone reads the rows and writes the samples of all.
const KEPT_BUSY: usize = 16;
/// Tokens that a pass over a draft yields. How many, the training decides.
const YIELD: f64 = 2.0;
/// Share of a training step that its forward pass takes.
const FORWARD: f64 = 1.0 / 3.0;
/// Answers that a validation lets the target write side by side.
const TOGETHER: f64 = 16.0;
/// Tokens that are drawn anew to test sampled output, of which the target is unsure of a half; at most so many times those decoded.
const TESTED: f64 = 4000.0;
const MOST_TESTED: f64 = 4.0;
/// What one of these takes, in which there is a second draft, compared with one that is only decoded.
const TEST: f64 = 1.35;
/// Share of plain decoding that the timing of batch sizes takes, and its seconds at most.
const TIMED: f64 = 0.5;
const MOST_TIMED: f64 = 16.0;
/// Tokens that the stage `export` decodes with the trained and with the exported drafter.
const EXPORTED: f64 = 1280.0;

/// What the times are estimated from.
pub(super) struct Known<'a> {
    pub(super) asked: Asked<'a>,
    pub(super) sizes: &'a Sizes,
    pub(super) estimate: &'a Estimate,
    pub(super) data: &'a TrainingData<'a>,
    /// Seconds that servers take to hand out the hidden states, where they were measured.
    pub(super) captured: Option<f64>,
}

/// Seconds, where they can be estimated, and what is to be said of them.
type Lasts = (Option<f64>, String);

/// How long each stage takes that is not done.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct StageTimes {
    stages: Vec<(&'static str, Lasts)>,
    on_gpu: bool,
}

impl StageTimes {
    /// Those of these stages.
    pub(super) fn of(known: &Known, stages: &[&'static str]) -> Self {
        let pace = known.pace();
        let of = |&stage: &&'static str| (stage, known.stage(stage, &pace));
        Self {
            stages: stages.iter().map(of).collect(),
            on_gpu: device::is_gpu(known.asked.device),
        }
    }

    /// Of all stages whose time is known.
    pub(super) fn seconds(&self) -> f64 {
        self.stages
            .iter()
            .filter_map(|(_, (seconds, _))| *seconds)
            // The sum of none is -0.
            .sum::<f64>()
            + 0.0
    }

    /// Those whose time is not known.
    fn unknown(&self) -> impl Iterator<Item = &'static str> {
        let unknown = self
            .stages
            .iter()
            .filter(|(_, (seconds, _))| seconds.is_none());
        unknown.map(|(stage, _)| *stage)
    }

    /// For people; nothing where there is nothing to do.
    pub(super) fn text(&self) -> String {
        if self.stages.is_empty() {
            return String::new();
        }
        let mut text = "\ntime:\n".to_owned();
        for (stage, (seconds, remark)) in &self.stages {
            let told = match seconds {
                Some(seconds) if remark.is_empty() => duration(*seconds),
                Some(seconds) => format!("{}: {remark}", duration(*seconds)),
                None if remark.is_empty() => "not known".to_owned(),
                None => format!("not known: {remark}"),
            };
            text += &beside(&format!("  {stage}"), 14, &told);
        }
        let unknown: Vec<&str> = self.unknown().collect();
        let besides = match unknown.is_empty() {
            true => String::new(),
            false => format!(" besides {}", unknown.join(", ")),
        };
        let together = format!("{}{besides}", duration(self.seconds()));
        text += &beside("  together", 14, &together);
        let machine = match self.on_gpu {
            true => "a GPU like an H100, with kernels that were compiled before",
            false => "nothing else running on this machine",
        };
        let guessed = format!(
            "  Guessed: answers as long as they may be, {YIELD} tokens for each pass over a draft, {machine}. It may take half as \
             long, or three times."
        );
        text + &wrapped(&guessed, "  ")
    }

    /// For programs.
    pub(super) fn json(&self) -> Value {
        let of =
            |(stage, (seconds, _)): &(&'static str, Lasts)| ((*stage).to_owned(), json!(seconds));
        let stages: Map<String, Value> = self.stages.iter().map(of).collect();
        json!({"stages": stages, "together": self.seconds()})
    }
}

/// How long a stage takes at this pace.
type Time = fn(&Known, &Pace) -> Lasts;

/// That of every stage that does not train the drafter.
const TIMES: [(&str, Time); 7] = [
    (stage_names::SYNTHETIC, |known, pace| {
        (known.synthetic(pace), "trains the target".into())
    }),
    (stage_names::REGENERATE, |known, pace| {
        known.regenerate(pace)
    }),
    (stage_names::PREPARE, |known, _| {
        match known.estimate.data_tokens {
            Some(tokens) => prepared(tokens, threads().get()),
            None => later(),
        }
    }),
    (stage_names::FEATURES, |known, pace| known.features(pace)),
    (stage_names::ANSWERS, |known, _| {
        match known.asked.recipe.features.mode {
            FeatureMode::Imported => (None, "as fast as the disk".into()),
            _ => (None, "as fast as servers answer".into()),
        }
    }),
    (stage_names::EXPORT, |known, pace| {
        (known.export(pace), String::new())
    }),
    (stage_names::EVALUATE, |known, pace| known.evaluate(pace)),
];

impl Known<'_> {
    fn stage(&self, stage: &str, pace: &Pace) -> Lasts {
        match TIMES.iter().find(|(name, _)| *name == stage) {
            Some((_, time)) => time(self, pace),
            None if self.asked.recipe.training_stages().contains(&stage) => self.train(stage, pace),
            None => unreachable!("how long the stage `{stage}` takes is in no table"),
        }
    }

    /// That of the device that all stages compute on, and that ranks train on.
    fn pace(&self) -> Pace {
        let device = self.asked.device;
        let held = device::target_type(self.asked.recipe.target.dtype, device);
        Pace::of(device, held)
    }

    /// The target as a pass goes through it.
    fn target(&self) -> Passed {
        let (spec, estimate) = (&self.sizes.spec, self.estimate);
        // Of an embedding that is no head a pass reads a few rows alone.
        let looked_up = match self.sizes.tied_head {
            true => 0.0,
            false => spec.vocab as f64 * spec.d_model as f64,
        };
        let parameters = (estimate.active_parameters as f64 - looked_up).max(0.0);
        let share = parameters / estimate.target_parameters.max(1) as f64;
        Passed {
            bytes: share * estimate.target_bytes as f64,
            parameters,
            layers: spec.layers as f64,
        }
    }

    /// The drafter as a pass of it goes through it.
    fn drafter(&self) -> Passed {
        let (recipe, spec) = (self.asked.recipe, &self.sizes.spec);
        let footprint = &self.estimate.footprint;
        let one = Packed { rows: 1, length: 1 };
        let activations = recipe.method.activations(spec, recipe.last_trained(), one);
        let read = match activations.map_or(0, |activations| activations.read) {
            0 => spec.d_model as f64,
            width => width as f64,
        };
        let own = (footprint.parameters - footprint.head) as f64;
        // Without a head of its own it reads the target's.
        let head = (footprint.head as f64).max(footprint.draft_vocab as f64 * read);
        let parameters = own - footprint.idle as f64 + footprint.frozen as f64 + head;
        let value = match device::is_gpu(self.asked.device) {
            true => device::target_type(recipe.target.dtype, self.asked.device)
                .dtype
                .size(),
            false => 4,
        };
        let of_layer = body_parameters(spec) as f64 / spec.layers.max(1) as f64;
        Passed {
            bytes: parameters * value as f64,
            parameters,
            layers: (own / of_layer.max(1.0)).round().max(1.0),
        }
    }

    /// Seconds to draft, and to pass over the draft, of so many sequences.
    fn drafting(&self, choice: &DraftChoice, reach: &Reach, sequences: f64, pace: &Pace) -> f64 {
        let [length, nodes] = extent(choice).map(|count| count as f64);
        let (passes, rows) = match reach.one_pass {
            true => (1.0, length + 1.0),
            false => (length, (nodes / length.max(1.0)).max(1.0)),
        };
        let each = pace.pass(&self.drafter(), rows * sequences, sequences);
        passes * each + pace.pass(&self.target(), (nodes + 1.0) * sequences, sequences)
    }

    fn synthetic(&self, pace: &Pace) -> Option<f64> {
        let table = self.asked.recipe.synthetic.as_ref()?;
        let spec = &self.sizes.spec;
        let products = 2.0 * self.estimate.target_parameters as f64;
        // Scores and weighted values over half of the keys, on average.
        let attention =
            2.0 * table.max_length as f64 * (spec.heads * spec.d_head * spec.layers) as f64;
        let tokens = table.steps as f64 * table.batch_tokens as f64;
        Some(tokens * (products + attention) / FORWARD / pace.flops)
    }

    fn regenerate(&self, pace: &Pace) -> Lasts {
        let Some(table) = &self.asked.recipe.regenerate else {
            return later();
        };
        if table.server.is_some() {
            return (None, "as fast as its servers answer".into());
        }
        let Some(answers) = answers_to_write(self.asked.recipe) else {
            return later();
        };
        let most = f64::from(table.max_tokens);
        let (tokens, how_long) = match answers.tokens {
            Some(given) if given < most => (given, "as long as those of the data"),
            _ => (most, "of `regenerate.max_tokens`"),
        };
        let together = f64::from(table.concurrency).min(answers.count.max(1.0));
        let all = answers.count * tokens;
        let seconds = all / together * pace.pass(&self.target(), together, together);
        let number = answers.count as u64;
        let remark = format!(
            "{} {} {how_long}, {} tokens",
            grouped(number),
            by_count(number, ["answer", "answers"]),
            count(all as u64)
        );
        (Some(seconds), remark)
    }

    fn features(&self, pace: &Pace) -> Lasts {
        let (spec, estimate) = (&self.sizes.spec, self.estimate);
        let tokens = estimate.data_tokens.map(|tokens| tokens as f64);
        match (self.asked.recipe.features.mode, tokens) {
            (FeatureMode::Stored, None) => later(),
            (FeatureMode::Stored, Some(tokens)) => {
                let attention = self.asked.recipe.data.max_length as f64
                    * (spec.heads * spec.d_head * spec.layers) as f64;
                let of_token = 2.0 * (body_parameters(spec) as f64 + attention);
                (Some(tokens * of_token / pace.over_texts), String::new())
            }
            (FeatureMode::Served, _) if self.captured.is_some() => {
                (self.captured, "by servers".into())
            }
            (FeatureMode::Imported, _) => (None, "as fast as the disk".into()),
            _ => (None, "as fast as servers hand out states".into()),
        }
    }

    fn train(&self, stage: &str, pace: &Pace) -> Lasts {
        let recipe = self.asked.recipe;
        let found = self
            .estimate
            .steps
            .iter()
            .find(|(steps, _)| steps.stage == stage);
        let Some((steps, per_token)) = found else {
            return later();
        };
        let (Some(number), Some(trained)) = (steps.steps, steps.trained_tokens) else {
            return later();
        };
        let training = recipe.training(stage);
        let (flops, _) = self.estimate.speed();
        let seconds = trained as f64 * per_token / flops;
        let validations = number.div_ceil(training.validate_every.max(1) as u64);
        let prompts = training.decode_prompts as f64;
        let written = training.decode_tokens as f64;
        let held_out = training.validate_samples as f64 * self.data.tokens_of_sample();
        let read = held_out + prompts * written;
        let validated = validations as f64 * read * per_token * FORWARD / flops;
        let answered = match recipe.features.mode.computes_target() {
            true => {
                (prompts / TOGETHER).ceil()
                    * written
                    * pace.pass(&self.target(), TOGETHER, TOGETHER)
            }
            false => 0.0,
        };
        let noun = if validations == 1 {
            "validation"
        } else {
            "validations"
        };
        let remark = format!("{} {noun} included", grouped(validations));
        (Some(seconds + validated + answered), remark)
    }

    fn export(&self, pace: &Pace) -> Option<f64> {
        let recipe = self.asked.recipe;
        let reach = recipe.method.reach(&self.sizes.spec).ok()?;
        if !recipe.features.mode.computes_target() {
            return Some(EXPORTED * self.reading(pace));
        }
        let own = DraftChoice::chain(reach.own);
        Some(EXPORTED / YIELD * self.drafting(&own, &reach, 1.0, pace))
    }

    /// Seconds to compute from a token of a text what target and drafter say.
    fn reading(&self, pace: &Pace) -> f64 {
        self.estimate.flops_per_token * FORWARD / pace.flops
    }

    fn evaluate(&self, pace: &Pace) -> Lasts {
        let recipe = self.asked.recipe;
        let table = &recipe.evaluate;
        let sets = table.sets().iter();
        let sets = sets.map(|set| prompt_sets::count(set, table.of_each_set()));
        let prompts = self.data.prompts(table.of_eval()) + sets.sum::<usize>();
        let tokens = prompts as f64 * table.max_new_tokens as f64;
        let Ok(reach) = recipe.method.reach(&self.sizes.spec) else {
            return (None, "the drafter's sizes are not known here".into());
        };
        // No more at a time than there are.
        let size = table.batch_size.min(prompts).max(1) as f64;
        let mut ways = 0;
        let mut seconds = 0.0;
        for sampling in table.samplings() {
            let drafts = drafted(&table.choices(reach.own), &reach, &sampling);
            ways += drafts.len();
            seconds += match recipe.features.mode.computes_target() {
                true => self.decoded(&sampling, &drafts, (tokens, size, &reach), pace),
                false => drafts.len() as f64 * tokens * self.reading(pace),
            };
        }
        let targets = 1 + table.targets.len();
        let plain = match table.baseline {
            true => " and without",
            false => "",
        };
        let remark = format!(
            "{} prompts in {} of drafting{plain}, at most {} tokens each",
            grouped(prompts as u64),
            counted(ways * targets),
            grouped(table.max_new_tokens as u64)
        );
        (Some(seconds * targets as f64), remark)
    }

    /// Seconds of what is decoded with one way of sampling, so many tokens by so many sequences at a time, and of the tests of it.
    fn decoded(
        &self,
        sampling: &Sampling,
        drafts: &[DraftChoice],
        (tokens, size, reach): (f64, f64, &Reach),
        pace: &Pace,
    ) -> f64 {
        let table = &self.asked.recipe.evaluate;
        let plain = tokens / size * pace.pass(&self.target(), size, size);
        let mut seconds = match table.baseline {
            true => plain + (TIMED * plain).min(MOST_TIMED),
            false => 0.0,
        };
        for draft in drafts {
            seconds += tokens / YIELD / size * self.drafting(draft, reach, size, pace);
            seconds += tokens * self.reading(pace);
            if table.baseline && !sampling.is_greedy() {
                let tested = TESTED.min(MOST_TESTED * tokens);
                seconds += TEST * tested / YIELD * self.drafting(draft, reach, 1.0, pace);
            }
        }
        // What drafts without training costs next to nothing, and yields less.
        let further = table.training_free.iter();
        let further = further.map(|free| table.choices_of(free, reach.own).len());
        seconds + further.sum::<usize>() as f64 * plain
    }
}

/// How long so many threads make so many tokens of texts.
fn prepared(tokens: u64, threads: usize) -> Lasts {
    let busy = threads.min(KEPT_BUSY);
    let remark = match threads {
        1 => String::new(),
        _ => format!("on {threads} processors"),
    };
    (Some(tokens as f64 / (PREPARED * busy as f64)), remark)
}

/// What is said where the data decides.
fn later() -> Lasts {
    (None, "the data is not here yet".into())
}

/// Ways to draft.
fn counted(ways: usize) -> String {
    match ways {
        1 => "one way".into(),
        _ => format!("{ways} ways"),
    }
}

/// Steps and tokens of a draft.
fn extent(choice: &DraftChoice) -> [usize; 2] {
    match (choice.shape(), choice) {
        (Some(shape), _) => [shape.length(), shape.nodes()],
        (None, DraftChoice::Calibrated(calibration)) => [calibration.depth, calibration.nodes],
        (None, DraftChoice::Confident { length, .. }) => [*length; 2],
        (None, _) => [0; 2],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stages::order::STAGES;

    #[test]
    fn every_stage_but_the_training_has_its_time() {
        let names = STAGES.iter().map(|stage| stage.name);
        let expected: Vec<&str> = names.filter(|name| *name != stage_names::TRAIN).collect();
        assert_eq!(TIMES.map(|(name, _)| name).to_vec(), expected);
    }

    #[test]
    fn texts_are_prepared_by_all_processors_that_one_thread_can_serve() {
        let seconds = |threads| prepared(8_000_000_000, threads).0.unwrap();
        assert_eq!(seconds(1), 32_000.0);
        assert_eq!(seconds(8), 4000.0);
        assert_eq!(seconds(16), 2000.0);
        assert_eq!(seconds(32), 2000.0);
        assert_eq!(prepared(1, 8).1, "on 8 processors");
        assert_eq!(prepared(1, 1).1, "");
    }
}
