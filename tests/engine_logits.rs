//! Exported drafters, read back, give the logits that speculators, Transformers and vLLM computed with the same folders.
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::module::Param;
use burn::nn::Embedding;
use burn::prelude::*;
use serde_json::{Value, json};
use spectrain::families::family::Writing;
use spectrain::families::shipped::Shipped;
use spectrain::runtime::target::sha256_of_drafter;
use spectrain_checkpoints::known::layer_beside_target;
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_safetensors};
use spectrain_models::deepseek_mtp::DeepseekMtp;
use spectrain_models::device::test_device;
use spectrain_models::dflash::DFlash;
use spectrain_models::eagle1::Eagle1;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::medusa::Medusa;
use spectrain_models::mtp::{Mtp, MtpConfig};
use spectrain_models::qwen_mtp::QwenMtp;
use spectrain_models::weights::{export, host_f32};
use spectrain_models::{
    Caches, Drafter as _, Features, Linear, LogitRows, Pass, RandomWeights, RmsNorm, Scope,
    SoftCap, Target as _, TargetParts, TargetSpec, chain, forced, load_parts, load_target,
};

use crate::golden::{Golden, assert_close, path, tensors};
use crate::tiny;

const VOCAB: usize = 320;
const D_MODEL: usize = 32;

type Tensors = std::collections::BTreeMap<String, Golden>;

/// What drafters take of their target, which is stored beside the logits.
fn parts(golden: &Tensors, d_head: usize, device: &Device) -> TargetParts {
    let mut random = RandomWeights::new(0);
    let mut scope = Scope::root(&mut random, device, DType::F32);
    let head: Tensor<2> = golden["lm_head.weight"].float(device);
    TargetParts {
        spec: TargetSpec {
            layers: 5,
            d_model: D_MODEL,
            d_ff: 48,
            heads: 2,
            kv_heads: 1,
            d_head,
            vocab: VOCAB,
            ..tiny::config().spec
        },
        embed_tokens: Embedding {
            weight: Param::from_tensor(golden["embed_tokens.weight"].float(device)),
        },
        norm: RmsNorm::new(&mut scope.child("norm"), D_MODEL, 1e-6).unwrap(),
        lm_head: Linear {
            weight: Param::from_tensor(head.transpose()),
            bias: None,
            lora: None,
        },
        soft_cap: SoftCap::default(),
        folder: None,
    }
}

/// The logits of some steps behind every prefix; `expected` gives those of a step behind a number of known features.
fn agrees<D: Shipped>(
    kind: &str,
    steps: usize,
    expected: impl Fn(&Tensors, usize, usize) -> Vec<f32>,
) {
    let device = test_device();
    let golden = tensors(&format!("engines/{kind}.safetensors"));
    let drafter: D = D::open(
        &path(&format!("engines/{kind}")),
        None,
        &parts(&golden, 16, &device),
        &device,
    )
    .unwrap();
    let tokens: Vec<u32> = golden["input_ids"]
        .f32()
        .iter()
        .map(|&id| id as u32)
        .collect();
    let features: Tensor<2> = golden["features"].float(&device);
    let [length, width] = features.dims();
    for known in 1..=length {
        let captured = features
            .clone()
            .narrow(0, 0, known)
            .reshape([1, known, width]);
        let features = Features {
            last: captured.clone().narrow(2, 0, D_MODEL),
            captured,
        };
        let mut state = drafter.start(64, tokens[0]);
        drafter.observe(&mut state, &tokens[1..=known], &features);
        // Behind the text the libraries read token 0.
        let token = |at: usize| tokens.get(at).copied().unwrap_or(0);
        let following: Vec<u32> = (known + 1..known + steps).map(token).collect();
        for (step, logits) in forced(&drafter, &mut state, &following).iter().enumerate() {
            let what = format!("{kind}, {known} features, step {step}");
            assert_close(&what, logits, &expected(&golden, known, step), 1e-4);
        }
    }
}

/// The same with the states that vLLM had of a target of which the golden file has the parts.
fn agrees_with_vllm<D: Shipped>(kind: &str) {
    let golden = tensors(&format!("engines/{kind}.safetensors"));
    // vLLM's attention on the CPU has no narrower heads.
    drafts_as_vllm::<D>(kind, &parts(&golden, 32, &test_device()));
}

/// The tokens of a prompt and the one behind it.
fn prompt(golden: &Tensors, case: usize) -> Vec<u32> {
    let tokens = golden[&format!("tokens.{case}")].f32();
    tokens.iter().map(|&id| id as u32).collect()
}

/// The logits of a draft behind some prompts, with the states that vLLM had of the target.
fn drafts_as_vllm<D: Shipped>(kind: &str, parts: &TargetParts) {
    let device = test_device();
    let golden = tensors(&format!("engines/{kind}.safetensors"));
    let drafter = D::open(&path(&format!("engines/{kind}")), None, parts, &device).unwrap();
    for case in 0..3 {
        let tokens = prompt(&golden, case);
        let last: Tensor<2> = golden[&format!("features.{case}")].float(&device);
        let last = last.unsqueeze::<3>();
        let features = Features {
            captured: last.clone(),
            last,
        };
        let mut state = drafter.start(64, tokens[0]);
        drafter.observe(&mut state, &tokens[1..], &features);
        let expected = golden[&format!("logits.{case}")].f32();
        let rows: Vec<&[f32]> = expected.chunks(VOCAB).collect();
        let likeliest = |row: &&[f32]| {
            let of = |(token, logit): (usize, &f32)| (*logit, token as u32);
            let best = row.iter().enumerate().map(of);
            best.max_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1
        };
        let (_, before) = rows.split_last().unwrap();
        let following: Vec<u32> = before.iter().map(likeliest).collect();
        let found = forced(&drafter, &mut state, &following);
        assert_eq!(found.len(), rows.len());
        for (step, (found, expected)) in found.iter().zip(rows).enumerate() {
            assert_close(
                &format!("{kind}, prompt {case}, step {step}"),
                found,
                expected,
                1e-4,
            );
        }
    }
}

#[test]
fn an_exported_eagle1_drafter_has_the_logits_of_vllm() {
    agrees_with_vllm::<Eagle1>("eagle1");
}

#[test]
fn exported_medusa_heads_have_the_logits_of_vllm() {
    agrees_with_vllm::<Medusa>("medusa");
}

#[test]
fn an_exported_eagle3_drafter_has_the_logits_of_speculators() {
    agrees::<Eagle3>("eagle3", 3, |golden, known, step| {
        let logits = &golden[&format!("logits.{step}")];
        let vocab = logits.shape[1];
        logits.f32()[(known - 1) * vocab..known * vocab].to_vec()
    });
}

#[test]
fn an_exported_dflash_drafter_has_the_logits_of_transformers() {
    agrees::<DFlash>("dflash", 4, |golden, known, step| {
        let logits = &golden["logits"];
        let at = (known - 1) * logits.shape[1] + step;
        logits.f32()[at * VOCAB..(at + 1) * VOCAB].to_vec()
    });
}

#[test]
fn the_mtp_layers_of_qwen_checkpoints_have_the_logits_of_vllm() {
    for kind in ["mtp_qwen", "mtp_qwen_moe", "mtp_qwen_next"] {
        let folder = path(&format!("engines/{kind}"));
        let parts = load_parts(&folder, &test_device(), DType::F32).unwrap();
        drafts_as_vllm::<QwenMtp>(kind, &parts);
        if kind != "mtp_qwen_moe" {
            // Its experts are in one tensor, and are written one by one.
            is_written_as_it_was::<QwenMtp>(kind, &parts);
        }
    }
}

#[test]
fn an_eagle3_drafter_with_latent_attention_has_the_logits_of_vllm() {
    let target = path("engines/mtp_deepseek");
    let parts = load_parts(&target, &test_device(), DType::F32).unwrap();
    drafts_as_vllm::<Eagle3>("eagle3_latent", &parts);
    is_written_as_it_was::<Eagle3>("eagle3_latent", &parts);
}

#[test]
fn the_mtp_layers_of_glm_and_deepseek_checkpoints_have_the_logits_of_vllm() {
    for kind in ["mtp_glm", "mtp_deepseek"] {
        let folder = path(&format!("engines/{kind}"));
        let parts = load_parts(&folder, &test_device(), DType::F32).unwrap();
        drafts_as_vllm::<DeepseekMtp>(kind, &parts);
        is_written_as_it_was::<DeepseekMtp>(kind, &parts);
    }
}

/// The layer of a checkpoint is written to a folder of its own under the same names and with the same bits, and the settings that it
/// is computed by are the same there.
fn is_written_as_it_was<D: Shipped>(kind: &str, parts: &TargetParts) {
    let from = path(&format!("engines/{kind}"));
    let drafter = D::open(&from, None, parts, &test_device()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let writing = Writing {
        folder: folder.path(),
        dtype: DType::BF16,
        target: "org/name",
        draft_length: 3,
        provenance: &Value::Null,
    };
    drafter.write(D::DIALECTS[0].0, &writing).unwrap();
    let [from, to] = [from.as_path(), folder.path()].map(|at| ModelFolder::open(at).unwrap());
    let written: Vec<_> = to.tensors().collect();
    assert!(written.len() > 10);
    for info in written {
        let [before, after] = [&from, &to].map(|model| model.read(&info.name).unwrap());
        assert_eq!((before.dtype, before.shape), (after.dtype, after.shape));
        assert!(before.bytes == after.bytes, "{kind}: {}", info.name);
    }
    let again = D::open(folder.path(), None, parts, &test_device()).unwrap();
    let told = |drafter: &D| serde_json::to_value(drafter.config()).unwrap();
    assert_eq!(told(&again), told(&drafter));
}

#[test]
fn a_mimo_checkpoint_and_its_own_mtp_layer_have_the_states_and_the_logits_of_vllm() {
    let device = test_device();
    let golden = tensors("engines/mtp.safetensors");
    let folder = ModelFolder::open(path("engines/mtp")).unwrap();
    let target = load_target(&folder, &device, DType::F32).unwrap();
    drafts_as_vllm::<Mtp>("mtp", &target.parts());
    let capture = Mtp::capture(&MtpConfig::default(), target.spec()).unwrap();
    for case in 0..3 {
        let tokens = prompt(&golden, case);
        let (_, tokens) = tokens.split_last().unwrap();
        let mut caches = Caches::new(target.spec().layers, tokens.len());
        let pass = Pass {
            tokens,
            parents: &chain(tokens.len()),
            logits: LogitRows::Last,
        };
        let states = target.decode(pass, &mut caches, &capture).features.captured;
        let expected = golden[&format!("features.{case}")].f32();
        assert_close(
            &format!("states of prompt {case}"),
            &host_f32(states),
            &expected,
            1e-4,
        );
    }
}

/// Writes the tensors of a checkpoint into shards, of which the one without its layer of multi-token prediction is not there, and
/// gives the names of the layer's. Scales of the layer's matrices have a shard of their own.
pub fn in_shards(config: &Value, tensors: &[NamedTensor], to: &Path) -> BTreeSet<String> {
    let numbered = format!("model.layers.{}.", config["num_hidden_layers"]);
    let is_of_layer = |name: &str| name.contains("mtp") || name.starts_with(&numbered);
    let shard = |name: &str| match (is_of_layer(name), name.ends_with("_scale_inv")) {
        (false, _) => "model-1.safetensors",
        (true, false) => "model-2.safetensors",
        (true, true) => "model-3.safetensors",
    };
    let names = tensors.iter().map(|tensor| tensor.name.as_str());
    let map: BTreeMap<_, _> = names.clone().map(|name| (name, shard(name))).collect();
    std::fs::create_dir(to).unwrap();
    std::fs::write(to.join("config.json"), config.to_string()).unwrap();
    let index = json!({ "weight_map": map }).to_string();
    std::fs::write(to.join("model.safetensors.index.json"), index).unwrap();
    for file in ["model-2.safetensors", "model-3.safetensors"] {
        let inside = tensors.iter().filter(|tensor| shard(&tensor.name) == file);
        let inside: Vec<_> = inside.cloned().collect();
        if !inside.is_empty() {
            write_safetensors(&to.join(file), &inside, &BTreeMap::new()).unwrap();
        }
    }
    let own = names.filter(|name| is_of_layer(name));
    own.map(str::to_owned).collect()
}

fn needs_its_own_shard_alone<D: Shipped>(kind: &str) {
    let device = test_device();
    let from = path(&format!("engines/{kind}"));
    let parts = load_parts(&from, &device, DType::F32).unwrap();
    let workspace = tempfile::tempdir().unwrap();
    let folder = workspace.path().join("target");
    let whole = ModelFolder::open(&from).unwrap();
    let tensors = whole.tensors().map(|info| whole.read(&info.name).unwrap());
    let own = in_shards(whole.config(), &tensors.collect::<Vec<_>>(), &folder);
    let found = layer_beside_target(&folder).unwrap().unwrap();
    assert!(
        found.is_subset(&own) && found.len() > 8,
        "{kind}: {found:?}"
    );
    let [read, unsplit] = [&folder, &from].map(|folder| {
        let drafter = D::open(folder, None, &parts, &device).unwrap();
        D::check_start(drafter.config(), folder, &parts.spec).unwrap();
        export(&drafter)
    });
    assert_eq!(read, unsplit, "{kind}");
    sha256_of_drafter(&folder).unwrap();
    // Without the layer's shard there is nothing to start from.
    std::fs::remove_file(folder.join("model-2.safetensors")).unwrap();
    let error = D::open(&folder, None, &parts, &device).err().unwrap();
    assert!(
        format!("{error:#}").contains("shard `model-2.safetensors` is not"),
        "{error:#}"
    );
}

#[test]
fn of_a_targets_shards_only_those_with_its_layer_are_needed() {
    needs_its_own_shard_alone::<Mtp>("mtp");
    for kind in ["mtp_qwen", "mtp_qwen_moe", "mtp_qwen_next"] {
        needs_its_own_shard_alone::<QwenMtp>(kind);
    }
    for kind in ["mtp_glm", "mtp_deepseek"] {
        needs_its_own_shard_alone::<DeepseekMtp>(kind);
    }
}
