//! MTP drafters of DeepSeek-V3 and GLM-4.5 targets: their folders, their engine and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::deepseek_mtp::DEEPSEEK_MTP;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_models::TargetSpec;
use spectrain_models::deepseek_mtp::{DeepseekMtp, DeepseekMtpConfig};
use spectrain_train::Workload;

use crate::families::family::Family;
use crate::families::footprint::{Activations, LayerSizes, Packed, unrolled};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for DeepseekMtp {
    const KIND: &'static str = "mtp-deepseek";
    const ENGINES: &'static [Engine] = &[Engine::Vllm];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&DEEPSEEK_MTP, None)];
    const SAMPLES: &'static [&'static str] = &[
        "experts = { count = 6, per_token = 2, d_ff = 24 }",
        "rotary_share = 1.0\nqkv_bias = false\nqk_norm = true",
        "experts = { count = 8, per_token = 2, d_ff = 24, shared = 2, groups = 4, groups_per_token = 2, scale = 2.5 }\n\
         latent = { q_rank = 24, kv_rank = 16, d_fixed = 8, d_turned = 4, d_value = 6 }",
        "latent = { q_rank = 0, kv_rank = 16, d_fixed = 8, d_turned = 8, d_value = 16 }",
    ];

    fn activations(
        config: &DeepseekMtpConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let mut layer = LayerSizes {
            head_norms: config.qk_norm,
            ..LayerSizes::of(target, [0, 0, 0])?
        };
        // Two norms before the layer and one behind it, and both inputs side by side.
        let mut more = 5 * layer.d_model + layer.with_experts(config.mixture(target));
        if let Some(latent) = config.latent_attention(target) {
            let [heads, query] = [latent.heads, latent.d_query()].map(|size| size as u64);
            layer = LayerSizes {
                heads,
                kv_heads: heads,
                d_head: query,
                head_norms: false,
                ..layer
            };
            // The states that queries, keys and values come out of, and what their norms make of them.
            more += 2 * (latent.q_rank + latent.kv_rank) as u64;
        }
        Ok(unrolled(&layer, more, work, batch))
    }
}

impl Shipped for DeepseekMtp {
    const BESIDE_CLASS: bool = true;
}
