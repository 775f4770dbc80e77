//! Folders of EAGLE drafters as their many trainers write them.
use serde_json::{Value, json};
use spectrain::families::family::Writing;
use spectrain::recipe::tables::Engine;
use spectrain_checkpoints::dialect::{Meaning, Reading};
use spectrain_checkpoints::eagle1::EAGLE1;
use spectrain_checkpoints::eagle3::{EAGLE3, SPECULATORS};
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::launch::Server;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor};

use crate::samples::{Folder, parts, remove, sample, sorted};

/// The sample with a draft vocabulary.
const HALF: usize = 1;
/// The one of two captured layers and a window.
const WINDOW: usize = 5;
const TOP: &str = "eagle_aux_hidden_state_layer_ids";

/// The sample of two layers.
const DEEP: usize = 9;
/// The one whose heads are wider than the target's.
const WIDE: usize = 12;

fn eagle3() -> Folder {
    Folder::of("eagle3", HALF)
}

#[test]
fn both_keys_of_layer_ids_are_written_in_their_own_meaning() {
    let config = eagle3().config();
    assert_eq!(config["architectures"], json!(["LlamaForCausalLMEagle3"]));
    assert_eq!(config[TOP], json!([2, 3]));
    assert_eq!(config["eagle_config"][TOP], json!([1, 2]));
    assert_eq!(config["num_aux_hidden_states"], 2);
    assert_eq!(config["draft_vocab_size"], 20);
    assert_eq!(config["norm_before_residual"], false);
    let rope = json!({"rope_type": "default", "rope_theta": 10_000.0});
    assert_eq!(config["rope_parameters"], rope);
    assert!(config.get("layer_types").is_none() && config.get("rope_scaling").is_none());
    let whole = Folder::of("eagle3", 2);
    assert_eq!(whole.config().get("draft_vocab_size"), Some(&Value::Null));
    let names: Vec<String> = whole.tensors().into_iter().map(|t| t.name).collect();
    assert!(!names.contains(&"lm_head.weight".to_owned()));
}

#[test]
fn a_neighbouring_layer_in_one_of_the_two_keys_is_refused() {
    for (position, step) in [(0, -1), (1, 1)] {
        for nested in [false, true] {
            let folder = eagle3().with_config(|config| {
                let table = if nested {
                    &mut config["eagle_config"]
                } else {
                    config
                };
                let id = &mut table[TOP][position];
                *id = json!(id.as_i64().unwrap() + step);
            });
            let error = folder.settings(&EAGLE3).unwrap_err().to_string();
            assert!(
                error.contains("eagle_config.eagle_aux_hidden_state_layer_ids"),
                "{error}"
            );
        }
    }
}

/// How a trainer's configuration differs from this program's, and what it calls a tensor.
type Theirs = (&'static str, fn(&mut Value), fn(&str) -> String);

const TRAINERS: [Theirs; 6] = [
    (
        "the authors'",
        |config| {
            remove(config, &[TOP]);
            config["architectures"] = json!(["LlamaForCausalLM"]);
            config["eagle_config"] = json!({TOP: [1, 2]});
        },
        str::to_owned,
    ),
    (
        "SpecForge's",
        |config| {
            remove(config, &[TOP, "rope_parameters"]);
            config["eagle_config"] = json!({"use_aux_hidden_state": true, TOP: [1, 2]});
        },
        |name| format!("draft_model.{name}"),
    ),
    (
        "ModelOpt's",
        |config| {
            remove(config, &[TOP, "num_aux_hidden_states"]);
            config["eagle_config"] = json!({
                TOP: [1, 2], "use_aux_hidden_state": true, "use_input_layernorm_in_first_layer": true,
                "use_last_layernorm": true, "use_mtp_layernorm": false, "next_layer_regular": true,
                "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
            });
        },
        in_layers,
    ),
    (
        "AngelSlim's",
        |config| {
            remove(config, &[TOP, "eagle_config"]);
            config["architectures"] = json!(["Eagle3LlamaForCausalLM"]);
            config["aux_hidden_states_layer_ids"] = json!([1, 2]);
        },
        str::to_owned,
    ),
    (
        "one of vLLM's second runner",
        |config| {
            remove(config, &[TOP]);
            config["eagle_config"] = json!({"layer_ids": [2, 3]});
        },
        in_layers,
    ),
    (
        "vLLM's",
        |config| remove(config, &["eagle_config"]),
        |name| format!("model.{}", in_layers(name)),
    ),
];

fn in_layers(name: &str) -> String {
    name.replace("midlayer.", "layers.0.")
}

#[test]
fn eagle_3_folders_of_all_trainers_are_the_same_drafter() {
    let expected = eagle3().open().unwrap();
    for (whose, change, rename) in TRAINERS {
        let folder = eagle3().with_config(change).renamed(rename);
        let model = ModelFolder::open(folder.path()).unwrap();
        assert_eq!(dialect_of(&model).unwrap().family, "EAGLE-3", "{whose}");
        let found = folder.open().unwrap();
        let [ours, theirs] = [&expected, &found].map(|drafter| sorted(drafter.tensors()));
        assert_eq!(theirs, ours, "{whose}");
        let [ours, theirs] = [&expected, &found].map(|drafter| drafter.capture().unwrap());
        assert_eq!(theirs, ours, "{whose}");
        assert_eq!(found.vocabulary(), expected.vocabulary(), "{whose}");
    }
}

#[test]
fn without_layer_ids_the_default_of_the_target_is_taken() {
    let folder = eagle3().without(&[TOP, "eagle_config", "num_aux_hidden_states"]);
    let error = folder.settings(&EAGLE3).unwrap_err().to_string();
    assert!(
        error.contains(TOP) && error.contains("found nothing"),
        "{error}"
    );
    let model = ModelFolder::open(folder.path()).unwrap();
    let reading = Reading {
        target_layers: Some(32),
        ..Reading::default()
    };
    let opened = EAGLE3.open(&model, reading).unwrap();
    assert_eq!(opened.settings.sizes("captured_layers"), [1, 15, 28]);
    let told = &meanings(&folder, 32, None).unwrap()[0].text;
    assert!(told.contains("the default layers [1, 15, 28]"), "{told}");
}

#[test]
fn what_is_wrong_with_a_tensor_is_said_by_its_name_in_the_folder() {
    let wrapped = |name: &str| format!("draft_model.{}", in_layers(name));
    let theirs = |rename: &dyn Fn(&str) -> String, change: fn(&mut NamedTensor)| {
        eagle3().with_tensors(|tensors| {
            let is_changed = |tensor: &&mut NamedTensor| tensor.name.ends_with("q_proj.weight");
            change(tensors.iter_mut().find(is_changed).unwrap());
            for tensor in tensors {
                tensor.name = rename(&tensor.name);
            }
        })
    };
    let reshaped = |tensor: &mut NamedTensor| tensor.shape.insert(0, 1);
    let retyped = |tensor: &mut NamedTensor| {
        *tensor = NamedTensor::from_i64(&tensor.name, [1], vec![0]);
    };
    let renamed = |tensor: &mut NamedTensor| tensor.name.push('s');
    theirs(&str::to_owned, reshaped).is_refused("tensor `midlayer.self_attn.q_proj.weight` in `");
    theirs(&in_layers, retyped).is_refused("tensor `layers.0.self_attn.q_proj.weight` in `");
    let unexpected = "unexpected tensors: `draft_model.layers.0.self_attn.q_proj.weights`";
    theirs(&wrapped, renamed).is_refused(unexpected);
}

#[test]
fn a_map_of_fewer_tokens_that_the_configuration_does_not_name_is_refused_by_the_key() {
    let folder = eagle3().without(&["draft_vocab_size"]);
    folder.is_refused(
        "key `draft_vocab_size`: expected `20`, the number of tokens in `d2t`, found nothing",
    );
    let folder = eagle3().with_config(|config| config["draft_vocab_size"] = Value::Null);
    folder.is_refused("key `draft_vocab_size`: expected `20`");
}

#[test]
fn a_published_folder_with_narrow_ids_an_embedding_and_an_old_scaling_is_read() {
    let folder = eagle3().with_tensors(|tensors| {
        tensors.retain(|tensor| tensor.name != "t2d");
        let d2t = tensors.iter_mut().find(|t| t.name == "d2t").unwrap();
        let narrow = d2t.to_i64().unwrap().into_iter();
        d2t.bytes = narrow
            .flat_map(|offset| (offset as i32).to_le_bytes())
            .collect();
        d2t.dtype = DType::I32;
        let embedding = NamedTensor::from_f32("embed_tokens.weight", [48, 32], vec![0.5; 48 * 32]);
        tensors.push(embedding);
    });
    let folder = folder.with_config(|config| {
        remove(config, &["rope_parameters"]);
        config["rope_scaling"] = json!({"type": "linear", "factor": 2.0});
    });
    let rope = folder.settings(&EAGLE3).unwrap().rope().unwrap();
    assert_eq!(
        rope.scaling,
        Some(json!({"factor": 2.0, "rope_type": "linear"}))
    );
    let (found, expected) = (folder.open().unwrap(), eagle3().open().unwrap());
    assert_eq!(found.vocabulary(), expected.vocabulary());
    assert_eq!(sorted(found.tensors()), sorted(expected.tensors()));
}

#[test]
fn a_base_inside_an_old_table_of_scaling_counts_and_must_agree_with_others() {
    let dialects: [(&str, &'static spectrain_checkpoints::dialect::Dialect); 2] =
        [("eagle1", &EAGLE1), ("eagle3", &EAGLE3)];
    for (recipe, dialect) in dialects {
        let with = |beside: Value| {
            let folder = Folder::of(recipe, 0).with_config(|config| {
                remove(config, &["rope_parameters"]);
                config["rope_theta"] = beside;
                config["rope_scaling"] = json!({"rope_type": "default", "rope_theta": 5e5});
            });
            folder.settings(dialect)
        };
        for beside in [Value::Null, json!(5e5)] {
            let rope = with(beside).unwrap().rope().unwrap();
            assert_eq!((rope.rope_theta, rope.scaling), (5e5, None), "{recipe}");
        }
        let error = with(json!(1e4)).unwrap_err().to_string();
        assert!(error.contains("`rope_scaling.rope_theta`"), "{error}");
    }
}

#[test]
fn a_scaling_that_changes_nothing_in_text_is_none() {
    let folder = eagle3().with_config(|config| {
        remove(config, &["rope_parameters"]);
        config["rope_scaling"] = json!({"type": "mrope", "mrope_section": [1, 1, 2]});
    });
    let rope = folder.settings(&EAGLE3).unwrap().rope().unwrap();
    assert_eq!(rope.scaling, None);
    folder.open().unwrap();
}

#[test]
fn heads_of_another_width_than_the_targets_are_asked_for_where_training_starts_from_them() {
    let spec = parts().spec;
    let start = |table: usize, folder: usize| {
        let method = sample("eagle3", table).resolved().method;
        let checked = method.check_start(Folder::of("eagle3", folder).path(), &spec);
        checked.map_err(|error| format!("{error:#}"))
    };
    assert_eq!(start(WIDE, WIDE), Ok(()));
    let error = start(0, WIDE).unwrap_err();
    let told = "`d_head`: expected 8, found 12";
    assert!(
        error.contains(told) && error.contains("`d_head = 12`"),
        "{error}"
    );
    let error = start(WIDE, 0).unwrap_err();
    let told = "`d_head`: expected 12, found 8";
    assert!(error.contains(told), "{error}");
    // Without the key it follows from the other sizes, as engines take it.
    let plain = Folder::of("eagle3", WIDE).without(&["head_dim"]);
    plain.is_refused("_proj.weight");
}

#[test]
fn training_starts_from_no_drafter_with_a_setting_that_the_recipe_lacks() {
    // The number of tokens is kept, and a head over some of them is always the drafter's own.
    for (recipe, taken) in [
        ("eagle1", &[0][..]),
        ("eagle3", &[0, 1, 3]),
        ("peagle", &[0]),
        ("dflash", &[0]),
    ] {
        let (plain, spec) = (sample(recipe, 0), parts().spec);
        let method = plain.resolved().method;
        for number in 0..plain.recipe.samples.len() {
            let folder = Folder::of(recipe, number);
            let checked = method.check_start(folder.path(), &spec);
            let told = checked.map_err(|error| format!("{error:#}")).err();
            let is_refused = told
                .as_ref()
                .is_some_and(|told| told.contains("has other settings than `[drafter]`"));
            assert_eq!(
                told.is_none(),
                taken.contains(&number),
                "{recipe} {number}: {told:?}"
            );
            assert_eq!(is_refused, told.is_some(), "{recipe} {number}: {told:?}");
        }
    }
}

#[test]
fn a_tensor_under_both_spellings_is_refused() {
    let folder = eagle3().with_tensors(|tensors| {
        let norm = NamedTensor::from_f32("layers.0.hidden_norm.weight", [32], vec![0.0; 32]);
        tensors.push(norm);
    });
    folder.is_refused("`layers.0.hidden_norm.weight` and `midlayer.hidden_norm.weight`");
}

#[test]
fn norms_of_further_layers_are_written_under_the_names_of_both_engines_and_read_under_either() {
    let deep = || Folder::of("eagle3", DEEP);
    let names = [
        "layers.1.input_layernorm.weight",
        "layers.1.hidden_norm.weight",
    ];
    let written = deep().tensors();
    let of = |name: &str| written.iter().find(|tensor| tensor.name == name).unwrap();
    let [ours, sglangs] = names.map(of);
    assert_eq!(ours.bytes, sglangs.bytes);
    assert!(
        written
            .iter()
            .any(|tensor| tensor.name == "midlayer.hidden_norm.weight")
    );
    let expected = sorted(deep().open().unwrap().tensors());
    assert!(expected.iter().all(|tensor| tensor.name != names[1]));
    for absent in names {
        let folder = deep().with_tensors(|tensors| tensors.retain(|t| t.name != absent));
        assert_eq!(
            sorted(folder.open().unwrap().tensors()),
            expected,
            "{absent}"
        );
    }
    let folder = deep().with_tensors(|tensors| {
        let norm = tensors.iter_mut().find(|t| t.name == names[1]).unwrap();
        norm.bytes[0] ^= 1;
    });
    folder.is_refused("vLLM reads that norm, SGLang this one");
}

#[test]
fn a_shifted_vocabulary_map_is_refused() {
    for (shift, name) in [(1, "`t2d`"), (-1, "`d2t`")] {
        let folder = eagle3().with_tensors(|tensors| {
            let d2t = tensors.iter_mut().find(|t| t.name == "d2t").unwrap();
            let offsets = d2t
                .to_i64()
                .unwrap()
                .into_iter()
                .map(|offset| offset + shift);
            *d2t = NamedTensor::from_i64("d2t", [20], offsets.collect());
        });
        let error = format!("{:#}", folder.open().err().unwrap());
        assert!(error.contains(name) || error.contains("`t2d`"), "{error}");
    }
}

#[test]
fn a_map_of_the_whole_vocabulary_onto_itself_says_nothing() {
    let with = |offsets: Vec<i64>| {
        Folder::of("eagle3", 0).with_tensors(|tensors| {
            tensors.push(NamedTensor::from_i64("d2t", [48], offsets));
            tensors.push(NamedTensor::from_bool("t2d", [48], vec![true; 48]));
        })
    };
    assert!(with(vec![0; 48]).open().unwrap().vocabulary().is_full());
    let mut turned = vec![0; 48];
    (turned[0], turned[1]) = (1, -1);
    with(turned).is_refused("`d2t`");
}

#[test]
fn ids_in_the_place_of_offsets_are_found_out() {
    let expected = eagle3().open().unwrap();
    let ids: Vec<i64> = expected
        .vocabulary()
        .target_ids()
        .into_iter()
        .map(i64::from)
        .collect();
    let absolute = eagle3().with_tensors(|tensors| {
        let d2t = tensors.iter_mut().find(|t| t.name == "d2t").unwrap();
        *d2t = NamedTensor::from_i64("d2t", [20], ids);
    });
    assert_eq!(ways(&absolute, 6), [(Some(vec![1, 2]), true)]);
    assert_eq!(absolute.open().unwrap().vocabulary(), expected.vocabulary());
}

fn meanings(
    folder: &Folder,
    layers: usize,
    given: Option<&[usize]>,
) -> anyhow::Result<Vec<Meaning>> {
    let model = ModelFolder::open(folder.path())?;
    let reading = Reading {
        target_layers: Some(layers),
        ..Reading::default()
    };
    Ok(dialect_of(&model)?.meanings(&model, &reading, given)?)
}

fn ways(folder: &Folder, layers: usize) -> Vec<(Option<Vec<usize>>, bool)> {
    let found = meanings(folder, layers, None).unwrap().into_iter();
    found
        .map(|way| (way.reading.captured_layers, way.reading.absolute_ids))
        .collect()
}

#[test]
fn one_key_of_layer_ids_alone_can_be_meant_in_two_ways() {
    let run = (Some(vec![1, 2]), false);
    assert_eq!(ways(&eagle3(), 6), std::slice::from_ref(&run));
    let top = eagle3().without(&["eagle_config"]);
    assert_eq!(ways(&top, 6), [run.clone(), (Some(vec![2, 3]), false)]);
    let texts = meanings(&top, 6, None).unwrap();
    assert!(
        texts[0].text.contains("layers that have run") && texts[1].text.contains("output is taken")
    );
    let nested = eagle3().without(&[TOP]);
    assert_eq!(ways(&nested, 6), [run.clone(), (Some(vec![0, 1]), false)]);
    let none = eagle3().without(&[TOP, "eagle_config"]);
    assert_eq!(ways(&none, 6), [(None, false)]);
    let given = meanings(&nested, 6, Some(&[0, 4])).unwrap();
    assert_eq!(given.len(), 1);
    assert_eq!(given[0].reading.captured_layers, Some(vec![0, 4]));
    // A last layer that the target does not have is not meant.
    assert_eq!(ways(&top, 3), [run]);
    let error = meanings(&top, 2, None).unwrap_err().to_string();
    assert!(error.contains("layers of a target of 2"), "{error}");
}

#[test]
fn layer_ids_that_are_none_are_refused_whatever_another_key_says() {
    for value in [json!([5, 4, 2]), json!([2, 2, 4]), json!("x"), json!(3)] {
        for key in [TOP, "eagle_config", "aux_hidden_states_layer_ids"] {
            let folder = eagle3().with_config(|config| config[key] = value.clone());
            let error = meanings(&folder, 9, None).unwrap_err().to_string();
            assert!(
                error.contains(&format!("`{key}`")),
                "{key} {value}: {error}"
            );
        }
    }
}

#[test]
fn an_empty_list_of_layer_ids_says_nothing() {
    let empty = |keys: &[&str]| {
        eagle3().with_config(|config| {
            for key in keys {
                match *key {
                    "eagle_config" => config[*key] = json!({ TOP: [] }),
                    key => config[key] = json!([]),
                }
            }
        })
    };
    let nested = empty(&[TOP]);
    let of_nested = eagle3().without(&[TOP]);
    assert_eq!(ways(&nested, 6), ways(&of_nested, 6));
    let top = empty(&["eagle_config", "aux_hidden_states_layer_ids"]);
    let of_top = eagle3().without(&["eagle_config"]);
    assert_eq!(ways(&top, 6), ways(&of_top, 6));
    assert_eq!(
        top.settings(&EAGLE3).unwrap(),
        of_top.settings(&EAGLE3).unwrap()
    );
    assert_eq!(ways(&empty(&[TOP, "eagle_config"]), 6), [(None, false)]);
}

#[test]
fn where_the_residual_of_a_peagle_folder_for_speculators_starts_is_not_in_question() {
    let folder = sample("peagle", 0).folder(Some(Engine::Speculators));
    let unsaid = folder.unwrap().without(&["norm_before_residual"]);
    let found = meanings(&unsaid, 6, None).unwrap();
    assert!(found.len() == 1 && !found[0].reading.norm_before_residual);
}

#[test]
fn a_norm_that_the_readers_of_speculators_take_differently_is_two_meanings() {
    let written = || {
        sample("eagle3", 0)
            .folder(Some(Engine::Speculators))
            .unwrap()
    };
    let said = meanings(&written(), 6, None).unwrap();
    assert!(said.len() == 1 && !said[0].reading.norm_before_residual);
    let unsaid = written().without(&["norm_before_residual"]);
    let found = meanings(&unsaid, 6, None).unwrap();
    let norms: Vec<bool> = found
        .iter()
        .map(|way| way.reading.norm_before_residual)
        .collect();
    assert_eq!(norms, [true, false]);
    assert!(found[0].text.contains("vLLM") && found[1].text.contains("library"));
    let model = ModelFolder::open(unsaid.path()).unwrap();
    let opened = SPECULATORS.open(&model, found[0].reading.clone()).unwrap();
    assert!(opened.settings.flag("norm_before_residual"));
}

#[test]
fn eagle_3_configurations_of_another_computation_are_refused_by_key() {
    let linear = json!({"rope_type": "linear", "factor": 2.0});
    let changes = [
        ("architectures", json!(["Eagle3MistralForCausalLM"])),
        ("num_hidden_layers", json!(1 << 20)),
        ("layer_types", json!(["chunked_attention"])),
        ("layer_types", json!(["full_attention", "full_attention"])),
        ("head_dim", json!(5)),
        ("rms_norm_eps", json!(1.0)),
        ("rms_norm_eps", json!(1e-300)),
        ("rms_norm_eps", json!(-1.0)),
        ("rope_theta", json!(1e300)),
        ("hidden_act", json!("gelu")),
        ("attention_bias", json!(true)),
        ("tie_word_embeddings", json!(true)),
        ("norm_before_fc", json!("yes")),
        ("logit_scale", json!(0.5)),
        ("rope_theta", json!(1_000.0)),
        ("rope_scaling", linear),
        ("num_aux_hidden_states", json!(3)),
        ("num_key_value_heads", json!(3)),
        ("hidden_size", json!(1u64 << 60)),
        ("hidden_size", json!("8")),
        ("target_hidden_size", json!(31)),
        ("vocab_size", json!(0)),
        (TOP, json!([0, 4])),
        (TOP, json!([4, 2])),
    ];
    are_refused(changes, eagle3, &EAGLE3);
}

#[test]
fn classes_that_vllm_loads_with_llamas_code_are_llamas_layer() {
    let (expected, plain) = (eagle3().open().unwrap(), eagle3().config());
    for (class, kind) in [
        ("Eagle3Qwen2_5vlForCausalLM", "llama"),
        ("Eagle3Qwen3vlForCausalLM", "llama"),
        ("Eagle3MiniMaxM2ForCausalLM", "llama"),
        ("LlamaForCausalLMEagle3", "kimi_k2"),
        ("LlamaForCausalLMEagle3", "phi3"),
        ("LlamaForCausalLMEagle3", "qwen3"),
    ] {
        let folder = eagle3().with_config(|config| {
            config["architectures"] = json!([class]);
            config["model_type"] = json!(kind);
        });
        let found = folder.open().unwrap();
        assert_eq!(found.kind(), "eagle3", "{class}");
        assert_eq!(sorted(found.tensors()), sorted(expected.tensors()));
        assert!(!folder.settings(&EAGLE3).unwrap().flag("head_norm"));
    }
    assert_eq!(plain["model_type"], "llama");
    let parallel = Folder::of("peagle", 0)
        .with_config(|config| config["architectures"] = json!(["PeagleLlamaForCausalLM"]));
    assert_eq!(parallel.open().unwrap().kind(), "peagle");
    let normed = Folder::of("peagle", 4)
        .with_config(|config| config["architectures"] = json!(["PeagleQwen3ForCausalLM"]));
    assert_eq!(normed.open().unwrap().kind(), "peagle");
}

/// The sample of normed queries and keys whose layer slides.
const NORMED: usize = 8;

#[test]
fn norms_of_queries_and_keys_are_told_by_class_type_and_window_as_vllm_and_the_library_read_them() {
    let usual = Folder::of("eagle3", NORMED).config();
    assert_eq!(usual["architectures"], json!(["Eagle3Qwen3ForCausalLM"]));
    let parallel = Folder::of("peagle", 4).config();
    assert_eq!(parallel["architectures"], usual["architectures"]);
    let apart = |recipe, number| {
        let folder = sample(recipe, number).folder(Some(Engine::Speculators));
        folder.unwrap().config()["transformer_layer_config"].clone()
    };
    let layers = [apart("eagle3", NORMED), apart("peagle", 4)];
    for layer in &layers {
        assert_eq!(layer["architectures"], json!(["Qwen3ForCausalLM"]));
    }
    // Without the last key Qwen3's configuration has no window.
    for config in layers.iter().chain([&usual, &parallel]) {
        assert_eq!(config["model_type"], "qwen3");
        assert_eq!(config["sliding_window"], 9);
        assert_eq!(config["use_sliding_window"], true);
    }
}

#[test]
fn norms_of_captured_layers_of_a_peagle_folder_for_speculators_are_told_where_vllm_reads_them() {
    let config = |number: usize| {
        let folder = sample("peagle", number).folder(Some(Engine::Speculators));
        folder.unwrap().config()
    };
    for (number, told) in [(1, json!(true)), (2, Value::Null)] {
        let config = config(number);
        assert_eq!(config["fc_norm"], json!(number == 1));
        assert_eq!(config["transformer_layer_config"]["fc_norm"], told);
    }
}

#[test]
fn what_a_next_step_would_read_says_nothing_of_a_peagle_drafter() {
    for layout in [None, Some(Engine::Speculators)] {
        let folder = sample("peagle", 0).folder(layout).unwrap();
        let expected = sorted(folder.open().unwrap().tensors());
        let folder = folder.with_config(|config| config["norm_output"] = json!(true));
        let found = sorted(folder.open().unwrap().tensors());
        assert_eq!(found, expected, "{layout:?}");
    }
}

#[test]
fn a_layer_that_is_told_to_norm_and_not_to_norm_queries_and_keys_is_refused() {
    let changes = [
        ("model_type", json!("llama")),
        ("model_type", json!("mistral")),
        ("model_type", Value::Null),
        ("use_sliding_window", json!(false)),
        ("layer_types", Value::Null),
    ];
    are_refused(changes, || Folder::of("eagle3", NORMED), &EAGLE3);
    let plain = || Folder::of("eagle3", NORMED).without(&["use_sliding_window", "layer_types"]);
    assert_eq!(plain().settings(&EAGLE3).unwrap().size("window"), 0);
    // The class decides in this layout, and the tensors must be its own.
    let contrary = Folder::of("eagle3", NORMED)
        .with_config(|config| config["architectures"] = json!(["LlamaForCausalLMEagle3"]));
    contrary.is_refused("`model_type`");
    let llama = Folder::of("eagle3", NORMED).with_config(|config| {
        config["architectures"] = json!(["LlamaForCausalLMEagle3"]);
        config["model_type"] = json!("llama");
    });
    llama.is_refused("q_norm.weight");
}

/// Each of these values is refused with its key.
fn are_refused<const N: usize>(
    changes: [(&str, Value); N],
    folder: fn() -> Folder,
    dialect: &'static spectrain_checkpoints::dialect::Dialect,
) {
    for (key, value) in changes {
        let folder = folder().with_config(|config| config[key] = value);
        let error = folder.settings(dialect).unwrap_err().to_string();
        let named = error.contains("config.json") && error.contains(key);
        assert!(named, "{key}: {error}");
    }
}

#[test]
fn engines_are_offered_what_they_run_as_it_is_meant() {
    let lines = |number: usize| {
        let writing = Writing {
            folder: std::path::Path::new("runs/a b"),
            dtype: DType::F32,
            target: "org/name",
            draft_length: 3,
            provenance: &Value::Null,
        };
        let drafter = sample("eagle3", number).drafter();
        drafter.launch_lines(Engine::Vllm, &writing).unwrap()
    };
    let plain = lines(0);
    assert_eq!(
        plain[0].text,
        r#"vllm serve org/name --speculative-config '{"method":"eagle3","model":"runs/a b","num_speculative_tokens":3}'"#
    );
    assert!(
        plain[1]
            .text
            .contains("--speculative-num-steps 3 --speculative-eagle-topk 1")
    );
    assert!(
        plain[2].text.contains("eagle3_layers_to_capture: [1, 2]"),
        "{}",
        plain[2].text
    );
    assert!(plain[3].text.contains("--target-model-dir org/name"));
    let servers = |number: usize| {
        lines(number)
            .into_iter()
            .filter_map(|line| line.server)
            .collect::<Vec<_>>()
    };
    // EAGLE-3.1 with the residual behind the norm, which only vLLM takes whole, then a window.
    assert_eq!(servers(4), [Server::Vllm("eagle3")]);
    assert_eq!(
        servers(WINDOW),
        [Server::Vllm("eagle3"), Server::Sglang("EAGLE3")]
    );
    let before = Folder::of("eagle3", WINDOW).config()["sliding_window"]
        .as_u64()
        .unwrap()
        - 1;
    let flag = format!(" --speculative-draft-window-size {before}");
    assert!(
        lines(WINDOW)[1].text.ends_with(&flag),
        "{:?}",
        lines(WINDOW)
    );
    // Norms of queries and keys alone.
    assert_eq!(servers(7), [Server::Vllm("eagle3")]);
    // SGLang draws for a drafter that knows all of the target's tokens.
    let drawn = |number: usize| lines(number)[1].choosing.unwrap().to_string();
    assert!(drawn(0).contains("`--speculative-use-rejection-sampling`"));
    assert!(!drawn(HALF).contains("rejection-sampling"));
}

fn eagle1() -> Folder {
    Folder::of("eagle1", 0)
}

#[test]
fn an_eagle_1_folder_holds_what_both_engines_read() {
    let config = eagle1().config();
    let names = ["EagleLlamaForCausalLM", "LlamaForCausalLMEagle"];
    assert_eq!(config["architectures"], json!(names));
    let bias = eagle1().tensors().into_iter().find(|t| t.name == "fc.bias");
    assert!(
        bias.unwrap()
            .to_f32()
            .unwrap()
            .iter()
            .all(|&value| value == 0.0)
    );
}

#[test]
fn a_published_eagle_1_folder_is_read_and_its_bias_found_whatever_the_key_says() {
    let folder = eagle1()
        .without(&["rope_parameters", "bias"])
        .with_config(|config| {
            config["architectures"] = json!(["LlamaForCausalLM"]);
        });
    let folder = folder.with_tensors(|tensors| {
        tensors.retain(|tensor| tensor.name != "fc.bias");
        let embedding = NamedTensor::from_f32("embed_tokens.weight", [48, 32], vec![0.5; 48 * 32]);
        let name = "layers.0.self_attn.rotary_emb.inv_freq";
        tensors.extend([embedding, NamedTensor::from_f32(name, [3], vec![0.5; 3])]);
    });
    assert_eq!(folder.open().unwrap().kind(), "eagle1");
    assert!(!folder.settings(&EAGLE1).unwrap().flag("bias"));
    let biased = Folder::of("eagle1", 1).without(&["bias"]);
    assert!(biased.settings(&EAGLE1).unwrap().flag("bias"));
}

#[test]
fn an_eagle_1_folder_of_a_qwen2_layer_has_the_biases_of_its_tensors() {
    /// The sample with these biases.
    const BIASED: usize = 3;
    let written = Folder::of("eagle1", BIASED);
    let config = written.config();
    let names = json!(["EagleLlamaForCausalLM", "Qwen2ForCausalLMEagle"]);
    assert_eq!(config["architectures"], names);
    assert_eq!(config["qkv_bias"], true);
    let expected = sorted(written.open().unwrap().tensors());
    let biases = expected.iter().filter(|t| t.name.ends_with("_proj.bias"));
    assert_eq!(biases.count(), 3);
    let of_authors = written.without(&["qkv_bias"]).with_config(|config| {
        config["architectures"] = json!(["Qwen2ForCausalLM"]);
        config["model_type"] = json!("qwen2");
    });
    let found = of_authors.open().unwrap();
    assert_eq!(found.kind(), "eagle1");
    assert_eq!(sorted(found.tensors()), expected);
    let plain = eagle1().with_config(|config| config["qkv_bias"] = json!(true));
    plain.is_refused("_proj.bias");
    let spec = parts().spec;
    let start = sample("eagle1", 0).resolved().method;
    let error = start.check_start(of_authors.path(), &spec).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("`qkv_bias = true`"), "{error}");
}

#[test]
fn a_head_that_an_eagle_1_folder_repeats_is_not_its_own() {
    let folder = eagle1().with_tensors(|tensors| {
        let head = NamedTensor::from_f32("lm_head.weight", [48, 32], vec![0.5; 48 * 32]);
        tensors.push(head);
    });
    let (found, expected) = (folder.open().unwrap(), eagle1().open().unwrap());
    assert_eq!(sorted(found.tensors()), sorted(expected.tensors()));
}

#[test]
fn only_eagle_1_folders_are_taken_for_them() {
    let is = |config: Value| {
        let folder = eagle1().with_config(|found| {
            for (key, value) in config.as_object().unwrap() {
                found[key] = value.clone();
            }
        });
        (EAGLE1.recognises)(&ModelFolder::open(folder.path()).unwrap())
    };
    assert!(is(json!({})));
    for name in [
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "PeagleLlamaForCausalLM",
    ] {
        assert!(!is(json!({"architectures": [name]})));
    }
    assert!(!is(
        json!({"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 32})
    ));
}

#[test]
fn eagle_1_configurations_of_another_computation_are_refused_by_key() {
    let changes = [
        ("architectures", json!(["EagleMistralForCausalLM"])),
        ("num_hidden_layers", json!(2)),
        ("hidden_act", json!("gelu")),
        ("partial_rotary_factor", json!(0.5)),
        ("attention_bias", json!(true)),
        ("mlp_bias", json!(true)),
        ("logit_scale", json!(0.5)),
        ("hot_vocab_size", json!(10)),
        ("rope_theta", json!(1_000.0)),
        ("num_key_value_heads", json!(3)),
        ("vocab_size", json!(0)),
        ("bias", json!("yes")),
    ];
    are_refused(changes, eagle1, &EAGLE1);
}
