//! The layer of multi-token prediction of Qwen3.5 (<https://huggingface.co/Qwen>), in the checkpoint of its target or in a
//! folder of its own, as vLLM loads it.
//!
//! In files the rows of each head's gate stand behind those of its query, in one matrix; here they are two. Experts stand there
//! one by one (Qwen3-Next) or all in one tensor (Qwen3.5-MoE); here, and in what is written, one by one.

use std::path::Path;

use serde_json::{Value, json};

use crate::absent::DEFAULT_THETA;
use crate::beside::TARGET_CLASS;
use crate::config::Config;
use crate::dialect::description::{Dialect, Neutral, Quirks, of_table, top};
use crate::dialect::in_target::InTarget;
use crate::dialect::key::Key;
use crate::dialect::llama::{D_FF, D_HEAD, DTYPE, HEADS, KV_HEADS, NORMS, TIED, VOCAB, WIDTH};
use crate::dialect::settings::Settings;
use crate::error::{Error, Result};
use crate::folder::ModelFolder;
use crate::launch::{self, Launch};
use crate::mismatch::Mismatch;
use crate::mtp::NEXT_LAYERS;
use crate::names::unwrapped;
use crate::tensors::NamedTensor;

/// The layout of vLLM.
pub const QWEN_MTP: Dialect = Dialect {
    section: Some("text_config"),
    keys: &[
        top(&[
            Key::told("architectures", |settings, _| {
                Some(json!([Class::of(settings).architecture()]))
            }),
            Key::told("model_type", |settings, _| {
                Some(json!(Class::of(settings).model_type()))
            }),
            Key::size("num_hidden_layers", "target_layers"),
            Key::told(LAYERS, |_, _| Some(json!(1))),
            // What vLLM calls the same of Qwen3-Next.
            Key::told(NEXT_LAYERS, |settings, _| {
                (Class::of(settings) == Class::Next).then(|| json!(1))
            }),
        ]),
        top(&[WIDTH, FEED_FORWARD, HEADS, KV_HEADS, D_HEAD]),
        top(&[VOCAB]),
        top(NORMS),
        top(&[TIED, GATED, DTYPE, SHARE, ROPE]),
        of_table(
            "experts",
            |config| config.get(COUNT).is_some_and(|count| *count != 0),
            EXPERTS,
        ),
    ],
    neutral: &[&[
        ("hidden_act", Neutral::Word("silu")),
        ("attention_bias", Neutral::Flag(false)),
        ("attn_output_gate", Neutral::Flag(true)),
        (LAYERS, Neutral::Size(1)),
        ("norm_topk_prob", Neutral::Flag(true)),
        ("decoder_sparse_step", Neutral::Size(1)),
    ]],
    renamed: &[
        ["pre_fc_norm_embedding.", "mtp.pre_fc_norm_embedding."],
        ["pre_fc_norm_hidden.", "mtp.pre_fc_norm_hidden."],
        ["fc.", "mtp.fc."],
        ["layer.", "mtp.layers.0."],
        ["final_layernorm.", "mtp.norm."],
    ],
    of_target: &[
        "embed_tokens.",
        "layers.",
        "norm.",
        "lm_head.",
        "language_model.",
        "visual.",
    ],
    in_target: Some(InTarget {
        class: |settings, class| fits(settings, class).then_some(class),
        classes: |settings| match has_experts(settings) {
            true => {
                "one of Qwen3.5-MoE or Qwen3-Next, such as `Qwen3_5MoeForConditionalGeneration`"
            }
            false => "one of Qwen3.5 without experts, such as `Qwen3_5ForConditionalGeneration`",
        },
        count: |class| match class.starts_with(CLASSES[1]) {
            true => NEXT_LAYERS,
            false => LAYERS,
        },
        switches: &[],
        joined: joined_experts,
        launch: launch_lines_in_target,
    }),
    launch: launch_lines,
    quirks: Quirks {
        check_folder: check_first_layer_has_experts,
        reduce: part_joint_matrices,
        complete: join_queries_and_gates,
        ..Quirks::NONE
    },
    ..Dialect::named("MTP of Qwen3.5", recognises)
};

/// The class of a text-only target, from which vLLM makes that of its layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    Dense,
    Moe,
    Next,
}

impl Class {
    /// That of the target for which a folder is written or, where it has no such layer, one that computes the same.
    fn of(settings: &Settings) -> Self {
        let classes = settings
            .get("verifier")
            .map(|verifier| &verifier["architectures"]);
        let class = classes.and_then(|classes| classes[0].as_str());
        match has_experts(settings) {
            false => Self::Dense,
            true if class.is_some_and(|class| class.starts_with(CLASSES[1])) => Self::Next,
            true => Self::Moe,
        }
    }

    fn architecture(self) -> &'static str {
        match self {
            Self::Dense => "Qwen3_5ForCausalLM",
            Self::Moe => "Qwen3_5MoeForCausalLM",
            Self::Next => "Qwen3NextForCausalLM",
        }
    }

    fn model_type(self) -> &'static str {
        match self {
            Self::Dense => "qwen3_5_text",
            Self::Moe => "qwen3_5_moe_text",
            Self::Next => "qwen3_next",
        }
    }
}

/// Classes of targets with such a layer start with one of these.
const CLASSES: [&str; 2] = ["Qwen3_5", "Qwen3Next"];
/// How many such layers there are.
const LAYERS: &str = "mtp_num_hidden_layers";
/// What the names of its tensors start with.
const NAMES: &str = "mtp.";
/// Layers that have no experts whatever is said of the others.
const DENSE: &str = "mlp_only_layers";
/// The share of a head that positions turn, where nothing is said.
const USUAL_SHARE: f64 = 0.25;

/// Width of the feed-forward part, where there is one.
const FEED_FORWARD: Key = D_FF
    .with_read(|config, key, _| match config.get(COUNT) {
        Some(_) if config.get(key).is_none() => Ok(Value::Null),
        _ => Ok(json!(config.size(key, None)?)),
    })
    .written(|settings, here| {
        let is_dense = !has_experts(settings);
        is_dense.then(|| json!(settings.size(here)))
    });

/// The table of a layer's experts.
const EXPERTS: &[Key] = &[
    Key::size(COUNT, "experts.count"),
    Key::size("num_experts_per_tok", "experts.per_token"),
    Key::size("moe_intermediate_size", "experts.d_ff"),
    Key::size("shared_expert_intermediate_size", "experts.shared_d_ff"),
    Key::told("norm_topk_prob", |_, _| Some(json!(true))),
];

/// The number of experts.
const COUNT: &str = "num_experts";

fn has_experts(settings: &Settings) -> bool {
    settings.get("experts").is_some()
}

/// Heads have gates.
const GATED: Key = Key::told("attn_output_gate", |_, _| Some(json!(true)));
/// The share of a head that positions turn.
const SHARE: Key = Key::size("partial_rotary_factor", "rotary_share")
    .with_read(|config, _, _| Ok(json!(config.rotary_share(USUAL_SHARE)?)));
/// The base of rotary positions and their scaling, with that share once more.
const ROPE: Key = Key::code(
    "rope_parameters",
    "rope",
    |config, _, _| Ok(config.rope_of_share(DEFAULT_THETA)?.setting()),
    |settings, _| {
        let mut parameters = settings.rope()?.parameters();
        parameters["partial_rotary_factor"] = settings.get("rotary_share")?.clone();
        Some(parameters)
    },
);

fn recognises(folder: &ModelFolder) -> bool {
    let names = folder.config()["architectures"].as_array();
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| CLASSES.iter().any(|class| name.starts_with(class)))
        && folder
            .tensors()
            .any(|info| unwrapped(&info.name).starts_with(NAMES))
}

/// Fails where the configuration has experts and this layer, which counts as the first one, has none.
fn check_first_layer_has_experts(config: &Config) -> Result<()> {
    let dense = config.get(DENSE).and_then(Value::as_array);
    if dense.is_some_and(|layers| layers.iter().any(|layer| layer == 0)) {
        return Err(config.wrong(DENSE, "no layer 0: the MTP layer counts as that one"));
    }
    Ok(())
}

/// Matrices that files hold together, one by one.
fn part_joint_matrices(
    path: &Path,
    settings: &Settings,
    tensors: &mut Vec<NamedTensor>,
) -> Result<()> {
    part_queries_and_gates(path, settings, tensors)?;
    part_experts(path, settings, tensors)
}

/// The names here of the tensors that hold a matrix of every expert, and of the matrices that stand below each other in each.
const JOINT: [(&str, &[&str]); 2] = [
    ("layer.mlp.experts.gate_up_proj", &["gate_proj", "up_proj"]),
    ("layer.mlp.experts.down_proj", &["down_proj"]),
];

/// The joint tensors of all experts in the matrices of each.
fn part_experts(path: &Path, settings: &Settings, tensors: &mut Vec<NamedTensor>) -> Result<()> {
    let sizes = ["d_model", "experts.d_ff", "experts.count"];
    let [d_model, d_ff, count] = sizes.map(|key| settings.size(key));
    for (name, parts) in JOINT {
        let Some(at) = tensors.iter().position(|tensor| tensor.name == name) else {
            continue;
        };
        let joint = tensors.swap_remove(at);
        let of_one = match parts.len() {
            1 => [d_model, d_ff],
            _ => [d_ff, d_model],
        };
        let shape = [count, parts.len() * of_one[0], of_one[1]];
        if joint.shape != shape {
            return Err(Error::Shape {
                name: joint.name,
                path: path.to_path_buf(),
                mismatch: Mismatch::new(format!("{shape:?}"), format!("{:?}", joint.shape)),
            });
        }
        let length = joint.bytes.len() / (count * parts.len());
        for (index, bytes) in joint.bytes.chunks(length).enumerate() {
            let (expert, part) = (index / parts.len(), parts[index % parts.len()]);
            tensors.push(NamedTensor {
                name: format!("layer.mlp.experts.{expert}.{part}.weight"),
                shape: of_one.to_vec(),
                dtype: joint.dtype,
                bytes: bytes.to_vec(),
            });
        }
    }
    Ok(())
}

/// The name here of the matrix of queries, and of that of gates.
const QUERIES: &str = "layer.self_attn.q_proj.weight";
const GATES: &str = "layer.self_attn.gate_proj.weight";

/// The joint matrix of files in two.
fn part_queries_and_gates(
    path: &Path,
    settings: &Settings,
    tensors: &mut Vec<NamedTensor>,
) -> Result<()> {
    let Some(at) = tensors.iter().position(|tensor| tensor.name == QUERIES) else {
        // What reads them misses it by name.
        return Ok(());
    };
    let joint = tensors.swap_remove(at);
    let rows = settings.size("heads") * settings.size("d_head");
    let shape = [2 * rows, settings.size("d_model")];
    if joint.shape != shape {
        return Err(Error::Shape {
            name: joint.name,
            path: path.to_path_buf(),
            mismatch: Mismatch::new(format!("{shape:?}"), format!("{:?}", joint.shape)),
        });
    }
    let (mut queries, mut gates) = (Vec::new(), Vec::new());
    let head = joint.bytes.len() / (2 * settings.size("heads"));
    for of_head in joint.bytes.chunks(2 * head) {
        queries.extend_from_slice(&of_head[..head]);
        gates.extend_from_slice(&of_head[head..]);
    }
    for (name, bytes) in [(QUERIES, queries), (GATES, gates)] {
        tensors.push(NamedTensor {
            name: name.to_owned(),
            shape: vec![rows, shape[1]],
            dtype: joint.dtype,
            bytes,
        });
    }
    Ok(())
}

/// The reverse.
fn join_queries_and_gates(settings: &Settings, tensors: &mut Vec<NamedTensor>) {
    let place = |name| tensors.iter().position(|tensor| tensor.name == name);
    let (Some(of_queries), Some(of_gates)) = (place(QUERIES), place(GATES)) else {
        return;
    };
    let head = tensors[of_queries].bytes.len() / settings.size("heads");
    let gates = std::mem::take(&mut tensors[of_gates].bytes);
    let queries = &mut tensors[of_queries];
    let pairs = queries.bytes.chunks(head).zip(gates.chunks(head));
    queries.bytes = pairs.flat_map(|pair| [pair.0, pair.1].concat()).collect();
    queries.shape[0] *= 2;
    tensors.remove(of_gates);
}

/// Whether targets of a class have layers of these settings.
fn fits(settings: &Settings, class: &str) -> bool {
    match CLASSES.iter().position(|known| class.starts_with(known)) {
        Some(0) => class.starts_with("Qwen3_5Moe") == has_experts(settings),
        Some(_) => has_experts(settings),
        None => false,
    }
}

/// The matrices of all experts that one tensor of a file holds, in its order.
fn joined_experts(settings: &Settings, name: &str) -> Option<Vec<String>> {
    let (_, parts) = JOINT.iter().find(|(joint, _)| *joint == name)?;
    let experts = 0..settings.size("experts.count");
    let of_one = |expert: usize| {
        let named = move |part| format!("layer.mlp.experts.{expert}.{part}.weight");
        parts.iter().map(named)
    };
    let all: Vec<String> = experts.flat_map(of_one).collect();
    (!all.is_empty()).then_some(all)
}

/// vLLM's, and SGLang's for the classes that it has.
fn launch_lines_in_target(
    _: &Settings,
    class: &str,
    target: &Path,
    draft_tokens: usize,
) -> Vec<Launch> {
    let mut lines = vec![launch::vllm_by_own_layer(target, draft_tokens)];
    // It has Qwen3.5 with eyes alone.
    if class.starts_with(CLASSES[1]) || class.ends_with("ForConditionalGeneration") {
        lines.push(launch::sglang_by_own_layer(target, draft_tokens));
    }
    lines
}

/// vLLM's, for a target of a class that has such a layer.
fn launch_lines(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    let class = settings.get(TARGET_CLASS).and_then(Value::as_str);
    if class.is_none_or(|class| fits(settings, class)) {
        return vec![launch::vllm(dir, "mtp", target, draft_tokens)];
    }
    vec![Launch::remark(if has_experts(settings) {
        "vLLM loads this layer only with Qwen3.5-MoE and Qwen3-Next targets"
    } else {
        "vLLM loads this layer only with Qwen3.5 targets without experts"
    })]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_and_gates_stand_head_by_head_in_files() {
        let mut settings = Settings::default();
        settings.set("heads", 2);
        settings.set("d_head", 2);
        settings.set("d_model", 1);
        // Two heads of two rows of queries and two of gates, each of one column.
        let rows = [1.0, 2.0, -1.0, -2.0, 3.0, 4.0, -3.0, -4.0];
        let joint = NamedTensor::from_f32(QUERIES, [8, 1], rows.to_vec());
        let mut tensors = vec![joint.clone()];
        part_queries_and_gates(Path::new("file"), &settings, &mut tensors).unwrap();
        let parted = [
            NamedTensor::from_f32(QUERIES, [4, 1], vec![1.0, 2.0, 3.0, 4.0]),
            NamedTensor::from_f32(GATES, [4, 1], vec![-1.0, -2.0, -3.0, -4.0]),
        ];
        assert_eq!(tensors, parted);
        join_queries_and_gates(&settings, &mut tensors);
        assert_eq!(tensors, std::slice::from_ref(&joint));
        // That of a layer without gates has half of the rows.
        settings.set("heads", 4);
        let refused = part_queries_and_gates(Path::new("file"), &settings, &mut tensors);
        let told = refused.unwrap_err().to_string();
        assert!(
            told.contains("[16, 1]") && told.contains("[8, 1]"),
            "{told}"
        );
    }
}
