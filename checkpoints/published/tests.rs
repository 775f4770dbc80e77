use std::collections::BTreeMap;
use std::path::PathBuf;

use serde_json::json;
use tempfile::TempDir;

use super::*;
use crate::eagle3::speculators;
use crate::eagle3::{Meaning, meanings};
use crate::speculators::Verifier;
use crate::{seal, write_folder};

const NONE: Value = Value::Null;
const TYPES: [DType; 3] = [DType::F32, DType::BF16, DType::F16];

fn verifier() -> Verifier {
    Verifier {
        name: "org/target".to_string(),
        architectures: vec!["LlamaForCausalLM".to_string()],
        draft_tokens: 3,
    }
}

fn cast(tensors: Vec<NamedTensor>, dtype: DType) -> Vec<NamedTensor> {
    let cast = |tensor: NamedTensor| match tensor.dtype.is_float() {
        true => tensor.cast(dtype).unwrap(),
        false => tensor,
    };
    tensors.into_iter().map(cast).collect()
}

/// A folder of every dialect, in every type.
fn written() -> (TempDir, Vec<PathBuf>) {
    let root = tempfile::tempdir().unwrap();
    let provenance = json!({"recipe": "some"});
    let mut dirs = Vec::new();
    for dtype in TYPES {
        let mut next = |name: &str| {
            dirs.push(root.path().join(format!("{name}-{dtype}")));
            dirs.last().unwrap().clone()
        };
        for bias in [false, true] {
            let layout = eagle1::Eagle1Layout {
                dtype,
                bias,
                ..eagle1::tests::layout()
            };
            let tensors = eagle1::tests::tensors(&layout);
            eagle1::write(&next(&format!("e1-{bias}")), &layout, tensors, &provenance).unwrap();
        }
        let eagle3 = Eagle3Layout {
            dtype,
            ..eagle3::tests::layout()
        };
        let variants = [
            eagle3.clone(),
            Eagle3Layout {
                draft_vocab_size: 20,
                shared_head: true,
                ..eagle3.clone()
            },
            Eagle3Layout {
                fc_norm: true,
                norm_output: true,
                norm_before_residual: true,
                ..eagle3.clone()
            },
            Eagle3Layout {
                layers: 3,
                ..eagle3.clone()
            },
        ];
        for (number, layout) in variants.into_iter().enumerate() {
            let dir = next(&format!("e3-{number}"));
            let tensors = two_layers(&layout);
            eagle3::write(&dir, &layout, tensors, &provenance).unwrap();
            let layout = Eagle3Layout {
                target_hidden_size: layout.hidden_size,
                shared_head: false,
                ..layout
            };
            let tensors = two_layers(&layout);
            let dir = next(&format!("e3s-{number}"));
            speculators::write(&dir, &layout, tensors, &verifier(), &provenance).unwrap();
            let layer = &contents(&dir).0["transformer_layer_config"];
            assert_eq!(layer["num_aux_hidden_states"], layout.captured_layers.len());
        }
        let medusa = MedusaLayout {
            dtype,
            ..medusa::tests::layout()
        };
        let tensors = cast(medusa::tests::tensors(&medusa), dtype);
        medusa::write(&next("medusa"), &medusa, &tensors, &provenance).unwrap();
        for prefix in [false, true] {
            let hydra = HydraLayout {
                dtype,
                ..hydra::tests::layout(prefix)
            };
            let tensors = cast(hydra::tests::tensors(&hydra), dtype);
            hydra::write(
                &next(&format!("hydra-{prefix}")),
                &hydra,
                &tensors,
                &provenance,
            )
            .unwrap();
        }
        let dflash = DFlashLayout {
            dtype,
            ..dflash::tests::layout()
        };
        let tensors = dflash::tests::tensors(&dflash);
        dflash::write(&next("dflash"), &dflash, &tensors, &provenance).unwrap();
        for mask in [None, Some(1)] {
            let model = LanguageModelFolder {
                dtype,
                ..language_model::tests::folder(mask, None)
            };
            model
                .write(&next(&format!("lm-{mask:?}")), &provenance)
                .unwrap();
        }
    }
    (root, dirs)
}

/// [`eagle3::tests::tensors`], with the two norms of further layers alike.
fn two_layers(layout: &Eagle3Layout) -> Vec<NamedTensor> {
    let mut tensors = eagle3::tests::tensors(layout);
    for layer in 1..layout.layers {
        let input = format!("layers.{layer}.input_layernorm.weight");
        let hidden = format!("layers.{layer}.hidden_norm.weight");
        let bytes = tensors
            .iter()
            .find(|t| t.name == input)
            .unwrap()
            .bytes
            .clone();
        let hidden = tensors.iter_mut().find(|t| t.name == hidden).unwrap();
        hidden.bytes = bytes;
    }
    tensors
}

fn contents(dir: &Path) -> (Value, Vec<NamedTensor>) {
    let folder = ModelFolder::open(dir).unwrap();
    let tensors = folder
        .tensors()
        .map(|info| folder.read(&info.name).unwrap());
    (folder.config().clone(), tensors.collect())
}

#[test]
fn every_dialect_becomes_the_same_drafter_again() {
    let (root, dirs) = written();
    assert_eq!(dirs.len(), 3 * 16);
    for dir in dirs {
        let name = dir.display().to_string();
        let reading = Reading::default();
        let again = root.path().join("again");
        let drafter = Published::read(&dir, &reading).unwrap();
        drafter
            .write(&again, None, &json!({"recipe": "some"}))
            .unwrap();
        let (config, tensors) = contents(&again);
        if !name.contains("e3s-") {
            assert_eq!(
                (&config, &tensors),
                (&contents(&dir).0, &contents(&dir).1),
                "{name}"
            );
            continue;
        }
        // Through this program's layout and back.
        let (layout, tensors) = eagle3::read(&again).unwrap();
        let back = root.path().join("back");
        speculators::write(
            &back,
            &layout,
            tensors,
            &verifier(),
            &json!({"recipe": "some"}),
        )
        .unwrap();
        assert_eq!(contents(&back), contents(&dir), "{name}");
    }
}

/// A folder without the care for the disk that costs time.
fn write_quickly(dir: &Path, config: &Value, tensors: &[NamedTensor]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in tensors {
        let start = data.len();
        data.extend(&tensor.bytes);
        let entry = json!({"dtype": tensor.dtype.name(), "shape": tensor.shape, "data_offsets": [start, data.len()]});
        header.insert(tensor.name.clone(), entry);
    }
    let header = Value::Object(header).to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(
        dir.join("model.safetensors"),
        [&length[..], &header, &data].concat(),
    )
    .unwrap();
    std::fs::write(dir.join(CONFIG), config.to_string()).unwrap();
}

#[test]
fn no_changed_tensor_passes_in_silence() {
    let (root, dirs) = written();
    let mut refused = 0;
    for dir in dirs {
        let (config, tensors) = contents(&dir);
        let check = |config: &Value, tensors: &[NamedTensor]| {
            let changed = root.path().join("changed");
            write_quickly(&changed, config, tensors);
            seal::check(&ModelFolder::open(&changed).unwrap())
        };
        assert!(check(&config, &tensors).unwrap());
        let mut changes: Vec<(Value, Vec<NamedTensor>)> = Vec::new();
        for at in 0..tensors.len() {
            let mut dropped = tensors.clone();
            dropped.remove(at);
            changes.push((config.clone(), dropped));
            for other in 0..at {
                let same = tensors[other].bytes == tensors[at].bytes;
                if tensors[other].shape == tensors[at].shape && !same {
                    let mut swapped = tensors.clone();
                    swapped[at].name = tensors[other].name.clone();
                    swapped[other].name = tensors[at].name.clone();
                    changes.push((config.clone(), swapped));
                }
            }
            let size = tensors[at].dtype.size();
            let mut permuted = tensors.clone();
            permuted[at].bytes.rotate_left(size);
            if permuted[at].bytes != tensors[at].bytes {
                changes.push((config.clone(), permuted));
            }
            if tensors[at].dtype.is_float() {
                let other = match tensors[at].dtype {
                    DType::F32 => DType::BF16,
                    _ => DType::F32,
                };
                let mut retyped = tensors.clone();
                retyped[at] = retyped[at].clone().cast(other).unwrap();
                changes.push((config.clone(), retyped));
            }
            if tensors[at].name == "d2t" {
                let shifted = tensors[at]
                    .to_i64()
                    .unwrap()
                    .iter()
                    .map(|offset| offset + 1)
                    .collect();
                let mut other = tensors.clone();
                other[at] = NamedTensor::from_i64("d2t", tensors[at].shape.clone(), shifted);
                changes.push((config.clone(), other));
            }
        }
        // Every number of the configuration, layer ids among them.
        for key in config
            .as_object()
            .unwrap()
            .keys()
            .filter(|key| *key != seal::SEAL)
        {
            let mut other = config.clone();
            if nudge(&mut other[key]) {
                changes.push((other, tensors.clone()));
            }
        }
        refused += changes.len();
        for (config, tensors) in changes {
            check(&config, &tensors).unwrap_err();
        }
    }
    assert!(refused > 1500, "{refused}");
}

/// Changes the first number in a value, if there is one.
fn nudge(value: &mut Value) -> bool {
    match value {
        Value::Number(number) => {
            *value = json!(number.as_f64().unwrap() + 1.0);
            true
        }
        Value::Array(values) => values.iter_mut().any(nudge),
        Value::Object(values) => values.values_mut().any(nudge),
        Value::Bool(flag) => {
            *flag = !*flag;
            true
        }
        _ => false,
    }
}

/// An EAGLE-3 folder as someone else would have written it.
fn published(
    change: impl FnOnce(&mut Value),
    rename: impl Fn(&str) -> String,
) -> (TempDir, PathBuf) {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    let layout = eagle3::tests::layout();
    eagle3::write(&dir, &layout, eagle3::tests::tensors(&layout), &NONE).unwrap();
    let (mut config, mut tensors) = contents(&dir);
    config.as_object_mut().unwrap().remove(seal::SEAL);
    change(&mut config);
    for tensor in &mut tensors {
        tensor.name = rename(&tensor.name);
    }
    write_folder(&dir, &config, &tensors, &[]).unwrap();
    (root, dir)
}

fn remove(config: &mut Value, keys: &[&str]) {
    for key in keys {
        config.as_object_mut().unwrap().remove(*key);
    }
}

const TOP: &str = "eagle_aux_hidden_state_layer_ids";

#[test]
fn eagle_3_folders_of_all_trainers_become_ours() {
    let same = |name: &str| name.to_string();
    let layer = |name: &str| name.replace("midlayer.", "layers.0.");
    let expected = {
        let (_root, dir) = published(|_| (), same);
        eagle3::read(&dir).unwrap()
    };
    type Change = fn(&mut Value);
    type Rename<'a> = &'a dyn Fn(&str) -> String;
    let cases: [(&str, Change, Rename); 5] = [
        (
            "the authors'",
            |config| {
                remove(config, &[TOP, "eagle_config", "target_hidden_size"]);
                config["architectures"] = json!(["LlamaForCausalLM"]);
                config["target_hidden_size"] = json!(7);
                // Of a target of 14 layers these are the default ones; see below.
                config["eagle_config"] = json!({TOP: [1, 3, 6]});
            },
            &same,
        ),
        (
            "SpecForge's",
            |config| {
                remove(config, &[TOP, "rope_parameters"]);
                config["eagle_config"] = json!({"use_aux_hidden_state": true, TOP: [1, 3, 6]});
            },
            &|name| format!("draft_model.{name}"),
        ),
        (
            "ModelOpt's",
            |config| {
                remove(config, &[TOP, "num_aux_hidden_states"]);
                config["eagle_config"] = json!({
                    TOP: [1, 3, 6], "use_aux_hidden_state": true, "use_input_layernorm_in_first_layer": true,
                    "use_last_layernorm": true, "use_mtp_layernorm": false, "next_layer_regular": true,
                    "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
                });
            },
            &layer,
        ),
        (
            "AngelSlim's",
            |config| {
                remove(config, &[TOP, "eagle_config"]);
                config["architectures"] = json!(["Eagle3LlamaForCausalLM"]);
                config["aux_hidden_states_layer_ids"] = json!([1, 3, 6]);
            },
            &same,
        ),
        (
            "vLLM's",
            |config| remove(config, &["eagle_config"]),
            &|name| format!("model.{}", layer(name)),
        ),
    ];
    for (whose, change, rename) in cases {
        let (_root, dir) = published(change, rename);
        let folder = ModelFolder::open(&dir).unwrap();
        assert_eq!(Family::of(&folder).unwrap(), Family::Eagle3, "{whose}");
        assert_eq!(eagle3::read(&dir).unwrap(), expected, "{whose}");
    }
}

fn texts(found: &[Meaning]) -> Vec<(Option<&[usize]>, bool)> {
    let reading = |meaning: &Meaning| meaning.reading.clone();
    found
        .iter()
        .map(|meaning| {
            (
                meaning.reading.captured_layers.as_deref(),
                reading(meaning).absolute_ids,
            )
        })
        .collect()
}

#[test]
fn layer_ids_that_are_none_are_refused_whatever_another_key_says() {
    let wrong = [
        json!([5, 4, 2]),
        json!([2, 2, 4]),
        json!([]),
        json!("x"),
        json!(3),
    ];
    for (key, value) in wrong.iter().flat_map(|value| {
        let keys = [TOP, "eagle_config", "aux_hidden_states_layer_ids"];
        keys.map(|key| (key, value.clone()))
    }) {
        let change = |config: &mut Value| config[key] = value.clone();
        let (_root, dir) = published(change, str::to_owned);
        let error = meanings(&dir, 9, None).unwrap_err().to_string();
        assert!(
            error.contains(&format!("`{key}`")),
            "{key} {value}: {error}"
        );
    }
}

#[test]
fn a_norm_that_the_readers_of_speculators_take_differently_is_two_meanings() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    let base = eagle3::tests::layout();
    let layout = Eagle3Layout {
        target_hidden_size: base.hidden_size,
        ..base
    };
    let tensors: Vec<NamedTensor> = eagle3::tests::tensors(&layout);
    eagle3::speculators::write(&dir, &layout, tensors, &verifier(), &NONE).unwrap();
    let said = meanings(&dir, 9, None).unwrap();
    assert!(said.len() == 1 && !said[0].reading.norm_before_residual);
    let (mut config, tensors) = contents(&dir);
    remove(&mut config, &["norm_before_residual", seal::SEAL]);
    write_folder(&dir, &config, &tensors, &[]).unwrap();
    let found = meanings(&dir, 9, None).unwrap();
    let read = |meaning: &Meaning| eagle3::read_as(&dir, &meaning.reading).unwrap().0;
    let norms: Vec<bool> = found
        .iter()
        .map(|meaning| read(meaning).norm_before_residual)
        .collect();
    assert_eq!(norms, [true, false]);
    assert!(found[0].text.contains("vLLM") && found[1].text.contains("library"));
}

#[test]
fn a_weight_that_is_no_number_is_refused_when_it_is_read() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    let layout = eagle3::tests::layout();
    let mut tensors: Vec<NamedTensor> = eagle3::tests::tensors(&layout);
    let norm = tensors
        .iter_mut()
        .find(|tensor| tensor.name == "norm.weight")
        .unwrap();
    norm.bytes.fill(0xff);
    let written = root.path().join("written");
    eagle3::write(&written, &layout, eagle3::tests::tensors(&layout), &NONE).unwrap();
    let mut config = contents(&written).0;
    remove(&mut config, &[seal::SEAL]);
    write_folder(&dir, &config, &tensors, &[]).unwrap();
    let error = eagle3::read(&dir).unwrap_err().to_string();
    assert!(
        error.contains("`norm.weight`") && error.contains("finite"),
        "{error}"
    );
}

#[test]
fn one_key_of_layer_ids_alone_can_be_meant_in_two_ways() {
    let same = |name: &str| name.to_string();
    let of = |change: fn(&mut Value), given: Option<&[usize]>| {
        let (_root, dir) = published(change, same);
        meanings(&dir, 9, given).unwrap()
    };
    let both = of(|_| (), None);
    assert_eq!(texts(&both), [(Some(&[1, 3, 6][..]), false)]);
    let top = of(|config| remove(config, &["eagle_config"]), None);
    let ways = [(Some(&[1, 3, 6][..]), false), (Some(&[2, 4, 7][..]), false)];
    assert_eq!(texts(&top), ways);
    assert!(
        top[0].text.contains("layers that have run") && top[1].text.contains("output is taken")
    );
    let nested = of(|config| remove(config, &[TOP]), None);
    let ways = [(Some(&[1, 3, 6][..]), false), (Some(&[0, 2, 5][..]), false)];
    assert_eq!(texts(&nested), ways);
    let same_twice = of(
        |config| config["eagle_config"][TOP] = json!([2, 4, 7]),
        None,
    );
    assert_eq!(
        texts(&same_twice),
        [(Some(&[1, 3, 6][..]), false), (Some(&[2, 4, 7][..]), false)]
    );
    let none = of(|config| remove(config, &[TOP, "eagle_config"]), None);
    assert_eq!(texts(&none), [(None, false)]);
    let given = of(|config| remove(config, &[TOP]), Some(&[0, 1, 2]));
    assert_eq!(texts(&given), [(Some(&[0, 1, 2][..]), false)]);
    // A last layer that the target does not have is not meant.
    let (_root, dir) = published(|config| remove(config, &["eagle_config"]), same);
    assert_eq!(meanings(&dir, 7, None).unwrap().len(), 1);
    let error = meanings(&dir, 4, None).unwrap_err().to_string();
    assert!(error.contains("layers of a target of 4"), "{error}");
}

#[test]
fn ids_in_the_place_of_offsets_are_found_out_and_turned_into_offsets() {
    let (_root, dir) = published(|_| (), |name| name.to_string());
    let expected = eagle3::read(&dir).unwrap();
    let (config, mut tensors) = contents(&dir);
    let d2t = tensors
        .iter_mut()
        .find(|tensor| tensor.name == "d2t")
        .unwrap();
    let ids: Vec<i64> = eagle3::target_ids(d2t)
        .unwrap()
        .into_iter()
        .map(|id| id as i64)
        .collect();
    *d2t = NamedTensor::from_i64("d2t", [11], ids);
    write_folder(&dir, &config, &tensors, &[]).unwrap();
    let found = meanings(&dir, 9, None).unwrap();
    assert_eq!(texts(&found), [(Some(&[1, 3, 6][..]), true)]);
    assert_eq!(eagle3::read_as(&dir, &found[0].reading).unwrap(), expected);
    // Without `t2d` these ids reach too far to be offsets.
    tensors.retain(|tensor| tensor.name != "t2d");
    write_folder(&dir, &config, &tensors, &[]).unwrap();
    assert_eq!(
        texts(&meanings(&dir, 9, None).unwrap()),
        [(Some(&[1, 3, 6][..]), true)]
    );
}

#[test]
fn the_head_folders_of_medusas_authors_name_no_sizes() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    let layout = MedusaLayout {
        draft_vocab_size: 20,
        layers: 1,
        ..medusa::tests::layout()
    };
    let expected = medusa::tests::tensors(&layout);
    let mut tensors = expected.clone();
    for tensor in &mut tensors {
        let name = tensor.name.replace("blocks.", "").replace(".layers.", ".");
        let name = match name.strip_prefix("lm_heads.") {
            Some(rest) => rest.replace(".weight", ".1.weight"),
            None => name
                .replace(".0.weight", ".0.linear.weight")
                .replace(".0.bias", ".0.linear.bias"),
        };
        tensor.name = format!("medusa_heads.{name}");
    }
    let config =
        json!({"base_model_name_or_path": "v", "medusa_num_heads": 3, "medusa_num_layers": 1});
    write_folder(&dir, &config, &tensors, &[]).unwrap();
    let (found, read) = medusa::read(&dir).unwrap();
    assert_eq!(found, layout);
    let by_name = |tensors: Vec<NamedTensor>| -> BTreeMap<String, NamedTensor> {
        tensors
            .into_iter()
            .map(|tensor| (tensor.name.clone(), tensor))
            .collect()
    };
    assert_eq!(by_name(read), by_name(expected));
    assert!(medusa::recognises(&config));
    assert!(medusa::recognises(
        &json!({"medusa": {"num_medusa_heads": 2}})
    ));
}

#[test]
fn weights_of_several_types_become_the_widest() {
    let (root, dir) = published(|_| (), |name| name.to_string());
    let (config, mut tensors) = contents(&dir);
    let fc = tensors
        .iter_mut()
        .find(|tensor| tensor.name == "fc.weight")
        .unwrap();
    *fc = fc.clone().cast(DType::BF16).unwrap();
    let fc = fc.clone();
    write_folder(&dir, &config, &tensors, &[]).unwrap();
    let again = root.path().join("again");
    let drafter = Published::read(&dir, &Reading::default()).unwrap();
    drafter.write(&again, None, &NONE).unwrap();
    let (layout, tensors) = eagle3::read(&again).unwrap();
    assert_eq!(layout.dtype, DType::F32);
    let found = tensors
        .iter()
        .find(|tensor| tensor.name == "fc.weight")
        .unwrap();
    assert_eq!(*found, fc.cast(DType::F32).unwrap());
}

#[test]
fn what_is_no_drafter_is_refused_with_the_kinds_there_are() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    let weight = NamedTensor::from_f32("w", [1], vec![0.0]);
    write_folder(
        &dir,
        &json!({"architectures": ["GPT2LMHeadModel"]}),
        &[weight],
        &[],
    )
    .unwrap();
    let error = Published::read(&dir, &Reading::default())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("GPT2LMHeadModel") && error.contains("Medusa"),
        "{error}"
    );
}

#[test]
fn a_pickle_is_not_read_and_the_way_out_is_named() {
    let root = tempfile::tempdir().unwrap();
    std::fs::write(root.path().join(CONFIG), "{}").unwrap();
    std::fs::write(root.path().join("pytorch_model.bin"), "").unwrap();
    let error = ModelFolder::open(root.path()).unwrap_err().to_string();
    assert!(
        error.contains("`pytorch_model.bin` is a pickle") && error.contains("save_file"),
        "{error}"
    );
    std::fs::remove_file(root.path().join("pytorch_model.bin")).unwrap();
    std::fs::write(root.path().join("medusa_lm_head.safetensors"), "").unwrap();
    let error = ModelFolder::open(root.path()).unwrap_err().to_string();
    assert!(
        error.ends_with("`medusa_lm_head.safetensors`: rename it"),
        "{error}"
    );
}

#[test]
fn the_three_layouts_of_dflash_become_the_same_drafter_again() {
    let root = tempfile::tempdir().unwrap();
    let folder = |name: &str| root.path().join(name);
    for (window, causal) in [(0, false), (5, false), (5, true)] {
        let layout = DFlashLayout {
            window,
            causal,
            dtype: DType::BF16,
            ..dflash::tests::layout()
        };
        let mut tensors = dflash::tests::tensors(&layout);
        for (number, tensor) in tensors.iter_mut().enumerate() {
            tensor.bytes[0] = number as u8;
        }
        dflash::write(&folder("native"), &layout, &tensors, &NONE).unwrap();
        let hf = dflash::transformers::write(&folder("hf"), &layout, &tensors, &NONE);
        if causal {
            let error = hf.unwrap_err().to_string();
            assert!(error.contains("`causal`"), "{error}");
            continue;
        }
        hf.unwrap();
        let theirs = folder("speculators");
        dflash::speculators::write(&theirs, &layout, &tensors, &verifier(), &NONE).unwrap();
        for name in ["hf", "speculators"] {
            let reading = Reading::default();
            let drafter = Published::read(&folder(name), &reading).unwrap();
            drafter.write(&folder("back"), None, &NONE).unwrap();
            assert_eq!(
                contents(&folder("back")),
                contents(&folder("native")),
                "{name}"
            );
        }
        let (config, tensors) = contents(&folder("hf"));
        assert_eq!(
            config["architectures"],
            json!(["MuseGlimmerAssistantModel"])
        );
        assert_eq!(
            (&config["target_layer_ids"], &config["mask_token_id"]),
            (&json!([1, 3]), &json!(19))
        );
        let names: Vec<&str> = tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert!(
            names.contains(&"encoder.fc.weight")
                && names.contains(&"encoder.output_norm_enc.weight")
        );
        let (config, _) = contents(&theirs);
        assert_eq!(config["aux_hidden_state_layer_ids"], json!([2, 4]));
        assert_eq!(config["sliding_window_non_causal"], !causal);
        // A folder of the library itself does not say how many layers its target has.
        let mut config = config;
        remove(&mut config, &["num_target_layers", seal::SEAL]);
        let (_, tensors) = contents(&theirs);
        write_folder(&theirs, &config, &tensors, &[]).unwrap();
        let error = dflash::read(&theirs).unwrap_err().to_string();
        assert!(error.contains("num_target_layers"), "{error}");
        assert_eq!(
            dflash::read_for_target(
                &theirs,
                TargetSizes {
                    layers: 6,
                    vocab: 20
                }
            )
            .unwrap()
            .0,
            layout
        );
    }
    let kinds = [
        (dflash::tests::dflash_2(), "dflash2"),
        (dflash::tests::dspark("vanilla"), "dspark"),
        (dflash::tests::dspark("rnn"), "dspark"),
    ];
    for (layout, kind) in kinds {
        let tensors = dflash::tests::tensors(&layout);
        let theirs = folder("of-parts");
        dflash::speculators::write(&theirs, &layout, &tensors, &verifier(), &NONE).unwrap();
        assert_eq!(contents(&theirs).0["speculators_model_type"], kind);
        let (found, mut read) = dflash::read(&theirs).unwrap();
        assert_eq!(found, layout);
        read.sort_by(|a, b| a.name.cmp(&b.name));
        let mut sorted = tensors.clone();
        sorted.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(read == sorted);
        let error = dflash::transformers::write(&folder("x"), &layout, &tensors, &NONE);
        assert!(error.unwrap_err().to_string().contains("plain DFlash"));
    }
    let mut half = dflash::tests::dflash_2();
    half.parts.selector = None;
    let tensors = dflash::tests::tensors(&half);
    let error = dflash::speculators::write(&folder("x"), &half, &tensors, &verifier(), &NONE);
    assert!(error.unwrap_err().to_string().contains("DFlash 2"));
    let full = DFlashLayout {
        causal: true,
        ..dflash::tests::layout()
    };
    let tensors = dflash::tests::tensors(&full);
    let error = dflash::speculators::write(&folder("x"), &full, &tensors, &verifier(), &NONE);
    assert!(error.unwrap_err().to_string().contains("`causal`"));
}
