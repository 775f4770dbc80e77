//! A device without memory ends a training with an error, wherever that is noticed.
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use spectrain_data::packing::PackedBatch;
use spectrain_models::device::test_device;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::{Drafter as _, Target as _};
use spectrain_train::{
    Batch, BatchSource, Defaults, Error, Fit, LiveFeatures, Objective, Order, Rows, TrainConfig,
    Trainee, TrainingTimeTest, Validation, fit,
};

use crate::sessions::eagle3_settings;
use crate::tiny;

/// As CubeCL says it.
fn no_memory() -> ! {
    panic!("cannot read a tensor from its device: out of device memory allocating 7 bytes")
}

/// What a training has done to its source.
#[derive(Default)]
struct Seen {
    /// Batches that it was asked for in vain.
    failed: AtomicUsize,
    /// Whether nobody wants more of them, once it was told how that will be said.
    is_over: OnceLock<Arc<AtomicBool>>,
}

/// A source that has memory for so many batches.
struct Full {
    source: LiveFeatures,
    left: usize,
    seen: Arc<Seen>,
}

impl BatchSource for Full {
    fn begin(&mut self, _: Order, _: usize, is_over: Arc<AtomicBool>) -> Result<(), Error> {
        self.seen.is_over.get_or_init(|| is_over);
        Ok(())
    }

    fn rows(&self, packed: PackedBatch) -> Rows {
        self.source.rows(packed)
    }

    fn batch(&mut self, packed: PackedBatch) -> Result<Batch, Error> {
        match self.left.checked_sub(1) {
            None => {
                self.seen.failed.fetch_add(1, Ordering::Relaxed);
                no_memory()
            }
            Some(left) => self.left = left,
        }
        self.source.batch(packed)
    }
}

/// Trains six steps of two batches each; the source has memory for so many batches, and `in_validation` is called with the step of each
/// validation, behind the fourth and the last one.
fn trained(batches: usize, in_validation: fn(usize), seen: &Arc<Seen>) -> Result<usize, Error> {
    let device = test_device();
    let (config, objective) = eagle3_settings();
    let target = tiny::target(&device);
    let capture = Eagle3::capture(&config, target.spec()).unwrap();
    let settings = TrainConfig {
        steps: 6,
        batch_tokens: 128,
        gradient_accumulation: 2,
        log_every: 1,
        validate_every: 4,
        ..TrainConfig::default()
    };
    let drafter: Eagle3 = tiny::fresh(&config, &target, &device.clone().autodiff());
    let objective = <TrainingTimeTest as Objective<Eagle3>>::new(&objective).unwrap();
    let mut trainee = Trainee::drafter(drafter, objective, settings.optimizer());
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(9), 2);
    let run = tempfile::tempdir().unwrap();
    let training = Fit {
        config: &settings,
        source: Box::new(Full {
            source: tiny::live(samples.clone(), &target, capture),
            left: batches,
            seen: seen.clone(),
        }),
        samples,
        folder: run.path().to_owned(),
        identity: "tiny".into(),
        defaults: Defaults::default(),
        interrupted: &|| false,
        on_policy: None,
        begins_trained: false,
        validate: &mut |_, step, _, _| {
            in_validation(step);
            Ok(Validation::default())
        },
        memory: &|| None,
        ranks: None,
    };
    fit(&mut trainee, training).map(|summary| summary.steps)
}

/// How many batches there are, what a validation does, and the step that is told.
type Failing = (usize, fn(usize), usize);

#[test]
fn a_device_without_memory_ends_a_training_with_what_to_lower() {
    let seen = Arc::<Seen>::default();
    assert_eq!(trained(usize::MAX, |_| {}, &seen).unwrap(), 6);
    // On the thread that makes batches, in the third step; and where the trained weights are judged.
    let in_last = |step: usize| {
        if step == 6 {
            no_memory()
        }
    };
    let cases: [Failing; 3] = [
        (4, |_| {}, 3),
        (usize::MAX, |_| no_memory(), 5),
        (usize::MAX, in_last, 6),
    ];
    for (batches, in_validation, expected) in cases {
        let error = trained(batches, in_validation, &seen).unwrap_err();
        assert!(
            matches!(error, Error::OutOfMemory { step } if step == expected),
            "{error}"
        );
        let said = error.to_string();
        let start = format!("the device ran out of memory at about step {expected}: lower ");
        assert!(said.starts_with(&start), "{said}");
        assert!(said.contains("`train.batch_tokens`"), "{said}");
    }
}

#[test]
fn a_source_that_has_failed_is_asked_for_nothing_more() {
    let seen = Arc::<Seen>::default();
    trained(4, |_| {}, &seen).unwrap_err();
    assert_eq!(seen.failed.load(Ordering::Relaxed), 1);
}

#[test]
fn a_source_is_told_that_a_training_is_over_which_a_bug_has_ended() {
    let seen = Arc::<Seen>::default();
    let bug = || trained(usize::MAX, |_| panic!("a bug"), &seen);
    assert!(catch_unwind(AssertUnwindSafe(bug)).is_err());
    assert!(seen.is_over.get().unwrap().load(Ordering::Relaxed));
}
