//! P-EAGLE drafters: their folders, their engines and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::peagle::{PEAGLE, SPECULATORS};
use spectrain_models::peagle::{PEagle, PEagleConfig};
use spectrain_models::{Drafter as _, TargetSpec};
use spectrain_train::Workload;

use crate::families::drafter_folder::tokens_of;
use crate::families::family::Family;
use crate::families::footprint::{Activations, Attended, LayerSizes, Packed, Sees, decoder};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for PEagle {
    const KIND: &'static str = "peagle";
    const ENGINES: &'static [Engine] = &[Engine::Vllm, Engine::Speculators];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] =
        &[(&PEAGLE, None), (&SPECULATORS, Some(Engine::Speculators))];
    const SAMPLES: &'static [&'static str] = &[
        "mask_token = 47\nlayers = 2",
        "mask_token = 47\nlayers = 1\nshared_embeddings = true\ndraft_vocab = 20\nfc_norm = true",
        "mask_token = 47\nlayers = 3\nhead = \"shared\"\nnorm_before_residual = true\nd_ff = 40",
        "mask_token = 47\nlayers = 1\nnorm_before_fc = true",
        "mask_token = 47\nlayers = 2\nhead_norm = true\nwindow = 9\nnorm_before_residual = true\nshared_embeddings = true",
        "mask_token = 47\nlayers = 1\nwindow = 9\ncaptured_layers = [0, 4]\nheads = 2\nkv_heads = 1",
        "mask_token = 47\nlayers = 2\nd_head = 6",
    ];

    fn activations(
        config: &PEagleConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let target = &target.with_heads(config.d_head)?;
        let layer = LayerSizes {
            head_norms: config.head_norm,
            ..LayerSizes::of(target, [config.d_ff, config.heads, config.kv_heads])?
        };
        let attended = Attended::of(work, batch, Sees::Back);
        let all = decoder(&layer, config.depth() as u64, work, attended);
        let captured = Self::capture(config, target)?.layers.len() as u64;
        // Captured layers of every row, the wider input of the first layer, and the last norm.
        let more = captured * layer.d_model + 3 * layer.d_model;
        Ok(Activations {
            kept: all.kept + attended.rows * more as f64,
            ..all
        })
    }
}

impl Shipped for PEagle {
    fn unheld(config: &PEagleConfig) -> Vec<(&'static str, u32)> {
        tokens_of([("mask_token", config.mask_token)])
    }
}
