//! MTP drafters: their folders, their engine and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::mtp::MTP;
use spectrain_models::TargetSpec;
use spectrain_models::mtp::{Mtp, MtpConfig};
use spectrain_train::Workload;

use crate::families::family::Family;
use crate::families::footprint::{Activations, LayerSizes, Packed, unrolled};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for Mtp {
    const KIND: &'static str = "mtp";
    const ENGINES: &'static [Engine] = &[Engine::Vllm, Engine::Sglang];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&MTP, None)];
    const SAMPLES: &'static [&'static str] = &["", "after_final_norm = true"];

    fn activations(
        _: &MtpConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let layer = LayerSizes {
            head_norms: false,
            ..LayerSizes::of(target, [0, 0, 0])?
        };
        // Two norms before the layer and one behind it, and both inputs side by side.
        Ok(unrolled(&layer, 5 * layer.d_model, work, batch))
    }
}

impl Shipped for Mtp {
    const BESIDE_CLASS: bool = true;
}
