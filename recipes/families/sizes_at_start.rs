//! The sizes of a drafter that is a language model, counted from what it starts from.

use anyhow::{Context as _, Result};
use spectrain_models::listing::{Parameter, decoder as decoder_parameters};
use spectrain_models::{Start, TargetSpec, TransformerConfig};
use spectrain_train::{WorkRows, Workload};

use crate::families::footprint::{
    Activations, Attended, Footprint, LayerSizes, Packed, Sees, decoder, in_matrices, values,
};
use crate::runtime::sizes::{known_sizes, unknown_sizes};

/// What a model is counted from.
pub(crate) struct SizesAtStart<'a>(pub(crate) Start<'a>);

impl SizesAtStart<'_> {
    /// What its parameters take.
    pub(crate) fn footprint(&self, target: &TargetSpec) -> Result<Footprint> {
        let mut structure = self.structure(target)?;
        let kept = self.0.keep_layers.len();
        if kept > 0 {
            structure.spec.layers = kept;
            structure.windows.truncate(kept);
        }
        let (d, vocab) = (structure.spec.d_model as u64, structure.spec.vocab as u64);
        let listed = decoder_parameters(&structure)?;
        let all = listed.iter().map(|(_, shape)| values(shape)).sum();
        let (parameters, matrices, frozen) = match self.0.lora {
            Some(lora) => {
                let thin = thin_matrices(&listed, lora.rank);
                (
                    thin.iter().map(|(_, shape)| values(shape)).sum(),
                    in_matrices(&thin),
                    all,
                )
            }
            None => (all, in_matrices(&listed), 0),
        };
        Ok(Footprint {
            parameters,
            matrices,
            head: if self.0.lora.is_some() { 0 } else { vocab * d },
            frozen,
            idle: 0,
            // It proposes the tokens it knows; none is chosen by how often it occurs.
            draft_vocab: target.vocab as u64,
            captured: 0,
        })
    }

    /// What a step of training keeps where the drafter sees `sees` of its texts.
    pub(crate) fn activations(
        &self,
        target: &TargetSpec,
        work: &Workload,
        (batch, sees): (Packed, Sees),
    ) -> Result<Activations> {
        let spec = self.spec(target)?;
        let layers = match self.0.keep_layers.len() {
            0 => spec.layers,
            kept => kept,
        };
        // Whether a model from a folder norms its heads is not known here; that is little beside the rest.
        let layer = LayerSizes::of(&spec, [0; 3])?;
        let attended = Attended::of(work, batch, sees);
        let all = decoder(&layer, layers as u64, work, attended);
        Ok(Activations {
            // The last norm.
            kept: all.kept + attended.rows * (3 * layer.d_model) as f64,
            judged: judged(work, batch).unwrap_or(all.judged),
            ..all
        })
    }

    /// The sizes of the model, before layers are dropped.
    pub(crate) fn spec(&self, target: &TargetSpec) -> Result<TargetSpec> {
        Ok(self.structure(target)?.spec)
    }

    /// The structure at the start. Of a cut target only the sizes are known here; it counts as having a head of its own.
    fn structure(&self, target: &TargetSpec) -> Result<TransformerConfig> {
        if let Some(fresh) = self.0.fresh {
            return Ok(fresh.structure(target)?);
        }
        let (spec, tied_head): (TargetSpec, bool) = match self.0.model {
            "" => (target.clone(), false),
            model => {
                let revision = self.0.revision;
                known_sizes(model, revision).with_context(|| unknown_sizes(model, revision))?
            }
        };
        self.0.check_dense(&spec)?;
        Ok(TransformerConfig {
            head_norm: false,
            tied_head,
            ..TransformerConfig::qwen3(spec)
        })
    }
}

/// Rows that are judged where only masks behind cuts are.
fn judged(work: &Workload, batch: Packed) -> Option<f64> {
    let positions = batch.positions() as f64;
    match work.rows {
        WorkRows::Behind { cuts, places } if places > 1 => {
            let masks = batch.rows as f64 * cuts as f64 * (places - 1) as f64;
            Some(masks.min(positions))
        }
        _ => None,
    }
}

/// The two of this rank beside each linear layer.
fn thin_matrices(listed: &[Parameter], rank: usize) -> Vec<Parameter> {
    let linear = listed
        .iter()
        .filter(|(name, _)| name.ends_with("_proj.weight"));
    let ends = linear.flat_map(|(name, shape)| shape.iter().map(move |&end| (name, end)));
    ends.map(|(name, end)| (name.clone(), vec![end, rank]))
        .collect()
}
