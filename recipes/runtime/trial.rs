//! A drafter judged by one target, or by several of one family.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail};
use burn::prelude::Device;
use serde_json::{Value, json};
use spectrain_checkpoints::atomic::write_file;
use spectrain_checkpoints::{ModelFolder, seal};
use spectrain_data::conversation::THOUGHT;
use spectrain_data::tokenizer::{Continuation, Special, Tokenizer};
use spectrain_eval::{
    CalibrationPrompts, Comparison, Contender, DraftChoice, DraftReport, DrafterReport,
    EvaluateProgress, EvaluateSettings, Evaluation, Journal, LosslessReport, PassRecord, PromptSet,
    Recommendation, Report, Sample, SampleReport, SettingReport, TargetReport, Thinking,
    TokenClass, TokenClasses, evaluate_all, samples,
};

use spectrain_models::FrozenType;

use crate::families::commands::commands;
use crate::families::family::Writing;
use crate::progress::{Output, Progress, counted};
use crate::recipe::tables::{Engine, EvaluateTable};
use crate::runtime::contenders::{Opened, Session};
use crate::runtime::prompts::has_room;
use crate::runtime::target;

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
    /// The drafter's folder; without one, only drafters without training are judged.
    pub drafter: Option<&'a Path>,
    /// The device.
    pub device: &'a Device,
    /// Type of the targets' weights.
    pub target_type: FrozenType,
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
    /// Where to go on from after an interruption, if anybody does.
    pub kept: Option<Kept<'a>>,
    /// Where progress goes.
    pub output: Output,
}

/// What was found before an interruption.
pub struct Kept<'a> {
    /// The file that has it.
    pub journal: &'a Path,
    /// What it depends on beside targets, prompts and settings.
    pub about: String,
}

/// What was found with some targets.
#[derive(Default)]
struct Findings {
    /// Whether anything was found before an interruption.
    goes_on: bool,
    /// Sequences that were decoded at a time.
    batch_size: usize,
    drafter: DrafterReport,
    settings: Vec<SettingReport>,
    greedy: Comparison,
    samples: Vec<SampleReport>,
    recommended: Vec<Recommendation>,
    /// Lines of the file of outputs.
    outputs: String,
}

impl Findings {
    /// Adds the figures of one target.
    fn add(&mut self, evaluation: Evaluation) {
        let Comparison {
            outputs,
            tokens,
            differences,
        } = evaluation.greedy;
        self.batch_size = evaluation.batch_size;
        self.settings.extend(evaluation.settings);
        self.greedy.outputs += outputs;
        self.greedy.tokens += tokens;
        self.greedy.differences.extend(differences);
    }
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
        for target in self.targets {
            let checked = self.check_room(target);
            checked.with_context(|| format!("the target `{}`", target.report.model))?;
        }
        let mut found = Findings {
            goes_on: self.goes_on(),
            ..Findings::default()
        };
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
        report.samples = found.samples;
        report.batch_size = found.batch_size;
        if found.batch_size < self.table.batch_size {
            tracing::warn!("{}", too_few(self.table.batch_size, found.batch_size));
        }
        report.settings_recommended = found.recommended;
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
        let prompts = prompts.map(|prompt| &prompt.tokens);
        let measured_on = self.measured_on();
        let largest = prompts.chain(&measured_on).flatten().max();
        if let Some(&token) = largest.filter(|&&token| token as usize >= vocab) {
            bail!(
                "it knows {vocab} tokens, and the prompts contain token {token} of `{}`",
                first.report.model
            );
        }
        self.open(other)?.sessions(self.table).map(drop)
    }

    /// Fails unless `target` has room for a token behind each prompt. Of later turns it is not known yet how long they are; those
    /// without room are left out.
    fn check_room(&self, target: &TrialTarget) -> Result<()> {
        let places = target::spec(&target.folder)?.max_positions;
        let longest = places.saturating_sub(1);
        let refused = |what: String, prompt: &[u32]| {
            anyhow!(
                "{what}: expected at most {longest} tokens, so that one more fits the context of {places}, found {}; \
                 `spectrain evaluate --max-length {longest}` leaves longer prompts out",
                prompt.len()
            )
        };
        for set in self.sets {
            let mut prompts = set.prompts.iter().map(|prompt| &prompt.tokens).enumerate();
            if let Some((number, prompt)) = prompts.find(|(_, prompt)| !has_room(prompt, places)) {
                return Err(refused(
                    format!("prompt {number} of `{}`", set.name),
                    prompt,
                ));
            }
        }
        let measured_on = self.measured_on();
        match measured_on.iter().find(|prompt| !has_room(prompt, places)) {
            None => Ok(()),
            Some(prompt) => {
                let what = "a prompt to calibrate a tree or tune a threshold on";
                Err(refused(what.to_owned(), prompt))
            }
        }
    }

    /// The prompts that drafts are found on.
    fn measured_on(&self) -> Vec<Vec<u32>> {
        let counts = self.table.drafts.iter().filter_map(DraftChoice::prompts);
        counts
            .flat_map(|count| self.calibration.of(count))
            .collect()
    }

    fn open(&self, target: &TrialTarget) -> Result<Opened> {
        Opened::new(&target.folder, self.drafter, self.device, self.target_type)
    }

    /// Adds what `target` finds.
    fn judge(&self, target: &TrialTarget, found: &mut Findings) -> Result<()> {
        let opened = self.open(target)?;
        let tokenizer = Tokenizer::from_folder(&target.folder)?;
        let settings = EvaluateSettings {
            thinking: thinking(&tokenizer),
            classes: Some(classes(&tokenizer)),
            ..self.settings(&opened)
        };
        let several = self.targets.len() > 1;
        let what = match several {
            true => format!("evaluate {}", target.report.model),
            false => "evaluate".to_owned(),
        };
        let mut progress = self.output.start(&what, 1);
        let sessions = opened.sessions(self.table)?;
        let contenders: Vec<Contender> = sessions.iter().map(Session::contender).collect();
        let mut journal = self.journal(target)?;
        let mut evaluation = evaluate_all(
            &opened.decoder(),
            &contenders,
            self.sets,
            &settings,
            journal.as_mut(),
            &mut |step| show(&mut progress, step),
        )?;
        if let (true, Some(first)) = (found.samples.is_empty(), first(&contenders, &evaluation)) {
            let asked = (self.sets, &settings);
            let kept = samples(&opened.decoder(), first, &evaluation, asked)?;
            found.samples = told(&kept, &tokenizer)?;
        }
        if several {
            for setting in &mut evaluation.settings {
                setting.target = Some(target.report.model.clone());
            }
        }
        for mut one in evaluation.recommended.drain(..) {
            one.target = several.then(|| target.report.model.clone());
            if let Some(best) = &mut one.best {
                best.commands = self.commands(&opened, target, &best.draft)?;
            }
            found.recommended.push(one);
        }
        if self.outputs.is_some() {
            found.outputs += &self.lines(target, &evaluation);
        }
        found.drafter = opened.report();
        let outputs = evaluation.outputs.iter().flatten().map(Vec::len);
        progress.finish(counted(outputs.sum::<usize>() as u64, "output"));
        if let (true, Some(journal)) = (found.goes_on, &journal) {
            let taken = counted(journal.outputs() as u64, "output");
            self.output.say(format!(
                "{what}: from before the interruption: {taken}, those without a drafter among them"
            ));
        }
        found.add(evaluation);
        Ok(())
    }

    /// Whether anything was found before an interruption.
    fn goes_on(&self) -> bool {
        let kept = self.kept.as_ref();
        let file = kept.and_then(|kept| fs::metadata(kept.journal).ok());
        file.is_some_and(|file| file.len() > 0)
    }

    /// What was found with `target` before, and a place for more.
    fn journal(&self, target: &TrialTarget) -> Result<Option<Journal>> {
        let Some(Kept { journal, about }) = &self.kept else {
            return Ok(None);
        };
        let about = format!("{about} {:?}", target.report);
        Ok(Some(Journal::open(journal, &about)?))
    }

    /// What serves a draft; of chains alone, which all engines know.
    fn commands(
        &self,
        opened: &Opened,
        target: &TrialTarget,
        draft: &DraftReport,
    ) -> Result<Vec<String>> {
        let (DraftReport::Chain { length, .. }, Some(folder), Some(drafter)) =
            (draft, self.drafter, &opened.drafter)
        else {
            return Ok(Vec::new());
        };
        let model = ModelFolder::open(folder)?;
        let writing = Writing {
            folder,
            dtype: self.target_type.dtype,
            target: &target.report.model,
            draft_length: *length,
            provenance: seal::provenance(model.config()).unwrap_or(&Value::Null),
        };
        commands(drafter.as_ref(), &[Engine::Vllm, Engine::Sglang], &writing)
    }

    /// Each output as a line: what was decoded, and what each pass drafted and accepted.
    fn lines(&self, target: &TrialTarget, evaluation: &Evaluation) -> String {
        let mut lines = String::new();
        for (setting, outputs) in evaluation.settings.iter().zip(&evaluation.outputs) {
            for (set, outputs) in self.sets.iter().zip(outputs) {
                for answer in outputs {
                    let output = &answer.generation;
                    let counts = |count: fn(&PassRecord) -> usize| {
                        output.passes.iter().map(count).collect::<Vec<_>>()
                    };
                    let mut line = json!({
                        "target": target.report.model,
                        "dataset": set.name,
                        "prompt": answer.conversation,
                        "turn": answer.turn,
                        "temperature": setting.temperature,
                        "draft": setting.draft,
                        "tokens": output.tokens,
                        "drafted": counts(|pass| pass.drafted),
                        "accepted": counts(|pass| pass.accepted),
                    });
                    if let Some(drafter) = &setting.drafter {
                        line["drafter"] = json!(drafter);
                    }
                    lines += &format!("{line}\n");
                }
            }
        }
        lines
    }

    fn settings(&self, opened: &Opened) -> EvaluateSettings {
        EvaluateSettings {
            samplings: self.table.samplings(),
            drafts: Vec::new(),
            calibration: self.calibration.clone(),
            batch_size: self.table.batch_size,
            max_new_tokens: self.table.max_new_tokens,
            stop: match self.ends {
                Ends::AtStopTokens => opened.stop.clone(),
                Ends::AtLength => Vec::new(),
            },
            thinking: None,
            classes: None,
            verifier: self.table.verifier.into(),
            baseline: self.table.baseline,
            seed: self.table.seed,
        }
    }
}

/// That there are fewer prompts than are to be decoded at a time.
fn too_few(asked: usize, found: usize) -> String {
    let prompts = counted(found as u64, "prompt");
    format!(
        "`batch_size`: expected {asked} prompts at a time, found only {prompts}, so speeds are of {found} at a time"
    )
}

/// Shows how far an evaluation is.
fn show(progress: &mut Progress, step: EvaluateProgress) {
    progress.extend_to(step.total as u64);
    let done = step.done as u64;
    match (step.dataset, step.what) {
        ("", what) => progress.set(done, what),
        (dataset, "") => progress.set(done, format!("outputs of `{dataset}`")),
        (dataset, what) => progress.set(done, format!("outputs of `{dataset}`, {what}")),
    }
}

/// The one of which an evaluation's first setting is.
fn first<'a, 'c, 'p>(
    contenders: &'a [Contender<'c, 'p>],
    evaluation: &Evaluation,
) -> Option<&'a Contender<'c, 'p>> {
    let drafter = &evaluation.settings.first()?.drafter;
    contenders
        .iter()
        .find(|contender| contender.name == *drafter)
}

/// Samples as text.
fn told(samples: &[Sample], tokenizer: &Tokenizer) -> Result<Vec<SampleReport>> {
    let text = |tokens: &[u32]| tokenizer.decode(tokens, Special::Keep);
    let told = samples.iter().map(|sample| sample.told(text));
    Ok(told.collect::<Result<_, _>>()?)
}

/// What kind of token each is.
fn classes(tokenizer: &Tokenizer) -> TokenClasses {
    let tokens = tokenizer.continuations().into_iter();
    tokens
        .map(|token| match token {
            Continuation::Text(text) => TokenClass::of(&text),
            Continuation::Special => TokenClass::Special,
        })
        .collect()
}

/// The tokens around what a target thinks, where it has both.
pub(crate) fn thinking(tokenizer: &Tokenizer) -> Option<Thinking> {
    let [begins, ends] = THOUGHT.map(|mark| tokenizer.token_id(mark));
    Some(Thinking {
        begins: begins?,
        ends: ends?,
    })
}

#[cfg(test)]
mod tests {
    use spectrain_eval::DatasetReport;
    use spectrain_models::{Capture, Proposer};

    use super::*;

    #[test]
    fn samples_are_of_the_drafter_of_the_first_setting() {
        let sessions = || -> Box<dyn Proposer> { unreachable!("nothing is drafted") };
        let capture = Capture::default();
        let contenders = [None, Some("a"), Some("b")].map(|name| Contender {
            name: name.map(str::to_owned),
            sessions: &sessions,
            capture: &capture,
            drafts: Vec::new(),
        });
        let evaluation = |drafters: &[Option<&str>]| Evaluation {
            settings: drafters.iter().map(|drafter| of(*drafter)).collect(),
            ..Evaluation::default()
        };
        let of_first = |drafters: &[Option<&str>]| {
            let found = first(&contenders, &evaluation(drafters));
            found.map(|contender| contender.name.clone())
        };
        assert_eq!(of_first(&[Some("b"), Some("a")]), Some(Some("b".into())));
        assert_eq!(of_first(&[None, Some("a")]), Some(None));
        assert_eq!(of_first(&[]), None);
    }

    #[test]
    fn prompts_that_are_too_few_for_a_batch_are_counted() {
        for (found, told) in [
            (1, "found only 1 prompt, so speeds are of 1 at a time"),
            (3, "found only 3 prompts, so speeds are of 3 at a time"),
        ] {
            let warned = too_few(8, found);
            assert!(warned.contains("expected 8 prompts at a time"), "{warned}");
            assert!(warned.ends_with(told), "{warned}");
        }
    }

    fn of(drafter: Option<&str>) -> SettingReport {
        let setting = json!({
            "drafter": drafter,
            "temperature": 0.0,
            "verifier": "greedy",
            "draft": {"shape": "chain", "length": 2},
            "datasets": [],
            "overall": DatasetReport::default(),
        });
        serde_json::from_value(setting).unwrap()
    }
}
