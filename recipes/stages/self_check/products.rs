//! Sampled rows of the product with each matrix of a target, on a device beside the CPU.

use anyhow::Result;
use burn::module::{Module as _, ModuleVisitor, Param};
use burn::prelude::*;
use burn::tensor::{DType, Distribution};
use spectrain_checkpoints::ModelFolder;
use spectrain_models::weights::{host_f32, tensor_from};
use spectrain_models::{Target as _, Transformer, product};

use crate::stages::self_check::compare::{Tolerance, Wrong, largest_apart};

/// Rows that are compared.
const SAMPLED: usize = 24;
/// Elements of a factor or a product, at most; above that there are fewer rows.
const MOST: usize = 1 << 30;

/// How many matrices there are, each multiplied with `rows` rows.
///
/// # Errors
/// A product is another one on the device, or a matrix cannot be read.
pub(super) fn check(
    target: &Transformer,
    folder: &ModelFolder,
    rows: usize,
    tolerance: Tolerance,
) -> Result<usize> {
    let mut found = Matrices::default();
    target.visit(&mut found);
    let matrices = found.matrices;
    let count = matrices.len();
    for (name, weight) in matrices {
        let [d_in, d_out] = weight.dims();
        let rows = rows.min(MOST / d_in.max(d_out)).max(1);
        let own: Tensor<2> = tensor_from(folder.read(&name)?, &Device::flex());
        let own = own.cast(DType::F32);
        let apart = product_apart(weight.cast(target.dtype()), own, rows);
        // Written so that NaN fails.
        let agrees = apart <= tolerance.product;
        if !agrees {
            let what = format!(
                "the product with `{name}` over {rows} rows differs from the CPU's by {:.2} % of its largest element",
                100.0 * apart
            );
            return Err(Wrong(what).into());
        }
    }
    Ok(count)
}

/// How far a product with `weight`, `[d_in, d_out]`, is off that with `own` on the CPU, `[d_out, d_in]`.
fn product_apart(weight: Tensor<2>, own: Tensor<2>, rows: usize) -> f64 {
    let ([d_in, _], device, dtype) = (weight.dims(), weight.device(), weight.dtype());
    let x = Tensor::<2>::random(
        [rows, d_in],
        Distribution::Uniform(-1.0, 1.0),
        (&device, dtype),
    );
    let taken = rows.min(SAMPLED);
    let places: Vec<i64> = (0..taken)
        .map(|at| (at * (rows - 1) / (taken - 1).max(1)) as i64)
        .collect();
    let places = Tensor::<1, Int>::from_ints(places.as_slice(), &device);
    let sampled = host_f32(x.clone().select(0, places.clone()).cast(DType::F32));
    let found = host_f32(product(x, weight).select(0, places).cast(DType::F32));
    let sampled = Tensor::<2>::from_data(TensorData::new(sampled, [taken, d_in]), &Device::flex());
    largest_apart(&found, &host_f32(sampled.matmul(own.transpose())))
}

/// The weights of linear layers under their names in files.
#[derive(Default)]
struct Matrices {
    path: Vec<(String, bool)>,
    matrices: Vec<(String, Tensor<2>)>,
}

impl ModuleVisitor for Matrices {
    fn enter_module(&mut self, name: &str, container: &str) {
        let name = match name {
            // A layer has one of two feed-forward parts, under the same name in files.
            "sparse_mlp" => "mlp",
            _ => name,
        };
        self.path
            .push((name.to_owned(), container == "Struct:Linear"));
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if D != 2 || !self.path.last().is_some_and(|(_, is_linear)| *is_linear) {
            return;
        }
        let [rows, columns] = param.val().dims()[..] else {
            unreachable!("a matrix")
        };
        let names: Vec<&str> = self.path.iter().map(|(name, _)| name.as_str()).collect();
        let name = match names[0] {
            "lm_head" => names.join("."),
            _ => format!("model.{}", names.join(".")),
        };
        let weight = param.val().without_autodiff().reshape([rows, columns]);
        self.matrices.push((name, weight));
    }
}
