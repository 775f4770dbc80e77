//! EAGLE-3 drafters: their folders, their engines and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::eagle3::{EAGLE3, SPECULATORS};
use spectrain_models::TargetSpec;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_train::Workload;

use crate::families::family::Family;
use crate::families::footprint::{Activations, LayerSizes, Packed, unrolled_stack};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for Eagle3 {
    const KIND: &'static str = "eagle3";
    const ENGINES: &'static [Engine] = &[
        Engine::Vllm,
        Engine::Sglang,
        Engine::TensorrtLlm,
        Engine::LlamaCpp,
        Engine::Speculators,
    ];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] =
        &[(&EAGLE3, None), (&SPECULATORS, Some(Engine::Speculators))];
    const SAMPLES: &'static [&'static str] = &[
        "",
        "draft_vocab = 20\nhead = \"own\"",
        "head = \"shared\"",
        "head = \"shared\"\ndraft_vocab = 20",
        "fc_norm = true\nnorm_output = true\nnorm_before_residual = true\nd_ff = 40",
        "captured_layers = [0, 4]\nwindow = 9\nheads = 2\nkv_heads = 1",
        "norm_before_fc = true\nnorm_output = true",
        "head_norm = true",
        "head_norm = true\nwindow = 9\ndraft_vocab = 20\nfc_norm = true\nnorm_output = true",
        "layers = 2",
        "layers = 3\nwindow = 9\nnorm_before_residual = true\nhead_norm = true",
        "layers = 2\nd_head = 6\nhead_norm = true",
        "d_head = 12",
    ];

    fn activations(
        config: &Eagle3Config,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let [first, further] = layers(config, target)?;
        // One norm more than a layer of the target has.
        let first = (&first, first.d_model);
        let further = (&further, config.layers as u64 - 1);
        Ok(unrolled_stack(first, further, work, batch))
    }
}

impl Shipped for Eagle3 {}

/// The first layer, which reads a token and a hidden state side by side, and each further one.
fn layers(config: &Eagle3Config, target: &TargetSpec) -> Result<[LayerSizes; 2]> {
    let target = &target.with_heads(config.d_head)?;
    let further = LayerSizes {
        head_norms: config.head_norm,
        ..LayerSizes::of(target, [config.d_ff, config.heads, config.kv_heads])?
    };
    let first = LayerSizes {
        d_input: 2 * further.d_model,
        ..further
    };
    Ok([first, further])
}
