use std::collections::BTreeMap;
use std::fs;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::ModelFolder;
use crate::folder::CONFIG;
use crate::seal;
use crate::write_folder;

/// Every size is different, so that a shape says which tensor it belongs to.
pub(crate) fn layout() -> Eagle3Layout {
    Eagle3Layout {
        hidden_size: 8,
        target_hidden_size: 7,
        intermediate_size: 10,
        heads: 4,
        kv_heads: 2,
        head_dim: 6,
        layers: 1,
        vocab_size: 20,
        draft_vocab_size: 11,
        captured_layers: vec![1, 3, 6],
        norm_before_residual: false,
        fc_norm: false,
        norm_output: false,
        window: 0,
        rms_norm_eps: 1e-5,
        max_position_embeddings: 4096,
        rope: Rope {
            rope_theta: 500_000.0,
            scaling: None,
        },
        shared_head: false,
        dtype: DType::F32,
    }
}

fn full_vocab() -> Eagle3Layout {
    Eagle3Layout {
        draft_vocab_size: 20,
        ..layout()
    }
}

fn fill((name, shape, dtype): TensorSpec, seed: usize) -> NamedTensor {
    let count = shape.iter().product::<usize>();
    let values = (0..count).map(|i| ((i + 3 * seed) % 17) as f32 / 8.0 - 1.0);
    NamedTensor::from_f32(name, shape, values.collect())
        .cast(dtype)
        .unwrap()
}

pub(crate) fn tensors(layout: &Eagle3Layout) -> Vec<NamedTensor> {
    let (d2t, t2d) = vocabulary_tensors(&[0, 1, 2, 4, 5, 8, 9, 12, 13, 15, 17], 20);
    let make = |(seed, spec): (usize, TensorSpec)| match spec.0.as_str() {
        "d2t" => d2t.clone(),
        "t2d" => t2d.clone(),
        _ => fill(spec, seed),
    };
    required(layout).into_iter().enumerate().map(make).collect()
}

fn sorted(mut tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}

fn named<'a>(tensors: &'a mut [NamedTensor], name: &str) -> &'a mut NamedTensor {
    tensors
        .iter_mut()
        .find(|tensor| tensor.name == name)
        .unwrap()
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
) -> Result<(Eagle3Layout, Vec<NamedTensor>)> {
    read(&unchecked(config, tensors).path().join("drafter"))
}

/// Both directions refuse the tensors, and name `part`.
fn refused(layout: &Eagle3Layout, tensors: Vec<NamedTensor>, part: &str) {
    let text = read_unchecked(&config::to_json(layout), &tensors)
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

fn round_trip(layout: &Eagle3Layout) -> (TempDir, Value) {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("drafter");
    write(&dir, layout, tensors(layout), &json!({"recipe": "eagle3"})).unwrap();
    let (read_layout, read_tensors) = read(&dir).unwrap();
    assert_eq!(&read_layout, layout);
    assert_eq!(sorted(read_tensors), sorted(tensors(layout)));
    let config = serde_json::from_slice(&fs::read(dir.join(CONFIG)).unwrap()).unwrap();
    (parent, config)
}

#[test]
fn a_written_drafter_is_read_back_with_both_layer_id_keys() {
    let (_parent, config) = round_trip(&layout());
    assert_eq!(config["architectures"], json!(["LlamaForCausalLMEagle3"]));
    assert_eq!(config["eagle_aux_hidden_state_layer_ids"], json!([2, 4, 7]));
    assert_eq!(
        config["eagle_config"]["eagle_aux_hidden_state_layer_ids"],
        json!([1, 3, 6])
    );
    assert_eq!(config["num_aux_hidden_states"], 3);
    assert_eq!(config["draft_vocab_size"], 11);
    assert_eq!(config["norm_before_residual"], false);
    assert_eq!(config["rope_theta"], 500_000.0);
    assert_eq!(
        config["rope_parameters"],
        json!({"rope_type": "default", "rope_theta": 500_000.0})
    );
    assert_eq!(config["max_position_embeddings"], 4096);
    assert!(config.get("layer_types").is_none() && config.get("rope_scaling").is_none());
    assert_eq!(seal::provenance(&config).unwrap()["recipe"], "eagle3");
}

#[test]
fn every_variant_of_the_layout_is_read_back() {
    let scaling =
        json!({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192});
    let variants = [
        full_vocab(),
        Eagle3Layout {
            shared_head: true,
            ..full_vocab()
        },
        Eagle3Layout {
            fc_norm: true,
            norm_output: true,
            dtype: DType::BF16,
            ..layout()
        },
        Eagle3Layout {
            norm_before_residual: true,
            dtype: DType::F16,
            ..layout()
        },
        Eagle3Layout {
            rope: Rope {
                rope_theta: 1e6,
                scaling: Some(scaling),
            },
            ..layout()
        },
        Eagle3Layout {
            captured_layers: vec![0],
            ..layout()
        },
        Eagle3Layout {
            window: 2048,
            ..layout()
        },
    ];
    for variant in variants {
        let (_, config) = round_trip(&variant);
        assert_eq!(
            config["rope_parameters"]["rope_theta"],
            variant.rope.rope_theta
        );
        if let Some(scaling) = variant.rope.scaling {
            assert_eq!(config["rope_scaling"], scaling);
            assert_eq!(config["rope_parameters"]["rope_type"], scaling["rope_type"]);
        }
    }
}

#[test]
fn a_shared_head_is_null_and_not_absent() {
    let (parent, config) = round_trip(&Eagle3Layout {
        shared_head: true,
        ..full_vocab()
    });
    assert_eq!(config.get("draft_vocab_size"), Some(&Value::Null));
    let folder = ModelFolder::open(parent.path().join("drafter")).unwrap();
    assert!(
        folder
            .tensors()
            .all(|info| !["lm_head.weight", "d2t", "t2d"].contains(&info.name.as_str()))
    );
}

#[test]
fn a_dropped_tensor_is_refused_by_name() {
    let layout = Eagle3Layout {
        fc_norm: true,
        ..layout()
    };
    for (position, (name, ..)) in required(&layout).into_iter().enumerate() {
        let mut kept = tensors(&layout);
        kept.remove(position);
        if name == "t2d" {
            // No engine reads it, so published folders may lack it; ours may not.
            let parent = tempfile::tempdir().unwrap();
            let error = write(&parent.path().join("d"), &layout, kept, &Value::Null).unwrap_err();
            assert!(error.to_string().contains("missing tensors: `t2d`"));
        } else {
            refused(&layout, kept, &format!("`{name}`"));
        }
    }
}

#[test]
fn an_unknown_tensor_is_refused_by_name() {
    for name in [
        "midlayer.self_attn.q_proj.bias",
        "input_norm.weight",
        "fc_norm.0.weight",
    ] {
        let mut more = tensors(&layout());
        more.push(NamedTensor::from_f32(name, [7], vec![0.0; 7]));
        refused(&layout(), more, &format!("unexpected tensors: `{name}`"));
    }
}

#[test]
fn a_vocabulary_map_of_the_whole_vocabulary_is_not_written() {
    let (d2t, t2d) = vocabulary_tensors(&(0..20).collect::<Vec<_>>(), 20);
    let mut more = tensors(&full_vocab());
    more.extend([d2t, t2d]);
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("drafter");
    let error = write(&dir, &full_vocab(), more, &Value::Null).unwrap_err();
    let expected = "unexpected tensors: `d2t`, `t2d`";
    assert!(error.to_string().contains(expected), "{error}");
}

#[test]
fn two_tensors_in_each_others_place_are_refused_unless_they_have_one_shape() {
    let parent = tempfile::tempdir().unwrap();
    let specs = required(&layout());
    for first in 0..specs.len() {
        for second in 0..first {
            if (&specs[first].1, specs[first].2) == (&specs[second].1, specs[second].2) {
                continue;
            }
            let mut swapped = tensors(&layout());
            swapped[first].name = specs[second].0.clone();
            swapped[second].name = specs[first].0.clone();
            let written = write(&parent.path().join("d"), &layout(), swapped, &Value::Null);
            assert!(
                matches!(
                    written,
                    Err(Error::Shape { .. } | Error::ElementType { .. })
                ),
                "{first} {second}"
            );
        }
    }
    assert_eq!(fs::read_dir(parent.path()).unwrap().count(), 0);
}

#[test]
fn a_transposed_matrix_is_refused_with_both_shapes() {
    for (position, (name, shape, _)) in required(&layout()).into_iter().enumerate() {
        if shape.len() < 2 {
            continue;
        }
        let mut transposed = tensors(&layout());
        transposed[position].shape.reverse();
        let got: Vec<_> = shape.iter().rev().copied().collect();
        refused(&layout(), transposed, &format!("`{name}`"));
        let mut transposed = tensors(&layout());
        transposed[position].shape.reverse();
        refused(
            &layout(),
            transposed,
            &format!("expected {shape:?}, got {got:?}"),
        );
    }
}

#[test]
fn a_shifted_vocabulary_map_is_refused() {
    for shift in [1, -1] {
        let mut shifted = tensors(&layout());
        let d2t = named(&mut shifted, "d2t");
        let offsets = d2t
            .to_i64()
            .unwrap()
            .into_iter()
            .map(|offset| offset + shift)
            .collect();
        *d2t = NamedTensor::from_i64("d2t", [11], offsets);
        refused(
            &layout(),
            shifted,
            if shift > 0 { "`t2d`" } else { "`d2t`" },
        );
    }
}

#[test]
fn a_vocabulary_map_of_ids_instead_of_offsets_is_refused() {
    let mut wrong = tensors(&layout());
    let d2t = named(&mut wrong, "d2t");
    let ids = target_ids(d2t)
        .unwrap()
        .into_iter()
        .map(|id| id as i64)
        .collect();
    *d2t = NamedTensor::from_i64("d2t", [11], ids);
    refused(&layout(), wrong, "the target has 20");
}

#[test]
fn target_ids_must_ascend() {
    let mut wrong = tensors(&layout());
    let mut offsets = named(&mut wrong, "d2t").to_i64().unwrap();
    (offsets[3], offsets[4]) = (offsets[4] + 1, offsets[3] - 1);
    *named(&mut wrong, "d2t") = NamedTensor::from_i64("d2t", [11], offsets);
    refused(&layout(), wrong, "target ids must ascend");
}

#[test]
fn a_neighbouring_layer_in_one_of_the_two_keys_is_refused() {
    let pristine = config::to_json(&layout());
    for (position, step) in [(0, -1), (0, 1), (1, 1), (2, 1), (2, -1)] {
        for nested in [false, true] {
            let mut config = pristine.clone();
            let table = if nested {
                &mut config["eagle_config"]
            } else {
                &mut config
            };
            let id = &mut table["eagle_aux_hidden_state_layer_ids"][position];
            *id = json!(id.as_i64().unwrap() + step);
            let text = read_unchecked(&config, &tensors(&layout()))
                .unwrap_err()
                .to_string();
            assert!(
                text.contains("eagle_config.eagle_aux_hidden_state_layer_ids"),
                "{text}"
            );
        }
    }
}

#[test]
fn either_layer_id_key_alone_is_understood_in_its_own_meaning() {
    let mut top_only = config::to_json(&layout());
    top_only.as_object_mut().unwrap().remove("eagle_config");
    assert_eq!(
        read_unchecked(&top_only, &tensors(&layout())).unwrap().0,
        layout()
    );
    let mut nested_only = config::to_json(&layout());
    nested_only
        .as_object_mut()
        .unwrap()
        .remove("eagle_aux_hidden_state_layer_ids");
    assert_eq!(
        read_unchecked(&nested_only, &tensors(&layout())).unwrap().0,
        layout()
    );
}

#[test]
fn without_layer_ids_the_default_of_the_target_is_taken() {
    let mut config = config::to_json(&layout());
    config.as_object_mut().unwrap().remove("eagle_config");
    config
        .as_object_mut()
        .unwrap()
        .remove("eagle_aux_hidden_state_layer_ids");
    let folder = unchecked(&config, &tensors(&layout()));
    let dir = folder.path().join("drafter");
    let text = read(&dir).unwrap_err().to_string();
    assert!(
        text.contains("`eagle_aux_hidden_state_layer_ids`") && text.contains("got nothing"),
        "{text}"
    );
    assert_eq!(
        read_for_target(&dir, 32).unwrap().0.captured_layers,
        [1, 15, 28]
    );
}

#[test]
fn a_published_folder_with_other_spellings_is_read() {
    let mut published = tensors(&layout());
    for tensor in &mut published {
        tensor.name = tensor.name.replace("midlayer.", "layers.0.");
    }
    published.retain(|tensor| tensor.name != "t2d");
    let d2t = named(&mut published, "d2t");
    let narrow = d2t
        .to_i64()
        .unwrap()
        .into_iter()
        .flat_map(|offset| (offset as i32).to_le_bytes());
    *d2t = NamedTensor {
        dtype: DType::I32,
        bytes: narrow.collect(),
        ..d2t.clone()
    };
    published.push(NamedTensor::from_f32(
        "embed_tokens.weight",
        [20, 8],
        vec![0.5; 160],
    ));
    let mut config = config::to_json(&layout());
    config.as_object_mut().unwrap().remove("rope_parameters");
    config["rope_scaling"] = json!({"type": "linear", "factor": 2.0});
    let (read_layout, read_tensors) = read_unchecked(&config, &published).unwrap();
    assert_eq!(
        read_layout.rope.scaling,
        Some(json!({"factor": 2.0, "rope_type": "linear"}))
    );
    let names: BTreeMap<_, _> = read_tensors
        .iter()
        .map(|tensor| (tensor.name.as_str(), tensor))
        .collect();
    assert!(
        names.contains_key("midlayer.hidden_norm.weight")
            && names.contains_key("embed_tokens.weight")
    );
    let mut ours = tensors(&layout());
    assert_eq!(names["d2t"], named(&mut ours, "d2t"));
}

#[test]
fn a_tensor_under_both_spellings_is_refused() {
    let mut twice = tensors(&layout());
    twice.push(NamedTensor::from_f32(
        "layers.0.hidden_norm.weight",
        [8],
        vec![0.0; 8],
    ));
    let text = read_unchecked(&config::to_json(&layout()), &twice)
        .unwrap_err()
        .to_string();
    assert!(
        text.contains("`layers.0.hidden_norm.weight` and `midlayer.hidden_norm.weight`"),
        "{text}"
    );
}

#[test]
fn configurations_of_another_computation_are_refused_by_key() {
    let changes = [
        ("architectures", json!(["PEagleDraftModel"])),
        ("num_hidden_layers", json!(1 << 20)),
        ("layer_types", json!(["chunked_attention"])),
        ("layer_types", json!(["full_attention", "full_attention"])),
        ("head_dim", json!(5)),
        ("rms_norm_eps", json!(1.0)),
        ("rms_norm_eps", json!(1e-300)),
        ("rope_theta", json!(1e300)),
        ("model_type", json!("qwen3")),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!(true)),
        ("norm_before_fc", json!(true)),
        ("logit_scale", json!(0.5)),
        ("rope_theta", json!(10_000.0)),
        (
            "rope_scaling",
            json!({"rope_type": "linear", "factor": 2.0}),
        ),
        ("num_aux_hidden_states", json!(2)),
        ("num_key_value_heads", json!(3)),
        ("hidden_size", json!(1u64 << 60)),
        ("hidden_size", json!("8")),
        ("vocab_size", json!(0)),
        ("eagle_aux_hidden_state_layer_ids", json!([0, 4, 7])),
        ("eagle_aux_hidden_state_layer_ids", json!([4, 2, 7])),
        ("rms_norm_eps", json!(-1.0)),
    ];
    for (key, value) in changes {
        let mut config = config::to_json(&layout());
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
fn a_missing_head_of_a_drafter_with_its_own_vocabulary_is_refused() {
    let mut headless = tensors(&layout());
    headless.retain(|tensor| tensor.name != "lm_head.weight");
    refused(&layout(), headless, "lm_head.weight");
}

#[test]
fn weights_that_were_never_loaded_are_not_written() {
    let mut unset = tensors(&layout());
    *named(&mut unset, "norm.weight") =
        NamedTensor::from_f32("norm.weight", [8], vec![f32::NAN; 8]);
    let parent = tempfile::tempdir().unwrap();
    let error = write(&parent.path().join("d"), &layout(), unset, &Value::Null)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`norm.weight`") && error.contains("not a finite number"),
        "{error}"
    );
}

#[test]
fn a_tensor_of_another_type_is_not_written() {
    let mut mixed = tensors(&layout());
    let norm = named(&mut mixed, "norm.weight");
    *norm = norm.clone().cast(DType::BF16).unwrap();
    let parent = tempfile::tempdir().unwrap();
    let error = write(&parent.path().join("d"), &layout(), mixed, &Value::Null)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`norm.weight`") && error.ends_with("expected F32, got BF16"),
        "{error}"
    );
}

#[test]
fn layouts_that_no_engine_would_run_as_meant_are_refused_by_field() {
    let parent = tempfile::tempdir().unwrap();
    let scaling = Some(json!({"factor": 2.0}));
    for (field, wrong) in [
        (
            "layers",
            Eagle3Layout {
                layers: 0,
                ..layout()
            },
        ),
        (
            "captured_layers",
            Eagle3Layout {
                captured_layers: vec![3, 1, 6],
                ..layout()
            },
        ),
        (
            "captured_layers",
            Eagle3Layout {
                captured_layers: vec![],
                ..layout()
            },
        ),
        (
            "draft_vocab_size",
            Eagle3Layout {
                draft_vocab_size: 21,
                ..layout()
            },
        ),
        (
            "shared_head",
            Eagle3Layout {
                shared_head: true,
                ..layout()
            },
        ),
        (
            "kv_heads",
            Eagle3Layout {
                kv_heads: 3,
                ..layout()
            },
        ),
        (
            "dtype",
            Eagle3Layout {
                dtype: DType::I64,
                ..layout()
            },
        ),
        (
            "rope.scaling",
            Eagle3Layout {
                rope: Rope {
                    rope_theta: 1.0,
                    scaling,
                },
                ..layout()
            },
        ),
    ] {
        let error = write(&parent.path().join("d"), &wrong, Vec::new(), &Value::Null)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("`{field}`")), "{field}: {error}");
    }
}

#[test]
fn a_map_of_the_whole_vocabulary_onto_itself_says_nothing() {
    let root = tempfile::tempdir().unwrap();
    let layout = full_vocab();
    let size = layout.vocab_size;
    let written = root.path().join("written");
    write(&written, &layout, tensors(&layout), &Value::Null).unwrap();
    let mut config = ModelFolder::open(&written).unwrap().config().clone();
    config.as_object_mut().unwrap().remove(seal::SEAL);
    let with = |name: &str, offsets: Vec<i64>| {
        let mut more = tensors(&layout);
        more.push(NamedTensor::from_i64("d2t", [size], offsets));
        more.push(NamedTensor::from_bool("t2d", [size], vec![true; size]));
        let dir = root.path().join(name);
        crate::write_folder(&dir, &config, &more, &[]).unwrap();
        read(&dir)
    };
    let (found, read) = with("identity", vec![0; size]).unwrap();
    assert_eq!(
        (found, read.len()),
        (layout.clone(), tensors(&layout).len())
    );
    let mut turned = vec![0; size];
    (turned[0], turned[1]) = (1, -1);
    let error = with("turned", turned).unwrap_err().to_string();
    assert!(error.contains("`d2t`"), "{error}");
}
