//! The drafter, trained; the best of it by the mean acceptance length of prompts really decoded.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use burn::tensor::DType as BurnDType;
use serde_json::{Value, json};
use spectrain_checkpoints::{DType, ModelFolder, hash, seal, state};
use spectrain_data::features::{FeatureHeader, FeatureShards};
use spectrain_data::seed::mix;
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::weights::import;
use spectrain_models::{Capture, Target as _, Transformer, load_target};
use spectrain_train::{
    BatchSource, Fit, FitSummary, LiveFeatures, Objective, OnPolicy, Samples, StoredFeatures,
    Train, TrainConfig, Trainee, fit,
};

use super::validation::{Validator, validation_prompts};
use super::{StageContext, check_interrupted, features, interrupted, prepare, trained};
use crate::families::registry::Shipped;
use crate::recipe::tables::FeatureMode;
use crate::runtime::device::is_gpu;
use crate::runtime::self_check;
use crate::runtime::target;

/// Runs a stage of the training.
pub fn run<D: Shipped, O: Objective<D>>(
    context: &StageContext,
    stage: &str,
    drafter: &D::Config,
    objective: &O::Config,
) -> Result<Value>
where
    D::State: 'static,
{
    let capture = D::capture(drafter, &target::spec(&context.target_folder()?)?)?;
    let mut setup = Setup::new(context, stage, O::STAGES, capture)?;
    let config = setup.config.clone();
    let config = &config;
    let make = || Ok(O::of_stage(objective, stage)?);
    let parts = setup.target.parts();
    if is_gpu(&context.device_name) {
        self_check::run::<D, O>(context, &setup.target, &setup.capture, drafter, &make)?;
    }
    D::begin(drafter, &parts, &setup.tokens)?;
    let device = graph_device(&context.device, config);
    let mut first = match &context.recipe.start {
        Some(folder) => {
            seal::check(&ModelFolder::open(folder)?)?;
            D::warm_start(drafter, folder, &parts, &device)?
        }
        None => {
            let size = D::footprint(drafter, &parts.spec)?.draft_vocab as usize;
            let vocabulary = setup.vocabulary(context, size)?;
            D::fresh(drafter, &parts, &vocabulary, context.recipe.seed, &device)?
        }
    };
    let before = context.recipe.trained_before(stage);
    if let Some(before) = before {
        first = best_of(context, before, first)?;
    }
    let vocabulary = first.vocabulary().clone();
    let objective_of_stage = make()?;
    setup.drafts = objective_of_stage.drafts();
    let mut trainee = Trainee::drafter(first, objective_of_stage, config.optimizer());
    let mut identity = json!({
        "seed": context.recipe.seed,
        "drafter": drafter,
        "objective": O::settings_of(objective, stage),
        // As it was given: a warm-up may depend on how long the epochs are.
        "train": context.recipe.training(stage).identity(),
        "target": context.target_sha256()?,
        "tokens": setup.tokens.fingerprint(),
        // `auto` means another type on another device, and a run must not change its numbers on the way.
        "dtype": context.dtype.name(),
    });
    if let Some(folder) = &context.recipe.start {
        identity["start"] = json!(context.run.sha256_of_drafter(folder)?);
    }
    if let Some(before) = before {
        identity["before"] = context
            .run
            .sha256(&context.run.path().join(trained(before)))?
            .into();
    }
    if O::STAGES.len() > 1 {
        identity["stage"] = stage.into();
    }
    let summary = setup.fit(context, &mut trainee, &identity)?;
    check_interrupted()?;

    let step = summary
        .best
        .as_ref()
        .map_or(summary.steps, |(step, _)| *step);
    let best = with_weights_of(trainee.model(), &context.folder(stage), step as u64)?;
    let mut provenance = json!({
        "spectrain": env!("CARGO_PKG_VERSION"),
        "recipe": context.recipe.json,
        "objective": O::settings_of(objective, stage),
        "stage": stage,
        "target": {"model": context.target_name()?, "sha256": context.target_sha256()?},
        "data": {"sha256": setup.tokens.fingerprint()},
        "step": step,
    });
    let history = context
        .run
        .manifest(stage)?
        .map(|manifest| manifest.history);
    if let Some(history) = history.filter(|history| !history.is_empty()) {
        provenance["history"] = json!(history);
    }
    best.write(
        &context.run.path().join(trained(stage)),
        DType::F32,
        &provenance,
    )?;
    report(context, stage, &summary, step);
    Ok(json!({ "fit": summary, (EXPORTED_STEP): step, "draft_vocab": vocabulary.len() }))
}

/// Key of a training stage's summary: the step whose weights it has left.
pub(super) const EXPORTED_STEP: &str = "exported_step";

/// `drafter` with the weights that an earlier stage has left: not those of its folder, where low-rank matrices are merged.
fn best_of<D: Shipped>(context: &StageContext, stage: &str, drafter: D) -> Result<D> {
    let manifest = context.run.manifest(stage)?;
    let step = manifest.and_then(|manifest| manifest.summary[EXPORTED_STEP].as_u64());
    let step = step.with_context(|| format!("stage `{stage}` does not say what it has left"))?;
    with_weights_of(drafter, &context.folder(stage), step)
}

/// `drafter` with the weights that the state of a step in `folder` holds.
fn with_weights_of<D: Shipped>(drafter: D, folder: &Path, step: u64) -> Result<D> {
    let mut saved = state::list(folder)?.into_iter();
    let saved = saved
        .find(|saved| saved.step == step)
        .with_context(|| format!("`{}` holds no state of step {step}", folder.display()))?;
    let weights = state::load(&saved.path)?
        .tensors
        .remove("weights")
        .unwrap_or_default();
    Ok(import(drafter, weights, &saved.path.display().to_string())?)
}

fn report(context: &StageContext, stage: &str, summary: &FitSummary, step: usize) {
    let rate = summary.tokens as f64 / summary.seconds.max(1e-9);
    let best = summary.best.as_ref().map(|(_, best)| best);
    let tau = best.and_then(|best| Some((best.tau?, best.tau_ci95?)));
    let tau = tau.map_or(String::new(), |(tau, [low, high])| {
        format!(", τ {tau:.2} [{low:.2}, {high:.2}] on held-out prompts")
    });
    context.output.say(format!(
        "{stage}: {} steps, {} tokens in {:.0} s ({rate:.0} tokens/s), loss {:.4}, weights of step {step} taken{tau}",
        summary.steps, summary.tokens, summary.seconds, summary.loss
    ));
}

/// The device of parameters that take gradients.
pub fn graph_device(device: &Device, config: &TrainConfig) -> Device {
    match config.gradient_checkpointing {
        true => device.clone().autodiff().gradient_checkpointing(),
        false => device.clone().autodiff(),
    }
}

/// Bytes in use on a device, where it tells.
pub fn memory_in_use(device: &Device) -> Option<u64> {
    device.memory_pool_usage().map(|usage| usage.bytes_in_use)
}

/// What a stage of the training needs beside the drafter.
struct Setup<'a> {
    stage: &'a str,
    /// With the steps that its epochs come to.
    config: TrainConfig,
    /// Whether the drafter drafts as it will.
    drafts: bool,
    target: Arc<Transformer>,
    stop: Vec<u32>,
    capture: Capture,
    tokens: Arc<TokenShards>,
    held_out: Arc<TokenShards>,
    samples: Samples,
    row_length: usize,
}

impl<'a> Setup<'a> {
    fn new(
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
            context
                .output
                .say(format!("{stage}: {epochs} epochs are {steps} steps"));
            if config.warmup != given.warmup {
                let (asked, warmup) = (given.warmup, config.warmup);
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

    fn vocabulary(&self, context: &StageContext, size: usize) -> Result<DraftVocabulary> {
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

    fn fit(
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
        let mut validation = Validator {
            target: self.target.as_ref(),
            capture: &self.capture,
            stop: &self.stop,
            compute,
            config,
            source: self.live(held_out.clone(), &context.device, compute),
            held_out,
            prompts: match self.drafts {
                true => validation_prompts(context, config.decode_prompts)?,
                false => Vec::new(),
            },
        };
        let judge = self.live(self.samples.clone(), &context.device, compute);
        let digest = hash::sha256_bytes(identity.to_string().as_bytes());
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
