//! Both ways compute the same, the CPU's on the CPU and that of any device on the device of tests, at sizes that are no multiple of a
//! register or of a block.
use burn::prelude::*;
use burn::tensor::DType;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::{bound_of_products, is_cpu, test_device};
use spectrain_models::weights::{host_f32, tensor_from};
use spectrain_models::{Init, RandomWeights, Weights};

use super::arithmetic;
use super::cpu::Cpu;
use super::operations::{AdamWStep, Arithmetic, Gradient, Moments, NamedGradients};
use super::tensors::Tensors;
use crate::divergence::{Divergence, Factors};
use crate::judge::{Judge, Statistics};
use crate::optimizer::norm_of;
use crate::row::JudgedRow;
use crate::teacher::Teacher;

const POSITIONS: usize = 301;
const D_MODEL: usize = 24;
const VOCAB: usize = 517;

/// The same draws in each test, each time. Where a drafter's probability meets the target's to the last bit, the slope of the
/// acceptance rate hangs on how either was rounded, so rows with such a meeting differ; there is none in what this seed draws.
fn draws() -> RandomWeights {
    RandomWeights::new(11)
}

fn random<const D: usize>(draws: &mut RandomWeights, shape: [usize; D]) -> Tensor<D> {
    let drawn = draws.tensor("drawn", &shape, Init::Normal(1.0)).unwrap();
    tensor_from(drawn, &Device::flex())
}

/// The same on the device of tests.
fn there<const D: usize>(x: &Tensor<D>) -> Tensor<D> {
    Tensor::from_data(x.to_data(), (&test_device(), x.dtype()))
}

fn close<const D: usize>(what: &str, one: Tensor<D>, other: Tensor<D>, tolerance: f32) {
    assert_eq!(one.dims(), other.dims(), "{what}");
    let (one, other) = (host_f32(one), host_f32(other));
    for (at, (a, b)) in one.iter().zip(&other).enumerate() {
        let most = tolerance * (1.0 + a.abs());
        assert!((a - b).abs() <= most, "{what}, element {at}: {a} and {b}");
    }
}

/// A gradient times what a clipping multiplies it by.
fn clipped(values: &Tensor<1>, factor: &Option<Tensor<1>>) -> Tensor<1> {
    let (values, factor) = (values.clone(), factor.clone());
    Gradient { values, factor }.whole()
}

fn norm_by(own: &dyn Arithmetic, gradients: &mut NamedGradients) -> Tensor<1> {
    let sum =
        |(name, gradient): (&String, &mut Tensor<1>)| (name.clone(), own.square_sum(gradient));
    norm_of(gradients.iter_mut().map(sum).collect()).unwrap()
}

#[test]
fn norms_and_clipped_gradients_are_the_same() {
    let mut draws = draws();
    let named = |(name, len): (&str, usize)| (name.to_owned(), random(&mut draws, [len]));
    let mut one: NamedGradients = [("a", 100_003), ("b", 1), ("c", 65_536)].map(named).into();
    let moved = |(name, gradient): (&String, &Tensor<1>)| (name.clone(), there(gradient));
    let mut other: NamedGradients = one.iter().map(moved).collect();
    let norm = norm_by(&Cpu, &mut one);
    let norm_there = norm_by(&Tensors, &mut other);
    close("norm", norm.clone(), norm_there.clone(), 1e-5);
    // Above the norm nothing is scaled, below it all is.
    for largest in [1e4, 3.0] {
        let factor = Cpu.clip_factor(norm.clone(), largest);
        let factor_there = Tensors.clip_factor(norm_there.clone(), largest);
        for (name, values) in &mut one {
            *values = clipped(values, &factor);
            close(
                name,
                values.clone(),
                clipped(&other[name], &factor_there),
                1e-5,
            );
        }
    }
    assert!(host_f32(norm_by(&Cpu, &mut one))[0] <= 3.0 + 1e-4);
}

#[test]
fn steps_of_adamw_are_the_same() {
    let mut draws = draws();
    let len = 70_001;
    let zeros = |device: &Device| Moments {
        first: Tensor::zeros([len], device),
        second: Tensor::zeros([len], device),
    };
    let weights: Tensor<1> = random(&mut draws, [len]);
    let other = (there(&weights), zeros(&test_device()));
    // In the device's own way, and in that of any.
    let own = arithmetic(&test_device());
    let mut others: [(&dyn Arithmetic, _); 2] = [(own, other.clone()), (&Tensors, other)];
    let mut one = (weights, zeros(&Device::flex()));
    for updates in 1..=3 {
        let step = AdamWStep {
            beta1: 0.9,
            beta2: 0.95,
            epsilon: 1e-8,
            correct1: 1.0 - 0.9_f64.powi(updates),
            correct2: 1.0 - 0.95_f64.powi(updates),
            rate: 1e-2,
            shrink: 1.0 - 1e-4,
        };
        let gradient: Tensor<1> = random(&mut draws, [len]);
        let of = |values, device: &Device| Gradient {
            values,
            // The first step's is not clipped.
            factor: (updates > 1).then(|| Tensor::from_floats([0.3], device)),
        };
        for (own, other) in &mut others {
            let (weights, moments) = other.clone();
            let there = of(there(&gradient), &test_device());
            *other = own.adamw(weights, moments, there, &step);
        }
        one = Cpu.adamw(one.0, one.1, of(gradient, &Device::flex()), &step);
    }
    for (_, (weights, Moments { first, second })) in others {
        close("weights", one.0.clone(), weights, 1e-5);
        close("first moment", one.1.first.clone(), first, 1e-5);
        close("second moment", one.1.second.clone(), second, 1e-5);
    }
}

#[test]
fn sums_of_products_are_the_same() {
    let mut draws = draws();
    for dtype in [DType::F32, DType::BF16] {
        let mut one = Cpu.product_sum([D_MODEL, VOCAB], dtype, &Device::flex());
        let mut other = Tensors.product_sum([D_MODEL, VOCAB], dtype, &test_device());
        for rows in [POSITIONS, 1] {
            let hidden: Tensor<2> = random(&mut draws, [rows, D_MODEL]);
            let gradient: Tensor<2> = random(&mut draws, [rows, VOCAB]);
            let (hidden, gradient) = (hidden.cast(dtype), gradient.cast(dtype));
            let back = one.add(hidden.clone(), gradient.clone());
            close("gradient", back, gradient.clone(), 0.0);
            other.add(there(&hidden), there(&gradient));
        }
        let sum = one.into_tensor();
        assert_eq!(sum.dtype(), DType::F32);
        close("sum", sum, other.into_tensor(), bound_of_products(1e-4));
    }
}

/// Rows in the order of their teachers' positions, of two steps, with different weights.
fn rows() -> Vec<JudgedRow> {
    let row = |teacher: usize, step: usize| JudgedRow {
        step,
        position: teacher - step,
        teacher,
        weight: 1.0 / (1 + step + teacher % 3) as f32,
    };
    let teachers = (1..POSITIONS).filter(|teacher| teacher % 4 != 1);
    teachers.flat_map(|t| [row(t, 0), row(t, 1)]).collect()
}

/// Judges these rows in all ways, in several chunks, to `bound` of what is allowed where nothing was multiplied.
fn judged_alike(
    what: &str,
    [judge, judge_there]: [Judge; 2],
    (rows, vocab): (&[JudgedRow], usize),
    draws: &mut RandomWeights,
    bound: impl Fn(f32) -> f32,
) {
    let mut positions: Vec<usize> = rows.iter().map(|row| row.teacher).collect();
    positions.dedup();
    let own = arithmetic(&test_device());
    let others: [&dyn Arithmetic; 2] = [&Tensors, own];
    let mut one = Cpu.row_judge(judge, positions.clone(), Statistics::All);
    let mut others =
        others.map(|other| other.row_judge(judge_there, positions.clone(), Statistics::All));
    let mut brief = own.row_judge(judge_there, positions, Statistics::Loss);
    for rows in rows.chunks(130) {
        let logits: Tensor<2> = random(draws, [rows.len(), vocab]);
        if brief.takes_narrow() {
            let rounded = logits.clone().cast(DType::BF16);
            let wide = one.judge(rounded.clone().cast(DType::F32), rows).distance;
            let narrow = brief.judge(there(&rounded), rows).distance;
            close(what, wide.value, narrow.value, bound(1e-4));
            assert_eq!(narrow.gradient.dtype(), DType::BF16, "{what}");
            let pairs = host_f32(wide.gradient)
                .into_iter()
                .zip(host_f32(narrow.gradient));
            for (one, other) in pairs {
                let allowed = one.abs() / 128.0 + bound(1e-5);
                assert!((one - other).abs() <= allowed, "{what}: {one} {other}");
            }
        }
        let one = one.judge(logits.clone(), rows);
        let brief = brief.judge(there(&logits), rows);
        assert!(brief.statistics.is_none(), "{what}");
        for other in &mut others {
            let other = other.judge(there(&logits), rows);
            let statistics = [&one, &other].map(|judged| judged.statistics.clone().unwrap());
            let distances = [one.distance.value.clone(), other.distance.value];
            let gradients = [one.distance.gradient.clone(), other.distance.gradient];
            for ([one, other], tolerance) in
                [(distances, 1e-4), (gradients, 1e-5), (statistics, 1e-5)]
            {
                close(what, one, other, bound(tolerance));
            }
        }
    }
}

#[test]
fn rows_are_judged_alike_by_labels() {
    let labels: Vec<u32> = (0..POSITIONS).map(|at| (at * 7 % VOCAB) as u32).collect();
    judged_alike(
        "labels",
        [Judge::Labels(&labels); 2],
        (&rows(), VOCAB),
        &mut draws(),
        |most| most,
    );
}

/// One of each form and of each factor.
fn divergences() -> [Divergence; 14] {
    [
        Divergence::Kl,
        Divergence::SoftCe,
        Divergence::TemperedKl(0.4),
        Divergence::Ce,
        Divergence::Tv,
        Divergence::TvPlusPlus,
        Divergence::Nla,
        Divergence::LkHybrid,
        Divergence::LkHybridOf(0.8),
        Divergence::Sum(Box::new(Factors {
            kl: 0.7.into(),
            ce: 0.4.into(),
            tv: 0.3.into(),
            nla: 0.2.into(),
            lk_hybrid: 0.6.into(),
            reverse_kl: 0.5.into(),
            jsd: 0.9.into(),
        })),
        Divergence::ReverseKl,
        Divergence::Jsd(0.3),
        Divergence::TopK(10),
        // More than a draft vocabulary has.
        Divergence::TopK(300),
    ]
}

#[test]
fn rows_are_judged_alike_by_the_target() {
    let counts: Vec<u64> = (0..VOCAB as u64).map(|id| id * 31 % VOCAB as u64).collect();
    let some = DraftVocabulary::from_counts(&counts, 211, &[]).unwrap();
    let rows = rows();
    let mut draws = draws();
    for vocabulary in [DraftVocabulary::full(VOCAB), some] {
        let (last, head) = (
            random(&mut draws, [POSITIONS, D_MODEL]),
            random(&mut draws, [D_MODEL, VOCAB]),
        );
        let teachers = [
            Teacher::made_up(there(&last), there(&head), &vocabulary),
            Teacher::made_up(last, head, &vocabulary),
        ];
        let [there, here] = teachers.map(|mut teacher| {
            teacher.find_proposable(0..POSITIONS);
            teacher
        });
        for divergence in &divergences() {
            let judges = [&here, &there].map(|teacher| Judge::Target {
                teacher,
                divergence,
            });
            let what = format!("{divergence:?} over {}", vocabulary.len());
            // Devices that CubeCL imitates wait long at each barrier.
            let rows = match divergence {
                Divergence::Kl => &rows,
                _ if is_cpu(&test_device()) => &rows[..150],
                _ => &rows[..40],
            };
            let rows = (rows, vocabulary.len());
            judged_alike(&what, judges, rows, &mut draws, bound_of_products);
        }
    }
}
