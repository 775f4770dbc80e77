use burn::module::Param;
use burn::prelude::*;

use crate::error::Result;
use crate::few_rows::product;
use crate::products::product_with_weight;
use crate::weights::{Init, Scope};

/// `x W (+ b)`. The weight is `[d_in, d_out]` in memory and `[d_out, d_in]` in files.
///
/// The product is taken in the type of the input: f32 master weights of a drafter that computes in bf16 are cast on
/// the way, once more in the backward pass, so that no copy of them is kept, and their gradient comes back in f32.
#[derive(Module, Debug)]
pub struct Linear {
    /// `[d_in, d_out]`
    pub weight: Param<Tensor<2>>,
    /// `[d_out]`
    pub bias: Option<Param<Tensor<1>>>,
    /// What is trained in place of the weight, if anything is.
    pub lora: Option<Lora>,
}

/// Whether a [`Linear`] adds a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bias {
    /// It does.
    With,
    /// It does not.
    Without,
}

impl From<bool> for Bias {
    fn from(with: bool) -> Self {
        if with { Self::With } else { Self::Without }
    }
}

impl Linear {
    /// The layer `scope` names.
    ///
    /// # Errors
    /// The source lacks `weight` or `bias`, or holds it in another shape.
    pub fn new(scope: &mut Scope, d_in: usize, d_out: usize, bias: Bias) -> Result<Self> {
        let init = Init::Linear { fan_in: d_in };
        Ok(Self {
            weight: scope.transposed("weight", [d_in, d_out], init)?,
            bias: match bias {
                Bias::With => Some(scope.vector("bias", d_out, init)?),
                Bias::Without => None,
            },
            lora: None,
        })
    }

    /// # Shapes
    /// - x: `[.., d_in]`
    /// - output: `[.., d_out]`
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        by_rows(x, |flat| {
            let mut out = product(flat.clone(), self.weight.val());
            if let Some(lora) = &self.lora {
                out = out + lora.forward(flat);
            }
            self.biased(out)
        })
    }

    /// With the bias added, where there is one. `[rows, d_out]`
    pub(crate) fn biased(&self, out: Tensor<2>) -> Tensor<2> {
        let dtype = out.dtype();
        match &self.bias {
            Some(bias) => out + bias.val().cast(dtype).unsqueeze(),
            None => out,
        }
    }
}

/// What `of` makes of all rows: `[.., d_in]` to `[.., d_out]`, by `[rows, d_in]` to `[rows, d_out]`.
pub(crate) fn by_rows<const D: usize>(
    x: Tensor<D>,
    of: impl FnOnce(Tensor<2>) -> Tensor<2>,
) -> Tensor<D> {
    let mut shape = x.dims();
    let (rows, d_in) = (shape[..D - 1].iter().product::<usize>(), shape[D - 1]);
    let out = of(x.reshape([rows, d_in]));
    shape[D - 1] = out.dims()[1];
    out.reshape(shape)
}

/// Two thin matrices whose product is trained beside the weight of a [`Linear`] (<https://arxiv.org/abs/2106.09685>).
#[derive(Module, Debug)]
pub struct Lora {
    /// `[d_in, rank]`
    pub(crate) down: Param<Tensor<2>>,
    /// `[rank, d_out]`, zeros at first, so that nothing changes before the first step.
    pub(crate) up: Param<Tensor<2>>,
    #[module(skip)]
    pub(crate) scale: f64,
}

impl Lora {
    /// `[rows, d_in]` to `[rows, d_out]`.
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let inner = product_with_weight(x, self.down.val());
        product_with_weight(inner, self.up.val()) * self.scale
    }
}
