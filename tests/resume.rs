//! A run that is cut in half and taken up again ends bitwise where an uncut one does.
use std::cell::Cell;
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use spectrain_checkpoints::{NamedTensor, atomic, state};
use spectrain_data::packing::PackedBatch;
use spectrain_models::device::test_device_of;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::language_model::{LanguageModel, LanguageModelConfig};
use spectrain_models::pard::{Pard, PardConfig};
use spectrain_models::{Drafter, FreshConfig, Target as _};
use spectrain_train::{
    Batch, BatchSource, Course, Decay, DecayShape, Distill, DistillConfig, Error,
    FeatureRegression, FeatureRegressionConfig, Fit, FitSummary, LiveFeatures, Noise, Objective,
    OnPolicy, OnPolicyConfig, Order, PardLoss, PardLossConfig, Ranks, Rows, TcpRanks, Together,
    Train, TrainConfig, Trainee, TrainingTimeTest, TrainingTimeTestConfig, Validation, Weight, fit,
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

    fn until(stop_after: usize) -> Self {
        Self {
            stop_after,
            ..Self::whole()
        }
    }
}

fn eagle3(folder: &Path, session: &Session) -> Trained {
    try_eagle3(folder, session).unwrap()
}

fn try_eagle3(folder: &Path, session: &Session) -> Result<Trained, Error> {
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

fn noisy(noise: Noise, folder: &Path, session: &Session) -> Trained {
    let objective = FeatureRegressionConfig {
        noise,
        ..Default::default()
    };
    let config = Eagle1Config::default();
    train::<Eagle1, FeatureRegression>(&config, &objective, folder, session).unwrap()
}

fn on_policy(fraction: f64, folder: &Path, session: &Session) -> Trained {
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

fn dropped(folder: &Path, session: &Session) -> Trained {
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
fn weighed_anew(folder: &Path, session: &Session) -> Trained {
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

fn steps(folder: &Path) -> Vec<u64> {
    let saved = state::list(folder).unwrap();
    saved.iter().map(|saved| saved.step).collect()
}

/// The weights that the state of a step holds.
fn weights_at(folder: &Path, step: u64) -> Vec<NamedTensor> {
    let saved = state::list(folder).unwrap();
    let saved = saved.iter().find(|saved| saved.step == step).unwrap();
    let mut state = state::load(&saved.path).unwrap();
    state.tensors.remove("weights").unwrap()
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

fn halves_equal_the_whole(train: impl Fn(&Path, &Session) -> Trained) {
    let whole = tempfile::tempdir().unwrap();
    let halves = tempfile::tempdir().unwrap();
    let (expected, weights) = train(whole.path(), &Session::whole());
    assert_eq!((expected.steps, expected.interrupted), (10, false));
    let (summary, _) = train(halves.path(), &Session::until(5));
    assert_eq!((summary.steps, summary.interrupted), (5, true));
    let (summary, got) = train(halves.path(), &Session::whole());
    assert_eq!(figures(&summary), figures(&expected));
    assert_eq!(got, weights);
    let saved = steps(halves.path());
    assert!(saved.contains(&10) && saved.len() <= 3, "{saved:?}");
}

#[test]
fn half_a_run_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(eagle3);
}

#[test]
fn half_a_run_with_a_mean_of_its_weights_and_its_other_half_equal_a_whole_one_bitwise() {
    fn averaged(folder: &Path, session: &Session) -> Trained {
        let own = Session {
            stop_after: session.stop_after,
            ..Session::with(|train| train.ema_decay = 0.5)
        };
        eagle3(folder, &own)
    }
    halves_equal_the_whole(averaged);
    let [plain, mean] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let (_, plain) = eagle3(plain.path(), &Session::whole());
    assert_ne!(averaged(mean.path(), &Session::whole()).1, plain);
}

#[test]
fn a_run_that_begins_trained_goes_on_from_its_first_state() {
    for ema_decay in [0.0, 0.5] {
        let begun = |dies_after| Session {
            dies_after,
            begins_trained: true,
            ..Session::with(|train| train.ema_decay = ema_decay)
        };
        let [whole, cut] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let (expected, weights) = eagle3(whole.path(), &begun(usize::MAX));
        // It dies behind the first step, of which nothing was saved yet.
        let died = || eagle3(cut.path(), &begun(1));
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(died)).unwrap_err();
        assert_eq!(steps(cut.path()), [0]);
        let (summary, got) = eagle3(cut.path(), &begun(usize::MAX));
        assert_eq!(figures(&summary), figures(&expected));
        assert_eq!(got, weights, "{ema_decay}");
    }
}

#[test]
fn half_a_run_whose_losses_are_weighed_anew_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(weighed_anew);
}

#[test]
fn half_a_run_with_noise_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(|folder, session| noisy(Noise::default(), folder, session));
}

#[test]
fn half_a_run_on_texts_of_its_own_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(|folder, session| on_policy(0.5, folder, session));
}

#[test]
fn half_a_run_with_dropped_rows_and_its_other_half_equal_a_whole_one_bitwise() {
    halves_equal_the_whole(dropped);
}

#[test]
fn a_run_stopped_at_any_step_ends_with_the_loss_of_a_whole_one() {
    let whole = tempfile::tempdir().unwrap();
    // The last log interval has several steps, and one of them is behind the last saved state.
    let session = || {
        Session::with(|train| {
            train.log_every = 5;
            train.save_every = 4;
        })
    };
    let (expected, _) = eagle3(whole.path(), &session());
    for stop_after in 1..10 {
        let folder = tempfile::tempdir().unwrap();
        let first = Session {
            stop_after,
            ..session()
        };
        let (stopped, _) = eagle3(folder.path(), &first);
        assert_eq!((stopped.steps, stopped.interrupted), (stop_after, true));
        let (summary, _) = eagle3(folder.path(), &session());
        assert_eq!(figures(&summary), figures(&expected), "{stop_after}");
    }
}

#[test]
fn a_run_stopped_while_it_validates_validates_when_it_goes_on() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &Session::whole());
    for stop_at in [4, 8, 10] {
        let folder = tempfile::tempdir().unwrap();
        let stopped = Session {
            in_validation: Box::new(move |step| {
                if step == stop_at {
                    Err(Error::Interrupted)
                } else {
                    Ok(())
                }
            }),
            ..Session::whole()
        };
        for _ in 0..2 {
            let (summary, _) = eagle3(folder.path(), &stopped);
            assert_eq!((summary.steps, summary.interrupted), (stop_at, true));
        }
        let (summary, got) = eagle3(folder.path(), &Session::whole());
        assert_eq!(figures(&summary), figures(&expected), "{stop_at}");
        assert_eq!(got, weights);
        assert_eq!(weights_at(folder.path(), 10), weights_at(whole.path(), 10));
    }
}

/// An error behind which no state is saved.
fn ended(step: usize) -> Error {
    Error::Diverged {
        step,
        what: "a validation".into(),
        samples: Vec::new(),
    }
}

#[test]
fn a_validation_that_fails_takes_no_step_with_it() {
    // Steps 4 and 8 are validated and saved, and so is the last.
    let session = || Session::with(|train| train.save_every = 4);
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &session());
    for fails_at in [4, 8, 10] {
        let folder = tempfile::tempdir().unwrap();
        let failing = Session {
            in_validation: Box::new(move |step| {
                if step == fails_at {
                    Err(ended(step))
                } else {
                    Ok(())
                }
            }),
            ..session()
        };
        try_eagle3(folder.path(), &failing).unwrap_err();
        assert_eq!(steps(folder.path()).last(), Some(&(fails_at as u64)));
        // It is what the run goes on with.
        try_eagle3(folder.path(), &failing).unwrap_err();
        assert_eq!(steps(folder.path()).last(), Some(&(fails_at as u64)));
        let (summary, got) = eagle3(folder.path(), &session());
        assert_eq!(figures(&summary), figures(&expected), "{fails_at}");
        assert_eq!(got, weights);
        assert_eq!(logged(folder.path()), logged(whole.path()), "{fails_at}");
    }
}

#[test]
fn what_a_validation_finds_is_saved_without_the_weights_being_written_again() {
    // Step 10 is saved, validated, and saved with what was found.
    let state = Path::new("step-00000010");
    let long_ago = SystemTime::UNIX_EPOCH;
    let session = |folder: &Path, interrupted: bool| {
        let weights = folder.join(state).join("weights.safetensors");
        let in_validation = move |step: usize| {
            if step == 10 {
                let file = File::options().write(true).open(&weights).unwrap();
                file.set_modified(long_ago).unwrap();
            }
            match step {
                10 if interrupted => Err(Error::Interrupted),
                _ => Ok(()),
            }
        };
        Session {
            in_validation: Box::new(in_validation),
            ..Session::whole()
        }
    };
    for sessions in [&[false][..], &[true, true, false]] {
        let folder = tempfile::tempdir().unwrap();
        let saved = folder.path().join(state);
        for &interrupted in sessions {
            eagle3(folder.path(), &session(folder.path(), interrupted));
            let weights = saved.join("weights.safetensors").metadata().unwrap();
            assert_eq!(weights.modified().unwrap(), long_ago);
            let said = state::load(&saved).unwrap().state;
            assert_eq!(said["unvalidated"], interrupted);
            assert_eq!(said["best"][0], if interrupted { 8 } else { 10 });
        }
    }
}

#[test]
fn a_validation_of_which_nothing_could_be_saved_is_logged_once() {
    let session = |in_validation: Box<dyn Fn(usize) -> Result<(), Error>>| Session {
        in_validation,
        ..Session::with(|train| train.save_every = 4)
    };
    let whole = tempfile::tempdir().unwrap();
    eagle3(whole.path(), &session(Box::new(|_| Ok(()))));
    let folder = tempfile::tempdir().unwrap();
    let state = folder.path().join("step-00000008/state.json");
    // What it finds is logged, and cannot be written where a folder is in the way.
    let in_the_way = atomic::partial_path(&state);
    let blocked = in_the_way.clone();
    let failing = session(Box::new(move |step| {
        if step == 8 {
            std::fs::create_dir(&blocked).unwrap();
        }
        Ok(())
    }));
    let error = try_eagle3(folder.path(), &failing).unwrap_err().to_string();
    assert!(error.contains("state.json"), "{error}");
    let lines = logged(folder.path());
    let last = lines.last().unwrap();
    assert!(
        last["step"] == 8 && last["validation/loss"].is_f64(),
        "{last}"
    );
    std::fs::remove_dir(&in_the_way).unwrap();
    eagle3(folder.path(), &session(Box::new(|_| Ok(()))));
    assert_eq!(logged(folder.path()), logged(whole.path()));
}

#[test]
fn texts_of_its_own_change_what_is_learnt() {
    let weights = |fraction| {
        let folder = tempfile::tempdir().unwrap();
        on_policy(fraction, folder.path(), &Session::whole()).1
    };
    let (none, half, all) = (weights(0.0), weights(0.5), weights(1.0));
    assert!(none != half && half != all);
}

#[test]
fn noise_changes_what_is_learnt() {
    let weights = |noise| {
        let folder = tempfile::tempdir().unwrap();
        noisy(noise, folder.path(), &Session::whole()).1
    };
    let silent = Noise {
        std: 0.0,
        ..Noise::default()
    };
    assert_ne!(weights(silent), weights(Noise::default()));
}

#[test]
fn the_state_of_another_run_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    eagle3(folder.path(), &Session::until(3));
    let other = Session {
        identity: "other",
        ..Session::whole()
    };
    let error = try_eagle3(folder.path(), &other).unwrap_err();
    assert!(matches!(error, Error::OtherTraining { .. }), "{error}");
    let told = "is the state of another training: `identity`: expected `other`, found `test`";
    assert!(error.to_string().contains(told), "{error}");
    let shorter = Session::with(|train| train.steps = 2);
    let error = try_eagle3(folder.path(), &shorter).unwrap_err().to_string();
    assert!(error.contains("of at most 2, found step 3"), "{error}");
}

#[test]
fn a_damaged_state_is_refused_with_the_step_from_which_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let (_, weights) = eagle3(folder.path(), &Session::whole());
    let [.., before, last] = &state::list(folder.path()).unwrap()[..] else {
        panic!("expected two states");
    };
    let file = last.path.join("state.json");
    let text = std::fs::read_to_string(&file).unwrap();
    let step = "\"step\": 10";
    assert!(text.matches(step).count() >= 2, "{text}");
    std::fs::write(&file, text.replace(step, "\"step\": 11")).unwrap();
    let error = try_eagle3(folder.path(), &Session::whole())
        .unwrap_err()
        .to_string();
    let advice = format!("goes on from step {}", before.step);
    assert!(
        error.contains("state.json") && error.contains(&advice),
        "{error}"
    );
    std::fs::remove_dir_all(&last.path).unwrap();
    assert_eq!(eagle3(folder.path(), &Session::whole()).1, weights);
}

#[test]
fn with_a_constant_schedule_a_longer_run_begins_as_a_shorter_one() {
    let whole = tempfile::tempdir().unwrap();
    let parts = tempfile::tempdir().unwrap();
    let session = |steps, schedule| {
        Session::with(|train| {
            train.steps = steps;
            train.schedule = schedule;
        })
    };
    let (_, weights) = eagle3(whole.path(), &session(10, Decay::Constant));
    eagle3(parts.path(), &session(6, Decay::Constant));
    let (summary, got) = eagle3(parts.path(), &session(10, Decay::Constant));
    assert_eq!((summary.steps, summary.interrupted), (10, false));
    assert_eq!(got, weights);
    // A schedule that falls to the end has fallen too early.
    let parts = tempfile::tempdir().unwrap();
    eagle3(parts.path(), &session(6, Decay::Cosine));
    let (summary, got) = eagle3(parts.path(), &session(10, Decay::Cosine));
    assert_eq!(summary.steps, 10);
    assert_ne!(got, weights);
}

#[test]
fn a_run_that_is_cut_before_the_fall_of_wsd_goes_on_to_a_later_end_as_if_that_had_been_its_own() {
    let [whole, cut, fallen] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let session = |steps| {
        Session::with(|train| {
            train.steps = steps;
            train.schedule = Decay::Wsd;
            train.decay_ratio = Some(0.5);
            train.decay_shape = Some(DecayShape::MinusSqrt);
        })
    };
    let (_, weights) = eagle3(whole.path(), &session(10));
    let before = Session {
        stop_after: 4,
        ..session(8)
    };
    eagle3(cut.path(), &before);
    assert_eq!(eagle3(cut.path(), &session(10)).1, weights);
    eagle3(fallen.path(), &session(8));
    assert_ne!(eagle3(fallen.path(), &session(10)).1, weights);
}

/// One whose validations find nothing better behind step 2 but at step 8, and that waits for so many of them.
pub fn waiting(patience: usize) -> Session {
    Session {
        loss: |step| match step {
            2 => 1.0,
            8 => 0.5,
            _ => 2.0,
        },
        ..Session::with(|train| {
            train.log_every = 3;
            train.validate_every = 2;
            train.patience = Some(patience);
        })
    }
}

#[test]
fn a_run_that_its_validations_end_goes_on_only_where_it_waits_for_more_of_them() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &waiting(3));
    assert_eq!((expected.steps, expected.out_of_patience), (10, None));
    assert_eq!(expected.best.as_ref().unwrap().0, 8);
    // Step 6 is saved and logged in any case, step 4 is neither.
    for (patience, end) in [(1, 4), (2, 6)] {
        let folder = tempfile::tempdir().unwrap();
        let (summary, ended) = eagle3(folder.path(), &waiting(patience));
        let found = (summary.steps, summary.interrupted, summary.out_of_patience);
        assert_eq!(found, (end, false, Some(patience)));
        assert_eq!(summary.best.as_ref().unwrap().0, 2);
        let saved = steps(folder.path());
        assert!(
            saved.contains(&2) && saved.contains(&(end as u64)),
            "{saved:?}"
        );
        let lines = logged(folder.path());
        let last = lines.last().unwrap();
        let found = (&last["step"], &last["validation/without_better"]);
        assert_eq!(found, (&end.into(), &(patience as f64).into()));
        // Nothing is left to do.
        let (again, got) = eagle3(folder.path(), &waiting(patience));
        assert_eq!(figures(&again), figures(&summary));
        assert_eq!((got, again.out_of_patience), (ended, Some(patience)));
        assert_eq!(logged(folder.path()), lines);

        let (summary, got) = eagle3(folder.path(), &waiting(3));
        assert_eq!(figures(&summary), figures(&expected));
        assert_eq!((got == weights, summary.out_of_patience), (true, None));
        assert_eq!(logged(folder.path()), logged(whole.path()));
    }
}

#[test]
fn a_run_that_its_validations_end_waits_for_no_further_batch() {
    let folder = tempfile::tempdir().unwrap();
    let session = Session {
        // Those of four steps.
        batches_there: 8,
        ..waiting(1)
    };
    let (summary, _) = eagle3(folder.path(), &session);
    assert_eq!((summary.steps, summary.out_of_patience), (4, Some(1)));
}

#[test]
fn to_another_end_a_run_waits_anew() {
    let folder = tempfile::tempdir().unwrap();
    let mut session = waiting(1);
    for (steps, end) in [(10, 4), (12, 6), (12, 6), (7, 7)] {
        session.settings.steps = steps;
        let (summary, _) = eagle3(folder.path(), &session);
        let waited = (end < steps).then_some(1);
        assert_eq!((summary.steps, summary.out_of_patience), (end, waited));
    }
}

#[test]
fn keys_without_an_effect_on_the_weights_change_no_bit_of_them() {
    type Change = fn(&mut TrainConfig);
    let trained = |change: Change| {
        let folder = tempfile::tempdir().unwrap();
        eagle3(folder.path(), &Session::with(change)).1
    };
    let weights = trained(|_| ());
    let changes: [Change; 5] = [
        |train| train.log_every = 3,
        |train| train.save_every = 5,
        |train| train.keep = 1,
        |train| train.explosion = 2.0,
        |train| train.gradient_checkpointing = true,
    ];
    for (number, change) in changes.into_iter().enumerate() {
        assert_eq!(trained(change), weights, "change {number}");
        let mut settings = TrainConfig::default();
        change(&mut settings);
        assert_eq!(settings.identity(), TrainConfig::default().identity());
    }
}

#[test]
fn states_that_are_not_kept_and_leftovers_are_gone_when_a_run_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    eagle3(folder.path(), &Session::with(|train| train.keep = 9));
    assert!(steps(folder.path()).len() > 3);
    std::fs::create_dir(path("step-00000011.spectrain-partial")).unwrap();
    // Killed between the two renames of a replacement.
    std::fs::rename(path("step-00000010"), path("step-00000010.spectrain-old")).unwrap();
    let (summary, _) = eagle3(folder.path(), &Session::with(|train| train.keep = 1));
    assert_eq!(summary.steps, 10);
    assert_eq!(steps(folder.path()), [10]);
    assert!(!path("step-00000011.spectrain-partial").exists());
    assert!(!path("step-00000010.spectrain-old").exists());
}

#[test]
fn a_folder_that_vanishes_is_an_error_from_which_the_run_goes_on() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &Session::whole());
    let root = tempfile::tempdir().unwrap();
    let (folder, away) = (root.path().join("train"), root.path().join("away"));
    for blocked in [false, true] {
        let (from, to) = (folder.clone(), away.clone());
        let vanishing = Session {
            in_validation: Box::new(move |step| {
                if step == 8 {
                    std::fs::rename(&from, &to).unwrap();
                }
                if step == 8 && blocked {
                    std::fs::write(&from, "in the way").unwrap();
                }
                Ok(())
            }),
            ..Session::whole()
        };
        let error = try_eagle3(&folder, &vanishing).unwrap_err().to_string();
        assert!(error.contains("not there any more"), "{error}");
        if blocked {
            std::fs::remove_file(&folder).unwrap();
        }
        std::fs::rename(&away, &folder).unwrap();
        assert!(steps(&folder).last().is_some_and(|&step| step < 8));
    }
    let (summary, got) = eagle3(&folder, &Session::whole());
    assert_eq!(figures(&summary), figures(&expected));
    assert_eq!(got, weights);
}

#[test]
fn training_goes_on_where_no_events_can_be_written() {
    let whole = tempfile::tempdir().unwrap();
    let (expected, weights) = eagle3(whole.path(), &Session::whole());
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("events"), "in the way").unwrap();
    let (summary, got) = eagle3(folder.path(), &Session::whole());
    assert_eq!(figures(&summary), figures(&expected));
    assert_eq!(got, weights);
}

/// The lines of a training's metrics without what the clock says.
fn logged(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("events/metrics.jsonl")).unwrap();
    let line = |line: &str| {
        let mut line: Value = serde_json::from_str(line).unwrap();
        assert!(line["time"].as_f64().unwrap() > 1e9);
        let values = line.as_object_mut().unwrap();
        values.retain(|key, _| !["time", "train/tokens_per_second"].contains(&key.as_str()));
        line
    };
    text.lines().map(line).collect()
}

#[test]
fn metrics_have_every_line_once_however_often_the_training_is_cut() {
    let whole = tempfile::tempdir().unwrap();
    eagle3(whole.path(), &Session::whole());
    let expected = logged(whole.path());
    // Five intervals of two steps, and validations after steps 4, 8 and 10.
    let steps: Vec<u64> = (expected.iter())
        .map(|line| line["step"].as_u64().unwrap())
        .collect();
    assert_eq!(steps, [2, 4, 4, 6, 8, 8, 10, 10]);
    assert!(expected[0]["train/loss"].is_f64() && expected[2]["validation/loss"].is_f64());

    let cut = tempfile::tempdir().unwrap();
    eagle3(cut.path(), &Session::until(5));
    // Ends with an error behind the line of step 8, of which no state was saved.
    let failing = Session {
        in_validation: Box::new(|step| match step {
            8 => Err(ended(8)),
            _ => Ok(()),
        }),
        ..Session::whole()
    };
    try_eagle3(cut.path(), &failing).unwrap_err();
    assert_eq!(logged(cut.path()).last().unwrap()["step"], 8);
    eagle3(cut.path(), &Session::whole());
    assert_eq!(logged(cut.path()), expected);
    // Nothing is left to do, and nothing is logged.
    eagle3(cut.path(), &Session::whole());
    assert_eq!(logged(cut.path()), expected);
}

#[test]
fn metrics_have_the_parts_of_a_loss_and_the_weights_that_change() {
    let folder = tempfile::tempdir().unwrap();
    weighed_anew(folder.path(), &Session::with(|train| train.log_every = 1));
    let mut lines = logged(folder.path());
    lines.retain(|line| line["train/loss"].is_f64());
    assert_eq!(lines.len(), 10);
    for (number, line) in lines.iter().enumerate() {
        let of = |tag: &str| line[tag].as_f64().unwrap_or_default();
        let done = ((number as f64 - 2.0) / 6.0).clamp(0.0, 1.0);
        let weights = [("labels", 0.8 - 0.8 * done), ("teacher", 0.2 + 0.8 * done)];
        let mut sum = 0.0;
        for (name, expected) in weights {
            let weight = of(&format!("weight/{name}"));
            assert!((weight - expected).abs() < 1e-12, "{line}");
            sum += weight * of(&format!("loss/{name}"));
        }
        assert!((of("train/loss") - sum).abs() < 1e-6 * sum, "{line}");
        // What weighs nothing is not computed.
        assert_eq!(line["loss/labels"].is_f64(), number < 8, "{line}");
    }
    // A loss of one part is all that there is to tell.
    let folder = tempfile::tempdir().unwrap();
    dropped(folder.path(), &Session::whole());
    for line in logged(folder.path()) {
        let tags = line.as_object().unwrap().keys();
        let more = |tag: &&String| tag.starts_with("loss/") || tag.starts_with("weight/");
        assert_eq!(tags.filter(more).count(), 0, "{line}");
    }
}

/// The lines of training steps that these sessions have left.
fn of_steps(sessions: &[Session]) -> Vec<Value> {
    let folder = tempfile::tempdir().unwrap();
    for session in sessions {
        weighed_anew(folder.path(), session);
    }
    let mut lines = logged(folder.path());
    lines.retain(|line| line["train/loss"].is_f64());
    lines
}

/// Fails unless a log every so many steps has the figures of these, of which `each` has a line of its own: the means of losses, of
/// their parts and of norms, and the last step's of all else.
fn tell_of_their_steps(lines: &[Value], each: &[Value], log_every: usize) {
    let mut before = 0;
    for line in lines {
        let step = line["step"].as_u64().unwrap() as usize;
        assert_eq!(step, (before + log_every).min(each.len()), "{lines:?}");
        let own = &each[before..step];
        let last = &own[own.len() - 1..];
        let tags = |lines: &[Value]| -> BTreeSet<String> {
            let of = lines.iter().map(|line| line.as_object().unwrap());
            of.flat_map(|values| values.keys().cloned()).collect()
        };
        let mut expected = tags(own);
        expected.retain(|tag| tag.starts_with("loss/"));
        expected.extend(tags(last));
        assert_eq!(tags(std::slice::from_ref(line)), expected, "step {step}");
        for (tag, found) in line.as_object().unwrap() {
            let is_mean = tag.starts_with("loss/")
                || ["train/loss", "train/gradient_norm"].contains(&tag.as_str());
            let of = if is_mean { own } else { last };
            let of = of.iter().filter_map(|step| step[tag.as_str()].as_f64());
            let of: Vec<f64> = of.collect();
            let mean = of.iter().sum::<f64>() / of.len() as f64;
            let apart = (found.as_f64().unwrap() - mean).abs();
            assert!(apart <= 1e-6 * mean.abs(), "step {step} {tag}: {apart}");
        }
        before = step;
    }
    assert_eq!(before, each.len());
}

/// They are read where a line, a validation, a state or a stop is due, and the state holds those of a line to come.
#[test]
fn figures_are_those_of_their_steps_whenever_these_are_read() {
    let every = |log_every, validate_every, save_every| {
        Session::with(|train| {
            train.log_every = log_every;
            train.validate_every = validate_every;
            train.save_every = save_every;
        })
    };
    let each = of_steps(&[every(1, 4, 3)]);
    assert_eq!(each.len(), 10);
    for (log_every, validate_every, save_every) in [(10, 10, 10), (3, 4, 5), (7, 2, 3)] {
        let whole = || every(log_every, validate_every, save_every);
        tell_of_their_steps(&of_steps(&[whole()]), &each, log_every);
        // A signal comes within an interval.
        let stopped = Session {
            stop_after: log_every - 1,
            ..whole()
        };
        tell_of_their_steps(&of_steps(&[stopped, whole()]), &each, log_every);
    }
    // Validations end it behind step 6, of which there is no line yet, and then wait for more.
    let waits = |patience| {
        let mut session = waiting(patience);
        session.settings.log_every = 4;
        session
    };
    let ended = of_steps(&[waits(2)]);
    assert_eq!(ended.len(), 1);
    tell_of_their_steps(&of_steps(&[waits(2), waits(3)]), &each, 4);
}

#[test]
fn figures_are_those_of_their_steps_where_too_many_wait_to_be_read() {
    // No more than 128 batches wait, those of eight steps.
    let session = |log_every| {
        Session::with(|train| {
            train.steps = 9;
            train.gradient_accumulation = 16;
            train.log_every = log_every;
            train.validate_every = 9;
            train.save_every = 9;
        })
    };
    let each = of_steps(&[session(1)]);
    assert_eq!(each.len(), 9);
    tell_of_their_steps(&of_steps(&[session(9)]), &each, 9);
}

#[test]
fn a_training_may_end_where_it_was_interrupted_and_its_last_weights_are_validated() {
    let folder = tempfile::tempdir().unwrap();
    // Within its warm-up, too.
    let cut = Session {
        stop_after: 5,
        ..Session::with(|train| train.warmup_steps = 8)
    };
    let (cut, weights) = eagle3(folder.path(), &cut);
    assert_eq!((cut.steps, cut.interrupted), (5, true));
    assert_eq!(cut.best.unwrap().0, 4);
    let ends = Session::with(|train| {
        train.warmup_steps = 8;
        train.steps = 5;
    });
    let (summary, got) = eagle3(folder.path(), &ends);
    assert_eq!((summary.steps, summary.interrupted), (5, false));
    assert_eq!(got, weights);
    assert_eq!(summary.best.unwrap().0, 5);
    let lines = logged(folder.path());
    let last = lines.last().unwrap();
    assert!(
        last["step"] == 5 && last["validation/loss"].is_f64(),
        "{last}"
    );
    // It is, once.
    eagle3(folder.path(), &ends);
    assert_eq!(logged(folder.path()), lines);
}
