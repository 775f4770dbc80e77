//! Which layer each captured slot is of, found by computing the first layers here, where they are here and of a known architecture.

use anyhow::{Context as _, Result, bail};
use burn::prelude::*;
use serde::{Deserialize, Serialize};
use spectrain_checkpoints::DType;
use spectrain_models::weights::host_f32;
use spectrain_models::{Capture, Layout, Target as _, TargetParts, Transformer, load_first_layers};

use super::server::Captured;
use super::states::slot;
use crate::runtime::sizes::{body_parameters, idle_parameters};

/// Bytes of layers that are loaded for this, at most.
const MOST_BYTES: u64 = 4 << 30;
/// Tokens of each sample that are compared.
const TOKENS: usize = 64;
/// The largest relative distance of states that are the same: 16 bits and quantised layers leave less, another layer more.
const MOST_DISTANCE: f64 = 0.2;

/// How well a slot fits the layer that it should be of.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LayerFit {
    /// The layer, 0-based.
    pub layer: usize,
    /// Median over tokens of `|captured - computed| / |computed|`.
    pub distance: f64,
}

/// The first layers of a target, computed here to tell what was captured.
pub struct FirstLayers {
    model: Transformer,
    /// How many there are.
    count: usize,
    /// The captured layers that are among them.
    compared: Vec<usize>,
}

impl FirstLayers {
    /// As many as it takes to compare the captured `layers`; none where they are not here, not of a known architecture, or too large;
    /// the log says why they cannot be loaded.
    pub fn load(layers: &Capture, target: &TargetParts) -> Option<Self> {
        let spec = &target.spec;
        let weight = target.lm_head.weight.val();
        let dtype = match weight.dtype() {
            burn::tensor::DType::BF16 => DType::BF16,
            _ => DType::F32,
        };
        let all = body_parameters(spec) + idle_parameters(spec);
        let of_layer = all / spec.layers.max(1) as u64 * dtype.size() as u64;
        // One layer more than the last that is compared tells a slot that is a layer late.
        let fits = |layer: &&usize| of_layer * (**layer as u64 + 2) <= MOST_BYTES;
        let compared: Vec<usize> = layers.layers.iter().take_while(fits).copied().collect();
        let count = (compared.last()? + 2).min(spec.layers);
        let folder = target.folder.as_ref()?;
        let model = load_first_layers(folder, count, &weight.device(), dtype);
        let model = model.inspect_err(|why| {
            tracing::info!("captured layers are not compared with layers computed here: {why}");
        });
        let model = model.ok()?;
        Some(Self {
            model,
            count,
            compared,
        })
    }

    /// Compares the slots of samples with what they compute.
    ///
    /// # Errors
    /// A slot is of another layer; the message says which one fits better.
    pub fn compare(&self, samples: &[Captured]) -> Result<Vec<LayerFit>> {
        let mut distances = vec![vec![Vec::new(); self.count]; self.compared.len()];
        for sample in samples {
            let computed = computed(&self.model, sample, self.count);
            let tokens = computed[0].dims()[0];
            for (place, distances) in distances.iter_mut().enumerate() {
                let captured = slot(&sample.states.states, place, &self.model.device());
                let captured = captured.narrow(0, 0, tokens);
                for (computed, distances) in computed.iter().zip(distances) {
                    distances.extend(relative(captured.clone(), computed.clone()));
                }
            }
        }
        let medians = distances
            .into_iter()
            .map(|of_slot| of_slot.into_iter().map(median).collect());
        let fits = self.compared.iter().zip(medians).enumerate();
        fits.map(|(place, (&layer, medians))| fit(place, layer, medians))
            .collect()
    }
}

/// How well the slot at `place` fits its layer, of the distances from each layer.
fn fit(place: usize, layer: usize, distances: Vec<f64>) -> Result<LayerFit> {
    let distance = distances[layer];
    let best = distances
        .iter()
        .enumerate()
        .min_by(|a, b| a.1.total_cmp(b.1));
    let (best, least) = best.context("there is no layer")?;
    if best != layer || distance.is_nan() || distance > MOST_DISTANCE {
        bail!(
            "hidden states of slot {place}: expected the output of layer {layer} (vLLM's id {}), found states that differ \
             from it by {distance:.2} of their size; the output of layer {best} (id {}) is closest and differs by {least:.2}",
            layer + 1,
            best + 1
        );
    }
    Ok(LayerFit { layer, distance })
}

/// The outputs of the first layers over the first tokens of a sample, each `[tokens, d_model]`, f32.
fn computed(model: &Transformer, sample: &Captured, count: usize) -> Vec<Tensor<2>> {
    let device = model.device();
    let tokens = &sample.states.tokens[..sample.states.tokens.len().min(TOKENS)];
    let ids: Vec<i64> = tokens.iter().map(|&token| token.into()).collect();
    let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &device).unsqueeze::<2>();
    let layout = Layout::whole([1, tokens.len()], &device);
    let capture = Capture {
        layers: (0..count).collect(),
    };
    let captured = model.features(ids, &layout, &capture).captured;
    let captured: Tensor<2> = captured.squeeze_dim(0);
    let each = captured.cast(burn::tensor::DType::F32).chunk(count, 1);
    each.into_iter().collect()
}

/// `|captured - computed| / |computed|` of each token but the first, whose states may be a sink of attention.
fn relative(captured: Tensor<2>, computed: Tensor<2>) -> Vec<f64> {
    let norm = |x: Tensor<2>| x.square().sum_dim(1).sqrt();
    let distance = norm(captured - computed.clone()) / norm(computed);
    host_f32(distance)
        .into_iter()
        .skip(1)
        .map(f64::from)
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_that_fits_another_layer_is_named_with_it() {
        assert_eq!(fit(0, 1, vec![0.4, 0.01, 0.5]).unwrap().distance, 0.01);
        let told = fit(1, 1, vec![0.02, 0.4, 0.5]).unwrap_err().to_string();
        assert!(
            told.contains("slot 1") && told.contains("layer 0 (id 1) is closest"),
            "{told}"
        );
        assert!(fit(0, 0, vec![0.3, 0.5]).is_err(), "no layer fits");
        assert!(fit(0, 0, vec![f64::NAN, 0.5]).is_err());
    }
}
