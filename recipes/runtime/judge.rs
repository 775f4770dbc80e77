//! A drafter judged by one target, or by several of one family.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use burn::prelude::Device;
use rand::{SeedableRng, rngs::StdRng};
use serde_json::json;
use spectrain_checkpoints::atomic::write_file;
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_eval::{
    CalibrationPrompts, Comparison, DecodeSettings, Decoder, DrafterReport, EvaluateSettings,
    Evaluation, LosslessReport, PassRecord, PromptSet, Report, SettingReport, TargetReport,
    evaluate,
};
use spectrain_models::{Capture, DraftShape, Sampling, Target as _, Transformer, load_target};

use crate::cli::progress::Output;
use crate::families::registry::open_drafter;
use crate::families::trained::Trained;
use crate::recipe::tables::EvaluateTable;
use crate::runtime::interruption::interrupted;
use crate::runtime::target;

/// Tokens of a prompt that the target makes up.
const MADE_UP_TOKENS: usize = 24;

/// A target that judges.
#[derive(Debug, Clone)]
pub struct TrialTarget {
    /// Where it is.
    pub folder: PathBuf,
    /// What the report says of it.
    pub report: TargetReport,
}

/// Where an output ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// At the target's stop tokens, or at `max_new_tokens`.
    AtStopTokens,
    /// At `max_new_tokens` alone.
    AtLength,
}

/// What is judged, by whom and how.
pub struct Trial<'a> {
    /// The targets. The prompts are the first one's tokens, which must stand for the same texts in all.
    pub targets: &'a [TrialTarget],
    /// The drafter's folder.
    pub drafter: &'a Path,
    /// The device.
    pub device: &'a Device,
    /// Type of the targets' weights.
    pub dtype: DType,
    /// Prompts to decode.
    pub sets: &'a [PromptSet],
    /// Prompts to calibrate trees on.
    pub calibration: &'a CalibrationPrompts,
    /// The settings.
    pub table: &'a EvaluateTable,
    /// Where an output ends.
    pub ends: Ends,
    /// File for the outputs themselves.
    pub outputs: Option<&'a Path>,
    /// Where progress goes.
    pub output: Output,
}

/// What was found with some targets.
#[derive(Default)]
struct Findings {
    drafter: DrafterReport,
    settings: Vec<SettingReport>,
    greedy: Comparison,
    /// Lines of the file of outputs.
    outputs: String,
}

impl Trial<'_> {
    /// Decodes every prompt in every setting with one target after the other, of which one at a time is in memory. The
    /// drafter's path and hash are still to be filled in.
    pub fn report(&self) -> Result<Report> {
        let [first, others @ ..] = self.targets else {
            bail!("expected a target, found none");
        };
        // What the last target would be refused for is said before hours are spent on the first.
        for other in others {
            let checked = self.check(first, other);
            checked.with_context(|| format!("the target `{}`", other.report.model))?;
        }
        let mut found = Findings::default();
        for target in self.targets {
            match others {
                [] => self.judge(target, &mut found)?,
                _ => self
                    .judge(target, &mut found)
                    .with_context(|| format!("the target `{}`", target.report.model))?,
            }
        }
        if let Some(path) = self.outputs {
            write_file(path, found.outputs.as_bytes())?;
        }
        let lossless = LosslessReport::new(found.greedy, &found.settings);
        let mut report = Report::new(first.report.clone(), found.drafter, found.settings);
        report.lossless = lossless;
        if !others.is_empty() {
            let targets = self.targets.iter();
            report.targets = targets.map(|target| target.report.clone()).collect();
        }
        report.seeds = BTreeMap::from([("sampling".to_owned(), self.table.seed)]);
        Ok(report)
    }

    /// Fails unless the prompts, which are tokens of `first`, mean the same to `other`, and the drafter is for it.
    fn check(&self, first: &TrialTarget, other: &TrialTarget) -> Result<()> {
        if let Some(difference) = target::other_token(&other.folder, &first.folder)? {
            bail!(
                "{difference}; the targets of one report must share their tokens with `{}`",
                first.report.model
            );
        }
        let vocab = target::spec(&other.folder)?.vocab;
        let prompts = self.sets.iter().flat_map(|set| &set.prompts);
        let largest = prompts.chain(&self.calibration.prompts).flatten().max();
        if let Some(&token) = largest.filter(|&&token| token as usize >= vocab) {
            bail!(
                "it knows {vocab} tokens, and the prompts hold token {token} of `{}`",
                first.report.model
            );
        }
        self.open(other).map(drop)
    }

    fn open(&self, target: &TrialTarget) -> Result<Judge> {
        Judge::open(&target.folder, self.drafter, self.device, self.dtype)
    }

    /// Adds what `target` finds.
    fn judge(&self, target: &TrialTarget, found: &mut Findings) -> Result<()> {
        let judge = self.open(target)?;
        let mut session = judge.drafter.session();
        let (sets, settings) = (self.sets, self.settings(&judge, session.draft_length()));
        let several = self.targets.len() > 1;
        let what = if several {
            format!("evaluate {}", target.report.model)
        } else {
            "evaluate".to_owned()
        };
        let mut progress = self.output.start(&what, 1);
        let mut evaluation = evaluate(
            &judge.decoder(),
            session.as_mut(),
            sets,
            &settings,
            &mut |step| {
                progress.extend_to(step.total as u64);
                match step.what {
                    "" => progress.set(step.done as u64, step.dataset),
                    what => progress.set(step.done as u64, format!("{}, {what}", step.dataset)),
                }
            },
        )?;
        if several {
            for setting in &mut evaluation.settings {
                setting.target = Some(target.report.model.clone());
            }
        }
        if self.outputs.is_some() {
            found.outputs += &self.lines(target, &evaluation);
        }
        found.drafter = DrafterReport {
            kind: judge.drafter.kind().into(),
            parameters: judge.drafter.parameters(),
            ..DrafterReport::default()
        };
        let outputs = evaluation.outputs.iter().flatten().map(Vec::len);
        progress.finish(format!("{} outputs", outputs.sum::<usize>()));
        found.settings.extend(evaluation.settings);
        found.greedy.outputs += evaluation.greedy.outputs;
        found.greedy.tokens += evaluation.greedy.tokens;
        found
            .greedy
            .differences
            .extend(evaluation.greedy.differences);
        Ok(())
    }

    /// Each output as a line: what was decoded, and what each pass drafted and accepted.
    fn lines(&self, target: &TrialTarget, evaluation: &Evaluation) -> String {
        let mut lines = String::new();
        for (setting, outputs) in evaluation.settings.iter().zip(&evaluation.outputs) {
            for (set, outputs) in self.sets.iter().zip(outputs) {
                for (prompt, output) in outputs.iter().enumerate() {
                    let counts = |count: fn(&PassRecord) -> usize| {
                        output.passes.iter().map(count).collect::<Vec<_>>()
                    };
                    let line = json!({
                        "target": target.report.model,
                        "dataset": set.name,
                        "prompt": prompt,
                        "temperature": setting.temperature,
                        "draft": setting.draft,
                        "tokens": output.tokens,
                        "drafted": counts(|pass| pass.drafted),
                        "accepted": counts(|pass| pass.accepted),
                    });
                    lines += &format!("{line}\n");
                }
            }
        }
        lines
    }

    /// `own` is the drafter's own length of a draft.
    fn settings(&self, judge: &Judge, own: usize) -> EvaluateSettings {
        EvaluateSettings {
            samplings: self.table.samplings(),
            drafts: self.table.choices(own),
            calibration: self.calibration.clone(),
            max_new_tokens: self.table.max_new_tokens,
            stop: match self.ends {
                Ends::AtStopTokens => judge.stop.clone(),
                Ends::AtLength => Vec::new(),
            },
            verifier: self.table.verifier.into(),
            baseline: self.table.baseline,
            seed: self.table.seed,
        }
    }
}

/// A target and a drafter, ready to decode.
pub struct Judge {
    /// The target.
    pub target: Transformer,
    /// The drafter, held in the target's type.
    pub drafter: Box<dyn Trained>,
    /// What the drafter reads.
    pub capture: Capture,
    /// Tokens at which the target stops.
    pub stop: Vec<u32>,
}

impl Judge {
    /// Loads both.
    pub fn open(target: &Path, drafter: &Path, device: &Device, dtype: DType) -> Result<Self> {
        Self::open_with_drafter(target, drafter, device, dtype).map(|(judge, _)| judge)
    }

    /// Loads both, and gives the drafter as its folder has it besides.
    pub fn open_with_drafter(
        target: &Path,
        drafter: &Path,
        device: &Device,
        dtype: DType,
    ) -> Result<(Self, Box<dyn Trained>)> {
        let model = ModelFolder::open(target)?;
        let stop = target::stop_tokens(&model)?;
        let target = load_target(&model, device, dtype)?;
        let drafter = open_drafter(drafter, &target.parts(), device)?;
        Ok((Self::of(target, stop, drafter.as_ref())?, drafter))
    }

    /// Of a target in memory, with the tokens at which it stops.
    pub fn of(target: Transformer, stop: Vec<u32>, drafter: &dyn Trained) -> Result<Self> {
        Ok(Self {
            capture: drafter.capture()?,
            drafter: drafter.held_in(target.dtype()),
            target,
            stop,
        })
    }

    /// Takes another drafter in the place of this one.
    pub fn take(&mut self, drafter: &dyn Trained) -> Result<()> {
        self.capture = drafter.capture()?;
        self.drafter = drafter.held_in(self.target.dtype());
        Ok(())
    }

    /// The decoder.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(&self.target, &self.capture).unless(&interrupted)
    }

    /// Texts that the target itself makes up, one from each of some tokens of its vocabulary.
    pub fn generated_prompts(&self, count: usize) -> Result<Vec<Vec<u32>>> {
        let vocab = self.target.spec().vocab;
        let settings = DecodeSettings {
            max_new_tokens: MADE_UP_TOKENS
                .min(self.target.spec().max_positions / 4)
                .max(1),
            draft: DraftShape::Chain { length: 1 },
            sampling: Sampling::at(1.0),
            stop: Vec::new(),
            shadow: None,
        };
        let first = |number: usize| (number * vocab / count.max(1)) as u32;
        let text = |number: usize| {
            let mut rng = StdRng::seed_from_u64(number as u64);
            let mut text = vec![first(number)];
            text.extend(self.decoder().plain(&text, &settings, &mut rng)?.tokens);
            Ok(text)
        };
        (0..count).map(text).collect()
    }
}
