//! Folders of block drafters and of heads as their many trainers write them.
use serde_json::{Value, json};
use spectrain::recipe::tables::Engine;
use spectrain_checkpoints::dflash::DFLASH;
use spectrain_checkpoints::dflash::speculators::SPECULATORS;
use spectrain_checkpoints::dflash::transformers::TRANSFORMERS;
use spectrain_checkpoints::dialect::{Dialect, Reading, Settings};
use spectrain_checkpoints::hydra::HYDRA;
use spectrain_checkpoints::medusa::MEDUSA;
use spectrain_checkpoints::{ModelFolder, NamedTensor};

use crate::samples::{Folder, remove, sample, sorted};

/// Samples of block drafters, by number.
const PLAIN: usize = 0;
const SINKS: usize = 11;
const SLIDES: usize = 2;
const SECOND: usize = 4;
const VANILLA: usize = 5;
const GATED: usize = 6;
const MIXED: usize = 13;
const MIXED_WHOLE: usize = 14;
const DOMINO: usize = 15;
const XPRESS: usize = 17;
const XPRESS_NARROW: usize = 18;
const LILICORR: usize = 22;
const LILICORR_WIDE: usize = 23;

fn dflash(number: usize) -> Folder {
    Folder::of("dflash", number)
}

fn moved(config: &mut Value, from: &str, to: &str) {
    config[to] = config[from].take();
}

/// What has a value where the two differ.
fn assert_same(found: &Settings, expected: &Settings) {
    for (key, value) in expected.table() {
        assert_eq!(&found.table()[key], value, "{key}");
    }
}

#[test]
fn dspark_is_read_as_its_authors_write_it() {
    let expected = dflash(GATED).settings(&DFLASH).unwrap();
    assert!(expected.flag("sample_from_anchor") && expected.flag("confidence"));
    // What is at the top says it all, and an anchor that predicts and a head that is there need not be told.
    let flat = |config: &mut Value| {
        let keys = [
            "dflash_config",
            "sample_from_anchor",
            "dspark_bonus_anchor",
            "enable_confidence_head",
            "confidence_head_with_markov",
        ];
        remove(config, &keys);
    };
    let by_modelopt = |name: &str| {
        let name = name.replace("markov_head.", "");
        name.replace("confidence_head.proj.", "confidence_proj.")
    };
    let folder = dflash(GATED).with_config(flat).renamed(by_modelopt);
    assert_same(&folder.settings(&DFLASH).unwrap(), &expected);
    let (found, written) = (folder.open().unwrap(), sample("dflash", GATED).drafter());
    assert_eq!(sorted(found.tensors()), sorted(written.tensors()));
    let prefixed = dflash(GATED).with_config(|config| {
        flat(config);
        for [from, to] in [
            ["block_size", "dspark_block_size"],
            ["target_layer_ids", "dspark_target_layer_ids"],
            ["mask_token_id", "dspark_noise_token_id"],
            ["markov_rank", "dspark_markov_rank"],
            ["markov_head_type", "dspark_markov_head_type"],
        ] {
            moved(config, from, to);
        }
        config["architectures"] = json!(["DSparkDraftModel"]);
    });
    assert_same(&prefixed.settings(&DFLASH).unwrap(), &expected);
    let bonus = dflash(GATED).with_config(|config| {
        flat(config);
        config["dspark_bonus_anchor"] = json!(true);
    });
    assert!(!bonus.settings(&DFLASH).unwrap().flag("sample_from_anchor"));
}

#[test]
fn every_engine_is_told_whether_a_block_is_causal() {
    for number in 0..4 {
        let (folder, resolved) = (dflash(number), sample("dflash", number).resolved());
        let drafter = &resolved.json["drafter"];
        // SGLang reads this key alone.
        assert_eq!(folder.config()["is_causal"], drafter["causal"]);
        let found = folder.settings(&DFLASH).unwrap();
        assert_eq!(json!(found.flag("causal")), drafter["causal"]);
        assert_eq!(json!(found.size("window")), drafter["window"]);
    }
}

#[test]
fn layers_slide_one_by_one() {
    let types = json!(["sliding_attention", "full_attention"]);
    let mixed = dflash(MIXED);
    assert_eq!(mixed.config()["layer_types"], types);
    // A key for all layers would say that blocks are causal in both, or in none.
    assert!(mixed.config().get("is_causal").is_none());
    assert!(mixed.config()["dflash_config"].get("causal").is_none());
    let found = mixed.settings(&DFLASH).unwrap();
    assert_eq!(
        (found.size("window"), found.sizes("full_layers")),
        (9, vec![1])
    );
    assert!(found.flag("causal") && found.flag("full_layers_see_block"));
    for (key, value) in [("is_causal", true), ("is_causal", false), ("causal", true)] {
        let said = dflash(MIXED).with_config(|config| match key {
            "causal" => config["dflash_config"][key] = json!(value),
            _ => config[key] = json!(value),
        });
        let found = said.settings(&DFLASH).unwrap();
        assert_eq!(found.flag("causal"), value, "{key}");
        assert!(!found.flag("full_layers_see_block"), "{key}");
    }
    let no_width = dflash(MIXED).without(&["sliding_window"]);
    let error = no_width.settings(&DFLASH).unwrap_err().to_string();
    assert!(error.contains("`sliding_window`"), "{error}");
}

#[test]
fn without_types_layers_slide_by_qwens_own_keys() {
    let with = |first: Value| {
        let folder = dflash(MIXED).without(&["layer_types"]);
        let folder = folder.with_config(|config| {
            config["use_sliding_window"] = json!(true);
            config["max_window_layers"] = first;
        });
        folder.settings(&DFLASH)
    };
    // Engines take layers that slide for causal.
    for (first, full) in [(0, vec![]), (1, vec![0])] {
        let found = with(json!(first)).unwrap();
        assert_eq!(
            (found.size("window"), found.sizes("full_layers")),
            (9, full)
        );
        assert!(found.flag("causal"), "{first}");
        assert_eq!(found.flag("full_layers_see_block"), first == 1);
    }
    let found = with(json!(28)).unwrap();
    assert_eq!((found.size("window"), found.flag("causal")), (0, false));
    let error = with(json!("x")).unwrap_err().to_string();
    assert!(error.contains("`max_window_layers`"), "{error}");
}

#[test]
fn a_layout_that_has_no_key_for_blocks_of_some_layers_refuses_them() {
    for engine in [Engine::Speculators, Engine::Hf] {
        assert!(sample("dflash", MIXED).folder(Some(engine)).is_none());
        let plain = sample("dflash", MIXED_WHOLE).folder(Some(engine)).unwrap();
        let config = plain.config();
        let types = match engine {
            Engine::Hf => &config["layer_types"],
            _ => &config["transformer_layer_config"]["layer_types"],
        };
        assert_eq!(types, &json!(["full_attention", "sliding_attention"]));
    }
    // As the library's trainer leaves it: full layers see their whole block, whatever the others do.
    let folder = sample("dflash", MIXED_WHOLE)
        .folder(Some(Engine::Speculators))
        .unwrap();
    let folder = folder.with_config(|config| {
        config["sliding_window_non_causal"] = json!(false);
        remove(&mut config["transformer_layer_config"], &["is_causal"]);
    });
    let found = folder.settings(&SPECULATORS).unwrap();
    assert!(found.flag("causal") && found.flag("full_layers_see_block"));
    assert_eq!(found.sizes("full_layers"), [0]);
}

#[test]
fn domino_is_read_and_written_as_sglang_loads_it() {
    let folder = dflash(DOMINO);
    let config = folder.config();
    assert_eq!(config["architectures"], json!(["DFlashDraftModel"]));
    for (key, value) in [
        ("projector_type", json!("domino")),
        ("shift_label", json!(true)),
        ("pure_draft_prefix_len", json!(1)),
        ("gru_hidden_dim", json!(6)),
        ("emb_dim", json!(3)),
    ] {
        assert_eq!(config["dflash_config"][key], value, "{key}");
    }
    for key in ["markov_rank", "sample_from_anchor", "markov_head_type"] {
        assert!(config.get(key).is_none(), "{key}");
    }
    let tensors = folder.tensors();
    let (vocab, d_model) = (config["vocab_size"].clone(), config["hidden_size"].clone());
    let [vocab, d_model] = [vocab, d_model].map(|size| size.as_u64().unwrap() as usize);
    for (name, shape) in [
        ("prefix_gru.weight_ih_l0", [18, d_model]),
        ("prefix_gru.weight_hh_l0", [18, 6]),
        ("embed_proj.0.weight", [3, d_model + 6]),
        ("embed_proj.2.weight", [vocab, 3]),
    ] {
        let found = tensors.iter().find(|tensor| tensor.name == name);
        assert_eq!(found.unwrap().shape, shape, "{name}");
    }
    let expected = dflash(DOMINO).settings(&DFLASH).unwrap();
    let by_specforge = dflash(DOMINO).with_config(|config| {
        config["architectures"] = json!(["DominoDraftModel"]);
        remove(&mut config["dflash_config"], &["projector_type"]);
    });
    assert_same(&by_specforge.settings(&DFLASH).unwrap(), &expected);
    let flat = dflash(DOMINO).with_config(|config| {
        config["emb_dim"] = config["dflash_config"]["emb_dim"].take();
        remove(
            &mut config["dflash_config"],
            &["pure_draft_prefix_len", "emb_dim"],
        );
    });
    let found = flat.settings(&DFLASH).unwrap();
    assert_eq!(
        (found.size("markov_rank"), found.size("markov_from")),
        (3, 0)
    );
    let error = |change: fn(&mut Value)| {
        let refused = dflash(DOMINO).with_config(change).settings(&DFLASH);
        refused.unwrap_err().to_string()
    };
    let no_width = error(|config| remove(&mut config["dflash_config"], &["gru_hidden_dim"]));
    assert!(no_width.contains("gru_hidden_dim"), "{no_width}");
    let contrary = error(|config| config["sample_from_anchor"] = json!(false));
    assert!(contrary.contains("dflash_config.shift_label"), "{contrary}");
}

#[test]
fn xpress_is_read_and_written_as_vllm_loads_it() {
    let folder = dflash(XPRESS);
    let config = folder.config();
    for (key, value) in [
        ("architectures", json!(["Qwen3XPressModel"])),
        ("model_type", json!("qwen3")),
        ("xpress_rank", json!(3)),
        ("xpress_mlp_hidden", json!(6)),
        ("xpress_block_size", json!(4)),
        ("xpress_num_passes", json!(6)),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    for key in ["markov_rank", "sample_from_anchor", "markov_head_type"] {
        assert!(config.get(key).is_none(), "{key}");
    }
    let tensors = folder.tensors();
    let size = |key: &str| config[key].as_u64().unwrap() as usize;
    let (vocab, d_model) = (size("vocab_size"), size("hidden_size"));
    for (name, shape) in [
        ("w1.weight", vec![vocab, 3]),
        ("w2.weight", vec![vocab, 3]),
        ("down_h.weight", vec![3, d_model]),
        ("down_g.weight", vec![3, d_model]),
        ("in_proj.weight", vec![3, 9]),
        ("mix.L", vec![3, 4, 4]),
        ("mlp.gate_proj.weight", vec![6, 3]),
        ("mlp.up_proj.weight", vec![6, 3]),
        ("mlp.down_proj.weight", vec![3, 6]),
    ] {
        let name = format!("xpress_head.{name}");
        let found = tensors.iter().find(|tensor| tensor.name == name);
        let found = found.unwrap_or_else(|| panic!("there is no `{name}`"));
        assert_eq!(found.shape, shape, "{name}");
    }
    // As it is published, and with what vLLM takes where nothing is said.
    let expected = dflash(XPRESS).settings(&DFLASH).unwrap();
    assert_eq!(expected.word("markov"), "xpress");
    let flat = dflash(XPRESS).with_config(|config| {
        config["architectures"] = json!(["DFlashQwen3XPressModel"]);
        remove(config, &["block_size", "xpress_num_passes"]);
    });
    assert_same(&flat.settings(&DFLASH).unwrap(), &expected);
    let contrary = dflash(XPRESS).with_config(|config| config["xpress_block_size"] = json!(5));
    contrary.is_refused("xpress_block_size");
}

#[test]
fn lilicorr_is_read_and_written_as_vllm_and_sglang_load_it() {
    let folder = dflash(LILICORR);
    let (config, tensors) = (folder.config(), folder.tensors());
    assert_eq!(config["architectures"], json!(["LiLiCorrDraftModel"]));
    let sizes = &config["dflash_config"];
    for (key, value) in [
        ("lilicorr_enabled", json!(true)),
        ("lilicorr_candidate_topk", json!(4)),
        ("lilicorr_hidden_size", json!(8)),
        ("lilicorr_num_layers", json!(1)),
        ("lilicorr_num_heads", json!(2)),
        ("lilicorr_mlp_ratio", json!(2.0)),
        ("lilicorr_factor_dim", json!(6)),
        ("lilicorr_logit_scale", json!(8.0)),
        ("lilicorr_vector_eps", json!(1e-4)),
    ] {
        assert_eq!(sizes[key], value, "{key}");
    }
    let d_model = config["hidden_size"].as_u64().unwrap() as usize;
    for (name, shape) in [
        ("token_proj.weight", vec![8, d_model]),
        ("feature_norm.bias", vec![5]),
        ("feature_mlp.up_proj.weight", vec![8, 5]),
        ("slot_embedding", vec![1, 1, 3, 1, 8]),
        ("rank_embedding", vec![1, 1, 1, 4, 8]),
        ("relative_slot_bias", vec![2, 7]),
        ("layers.0.attn.in_proj_weight", vec![24, 8]),
        ("layers.0.attn.in_proj_bias", vec![24]),
        ("layers.0.attn.out_proj.bias", vec![8]),
        ("layers.0.mlp.down_proj.weight", vec![8, 16]),
        ("factor_input_proj.weight", vec![8, 24]),
        ("anchor_out_head.weight", vec![6, 8]),
    ] {
        let name = format!("lilicorr.{name}");
        let found = tensors.iter().find(|tensor| tensor.name == name);
        let found = found.unwrap_or_else(|| panic!("there is no `{name}`"));
        assert_eq!(found.shape, shape, "{name}");
    }
}

#[test]
fn lilicorr_as_wide_as_its_target_has_no_projection_and_may_say_so_by_a_width_of_0() {
    let expected = dflash(LILICORR_WIDE).settings(&DFLASH).unwrap();
    assert_eq!(expected.size("lattice.d_ff"), 20);
    let tensors = dflash(LILICORR_WIDE).tensors();
    let projects = |tensor: &NamedTensor| tensor.name.contains("token_proj");
    assert!(!tensors.iter().any(projects));
    // As Model Optimizer's exports and plain DFlash's keys tell it.
    let other = dflash(LILICORR_WIDE).with_config(|config| {
        config["architectures"] = json!(["DFlashDraftModel"]);
        let table = &mut config["dflash_config"];
        table["projector_type"] = json!("lilicorr");
        table["lilicorr_hidden_size"] = json!(0);
        remove(table, &["lilicorr_enabled"]);
    });
    assert_same(&other.settings(&DFLASH).unwrap(), &expected);
}

#[test]
fn lilicorr_that_leaves_out_what_changes_no_shape_is_refused() {
    for key in ["lilicorr_logit_scale", "lilicorr_vector_eps"] {
        let without =
            dflash(LILICORR).with_config(|config| remove(&mut config["dflash_config"], &[key]));
        without.is_refused(key);
    }
    let off = dflash(LILICORR)
        .with_config(|config| config["dflash_config"]["lilicorr_enabled"] = json!(false));
    off.is_refused("lilicorr_enabled");
    let odd = dflash(SECOND)
        .with_config(|config| config["dflash_config"]["projector_type"] = json!("xpress"));
    odd.is_refused("projector_type");
}

#[test]
fn tensors_of_lilicorr_are_found_by_the_numbers_of_earlier_versions_too() {
    let numbered = |name: &str| {
        let name = name.replace("feature_norm.", "feature_mlp.0.");
        let name = name.replace("feature_mlp.up_proj.", "feature_mlp.1.");
        let name = name.replace("feature_mlp.down_proj.", "feature_mlp.3.");
        let name = name.replace("lilicorr.layers.0.mlp.up_proj.", "lilicorr.layers.0.mlp.0.");
        name.replace(
            "lilicorr.layers.0.mlp.down_proj.",
            "lilicorr.layers.0.mlp.2.",
        )
    };
    let expected = dflash(LILICORR).open().unwrap().tensors();
    let found = dflash(LILICORR).renamed(numbered).open().unwrap().tensors();
    assert_eq!(sorted(found), sorted(expected));
}

#[test]
fn a_folder_of_speculators_counts_the_width_behind_the_codes_of_xpress_in_ranks() {
    let folder = sample("dflash", XPRESS)
        .folder(Some(Engine::Speculators))
        .unwrap();
    let config = folder.config();
    for (key, value) in [
        ("speculators_model_type", json!("xpress")),
        ("xpress_rank", json!(3)),
        ("xpress_mlp_ratio", json!(2)),
        ("num_jacobi_passes", json!(6)),
        ("sample_from_anchor", json!(false)),
    ] {
        assert_eq!(config[key], value, "{key}");
    }
    let names: Vec<String> = folder.tensors().into_iter().map(|t| t.name).collect();
    for name in [
        "refiner_head.token_embed.weight",
        "refiner_head.readout.weight",
        "refiner_head.mix_l",
        "refiner_head.mlp_gate.weight",
        "refiner_head.down_g.weight",
    ] {
        assert!(names.contains(&name.to_owned()), "{name}: {names:?}");
    }
    let found = folder.settings(&SPECULATORS).unwrap();
    assert_eq!(
        (found.size("markov_rank"), found.size("markov_d_ff")),
        (3, 6)
    );
    // 5 is no multiple of 4.
    let narrow = sample("dflash", XPRESS_NARROW);
    assert!(narrow.folder(Some(Engine::Speculators)).is_none());
}

#[test]
fn sinks_are_read_under_the_key_of_mimo_too() {
    let own = dflash(SINKS);
    assert_eq!(own.config()["dflash_config"]["attention_sink_bias"], true);
    let expected = own.settings(&DFLASH).unwrap();
    assert!(expected.flag("sinks"));
    let others = dflash(SINKS).with_config(|config| {
        let table = config["dflash_config"].as_object_mut().unwrap();
        table.remove("attention_sink_bias");
        config["add_swa_attention_sink_bias"] = json!(true);
    });
    assert_same(&others.settings(&DFLASH).unwrap(), &expected);
}

#[test]
fn a_folder_of_transformers_has_the_defaults_of_transformers() {
    let written = || sample("dflash", SLIDES).folder(Some(Engine::Hf)).unwrap();
    let names: Vec<String> = written().tensors().into_iter().map(|t| t.name).collect();
    for name in ["encoder.fc.weight", "encoder.output_norm_enc.weight"] {
        assert!(names.contains(&name.to_owned()), "{names:?}");
    }
    let unsaid = [
        "is_causal",
        "dflash_config",
        "layer_types",
        "sliding_window",
        "rope_theta",
        "rope_parameters",
        "rms_norm_eps",
    ];
    let found = written().without(&unsaid).settings(&TRANSFORMERS).unwrap();
    // A place 2048 away is still seen there.
    assert_eq!((found.size("window"), found.flag("causal")), (2049, false));
    assert_eq!(found.rope().unwrap().rope_theta, 500_000.0);
    assert_eq!(found.get("norm_epsilon").unwrap(), 1e-5);
    let no_base = dflash(PLAIN).without(&["rope_theta", "rope_parameters"]);
    let error = no_base.settings(&DFLASH).unwrap_err().to_string();
    assert!(error.contains("`rope_theta`"), "{error}");
}

#[test]
fn a_folder_of_speculators_need_not_say_how_many_layers_its_target_has() {
    let folder = sample("dflash", PLAIN)
        .folder(Some(Engine::Speculators))
        .unwrap();
    assert_eq!(
        folder.config()["aux_hidden_state_layer_ids"],
        json!([1, 2, 3, 4, 5, 6])
    );
    assert_eq!(folder.config()["sliding_window_non_causal"], true);
    let folder = folder.without(&["num_target_layers"]);
    let model = ModelFolder::open(folder.path()).unwrap();
    let error = SPECULATORS
        .open(&model, Reading::default())
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("num_target_layers"), "{error}");
    assert_eq!(
        folder.settings(&SPECULATORS).unwrap().size("target_layers"),
        6
    );
    for (number, kind) in [(SECOND, "dflash2"), (VANILLA, "dspark")] {
        let folder = sample("dflash", number)
            .folder(Some(Engine::Speculators))
            .unwrap();
        assert_eq!(folder.config()["speculators_model_type"], kind);
    }
}

#[test]
fn what_blocks_see_where_layers_slide_and_nothing_is_said_is_as_each_reader_takes_it() {
    let unsaid = |number: usize| {
        let folder = sample("dflash", number).folder(Some(Engine::Speculators));
        folder.unwrap().with_config(|config| {
            remove(config, &["sliding_window_non_causal"]);
            let layer = &mut config["transformer_layer_config"];
            remove(layer, &["is_causal"]);
            layer["layer_types"] = json!(["sliding_attention", "sliding_attention"]);
            layer["sliding_window"] = json!(9);
        })
    };
    let causal = |folder: &Folder| -> Vec<bool> {
        let model = ModelFolder::open(folder.path()).unwrap();
        let reading = Reading {
            target_layers: Some(6),
            ..Reading::default()
        };
        let ways = SPECULATORS.meanings(&model, &reading, None).unwrap();
        let of_way = |reading: Reading| SPECULATORS.open(&model, reading).unwrap();
        let ways = ways.into_iter().map(|way| of_way(way.reading));
        ways.map(|opened| opened.settings.flag("causal")).collect()
    };
    assert_eq!(causal(&unsaid(SLIDES)), [true, false]);
    assert_eq!(causal(&unsaid(SECOND)), [false]);
    for (said, expected) in [(true, false), (false, true)] {
        for number in [SLIDES, SECOND] {
            let folder = unsaid(number)
                .with_config(|config| config["sliding_window_non_causal"] = json!(said));
            assert_eq!(causal(&folder), [expected], "{number}");
        }
    }
}

#[test]
fn the_length_of_a_block_and_windows_are_read_in_the_table_of_dflash_too() {
    let expected = dflash(SECOND).settings(&DFLASH).unwrap();
    let nested = dflash(SECOND).with_config(|config| {
        config["dflash_config"]["block_size"] = config["block_size"].take();
    });
    assert_same(&nested.settings(&DFLASH).unwrap(), &expected);
    let windows = |config: &mut Value| {
        remove(config, &["is_causal"]);
        config["dflash_config"]["use_swa"] = json!(true);
        config["dflash_config"]["swa_window_size"] = json!(16);
    };
    let found = dflash(SECOND)
        .with_config(windows)
        .settings(&DFLASH)
        .unwrap();
    assert_eq!((found.size("window"), found.flag("causal")), (16, false));
    let said = dflash(SECOND).with_config(|config| {
        windows(config);
        config["is_causal"] = json!(true);
    });
    assert!(said.settings(&DFLASH).unwrap().flag("causal"));
    let typed = dflash(SECOND).with_config(|config| {
        windows(config);
        config["layer_types"] = json!(["full_attention", "full_attention"]);
    });
    let error = typed.settings(&DFLASH).unwrap_err().to_string();
    assert!(error.contains("`layer_types`"), "{error}");
    let two = dflash(SECOND).with_config(|config| config["dflash_config"]["block_size"] = json!(9));
    let error = two.settings(&DFLASH).unwrap_err().to_string();
    assert!(
        error.contains("`dflash_config.block_size`") && error.contains("`block_size`"),
        "{error}"
    );
}

/// Each of these values is refused with its key, which may stand in a table.
fn are_refused(number: usize, changes: &[(&str, Value)]) {
    for (key, value) in changes {
        let folder = dflash(number).with_config(|config| match key.split_once('.') {
            Some((table, inner)) => config[table][inner] = value.clone(),
            None => config[*key] = value.clone(),
        });
        let error = folder.settings(&DFLASH).unwrap_err().to_string();
        assert!(error.contains(&format!("{key}`")), "{key}: {error}");
    }
}

#[test]
fn keys_that_make_no_sense_are_refused_by_name() {
    are_refused(
        PLAIN,
        &[
            ("block_size", json!("16")),
            ("num_target_layers", json!(0)),
            ("attention_bias", json!(true)),
            (
                "layer_types",
                json!(["sliding_attention", "chunked_attention"]),
            ),
            ("layer_types", json!(["full_attention"])),
            ("dflash_config.mask_token_id", json!(-1)),
            ("dflash_config.target_layer_ids", json!([3, 1])),
        ],
    );
}

#[test]
fn what_is_not_computed_here_is_refused_by_name() {
    are_refused(
        PLAIN,
        &[
            ("output_multiplier", json!(2.0)),
            ("dflash_config.output_multiplier", json!(0.5)),
            ("input_embedding_scale", json!(2.0)),
            ("dflash_config.input_embedding_scale", json!(0.5)),
            ("logit_scale", json!(2.0)),
            ("dflash_config.logit_scale", json!(0.5)),
            ("dflash_config.final_logit_softcapping", json!(30.0)),
            ("dflash_config.attention_value_scale", json!(0.7)),
            ("dflash_config.projector_type", json!("xpress")),
            ("dflash_config.use_aux_hidden_state", json!(false)),
            ("is_neox_style", json!(false)),
            ("rope_is_neox_style", json!(false)),
            ("hidden_act", json!("gelu")),
            ("dflash_config", json!([])),
            ("target_hidden_size", json!(9)),
            ("quantization_config", json!({"bits": 4})),
        ],
    );
    are_refused(VANILLA, &[("dspark_bonus_anchor", json!(true))]);
    let neutral = dflash(PLAIN).with_config(|config| {
        config["dflash_config"]["output_multiplier"] = json!(1);
        config["dflash_config"]["final_logit_softcapping"] = json!(null);
        config["is_neox_style"] = json!(true);
    });
    neutral.open().unwrap();
    std::fs::write(neutral.path().join("mask_embedding.pt"), "a pickle").unwrap();
    neutral.is_refused("mask_embedding.pt");
}

/// Names as Medusa's authors give them, where heads have so many blocks.
fn by_authors(name: &str, blocks: usize) -> String {
    let name = name.replace("blocks.", "").replace(".layers.", ".");
    match name.strip_prefix("lm_heads.") {
        Some(rest) => format!(
            "medusa_heads.{}",
            rest.replace(".weight", &format!(".{blocks}.weight"))
        ),
        None => {
            let name = name.replace(".weight", ".linear.weight");
            format!("medusa_heads.{}", name.replace(".bias", ".linear.bias"))
        }
    }
}

#[test]
fn the_head_folders_of_medusas_authors_name_no_sizes() {
    let written = sample("medusa", 0).drafter();
    let config =
        json!({"base_model_name_or_path": "v", "medusa_num_heads": 3, "medusa_num_layers": 1});
    let folder = Folder::of("medusa", 0).renamed(|name| by_authors(name, 1));
    folder.rewrite(config, &folder.tensors());
    let found = folder.open().unwrap();
    assert_eq!(sorted(found.tensors()), sorted(written.tensors()));
}

#[test]
fn heads_that_the_authors_key_does_not_count_are_taken_too() {
    let written = sample("medusa", 0).drafter();
    let with = |heads: usize| {
        let config = json!({"medusa_num_heads": heads, "medusa_num_layers": 1});
        let folder = Folder::of("medusa", 0).renamed(|name| by_authors(name, 1));
        folder.rewrite(config, &folder.tensors());
        folder
    };
    let found = with(2).open().unwrap();
    assert_eq!(sorted(found.tensors()), sorted(written.tensors()));
    // None may be missing, and in vLLM's spelling the key decides.
    with(4).is_refused(".3.");
    let ours = Folder::of("medusa", 0).with_config(|config| config["num_heads"] = json!(2));
    ours.is_refused(".2.");
}

#[test]
fn counts_of_heads_that_contradict_each_other_are_refused() {
    let with =
        |key: &str, value: Value| Folder::of("medusa", 0).with_config(|config| config[key] = value);
    with("medusa_num_heads", json!(3)).open().unwrap();
    for (key, value) in [
        ("medusa_num_heads", json!(4)),
        (
            "medusa",
            json!({"num_medusa_heads": 2, "num_medusa_layers": 1}),
        ),
        (
            "medusa",
            json!({"num_medusa_heads": 3, "num_medusa_layers": 2}),
        ),
    ] {
        with(key, value).is_refused("expected the same as in");
    }
    // Of a folder that holds the target's configuration too this is the target's.
    let folder = Folder::of("medusa", 0)
        .without(&["num_heads"])
        .with_config(|config| {
            config["num_hidden_layers"] = json!(32);
            config["medusa"] = json!({"num_medusa_heads": 3, "num_medusa_layers": 1});
        });
    assert_eq!(folder.settings(&MEDUSA).unwrap().size("head_layers"), 1);
    with("quantization_config", json!({})).is_refused("`quantization_config`");
}

#[test]
fn heads_of_another_target_are_refused() {
    let changed = Folder::of("medusa", 1).with_tensors(|tensors| {
        let head = tensors
            .iter_mut()
            .find(|t| t.name == "lm_head.weight")
            .unwrap();
        let values = head.to_f32().unwrap().into_iter().map(|value| 1.5 * value);
        *head = NamedTensor::from_f32("lm_head.weight", head.shape.clone(), values.collect());
    });
    changed.is_refused("`lm_head.weight`: expected the target's, which the drafter's heads share");
}

#[test]
fn a_hydra_folder_with_numbers_that_no_layer_has_is_not_read() {
    let of = |key: &str, value: Value| -> String {
        let folder = Folder::of("hydra", 2).with_config(|config| config[key] = value);
        let dialect: &'static Dialect = &HYDRA;
        folder.settings(dialect).unwrap_err().to_string()
    };
    for (key, value) in [
        ("rms_norm_eps", json!(0)),
        ("rope_theta", json!(-1)),
        ("num_key_value_heads", json!(3)),
        ("head_dim", json!(5)),
        ("quantization_config", json!({})),
    ] {
        let error = of(key, value);
        assert!(error.contains(&format!("key `{key}`")), "{error}");
    }
    // Engines would take a folder with this key for one of EAGLE-3.
    assert!(
        Folder::of("hydra", 1)
            .config()
            .get("draft_vocab_size")
            .is_none()
    );
}

#[test]
fn sizes_of_heads_that_a_folder_leaves_out_are_those_of_its_type() {
    let without = |key: &str| Folder::of("dflash", 0).without(&[key]);
    without("head_dim").is_refused("_norm.weight");
    let found = without("head_dim").settings(&DFLASH).unwrap();
    assert_eq!(found.size("d_head"), 128);
    without("num_key_value_heads")
        .is_refused("a divisor of `4`, as this `model_type` has `32` without it");
    // Of a Llama both follow from the other sizes.
    let llama = |key: &str| Folder::of("eagle3", 0).without(&[key]);
    llama("head_dim").open().unwrap();
    llama("num_key_value_heads").is_refused("_proj.weight");
}

#[test]
fn a_folder_of_speculators_has_the_sizes_of_the_type_of_its_layers() {
    let without = |key: &str| {
        let folder = sample("dflash", PLAIN).folder(Some(Engine::Speculators));
        folder.unwrap().with_config(|config| {
            // What the library says of a drafter at the top.
            config["model_type"] = json!("speculator_model");
            remove(&mut config["transformer_layer_config"], &[key]);
        })
    };
    let found = without("head_dim").settings(&SPECULATORS).unwrap();
    assert_eq!(found.size("d_head"), 128);
    let error = without("num_key_value_heads").settings(&SPECULATORS);
    let error = error.unwrap_err().to_string();
    let told = "a divisor of `4`, as this `model_type` has `32` without it";
    assert!(error.contains(told), "{error}");
}
