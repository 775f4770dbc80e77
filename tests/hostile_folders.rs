//! Drafters' folders that are broken or made to do harm: every reader says what is wrong, none panics, and what a folder
//! claims does not decide how much memory is asked for.
use std::fs;
use std::path::Path;

use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use spectrain_checkpoints::eagle3::speculators;
use spectrain_checkpoints::eagle3::{Eagle3Layout, Reading, meanings};
use spectrain_checkpoints::language_model::LanguageModelFolder;
use spectrain_checkpoints::published::Published;
use spectrain_checkpoints::speculators::Verifier;
use spectrain_checkpoints::{
    DType, ModelFolder, NamedTensor, Rope, TensorSpec, dflash, eagle1, eagle3, hydra, medusa, seal,
};
use spectrain_models::TransformerConfig;

use crate::allocation::largest_during;

/// Inputs over all readers.
const INPUTS: usize = 20_000;
/// Far above what these folders hold, far below what they claim.
const LARGEST: usize = 4 << 20;

const NONE: Value = Value::Null;
const WEIGHTS: &str = "model.safetensors";

fn tensors(specs: Vec<TensorSpec>) -> Vec<NamedTensor> {
    let tensor = |(name, shape, dtype): TensorSpec| {
        let count: usize = shape.iter().product();
        match dtype {
            DType::I64 => NamedTensor::from_i64(name, shape, vec![0; count]),
            DType::Bool => NamedTensor::from_bool(name, shape, (0..count).map(|i| i < 6).collect()),
            _ if name == "fc.bias" => NamedTensor::from_f32(name, shape, vec![0.0; count]),
            _ => NamedTensor::from_f32(name, shape, vec![0.5; count]),
        }
    };
    specs.into_iter().map(tensor).collect()
}

fn rope() -> Rope {
    Rope {
        rope_theta: 1e4,
        scaling: Some(json!({"rope_type": "linear", "factor": 2.0})),
    }
}

/// A folder of every kind.
fn write_all(root: &Path) {
    let eagle1 = eagle1::Eagle1Layout {
        hidden_size: 4,
        intermediate_size: 6,
        heads: 2,
        kv_heads: 1,
        head_dim: 2,
        vocab_size: 8,
        bias: false,
        rms_norm_eps: 1e-5,
        max_position_embeddings: 64,
        rope: rope(),
        dtype: DType::F32,
    };
    let weights = tensors(eagle1::required(&eagle1));
    eagle1::write(&root.join("eagle1"), &eagle1, weights, &NONE).unwrap();
    let eagle3 = Eagle3Layout {
        hidden_size: 4,
        target_hidden_size: 4,
        intermediate_size: 6,
        heads: 2,
        kv_heads: 1,
        head_dim: 2,
        layers: 2,
        vocab_size: 8,
        draft_vocab_size: 6,
        captured_layers: vec![0, 2],
        norm_before_residual: false,
        fc_norm: true,
        norm_output: false,
        window: 0,
        rms_norm_eps: 1e-5,
        max_position_embeddings: 64,
        rope: rope(),
        shared_head: false,
        dtype: DType::F32,
    };
    let weights = tensors(eagle3::required(&eagle3));
    eagle3::write(&root.join("eagle3"), &eagle3, weights.clone(), &NONE).unwrap();
    let verifier = Verifier {
        name: "t".into(),
        architectures: Vec::new(),
        draft_tokens: 3,
    };
    speculators::write(
        &root.join("speculators"),
        &eagle3,
        weights,
        &verifier,
        &NONE,
    )
    .unwrap();
    let medusa = medusa::MedusaLayout {
        hidden_size: 4,
        vocab_size: 8,
        draft_vocab_size: 8,
        heads: 2,
        layers: 1,
        bias: true,
        shared_head: false,
        dtype: DType::F32,
    };
    let weights = tensors(medusa::required(&medusa));
    medusa::write(&root.join("medusa"), &medusa, &weights, &NONE).unwrap();
    let hydra = hydra::HydraLayout {
        hidden_size: 4,
        vocab_size: 8,
        draft_vocab_size: 8,
        heads: 2,
        layers: 1,
        shared_head: false,
        prefix: None,
        dtype: DType::F32,
    };
    let weights = tensors(hydra::required(&hydra));
    hydra::write(&root.join("hydra"), &hydra, &weights, &NONE).unwrap();
    let dflash = dflash::DFlashLayout {
        hidden_size: 4,
        intermediate_size: 6,
        layers: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 2,
        vocab_size: 8,
        target_layers: 6,
        captured_layers: vec![1, 3],
        block_size: 4,
        mask_token: 7,
        window: 5,
        causal: false,
        rms_norm_eps: 1e-6,
        max_position_embeddings: 64,
        parts: dflash::DFlashParts::default(),
        rope: rope(),
        dtype: DType::F32,
    };
    let weights = tensors(dflash::required(&dflash));
    dflash::write(&root.join("dflash"), &dflash, &weights, &NONE).unwrap();
    let folder = root.join("dflash-hf");
    dflash::transformers::write(&folder, &dflash, &weights, &NONE).unwrap();
    let folder = root.join("dflash-speculators");
    dflash::speculators::write(&folder, &dflash, &weights, &verifier, &NONE).unwrap();
    let mut config = crate::tiny::config();
    config.spec.layers = 1;
    config.windows = vec![None];
    let model = LanguageModelFolder {
        config: config.to_json().unwrap(),
        tensors: tensors(vec![("model.norm.weight".into(), vec![4], DType::F32)]),
        dtype: DType::F32,
        mask_token: Some(1),
        target: None,
    };
    model.write(&root.join("pard"), &NONE).unwrap();
}

/// What is read of a folder, and must not be trusted.
#[derive(Clone)]
struct Input {
    config: Vec<u8>,
    weights: Vec<u8>,
    index: Option<Value>,
}

impl Input {
    fn of(folder: &Path) -> Self {
        let config = fs::read(folder.join("config.json")).unwrap();
        let mut parsed: Value = serde_json::from_slice(&config).unwrap();
        // With it nearly every change would be found at once, by one check.
        parsed.as_object_mut().unwrap().remove(seal::SEAL);
        Self {
            config: parsed.to_string().into_bytes(),
            weights: fs::read(folder.join(WEIGHTS)).unwrap(),
            index: None,
        }
    }

    fn write(&self, folder: &Path) {
        let (index, shard) = ("model.safetensors.index.json", "a.safetensors");
        for name in [WEIGHTS, index, shard] {
            let _ = fs::remove_file(folder.join(name));
        }
        fs::write(folder.join("config.json"), &self.config).unwrap();
        match &self.index {
            None => fs::write(folder.join(WEIGHTS), &self.weights).unwrap(),
            Some(map) => {
                fs::write(folder.join(shard), &self.weights).unwrap();
                fs::write(folder.join(index), map.to_string()).unwrap();
            }
        }
    }
}

/// A value that no key should have.
fn hostile(rng: &mut StdRng) -> Value {
    let values = [
        json!(null),
        json!(-1),
        json!(0),
        json!(1),
        json!(3),
        json!(1023),
        json!(i32::MAX),
        json!(1u64 << 60),
        json!(u64::MAX),
        json!(1e300),
        json!(0.5),
        json!("x"),
        json!("../../etc/passwd"),
        json!([]),
        json!([0, 1]),
        json!([-1, 1u64 << 40]),
        json!(vec![0; 3000]),
        json!({}),
        json!({"rope_type": "yarn", "factor": 1e300}),
        json!(true),
        json!(false),
    ];
    values.choose(rng).unwrap().clone()
}

/// Replaces or removes something at a random place of a value.
fn mutate_value(value: &mut Value, rng: &mut StdRng) {
    let deeper = rng.random_bool(0.5);
    match value {
        Value::Object(table) if !table.is_empty() => {
            let keys: Vec<String> = table.keys().cloned().collect();
            let key = keys.choose(rng).unwrap().clone();
            match (deeper, rng.random_bool(0.3)) {
                (true, _) => mutate_value(&mut table[&key], rng),
                (false, true) => drop(table.remove(&key)),
                (false, false) => table[&key] = hostile(rng),
            }
        }
        Value::Array(values) if !values.is_empty() && deeper => {
            let at = rng.random_range(0..values.len());
            mutate_value(&mut values[at], rng);
        }
        other => *other = hostile(rng),
    }
}

fn mutate_bytes(bytes: &mut Vec<u8>, rng: &mut StdRng) {
    // Most of what can go wrong is in the header.
    let end = match rng.random_bool(0.8) {
        true => bytes.len().min(400),
        false => bytes.len(),
    };
    let at = rng
        .random_range(0..end.max(1))
        .min(bytes.len().saturating_sub(1));
    match rng.random_range(0..6) {
        0 => bytes[at] ^= 1 << rng.random_range(0..8),
        1 => bytes.truncate(at),
        2 => bytes.insert(at, rng.random()),
        3 => drop(bytes.remove(at)),
        4 => bytes[at] = *b"0123456789[]{}\",:-".choose(rng).unwrap(),
        _ => {
            let length: u64 = *[0, 1, 7, 1 << 25, 1 << 40, u64::MAX].choose(rng).unwrap();
            let end = bytes.len().min(8);
            bytes[..end].copy_from_slice(&length.to_le_bytes()[..end]);
        }
    }
}

fn header(weights: &[u8]) -> (Value, &[u8]) {
    let length = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let header = serde_json::from_slice(&weights[8..8 + length]).unwrap();
    (header, &weights[8 + length..])
}

fn mutated(input: &Input, rng: &mut StdRng) -> Input {
    let mut input = input.clone();
    match rng.random_range(0..10) {
        0..4 => {
            let mut config: Value = serde_json::from_slice(&input.config).unwrap();
            for _ in 0..rng.random_range(1..3) {
                mutate_value(&mut config, rng);
            }
            input.config = config.to_string().into_bytes();
        }
        4 => mutate_bytes(&mut input.config, rng),
        5..7 => {
            // Shapes, types and ranges, in a header that is well formed.
            let (mut table, data) = header(&input.weights);
            mutate_value(&mut table, rng);
            let table = table.to_string().into_bytes();
            let length = (table.len() as u64).to_le_bytes();
            input.weights = [&length[..], &table, data].concat();
        }
        7 => {
            let (table, _) = header(&input.weights);
            let names = table.as_object().unwrap().keys();
            let map: serde_json::Map<_, _> = names
                .filter(|name| *name != "__metadata__")
                .map(|name| (name.clone(), json!("a.safetensors")))
                .collect();
            let mut map = json!({ "weight_map": map });
            mutate_value(&mut map, rng);
            input.index = Some(map);
        }
        _ => mutate_bytes(&mut input.weights, rng),
    }
    input
}

/// Reads a folder in every way; whether it was taken for a drafter.
fn read(folder: &Path) -> bool {
    let Ok(opened) = ModelFolder::open(folder) else {
        return false;
    };
    let _ = seal::check(&opened);
    let _ = meanings(folder, 6, None);
    let _ = TransformerConfig::read(opened.config(), &folder.join("config.json"));
    let reading = Reading {
        target_layers: Some(6),
        target_vocab: None,
        ..Reading::default()
    };
    match Published::read(folder, &reading) {
        Ok(_) => true,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

#[test]
fn broken_and_hostile_folders_are_refused_without_a_panic_in_bounded_memory() {
    let root = tempfile::tempdir().unwrap();
    write_all(root.path());
    let kinds = [
        "eagle1",
        "eagle3",
        "speculators",
        "medusa",
        "hydra",
        "dflash",
        "dflash-hf",
        "dflash-speculators",
        "pard",
    ];
    let inputs: Vec<Input> = kinds
        .iter()
        .map(|kind| Input::of(&root.path().join(kind)))
        .collect();
    let folder = root.path().join("hostile");
    fs::create_dir(&folder).unwrap();
    for (kind, input) in kinds.iter().zip(&inputs) {
        input.write(&folder);
        assert!(read(&folder), "{kind} is read as it is");
    }
    let mut rng = StdRng::seed_from_u64(1);
    let mut taken = 0;
    for number in 0..INPUTS {
        let input = mutated(inputs.choose(&mut rng).unwrap(), &mut rng);
        input.write(&folder);
        let largest = largest_during(|| taken += usize::from(read(&folder)));
        assert!(
            largest < LARGEST,
            "input {number} asks for {largest} bytes at once"
        );
    }
    // Some changes are harmless, such as one of a weight; were most, the readers would check nothing.
    assert!(
        (500..INPUTS * 2 / 3).contains(&taken),
        "{taken} of {INPUTS} were taken"
    );
}
