//! What a drafter shares of targets of many architectures, against `transformers`.
use burn::prelude::*;
use serde_json::json;
use spectrain_checkpoints::DType;
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;
use spectrain_models::{PartsConfig, load_parts};

use crate::golden::{assert_close, folders, path, tensors};

#[test]
fn norm_and_head_of_the_last_state_are_the_librarys_logits() {
    let device = test_device();
    let names = folders("parts");
    assert!(names.len() >= 10, "{names:?}");
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
