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
        "latent = { q_rank = 24, kv_rank = 16, d_fixed = 8, d_turned = 4, d_value = 6 }",
        "layers = 2\nnorm_before_residual = true\nnorm_output = true\ndraft_vocab = 20\n\
         latent = { q_rank = 16, kv_rank = 8, d_fixed = 12, d_turned = 4 }",
    ];

    fn activations(
        config: &Eagle3Config,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let layer = layer(config, target)?;
        let further = (&layer, config.layers as u64 - 1);
        let latent = config.latent.as_ref();
        // The states that queries, keys and values come out of, and what their norms make of them, in every layer.
        let of_layer = latent.map_or(0, |latent| 2 * (latent.q_rank + latent.kv_rank) as u64);
        let of_latent = config.layers as u64 * of_layer;
        let steps = unrolled_stack((&layer, of_latent), further, work, batch);
        // Embeddings, what their norm gives, and what queries, keys and values are made of these: once for all steps.
        let of_tokens = match latent {
            None => 2 * layer.d_model + layer.queries() + 2 * layer.keys(),
            Some(_) => 2 * layer.d_model,
        };
        Ok(Activations {
            kept: steps.kept + (batch.positions() * of_tokens) as f64,
            ..steps
        })
    }
}

impl Shipped for Eagle3 {}

/// A layer of a step. The first reads tokens beside hidden states, and in each step multiplies the latter alone.
fn layer(config: &Eagle3Config, target: &TargetSpec) -> Result<LayerSizes> {
    let target = &target.with_heads(config.d_head)?;
    let layer = LayerSizes {
        head_norms: config.head_norm,
        ..LayerSizes::of(target, [config.d_ff, config.heads, config.kv_heads])?
    };
    Ok(match &config.latent {
        None => layer,
        Some(latent) => LayerSizes {
            kv_heads: layer.heads,
            d_head: (latent.d_fixed + latent.d_turned) as u64,
            ..layer
        },
    })
}
