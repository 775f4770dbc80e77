use std::fs;
use std::path::Path;

use anyhow::Result;
use burn::prelude::Device;
use serde_json::{Map, json};
use spectrain_checkpoints::{DType, write_folder};
use spectrain_data::tokenizer::train_byte_level_bpe;
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::weights::export as export_tensors;
use spectrain_models::{Drafter as _, RandomWeights, Scope, Transformer, TransformerConfig};

use super::*;
use crate::families::trained::write_usual;
use crate::progress::Output;
use crate::recipe;
use crate::recipe::ResolvedRecipe;
use crate::recipe::tables::RegenerateTable;
use crate::runs::places::trained;
use crate::runs::run_folder::{Existing, RunFolder, RunName, Start, Status};
use crate::runs::stage_names::TRAIN;
use crate::runtime::model_files::read_json;
use crate::runtime::target;
use crate::stages::failure;
use crate::stages::in_order::{Told, run_and_tell};
use crate::stages::order::{STAGES, selected};
use crate::stages::settings::settings;

mod exports;
mod reads;
mod self_check;
mod training;

const TEMPLATE: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A target without weights, and conversations that its tokenizer was trained on.
fn write_target(folder: &Path, vocab: usize) {
    fs::create_dir_all(folder).unwrap();
    let config = json!({
        "model_type": "qwen3", "vocab_size": vocab, "hidden_size": 8, "intermediate_size": 8,
        "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
        "max_position_embeddings": 64,
    });
    fs::write(folder.join("config.json"), config.to_string()).unwrap();
    fs::write(folder.join("chat_template.jinja"), TEMPLATE).unwrap();
    let texts = (0..50).map(|i| format!("count to {i}: one two three"));
    let tokenizer = train_byte_level_bpe(texts, 300, &["<|im_start|>", "<|im_end|>"]).unwrap();
    tokenizer.save(folder).unwrap();
}

pub(super) fn write_data(path: &Path, first: usize, count: usize) {
    let row = |i: usize| {
        json!({"messages": [
            {"role": "user", "content": format!("count to {i}")},
            {"role": "assistant", "content": format!("one two three {i}")},
        ]})
        .to_string()
    };
    let rows: Vec<String> = (first..first + count).map(row).collect();
    fs::write(path, rows.join("\n")).unwrap();
}

/// The text of a recipe without evaluation data.
pub(super) fn recipe_text(root: &Path) -> String {
    format!(
        "recipe = \"eagle3\"\nname = \"a\"\ntarget.model = {0:?}\ndata.train = {1:?}\n",
        root.join("target"),
        root.join("train.jsonl"),
    )
}

fn recipe(root: &Path, overrides: &[&str]) -> ResolvedRecipe {
    let eval = format!("data.eval = {:?}\n", root.join("eval.jsonl"));
    let text = recipe_text(root) + &eval;
    let overrides: Vec<String> = overrides.iter().map(|&given| given.to_owned()).collect();
    recipe::read(&text, &overrides).unwrap()
}

fn with_context<T>(root: &Path, overrides: &[&str], body: impl FnOnce(&StageContext) -> T) -> T {
    with_recipe(root, &recipe(root, overrides), body)
}

pub(super) fn with_recipe<T>(
    root: &Path,
    recipe: &ResolvedRecipe,
    body: impl FnOnce(&StageContext) -> T,
) -> T {
    let name = RunName {
        root: &root.join("runs"),
        name: &recipe.name,
        recipe: &recipe.recipe,
    };
    let run = RunFolder::open(name, &recipe.toml, Existing::Continue).unwrap();
    body(&StageContext {
        recipe,
        run: &run,
        device: Device::flex(),
        device_name: "cpu".into(),
        target_type: DType::F32.into(),
        output: Output::Quiet,
        array: Default::default(),
        group: None,
    })
}

pub(super) fn fixture() -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    write_target(&root.path().join("target"), 300);
    write_data(&root.path().join("train.jsonl"), 0, 12);
    write_data(&root.path().join("eval.jsonl"), 20, 3);
    root
}

fn prepare(root: &Path, overrides: &[&str]) -> Result<()> {
    with_context(root, overrides, |context| run(context, &["prepare".into()]))
}

/// Whoever asks a GPU for its memory before a training does not open it for a stage that needs none.
#[test]
fn stages_that_are_run_are_told_before_and_all_that_are_wanted_behind() {
    let root = fixture();
    let told = || {
        let (mut begun, mut done) = (Vec::new(), Vec::new());
        with_context(root.path(), &[], |context| {
            let told = Told {
                begins: &mut |stage| begun.push(stage.to_owned()),
                done: &mut |stage| {
                    done.push(stage.to_owned());
                    Ok(())
                },
            };
            run_and_tell(context, &["prepare".into()], told).unwrap();
        });
        [begun, done]
    };
    let prepared = vec!["prepare".to_owned()];
    assert_eq!(told(), [prepared.clone(), prepared.clone()]);
    assert_eq!(told(), [Vec::new(), prepared]);
}

#[test]
fn prepare_leaves_tokens_counts_and_prompts() {
    let root = fixture();
    prepare(root.path(), &[]).unwrap();
    with_context(root.path(), &[], |context| {
        let shards = TokenShards::open(context.folder("prepare").join("train")).unwrap();
        assert_eq!(shards.len(), 12);
        let counts = prepare::counts(context.run).unwrap();
        assert_eq!(counts.len(), 300);
        assert_eq!(counts.iter().sum::<u64>(), shards.index().trained_tokens);
        let prompts = prepare::prompts(context.run).unwrap();
        let (tokenizer, _) =
            target::text(&context.target_folder().unwrap(), None, &Map::new()).unwrap();
        let text = tokenizer
            .decode(&prompts[0], spectrain_data::tokenizer::Special::Keep)
            .unwrap();
        assert_eq!(
            (prompts.len(), text.as_str()),
            (
                3,
                "<|im_start|>user\ncount to 20<|im_end|>\n<|im_start|>assistant\n"
            )
        );
    });
}

#[test]
fn a_done_stage_runs_again_only_when_what_it_reads_has_changed() {
    let root = fixture();
    let finished = |overrides: &[&str]| {
        prepare(root.path(), overrides).unwrap();
        let state = |context: &StageContext| {
            context.run.manifest("prepare").unwrap().unwrap().summary["train"].clone()
        };
        with_context(root.path(), overrides, state)
    };
    let mark = root.path().join("runs/a/prepare/mark");
    assert_eq!(finished(&[])["kept"], 12);
    fs::write(&mark, "").unwrap();
    finished(&["evaluate.seed=5", "train.steps=99", "seed=3"]);
    assert!(
        mark.exists(),
        "it ran although nothing that it reads has changed"
    );
    write_data(&root.path().join("train.jsonl"), 0, 15);
    assert_eq!(finished(&[])["kept"], 15);
    assert!(
        !mark.exists(),
        "a stage that starts over finds nothing of the old one"
    );
    assert_eq!(
        finished(&["data.mask=all"])["trained_tokens"],
        finished(&["data.mask=all"])["tokens"]
    );
}

#[test]
fn an_interrupted_stage_that_cannot_go_on_starts_with_an_empty_folder() {
    let root = fixture();
    prepare(root.path(), &[]).unwrap();
    let folder = root.path().join("runs/a/prepare");
    with_context(root.path(), &[], |context| {
        let done = context.run.manifest("prepare").unwrap().unwrap();
        let start = Start {
            settings: done.settings,
            inputs: done.inputs,
            ..Start::default()
        };
        context.run.start("prepare", start).unwrap();
    });
    fs::write(folder.join("half"), "").unwrap();
    prepare(root.path(), &[]).unwrap();
    assert!(!folder.join("half").exists());
}

#[test]
fn a_stage_alone_needs_the_earlier_ones_done_and_up_to_date() {
    let root = fixture();
    let train = |overrides: &[&str]| {
        let error = with_context(root.path(), overrides, |context| {
            run(context, &["train".into()])
        });
        format!("{:#}", error.unwrap_err())
    };
    assert!(
        train(&[]).contains("stage `prepare` has to come first and has not run"),
        "{}",
        train(&[])
    );
    prepare(root.path(), &[]).unwrap();
    let error = train(&["data.max_length=1024"]);
    assert!(
        error.contains("out of date") && error.contains("`data.max_length`: 2048 → 1024"),
        "{error}"
    );
}

#[test]
fn a_stage_that_the_recipe_does_not_have_is_refused() {
    let root = fixture();
    let error = selected(&recipe(root.path(), &[]), &["features".into()])
        .map(drop)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("its stages: prepare, train, export, evaluate"),
        "{error}"
    );
    selected(
        &recipe(root.path(), &["features.mode=stored"]),
        &["features".into()],
    )
    .map(drop)
    .unwrap();
}

#[test]
fn a_failed_stage_is_not_done() {
    let root = fixture();
    // The tokenizer has more tokens than the target: it is another's.
    write_target(&root.path().join("target"), 280);
    let error = format!("{:#}", prepare(root.path(), &[]).unwrap_err());
    assert!(
        error.contains("stage `prepare`") && error.contains("280"),
        "{error}"
    );
    let run = root.path().join("runs/a");
    let kept = failure::of_run(&run).unwrap();
    assert!(
        kept.starts_with("stage `prepare`: ") && kept.contains("280"),
        "{kept}"
    );
    with_context(root.path(), &[], |context| {
        assert_eq!(
            context.run.manifest("prepare").unwrap().unwrap().status,
            Status::Started
        );
    });
    write_target(&root.path().join("target"), 300);
    prepare(root.path(), &[]).unwrap();
    assert_eq!(failure::of_run(&run), None, "the run went on");
}

#[test]
fn an_empty_or_useless_dataset_is_an_error_that_names_it() {
    let root = fixture();
    fs::write(root.path().join("eval.jsonl"), "").unwrap();
    let error = format!("{:#}", prepare(root.path(), &[]).unwrap_err());
    assert!(
        error.contains("eval.jsonl") && error.contains("empty"),
        "{error}"
    );
    write_data(&root.path().join("eval.jsonl"), 20, 3);
    let error = format!(
        "{:#}",
        prepare(root.path(), &["data.max_length=4", "train.batch_tokens=4"]).unwrap_err()
    );
    assert!(
        error.contains("train.jsonl") && error.contains("12"),
        "{error}"
    );
}

#[test]
fn a_missing_dataset_is_an_error_that_names_it() {
    let root = fixture();
    fs::remove_file(root.path().join("train.jsonl")).unwrap();
    let error = format!("{:#}", prepare(root.path(), &[]).unwrap_err());
    assert!(error.contains("train.jsonl"), "{error}");
}

#[test]
fn every_key_that_a_stage_reads_exists() {
    let root = fixture();
    let mut recipe = recipe(root.path(), &[]);
    recipe.json["synthetic"] = json!({});
    recipe.json["start"] = json!("folder");
    let given = ["model", "extra", "temperature", "top_p", "tools"];
    let given = given.map(|key| (key.to_owned(), json!(1)));
    recipe.json["regenerate"] = json!(RegenerateTable::default());
    for (key, value) in given {
        recipe.json["regenerate"][key] = value;
    }
    // Keys that are not written where nothing is said.
    recipe.json["data"]["template_variables"] = json!({});
    recipe.json["data"]["date"] = json!("2026-11-29");
    recipe.json["data"]["held_out"] = json!(0.1);
    recipe.json["data"]["max_samples"] = json!(1);
    recipe.json["features"]["dtype"] = json!("int8");
    for stage in STAGES {
        for path in stage.reads {
            let value = path.split('.').fold(&recipe.json, |value, key| &value[key]);
            assert!(!value.is_null(), "{}: {path}", stage.name);
        }
    }
}

/// The target with random weights, and a random drafter as if `train` had left it.
fn with_trained<T>(root: &Path, body: impl FnOnce(&StageContext) -> T) -> T {
    let folder = root.join("target");
    let config = read_json(&folder.join("config.json")).unwrap();
    let config = TransformerConfig::read(&config, &folder).unwrap();
    let device = Device::flex();
    let mut random = RandomWeights::new(1);
    let model = Transformer::new(
        &mut Scope::root(&mut random, &device, DType::F32),
        config.clone(),
    )
    .unwrap();
    let mut tensors = export_tensors(&model);
    for tensor in tensors
        .iter_mut()
        .filter(|tensor| !tensor.name.starts_with("lm_head."))
    {
        tensor.name.insert_str(0, "model.");
    }
    write_folder(
        &root.join("weights"),
        &config.to_json().unwrap(),
        &tensors,
        &[],
    )
    .unwrap();
    for file in ["model.safetensors", "config.json"] {
        fs::copy(root.join("weights").join(file), folder.join(file)).unwrap();
    }
    let overrides = [
        "evaluate.prompts=2",
        "evaluate.max_new_tokens=6",
        "evaluate.draft_lengths=[2]",
        "export.dtype=f32",
    ];
    prepare(root, &overrides).unwrap();
    with_context(root, &overrides, |context| {
        let drafter = Eagle3::new(
            &Eagle3Config::default(),
            &model.parts(),
            &DraftVocabulary::full(config.spec.vocab),
            &mut RandomWeights::new(2),
            &device,
        );
        let train = STAGES.iter().find(|stage| stage.name == "train").unwrap();
        let start = Start {
            settings: settings(context.recipe, train).unwrap(),
            inputs: context.inputs(train).unwrap(),
            ..Start::default()
        };
        let manifest = context.run.start("train", start).unwrap();
        let folder = context.run.path().join(trained(TRAIN));
        write_usual(&drafter.unwrap(), &folder, DType::F32, &json!({})).unwrap();
        context.run.finish(manifest, 1.0, json!({})).unwrap();
        body(context)
    })
}

/// The stage of this name.
fn stage(name: &str) -> &'static stage::Stage {
    STAGES.iter().find(|stage| stage.name == name).unwrap()
}

/// What is done where `auto` means bf16.
fn on_gpu(context: &StageContext, body: impl FnOnce(&StageContext)) {
    body(&StageContext {
        target_type: DType::BF16.into(),
        device_name: "cuda:0".into(),
        device: context.device.clone(),
        array: Default::default(),
        ..*context
    });
}
