//! Which layers the slots of imported states are: as somebody says, and, where the target can be computed here, as it is found.

use anyhow::{Result, bail};
use burn::prelude::*;
use serde::Serialize;
use spectrain_data::foreign::SaidLayers;
use spectrain_models::weights::host_f32;
use spectrain_models::{Caches, Capture, LogitRows, Pass, Target, chain};

use super::evidence::Sample;
use crate::runtime::capture::states::slot;
use crate::runtime::columns::pick;

/// Tokens of a sample that the target reads to compare its layers.
const READ: usize = 256;
/// The most that states may differ from the target's own, relative to their length.
const MOST_DIFFERENCE: f64 = 0.1;

/// The captured slots to keep, and the layers that they are, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slots {
    /// Where each kept layer stands.
    pub kept: Vec<usize>,
    /// 0-based layers.
    pub layers: Vec<usize>,
    /// Slots that are the embedding, which no drafter here reads.
    pub embedding: Vec<usize>,
}

impl Slots {
    /// The slots of a folder with so many of them, of a target of `layers` layers. Where the last layer is captured, too, its output
    /// may stand in a slot of its own or, as vLLM hands out no state twice, in the last slot alone.
    ///
    /// # Errors
    /// What is said does not go with the folder or the target.
    pub fn of(said: &SaidLayers, slots: usize, layers: usize) -> Result<Self> {
        let ids: Vec<i64> = said.captured.iter().map(|layer| layer + 1).collect();
        let is_last = |layer: &i64| layer + 1 == layers as i64;
        let is_shared = said.captured.len() == slots
            && said.captured.last().is_some_and(is_last)
            && said.last.as_ref().is_some_and(is_last);
        if said.captured.len() + 1 != slots && !is_shared {
            bail!(
                "expected the ids of {slots} slots, of which the last is the last layer, found {}",
                said.captured.len() + usize::from(said.last.is_some())
            );
        }
        if let Some(last) = said.last.filter(|last| !is_last(last)) {
            bail!(
                "the last slot: expected the output of the last layer, id {layers}, found id {}",
                last + 1
            );
        }
        let mut kept = Vec::new();
        let mut embedding = Vec::new();
        for (slot, &layer) in said.captured.iter().enumerate() {
            match usize::try_from(layer) {
                Err(_) if layer == -1 => embedding.push(slot),
                Ok(layer) if layer < layers => kept.push((layer, slot)),
                _ => bail!("expected ids of layers up to {layers}, found {ids:?}"),
            }
        }
        kept.sort_unstable();
        if kept.array_windows().any(|[one, two]| one.0 == two.0) {
            bail!("expected different layers, found {ids:?}");
        }
        Ok(Self {
            layers: kept.iter().map(|(layer, _)| *layer).collect(),
            kept: kept.into_iter().map(|(_, slot)| slot).collect(),
            embedding,
        })
    }

    /// How many slots captured states are in: all but the last one, or with it.
    pub fn captured(&self) -> usize {
        self.kept.len() + self.embedding.len()
    }

    /// The kept columns of rows of all slots that captured states are in.
    pub fn columns(&self, rows: &[u16], d_model: usize) -> Vec<u16> {
        pick(rows, self.captured(), &self.kept, d_model)
    }
}

/// A slot beside the target's own layers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FoundLayer {
    /// The layer that it is said to be.
    pub layer: usize,
    /// How far it is from that, relative to its length.
    pub difference: f64,
}

/// Compares captured slots with what `target` computes of the same tokens.
///
/// # Errors
/// A slot is another layer than is said, or none.
pub fn check(sample: &Sample, slots: &Slots, target: &dyn Target) -> Result<Vec<FoundLayer>> {
    let tokens = &sample.tokens[..sample.tokens.len().min(READ)];
    let layers = target.spec().layers;
    let capture = Capture {
        layers: (0..layers).collect(),
    };
    let mut caches = Caches::new(layers, tokens.len());
    let pass = Pass {
        tokens,
        parents: &chain(tokens.len()),
        logits: LogitRows::Last,
    };
    let own = target.decode(pass, &mut caches, &capture).features.captured;
    let d_model = target.spec().d_model;
    let device = own.device();
    let own = own.cast(burn::tensor::DType::F32);
    let of_layer = |layer: usize| {
        let own = own.clone().narrow(2, layer * d_model, d_model);
        own.reshape([tokens.len(), d_model])
    };
    let mut found = Vec::new();
    for (&slot, &said) in slots.kept.iter().zip(&slots.layers) {
        let states = self::slot(&sample.states, slot, &device).narrow(0, 0, tokens.len());
        let differences: Vec<f64> = (0..layers)
            .map(|layer| difference(states.clone(), of_layer(layer)))
            .collect();
        let best = (0..layers).min_by(|&one, &two| differences[one].total_cmp(&differences[two]));
        let best = best.unwrap_or_default();
        if best != said || differences[said] > MOST_DIFFERENCE {
            bail!(
                "slot {slot}: expected the output of layer {said} (id {}), found states that differ from it by {:.1} %; the \
                 output of layer {best} (id {}) is closest and differs by {:.1} %",
                said + 1,
                100.0 * differences[said],
                best + 1,
                100.0 * differences[best]
            );
        }
        found.push(FoundLayer {
            layer: said,
            difference: differences[said],
        });
    }
    Ok(found)
}

/// The mean over rows of how far `one` is from `two`, relative to the length of `two`.
fn difference(one: Tensor<2>, two: Tensor<2>) -> f64 {
    let length = two.clone().square().sum_dim(1).sqrt().clamp_min(1e-30);
    let apart = (one - two).square().sum_dim(1).sqrt() / length;
    let rows = host_f32(apart);
    rows.iter().map(|&row| f64::from(row)).sum::<f64>() / rows.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(ids: &[u32], slots: usize) -> Result<Slots> {
        Slots::of(&SaidLayers::of_layers_run(ids).unwrap(), slots, 6)
    }

    #[test]
    fn layers_come_ascending_and_without_the_embedding() {
        let found = slots(&[3, 0, 2, 6], 4).unwrap();
        assert_eq!((&found.layers, &found.kept), (&vec![1, 2], &vec![2, 0]));
        assert_eq!(found.embedding, [1]);
        assert_eq!(found.columns(&[1, 2, 3, 4, 5, 6], 1), [3, 1, 6, 4]);
    }

    #[test]
    fn the_last_slot_may_be_captured_too() {
        let found = slots(&[2, 6, 0, 6], 4).unwrap();
        assert_eq!((&found.layers, &found.kept), (&vec![1, 5], &vec![0, 1]));
        assert_eq!(found.captured(), 3);
        let found = slots(&[0, 2, 6, 6], 3).unwrap();
        assert_eq!((&found.layers, &found.kept), (&vec![1, 5], &vec![1, 2]));
        assert_eq!(found.captured(), 3);
        assert_eq!(found.columns(&[1, 2, 3, 4, 5, 6], 1), [2, 3, 5, 6]);
    }

    #[test]
    fn ids_that_cannot_be_are_refused() {
        for (ids, words) in [
            (&[1, 2, 3, 5, 6][..], "of 4 slots"),
            (&[1, 2, 3, 5, 5], "of 4 slots"),
            (&[2, 3, 6], "of 4 slots"),
            (&[2, 3, 4, 5], "id 6, found id 5"),
            (&[2, 2, 3, 6], "different layers"),
            (&[2, 3, 9, 6], "up to 6"),
        ] {
            let told = slots(ids, 4).unwrap_err().to_string();
            assert!(told.contains(words), "{ids:?}: {told}");
        }
    }
}
