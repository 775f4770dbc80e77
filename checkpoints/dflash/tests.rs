use serde_json::json;

use super::*;
use crate::seal;

pub(crate) fn layout() -> DFlashLayout {
    DFlashLayout {
        hidden_size: 8,
        intermediate_size: 12,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 2,
        vocab_size: 20,
        target_layers: 6,
        captured_layers: vec![1, 3],
        block_size: 4,
        mask_token: 19,
        window: 0,
        causal: false,
        rms_norm_eps: 1e-6,
        max_position_embeddings: 64,
        parts: DFlashParts::default(),
        rope: Rope {
            rope_theta: 1e6,
            scaling: None,
        },
        dtype: DType::F32,
    }
}

pub(crate) fn dflash_2() -> DFlashLayout {
    DFlashLayout {
        parts: DFlashParts {
            convolution: Some(Convolution { taps: 2, group: 4 }),
            selector: Some(Selector { rank: 3, top_k: 5 }),
            ..DFlashParts::default()
        },
        ..layout()
    }
}

pub(crate) fn dspark(kind: &str) -> DFlashLayout {
    DFlashLayout {
        parts: DFlashParts {
            markov: Some(Markov {
                rank: 3,
                kind: kind.into(),
            }),
            confidence: true,
            sample_from_anchor: true,
            ..DFlashParts::default()
        },
        ..layout()
    }
}

#[test]
fn each_family_has_the_name_and_the_commands_of_engines_that_run_it() {
    let lines = |layout: &DFlashLayout| {
        let lines = launch_lines(Path::new("d"), layout, "t", 2);
        let texts: Vec<String> = lines.into_iter().map(|line| line.text).collect();
        texts.join("\n")
    };
    let name = |layout: &DFlashLayout| to_json(layout)["architectures"][0].clone();
    assert_eq!(name(&layout()), "DFlashDraftModel");
    assert!(lines(&layout()).contains("\"num_speculative_tokens\":2"));
    assert!(
        lines(&layout()).contains("decoding_type: DFlash, max_draft_len: 2")
            && lines(&layout()).contains("target_layer_ids: [1, 3]")
    );
    assert_eq!(name(&dflash_2()), "DFlash2DraftModel");
    assert!(!lines(&dflash_2()).contains("decoding_type"));
    assert!(lines(&dflash_2()).contains("\"num_speculative_tokens\":3"));
    let with_room = |hidden_size| DFlashLayout {
        hidden_size,
        ..dflash_2()
    };
    let candidates = dflash_2().parts.selector.unwrap().top_k;
    let needed = candidates * (candidates + 1);
    assert!(lines(&with_room(needed)).contains("llama-server"));
    assert!(!lines(&with_room(needed - 1)).contains("llama-server"));
    assert_eq!(name(&dspark("vanilla")), "Qwen3DSparkModel");
    assert!(lines(&dspark("vanilla")).contains("dspark"));
    assert_eq!(name(&dspark("rnn")), "Qwen3DSparkModel");
    let of_rnn = lines(&dspark("rnn"));
    assert!(of_rnn.contains("--speculative-dspark-block-size") && !of_rnn.contains("vllm"));
    let mut half = dflash_2();
    half.parts.selector = None;
    assert_eq!(name(&half), "SpectrainBlockDrafter");
    assert!(lines(&half).contains("no serving engine"));
}

pub(crate) fn tensors(layout: &DFlashLayout) -> Vec<NamedTensor> {
    let tensor = |(name, shape, dtype): TensorSpec| {
        let count = shape.iter().product();
        NamedTensor::from_f32(name, shape, vec![0.5; count])
            .cast(dtype)
            .unwrap()
    };
    required(layout).into_iter().map(tensor).collect()
}

#[test]
fn what_is_written_is_read_back() {
    let root = tempfile::tempdir().unwrap();
    let variants = [
        layout(),
        DFlashLayout {
            window: 5,
            ..layout()
        },
        DFlashLayout {
            window: 5,
            causal: true,
            dtype: DType::BF16,
            ..layout()
        },
        DFlashLayout {
            causal: true,
            ..layout()
        },
        dflash_2(),
        dspark("vanilla"),
        dspark("gated"),
        dspark("rnn"),
        DFlashLayout {
            captured_layers: Vec::new(),
            parts: DFlashParts {
                of_tokens: true,
                ..DFlashParts::default()
            },
            ..layout()
        },
    ];
    for (number, layout) in variants.into_iter().enumerate() {
        let dir = root.path().join(number.to_string());
        write(&dir, &layout, &tensors(&layout), &json!({"a": 1})).unwrap();
        let (found, read) = read(&dir).unwrap();
        assert_eq!(found, layout);
        assert_eq!(read.len(), tensors(&layout).len());
        let config = ModelFolder::open(&dir).unwrap().config().clone();
        assert_eq!(seal::provenance(&config).unwrap()["a"], 1);
        assert!(recognises(&config));
    }
}

#[test]
fn every_tensor_must_be_there_and_known() {
    let root = tempfile::tempdir().unwrap();
    let (dir, layout) = (root.path().join("d"), layout());
    for index in 0..tensors(&layout).len() {
        let mut fewer = tensors(&layout);
        let name = fewer.remove(index).name;
        let error = write(&dir, &layout, &fewer, &Value::Null).unwrap_err();
        assert!(error.to_string().contains(&name), "{error}");
    }
    let mut more = tensors(&layout);
    more.push(NamedTensor::from_f32("mask_hidden", [8], vec![0.0; 8]));
    let error = write(&dir, &layout, &more, &Value::Null).unwrap_err();
    assert!(error.to_string().contains("mask_hidden"), "{error}");
    assert!(!dir.exists());
}

#[test]
fn keys_that_make_no_sense_are_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let (dir, layout) = (root.path().join("d"), layout());
    write(&dir, &layout, &tensors(&layout), &Value::Null).unwrap();
    let file = dir.join("config.json");
    let config: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
    let wrong = [
        ("block_size", json!("16")),
        ("num_target_layers", json!(0)),
        ("attention_bias", json!(true)),
        (
            "layer_types",
            json!(["sliding_attention", "full_attention"]),
        ),
    ];
    for (key, value) in wrong {
        let mut changed = config.clone();
        changed[key] = value;
        std::fs::write(&file, changed.to_string()).unwrap();
        let error = read(&dir).unwrap_err().to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
    for (key, value) in [
        ("mask_token_id", json!(-1)),
        ("target_layer_ids", json!([3, 1])),
    ] {
        let mut changed = config.clone();
        changed["dflash_config"][key] = value;
        std::fs::write(&file, changed.to_string()).unwrap();
        let error = read(&dir).unwrap_err().to_string();
        assert!(error.contains(key), "{key}: {error}");
    }
}

#[test]
fn a_draft_is_never_asked_to_be_longer_than_the_block() {
    let lines = launch_lines(Path::new("d"), &layout(), "t", 9);
    assert!(
        lines[0].text.contains(r#""num_speculative_tokens":3"#),
        "{lines:?}"
    );
    assert!(
        lines[1].text.contains("DFLASH")
            && lines[1].text.ends_with("--speculative-num-draft-tokens 4"),
        "{lines:?}"
    );
}

/// The folder of a layout after `change` to its configuration and its tensors' names.
fn published(
    layout: &DFlashLayout,
    change: impl Fn(&mut Value),
    rename: impl Fn(&str) -> String,
) -> Result<(DFlashLayout, Vec<NamedTensor>)> {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    let mut config = to_json(layout);
    change(&mut config);
    let renamed = tensors(layout).into_iter().map(|tensor| NamedTensor {
        name: rename(&tensor.name),
        ..tensor
    });
    let renamed: Vec<NamedTensor> = renamed.collect();
    crate::write_folder(&dir, &config, &renamed, &[]).unwrap();
    read(&dir)
}

fn moved(config: &mut Value, from: &str, to: &str) {
    config[to] = config[from].take();
}

#[test]
fn dspark_is_read_as_its_authors_write_it() {
    let layout = dspark("gated");
    assert!(layout.parts.sample_from_anchor && layout.parts.confidence);
    let flat = |config: &mut Value| {
        let table = config.as_object_mut().unwrap();
        // What is at the top says it all, and an anchor that predicts and a head that is there need not be told.
        for key in [
            "dflash_config",
            "sample_from_anchor",
            "dspark_bonus_anchor",
            "enable_confidence_head",
            "confidence_head_with_markov",
        ] {
            table.remove(key);
        }
    };
    let by_modelopt = |name: &str| {
        let name = name.replace("markov_head.", "");
        name.replace("confidence_head.proj.", "confidence_proj.")
    };
    let (found, read) = published(&layout, flat, by_modelopt).unwrap();
    assert_eq!(
        (found, read.len()),
        (layout.clone(), tensors(&layout).len())
    );
    let prefixed = |config: &mut Value| {
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
    };
    assert_eq!(
        published(&layout, prefixed, str::to_owned).unwrap().0,
        layout
    );
    let bonus = |config: &mut Value| {
        flat(config);
        config["dspark_bonus_anchor"] = json!(true);
    };
    let (found, _) = published(&layout, bonus, str::to_owned).unwrap();
    assert!(!found.parts.sample_from_anchor);
}

#[test]
fn every_engine_is_told_whether_a_block_is_causal() {
    for (window, causal) in [(0, false), (0, true), (5, false), (5, true)] {
        let layout = DFlashLayout {
            window,
            causal,
            ..layout()
        };
        // SGLang reads this key alone.
        assert_eq!(to_json(&layout)["is_causal"], causal);
        let (found, _) = published(&layout, |_| {}, str::to_owned).unwrap();
        assert_eq!((found.window, found.causal), (window, causal));
    }
}

#[test]
fn a_folder_of_transformers_has_the_defaults_of_transformers() {
    let theirs = |config: &mut Value| {
        config["model_type"] = json!("muse_glimmer_assistant");
        config["target_layer_ids"] = json!([1, 3]);
        config["mask_token_id"] = json!(19);
        let table = config.as_object_mut().unwrap();
        for key in [
            "is_causal",
            "dflash_config",
            "layer_types",
            "rope_theta",
            "rope_parameters",
            "rms_norm_eps",
        ] {
            table.remove(key);
        }
    };
    let (found, _) = published(&layout(), theirs, str::to_owned).unwrap();
    // A place 2048 away is still seen there.
    assert_eq!((found.window, found.causal), (2049, false));
    assert_eq!(
        (found.rope.rope_theta, found.rms_norm_eps),
        (500_000.0, 1e-5)
    );
    let unsized_ = |config: &mut Value| {
        theirs(config);
        config.as_object_mut().unwrap().remove("vocab_size");
    };
    let error = published(&layout(), unsized_, str::to_owned)
        .unwrap_err()
        .to_string();
    assert!(error.contains("`vocab_size`"), "{error}");
    let no_base = |config: &mut Value| {
        for key in ["rope_theta", "rope_parameters"] {
            config.as_object_mut().unwrap().remove(key);
        }
    };
    let error = published(&layout(), no_base, str::to_owned)
        .unwrap_err()
        .to_string();
    assert!(error.contains("`rope_theta`"), "{error}");
}

#[test]
fn the_length_of_a_block_and_windows_are_read_in_the_table_of_dflash_too() {
    let layout = dflash_2();
    let nested = |config: &mut Value| {
        config["dflash_config"]["block_size"] = config["block_size"].take();
    };
    assert_eq!(published(&layout, nested, str::to_owned).unwrap().0, layout);
    let windows = |config: &mut Value| {
        config.as_object_mut().unwrap().remove("is_causal");
        config["dflash_config"]["use_swa"] = json!(true);
        config["dflash_config"]["swa_window_size"] = json!(16);
    };
    let (found, _) = published(&layout, windows, str::to_owned).unwrap();
    assert_eq!((found.window, found.causal), (16, false));
    let said = |config: &mut Value| {
        windows(config);
        config["is_causal"] = json!(true);
    };
    assert!(published(&layout, said, str::to_owned).unwrap().0.causal);
    let typed = |config: &mut Value| {
        windows(config);
        config["layer_types"] = json!(["full_attention", "full_attention"]);
    };
    let error = published(&layout, typed, str::to_owned)
        .unwrap_err()
        .to_string();
    assert!(error.contains("`layer_types`"), "{error}");
    let two = |config: &mut Value| config["dflash_config"]["block_size"] = json!(9);
    let error = published(&layout, two, str::to_owned)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`dflash_config.block_size`") && error.contains("`block_size`"),
        "{error}"
    );
}

#[test]
fn what_is_not_computed_here_is_refused_by_name() {
    let refused = |key: &str, value: Value| {
        let change = |config: &mut Value| match key.strip_prefix("dflash_config.") {
            Some(inner) => config["dflash_config"][inner] = value.clone(),
            None => config[key] = value.clone(),
        };
        let error = published(&layout(), change, str::to_owned)
            .unwrap_err()
            .to_string();
        assert!(error.contains(&format!("`{key}`")), "{key}: {error}");
    };
    for key in ["output_multiplier", "input_embedding_scale", "logit_scale"] {
        refused(key, json!(2.0));
        refused(&format!("dflash_config.{key}"), json!(0.5));
    }
    refused("dflash_config.final_logit_softcapping", json!(30.0));
    refused("dflash_config.attention_sink_bias", json!(true));
    refused("dflash_config.attention_value_scale", json!(0.7));
    refused("dflash_config.projector_type", json!("domino"));
    refused("dflash_config.use_aux_hidden_state", json!(false));
    refused("is_neox_style", json!(false));
    refused("rope_is_neox_style", json!(false));
    refused("hidden_act", json!("gelu"));
    refused("dflash_config", json!([]));
    refused("target_hidden_size", json!(9));
    refused("quantization_config", json!({"bits": 4}));
    let both = |config: &mut Value| config["dspark_bonus_anchor"] = json!(true);
    let error = published(&dspark("vanilla"), both, str::to_owned)
        .unwrap_err()
        .to_string();
    assert!(error.contains("`dspark_bonus_anchor`"), "{error}");
    let neutral = |config: &mut Value| {
        config["dflash_config"]["output_multiplier"] = json!(1);
        config["dflash_config"]["final_logit_softcapping"] = json!(null);
        config["is_neox_style"] = json!(true);
    };
    assert!(published(&layout(), neutral, str::to_owned).is_ok());
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("d");
    write(&dir, &layout(), &tensors(&layout()), &Value::Null).unwrap();
    std::fs::write(dir.join("mask_embedding.pt"), "a pickle").unwrap();
    let error = read(&dir).unwrap_err().to_string();
    assert!(error.contains("mask_embedding.pt"), "{error}");
}
