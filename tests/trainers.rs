//! Drafters' folders as other trainers wrote them (`tests/golden/published`): those of the kinds that are known give the
//! logits that the trainer's own code computed, every command takes them, and those of other kinds are refused by name.
use std::fs;
use std::path::PathBuf;

use burn::prelude::*;
use serde_json::{Value, json};
use spectrain::families::shipped::Shipped;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_data::packing::{PackedBatch, RowLayout};
use spectrain_models::device::test_device;
use spectrain_models::dflash::DFlash;
use spectrain_models::eagle3::Eagle3;
use spectrain_models::peagle::PEagle;
use spectrain_models::{Drafter, Features, TargetParts, forced, load_target};
use spectrain_train::{
    Batch, BlockLoss, BlockLossConfig, Objective as _, Rows, SlotWeights, Statistics, Step,
};

use crate::golden::{Golden, Tensors, path, tensors};
use crate::workspace::Workspace;

const TARGET: &str = "targets/llama";
/// Tokens and width of the target.
const VOCAB: usize = 61;
const D_MODEL: usize = 32;
/// Draft steps that are compared, and tokens of a block.
const STEPS: usize = 3;
const BLOCK: usize = 4;
/// Of folders whose layers slide.
const WINDOW: usize = 5;

/// Folders of kinds that are known, with the recipe that trains such a drafter and what `[drafter]` says of it.
const KNOWN: [(&str, &str, &str); 20] = [
    (
        "speculators-eagle3",
        "eagle3",
        "norm_before_residual = true\nfc_norm = true\nnorm_output = true\nwindow = 5\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "speculators-eagle3-full",
        "eagle3",
        "draft_vocab = 24\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "speculators-eagle3-before-fc",
        "eagle3",
        "norm_before_residual = true\nnorm_before_fc = true\nnorm_output = true\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "speculators-eagle3-qwen3",
        "eagle3",
        "head_norm = true\nnorm_before_residual = true\nfc_norm = true\nnorm_output = true\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "speculators-peagle-qwen3",
        "peagle",
        "layers = 1\nmask_token = 60\nhead_norm = true\nnorm_before_residual = true\nwindow = 5\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "speculators-peagle",
        "peagle",
        "layers = 2\nmask_token = 60\nnorm_before_residual = true\nfc_norm = true\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "specforge-peagle",
        "peagle",
        "layers = 1\nmask_token = 60\ndraft_vocab = 24\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "speculators-dflash",
        "dflash",
        "layers = 2\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "speculators-dflash-sliding",
        "dflash",
        "layers = 1\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0, 1, 2]\nwindow = 5\ncausal = true",
    ),
    (
        "speculators-dflash2",
        "dflash",
        "layers = 1\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0, 1, 2]\nconv_taps = 2\nconv_group = 4\n\
         selector_rank = 4\nselector_top_k = 5",
    ),
    (
        "speculators-dspark",
        "dflash",
        "layers = 1\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0, 1, 2]\nmarkov_rank = 4\nconfidence = true\n\
         sample_from_anchor = true",
    ),
    (
        "specforge-eagle3",
        "eagle3",
        "draft_vocab = 24\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "specforge-dflash",
        "dflash",
        "layers = 2\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "specforge-dflash-mixed",
        "dflash",
        "layers = 3\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0, 1, 2]\nwindow = 5\nfull_layers = [2]\n\
         causal = true\nfull_layers_see_block = true",
    ),
    (
        "specforge-domino-served",
        "dflash",
        "layers = 1\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0, 1, 2]\nmarkov_rank = 8\nmarkov = \"domino\"\n\
         markov_state = 6\nsample_from_anchor = true",
    ),
    (
        "modelopt-domino",
        "dflash",
        "layers = 1\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0]\nmarkov_rank = 8\nmarkov = \"domino\"\n\
         markov_state = 8\nsample_from_anchor = true",
    ),
    (
        "specforge-dspark",
        "dflash",
        "layers = 1\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0, 1, 2]\nmarkov_rank = 4\nmarkov = \"gated\"\n\
         confidence = true\nsample_from_anchor = true",
    ),
    (
        "modelopt-eagle3",
        "eagle3",
        "draft_vocab = 24\ncaptured_layers = [0, 1, 2]",
    ),
    (
        "modelopt-dflash-sink",
        "dflash",
        "layers = 1\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0]\nsinks = true",
    ),
    (
        "modelopt-dspark",
        "dflash",
        "layers = 1\nblock_size = 4\nmask_token = 60\ncaptured_layers = [0]\nmarkov_rank = 4\nmarkov = \"rnn\"\n\
         confidence = true\nsample_from_anchor = true",
    ),
];

fn folder(name: &str) -> PathBuf {
    path(&format!("published/{name}"))
}

fn target(device: &Device) -> TargetParts {
    let folder = ModelFolder::open(path(TARGET)).unwrap();
    load_target(&folder, device, DType::F32).unwrap().parts()
}

/// Fails unless the logits of `steps` steps behind every prefix are those that `expected` has for so many known features and
/// a step, where it has any.
fn agrees<D: Shipped>(
    name: &str,
    steps: usize,
    expected: impl Fn(&dyn Fn(&str) -> Golden, usize, usize) -> Option<Vec<f32>>,
) {
    let device = test_device();
    let mut golden = tensors(&format!("published/{name}.safetensors"));
    let drafter = D::open(&folder(name), None, &target(&device), &device).unwrap();
    let features: Tensor<2> = golden.remove("features").unwrap().float(&device);
    let tokens: Vec<u32> = golden["input_ids"]
        .f32()
        .iter()
        .map(|&id| id as u32)
        .collect();
    let of = |name: &str| golden[name].clone();
    let [length, width] = features.dims();
    let mut compared = 0;
    for known in 1..=length {
        let captured = features.clone().narrow(0, 0, known);
        let captured = captured.reshape([1, known, width]);
        let features = Features {
            last: captured.clone().narrow(2, 0, D_MODEL),
            captured,
        };
        let mut state = drafter.start(64, tokens[0]);
        drafter.observe(&mut state, &tokens[1..=known], &features);
        // Behind the text token 0 was given.
        let token = |at: usize| tokens.get(at).copied().unwrap_or(0);
        let following: Vec<u32> = (known + 1..known + steps).map(token).collect();
        for (step, logits) in forced(&drafter, &mut state, &following).iter().enumerate() {
            let Some(expected) = expected(&of, known, step) else {
                continue;
            };
            assert_eq!(logits.len(), expected.len(), "{name}");
            for (token, (got, expected)) in logits.iter().zip(expected).enumerate() {
                // What is no candidate is at minus infinity.
                let same =
                    *got == expected || (got - expected).abs() <= 1e-4 * expected.abs().max(1.0);
                assert!(
                    same,
                    "{name}, {known} features, step {step}, token {token}: expected {expected}, found {got}"
                );
            }
            compared += 1;
        }
    }
    assert!(compared >= length, "{name}: {compared} rows were compared");
}

/// Of tensors `logits.STEP`, `[known, vocab]`.
fn by_steps(of: &dyn Fn(&str) -> Golden, known: usize, step: usize) -> Vec<f32> {
    let logits = of(&format!("logits.{step}"));
    let vocab = logits.shape[1];
    logits.f32()[(known - 1) * vocab..known * vocab].to_vec()
}

/// Of a tensor `logits`, `[known, slots, vocab]`.
fn by_slots(of: &dyn Fn(&str) -> Golden, known: usize, slot: usize) -> Option<Vec<f32>> {
    let logits = of("logits");
    let at = (known - 1) * logits.shape[1] + slot;
    Some(logits.f32()[at * VOCAB..(at + 1) * VOCAB].to_vec())
}

#[test]
fn eagle3_folders_of_speculators_have_its_logits() {
    for folder in [
        "speculators-eagle3-full",
        "speculators-eagle3-before-fc",
        "speculators-eagle3-qwen3",
    ] {
        agrees::<Eagle3>(folder, STEPS, |of, known, step| {
            Some(by_steps(of, known, step))
        });
    }
}

#[test]
fn an_eagle3_folder_of_speculators_slides_as_it_says() {
    agrees::<Eagle3>("speculators-eagle3", STEPS, |of, known, step| {
        // In its training the library lets a later step see as far back as the first, engines only a window from there.
        (step == 0 || known + step <= WINDOW).then(|| by_steps(of, known, step))
    });
}

#[test]
fn peagle_folders_of_speculators_have_its_logits() {
    // The second has the layers that the library makes unless it is told otherwise: Qwen3's, which slide.
    for folder in ["speculators-peagle", "speculators-peagle-qwen3"] {
        agrees::<PEagle>(folder, STEPS, |of, known, step| {
            // The library draws the rows of its masks.
            Some(by_steps(of, known, step)).filter(|row| row.iter().all(|logit| !logit.is_nan()))
        });
    }
}

#[test]
fn block_drafters_of_speculators_have_its_logits() {
    agrees::<DFlash>("speculators-dflash", BLOCK - 1, by_slots);
    agrees::<DFlash>("speculators-dflash2", BLOCK - 1, by_slots);
    agrees::<DFlash>("speculators-dspark", BLOCK, by_slots);
    agrees::<DFlash>("speculators-xpress", BLOCK - 1, by_slots);
}

#[test]
fn drafters_of_specforge_have_its_logits() {
    agrees::<Eagle3>("specforge-eagle3", STEPS, |of, known, step| {
        Some(by_steps(of, known, step))
    });
    agrees::<DFlash>("specforge-dflash", BLOCK - 1, by_slots);
    agrees::<DFlash>("specforge-dflash-mixed", BLOCK - 1, by_slots);
    agrees::<DFlash>("specforge-dspark", BLOCK, by_slots);
    for folder in ["specforge-domino", "specforge-domino-served"] {
        agrees::<DFlash>(folder, BLOCK, by_slots);
    }
}

#[test]
fn domino_drafters_of_specforge_have_its_loss() {
    let device = test_device();
    for (name, from) in [("specforge-domino", 0), ("specforge-domino-served", 1)] {
        let golden = tensors(&format!("published/{name}.safetensors"));
        let drafter = DFlash::open(&folder(name), None, &target(&device), &device).unwrap();
        assert_eq!(drafter.config().markov_from, from);
        let objective = BlockLoss::new(&BlockLossConfig {
            slot_weights: SlotWeights::Exponential,
            decay_slots: 3.0,
            base_weight: 0.6.into(),
            base_until: Some(1.0),
            ..Default::default()
        });
        let mut batch = whole_text(&golden, &device);
        batch.step = Some(Step { number: 4, of: 8 });
        let loss = objective
            .unwrap()
            .loss(&drafter, &batch, Statistics::All)
            .report();
        let expected = golden["loss"].values[0];
        let close = (loss.total - expected).abs() < 1e-5 * expected;
        assert!(close, "{name}: expected {expected}, found {}", loss.total);
    }
}

/// A text of a trainer in one row, all of it trained on. Nothing reads the features of its last token.
fn whole_text(golden: &Tensors, device: &Device) -> Batch {
    let tokens: Vec<u32> = golden["input_ids"]
        .f32()
        .iter()
        .map(|&id| id as u32)
        .collect();
    let length = tokens.len();
    let layout = RowLayout {
        rows: 1,
        row_length: length,
        documents: vec![1; length],
        positions: (0..length as u32).collect(),
    };
    let rows = Rows {
        packed: PackedBatch {
            rows: vec![vec![0]],
        },
        layout,
        tokens,
        loss_mask: vec![true; length],
    };
    let features: Tensor<2> = golden["features"].float(device);
    let last = Tensor::zeros([1, features.dims()[1]], device);
    let captured: Tensor<3> = Tensor::cat(vec![features, last], 0).unsqueeze();
    let mut batch = Batch::new(rows, device);
    batch.features = Some(Features {
        last: captured.clone().narrow(2, 0, D_MODEL),
        captured,
    });
    batch
}

#[test]
fn drafters_of_modelopt_have_its_logits() {
    agrees::<Eagle3>("modelopt-eagle3", 1, |of, known, step| {
        Some(by_steps(of, known, step))
    });
    agrees::<DFlash>("modelopt-dflash", BLOCK - 1, by_slots);
    agrees::<DFlash>("modelopt-dspark", BLOCK, by_slots);
    agrees::<DFlash>("modelopt-dflash-sink", BLOCK - 1, by_slots);
}

#[test]
fn drafters_of_other_kinds_are_refused_by_name() {
    let device = test_device();
    let target = target(&device);
    let model = ModelFolder::open(folder("speculators-mtp")).unwrap();
    let error = dialect_of(&model).err().unwrap().to_string();
    let part = "MTP drafters of this layout are not supported";
    assert!(error.contains(part), "{error}");
    // A known kind with parts that are not.
    let name = "speculators-dflash-vocabulary";
    let opened = DFlash::open(&folder(name), None, &target, &device);
    let error = format!("{:#}", opened.err().unwrap());
    assert!(error.contains("key `draft_vocab_size`"), "{name}: {error}");
}

#[test]
fn what_modelopt_stretches_for_the_engine_is_stretched() {
    let device = test_device();
    let drafter = Eagle3::open(
        &folder("modelopt-eagle3-yarn"),
        None,
        &target(&device),
        &device,
    )
    .unwrap();
    let scaling = serde_json::to_value(&drafter.target().spec.rope.scaling).unwrap();
    assert_eq!(scaling["rope_type"], "yarn");
    assert_eq!(scaling["factor"], 32.0);
}

/// A tokenizer of as many words as the target has tokens, and a template of some of them.
fn write_text(workspace: &Workspace) {
    let vocab: serde_json::Map<String, Value> = (0..VOCAB)
        .map(|id| {
            let word = match id {
                0 => "<unk>".to_owned(),
                1 => "<user>".to_owned(),
                2 => "<end>".to_owned(),
                3 => "<assistant>".to_owned(),
                _ => format!("w{id}"),
            };
            (word, json!(id))
        })
        .collect();
    let special = |id: u32, content: &str| json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true});
    let tokenizer = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [special(1, "<user>"), special(2, "<end>"), special(3, "<assistant>")],
        "normalizer": null,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": null,
        "decoder": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    });
    workspace.write("target/tokenizer.json", tokenizer.to_string());
    workspace.write(
        "target/tokenizer_config.json",
        json!({"eos_token": "<end>"}).to_string(),
    );
    workspace.write(
        "target/chat_template.jinja",
        "{% for m in messages %}<{{ m.role }}> {{ m.content }} <end> {% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    );
    for (name, first) in [("train.jsonl", 4), ("eval.jsonl", 9)] {
        let rows = (0..12).map(|row| {
            let words = |from: usize| {
                (0..6)
                    .map(|i| format!("w{}", 4 + (from + i) % 50))
                    .collect::<Vec<_>>()
                    .join(" ")
            };
            let messages = json!([
                {"role": "user", "content": words(first + row)},
                {"role": "assistant", "content": words(first + 3 * row)},
            ]);
            json!({ "messages": messages }).to_string()
        });
        workspace.write(name, rows.collect::<Vec<_>>().join("\n"));
    }
}

fn workspace() -> Workspace {
    let workspace = Workspace::of("");
    fs::create_dir(workspace.path("target")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(path(TARGET).join(name), workspace.path("target").join(name)).unwrap();
    }
    write_text(&workspace);
    workspace
}

/// A copy of a folder in the workspace, and where it is.
fn copy(workspace: &Workspace, name: &str) -> String {
    let copied = format!("copied/{name}");
    fs::create_dir_all(workspace.path(&copied)).unwrap();
    for entry in fs::read_dir(folder(name)).unwrap() {
        let file = entry.unwrap();
        fs::copy(file.path(), workspace.path(&copied).join(file.file_name())).unwrap();
    }
    copied
}

/// Evaluates, decodes with, and checks a drafter.
fn is_judged(workspace: &Workspace, name: &str, copied: &str) {
    let pair = format!("--target target --drafter {copied} --max-new-tokens 8");
    let data = format!("--prompts eval.jsonl --count 2 --temperature 0 --out report-{name}");
    workspace
        .run_line(format!("evaluate {pair} {data}"))
        .succeeded();
    let report = workspace.json(&format!("report-{name}/report.json"));
    assert_eq!(report["lossless"]["greedy_mismatches"], 0, "{name}");
    let generate = format!("generate {pair} --prompt");
    let generate = generate.split(' ').chain(["w5 w6"]);
    workspace.run(&generate.collect::<Vec<_>>()).succeeded();
    let checked = workspace.run_line(format!("check {copied} --target target"));
    let checked = checked.succeeded();
    assert!(
        checked.stdout.contains("drafter of another program"),
        "{checked:#?}"
    );
}

/// Imports a drafter. Of a random one the ways to read its layer ids and its vocabulary are worth the same: what is told
/// from the folder alone is imported, and what is not is refused as such. Returns whether it is imported.
fn is_imported(workspace: &Workspace, name: &str, copied: &str) -> bool {
    let import = format!("import {copied} --target target --count 2");
    let with_layers = format!("{import} --layers 0,1,2");
    match name {
        "modelopt-eagle3" => {
            // Without `t2d`, texts that the target made up decide nothing, and given layers neither.
            let found = workspace.run_line(&with_layers).succeeded();
            for told in [
                "`d2t` holds offsets: τ",
                "not taken: as given, `d2t` holds ids",
            ] {
                assert!(found.stdout.contains(told), "{found:#?}");
            }
            assert!(
                found.stderr.contains("the likelier way is taken"),
                "{found:#?}"
            );
            let prompts = format!("{with_layers} --prompts eval.jsonl --name again");
            let told = ["two ways", "`d2t` holds ids", "`d2t` holds offsets"];
            let refused = workspace.run_line(prompts).failed(&told);
            assert!(!refused.stderr.contains("--layers"), "{refused:#?}");
            return false;
        }
        "specforge-eagle3" | "specforge-peagle" => workspace.run_line(with_layers).succeeded(),
        _ => workspace.run_line(import).succeeded(),
    };
    let imported = workspace.path(format!("runs/{name}/import/drafter"));
    assert!(imported.join("model.safetensors").exists());
    assert!(!imported.join("config.py").exists(), "{name}");
    true
}

/// A run that starts from `copied`, but for its recipe, its `start` and its `[drafter]`.
const FURTHER: &str = r#"
[target]
model = "target"

[data]
train = "train.jsonl"
eval = "eval.jsonl"
max_length = 64

[train]
steps = 2
batch_tokens = 64
learning_rate = 1e-4
warmup_steps = 0
validate_samples = 2
decode_prompts = 1
decode_tokens = 4

[export]
to = ["vllm"]

[evaluate]
prompts = 1
temperatures = [0.0]
draft_lengths = [2]
max_new_tokens = 4
"#;

#[test]
fn every_command_takes_the_folders_of_other_trainers() {
    let workspace = workspace();
    for (name, kind, drafter) in KNOWN {
        let copied = copy(&workspace, name);
        is_judged(&workspace, name, &copied);
        if !is_imported(&workspace, name, &copied) {
            continue;
        }
        let start = format!("recipe = \"{kind}\"\nname = \"further\"\nstart = \"{copied}\"\n");
        workspace.write(
            "recipe.toml",
            format!("{start}[drafter]\n{drafter}{FURTHER}"),
        );
        workspace
            .run_line("recipe recipe.toml --quiet --fresh")
            .succeeded();
    }
}
