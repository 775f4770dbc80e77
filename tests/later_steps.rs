//! Steps behind the first run only where they are judged: what is learnt is what it would be if they ran everywhere.
use std::collections::BTreeMap;
use std::sync::Arc;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use spectrain_data::Sample;
use spectrain_data::packing::PackedBatch;
use spectrain_data::tokens::{TokenShards, TokenWriter};
use spectrain_models::deepseek_mtp::{DeepseekMtp, DeepseekMtpConfig};
use spectrain_models::device::test_device;
use spectrain_models::eagle1::Eagle1;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::mtp::Mtp;
use spectrain_models::qwen_mtp::QwenMtp;
use spectrain_models::unrolls::Unrolls;
use spectrain_train::{
    BatchSource as _, FeatureRegression, FeatureRegressionConfig, MaskAlign, Objective, Samples,
    Statistics, Train as _, TrainConfig, Trainee, TrainingTimeTest, TrainingTimeTestConfig,
};

use crate::golden::assert_close;
use crate::tiny;

/// Two rows of some texts each.
const ROWS: [&[usize]; 2] = [&[150, 101, 60], &[223, 80]];
const STEPS: usize = 4;

/// Which tokens are judged: in each row a share of those that a step can predict.
#[derive(Clone, Copy)]
enum Judged {
    All,
    First,
    Second,
}

impl Judged {
    /// Whether the token at `at` of `length` is. In the first part are three quarters of the first row's texts and one of the second
    /// row's, so that rows have different numbers of them. Tokens that only some steps predict are in neither part.
    fn has(self, row: usize, [at, length]: [usize; 2]) -> bool {
        if at < STEPS || at + 2 > length {
            return false;
        }
        let is_first = at * 4 < length * [3, 1][row];
        match self {
            Self::All => true,
            Self::First => is_first,
            Self::Second => !is_first,
        }
    }
}

/// Gradients by name from batches with the same rows and these tokens judged.
fn gradients<D: Unrolls + 'static, O: Objective<D> + 'static>(
    config: &D::Config,
    objective: &O::Config,
    judged: &[Judged],
) -> BTreeMap<String, Vec<f32>> {
    let device = test_device();
    let target = tiny::target(&device);
    let capture = D::capture(config, &target.parts().spec).unwrap();
    let drafter: D = tiny::fresh(config, &target, &device.autodiff());
    let objective = O::new(objective).unwrap();
    let mut trainee = Trainee::drafter(drafter, objective, TrainConfig::default().optimizer());
    for &judged in judged {
        let mut random = StdRng::seed_from_u64(5);
        let folder = tempfile::tempdir().unwrap();
        let mut writer = TokenWriter::create(folder.path(), 1 << 20).unwrap();
        let mut rows = vec![Vec::new(); ROWS.len()];
        let texts = ROWS.iter().enumerate();
        let texts =
            texts.flat_map(|(row, lengths)| lengths.iter().map(move |&length| (row, length)));
        for (number, (row, length)) in texts.enumerate() {
            let tokens = (0..length).map(|_| random.random_range(0..tiny::VOCAB as u32));
            let sample = Sample {
                tokens: tokens.collect(),
                loss_mask: (0..length)
                    .map(|at| judged.has(row, [at, length]))
                    .collect(),
            };
            writer.push(&sample).unwrap();
            rows[row].push(number);
        }
        writer.finish(Default::default()).unwrap();
        let shards = Arc::new(TokenShards::open(folder.path()).unwrap());
        let mut source = tiny::live(Samples::new(shards, 320, 2, 5), &target, capture.clone());
        let batch = source.batch(PackedBatch { rows }).unwrap();
        trainee.accumulate_as_measured(&batch, Statistics::Loss);
    }
    trainee.gradients().to_host()
}

/// Compares the gradients of everything that is judged with those of two batches that judge a part each, where later steps leave
/// places out.
fn parts_come_to_the_whole<D: Unrolls + 'static, O: Objective<D> + 'static>(
    config: &D::Config,
    objective: &O::Config,
) {
    let whole = gradients::<D, O>(config, objective, &[Judged::All]);
    let parts = gradients::<D, O>(config, objective, &[Judged::First, Judged::Second]);
    assert!(whole.len() > 5 && whole.keys().eq(parts.keys()));
    for (name, expected) in &whole {
        let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        assert!(largest > 0.0, "{name} is not trained");
        assert_close(name, &parts[name], expected, 1e-5);
    }
    // Each part has gradients of its own.
    let first = gradients::<D, O>(config, objective, &[Judged::First]);
    let apart = |(name, one): (&String, &Vec<f32>)| {
        let pairs = one.iter().zip(&whole[name]);
        pairs.fold(0.0f32, |most, (one, other)| most.max((one - other).abs())) > 1e-4
    };
    assert!(first.iter().any(apart));
}

fn unrolled<D: Unrolls + 'static>(config: &D::Config) {
    for recompute in [true, false] {
        let objective = TrainingTimeTestConfig {
            draft_steps: STEPS,
            mask_align: MaskAlign::Feature,
            recompute,
            ..Default::default()
        };
        parts_come_to_the_whole::<D, TrainingTimeTest>(config, &objective);
    }
}

#[test]
fn eagle3_learns_the_same_where_later_steps_leave_places_out() {
    unrolled::<Eagle3>(&Eagle3Config::default());
    unrolled::<Eagle3>(&Eagle3Config {
        layers: 3,
        window: 37,
        norm_output: true,
        head_norm: true,
        ..Default::default()
    });
}

#[test]
fn eagle1_learns_the_same_where_later_passes_leave_places_out() {
    unrolled::<Eagle1>(&Default::default());
    for detach in [true, false] {
        let objective = FeatureRegressionConfig {
            passes: STEPS,
            mask_align: MaskAlign::Feature,
            top_k_weight: 0.5.into(),
            detach,
            ..Default::default()
        };
        parts_come_to_the_whole::<Eagle1, FeatureRegression>(&Default::default(), &objective);
    }
}

#[test]
fn layers_of_multi_token_prediction_learn_the_same_where_later_steps_leave_places_out() {
    unrolled::<Mtp>(&Default::default());
    unrolled::<QwenMtp>(&Default::default());
    unrolled::<DeepseekMtp>(&DeepseekMtpConfig::default());
}
