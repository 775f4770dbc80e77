//! Trainings in sessions, on a tiny target: what tests of them train, how they are cut, and what they leave.
use std::cell::Cell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use spectrain_checkpoints::{NamedTensor, state};
use spectrain_data::packing::PackedBatch;
use spectrain_models::device::test_device_of;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::{Drafter, FreshConfig, Target as _};
use spectrain_train::{
    Batch, BatchSource, Course, Defaults, Distill, DistillConfig, Error, FeatureRegression,
    FeatureRegressionConfig, Fit, FitSummary, LiveFeatures, Noise, Objective, OnPolicy,
    OnPolicyConfig, Order, PardLoss, PardLossConfig, Ranks, Rows, TcpRanks, Together, Train,
    TrainConfig, Trainee, TrainingTimeTest, TrainingTimeTestConfig, Validation, Weight, fit,
};

use crate::tiny;

pub type Trained = (FitSummary, Vec<NamedTensor>);

/// One process of a run.
pub struct Session {
    pub settings: TrainConfig,
    /// Steps after which it is interrupted.
    pub stop_after: usize,
    /// Steps after which its thread dies.
    pub dies_after: usize,
    /// What happens when it validates, by the step.
    pub in_validation: Box<dyn Fn(usize) -> Result<(), Error>>,
    /// The loss that it finds then.
    pub loss: fn(usize) -> f64,
    /// Whether its weights are validated, and saved, before the first step.
    pub begins_trained: bool,
    /// Batches that are there; for those behind them its source waits as for a server that is gone.
    pub batches_there: usize,
    pub identity: &'static str,
}

/// Features of which so many batches are there.
struct SomeThere {
    live: LiveFeatures,
    there: usize,
    is_over: Arc<AtomicBool>,
}

impl BatchSource for SomeThere {
    fn begin(&mut self, _: Order, _: usize, is_over: Arc<AtomicBool>) -> Result<(), Error> {
        self.is_over = is_over;
        Ok(())
    }

    fn rows(&self, packed: PackedBatch) -> Rows {
        self.live.rows(packed)
    }

    fn batch(&mut self, packed: PackedBatch) -> Result<Batch, Error> {
        if self.there == 0 {
            while !self.is_over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Err(Error::Features("nobody wants them".into()));
        }
        self.there -= 1;
        self.live.batch(packed)
    }
}

impl Session {
    /// That trains to the end.
    pub fn whole() -> Self {
        Self {
            settings: TrainConfig {
                steps: 10,
                batch_tokens: 128,
                gradient_accumulation: 2,
                warmup_steps: 2,
                log_every: 2,
                validate_every: 4,
                save_every: 3,
                ..TrainConfig::default()
            },
            stop_after: usize::MAX,
            dies_after: usize::MAX,
            in_validation: Box::new(|_| Ok(())),
            loss: |step| 1.0 / (step + 1) as f64,
            begins_trained: false,
            batches_there: usize::MAX,
            identity: "test",
        }
    }

    pub fn with(change: impl FnOnce(&mut TrainConfig)) -> Self {
        let mut session = Self::whole();
        change(&mut session.settings);
        session
    }

    fn source(&self, live: LiveFeatures) -> SomeThere {
        SomeThere {
            live,
            there: self.batches_there,
            is_over: Arc::default(),
        }
    }

    pub fn until(stop_after: usize) -> Self {
        Self {
            stop_after,
            ..Self::whole()
        }
    }
}

pub fn eagle3(folder: &Path, session: &Session) -> Trained {
    try_eagle3(folder, session).unwrap()
}

pub fn try_eagle3(folder: &Path, session: &Session) -> Result<Trained, Error> {
    let (config, objective) = eagle3_settings();
    train::<Eagle3, TrainingTimeTest>(&config, &objective, folder, session)
}

pub fn eagle3_settings() -> (Eagle3Config, TrainingTimeTestConfig) {
    let objective = TrainingTimeTestConfig {
        draft_steps: 2,
        ..Default::default()
    };
    (Eagle3Config::default(), objective)
}

pub fn noisy(noise: Noise, folder: &Path, session: &Session) -> Trained {
    let objective = FeatureRegressionConfig {
        noise,
        ..Default::default()
    };
    let config = Eagle1Config::default();
    train::<Eagle1, FeatureRegression>(&config, &objective, folder, session).unwrap()
}

pub fn on_policy(fraction: f64, folder: &Path, session: &Session) -> Trained {
    let (config, objective) = on_policy_settings(fraction);
    train::<LanguageModel, Distill>(&config, &objective, folder, session).unwrap()
}

/// A language model that writes this fraction of its batches itself.
pub fn on_policy_settings(fraction: f64) -> (LanguageModelConfig, DistillConfig) {
    let config = LanguageModelConfig {
        fresh: Some(FreshConfig::default()),
        ..Default::default()
    };
    let objective = DistillConfig {
        on_policy: OnPolicyConfig {
            fraction,
            ..Default::default()
        },
        ..Default::default()
    };
    (config, objective)
}

pub fn dropped(folder: &Path, session: &Session) -> Trained {
    let (config, objective) = dropped_settings();
    train::<Pard, PardLoss>(&config, &objective, folder, session).unwrap()
}

/// A drafter that is trained without the target's features in half of its rows.
pub fn dropped_settings() -> (PardConfig, PardLossConfig) {
    let config = PardConfig {
        fresh: Some(FreshConfig::default()),
        mask_token: Some(47),
        target_features: true,
        ..Default::default()
    };
    let objective = PardLossConfig {
        feature_dropout: 0.5,
        ..Default::default()
    };
    (config, objective)
}

/// One whose labels count less from step to step, and the target more.
pub fn weighed_anew(folder: &Path, session: &Session) -> Trained {
    let (config, objective) = dropped_settings();
    let changing = |start, end| {
        Weight::Changing(Course {
            start,
            end,
            from: 0.2,
            until: 0.8,
        })
    };
    let objective = PardLossConfig {
        label_weight: changing(0.8, 0.0),
        teacher_weight: changing(0.2, 1.0),
        ..objective
    };
    train::<Pard, PardLoss>(&config, &objective, folder, session).unwrap()
}

fn train<D, O>(
    config: &D::Config,
    objective: &O::Config,
    folder: &Path,
    session: &Session,
) -> Result<Trained, Error>
where
    D: Drafter + 'static,
    O: Objective<D>,
{
    train_as::<D, O>((config, objective), folder, session, None)
}

/// Trains as one of several ranks, where there are several.
pub fn train_as<D, O>(
    (config, objective): (&D::Config, &O::Config),
    folder: &Path,
    session: &Session,
    ranks: Option<&mut TcpRanks>,
) -> Result<Trained, Error>
where
    D: Drafter + 'static,
    O: Objective<D>,
{
    train_and::<D, O>((config, objective), folder, session, ranks, &mut |_| ())
}

/// The same, and shows what was trained at the end.
pub fn train_and<D, O>(
    (config, objective): (&D::Config, &O::Config),
    folder: &Path,
    session: &Session,
    ranks: Option<&mut TcpRanks>,
    show: &mut dyn FnMut(&dyn Train),
) -> Result<Trained, Error>
where
    D: Drafter + 'static,
    O: Objective<D>,
{
    let device = test_device_of(ranks.as_ref().map_or(0, |ranks| ranks.rank()));
    let target = tiny::target(&device);
    let capture = D::capture(config, target.spec()).unwrap();
    let objective = O::new(objective).unwrap();
    let settings = &session.settings;
    let graph = if settings.gradient_checkpointing {
        device.clone().autodiff().gradient_checkpointing()
    } else {
        device.clone().autodiff()
    };
    let drafter: D = tiny::fresh(config, &target, &graph);
    let tokens = tempfile::tempdir().unwrap();
    let samples = tiny::samples(tokens.path(), &tiny::random_samples(9), 2);
    let mut trainee = Trainee::drafter(drafter, objective, settings.optimizer());
    let judge = tiny::live(samples.clone(), &target, capture.clone());
    let mut validated = tiny::live(samples.clone(), &target, capture.clone());
    let done = Cell::new(0);
    let summary = fit(
        &mut trainee,
        Fit {
            config: settings,
            source: Box::new(session.source(tiny::live(samples.clone(), &target, capture))),
            samples,
            folder: folder.to_owned(),
            identity: session.identity.into(),
            defaults: Defaults::default(),
            interrupted: &|| {
                done.set(done.get() + 1);
                assert!(done.get() < session.dies_after, "as planned");
                done.get() >= session.stop_after
            },
            on_policy: Some(OnPolicy {
                stop: &[5],
                judge: &|rows| judge.judge(rows),
            }),
            begins_trained: session.begins_trained,
            validate: &mut |trainee, step, _, together| {
                let own = (session.in_validation)(step)
                    .and_then(|()| losses(trainee, &mut validated, together));
                Ok(Validation {
                    loss: (session.loss)(step),
                    alpha: together.gather_pieces(own)?,
                    ..Validation::default()
                })
            },
            memory: &|| None,
            ranks: ranks.map(|ranks| ranks as &mut dyn Ranks),
        },
    )?;
    show(&trainee);
    Ok((summary, trainee.weights()))
}

/// What the loss is on those batches of an epoch that are this rank's.
fn losses(
    trainee: &dyn Train,
    source: &mut LiveFeatures,
    together: &Together,
) -> Result<Vec<(usize, f64)>, Error> {
    let batches = source.samples.epoch(7)?.into_iter().enumerate();
    let own = batches.filter(|(number, _)| together.takes(*number));
    own.map(|(number, packed)| Ok((number, trainee.measure(&source.batch(packed)?).total)))
        .collect()
}

pub fn steps(folder: &Path) -> Vec<u64> {
    let saved = state::list(folder).unwrap();
    saved.iter().map(|saved| saved.step).collect()
}

/// All of a summary that time does not change.
pub fn figures(summary: &FitSummary) -> (usize, u64, f64, &Option<(usize, Validation)>, bool) {
    let FitSummary {
        steps,
        tokens,
        loss,
        best,
        interrupted,
        ..
    } = summary;
    (*steps, *tokens, *loss, best, *interrupted)
}

/// An error behind which no state is saved.
pub fn ended(step: usize) -> Error {
    Error::Diverged {
        step,
        what: "a validation".into(),
        samples: Vec::new(),
    }
}
