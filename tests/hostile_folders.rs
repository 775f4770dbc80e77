//! Drafters' folders that are broken or made to do harm: every reader says what is wrong, none panics, and what a folder
//! claims does not decide how much memory is asked for.
use std::fs;
use std::path::Path;

use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use spectrain::families::registry::open_drafter;
use spectrain_checkpoints::dialect::Reading;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::{ModelFolder, seal};
use spectrain_models::device::test_device;
use spectrain_models::{TargetParts, TransformerConfig};

use crate::allocation::{alone, largest_during};
use crate::campaign::times;
use crate::samples;

/// Inputs over all readers, unless the campaign is longer.
const INPUTS: usize = 20_000;
/// Far above what these folders hold, far below what they claim.
const LARGEST: usize = 4 << 20;

const WEIGHTS: &str = "model.safetensors";

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
    let end = if rng.random_bool(0.8) {
        bytes.len().min(400)
    } else {
        bytes.len()
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
fn read(folder: &Path, target: &TargetParts) -> bool {
    let Ok(opened) = ModelFolder::open(folder) else {
        return false;
    };
    let _ = seal::check(&opened);
    let _ = TransformerConfig::read(opened.config(), &folder.join("config.json"));
    if let Ok(dialect) = dialect_of(&opened) {
        let reading = Reading {
            target_layers: Some(6),
            ..Reading::default()
        };
        let _ = dialect.meanings(&opened, &reading, None);
    }
    match open_drafter(folder, target, &test_device()) {
        Ok(_) => true,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

#[test]
fn broken_and_hostile_folders_are_refused_without_a_panic_in_bounded_memory() {
    alone(|| {
        let root = tempfile::tempdir().unwrap();
        let target = samples::parts();
        let folder = root.path().join("hostile");
        fs::create_dir(&folder).unwrap();
        let mut inputs = Vec::new();
        for sample in samples::samples() {
            for written in sample
                .layouts()
                .into_iter()
                .filter_map(|layout| sample.folder(layout))
            {
                let input = Input::of(written.path());
                input.write(&folder);
                assert!(read(&folder, &target), "{} is read as it is", sample.name());
                inputs.push(input);
            }
        }
        let mut rng = StdRng::seed_from_u64(1);
        let mut taken = 0;
        let all = INPUTS * times(1).div_ceil(5) as usize;
        for number in 0..all {
            let input = mutated(inputs.choose(&mut rng).unwrap(), &mut rng);
            input.write(&folder);
            let largest = largest_during(|| taken += usize::from(read(&folder, &target)));
            assert!(
                largest < LARGEST,
                "input {number} asks for {largest} bytes at once"
            );
        }
        // Some changes are harmless, such as one of a weight; were most, the readers would check nothing.
        assert!(
            (all / 40..all * 2 / 3).contains(&taken),
            "{taken} of {all} were taken"
        );
    });
}
