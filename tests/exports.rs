//! The bytes of an export of every family in every layout, against digests that were taken once.
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use burn::prelude::Device;
use serde_json::{Value, json};
use spectrain::families::registry::write_usual;
use spectrain::families::shipped::{Shipped, Writing};
use spectrain_checkpoints::{DType, hash};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::dflash::DFlash;
use spectrain_models::eagle1::Eagle1;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::hydra::Hydra;
use spectrain_models::language_model::LanguageModel;
use spectrain_models::masked_language_model::MaskedLanguageModel;
use spectrain_models::medusa::Medusa;
use spectrain_models::pard::Pard;

use crate::tiny;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/exports.txt");

struct Taken {
    root: std::path::PathBuf,
    lines: BTreeMap<String, String>,
}

impl Taken {
    fn of<D: Shipped>(&mut self, name: &str, drafter: Value) {
        let target = tiny::target(&Device::flex()).parts();
        let size = drafter["draft_vocab"].as_u64().unwrap_or(0) as usize;
        let config: D::Config = serde_json::from_value(drafter).unwrap();
        let vocab = target.spec.vocab;
        let counts: Vec<u64> = (0..vocab as u64).map(|token| token * 7 % 13).collect();
        let vocabulary = match size {
            0 => DraftVocabulary::full(vocab),
            size => DraftVocabulary::from_counts(&counts, size, &[]).unwrap(),
        };
        let drafter = D::fresh(&config, &target, &vocabulary, 11, &Device::flex()).unwrap();
        for dtype in [DType::F32, DType::BF16] {
            let folder = self.root.join(format!("{name}-{dtype}"));
            write_usual(&drafter, &folder, dtype, &json!({"a": 1})).unwrap();
            self.folder(&format!("{name} {dtype}"), &folder);
        }
        let (usual, others) = D::DIALECTS.split_first().unwrap();
        let writing = Writing {
            folder: Path::new("d"),
            dtype: DType::F32,
            target: "org/name",
            draft_length: 5,
            provenance: &Value::Null,
        };
        let lines = drafter.launch_lines(usual.0, &writing).unwrap();
        for (number, line) in lines.iter().enumerate() {
            self.lines
                .insert(format!("{name} launch {number}"), line.text.clone());
        }
        for (dialect, engine) in others {
            let key = engine.unwrap().key();
            let folder = self.root.join(format!("{name}-{key}"));
            let writing = Writing {
                folder: &folder,
                dtype: DType::F16,
                target: "org/name",
                draft_length: 5,
                provenance: &Value::Null,
            };
            match drafter.write(dialect, &writing) {
                Ok(()) => self.folder(&format!("{name} {key}"), &folder),
                Err(error) => {
                    let told = format!("{error:#}");
                    let root = self.root.display().to_string();
                    self.lines
                        .insert(format!("{name} {key}"), told.replace(&root, ""));
                    continue;
                }
            }
            let launch = drafter
                .launch_lines(dialect, &writing)
                .unwrap()
                .remove(0)
                .text;
            let root = self.root.display().to_string();
            self.lines
                .insert(format!("{name} {key} launch"), launch.replace(&root, ""));
        }
    }

    fn folder(&mut self, name: &str, folder: &Path) {
        for file in ["config.json", "model.safetensors"] {
            let digest = hash::sha256_file(&folder.join(file)).unwrap();
            self.lines.insert(format!("{name} {file}"), digest);
        }
    }
}

#[test]
fn an_export_has_the_bytes_that_it_always_had() {
    let root = tempfile::tempdir().unwrap();
    let path = std::env::var_os("SPECTRAIN_EXPORTS").map_or(root.path().into(), Into::into);
    let mut taken = Taken {
        root: path,
        lines: BTreeMap::new(),
    };
    let all = &mut taken;
    all.of::<Eagle3>("eagle3", json!({}));
    all.of::<Eagle3>("eagle3-half", json!({"draft_vocab": 20, "head": "own"}));
    all.of::<Eagle3>("eagle3-shared", json!({"head": "shared"}));
    all.of::<Eagle3>(
        "eagle3-shared-half",
        json!({"head": "shared", "draft_vocab": 20}),
    );
    let eagle3_1 =
        json!({"fc_norm": true, "norm_output": true, "norm_before_residual": true, "d_ff": 40});
    all.of::<Eagle3>("eagle3-1", eagle3_1);
    let other = json!({"captured_layers": [0, 4], "window": 9, "heads": 2, "kv_heads": 1});
    all.of::<Eagle3>("eagle3-window", other);
    all.of::<Eagle1>("eagle1", json!({}));
    all.of::<Eagle1>("eagle1-bias", json!({"bias": true, "d_ff": 24, "heads": 2}));
    all.of::<Medusa>("medusa", json!({"heads": 3}));
    let half = json!({"heads": 2, "head_layers": 2, "head": "shared", "draft_vocab": 20});
    all.of::<Medusa>("medusa-half", half.clone());
    all.of::<Hydra>("hydra", json!({"heads": 3}));
    all.of::<Hydra>("hydra-half", half);
    all.of::<Hydra>("hydra-prefix", json!({"heads": 2, "prefix_layer": true}));
    let block = |more: Value| {
        let mut block = json!({"layers": 2, "block_size": 4, "mask_token": 5});
        for (key, value) in more.as_object().unwrap() {
            block[key] = value.clone();
        }
        block
    };
    all.of::<DFlash>("dflash", block(json!({})));
    let window = json!({"captured_layers": [0, 2], "window": 9, "causal": true, "d_ff": 24});
    all.of::<DFlash>("dflash-window", block(window));
    all.of::<DFlash>("dflash-slides", block(json!({"window": 9})));
    all.of::<DFlash>("dflash-causal", block(json!({"causal": true})));
    let second = json!({"conv_taps": 2, "conv_group": 4, "selector_rank": 3, "selector_top_k": 4});
    all.of::<DFlash>("dflash-2", block(second));
    for markov in ["vanilla", "gated", "rnn"] {
        let dspark = json!({"markov_rank": 3, "markov": markov, "confidence": true, "sample_from_anchor": true});
        all.of::<DFlash>(&format!("dspark-{markov}"), block(dspark));
    }
    all.of::<DFlash>("dspark-no-confidence", block(json!({"markov_rank": 3})));
    all.of::<DFlash>("dflash-tokens", block(json!({"context": "tokens"})));
    all.of::<DFlash>(
        "dflash-mixed",
        block(json!({"conv_taps": 2, "markov_rank": 3})),
    );
    let fresh = json!({"fresh": {"layers": 2}});
    all.of::<LanguageModel>("distillspec", fresh.clone());
    let lora = json!({"fresh": {"layers": 1}, "lora": {"rank": 2}});
    all.of::<LanguageModel>("distillspec-lora", lora);
    let mut pard = fresh.clone();
    pard["mask_token"] = json!(5);
    all.of::<Pard>("pard", pard.clone());
    pard["target_features"] = json!(true);
    all.of::<Pard>("pard-features", pard);
    for context in ["causal", "bidirectional"] {
        let mut deer = fresh.clone();
        deer["mask_token"] = json!(5);
        deer["separator_token"] = json!(6);
        deer["context"] = json!(context);
        all.of::<MaskedLanguageModel>(&format!("deer-{context}"), deer);
    }
    let mut found = String::new();
    for (name, value) in &taken.lines {
        _ = writeln!(found, "{name}: {value}");
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(GOLDEN, &found).unwrap();
    }
    let expected = std::fs::read_to_string(GOLDEN).unwrap();
    for (found, expected) in found.lines().zip(expected.lines()) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.lines().count(), expected.lines().count());
}
