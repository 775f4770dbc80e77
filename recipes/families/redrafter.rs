//! ReDrafter's head: its folder, its engine and what a step of its training keeps.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::redrafter::REDRAFTER;
use spectrain_models::TargetSpec;
use spectrain_models::redrafter::{Redrafter, RedrafterConfig};
use spectrain_train::Workload;

use crate::families::family::Family;
use crate::families::footprint::{Activations, Packed};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for Redrafter {
    const KIND: &'static str = "redrafter";
    const ENGINES: &'static [Engine] = &[Engine::TensorrtLlm];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&REDRAFTER, None)];
    const SAMPLES: &'static [&'static str] = &[
        "draft_tokens = 3",
        "draft_tokens = 2\nhead_layers = 1\nrecurrent = false",
    ];

    fn activations(
        config: &RedrafterConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let (d, positions) = (target.d_model as u64, batch.positions() as f64);
        let (steps, layers) = (config.draft_tokens as u64, config.head_layers as u64);
        // The embedding, both products of the cell, their sum and its state; a sum of embeddings keeps nothing.
        let cell = if config.recurrent { 5 } else { 0 };
        // What the blocks read, and of each the product and the sum. The gradient of the last sum is among what the loss takes.
        let head = 2 * (1 + 2 * layers);
        Ok(Activations {
            kept: positions * (d * steps * (cell + head)) as f64,
            judged: positions * work.judged * steps as f64,
            read: 2 * d,
            rows: positions * steps as f64,
            ..Activations::default()
        })
    }
}

impl Shipped for Redrafter {
    const BESIDE_CLASS: bool = true;
}
