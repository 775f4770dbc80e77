//! A layer of multi-token prediction that goes back into its target's checkpoint: what was the target's stays what it was, and what
//! is read out of the new folder is the layer that was trained.
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use serde_json::{Value, json};
use spectrain::families::registry::open_drafter;
use spectrain::families::trained::Trained;
use spectrain_checkpoints::into_target::{IntoTarget, Placed};
use spectrain_checkpoints::known::{dialect_of, layer_beside_target, open_folder};
use spectrain_checkpoints::{
    DType, ModelFolder, NamedTensor, seal, write_folder, write_safetensors,
};
use spectrain_models::device::test_device;
use spectrain_models::{TargetParts, load_parts, load_target};

use crate::engine_logits::in_shards;
use crate::fp8::tensors_in_fp8;
use crate::golden::path;
use crate::samples::{Folder, Sample, samples, sorted};
use crate::tiny;
use crate::workspace::{RECIPE, Workspace};

/// Checkpoints of six classes with a layer each.
const CHECKPOINTS: [&str; 6] = [
    "mtp",
    "mtp_qwen",
    "mtp_qwen_moe",
    "mtp_qwen_next",
    "mtp_glm",
    "mtp_deepseek",
];

pub fn tensors(folder: &Path) -> Vec<NamedTensor> {
    let model = ModelFolder::open(folder).unwrap();
    let read = model.tensors().map(|info| model.read(&info.name).unwrap());
    read.collect()
}

pub fn config(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("config.json")).unwrap()).unwrap()
}

fn index(folder: &Path) -> Value {
    let file = folder.join("model.safetensors.index.json");
    serde_json::from_slice(&fs::read(file).unwrap()).unwrap()
}

/// The same with other values, of the same type.
fn changed(tensor: &NamedTensor) -> NamedTensor {
    let values = tensor.to_f32().unwrap();
    let values = values
        .iter()
        .enumerate()
        .map(|(at, value)| value * 0.75 + at as f32 / 4096.0);
    let changed = NamedTensor::from_f32(&*tensor.name, &tensor.shape[..], values.collect());
    changed.cast(tensor.dtype).unwrap()
}

pub fn put(layer: &Path, target: &Path, to: &Path) -> spectrain_checkpoints::Result<Placed> {
    let into = IntoTarget {
        layer: &open_folder(layer)?,
        target: &ModelFolder::open(target)?,
        copies: false,
        stop: || false,
    };
    into.write(to)
}

fn open(folder: &Path, parts: &TargetParts) -> Box<dyn Trained> {
    open_drafter(folder, parts, &test_device()).unwrap()
}

fn parts_of(target: &Path) -> TargetParts {
    load_parts(target, &test_device(), DType::F32).unwrap()
}

/// Fails unless a folder has the other tensors of the target bit for bit, and its layer is this one in the target's type.
fn holds(placed: &Path, target: &Path, layer: &Path, dtype: DType) {
    let own = layer_beside_target(placed).unwrap().unwrap();
    let others = |folder: &Path| {
        let mut tensors = tensors(folder);
        tensors.retain(|tensor| !own.contains(&tensor.name));
        tensors
    };
    let (found, expected) = (others(placed), others(target));
    assert!(found == expected && found.len() > 3, "{target:?}");
    let [here, there] = [target, placed].map(parts_of);
    let expected = open(layer, &here).rounded(dtype).unwrap();
    assert_eq!(
        sorted(open(placed, &there).tensors()),
        sorted(expected.tensors()),
        "{target:?}"
    );
    let bytes: usize = tensors(placed)
        .iter()
        .map(|tensor| tensor.bytes.len())
        .sum();
    let index = index(placed);
    assert_eq!(index["metadata"]["total_size"], bytes, "{target:?}");
    let named = index["weight_map"].as_object().unwrap().len();
    assert_eq!(named, tensors(placed).len(), "{target:?}");
}

/// The sample drafters that are layers of their targets' checkpoints.
fn layers() -> Vec<(Sample, Folder)> {
    let all = samples().map(|sample| (sample, sample.folder(None).unwrap()));
    let is_layer = |(_, folder): &(Sample, Folder)| {
        let model = ModelFolder::open(folder.path()).unwrap();
        dialect_of(&model).unwrap().may_be_beside_target()
    };
    let found: Vec<_> = all.filter(is_layer).collect();
    let recipes: BTreeSet<&str> = found.iter().map(|(sample, _)| sample.recipe.name).collect();
    assert!(recipes.len() >= 3, "{recipes:?}");
    found
}

/// A target of the class that goes with a layer: what its drafters share of it, a tensor of its own, and these.
fn write_target(config: &Value, of_layer: &[NamedTensor], to: &Path) {
    let matrix = |name: &str, rows: usize| {
        let values = (0..rows * 32).map(|at| (at % 29) as f32 / 16.0 - 0.9);
        NamedTensor::from_f32(name, [rows, 32], values.collect())
    };
    let norm = |name: &str| NamedTensor::from_f32(name, [32], vec![0.5; 32]);
    let mut tensors = vec![
        matrix("model.embed_tokens.weight", tiny::VOCAB),
        matrix("lm_head.weight", tiny::VOCAB),
        norm("model.norm.weight"),
        norm("model.layers.0.input_layernorm.weight"),
        // As older versions of Transformers wrote it; it is no part of a layer.
        norm("model.rotary_emb.inv_freq"),
    ];
    tensors.extend_from_slice(of_layer);
    let mut config = config.clone();
    config.as_object_mut().unwrap().remove(seal::SEAL);
    write_folder(to, &config, &tensors, &[("tokenizer.json", b"{}")]).unwrap();
}

#[test]
fn a_layer_of_every_family_replaces_that_of_its_target() {
    for (sample, layer) in layers() {
        let root = tempfile::tempdir().unwrap();
        let [target, whole] = ["target", "whole"].map(|name| root.path().join(name));
        let old: Vec<NamedTensor> = layer.tensors().iter().map(changed).collect();
        write_target(&layer.config(), &old, &target);
        let placed = put(layer.path(), &target, &whole).unwrap();
        assert!(placed.replaces, "{}", sample.name());
        assert_eq!(placed.keys, [], "{}", sample.name());
        let [before, after] = [&target, &whole].map(|folder| fs::read(folder.join("config.json")));
        assert_eq!(before.unwrap(), after.unwrap());
        assert_eq!(fs::read(whole.join("tokenizer.json")).unwrap(), b"{}");
        holds(&whole, &target, layer.path(), DType::F32);
        let of_target = parts_of(&whole).spec;
        let method = sample.resolved().method;
        method.check_start(&whole, &of_target).unwrap();
        assert!(!placed.launch(&whole, 2).is_empty());
    }
}

#[test]
fn a_target_without_a_layer_gets_one_and_the_key_that_says_so() {
    for (sample, layer) in layers() {
        let root = tempfile::tempdir().unwrap();
        let [target, whole] = ["target", "whole"].map(|name| root.path().join(name));
        let mut said = layer.config();
        for key in ["mtp_num_hidden_layers", "num_nextn_predict_layers"] {
            said.as_object_mut().unwrap().remove(key);
        }
        write_target(&said, &[], &target);
        let placed = put(layer.path(), &target, &whole).unwrap();
        assert!(!placed.replaces, "{}", sample.name());
        let [(key, value)] = &placed.keys[..] else {
            panic!("{}: {:?}", sample.name(), placed.keys);
        };
        assert!(key.ends_with("_layers") && *value == 1, "{key}");
        assert_eq!(config(&whole)[key], 1);
        assert_eq!(placed.files.kept, 1);
        holds(&whole, &target, layer.path(), DType::F32);
    }
}

/// A layer alone, as `export` writes it of the one in a checkpoint, with changed values.
pub fn layer_of(checkpoint: &Path, to: &Path, is_changed: bool) {
    let drafter = open(checkpoint, &parts_of(checkpoint));
    drafter.write(to, DType::F32, &Value::Null).unwrap();
    let mut config = config(to);
    config.as_object_mut().unwrap().remove(seal::SEAL);
    let mut all = tensors(to);
    if is_changed {
        all = all.iter().map(changed).collect();
    }
    fs::remove_dir_all(to).unwrap();
    write_folder(to, &config, &all, &[]).unwrap();
}

#[test]
fn layers_of_published_classes_keep_their_names_shapes_and_types() {
    for kind in CHECKPOINTS {
        let root = tempfile::tempdir().unwrap();
        let target = path(&format!("engines/{kind}"));
        let [same, other, back, whole] =
            ["same", "other", "back", "whole"].map(|name| root.path().join(name));
        // What was not trained comes out as it went in, copies of the target's embedding and head included.
        layer_of(&target, &same, false);
        put(&same, &target, &back).unwrap();
        assert_eq!(tensors(&back), tensors(&target), "{kind}");
        layer_of(&target, &other, true);
        put(&other, &target, &whole).unwrap();
        holds(&whole, &target, &other, DType::BF16);
        let shapes = |folder: &Path| -> Vec<_> {
            let tensors = tensors(folder).into_iter();
            tensors
                .map(|tensor| (tensor.name, tensor.shape, tensor.dtype))
                .collect()
        };
        assert_eq!(shapes(&whole), shapes(&target), "{kind}");
        // The new folder is a target into which another layer goes.
        let again = root.path().join("again");
        let placed = put(&same, &whole, &again).unwrap();
        assert_eq!(placed.files.dropped, ["model-00002-of-00002.safetensors"]);
        assert_eq!(placed.files.new, "model-mtp.safetensors");
        assert_eq!(tensors(&again), tensors(&target), "{kind}");
    }
}

/// What tells files apart, whatever they are called.
fn node(folder: &Path, file: &str) -> u64 {
    fs::metadata(folder.join(file)).unwrap().ino()
}

/// A checkpoint whose layer is in a shard of its own, but for one tensor, which is beside the target's. A tensor of the target has
/// another shard.
fn write_shards(kind: &str, to: &Path) {
    let whole = path(&format!("engines/{kind}"));
    let mut all = tensors(&whole);
    in_shards(&config(&whole), &all, to);
    let extra = NamedTensor::from_f32("model.layers.1.extra.weight", [3], vec![1.0, 2.0, 3.0]);
    let mut index = index(to);
    index["metadata"] = json!({"total_parameters": 123_456, "note": "kept"});
    index["weight_map"]["mtp.layers.0.input_layernorm.weight"] = json!("model-1.safetensors");
    index["weight_map"][&extra.name] = json!("model-4.safetensors");
    all.push(extra);
    fs::write(to.join("model.safetensors.index.json"), index.to_string()).unwrap();
    for shard in [
        "model-1.safetensors",
        "model-2.safetensors",
        "model-4.safetensors",
    ] {
        let inside = all
            .iter()
            .filter(|tensor| index["weight_map"][&tensor.name] == shard);
        let inside: Vec<_> = inside.cloned().collect();
        write_safetensors(&to.join(shard), &inside, &Default::default()).unwrap();
    }
}

#[test]
fn shards_are_linked_written_anew_or_left_out_by_what_they_hold() {
    let root = tempfile::tempdir().unwrap();
    let [target, layer, whole] = ["target", "layer", "whole"].map(|name| root.path().join(name));
    write_shards("mtp_qwen", &target);
    fs::write(target.join("consolidated.safetensors"), "old").unwrap();
    fs::write(target.join(".hidden"), "").unwrap();
    fs::create_dir(target.join("notes")).unwrap();
    fs::write(target.join("notes/a.txt"), "a").unwrap();
    fs::write(target.join("notes/b.bin"), "b").unwrap();
    layer_of(&path("engines/mtp_qwen"), &layer, true);
    let files = put(&layer, &target, &whole).unwrap().files;
    assert_eq!((&*files.new, files.kept), ("model-mtp.safetensors", 1));
    assert_eq!(files.rewritten, ["model-1.safetensors"]);
    assert_eq!(files.dropped, ["model-2.safetensors"]);
    assert_eq!(
        files.left_out,
        [".hidden", "consolidated.safetensors", "notes/b.bin"]
    );
    let mut names: Vec<_> = fs::read_dir(&whole)
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    names.sort();
    let expected = [
        "config.json",
        "model-1.safetensors",
        "model-4.safetensors",
        "model-mtp.safetensors",
        "model.safetensors.index.json",
        "notes",
    ];
    assert_eq!(names, expected);
    assert_eq!(fs::read(whole.join("notes/a.txt")).unwrap(), b"a");
    holds(&whole, &target, &layer, DType::BF16);
    let metadata = &index(&whole)["metadata"];
    assert_eq!(
        (&metadata["note"], &metadata["total_parameters"]),
        (&json!("kept"), &json!(123_456))
    );
    assert_eq!(
        node(&whole, "model-4.safetensors"),
        node(&target, "model-4.safetensors")
    );
    assert_ne!(node(&whole, "config.json"), node(&target, "config.json"));
}

#[test]
fn shards_are_copied_where_that_is_asked_for_and_nothing_is_left_of_a_folder_that_was_not_finished()
{
    let root = tempfile::tempdir().unwrap();
    let [target, layer, copied] = ["target", "layer", "copied"].map(|name| root.path().join(name));
    write_shards("mtp_qwen", &target);
    layer_of(&path("engines/mtp_qwen"), &layer, true);
    let into = IntoTarget {
        layer: &open_folder(&layer).unwrap(),
        target: &ModelFolder::open(&target).unwrap(),
        copies: true,
        stop: || false,
    };
    into.write(&copied).unwrap();
    assert_ne!(
        node(&copied, "model-4.safetensors"),
        node(&target, "model-4.safetensors")
    );
    holds(&copied, &target, &layer, DType::BF16);
    let stopped = IntoTarget {
        stop: || true,
        ..into
    };
    assert!(stopped.write(&root.path().join("stopped")).is_err());
    let left: Vec<_> = fs::read_dir(root.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert!(
        !left
            .iter()
            .any(|name| name.to_string_lossy().starts_with("stopped")),
        "{left:?}"
    );
}

/// A layer of which nothing is quantised stands in a checkpoint whose other matrices are in FP8.
#[test]
fn a_layer_that_is_not_quantised_is_replaced_in_a_quantised_target() {
    let root = tempfile::tempdir().unwrap();
    let [target, layer, whole] = ["target", "layer", "whole"].map(|name| root.path().join(name));
    let from = path("engines/mtp_qwen");
    let (said, mut all) = tensors_in_fp8(&from);
    all.retain(|tensor| !tensor.name.starts_with("mtp."));
    all.extend(
        tensors(&from)
            .into_iter()
            .filter(|tensor| tensor.name.starts_with("mtp.")),
    );
    write_folder(&target, &said, &all, &[]).unwrap();
    layer_of(&from, &layer, true);
    let placed = put(&layer, &target, &whole).unwrap();
    assert_eq!(placed.files.rewritten, ["model-00001-of-00002.safetensors"]);
    let raw = |folder: &Path, file: &str| {
        let mut raw = spectrain_checkpoints::folder::read_safetensors(&folder.join(file)).unwrap();
        raw.retain(|tensor| !tensor.name.starts_with("mtp."));
        raw
    };
    let after = raw(&whole, "model-00001-of-00002.safetensors");
    assert_eq!(after, raw(&target, "model.safetensors"));
    assert!(after.iter().any(|tensor| tensor.dtype == DType::F8E4M3));
    let bytes = fs::metadata(whole.join("model-00001-of-00002.safetensors"))
        .unwrap()
        .len();
    assert!(index(&whole)["metadata"]["total_size"].as_u64().unwrap() < bytes + 100_000);
    let expected = open(&layer, &parts_of(&target))
        .rounded(DType::BF16)
        .unwrap();
    let found = open(&whole, &parts_of(&whole));
    assert_eq!(sorted(found.tensors()), sorted(expected.tensors()));
}

const MTP: &str = "[objective]\ndraft_steps = 2";

/// A run of an MTP layer for a target of Qwen2's architecture.
pub fn workspace() -> Workspace {
    let workspace = Workspace::new();
    fs::remove_dir_all(workspace.path("target")).unwrap();
    workspace.write_qwen2("target", |_| ());
    let recipe = RECIPE
        .replace("eagle3", "mtp")
        .replace("[drafter]\ndraft_vocab = 256\n", "")
        .replace("[objective]\ndraft_steps = 2", MTP);
    workspace.write("recipe.toml", recipe);
    workspace.run(&["recipe", "recipe.toml"]).succeeded();
    workspace
}

fn logits(folder: &Path) -> Vec<f32> {
    let device = test_device();
    let target = load_target(&ModelFolder::open(folder).unwrap(), &device, DType::F32).unwrap();
    let ids = burn::tensor::Tensor::<1, burn::tensor::Int>::arange(0..40, &device).unsqueeze::<2>();
    let layout = spectrain_models::Layout::whole([1, 40], &device);
    let features = target.features(ids, &layout, &spectrain_models::Capture::default());
    spectrain_models::weights::host_f32(target.parts().logits(features.last))
}

/// What an evaluation at temperature 0 finds.
fn judged(workspace: &Workspace, target: &str, drafter: &str, out: &str) -> Value {
    let words = format!(
        "evaluate --target {target} --drafter {drafter} --prompts eval.jsonl --count 3 --temperature 0 --max-new-tokens 12 \
         --draft-length 2 --out {out}"
    );
    workspace.run_line(words).succeeded();
    let report = workspace.json(&format!("{out}/report.json"));
    report["settings"][0]["overall"]["tau"].clone()
}

#[test]
fn a_run_s_layer_goes_into_its_target_and_training_starts_from_there() {
    let workspace = workspace();
    let [target, whole] = ["target", "whole"].map(|name| workspace.path(name));
    let out = workspace
        .run_line("export run --into target --out whole")
        .succeeded()
        .stdout;
    for line in [
        "# whole, in ",
        "# `model-00002-of-00002.safetensors`: the layer's 16 tensors, which the target did not have\n",
        "# 1 of the target's shards, linked: change them in neither folder\n",
        "# `config.json`: `architectures` is `[\"MiMoForCausalLM\"]` now\n",
        "# `config.json`: `num_nextn_predict_layers` is `1` now\n",
        "vllm serve whole --speculative-config '{\"method\":\"mtp\",\"num_speculative_tokens\":2}'\n",
        "# no command for SGLang",
    ] {
        assert!(out.contains(line), "no `{line}`: {out}");
    }
    assert_eq!(logits(&whole), logits(&target));
    let trained = open(
        &workspace.path("runs/run/train/drafter"),
        &parts_of(&target),
    );
    let found = open(&whole, &parts_of(&whole));
    assert_eq!(sorted(found.tensors()), sorted(trained.tensors()));
    let alone = judged(&workspace, "target", "runs/run/train/drafter", "alone");
    let inside = judged(&workspace, "whole", "whole", "inside");
    assert!(alone == inside && alone.is_f64(), "{alone} {inside}");
    let further = workspace
        .text("recipe.toml")
        .replace("\"target\"", "\"whole\"");
    workspace.write("recipe.toml", format!("start = \"whole\"\n{further}"));
    workspace
        .run_recipe(&["name=further", "train.learning_rate=1e-9"])
        .succeeded();
    let [one, other] = ["runs/run", "runs/further"].map(|run| {
        let folder = workspace.path(format!("{run}/train/drafter"));
        sorted(open(&folder, &parts_of(&target)).tensors())
    });
    for (one, other) in one.iter().zip(&other) {
        let pairs = one
            .to_f32()
            .unwrap()
            .into_iter()
            .zip(other.to_f32().unwrap());
        for (one, other) in pairs {
            assert!((one - other).abs() < 1e-5, "{one} {other}");
        }
    }
}
