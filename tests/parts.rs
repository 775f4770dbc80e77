//! What a drafter shares of targets of many architectures, against `transformers`.
use std::path::Path;

use burn::prelude::*;
use serde_json::{Value, json};
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_folder};
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;
use spectrain_models::{PartsConfig, RopeScaling, load_parts};

use crate::golden::{assert_close, folders, path, tensors};

#[test]
fn norm_and_head_of_the_last_state_are_the_librarys_logits() {
    let device = test_device();
    let names = folders("parts");
    assert!(names.len() >= 19, "{names:?}");
    for name in names {
        let folder = path(&format!("parts/{name}"));
        let parts = load_parts(&folder, &device, DType::F32)
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let golden = tensors(&format!("parts/{name}/golden.safetensors"));
        let of = |key: &str| {
            let found = &golden[key];
            let [rows, width] = found.shape[..] else {
                panic!("{name}: {key}")
            };
            let data = TensorData::new(found.f32(), [rows, width]);
            Tensor::<2>::from_data(data, &device)
        };
        let logits = parts.logits(parts.norm.forward(of("state")));
        assert_close(
            &format!("{name} logits"),
            &host_f32(logits),
            &golden["logits"].f32(),
            1e-4,
        );
        let tokens: Vec<i64> = golden["tokens"]
            .values
            .iter()
            .map(|&token| token as i64)
            .collect();
        let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), &device).unsqueeze::<2>();
        let embedded = parts.embed(tokens, &device);
        assert_close(
            &format!("{name} embedding"),
            &host_f32(embedded),
            &golden["embedded"].f32(),
            0.0,
        );
    }
}

#[test]
fn a_model_of_several_senses_says_it_in_its_text_part() {
    let text = json!({
        "model_type": "qwen3_5_moe_text", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32,
        "num_hidden_layers": 8, "vocab_size": 100, "max_position_embeddings": 4096,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.25},
    });
    let config =
        json!({"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": false});
    let read = |config: &serde_json::Value| PartsConfig::read(config, "config.json".as_ref());
    let found = read(&config).unwrap();
    assert_eq!(
        (found.spec.d_model, found.spec.layers, found.spec.d_head),
        (64, 8, 32)
    );
    assert_eq!(found.spec.rope.theta, 1e6);
    assert!(found.remarks.is_empty(), "{:?}", found.remarks);
    let mut scaled = config.clone();
    scaled["text_config"]["rope_parameters"]["rope_type"] = json!("longrope");
    assert!(read(&scaled).unwrap().remarks[0].contains("longrope"));
    let mut capped = config.clone();
    capped["text_config"]["final_logit_softcapping"] = json!(0.0);
    assert!(
        read(&capped)
            .unwrap_err()
            .to_string()
            .contains("final_logit_softcapping")
    );
    let mut wide = config;
    wide["text_config"]["hidden_size"] = json!("wide");
    assert!(read(&wide).unwrap_err().to_string().contains("hidden_size"));
}

/// What is read of a configuration with sizes and what else is given.
fn read(more: Value) -> Result<PartsConfig, String> {
    let mut config = json!({
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 100,
    });
    let (Some(config_table), Value::Object(more)) = (config.as_object_mut(), more) else {
        panic!("no tables")
    };
    config_table.extend(more);
    PartsConfig::read(&config, Path::new("config.json")).map_err(|error| error.to_string())
}

#[test]
fn positions_of_kimi_k2_are_read_and_what_cannot_be_read_again_is_refused() {
    let mut table = json!({
        "type": "yarn", "factor": 64.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        "original_max_position_embeddings": 4096,
    });
    let kimi = |table: &Value| {
        read(json!({"model_type": "kimi_k2", "rope_theta": 50_000.0, "rope_scaling": table}))
    };
    let found = kimi(&table).unwrap();
    assert!(found.remarks.is_empty(), "{:?}", found.remarks);
    let expected = RopeScaling::Yarn {
        factor: 64.0,
        beta_fast: 1.0,
        beta_slow: 1.0,
        original_max_position_embeddings: 4096.0,
        attention_factor: Some(1.0),
        truncate: true,
    };
    assert_eq!(found.spec.rope.scaling, expected);
    assert_eq!(found.spec.rope.check(found.spec.d_head), Ok(()));
    table["attn_factor"] = json!(0.5);
    assert!(kimi(&table).unwrap().remarks[0].contains("`attn_factor`"));
    table["beta_fast"] = json!(0.5);
    let error = kimi(&table).unwrap_err();
    assert!(
        error.contains("key `rope_scaling`") && error.contains("`beta_fast`"),
        "{error}"
    );
    table["factor"] = json!("64");
    assert!(kimi(&table).unwrap_err().contains("key `rope_scaling`"));
}

#[test]
fn two_tables_of_rotary_positions_must_say_the_same() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    let tables = |parameters: &Value, scaling: &Value| {
        let found = read(json!({"rope_parameters": parameters, "rope_scaling": scaling}));
        found.map(|found| found.spec.rope.scaling)
    };
    let expected = tables(&yarn, &Value::Null).unwrap();
    assert_ne!(expected, RopeScaling::Default);
    let nested = json!({"full_attention": yarn, "sliding_attention": {"rope_type": "default"}});
    let by_old_key = json!({"rope_type": null, "type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    for (parameters, scaling) in [
        (&json!({}), &yarn),
        (&yarn, &json!({})),
        (&yarn, &yarn),
        (&nested, &yarn),
        (&by_old_key, &yarn),
    ] {
        assert_eq!(
            tables(parameters, scaling).unwrap(),
            expected,
            "{parameters} {scaling}"
        );
    }
    // Both change nothing in text.
    let senses = json!({"type": "mrope", "mrope_section": [2, 1, 1]});
    let plain = json!({"rope_type": "default"});
    assert_eq!(tables(&plain, &senses).unwrap(), RopeScaling::Default);
    for (parameters, scaling) in [(&plain, &yarn), (&yarn, &plain)] {
        let error = tables(parameters, scaling).unwrap_err();
        assert!(
            error.contains("key `rope_scaling`: expected the same as in `rope_parameters`"),
            "{error}"
        );
    }
}

#[test]
fn the_base_of_positions_is_that_of_a_layer_that_sees_everything() {
    let bases = |kinds: Value| {
        let bases = json!([10_000.0, 5e6]);
        read(json!({"model_type": "step3p5", "rope_theta": bases, "layer_types": kinds}))
    };
    let found = bases(json!(["sliding_attention", "full_attention"])).unwrap();
    assert_eq!(found.spec.rope.theta, 5e6);
    assert!(bases(Value::Null).unwrap_err().contains("key `rope_theta`"));
}

#[test]
fn norms_and_scales_are_those_of_the_architecture() {
    let less_one = |kind: &str| read(json!({"model_type": kind})).unwrap().norm_less_one;
    for kind in [
        "gemma3_text",
        "vaultgemma",
        "qwen3_5_moe_text",
        "step3p5",
        "step3p7",
        "minimax_m3_text",
        "minimax_m3_vl_text",
        "interns2_mobius_text",
    ] {
        assert!(less_one(kind), "{kind}");
    }
    for kind in [
        "gemma3n_text",
        "gemma4_text",
        "minimax_m2",
        "qwen3_moe",
        "step3_text",
    ] {
        assert!(!less_one(kind), "{kind}");
    }
    // Of a model whose text model has another one's name the whole says what it is, or a key that SGLang reads.
    let text = json!({
        "model_type": "minimax_m2", "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "vocab_size": 100,
    });
    let whole = read(json!({"model_type": "minimax_m3_vl", "text_config": text}));
    assert!(whole.unwrap().norm_less_one);
    let told = |says: bool| read(json!({"model_type": "minimax_m3_text", "use_gemma_norm": says}));
    assert!(told(true).unwrap().norm_less_one && !told(false).unwrap().norm_less_one);
    let scale = |kind: &str| {
        let found = read(json!({"model_type": kind, "logits_scaling": 4.0}));
        found.unwrap().head_scale
    };
    assert_eq!([scale("granite"), scale("hyperclovax")], [0.25, 4.0]);
}

#[test]
fn of_a_width_for_each_layer_a_drafter_takes_the_largest() {
    let width = |of_layers: Value| {
        let found = read(json!({"model_type": "gemma3n_text", "intermediate_size": of_layers}));
        found.map(|found| found.spec.d_ff)
    };
    assert_eq!(width(json!([48, 64, 32])), Ok(64));
    let beyond = json!([48, 1_u64 << 31]);
    for wrong in [json!([]), json!([0, 4]), json!(["4"]), beyond] {
        let error = width(wrong).unwrap_err();
        assert!(error.contains("one for each layer"), "{error}");
    }
}

#[test]
fn a_final_norm_or_a_head_of_another_kind_is_refused() {
    for (kind, key) in [("cohere2", "layer_norm_eps"), ("nemotron", "norm_eps")] {
        let error = read(json!({"model_type": kind, key: 1e-5})).unwrap_err();
        for word in ["config.json", key, "`rms_norm_eps`", "takes the mean off"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        // One that says both has the norm that is read.
        read(json!({"model_type": kind, key: 1e-5, "rms_norm_eps": 1e-6})).unwrap();
    }
    // These keep the key of the other norm.
    for kind in ["orion", "phimoe", "olmo"] {
        let error = read(json!({"model_type": kind, "rms_norm_eps": 1e-5})).unwrap_err();
        for word in ["key `model_type`", kind, "takes the mean off"] {
            assert!(error.contains(word), "{word}: {error}");
        }
    }
    let model = ModelFolder::open_some(path("parts/phi3"), &spectrain_models::is_part).unwrap();
    let names = [
        "model.embed_tokens.weight",
        "model.norm.weight",
        "lm_head.weight",
    ];
    let tensors = names.map(|name| model.read(name).unwrap());
    for (place, name) in [(1, "model.norm.bias"), (2, "lm_head.bias")] {
        let mut bias = tensors[1].clone();
        bias.name = name.into();
        let folder = tempfile::tempdir().unwrap();
        let at = folder.path().join("target");
        let all = [&tensors[..], &[bias]].concat();
        write_folder(&at, model.config(), &all, &[]).unwrap();
        let error = load_parts(&at, &test_device(), DType::F32)
            .unwrap_err()
            .to_string();
        assert!(error.contains(name), "{}: {error}", names[place]);
    }
}

#[test]
fn sizes_of_heads_that_are_left_out_are_those_of_the_type() {
    let sizes = |kind: &str| {
        let config = json!({
            "model_type": kind, "hidden_size": 256, "num_attention_heads": 16, "num_hidden_layers": 2, "vocab_size": 100,
        });
        let found = PartsConfig::read(&config, Path::new("config.json"));
        let found = found.map(|found| (found.spec.d_head, found.spec.kv_heads));
        found.map_err(|error| error.to_string())
    };
    assert_eq!(sizes("qwen3_5_text"), Ok((256, 4)));
    assert_eq!(sizes("mixtral"), Ok((16, 8)));
    assert_eq!(sizes("other"), Ok((16, 16)));
    // Query heads share these out.
    let error = sizes("exaone4").unwrap_err();
    let told = "a divisor of 16, as this `model_type` has 32 without it";
    assert!(error.contains(told), "{error}");
    let error = read(json!({"num_key_value_heads": 3})).unwrap_err();
    assert!(error.contains("a divisor of 4"), "{error}");
}

#[test]
fn the_longest_sequences_of_before_may_stand_beside_the_scaling() {
    let scaling = |more: Value| {
        let mut config = json!({
            "model_type": "qwen3", "max_position_embeddings": 131_072,
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 65_536},
        });
        config
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        let RopeScaling::Yarn {
            original_max_position_embeddings,
            ..
        } = read(config).unwrap().spec.rope.scaling
        else {
            panic!("{more}")
        };
        original_max_position_embeddings
    };
    assert_eq!(scaling(json!({})), 65_536.0);
    assert_eq!(
        scaling(json!({"original_max_position_embeddings": 32_768})),
        32_768.0
    );
}

#[test]
fn a_head_that_is_said_to_be_the_embedding_and_is_not_is_refused() {
    let of = path("parts/qwen3_5");
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("target");
    let model = ModelFolder::open_some(&of, &spectrain_models::is_part).unwrap();
    let names = ["model.embed_tokens.weight", "model.norm.weight"];
    let mut tensors: Vec<NamedTensor> = names.map(|name| model.read(name).unwrap()).into();
    let load = |tensors: &[NamedTensor]| {
        write_folder(&at, model.config(), tensors, &[]).unwrap();
        let parts = load_parts(&at, &test_device(), DType::F32);
        parts.map(drop).map_err(|error| error.to_string())
    };
    let mut head = tensors[0].clone();
    head.name = "lm_head.weight".into();
    tensors.push(head);
    load(&tensors).unwrap();
    tensors[2].bytes[2] ^= 1;
    let error = load(&tensors).unwrap_err();
    for word in [
        "config.json",
        "tie_word_embeddings",
        names[0],
        "lm_head.weight",
    ] {
        assert!(error.contains(word), "{word}: {error}");
    }
}
