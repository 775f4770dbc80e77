//! Rows that are judged on devices of CubeCL, in three passes over the vocabulary; the likeliest tokens of `top_k` are found before.
#![expect(clippy::too_many_arguments, reason = "back ends take no structures")]
use burn::backend::cubecl::dtype_to_elem_type;
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::{FloatTensor, IntTensor};
use burn::backend::{Backend, Dispatch, backend_extension};
use burn::prelude::*;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::into_contiguous;
use burn_cubecl::tensor::CubeTensor;
use spectrain_models::cube::shares::{Rows, address_of, empty, to_write};
use spectrain_models::reductions::kth_largest;

use self::kernels::{
    BlendFactorsLaunch, judge_blend_kernel, judge_labels_kernel, judge_target_kernel,
};
use crate::arithmetic::operations::{JudgedChunk, RowJudge};
use crate::divergence::kernel::{Blend, Kernel, Towards};
use crate::divergence::{Distance, LEAST_ALPHA, LEAST_DEVIATION};
use crate::judge::{Judge, Statistics};
use crate::row::{JudgedRow, distinct};
use crate::teacher::indices;

mod kernels;

/// What devices of CubeCL judge by themselves.
#[backend_extension(Cube, Fusion: cfg(feature = "fusion"))]
trait Judging: Backend {
    /// The distance to the target, as `kernel` says, of each row: the gradient in its logits, times its weight, and what was found.
    ///
    /// # Shapes
    /// - logits, gradient: `[rows, vocab]`, the drafter's, in any type
    /// - teacher: `[positions, vocab]`, f32, the target's logits
    /// - places: `[rows]`: of each row among the positions
    /// - partitions: `[positions, 1]`, f32: `log Σ exp` over all tokens of the target, where the vocabulary `is_partial`; else
    ///   nobody reads it
    /// - least: `[positions, 1]`, f32: the least of the target's logits that count, where the kernel is towards the largest; else
    ///   nobody reads it
    /// - weights: `[rows]`, f32
    /// - found: `[rows, 3]`: distance, acceptance rate, and whether the most likely tokens agree
    #[fusion(meta = |logits, _, _, _, _, _, _, _| with_findings(logits))]
    fn judge_target(
        logits: FloatTensor<Self>,
        teacher: FloatTensor<Self>,
        places: IntTensor<Self>,
        partitions: FloatTensor<Self>,
        least: FloatTensor<Self>,
        weights: FloatTensor<Self>,
        is_partial: bool,
        kernel: Kernel,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// `-log q` of a label at each row, likewise.
    ///
    /// # Shapes
    /// - logits, gradient: `[rows, vocab]`, in any type
    /// - labels: `[rows]`
    /// - weights: `[rows]`, f32
    /// - found: `[rows, 3]`: distance, `q` of the label, and whether it is the most likely token
    #[fusion(meta = |logits, _, _| with_findings(logits))]
    fn judge_labels(
        logits: FloatTensor<Self>,
        labels: IntTensor<Self>,
        weights: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// What judging gives, before it is given.
#[cfg(feature = "fusion")]
fn with_findings(logits: &TensorSpec) -> (TensorSpec, TensorSpec) {
    let mut found = logits.clone();
    found.shape = burn::prelude::Shape::new([logits.shape[0], 3]);
    found.dtype = DType::F32;
    (logits.clone(), found)
}

/// Judges by kernels.
pub(super) struct JudgedOnCube<'a> {
    pub(super) judge: Judge<'a>,
    pub(super) statistics: Statistics,
}

impl RowJudge for JudgedOnCube<'_> {
    fn takes_narrow(&self) -> bool {
        true
    }

    fn judge(&mut self, logits: Tensor<2>, rows: &[JudgedRow]) -> JudgedChunk {
        let device = logits.device();
        let weights = column(rows.iter().map(|row| row.weight), &device).into_dispatch();
        let logits = logits.into_dispatch();
        let (gradient, found) = match self.judge {
            Judge::Labels(labels) => {
                let labels: Vec<usize> = rows.iter().map(|r| labels[r.teacher] as usize).collect();
                let labels = indices(&labels, &device).into_dispatch();
                Dispatch::judge_labels(logits, labels, weights)
            }
            Judge::Target {
                teacher,
                divergence,
            } => {
                let (positions, places) = distinct(rows);
                let (target, partitions) = teacher.logits_at(&positions);
                let is_partial = partitions.is_some();
                let partitions = partitions.unwrap_or_else(|| Tensor::zeros([1, 1], &device));
                let kernel = divergence.kernel();
                let least = least_of(&target, kernel);
                Dispatch::judge_target(
                    logits,
                    target.into_dispatch(),
                    indices(&places, &device).into_dispatch(),
                    partitions.into_dispatch(),
                    least.into_dispatch(),
                    weights,
                    is_partial,
                    kernel,
                )
            }
        };
        let found = Tensor::<2>::from_dispatch(found);
        JudgedChunk {
            distance: Distance {
                value: found.clone().narrow(1, 0, 1),
                gradient: Tensor::from_dispatch(gradient),
            },
            statistics: (self.statistics == Statistics::All)
                .then(|| self.measured(found, rows, &device)),
        }
    }
}

impl JudgedOnCube<'_> {
    /// Acceptance rate and agreement, `[rows, 2]`, of what was `found`. A drafter cannot agree on a token that it cannot propose.
    fn measured(&self, found: Tensor<2>, rows: &[JudgedRow], device: &Device) -> Tensor<2> {
        let agree = found.clone().narrow(1, 2, 1);
        let agree = match self.judge {
            Judge::Labels(_) => agree,
            Judge::Target { teacher, .. } => {
                let can = |row: &JudgedRow| f32::from(u8::from(teacher.can_be_met(row.teacher)));
                agree * column(rows.iter().map(can), device).unsqueeze_dim(1)
            }
        };
        Tensor::cat(vec![found.narrow(1, 1, 1), agree], 1)
    }
}

fn column(values: impl Iterator<Item = f32>, device: &Device) -> Tensor<1> {
    Tensor::from_floats(values.collect::<Vec<_>>().as_slice(), device)
}

/// What [`Judging::judge_target`] takes for `least`.
fn least_of(teacher: &Tensor<2>, kernel: Kernel) -> Tensor<2> {
    match kernel {
        Kernel::Towards {
            distribution: Towards::Largest(count),
            ..
        } => kth_largest(teacher.clone(), count.min(teacher.dims()[1])),
        _ => Tensor::zeros([1, 1], &teacher.device()),
    }
}

fn factors_of(blend: &Blend) -> BlendFactorsLaunch {
    BlendFactorsLaunch::new(
        blend.kl,
        blend.reverse_kl,
        blend.jsd,
        blend.beta,
        blend.ce,
        blend.tv,
        blend.tv_plus_plus,
        blend.nla,
        blend.lk_hybrid,
        blend.decay,
        LEAST_ALPHA as f32,
        LEAST_DEVIATION as f32,
    )
}

impl Judging for CubeBackend {
    fn judge_target(
        logits: CubeTensor,
        teacher: CubeTensor,
        places: CubeTensor,
        partitions: CubeTensor,
        least: CubeTensor,
        weights: CubeTensor,
        is_partial: bool,
        kernel: Kernel,
    ) -> (CubeTensor, CubeTensor) {
        // The logits make room for their gradient.
        let logits = to_write(logits);
        let [teacher, places, partitions, least, weights] =
            [teacher, places, partitions, least, weights].map(into_contiguous);
        let rows = Rows::of(&logits, &[teacher.dtype]);
        let found = empty(&logits, [rows.count, 3], DType::F32);
        let address = address_of(&[&logits, &teacher]);
        let dtypes = [logits.dtype, places.dtype].map(dtype_to_elem_type);
        macro_rules! launch {
            ($kernel:ident, $($own:expr),+) => {
                $kernel::launch(
                    &logits.client,
                    rows.cubes(),
                    rows.cube,
                    address,
                    rows.vector,
                    logits.clone().into_buffer_arg(),
                    teacher.into_buffer_arg(),
                    places.into_buffer_arg(),
                    partitions.into_buffer_arg(),
                    weights.into_buffer_arg(),
                    found.clone().into_buffer_arg(),
                    rows.count as u32,
                    rows.vectors as u32,
                    $($own,)+
                    rows.cube.num_elems() as usize,
                    dtypes,
                )
            };
        }
        match kernel {
            Kernel::Towards {
                distribution,
                takes_entropy_off,
            } => {
                let (sharpness, to_best, to_largest) = match distribution {
                    Towards::Tempered(temperature) => (temperature.recip() as f32, false, false),
                    Towards::Best => (1.0, true, false),
                    Towards::Largest(_) => (1.0, false, true),
                };
                launch!(
                    judge_target_kernel,
                    least.into_buffer_arg(),
                    sharpness,
                    is_partial,
                    to_best,
                    to_largest,
                    takes_entropy_off
                );
            }
            Kernel::Blend(blend) => launch!(
                judge_blend_kernel,
                factors_of(&blend),
                is_partial,
                blend.takes_logarithms()
            ),
        }
        (logits, found)
    }

    fn judge_labels(
        logits: CubeTensor,
        labels: CubeTensor,
        weights: CubeTensor,
    ) -> (CubeTensor, CubeTensor) {
        let logits = to_write(logits);
        let [labels, weights] = [labels, weights].map(into_contiguous);
        let rows = Rows::of(&logits, &[]);
        let found = empty(&logits, [rows.count, 3], DType::F32);
        let dtypes = [logits.dtype, labels.dtype].map(dtype_to_elem_type);
        judge_labels_kernel::launch(
            &logits.client,
            rows.cubes(),
            rows.cube,
            address_of(&[&logits]),
            rows.vector,
            logits.clone().into_buffer_arg(),
            labels.into_buffer_arg(),
            weights.into_buffer_arg(),
            found.clone().into_buffer_arg(),
            rows.count as u32,
            rows.vectors as u32,
            rows.cube.num_elems() as usize,
            dtypes,
        );
        (logits, found)
    }
}
