//! What a stage of the training needs beside the drafter, and the training itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Result, anyhow, bail};
use burn::prelude::Device;
use burn::tensor::DType as BurnDType;
use serde_json::Value;
use spectrain_checkpoints::{DType, ModelFolder, hash, state};
use spectrain_data::features::{FeatureShards, Recorded};
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_eval::Decoder;
use spectrain_models::{Capture, TargetParts, Transformer, load_parts, load_target};
use spectrain_train::{
    BatchSource, Error as TrainError, Fit, FitSummary, LiveFeatures, OF_EPOCHS, OnPolicy, Samples,
    StoredFeatures, Train, TrainConfig, fit,
};

use crate::progress::counted;
use crate::recipe::tables::FeatureMode;
use crate::runs::stage_names;
use crate::runtime::device::memory_of;
use crate::runtime::interruption::interrupted;
use crate::runtime::ranks::{Group, Held};
use crate::runtime::target;
use crate::runtime::texts::StoredTexts;
use crate::stages::answers::{ANSWERS, Answers, StoredAnswers, WrittenAnswers};
use crate::stages::context::StageContext;
use crate::stages::features::header::header;
use crate::stages::features::places::{HELD_OUT, answers_at};
use crate::stages::features::servers;
use crate::stages::features::streamed::StreamedFeatures;
use crate::stages::length;
use crate::stages::prepare;
use crate::stages::trained_text::TrainedText;
use crate::stages::validation::{Validator, validation_prompts};

/// Why validations decode nothing although they would.
const UNANSWERED: &str = "there is no held-out prompt";

/// What a stage of the training needs beside the drafter.
pub(super) struct Setup<'a> {
    stage: &'a str,
    /// With the steps that its epochs come to.
    pub(super) config: TrainConfig,
    /// What the drafter shares of the target.
    pub(super) parts: TargetParts,
    /// The target, unless servers have it.
    pub(super) target: Option<Arc<Transformer>>,
    stop: Vec<u32>,
    /// What the drafter reads of it.
    pub(super) capture: Capture,
    /// What is trained on.
    pub(super) tokens: Arc<TokenShards>,
    held_out: Arc<TokenShards>,
    samples: Samples,
    row_length: usize,
    /// Stored features by their folders, once they were opened, which reads them whole.
    opened: RefCell<BTreeMap<PathBuf, Arc<FeatureShards>>>,
}

impl<'a> Setup<'a> {
    /// Loads the target and the data.
    pub(super) fn new(context: &'a StageContext, stage: &'a str, capture: Capture) -> Result<Self> {
        let folder = context.target_folder()?;
        let (device, dtype) = (&context.device, context.target_type.dtype);
        let (parts, target, stop) = if context.recipe.features.mode.computes_target() {
            let model = ModelFolder::open(&folder)?;
            let target = Arc::new(load_target(&model, device, context.target_type)?);
            (target.parts(), Some(target), target::stop_tokens(&model)?)
        } else {
            let parts = load_parts(&folder, device, dtype)?;
            (parts, None, target::stop_tokens_in(&folder)?)
        };
        let tokens = length::tokens(context)?;
        let row_length = context.recipe.data.max_length;
        let given = context.recipe.training(stage);
        given.check(row_length)?;
        let samples = length::samples(context, stage, tokens.clone());
        let config = given.with_steps(&samples)?;
        if let Some(epochs) = given.epochs {
            let steps = config.steps;
            context.output.say(format!(
                "{stage}: `epochs = {epochs}` comes to {}",
                counted(steps as u64, "step")
            ));
            let is_asked = given.warmup_steps != OF_EPOCHS;
            if is_asked && config.warmup_steps != given.warmup_steps {
                let (asked, warmup) = (given.warmup_steps, config.warmup_steps);
                context.output.warn(format!(
                    "{stage}: the warm-up of {asked} steps is too long for them and is cut to {warmup}"
                ));
            }
        }
        // Epochs may come to more steps than there may be.
        config.check(row_length)?;
        Ok(Self {
            stage,
            config,
            stop,
            parts,
            target,
            capture,
            samples,
            held_out: Arc::new(TokenShards::open(
                context.folder(stage_names::PREPARE).join("eval"),
            )?),
            tokens,
            row_length,
            opened: RefCell::default(),
        })
    }

    /// The draft vocabulary of this size: the tokens that are trained on most often.
    pub(super) fn vocabulary(
        &self,
        context: &StageContext,
        size: usize,
    ) -> Result<DraftVocabulary> {
        let vocab = self.parts.spec.vocab;
        if size == vocab {
            return Ok(DraftVocabulary::full(vocab));
        }
        let counts = prepare::counts(context.run)?;
        let vocabulary = DraftVocabulary::from_counts(&counts, size, &self.stop)?;
        let coverage = 100.0 * vocabulary.coverage(&counts);
        context.output.say(format!(
            "{}: draft vocabulary of {size} tokens covers {coverage:.2} % of those trained on",
            self.stage
        ));
        Ok(vocabulary)
    }

    /// Features of what is trained on.
    pub(super) fn source(&self, context: &StageContext) -> Result<Box<dyn BatchSource>> {
        if context.recipe.features.mode == FeatureMode::Streamed {
            let (layers, target) = (self.capture.clone(), self.parts.clone());
            let sets = [self.tokens.as_ref(), &self.held_out];
            let ranks = context.group.map_or(1, Group::count);
            return Ok(Box::new(StreamedFeatures {
                samples: self.samples.clone(),
                servers: servers::open(context, ranks, layers, target, sets)?,
                compute: compute_type(context.target_type.dtype),
                device: context.device.clone(),
                output: context.output,
                stream: None,
            }));
        }
        let folder = context.folder(stage_names::FEATURES);
        self.features(context, (&self.tokens, self.samples.clone()), &folder)
    }

    /// Features of samples of `tokens`: made by the target now, or those that are stored in `folder`.
    fn features(
        &self,
        context: &StageContext,
        (tokens, samples): (&TokenShards, Samples),
        folder: &Path,
    ) -> Result<Box<dyn BatchSource>> {
        let compute = compute_type(context.target_type.dtype);
        let device = context.device.clone();
        if let (FeatureMode::Live, Some(target)) = (context.recipe.features.mode, &self.target) {
            return Ok(Box::new(self.live(target, samples, &device, compute)));
        }
        Ok(Box::new(StoredFeatures {
            samples,
            shards: self.opened(context, tokens, folder)?,
            compute,
            device,
        }))
    }

    /// What is stored in `folder`: features of all of `tokens`.
    fn opened(
        &self,
        context: &StageContext,
        tokens: &TokenShards,
        folder: &Path,
    ) -> Result<Arc<FeatureShards>> {
        if let Some(shards) = self.opened.borrow().get(folder) {
            return Ok(shards.clone());
        }
        let shards = FeatureShards::open_with(folder, |files| context.prove(files))?;
        shards.require(&header(
            context,
            folder,
            &self.capture,
            tokens.fingerprint(),
            self.parts.spec.d_model,
        )?)?;
        if shards.len() != tokens.len() {
            bail!(
                "`{}`: expected {} samples, one for each text, found {}",
                folder.display(),
                tokens.len(),
                shards.len()
            );
        }
        let shards = Arc::new(shards);
        let mut opened = self.opened.borrow_mut();
        opened.insert(folder.to_owned(), shards.clone());
        Ok(shards)
    }

    fn live(
        &self,
        target: &Arc<Transformer>,
        samples: Samples,
        device: &Device,
        compute: BurnDType,
    ) -> LiveFeatures {
        LiveFeatures {
            samples,
            target: target.clone(),
            capture: self.capture.clone(),
            compute,
            device: device.clone(),
        }
    }

    /// Held-out conversations.
    fn held_out(&self, context: &StageContext) -> Samples {
        let rows = self.config.batch_tokens / self.row_length;
        let tokens = self.held_out.clone();
        Samples::new(tokens, self.row_length, rows, context.recipe.seed)
    }

    /// The text that is trained on, with what the target makes of it, for rank 0 in the first stage: it is that of all stages.
    /// Nothing where the target's hidden states are not at hand, or where the drafter writes all texts itself.
    pub(super) fn text(&'a self, context: &'a StageContext) -> Result<Option<TrainedText<'a>>> {
        let recipe = context.recipe;
        if !context.leads() || recipe.trained_before(self.stage).is_some() {
            return Ok(None);
        }
        if recipe.method.on_policy_fraction(self.stage)? >= 1.0 {
            return Ok(None);
        }
        let folder = context.folder(stage_names::FEATURES);
        let (tokens, samples, folder) = match recipe.features.mode {
            // Servers hand out those of the training in its order alone. Held-out ones are there, of the same text, unless
            // that was given.
            FeatureMode::Streamed if recipe.data.eval.is_some() => return Ok(None),
            FeatureMode::Streamed => {
                let held_out = self.held_out(context);
                (&self.held_out, held_out, folder.join(HELD_OUT))
            }
            _ => (&self.tokens, self.samples.clone(), folder),
        };
        let source = self.features(context, (tokens.as_ref(), samples.clone()), &folder)?;
        let of = (recipe, self.stage, context.output);
        Ok(Some(TrainedText::new(of, (samples, source), &self.parts)))
    }

    /// The target's answers to held-out prompts.
    fn answers(&self, context: &'a StageContext, identity: &str) -> Result<Answers<'_>> {
        if !context.recipe.method.drafts(self.stage)? {
            return Ok(Answers::None);
        }
        let Some(target) = &self.target else {
            let folder = answers_at(context, 0.0);
            if !folder.exists() {
                let is_asked = context.recipe.evaluate.temperatures.contains(&0.0);
                let why = match is_asked {
                    true => UNANSWERED,
                    false => "`evaluate.temperatures` has no 0",
                };
                let why = format!("{why}: validations do not count τ");
                context.output.warn(why);
                return Ok(Answers::None);
            }
            let proof = |files: &[Recorded]| context.prove(files);
            let texts = StoredTexts::open(&folder, &self.capture, &self.parts, proof)?;
            let (texts, _) = texts.judged(context.recipe.features.mode);
            return Ok(Answers::Stored(Box::new(StoredAnswers {
                texts,
                longest: context.longest_answer(),
                file: context.folder(self.stage).join(ANSWERS),
                is_kept: false,
            })));
        };
        Ok(Answers::Written(WrittenAnswers {
            decoder: Decoder::new(target.as_ref(), &self.capture).unless(&interrupted),
            prompts: validation_prompts(context, self.config.decode_prompts)?,
            longest: self.config.decode_tokens,
            stop: self.stop.clone(),
            file: context.folder(self.stage).join(ANSWERS),
            identity: identity.to_owned(),
            known: None,
        }))
    }

    /// What validates the stage's weights.
    fn validator(&'a self, context: &'a StageContext, identity: &str) -> Result<Validator<'a>> {
        let compute = compute_type(context.target_type.dtype);
        let config = &self.config;
        let held_out = self.held_out(context);
        let held_out_features = match self.target {
            // Validations are few: what the target makes of held-out texts is not stored.
            Some(ref target) => {
                Box::new(self.live(target, held_out.clone(), &context.device, compute))
            }
            None => {
                let folder = context.folder(stage_names::FEATURES).join(HELD_OUT);
                self.features(context, (&self.held_out, held_out.clone()), &folder)?
            }
        };
        let answers = self.answers(context, identity)?;
        // What the settings cannot tell: what there is to answer.
        if config.validate_samples == 0 && answers.len() == 0 {
            let unmeasured = context.recipe.unmeasured(self.stage, UNANSWERED);
            return Err(unmeasured.into());
        }
        Ok(Validator {
            compute,
            config,
            source: held_out_features,
            held_out,
            answers,
        })
    }

    /// Trains. A state of another identity is not gone on from.
    pub(super) fn fit(
        &self,
        context: &StageContext,
        trainee: &mut dyn Train,
        identity: &Value,
    ) -> Result<FitSummary> {
        let compute = compute_type(context.target_type.dtype);
        let digest = hash::sha256_bytes(identity.to_string().as_bytes());
        let mut validation = self.validator(context, &digest)?;
        let mut text = self.text(context)?;
        let folder = context.folder(self.stage);
        // Before anything is spent on it; one that goes on was told.
        let begins = state::latest(&folder)?.is_none();
        if let Some(text) = text.as_mut().filter(|_| begins) {
            text.found();
        }
        let judge = self.target.as_ref();
        let judge =
            judge.map(|target| self.live(target, self.samples.clone(), &context.device, compute));
        let judges = judge.as_ref().map(|judge| |rows| judge.judge(rows));
        let device = context.device.clone();
        let mut held = context.group.map(Group::held);
        let ranks = held.as_mut().map(Held::ranks).transpose()?;
        let summary = fit(
            trainee,
            Fit {
                config: &self.config,
                samples: self.samples.clone(),
                source: self.source(context)?,
                folder,
                identity: identity.clone(),
                defaults: (context.recipe.defaults)(),
                interrupted: &interrupted,
                on_policy: judges.as_ref().map(|judge| OnPolicy {
                    stop: &self.stop,
                    judge,
                }),
                begins_trained: context.recipe.begins_trained(self.stage),
                validate: &mut |trainee, _, best, together| {
                    let mut found = validation.of(trainee, best, together)?;
                    if best.is_none() {
                        let own = text.as_mut().and_then(TrainedText::found);
                        found.text = together.of_first(own)?;
                    }
                    Ok(found)
                },
                memory: &|| memory_of(&device),
                ranks,
            },
        );
        summary.map_err(|error| with_advice(error, &context.device_name))
    }
}

/// The error with what to do about a state that is not gone on from, and with the device that has no memory.
fn with_advice(error: TrainError, device: &str) -> anyhow::Error {
    let anew = "begin anew with `--fresh`, which moves this run aside";
    match error {
        TrainError::OutOfMemory { .. } => anyhow!(error).context(format!("`{device}`")),
        TrainError::OtherTraining { .. } => {
            anyhow!("{error}; put back what has changed, or {anew}")
        }
        TrainError::State { .. } => anyhow!("{error}; {anew}"),
        other => other.into(),
    }
}

/// Type that drafters compute in.
fn compute_type(target: DType) -> BurnDType {
    match target {
        DType::BF16 => BurnDType::BF16,
        _ => BurnDType::F32,
    }
}

#[cfg(test)]
mod tests {
    use spectrain_checkpoints::Mismatch;

    use super::*;

    #[test]
    fn what_has_changed_is_to_be_put_back_where_something_has() {
        let path = PathBuf::from("train/step-00000003");
        let mismatch = || Mismatch::new("one", "other");
        let other = TrainError::OtherTraining {
            path: path.clone(),
            keys: vec![("seed".into(), mismatch())],
        };
        let broken = TrainError::State {
            path,
            mismatch: mismatch(),
        };
        for (error, puts_back) in [(other, true), (broken, false)] {
            let told = with_advice(error, "cpu").to_string();
            assert_eq!(told.contains("put back what has changed"), puts_back);
            let anew = "begin anew with `--fresh`, which moves this run aside";
            assert!(told.ends_with(anew), "{told}");
        }
    }
}
