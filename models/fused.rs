//! Linear layers that read the same, as one product: on a GPU each product costs the host some ten microseconds, and small ones
//! leave most of the device idle.
use burn::module::{
    Content, Devices, Module, ModuleDisplay, ModuleDisplayDefault, ModuleMapper, ModuleVisitor,
    Param,
};
use burn::prelude::*;

use crate::linear::Linear;

/// What the first element of a view is a multiple of, in bytes: CubeCL copies what begins elsewhere.
const ALIGNED: usize = 512;

/// The linear layers of a frozen model that read the same, side by side, where they are held so.
///
/// They keep their parameters, as views of one matrix. Whatever may change or move one of those ([`Module::map`] and the like) forgets
/// the matrix, so that it is never another than theirs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fused(Option<Box<Linear>>);

impl Fused {
    /// Of layers with as many inputs. None where one is adapted, or a view of its part of the product could not begin where it does.
    pub(crate) fn of<const N: usize>(mut layers: [&mut Linear; N]) -> Self {
        let weights = layers.each_ref().map(|layer| layer.weight.val());
        let biases: Vec<Tensor<1>> = (layers.iter())
            .filter_map(|layer| layer.bias.as_ref().map(|bias| bias.val()))
            .collect();
        let size = weights[0].dtype().size();
        let is_aligned = |weight: &Tensor<2>| (weight.dims()[1] * size).is_multiple_of(ALIGNED);
        let is_plain = |layer: &&mut Linear| layer.lora.is_none();
        if !weights.iter().all(is_aligned)
            || !layers.iter().all(is_plain)
            || ![0, N].contains(&biases.len())
        {
            return Self(None);
        }
        let weight = Tensor::cat(weights.to_vec(), 1); // [d_in, d_out of all]
        let mut start = 0;
        for layer in &mut layers {
            let [_, d_out] = layer.weight.val().dims();
            let part = weight.clone().narrow(1, start, d_out);
            layer.weight = layer.weight.clone().map(|_| part);
            start += d_out;
        }
        Self(Some(Box::new(Linear {
            weight: Param::from_tensor(weight),
            bias: (!biases.is_empty()).then(|| Param::from_tensor(Tensor::cat(biases, 0))),
            lora: None,
        })))
    }

    /// Whether they are held so.
    #[cfg(test)]
    pub(crate) fn is_some(&self) -> bool {
        self.0.is_some()
    }

    /// What all of them give, side by side: `[batch, seq, d_in]` to `[batch, seq, d_out of all]`.
    pub(crate) fn forward(&self, x: &Tensor<3>) -> Option<Tensor<3>> {
        self.0.as_ref().map(|all| all.forward(x.clone()))
    }
}

impl Module for Fused {
    fn collect_devices(&self, devices: Devices) -> Devices {
        devices
    }

    fn fork(self, _: &Device) -> Self {
        Self(None)
    }

    fn to_device(self, _: &Device) -> Self {
        Self(None)
    }

    fn train(self) -> Self {
        Self(None)
    }

    fn valid(&self) -> Self {
        Self(None)
    }

    fn materialize(self) -> Self {
        self
    }

    fn visit<Visitor: ModuleVisitor>(&self, _: &mut Visitor) {}

    fn map<Mapper: ModuleMapper>(self, _: &mut Mapper) -> Self {
        Self(None)
    }
}

impl ModuleDisplayDefault for Fused {
    fn content(&self, content: Content) -> Option<Content> {
        Some(content)
    }
}

impl ModuleDisplay for Fused {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attend::Projected;
    use crate::attention::{Attention, AttentionConfig, Projects as _};
    use crate::device::{bound_of_products, test_device};
    use crate::linear::Bias;
    use crate::mlp::Mlp;
    use crate::rope::{Rope, RopeConfig, RopeScaling};
    use crate::weights::{RandomWeights, Scope, export, host_f32};
    use spectrain_checkpoints::DType;

    const D_MODEL: usize = 256;
    const D_HEAD: usize = 128;
    const D_FF: usize = 384;

    fn attention(seed: u64, (qkv_bias, head_norm, gated): (Bias, bool, bool)) -> Attention {
        let config = AttentionConfig {
            d_input: D_MODEL,
            d_model: D_MODEL,
            heads: 6,
            kv_heads: 2,
            d_head: D_HEAD,
            qkv_bias,
            output_bias: Bias::Without,
            head_norm: head_norm.then_some(1e-6.into()),
            gated,
            sinks: false,
        };
        let (mut random, device) = (RandomWeights::new(seed), test_device());
        Attention::new(&mut Scope::root(&mut random, &device, DType::F32), &config).unwrap()
    }

    fn mlp(d_ff: usize, bias: Bias) -> Mlp {
        let (mut random, device) = (RandomWeights::new(7), test_device());
        let mut scope = Scope::root(&mut random, &device, DType::F32);
        Mlp::new(&mut scope, D_MODEL, d_ff, bias).unwrap()
    }

    fn inputs([batch, seq]: [usize; 2]) -> Tensor<3> {
        let values =
            (0..batch * seq * D_MODEL).map(|at| ((at * 7919) % 6007) as f32 / 3003.5 - 1.0);
        let data = TensorData::new(values.collect::<Vec<_>>(), [batch, seq, D_MODEL]);
        Tensor::from_data(data, &test_device())
    }

    fn assert_near<const D: usize>(found: Tensor<D>, expected: Tensor<D>, of: &str) {
        assert_eq!(found.dims(), expected.dims(), "{of}");
        let pairs = host_f32(found).into_iter().zip(host_f32(expected));
        let apart = pairs.fold(0.0f32, |most, (x, y)| most.max((x - y).abs()));
        assert!(apart < bound_of_products(1e-5), "{of}: {apart}");
    }

    #[test]
    fn queries_keys_and_values_are_those_of_a_product_each() {
        let rope = RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        };
        let rotary = Rope::new(&rope, D_HEAD, &test_device());
        for like in [
            (Bias::Without, true, false),
            (Bias::With, false, false),
            (Bias::Without, true, true),
        ] {
            let apart = attention(3, like);
            let fused = attention(3, like).fused();
            assert!(fused.is_fused());
            for [batch, seq] in [[1, 1], [1, 301], [2, 7]] {
                let x = inputs([batch, seq]);
                let positions = Tensor::arange(0..seq as i64, &test_device()).unsqueeze();
                let rotation = rotary.at(positions);
                let [found, expected] = [&fused, &apart].map(|of| of.project(x.clone(), &rotation));
                let all = |of: Projected| [of.query, of.key, of.value];
                for (found, expected) in all(found).into_iter().zip(all(expected)) {
                    assert_near(found, expected, &format!("{like:?} {batch} of {seq}"));
                }
                let (key, value) = fused.keys_and_values(x.clone(), &rotation);
                let (other_key, other_value) = apart.keys_and_values(x, &rotation);
                assert_near(key, other_key, "key");
                assert_near(value, other_value, "value");
            }
        }
    }

    #[test]
    fn what_is_gated_is_that_of_a_product_each() {
        for bias in [Bias::Without, Bias::With] {
            let (apart, fused) = (mlp(D_FF, bias), mlp(D_FF, bias).fused());
            assert!(fused.is_fused());
            for rows in [[1, 1], [1, 301], [2, 7]] {
                let x = inputs(rows);
                assert_near(fused.forward(x.clone()), apart.forward(x), "gated");
            }
        }
    }

    #[test]
    fn what_is_fused_keeps_its_parameters_and_is_forgotten_where_they_may_change() {
        let like = (Bias::With, true, true);
        let fused = attention(3, like).fused();
        let values = |of: &Attention| -> Vec<_> {
            let all = export(of).into_iter();
            all.map(|of| (of.name, of.shape, of.bytes)).collect()
        };
        assert_eq!(values(&fused), values(&attention(3, like)));
        struct Doubled;
        impl ModuleMapper for Doubled {
            fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
                param.map(|x| x * 2.0)
            }
        }
        let device = test_device();
        assert!(fused.clone().is_fused());
        assert!(!fused.clone().map(&mut Doubled).is_fused());
        assert!(!fused.clone().to_device(&device).is_fused());
        assert!(!fused.clone().fork(&device).is_fused());
        assert!(!fused.valid().is_fused());
        assert!(!fused.clone().train().is_fused());
        let adapted = fused.map_linear(&mut Ok).unwrap();
        assert!(!adapted.is_fused());
    }

    #[test]
    fn parts_that_no_view_could_begin_at_stay_apart() {
        assert!(!mlp(D_FF + 1, Bias::Without).fused().is_fused());
    }
}
