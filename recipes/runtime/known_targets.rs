//! What the files of targets on the hub say, for what is computed and told before anything is downloaded.

use spectrain_models::{ExpertsConfig, RopeConfig, RopeScaling, Routing, TargetSpec};

/// A target, as its `config.json` has it.
struct Known {
    id: &'static str,
    layers: usize,
    d_model: usize,
    d_ff: usize,
    heads: usize,
    kv_heads: usize,
    d_head: usize,
    vocab: usize,
    tied_head: bool,
    norm_epsilon: f64,
    rope: RopeConfig,
    max_positions: usize,
    /// Those of each layer, if it has any.
    experts: Option<ExpertsConfig>,
}

const fn qwen3(
    id: &'static str,
    layers: usize,
    d_model: usize,
    d_ff: usize,
    heads: usize,
    tied_head: bool,
) -> Known {
    Known {
        id,
        layers,
        d_model,
        d_ff,
        heads,
        kv_heads: 8,
        d_head: 128,
        vocab: 151_936,
        tied_head,
        norm_epsilon: 1e-6,
        rope: RopeConfig {
            theta: 1e6,
            scaling: RopeScaling::Default,
        },
        max_positions: 40_960,
        experts: None,
    }
}

/// Of 128 experts of a width a token goes through 8.
const fn qwen3_moe(known: Known, kv_heads: usize, d_ff: usize) -> Known {
    Known {
        kv_heads,
        experts: Some(ExpertsConfig {
            count: 128,
            per_token: 8,
            d_ff,
            normalised: true,
        }),
        ..known
    }
}

/// From version 3.1 on, whose context is `stretched` by so much.
const fn llama3(
    id: &'static str,
    layers: usize,
    d_model: usize,
    d_ff: usize,
    heads: usize,
    d_head: usize,
    stretched: f64,
) -> Known {
    Known {
        id,
        layers,
        d_model,
        d_ff,
        heads,
        kv_heads: 8,
        d_head,
        vocab: 128_256,
        tied_head: d_head == 64,
        norm_epsilon: 1e-5,
        rope: RopeConfig {
            theta: 5e5,
            scaling: RopeScaling::Llama3 {
                factor: stretched,
                low_freq_factor: 1.0,
                high_freq_factor: 4.0,
                original_max_position_embeddings: 8192.0,
            },
        },
        max_positions: 131_072,
        experts: None,
    }
}

const KNOWN: [Known; 11] = [
    qwen3("Qwen/Qwen3-0.6B", 28, 1024, 3072, 16, true),
    qwen3("Qwen/Qwen3-1.7B", 28, 2048, 6144, 16, true),
    qwen3("Qwen/Qwen3-4B", 36, 2560, 9728, 32, true),
    qwen3("Qwen/Qwen3-8B", 36, 4096, 12_288, 32, false),
    qwen3("Qwen/Qwen3-14B", 40, 5120, 17_408, 40, false),
    qwen3("Qwen/Qwen3-32B", 64, 5120, 25_600, 64, false),
    qwen3_moe(
        qwen3("Qwen/Qwen3-30B-A3B", 48, 2048, 6144, 32, false),
        4,
        768,
    ),
    qwen3_moe(
        qwen3("Qwen/Qwen3-235B-A22B", 94, 4096, 12_288, 64, false),
        4,
        1536,
    ),
    llama3(
        "meta-llama/Llama-3.2-1B-Instruct",
        16,
        2048,
        8192,
        32,
        64,
        32.0,
    ),
    llama3(
        "meta-llama/Llama-3.1-8B-Instruct",
        32,
        4096,
        14_336,
        32,
        128,
        8.0,
    ),
    llama3(
        "meta-llama/Llama-3.3-70B-Instruct",
        80,
        8192,
        28_672,
        64,
        128,
        8.0,
    ),
];

/// What the file of a hub id says and whether its head is its embedding, if it is one of the few known here.
pub(crate) fn find(id: &str) -> Option<(TargetSpec, bool)> {
    let known = KNOWN.iter().find(|known| known.id == id)?;
    let spec = TargetSpec {
        layers: known.layers,
        d_model: known.d_model,
        d_ff: known.d_ff,
        heads: known.heads,
        kv_heads: known.kv_heads,
        d_head: known.d_head,
        vocab: known.vocab,
        norm_epsilon: known.norm_epsilon,
        rope: known.rope.clone(),
        max_positions: known.max_positions,
        routing: known.experts.map(|experts| Routing {
            experts,
            layers: vec![true; known.layers],
        }),
    };
    Some((spec, known.tied_head))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::runtime::sizes::{idle_parameters, target_parameters};

    #[test]
    fn the_sizes_give_the_published_numbers_of_parameters() {
        // In billions, as the model cards say.
        let published = [
            0.6, 1.7, 4.0, 8.2, 14.8, 32.8, 30.5, 235.0, 1.24, 8.03, 70.6,
        ];
        for (known, published) in KNOWN.iter().zip(published) {
            let (spec, tied) = find(known.id).unwrap();
            let parameters = target_parameters(&spec, tied) as f64 / 1e9;
            assert!(
                (parameters / published - 1.0).abs() < 0.03,
                "{}: {parameters}",
                known.id
            );
        }
    }

    #[test]
    fn positions_turn_as_the_published_files_say() {
        let llama3 = |factor: f64| {
            json!({"rope_theta": 500_000.0, "rope_scaling": {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}, "rms_norm_eps": 1e-5})
        };
        for (id, file) in [
            ("meta-llama/Llama-3.2-1B-Instruct", llama3(32.0)),
            ("meta-llama/Llama-3.1-8B-Instruct", llama3(8.0)),
            ("meta-llama/Llama-3.3-70B-Instruct", llama3(8.0)),
            (
                "Qwen/Qwen3-8B",
                json!({"rope_theta": 1_000_000, "rope_scaling": {}, "rms_norm_eps": 1e-6}),
            ),
        ] {
            let (spec, _) = find(id).unwrap();
            let table = file["rope_scaling"].as_object().unwrap();
            let (scaling, _) = RopeScaling::read(table, spec.max_positions).unwrap();
            assert_eq!(spec.rope.scaling, scaling, "{id}");
            assert_eq!(json!(spec.rope.theta).as_f64(), file["rope_theta"].as_f64());
            assert_eq!(spec.norm_epsilon, file["rms_norm_eps"], "{id}");
        }
    }

    #[test]
    fn a_token_goes_through_the_published_part_of_a_mixture_of_experts() {
        for (id, published) in [("Qwen/Qwen3-30B-A3B", 3.3), ("Qwen/Qwen3-235B-A22B", 22.0)] {
            let (spec, tied) = find(id).unwrap();
            let parameters = target_parameters(&spec, tied) - idle_parameters(&spec);
            let parameters = parameters as f64 / 1e9;
            assert!(
                (parameters / published - 1.0).abs() < 0.03,
                "{id}: {parameters}"
            );
        }
    }
}
