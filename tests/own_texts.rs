//! Texts that a test's target wrote, and features of them in other programs' layouts.
use std::collections::BTreeMap;

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use serde_json::{Value, json};
use spectrain_checkpoints::folder::read_safetensors;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_folder, write_safetensors};
use spectrain_data::features::FeatureShards;
use spectrain_eval::{DecodeSettings, Decoder};
use spectrain_models::device::test_device;
use spectrain_models::{Capture, DraftShape, Sampling, load_target};

use crate::workspace::Workspace;

/// How many texts, how long, and how they are written.
pub struct OwnTexts {
    pub texts: u32,
    pub tokens: usize,
    pub temperature: f64,
    /// What the target's head is multiplied with: the larger, the surer it is of what it says.
    pub sure: f32,
}

impl Default for OwnTexts {
    fn default() -> Self {
        Self {
            texts: 10,
            tokens: 40,
            temperature: 0.0,
            sure: 1.0,
        }
    }
}

impl OwnTexts {
    /// A workspace whose target has a final norm that changes what goes through it, and whose data are texts that the target
    /// wrote.
    pub fn workspace(&self) -> Workspace {
        let workspace = Workspace::new();
        with_a_norm(&workspace);
        multiply_head(&workspace, self.sure);
        workspace.write("train.jsonl", self.rows(&workspace, 0));
        workspace.write("eval.jsonl", self.rows(&workspace, self.texts));
        workspace
    }

    fn rows(&self, workspace: &Workspace, first: u32) -> String {
        let model = ModelFolder::open(workspace.path("target")).unwrap();
        let target = load_target(&model, &test_device(), DType::F32).unwrap();
        let capture = Capture::default();
        let decoder = Decoder::new(&target, &capture);
        let settings = DecodeSettings {
            max_new_tokens: self.tokens,
            draft: DraftShape::Chain { length: 1 },
            sampling: Sampling::at(self.temperature),
            stop: Vec::new(),
            shadow: None,
        };
        let row = |number: u32| {
            let prompt: Vec<u32> = (0..9 + number % 4)
                .map(|at| (5 + 31 * number + 7 * at) % 300)
                .collect();
            let mut rng = StdRng::seed_from_u64(u64::from(number));
            let answer = decoder.plain(&prompt, &settings, &mut rng).unwrap().tokens;
            let mut mask = vec![0; prompt.len()];
            mask.resize(prompt.len() + answer.len(), 1);
            let tokens = [prompt, answer].concat();
            let row = json!({"input_ids": tokens, "loss_mask": mask});
            format!("{row}\n")
        };
        (first..first + self.texts).map(row).collect()
    }
}

/// Gives the target a final norm whose weights differ.
fn with_a_norm(workspace: &Workspace) {
    let (config, mut tensors) = workspace.contents("target");
    let norm = tensors
        .iter_mut()
        .find(|tensor| tensor.name == "model.norm.weight");
    let norm = norm.unwrap();
    let values = (0..norm.shape[0]).map(|at| 0.25 + 0.5 * (at % 5) as f32);
    *norm = NamedTensor::from_f32(&norm.name, norm.shape.clone(), values.collect());
    let files = workspace.files("target");
    let texts = files.iter().filter(|(name, _)| {
        let is_model = |known: &&str| name.ends_with(known);
        !["config.json", "model.safetensors"].iter().any(is_model)
    });
    let texts: Vec<_> = texts
        .map(|(name, bytes)| (name.to_str().unwrap(), &bytes[..]))
        .collect();
    write_folder(&workspace.path("target"), &config, &tensors, &texts).unwrap();
}

/// Multiplies the head of the target.
pub fn multiply_head(workspace: &Workspace, factor: f32) {
    let path = workspace.path("target/model.safetensors");
    let mut tensors = read_safetensors(&path).unwrap();
    let head = tensors
        .iter_mut()
        .find(|tensor| tensor.name == "lm_head.weight");
    let head = head.unwrap();
    let values = head.to_f32().unwrap();
    let values = values.iter().map(|value| factor * value);
    *head = NamedTensor::from_f32(&head.name, head.shape.clone(), values.collect());
    write_safetensors(&path, &tensors, &BTreeMap::new()).unwrap();
}

/// Writes stored features as DeepSpec does.
pub fn write_deepspec(workspace: &Workspace, features: &str, cache: &str) {
    let shards = FeatureShards::open(workspace.path(features)).unwrap();
    let (mut index, mut files): (Vec<u8>, [Vec<u8>; 2]) = Default::default();
    for number in 0..shards.len() {
        let sample = shards.get(number);
        let shard = number % 2;
        let file = &mut files[shard];
        let mut offsets = Vec::new();
        let mut piece = |bytes: Vec<u8>| {
            offsets.extend((file.len() as u64).to_le_bytes());
            file.extend(bytes);
        };
        let words = |bits: &[u16]| bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        piece(
            sample
                .tokens
                .iter()
                .flat_map(|token| token.to_le_bytes())
                .collect(),
        );
        piece(vec![1; sample.tokens.len()]);
        piece(sample.loss_mask.to_vec());
        piece(words(&sample.captured.bits()));
        piece(words(&sample.last.bits()));
        index.extend((number as u64).to_le_bytes());
        index.extend((shard as u32).to_le_bytes());
        index.extend((sample.tokens.len() as u32).to_le_bytes());
        index.extend(offsets);
    }
    let named = |shard: usize| format!("shard-{shard:05}.bin");
    let listed = |shard: usize| json!({"shard_id": shard, "file_name": named(shard), "nbytes": files[shard].len()});
    let manifest: Value = json!({
        "version": 2, "num_samples": shards.len(), "num_shards": 2, "target_layer_ids": shards.header().captured_layers,
        "hidden_dtype": "bfloat16", "token_dtype": "int32", "mask_dtype": "uint8", "index_record_size": 56,
        "hidden_size": shards.header().d_model, "shards": [listed(0), listed(1)],
    });
    std::fs::create_dir(workspace.path(cache)).unwrap();
    let write = |name: &str, bytes: &[u8]| workspace.write(&format!("{cache}/{name}"), bytes);
    write("manifest.json", manifest.to_string().as_bytes());
    write("samples.idx", &index);
    (0..2).for_each(|shard| write(&named(shard), &files[shard]));
}
