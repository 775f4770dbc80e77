//! MTP drafters: their folders, their engine and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::launch::Launch;
use spectrain_checkpoints::mtp::MTP;
use spectrain_models::TargetSpec;
use spectrain_models::mtp::{Mtp, MtpConfig};
use spectrain_train::Workload;

use crate::families::described;
use crate::families::family::{Family, Writing};
use crate::families::footprint::{
    Activations, Attended, LayerSizes, Packed, Sees, carried_of_unrolled, decoder,
};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for Mtp {
    const KIND: &'static str = "mtp";
    const ENGINES: &'static [Engine] = &[Engine::Vllm];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&MTP, None)];
    const SAMPLES: &'static [&'static str] = &[""];

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
        let attended = Attended::of(work, batch, Sees::Back);
        let one = decoder(&layer, 1, work, attended);
        let d = layer.d_model;
        Ok(Activations {
            // Two norms before the layer and one behind it, and both inputs side by side.
            kept: one.kept + work.held as f64 * attended.rows * (5 * d) as f64,
            carried: carried_of_unrolled(&layer, work, attended),
            ..one
        })
    }
}

impl Shipped for Mtp {
    fn launch_lines(&self, dialect: &Dialect, writing: &Writing) -> Result<Vec<Launch>> {
        described::launch_beside_class(self, dialect, writing)
    }
}
