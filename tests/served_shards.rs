//! What is read of a target that servers have: its plan names the shards.
use serde_json::{Value, json};

use crate::workspace::Workspace;

/// A recipe for a target of which there are only its configuration, its list of shards and what makes text tokens.
fn planned(config: &Value, shards: &[(&str, &str)]) -> (String, Value) {
    let workspace = Workspace::new();
    std::fs::create_dir(workspace.path("large")).unwrap();
    workspace.write("large/config.json", config.to_string());
    for file in std::fs::read_dir(workspace.path("target")).unwrap() {
        let name = file.unwrap().file_name().into_string().unwrap();
        if name.starts_with("tokenizer") || name.starts_with("chat_template") {
            let to = workspace.path(format!("large/{name}"));
            std::fs::copy(workspace.path(format!("target/{name}")), to).unwrap();
        }
    }
    let map: serde_json::Map<String, Value> = shards
        .iter()
        .map(|(name, shard)| ((*name).to_owned(), json!(shard)))
        .collect();
    workspace.write(
        "large/model.safetensors.index.json",
        json!({ "weight_map": map }).to_string(),
    );
    let words = [
        "recipe",
        "recipe.toml",
        "--plan",
        "--set",
        "target.model=large",
        "--set",
        "features.mode=served",
        "--set",
        "target.server=[\"http://127.0.0.1:9\"]",
        "--set",
        "target.server_folder=/states",
    ];
    let text = workspace.run(&words).succeeded().stdout;
    let json = workspace.run(&[&words[..], &["--json"]].concat());
    (
        text,
        serde_json::from_str(&json.succeeded().stdout).unwrap(),
    )
}

#[test]
fn the_plan_says_what_is_read_of_a_target_of_experts_and_senses() {
    // Sizes as those of Kimi K2.5, whose language model is one of several.
    let text = json!({
        "model_type": "kimi_k2", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61,
        "num_attention_heads": 64, "num_key_value_heads": 64, "vocab_size": 163_840, "max_position_embeddings": 262_144,
        "rope_theta": 50_000.0, "rope_scaling": {
            "type": "yarn", "factor": 64.0, "beta_fast": 1.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "original_max_position_embeddings": 4096,
        },
    });
    let config =
        json!({"model_type": "kimi_k25", "text_config": text, "tie_word_embeddings": false});
    let (text, plan) = planned(
        &config,
        &[
            (
                "language_model.model.embed_tokens.weight",
                "model-00001-of-00064.safetensors",
            ),
            (
                "language_model.model.layers.3.mlp.experts.7.up_proj.weight_packed",
                "model-00004-of-00064.safetensors",
            ),
            (
                "language_model.model.norm.weight",
                "model-00062-of-00064.safetensors",
            ),
            (
                "language_model.lm_head.weight",
                "model-00062-of-00064.safetensors",
            ),
            (
                "vision_tower.patch_embed.weight",
                "model-00063-of-00064.safetensors",
            ),
        ],
    );
    assert!(
        text.contains("`language_model.lm_head.weight` in `model-00062-of-00064.safetensors`"),
        "{text}"
    );
    assert!(text.contains("2 of 4 shards"), "{text}");
    assert_eq!(plan["target_read"]["shards"], 2);
    let parameters = plan["estimates"]["target"]["parameters"].as_u64().unwrap();
    assert_eq!(parameters, 2 * 163_840 * 7168 + 7168);
}

#[test]
fn of_a_hybrid_whose_head_is_its_embedding_one_shard_is_enough() {
    let text = json!({
        "model_type": "qwen3_5_text", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 24,
        "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 256, "vocab_size": 248_320,
        "max_position_embeddings": 262_144,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
    });
    let config = json!({"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": true});
    let (text, plan) = planned(
        &config,
        &[
            (
                "model.language_model.embed_tokens.weight",
                "model-00001-of-00002.safetensors",
            ),
            (
                "model.language_model.norm.weight",
                "model-00001-of-00002.safetensors",
            ),
            (
                "model.language_model.layers.0.linear_attn.in_proj.weight",
                "model-00002-of-00002.safetensors",
            ),
        ],
    );
    assert!(text.contains("1 of 2 shards"), "{text}");
    assert_eq!(
        plan["estimates"]["target"]["parameters"],
        248_320 * 2048 + 2048
    );
    assert!(
        plan["estimates"]["disk_bytes"]["features"]
            .as_u64()
            .unwrap()
            > 0,
        "{plan}"
    );
}
