//! Hydra heads: their folder and what a step of their training keeps. No engine loads them.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::hydra::HYDRA;
use spectrain_models::TargetSpec;
use spectrain_models::hydra::{Hydra, HydraConfig};
use spectrain_train::Workload;

use crate::families::family::Family;
use crate::families::footprint::{Activations, Attended, LayerSizes, Packed, Sees, decoder};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for Hydra {
    const KIND: &'static str = "hydra";
    const ENGINES: &'static [Engine] = &[];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&HYDRA, None)];
    const SAMPLES: &'static [&'static str] = &[
        "hydra_heads = 3",
        "hydra_heads = 2\nhead_layers = 2\nhead = \"shared\"\ndraft_vocab = 20",
        "hydra_heads = 2\nprefix_layer = true",
    ];

    fn activations(
        config: &HydraConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let (d, positions) = (target.d_model as u64, batch.positions() as f64);
        let (heads, layers) = (config.hydra_heads as u64, config.head_layers as u64);
        let layer = LayerSizes {
            head_norms: false,
            ..LayerSizes::of(target, [0; 3])?
        };
        let prefix = if config.prefix_layer {
            decoder(&layer, 1, work, Attended::of(work, batch, Sees::Back))
        } else {
            Activations::default()
        };
        // Head i reads i + 2 vectors; of each the product and the sum of every block, and the gradient of the last sum.
        let vectors = heads * (heads + 3) / 2 + heads * (2 * layers + 1);
        Ok(Activations {
            kept: prefix.kept + positions * (d * vectors) as f64,
            judged: positions
                * work.judged
                * config.head.judged_together(config.hydra_heads) as f64,
            rows: positions,
            ..prefix
        })
    }
}

impl Shipped for Hydra {}
