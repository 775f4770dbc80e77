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
    assert_eq!(name(&dflash_2()), "DFlash2DraftModel");
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
