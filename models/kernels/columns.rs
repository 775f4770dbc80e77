//! What attention does behind [`gather`](super::gather): it takes in one key more for each query, as the steps of an unrolled drafter
//! behind its first have (EAGLE-3, <https://arxiv.org/abs/2503.01840>, section 3.2), and divides.
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
#[cfg(feature = "fusion")]
use burn::backend::fusion::custom::TensorSpec;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, AutodiffBackend, Backend, ExtensionType, backend_extension};
use burn::tensor::DType;

#[cfg(feature = "fusion")]
use super::gather::sums_of;

#[cfg(test)]
pub(super) mod by_operations;
mod host;

/// See the module; in no graph and in one.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Autodiff, Fusion: cfg(feature = "fusion"))]
pub(super) trait Columns: Backend {
    /// The sums of [`gather`](super::gather) and the largest scores, with one key more for each query.
    ///
    /// # Shapes
    /// - sums, output: `[batch, heads, rows, d_head + 1]`, f32
    /// - largest, output: `[batch, heads, rows, 1]`, f32, which no gradient goes through
    #[fusion(meta = |column, sums| (sums.clone(), column.largest.clone()))]
    fn add_column(
        #[extension_type] column: Column<Self>,
        sums: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>);

    /// Sums over the sum of their weights, which stands behind them, in the type `dtype`; and what they were multiplied by for it, which no
    /// gradient goes through.
    ///
    /// # Shapes
    /// - sums: `[batch, heads, rows, d_head + 1]`, f32
    /// - output: `[batch, heads, rows, d_head]`, and `[batch, heads, rows, 1]`, f32
    #[fusion(meta = |sums, dtype| quotient_of(sums, *dtype))]
    fn quotient(sums: FloatTensor<Self>, dtype: DType) -> (FloatTensor<Self>, FloatTensor<Self>);
}

/// The gradients of [`Columns`], in no graph.
#[backend_extension(Flex, Cube: cfg(feature = "cube"), Fusion: cfg(feature = "fusion"))]
pub(super) trait ColumnGradients: Backend {
    /// Of [`Columns::add_column`]: of query, key, value and the sums before, from that of the sums behind.
    #[fusion(meta = |column, gradient| (column.query.clone(), column.key.clone(), column.value.clone(), gradient.clone()))]
    fn add_column_backward(
        #[extension_type] column: Column<Self>,
        gradient: FloatTensor<Self>,
    ) -> (
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
        FloatTensor<Self>,
    );

    /// Of [`Columns::quotient`], in f32, from what it gives and the gradient of the first of it.
    #[fusion(meta = |quotient, _, _| sums_of(quotient))]
    fn quotient_backward(
        quotient: FloatTensor<Self>,
        factor: FloatTensor<Self>,
        gradient: FloatTensor<Self>,
    ) -> FloatTensor<Self>;
}

/// What [`Columns::quotient`] makes of such sums.
#[cfg(feature = "fusion")]
fn quotient_of(sums: &TensorSpec, dtype: DType) -> (TensorSpec, TensorSpec) {
    let (mut shape, mut of_rows) = (sums.shape.clone(), sums.shape.clone());
    shape[3] -= 1;
    of_rows[3] = 1;
    (
        TensorSpec::new(shape, dtype),
        TensorSpec::new(of_rows, sums.dtype),
    )
}

/// One key for each query, and the largest of the query's scores so far.
#[derive(Debug, Clone, ExtensionType)]
#[cfg_attr(feature = "fusion", extension_type(fusion))]
pub(super) struct Column<B: Backend> {
    /// `[batch, heads, rows, d_head]`
    pub(super) query: FloatTensor<B>,
    /// `[batch, kv_heads, rows, d_head]`
    pub(super) key: FloatTensor<B>,
    /// `[batch, kv_heads, rows, d_head]`
    pub(super) value: FloatTensor<B>,
    /// `[batch, heads, rows, 1]`, f32
    pub(super) largest: FloatTensor<B>,
    /// What scores are multiplied by.
    pub(super) scale: f32,
}

impl<B: Columns + ColumnGradients, C: CheckpointStrategy> Columns for Autodiff<B, C> {
    fn add_column(
        column: Column<Self>,
        sums: FloatTensor<Self>,
    ) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (query, at_query) = column.query.into_parts();
        let (key, at_key) = column.key.into_parts();
        let (value, at_value) = column.value.into_parts();
        let (sums, at_sums) = sums.into_parts();
        let column = Column {
            query,
            key,
            value,
            largest: column.largest.into_primitive(),
            scale: column.scale,
        };
        let (sums, largest) = B::add_column(column.clone(), sums);
        let prepared = AddColumn
            .prepare::<C>([at_query, at_key, at_value, at_sums])
            .compute_bound();
        let sums = match prepared.stateful() {
            OpsKind::Tracked(prepared) => prepared.finish(column, sums),
            OpsKind::UnTracked(prepared) => prepared.finish(sums),
        };
        (sums, <Self as AutodiffBackend>::from_inner(largest))
    }

    fn quotient(sums: FloatTensor<Self>, dtype: DType) -> (FloatTensor<Self>, FloatTensor<Self>) {
        let (sums, at_sums) = sums.into_parts();
        let (quotient, factor) = B::quotient(sums, dtype);
        let prepared = Quotient.prepare::<C>([at_sums]).compute_bound();
        let quotient = match prepared.stateful() {
            OpsKind::Tracked(prepared) => {
                prepared.finish((quotient.clone(), factor.clone()), quotient)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(quotient),
        };
        (quotient, <Self as AutodiffBackend>::from_inner(factor))
    }
}

/// Of [`Columns::add_column`].
#[derive(Debug)]
struct AddColumn;

impl<B: ColumnGradients> Backward<B, 4> for AddColumn {
    /// Its inputs but for the sums.
    type State = Column<B>;

    fn backward(self, ops: Ops<Self::State, 4>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let gradient = gradients.consume::<B>(&ops.node);
        let (query, key, value, sums) = B::add_column_backward(ops.state, gradient);
        for (parent, gradient) in ops.parents.into_iter().zip([query, key, value, sums]) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Of [`Columns::quotient`].
#[derive(Debug)]
struct Quotient;

impl<B: ColumnGradients> Backward<B, 1> for Quotient {
    /// Its outputs: in a narrow type they take less than half of what the sums do, whose odd width a GPU pads.
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (quotient, factor) = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            let by_sums = B::quotient_backward(quotient, factor, gradient);
            gradients.register::<B>(parent.id, by_sums);
        }
    }
}
