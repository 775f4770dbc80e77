//! MTP drafters of Qwen3.5 targets: their folders, their engine and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::qwen_mtp::QWEN_MTP;
use spectrain_models::TargetSpec;
use spectrain_models::qwen_mtp::{QwenMtp, QwenMtpConfig};
use spectrain_train::Workload;

use crate::families::family::Family;
use crate::families::footprint::{Activations, LayerSizes, Packed, unrolled};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for QwenMtp {
    const KIND: &'static str = "mtp-qwen";
    const ENGINES: &'static [Engine] = &[Engine::Vllm];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&QWEN_MTP, None)];
    const SAMPLES: &'static [&'static str] = &[
        "",
        "rotary_share = 1.0",
        "experts = { count = 5, per_token = 2, d_ff = 24, shared_d_ff = 40 }",
    ];

    fn activations(
        config: &QwenMtpConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let mut layer = LayerSizes::of(target, [0, 0, 0])?;
        let routed = layer.with_experts(config.mixture(target));
        // Two norms before the layer and one behind it, and both inputs side by side; of attention the gates, what they are made
        // of and what they scale.
        let more = 5 * layer.d_model + 3 * layer.queries() + routed;
        Ok(unrolled(&layer, more, work, batch))
    }
}

impl Shipped for QwenMtp {
    const BESIDE_CLASS: bool = true;
}
