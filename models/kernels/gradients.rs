//! The kernels in a graph of training: what each keeps, and what it hands back.
use burn::backend::autodiff::checkpoint::base::Checkpointer;
use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::autodiff::grads::Gradients;
use burn::backend::autodiff::ops::{Backward, Ops, OpsKind};
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, TensorMetadata as _};
use burn::tensor::DType;

use super::operations::{Backwards, Kernels};

impl<B: Kernels + Backwards, C: CheckpointStrategy> Kernels for Autodiff<B, C> {
    fn rms_norm(
        x: FloatTensor<Self>,
        weight: FloatTensor<Self>,
        epsilon: f32,
    ) -> FloatTensor<Self> {
        let (x, at_x) = x.into_parts();
        let (weight, at_weight) = weight.into_parts();
        match RmsNorm
            .prepare::<C>([at_x, at_weight])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prepared) => {
                let kept = (x.clone(), weight.clone(), epsilon);
                prepared.finish(kept, B::rms_norm(x, weight, epsilon))
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::rms_norm(x, weight, epsilon)),
        }
    }

    fn swiglu(gate: FloatTensor<Self>, up: FloatTensor<Self>) -> FloatTensor<Self> {
        let (gate, at_gate) = gate.into_parts();
        let (up, at_up) = up.into_parts();
        match SwiGlu
            .prepare::<C>([at_gate, at_up])
            .compute_bound()
            .stateful()
        {
            OpsKind::Tracked(prepared) => {
                let kept = (gate.clone(), up.clone());
                prepared.finish(kept, B::swiglu(gate, up))
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::swiglu(gate, up)),
        }
    }

    fn rotate(
        x: FloatTensor<Self>,
        cos: FloatTensor<Self>,
        sin: FloatTensor<Self>,
        turn: f32,
    ) -> FloatTensor<Self> {
        let (x, at_x) = x.into_parts();
        let (cos, sin) = (cos.into_primitive(), sin.into_primitive());
        match Rotation.prepare::<C>([at_x]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                let kept = (cos.clone(), sin.clone(), turn);
                prepared.finish(kept, B::rotate(x, cos, sin, turn))
            }
            OpsKind::UnTracked(prepared) => prepared.finish(B::rotate(x, cos, sin, turn)),
        }
    }

    fn attention_weights(scores: FloatTensor<Self>, scale: f32, dtype: DType) -> FloatTensor<Self> {
        let (scores, at_scores) = scores.into_parts();
        let of_scores = scores.dtype();
        let weights = B::attention_weights(scores, scale, dtype);
        match Softmax.prepare::<C>([at_scores]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                prepared.finish((weights.clone(), scale, of_scores), weights)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(weights),
        }
    }

    fn masked_attention_weights(
        scores: FloatTensor<Self>,
        mask: FloatTensor<Self>,
        scale: f32,
        dtype: DType,
    ) -> FloatTensor<Self> {
        let (scores, at_scores) = scores.into_parts();
        let of_scores = scores.dtype();
        let weights = B::masked_attention_weights(scores, mask.into_primitive(), scale, dtype);
        match Softmax.prepare::<C>([at_scores]).compute_bound().stateful() {
            OpsKind::Tracked(prepared) => {
                prepared.finish((weights.clone(), scale, of_scores), weights)
            }
            OpsKind::UnTracked(prepared) => prepared.finish(weights),
        }
    }
}

/// Of [`Kernels::rms_norm`].
#[derive(Debug)]
struct RmsNorm;

impl<B: Backwards> Backward<B, 2> for RmsNorm {
    /// Its inputs.
    type State = (FloatTensor<B>, FloatTensor<B>, f32);

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (x, weight, epsilon) = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        let (by_x, by_weight) = B::rms_norm_backward(x, weight, gradient, epsilon);
        let parents = ops.parents.into_iter().zip([by_x, by_weight]);
        for (parent, gradient) in parents {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Of [`Kernels::swiglu`].
#[derive(Debug)]
struct SwiGlu;

impl<B: Backwards> Backward<B, 2> for SwiGlu {
    /// Its inputs.
    type State = (FloatTensor<B>, FloatTensor<B>);

    fn backward(self, ops: Ops<Self::State, 2>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (gate, up) = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        let (by_gate, by_up) = B::swiglu_backward(gate, up, gradient);
        for (parent, gradient) in ops.parents.into_iter().zip([by_gate, by_up]) {
            if let Some(parent) = parent {
                gradients.register::<B>(parent.id, gradient);
            }
        }
    }
}

/// Of [`Kernels::rotate`].
#[derive(Debug)]
struct Rotation;

impl<B: Kernels> Backward<B, 1> for Rotation {
    /// Cosine, sine and direction.
    type State = (FloatTensor<B>, FloatTensor<B>, f32);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (cos, sin, turn) = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            gradients.register::<B>(parent.id, B::rotate(gradient, cos, sin, -turn));
        }
    }
}

/// Of [`Kernels::attention_weights`], masked or not.
#[derive(Debug)]
struct Softmax;

impl<B: Backwards> Backward<B, 1> for Softmax {
    /// Its output, what the scores are multiplied by, and their type.
    type State = (FloatTensor<B>, f32, DType);

    fn backward(self, ops: Ops<Self::State, 1>, gradients: &mut Gradients, _: &mut Checkpointer) {
        let (weights, scale, dtype) = ops.state;
        let gradient = gradients.consume::<B>(&ops.node);
        if let [Some(parent)] = ops.parents {
            let by_scores = B::softmax_backward(weights, gradient, scale, dtype);
            gradients.register::<B>(parent.id, by_scores);
        }
    }
}
