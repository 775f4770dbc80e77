//! EAGLE-1 drafters, HASS's included: their folders, their engines and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::eagle1::EAGLE1;
use spectrain_models::TargetSpec;
use spectrain_models::eagle1::{Eagle1, Eagle1Config};
use spectrain_train::Workload;

use crate::families::family::Family;
use crate::families::footprint::{Activations, LayerSizes, Packed, unrolled};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for Eagle1 {
    const KIND: &'static str = "eagle1";
    const ENGINES: &'static [Engine] = &[Engine::Vllm, Engine::Sglang];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[(&EAGLE1, None)];
    const SAMPLES: &'static [&'static str] = &[
        "",
        "bias = true\nd_ff = 24\nheads = 2\nkv_heads = 1",
        "d_head = 6",
        "qkv_bias = true",
    ];

    fn activations(
        config: &Eagle1Config,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let target = &target.with_heads(config.d_head)?;
        let layer = LayerSizes {
            head_norms: false,
            ..LayerSizes::of(target, [config.d_ff, config.heads, config.kv_heads])?
        };
        Ok(unrolled(&layer, 0, work, batch))
    }
}

impl Shipped for Eagle1 {}
