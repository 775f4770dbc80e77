//! What a stage of the training needs beside the drafter, and the training itself.

use std::sync::Arc;

use anyhow::Result;
use burn::prelude::Device;
use burn::tensor::DType as BurnDType;
use serde_json::Value;
use spectrain_checkpoints::{DType, ModelFolder, hash};
use spectrain_data::features::{FeatureHeader, FeatureShards};
use spectrain_data::seed::mix;
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::{Capture, Target as _, Transformer, load_target};
use spectrain_train::{
    BatchSource, Fit, FitSummary, LiveFeatures, OnPolicy, Samples, StoredFeatures, Train,
    TrainConfig, fit,
};

use crate::recipe::tables::FeatureMode;
use crate::runtime::device::memory_in_use;
use crate::runtime::interruption::interrupted;
use crate::runtime::target;
use crate::stages::answers::Answers;
use crate::stages::context::StageContext;
use crate::stages::validation::{Validator, validation_prompts};
use crate::stages::{features, prepare};

/// What a stage of the training needs beside the drafter.
pub(super) struct Setup<'a> {
    stage: &'a str,
    /// With the steps that its epochs come to.
    pub(super) config: TrainConfig,
    /// Whether the drafter drafts as it will.
    pub(super) drafts: bool,
    /// The target.
    pub(super) target: Arc<Transformer>,
    stop: Vec<u32>,
    /// What the drafter reads of it.
    pub(super) capture: Capture,
    /// What is trained on.
    pub(super) tokens: Arc<TokenShards>,
    held_out: Arc<TokenShards>,
    samples: Samples,
    row_length: usize,
}

impl<'a> Setup<'a> {
    /// Loads the target and the data; the training stages of the recipe are `stages`.
    pub(super) fn new(
        context: &'a StageContext,
        stage: &'a str,
        stages: &[&str],
        capture: Capture,
    ) -> Result<Self> {
        let model = ModelFolder::open(context.target_folder()?)?;
        let prepared = context.folder("prepare");
        let tokens = Arc::new(TokenShards::open(prepared.join("train"))?);
        let row_length = context.recipe.data.max_length;
        let given = context.recipe.training(stage);
        given.check(row_length)?;
        let rows = given.batch_tokens / row_length;
        // Another order and other draws than in the stages before.
        let seed = match stages.iter().position(|&name| name == stage) {
            None | Some(0) => context.recipe.seed,
            Some(place) => mix(context.recipe.seed, place as u64),
        };
        let samples = Samples::new(tokens.clone(), row_length, rows, seed);
        let config = given.with_steps(&samples)?;
        if let Some(epochs) = given.epochs {
            let steps = config.steps;
            context.output.say(format!(
                "{stage}: `epochs = {epochs}` comes to {steps} steps"
            ));
            if config.warmup_steps != given.warmup_steps {
                let (asked, warmup) = (given.warmup_steps, config.warmup_steps);
                context.output.warn(format!(
                    "{stage}: the warm-up of {asked} steps is longer than that and is cut to {warmup}"
                ));
            }
        }
        // Epochs may come to more steps than there may be.
        config.check(row_length)?;
        Ok(Self {
            stage,
            config,
            drafts: true,
            stop: target::stop_tokens(&model)?,
            target: Arc::new(load_target(&model, &context.device, context.dtype)?),
            capture,
            samples,
            held_out: Arc::new(TokenShards::open(prepared.join("eval"))?),
            tokens,
            row_length,
        })
    }

    /// The draft vocabulary of this size: the tokens that are trained on most often.
    pub(super) fn vocabulary(
        &self,
        context: &StageContext,
        size: usize,
    ) -> Result<DraftVocabulary> {
        let vocab = self.target.spec().vocab;
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

    fn source(&self, context: &StageContext) -> Result<Box<dyn BatchSource>> {
        let compute = compute_type(context.dtype);
        let (samples, device) = (self.samples.clone(), context.device.clone());
        Ok(match context.recipe.features.mode {
            FeatureMode::Live => Box::new(self.live(samples, &device, compute)),
            FeatureMode::Stored => {
                let shards = FeatureShards::open(context.folder("features"))?;
                shards.require(&self.header(context)?)?;
                Box::new(StoredFeatures {
                    samples,
                    shards,
                    compute,
                    device,
                })
            }
        })
    }

    fn header(&self, context: &StageContext) -> Result<FeatureHeader> {
        features::header(
            context,
            &self.capture,
            &self.tokens,
            self.target.spec().d_model,
        )
    }

    fn live(&self, samples: Samples, device: &Device, compute: BurnDType) -> LiveFeatures {
        LiveFeatures {
            samples,
            target: self.target.clone(),
            capture: self.capture.clone(),
            compute,
            device: device.clone(),
        }
    }

    /// Trains. A state of another identity is not gone on from.
    pub(super) fn fit(
        &self,
        context: &StageContext,
        trainee: &mut dyn Train,
        identity: &Value,
    ) -> Result<FitSummary> {
        let compute = compute_type(context.dtype);
        let config = &self.config;
        let rows = config.batch_tokens / self.row_length;
        let held_out = Samples::new(
            self.held_out.clone(),
            self.row_length,
            rows,
            context.recipe.seed,
        );
        let digest = hash::sha256_bytes(identity.to_string().as_bytes());
        let mut validation = Validator {
            target: self.target.as_ref(),
            capture: &self.capture,
            compute,
            config,
            source: self.live(held_out.clone(), &context.device, compute),
            held_out,
            answers: Answers {
                prompts: if self.drafts {
                    validation_prompts(context, config.decode_prompts)?
                } else {
                    Vec::new()
                },
                longest: config.decode_tokens,
                stop: self.stop.clone(),
                file: context.folder(self.stage).join("answers.json"),
                identity: digest.clone(),
                known: None,
            },
        };
        let judge = self.live(self.samples.clone(), &context.device, compute);
        let device = context.device.clone();
        Ok(fit(
            trainee,
            Fit {
                config,
                samples: self.samples.clone(),
                source: self.source(context)?,
                folder: context.folder(self.stage),
                identity: digest,
                interrupted: &interrupted,
                on_policy: Some(OnPolicy {
                    stop: &self.stop,
                    judge: &|rows| judge.judge(rows),
                }),
                validate: &mut |trainee, _, best| validation.of(trainee, best),
                memory: &|| memory_in_use(&device),
            },
        )?)
    }
}

/// Type that drafters compute in.
fn compute_type(target: DType) -> BurnDType {
    match target {
        DType::BF16 => BurnDType::BF16,
        _ => BurnDType::F32,
    }
}
