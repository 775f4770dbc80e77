//! Medusa heads: their folders, their engine and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::medusa::MEDUSA;
use spectrain_models::TargetSpec;
use spectrain_models::medusa::{Medusa, MedusaConfig};
use spectrain_train::Workload;

use crate::families::family::Family;
use crate::families::footprint::{Activations, Packed};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for Medusa {
    const KIND: &'static str = "medusa";
    const ENGINES: &'static [Engine] = &[Engine::Vllm];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&MEDUSA, None)];
    const SAMPLES: &'static [&'static str] = &[
        "medusa_heads = 3",
        "medusa_heads = 2\nhead_layers = 2\nhead = \"shared\"\ndraft_vocab = 20",
    ];

    fn activations(
        config: &MedusaConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let (d, positions) = (target.d_model as u64, batch.positions() as f64);
        let (heads, layers) = (config.medusa_heads as u64, config.head_layers as u64);
        Ok(Activations {
            // What all blocks read; of each head the product and the sum of every block, and the gradient of the last sum, as it was
            // found and in its place.
            kept: positions * (d * (1 + heads * (2 * layers + 2))) as f64,
            judged: positions
                * work.judged
                * config.head.judged_together(config.medusa_heads) as f64,
            rows: positions,
            ..Activations::default()
        })
    }
}

impl Shipped for Medusa {}
