//! The layer of multi-token prediction behind the layers of DeepSeek-V3 (<https://arxiv.org/abs/2412.19437>) and GLM-4.5
//! (<https://arxiv.org/abs/2508.06471>), in the checkpoint of its target or in a folder of its own, as vLLM loads it.
//!
//! Its tensors are those of the layer whose number is that of the target's layers.

use std::path::Path;

use serde_json::{Value, json};

use crate::absent::DEFAULT_THETA;
use crate::beside::TARGET_CLASS;
use crate::dialect::description::{Dialect, Neutral, Quirks, of_table, top};
use crate::dialect::in_target::InTarget;
use crate::dialect::key::Key;
use crate::dialect::llama::{D_FF, DTYPE, HEADS, KV_HEADS, NORMS, TIED, VOCAB, WIDTH};
use crate::dialect::settings::Settings;
use crate::folder::ModelFolder;
use crate::latent::{
    self, GROUPED_WIDTH, LATENT, has_latent, is_latent, read_rows, write_rows, written_rope,
};
use crate::launch::{self, Launch};
use crate::mtp::NEXT_LAYERS;
use crate::names::unwrapped;

/// The layout of vLLM.
pub const DEEPSEEK_MTP: Dialect = Dialect {
    architectures: &[LATENT_CLASS, GROUPED_CLASS],
    keys: &[
        top(&[
            Key::told("architectures", |settings, _| {
                Some(json!([class(settings)]))
            }),
            Key::told("model_type", |settings, _| {
                Some(json!(match is_latent(settings) {
                    true => "deepseek_v3",
                    false => "glm4_moe",
                }))
            }),
            Key::size(TARGET_LAYERS, "target_layers"),
            Key::told(NEXT_LAYERS, |_, _| Some(json!(1))),
        ]),
        top(&[WIDTH, FEED_FORWARD, HEADS, KV_HEADS, GROUPED_WIDTH]),
        top(&[VOCAB]),
        top(NORMS),
        top(&[TIED, DTYPE]),
        of_table("latent", has_latent, LATENT),
        top(GROUPED),
        of_table(
            "experts",
            |config| config.get(EXPERTS_COUNT).is_some(),
            EXPERTS,
        ),
        top(ROUTING),
        top(&[ROPE, SHARE_AGAIN, ROPE_THETA, latent::ROPE_SCALING]),
    ],
    neutral: &[&[
        ("hidden_act", Neutral::Word("silu")),
        (NEXT_LAYERS, Neutral::Size(1)),
        ("norm_topk_prob", Neutral::Flag(true)),
        ("scoring_func", Neutral::Word("sigmoid")),
        ("topk_method", Neutral::Word("noaux_tc")),
        (
            "index_topk",
            Neutral::Absent("sparse attention is not trained"),
        ),
    ]],
    in_f32: &[BIAS],
    // What the layer holds again of the target.
    repeated: &["copied_embed_tokens.weight", "copied_head.weight"],
    of_target: &["embed_tokens.", "layers.", "norm.", "lm_head."],
    in_target: Some(InTarget {
        class: |settings, found| (found == class(settings)).then_some(found),
        classes: |settings| match is_latent(settings) {
            true => "`DeepseekV3ForCausalLM`",
            false => "`Glm4MoeForCausalLM`",
        },
        count: |_| NEXT_LAYERS,
        switches: &[],
        joined: |_, _| None,
        launch: launch_lines_in_target,
    }),
    launch: launch_lines,
    quirks: Quirks {
        canonical,
        stored: |settings, name| Some(stored(settings.size("target_layers"), name)),
        reduce: |path, settings, tensors| read_rows(path, settings, tensors, d_input),
        complete: |settings, tensors| write_rows(settings, tensors, d_input),
        ..Quirks::NONE
    },
    ..Dialect::named("MTP of DeepSeek-V3", recognises)
};

/// Classes of targets with such a layer.
const LATENT_CLASS: &str = "DeepseekV3ForCausalLM";
const GROUPED_CLASS: &str = "Glm4MoeForCausalLM";
/// How many layers the target has, behind which such layers are.
const TARGET_LAYERS: &str = "num_hidden_layers";
/// What is added to scores before experts are chosen. Rounded to bf16, near ones would be chosen for each other.
const BIAS: &str = "layer.mlp.e_score_correction_bias";
/// Shares of a head that positions turn, where nothing is said.
const USUAL_SHARE: f64 = 0.5;

fn class(settings: &Settings) -> &'static str {
    match is_latent(settings) {
        true => LATENT_CLASS,
        false => GROUPED_CLASS,
    }
}

/// Width of a dense feed-forward part, which the target has elsewhere.
const FEED_FORWARD: Key = D_FF.with_read(|_, _, _| Ok(Value::Null));
/// What grouped attention is like; where attention is latent, what recipes say when they say nothing.
const GROUPED: &[Key] = &[
    Key::code(
        "attention_bias",
        "qkv_bias",
        |config, key, _| match has_latent(config) {
            true if config.flag(key, false)? => Err(config.wrong(key, "`false`")),
            true => Ok(json!(true)),
            false => Ok(json!(config.flag(key, false)?)),
        },
        |settings, here| Some(json!(!is_latent(settings) && settings.flag(here))),
    ),
    Key::flag("use_qk_norm", "qk_norm", false).written(|settings, here| {
        let grouped = !is_latent(settings);
        grouped.then(|| json!(settings.flag(here)))
    }),
    Key::code(
        "partial_rotary_factor",
        "rotary_share",
        |config, _, _| match has_latent(config) {
            true => Ok(json!(USUAL_SHARE)),
            false => Ok(json!(config.rotary_share(USUAL_SHARE)?)),
        },
        |settings, here| match is_latent(settings) {
            true => None,
            false => settings.get(here).cloned(),
        },
    ),
];

const EXPERTS_COUNT: &str = "n_routed_experts";
/// The table of experts.
const EXPERTS: &[Key] = &[
    Key::size(EXPERTS_COUNT, "experts.count"),
    Key::size("num_experts_per_tok", "experts.per_token"),
    Key::size("moe_intermediate_size", "experts.d_ff"),
    Key::size("n_shared_experts", "experts.shared"),
    Key::size("n_group", "experts.groups"),
    Key::size("topk_group", "experts.groups_per_token"),
    Key::size("routed_scaling_factor", "experts.scale")
        .with_read(|config, key, _| Ok(json!(config.number(key, 1.0)?))),
];

/// How experts are chosen.
const ROUTING: &[Key] = &[
    Key::told("norm_topk_prob", |_, _| Some(json!(true))),
    Key::told("scoring_func", |_, _| Some(json!("sigmoid"))),
    Key::told("topk_method", |_, _| Some(json!("noaux_tc"))),
    // Every layer has experts, this one among them.
    Key::told("first_k_dense_replace", |_, _| Some(json!(0))),
    Key::told("moe_layer_freq", |_, _| Some(json!(1))),
];

/// The base of rotary positions and their scaling, with the share of a head once more.
const ROPE: Key = Key::code(
    "rope_parameters",
    "rope",
    |config, _, _| {
        let rope = config.rope_of_share(DEFAULT_THETA)?;
        Ok(latent::read_rope(config, rope).setting())
    },
    |settings, _| Some(written_rope(settings)?.parameters()),
);
const SHARE_AGAIN: Key =
    Key::told(
        "rope_parameters.partial_rotary_factor",
        |settings, _| match is_latent(settings) {
            true => None,
            false => settings.get("rotary_share").cloned(),
        },
    );
/// The same as old engines read it.
const ROPE_THETA: Key = Key::told("rope_theta", |settings, _| {
    settings.rope().map(|rope| json!(rope.rope_theta))
});

/// Width of what attention reads.
fn d_input(settings: &Settings, _: &str) -> usize {
    settings.size("d_model")
}

/// How many layers the target in a folder has.
fn target_layers(folder: &ModelFolder) -> Option<u64> {
    folder.config()[TARGET_LAYERS].as_u64()
}

fn recognises(folder: &ModelFolder) -> bool {
    let names = folder.config()["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    let Some(layers) = target_layers(folder) else {
        return false;
    };
    let own = format!("layers.{layers}.");
    names.any(|name| [LATENT_CLASS, GROUPED_CLASS].contains(&name))
        && folder
            .tensors()
            .any(|info| unwrapped(&info.name).starts_with(&own))
}

/// Beginnings of names here, and within the layer in files, where these are not those of a decoder layer.
const NAMES: [[&str; 2]; 8] = [
    ["enorm.", "enorm."],
    ["hnorm.", "hnorm."],
    ["eh_proj.", "eh_proj."],
    ["final_layernorm.", "shared_head.norm."],
    ["copied_head.", "shared_head.head."],
    ["copied_embed_tokens.", "embed_tokens."],
    [BIAS, "mlp.gate.e_score_correction_bias"],
    ["layer.mlp.shared_expert.", "mlp.shared_experts."],
];

fn canonical(folder: &ModelFolder, stored: &str) -> Option<String> {
    let own = stored.strip_prefix(&format!("layers.{}.", target_layers(folder)?))?;
    let known = NAMES
        .iter()
        .find_map(|[here, there]| Some(format!("{here}{}", own.strip_prefix(there)?)));
    Some(known.unwrap_or_else(|| format!("layer.{own}")))
}

fn stored(target_layers: usize, name: &str) -> String {
    let known = NAMES
        .iter()
        .find_map(|[here, there]| Some(format!("{there}{}", name.strip_prefix(here)?)));
    let own = known.unwrap_or_else(|| name.strip_prefix("layer.").unwrap_or(name).to_owned());
    format!("model.layers.{target_layers}.{own}")
}

/// vLLM's and SGLang's. SGLang hands over the output behind the norm, whatever the layer is.
fn launch_lines_in_target(
    settings: &Settings,
    _: &str,
    target: &Path,
    draft_tokens: usize,
) -> Vec<Launch> {
    if settings.get("experts").is_none() {
        return vec![Launch::remark(WITHOUT_EXPERTS)];
    }
    let mut lines = vec![launch::vllm_by_own_layer(target, draft_tokens)];
    if !is_latent(settings) && draft_tokens > 1 {
        lines.push(Launch::remark(
            "SGLang hands the second and later draft steps the layer's output behind its norm, where vLLM, and training here, hand \
             over that before it: it accepts fewer of their tokens",
        ));
    }
    lines.push(launch::sglang_by_own_layer(target, draft_tokens));
    lines
}

const WITHOUT_EXPERTS: &str = "no engine loads this layer without experts";

/// vLLM's, for a target of the class that has such a layer.
fn launch_lines(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    let found = settings.get(TARGET_CLASS).and_then(Value::as_str);
    let own = class(settings);
    if settings.get("experts").is_none() {
        return vec![Launch::remark(WITHOUT_EXPERTS)];
    }
    if found.is_none_or(|found| found == own) {
        return vec![launch::vllm(dir, "mtp", target, draft_tokens)];
    }
    vec![Launch::remark(match is_latent(settings) {
        true => "vLLM loads this layer only with DeepSeek-V3 targets",
        false => "vLLM loads this layer only with GLM-4.5 targets",
    })]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensors::NamedTensor;

    fn settings() -> Settings {
        let mut settings = Settings::default();
        settings.set("heads", 2);
        settings.set("target_layers", 3);
        settings.set("d_model", 1);
        let latent = json!({"d_fixed": 1, "d_turned": 4, "d_value": 1, "kv_rank": 2, "q_rank": 0, "scale": 1.5});
        settings.set("latent", latent);
        settings
    }

    #[test]
    fn dimensions_that_turn_stand_first_and_in_halves_here_and_as_before_in_files() {
        let values = |rows: usize| (0..rows).map(|row| row as f32).collect::<Vec<_>>();
        let tensor = |name, rows| NamedTensor::from_f32(name, [rows, 1], values(rows));
        let files = [
            tensor("layer.self_attn.q_proj.weight", 10),
            tensor("layer.self_attn.kv_a_proj_with_mqa.weight", 6),
            tensor("layer.self_attn.o_proj.weight", 6),
        ];
        let mut tensors = files.to_vec();
        (DEEPSEEK_MTP.quirks.reduce)(Path::new("file"), &settings(), &mut tensors).unwrap();
        let found = |at: usize| tensors[at].to_f32().unwrap();
        assert_eq!(found(0), [1.0, 3.0, 2.0, 4.0, 0.0, 6.0, 8.0, 7.0, 9.0, 5.0]);
        assert_eq!(found(1), [0.0, 1.0, 2.0, 4.0, 3.0, 5.0]);
        assert_eq!(tensors[2], files[2]);
        (DEEPSEEK_MTP.quirks.complete)(&settings(), &mut tensors);
        assert_eq!(tensors, files);
        let mut short = vec![tensor("layer.self_attn.q_proj.weight", 9)];
        let refused = (DEEPSEEK_MTP.quirks.reduce)(Path::new("file"), &settings(), &mut short);
        let told = refused.unwrap_err().to_string();
        assert!(
            told.contains("[10, 1]") && told.contains("[9, 1]"),
            "{told}"
        );
    }

    #[test]
    fn names_of_the_layer_are_those_of_the_one_behind_the_targets() {
        for (here, there) in [
            ("enorm.weight", "enorm.weight"),
            ("final_layernorm.weight", "shared_head.norm.weight"),
            (BIAS, "mlp.gate.e_score_correction_bias"),
            ("layer.mlp.gate.weight", "mlp.gate.weight"),
            (
                "layer.mlp.experts.1.up_proj.weight",
                "mlp.experts.1.up_proj.weight",
            ),
            (
                "layer.mlp.shared_expert.up_proj.weight",
                "mlp.shared_experts.up_proj.weight",
            ),
            ("layer.input_layernorm.weight", "input_layernorm.weight"),
        ] {
            assert_eq!(stored(3, here), format!("model.layers.3.{there}"));
        }
    }
}
