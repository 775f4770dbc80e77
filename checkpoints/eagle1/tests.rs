use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::launch::Server;
use crate::seal;
use crate::write_folder;

/// Every size is different, so that a shape says which tensor it belongs to.
pub(crate) fn layout() -> Eagle1Layout {
    Eagle1Layout {
        hidden_size: 8,
        intermediate_size: 10,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        vocab_size: 20,
        bias: false,
        rms_norm_eps: 1e-5,
        max_position_embeddings: 4096,
        rope: Rope {
            rope_theta: 500_000.0,
            scaling: None,
        },
        dtype: DType::F32,
    }
}

fn biased() -> Eagle1Layout {
    Eagle1Layout {
        bias: true,
        ..layout()
    }
}

pub(crate) fn tensors(layout: &Eagle1Layout) -> Vec<NamedTensor> {
    let fill = |(seed, (name, shape, dtype)): (usize, TensorSpec)| {
        let count = shape.iter().product::<usize>();
        let value = |i: usize| match name == BIAS && !layout.bias {
            true => 0.0,
            false => ((i + 3 * seed) % 17) as f32 / 8.0 - 1.0,
        };
        let values = (0..count).map(value).collect();
        NamedTensor::from_f32(name, shape, values)
            .cast(dtype)
            .unwrap()
    };
    required(layout).into_iter().enumerate().map(fill).collect()
}

fn sorted(mut tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

/// A folder with what no check has seen, and its parent.
fn unchecked(config: &Value, tensors: &[NamedTensor]) -> TempDir {
    let parent = tempfile::tempdir().unwrap();
    write_folder(&parent.path().join("drafter"), config, tensors, &[]).unwrap();
    parent
}

fn read_unchecked(
    config: &Value,
    tensors: &[NamedTensor],
) -> Result<(Eagle1Layout, Vec<NamedTensor>)> {
    read(&unchecked(config, tensors).path().join("drafter"))
}

/// Both directions refuse the tensors, and name `part`.
fn refused(layout: &Eagle1Layout, tensors: Vec<NamedTensor>, part: &str) {
    let text = read_unchecked(&to_json(layout), &tensors)
        .unwrap_err()
        .to_string();
    assert!(text.contains(part), "reading: {text} does not name {part}");
    let parent = tempfile::tempdir().unwrap();
    let text = write(
        &parent.path().join("drafter"),
        layout,
        tensors,
        &Value::Null,
    )
    .unwrap_err()
    .to_string();
    assert!(text.contains(part), "writing: {text} does not name {part}");
    assert_eq!(
        fs::read_dir(parent.path()).unwrap().count(),
        0,
        "a refused drafter leaves nothing"
    );
}

#[test]
fn a_folder_holds_what_both_engines_read() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("drafter");
    write(
        &dir,
        &layout(),
        tensors(&layout()),
        &json!({"from": "eagle1"}),
    )
    .unwrap();
    let folder = ModelFolder::open(&dir).unwrap();
    let config = folder.config();
    assert_eq!(
        config["architectures"],
        json!(["EagleLlamaForCausalLM", "LlamaForCausalLMEagle"])
    );
    assert!(recognises(config));
    assert_eq!(
        config["rope_parameters"],
        json!({"rope_type": "default", "rope_theta": 500_000.0})
    );
    // vLLM refuses a folder with either; SGLang draws a bias that is not there at random.
    for absent in ["lm_head.weight", "layers.0.input_layernorm.weight"] {
        assert!(folder.info(absent).is_err(), "{absent}");
    }
    assert_eq!(folder.read_f32(BIAS, &[8]).unwrap(), [0.0; 8]);
    assert_eq!(seal::provenance(config).unwrap()["from"], "eagle1");
}

#[test]
fn every_variant_of_the_layout_is_read_back() {
    let scaling =
        json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192});
    let variants = [
        layout(),
        biased(),
        Eagle1Layout {
            dtype: DType::BF16,
            rope: Rope {
                rope_theta: 1e6,
                scaling: Some(scaling),
            },
            ..layout()
        },
    ];
    for variant in variants {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("drafter");
        write(&dir, &variant, tensors(&variant), &Value::Null).unwrap();
        let (found, read) = read(&dir).unwrap();
        assert_eq!(found, variant);
        let mut expected = tensors(&variant);
        expected.retain(|tensor| variant.bias || tensor.name != BIAS);
        assert_eq!(sorted(read), sorted(expected));
    }
}

#[test]
fn a_dropped_tensor_is_refused_by_name() {
    for (position, (name, ..)) in required(&biased()).into_iter().enumerate() {
        let mut kept = tensors(&biased());
        kept.remove(position);
        refused(&biased(), kept, &format!("missing tensors: `{name}`"));
    }
}

#[test]
fn an_unknown_tensor_is_refused_by_name() {
    for name in [
        "lm_head.weight",
        "norm.weight",
        "layers.0.input_layernorm.weight",
        "layers.1.mlp.up_proj.weight",
        "layers.0.self_attn.q_proj.bias",
    ] {
        let mut more = tensors(&layout());
        more.push(NamedTensor::from_f32(name, [7], vec![0.0; 7]));
        refused(&layout(), more, &format!("unexpected tensors: `{name}`"));
    }
}

#[test]
fn a_transposed_matrix_is_refused_with_both_shapes() {
    for (position, (_, shape, _)) in required(&layout()).into_iter().enumerate() {
        if shape.len() < 2 {
            continue;
        }
        let mut transposed = tensors(&layout());
        transposed[position].shape.reverse();
        let got: Vec<_> = shape.iter().rev().copied().collect();
        refused(
            &layout(),
            transposed,
            &format!("expected {shape:?}, got {got:?}"),
        );
    }
}

#[test]
fn a_bias_that_the_layout_denies_is_not_written() {
    let parent = tempfile::tempdir().unwrap();
    let error = write(
        &parent.path().join("d"),
        &layout(),
        tensors(&biased()),
        &Value::Null,
    );
    let text = error.unwrap_err().to_string();
    assert!(
        text.contains("`fc.bias`") && text.contains("zeros"),
        "{text}"
    );
}

#[test]
fn a_published_folder_is_read() {
    let mut published = tensors(&layout());
    published.retain(|tensor| tensor.name != BIAS);
    for (name, shape) in [(REPEATED[0], vec![20, 8]), (REPEATED[1], vec![3])] {
        let count = shape.iter().product();
        published.push(NamedTensor::from_f32(name, shape, vec![0.5; count]));
    }
    let mut config = to_json(&layout());
    config["architectures"] = json!(["LlamaForCausalLM"]);
    let keys = config.as_object_mut().unwrap();
    keys.remove("rope_parameters");
    keys.remove("bias");
    assert!(recognises(&config));
    let (found, read) = read_unchecked(&config, &published).unwrap();
    assert_eq!(found, layout());
    assert_eq!(read.len(), required(&layout()).len() - 1);
}

#[test]
fn a_published_bias_is_found_whatever_the_configuration_says() {
    let mut config = to_json(&layout());
    config.as_object_mut().unwrap().remove("bias");
    let (found, read) = read_unchecked(&config, &tensors(&biased())).unwrap();
    assert_eq!(found, biased());
    assert_eq!(read.len(), required(&layout()).len());
}

#[test]
fn only_eagle_1_folders_are_recognised() {
    for name in ["LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM"] {
        assert!(!recognises(
            &json!({"architectures": [name], "num_hidden_layers": 1})
        ));
    }
    let target = json!({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32});
    assert!(!recognises(&target) && !recognises(&json!({})));
}

#[test]
fn configurations_of_another_computation_are_refused_by_key() {
    let changes = [
        ("architectures", json!(["EagleMistralForCausalLM"])),
        ("num_hidden_layers", json!(2)),
        ("hidden_act", json!("gelu")),
        ("partial_rotary_factor", json!(0.5)),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("logit_scale", json!(0.5)),
        ("hot_vocab_size", json!(10)),
        ("rope_theta", json!(10_000.0)),
        ("num_key_value_heads", json!(3)),
        ("vocab_size", json!(0)),
        ("bias", json!("yes")),
    ];
    for (key, value) in changes {
        let mut config = to_json(&layout());
        config[key] = value;
        let text = read_unchecked(&config, &tensors(&layout()))
            .unwrap_err()
            .to_string();
        assert!(
            text.contains("config.json") && text.contains(key),
            "{key}: {text}"
        );
    }
}

#[test]
fn layouts_that_no_engine_would_run_as_meant_are_refused_by_field() {
    let parent = tempfile::tempdir().unwrap();
    let scaling = Some(json!({"factor": 2.0}));
    let wrong = [
        (
            "kv_heads",
            Eagle1Layout {
                kv_heads: 3,
                ..layout()
            },
        ),
        (
            "dtype",
            Eagle1Layout {
                dtype: DType::I64,
                ..layout()
            },
        ),
        (
            "rope.scaling",
            Eagle1Layout {
                rope: Rope {
                    rope_theta: 1.0,
                    scaling,
                },
                ..layout()
            },
        ),
    ];
    for (field, wrong) in wrong {
        let error = write(&parent.path().join("d"), &wrong, Vec::new(), &Value::Null)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
    }
}

#[test]
fn vllm_is_not_offered_a_bias_that_it_would_drop() {
    let lines = launch_lines(Path::new("runs/a"), &layout(), "org/name", 3);
    assert_eq!(
        lines[0].text,
        r#"vllm serve org/name --speculative-config '{"method":"eagle","model":"runs/a","num_speculative_tokens":3}'"#
    );
    assert!(
        lines[1].text.contains("--speculative-algorithm EAGLE --") && lines[1].text.ends_with(" 4")
    );
    let lines = launch_lines(Path::new("runs/a"), &biased(), "org/name", 3);
    assert!(lines.len() == 1 && lines[0].server == Some(Server::Sglang));
}
