use std::fs;
use std::path::Path;

use anyhow::Result;
use burn::module::{Module as _, ModuleMapper, Param};
use burn::prelude::{Device, Tensor};
use clap::Parser as _;
use serde_json::{Map, json};
use spectrain_checkpoints::{DType, ModelFolder, seal, state, write_folder};
use spectrain_data::tokenizer::train_byte_level_bpe;
use spectrain_data::tokens::TokenShards;
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::weights::export as export_tensors;
use spectrain_models::{
    Capture, Drafter as _, RandomWeights, Scope, Target as _, Transformer, TransformerConfig,
    load_target,
};
use spectrain_train::{Objective, TrainingTimeTest, TrainingTimeTestConfig};

use super::*;
use crate::cli::progress::Output;
use crate::families::registry::RECIPES;
use crate::families::trained::write_usual;
use crate::recipe;
use crate::recipe::ResolvedRecipe;
use crate::recipe::tables::RegenerateTable;
use crate::runs::hashes::HASHES;
use crate::runs::places::{EXPORTED, trained};
use crate::runs::run_folder::{
    Existing, OWN_SAMPLING, RunFolder, RunName, STOP_TOKENS, StageState, Start, Status,
};
use crate::runtime::model_files::read_json;
use crate::runtime::self_check::{SelfCheck, Shape};
use crate::runtime::target;
use crate::stages::borrowed::borrow;
use crate::stages::commands_again::commands_again;
use crate::stages::failure;
use crate::stages::in_order::{Told, run_and_tell};
use crate::stages::inputs::{TRAIN, settings};
use crate::stages::order::{STAGES, selected};
use crate::stages::setup::Setup;

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
    recipe.json["data"]["held_out"] = json!(0.1);
    recipe.json["data"]["max_samples"] = json!(1);
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

/// The target of a context in its memory, and what EAGLE-3 captures of it.
fn loaded(context: &StageContext) -> (Transformer, Capture) {
    let model = ModelFolder::open(context.target_folder().unwrap()).unwrap();
    let target = load_target(&model, &context.device, context.target_type.dtype).unwrap();
    let capture = context.recipe.method.capture(target.spec()).unwrap();
    (target, capture)
}

const SHAPE: Shape = Shape {
    rows: 3,
    length: 40,
};

#[test]
fn the_self_check_passes_on_a_device_that_computes_as_the_cpu() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let objective = || {
            Ok(<TrainingTimeTest as Objective<Eagle3>>::new(
                &TrainingTimeTestConfig::default(),
            )?)
        };
        for dtype in [DType::F32, DType::BF16] {
            let context = StageContext {
                target_type: dtype.into(),
                device: context.device.clone(),
                device_name: "cpu".into(),
                array: Default::default(),
                ..*context
            };
            let (target, capture) = loaded(&context);
            let check = SelfCheck::new(&context, &target, &capture, SHAPE).unwrap();
            check.target().unwrap();
            let vocabulary = DraftVocabulary::full(target.spec().vocab);
            let config = Eagle3Config::default();
            check
                .step::<Eagle3, TrainingTimeTest>(&config, &objective, &vocabulary)
                .unwrap();
        }
    });
}

/// Multiplies the parameter of this name.
struct Fault(Vec<String>, &'static str);

impl ModuleMapper for Fault {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.0.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.0.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        match self.0.join(".") == self.1 {
            true => param.map(|weight| weight * 1.2),
            false => param,
        }
    }
}

#[test]
fn the_self_check_names_what_is_computed_wrongly() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let (target, capture) = loaded(context);
        for (fault, told) in [
            (
                "layers.1.mlp.up_proj.weight",
                "`model.layers.1.mlp.up_proj.weight`",
            ),
            (
                "layers.3.self_attn.o_proj.weight",
                "`model.layers.3.self_attn.o_proj.weight`",
            ),
            ("layers.2.input_layernorm.weight", "hidden states"),
            ("norm.weight", "the last hidden states"),
            ("embed_tokens.weight", "hidden states"),
        ] {
            let wrong = target.clone().map(&mut Fault(Vec::new(), fault));
            let check = SelfCheck::new(context, &wrong, &capture, SHAPE).unwrap();
            let found = check.target().unwrap_err().to_string();
            assert!(
                found.contains(told) && found.contains("cpu computes wrongly"),
                "{fault}: {found}"
            );
        }
    });
}

#[test]
fn stages_on_a_gpu_are_checked_first() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let gpu = |context: &StageContext, stage: &str| {
            // What tells a stage that it is on a GPU is the name; the device is the CPU.
            let context = StageContext {
                device_name: "cuda:0".into(),
                device: context.device.clone(),
                array: Default::default(),
                ..*context
            };
            run(&context, &[stage.to_owned()]).unwrap();
        };
        run(context, &["export".to_owned()]).unwrap();
        gpu(context, "evaluate");
        let few = [
            "features.mode=stored",
            "name=stored",
            "train.steps=2",
            "train.warmup_steps=1",
            "train.validate_every=2",
        ];
        let changed = recipe(root.path(), &few);
        with_recipe(root.path(), &changed, |context| {
            run(context, &["prepare".to_owned()]).unwrap();
            gpu(context, "features");
            gpu(context, "train");
        });
    });
}

#[test]
fn a_trained_drafter_is_exported_and_judged() {
    let root = fixture();
    with_trained(root.path(), |context| {
        run(context, &[]).unwrap();
        let export = context.run.manifest("export").unwrap().unwrap().summary;
        let lines = export["launch"].as_array().unwrap().iter();
        let lines = lines.map(|line| line.as_str().unwrap());
        let (remarks, commands): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with('#'));
        // Of each engine there is a command and what it drafts above temperature 0.
        assert_eq!((commands.len(), remarks.len()), (2, 2));
        assert_eq!(export["tau_trained"], export["tau_exported"]);
        let report = fs::read_to_string(context.folder("evaluate").join("report.json")).unwrap();
        let report = spectrain_eval::Report::from_json(&report).unwrap();
        // Greedy, drawn, and the likeliest tokens above temperature 0.
        assert_eq!(report.settings.len(), 3);
        assert_eq!(
            (
                report.lossless.greedy_mismatches,
                report.drafter.kind.as_str()
            ),
            (0, "eagle3")
        );
        assert!(report.lossless.greedy_tokens > 0 && report.lossless.sampling.is_some());
        assert_eq!(report.recipe["evaluate"]["prompts"], 2);
        let shown = report::of_run(context.run).unwrap();
        assert!(shown.contains("T=0, greedy, chain"), "{shown}");
        let folder = context.run.stage("evaluate");
        let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("T=0, greedy, chain"));
        // What was found is in the folder, which is the same drafter as before.
        let model = ModelFolder::open(context.run.path().join(EXPORTED)).unwrap();
        assert!(seal::check(&model).unwrap());
        let found = &seal::provenance(model.config()).unwrap()["report"];
        assert_eq!(found["drafter"]["sha256"], report.drafter.sha256);
        assert_eq!(found["settings"].as_array().unwrap().len(), 3);
        let judged = STAGES
            .iter()
            .find(|stage| stage.name == "evaluate")
            .unwrap();
        assert!(matches!(
            context.state(judged).unwrap(),
            StageState::Done(_)
        ));
    });
}

#[test]
fn the_commands_of_a_run_that_has_moved_name_where_it_is() {
    let root = fixture();
    let first = with_trained(root.path(), |context| {
        run(context, &["export".into()]).unwrap();
        commands_again(context).unwrap()
    });
    assert!(first.contains("runs/a/export/drafter\"") || first.contains("runs/a/export/drafter "));
    let at = |name: &str| root.path().join(name);
    fs::rename(at("runs/a"), at("runs/moved")).unwrap();
    fs::rename(at("target"), at("renamed")).unwrap();
    let target = format!("target.model={:?}", at("renamed"));
    let again = with_context(
        root.path(),
        &[
            "name=moved",
            &target,
            "evaluate.draft_lengths=[2]",
            "export.dtype=f32",
        ],
        |context| commands_again(context).unwrap(),
    );
    let longer = with_context(
        root.path(),
        &[
            "name=moved",
            &target,
            "evaluate.draft_lengths=[3]",
            "export.dtype=f32",
        ],
        |context| commands_again(context).unwrap(),
    );
    let drafts = |text: &str, length: usize| {
        let given = format!("\"num_speculative_tokens\":{length}");
        text.matches(&given).count()
    };
    assert!(drafts(&first, 2) > 0, "{first}");
    let found = [2, 3].map(|length| drafts(&longer, length));
    assert_eq!(found, [0, drafts(&first, 2)], "{longer}");
    let path = |name: &str| at(name).display().to_string();
    let expected = first.replace(&path("runs/a"), &path("runs/moved"));
    assert_eq!(again, expected.replace(&path("target"), &path("renamed")));
}

#[test]
fn a_folder_that_names_the_target_is_written_anew_where_that_has_another_name() {
    let export = STAGES.iter().find(|stage| stage.name == "export").unwrap();
    for (to, is_done) in [("vllm", true), ("speculators", false)] {
        let root = fixture();
        let to = format!("export.to=[{to:?}]");
        let settings = ["evaluate.draft_lengths=[2]", "export.dtype=f32", &to];
        with_trained(root.path(), |_| ());
        with_context(root.path(), &settings, |context| {
            run(context, &["export".into()]).unwrap();
            assert!(matches!(
                context.state(export).unwrap(),
                StageState::Done(_)
            ));
        });
        let renamed = root.path().join("renamed");
        fs::rename(root.path().join("target"), &renamed).unwrap();
        let target = format!("target.model={renamed:?}");
        let settings = [&settings[..], &[&target]].concat();
        with_context(root.path(), &settings, |context| {
            let state = context.state(export).unwrap();
            assert_eq!(
                matches!(state, StageState::Done(_)),
                is_done,
                "{to}: {state:?}"
            );
        });
    }
}

#[test]
fn the_other_commands_take_what_a_run_has_left() {
    let root = fixture();
    with_trained(root.path(), |context| {
        run(context, &["export".into()]).unwrap()
    });
    // In capitals: a path within the folder of the test.
    let commands = [
        "evaluate --target TARGET --drafter RUNS/A/EXPORT/DRAFTER --prompts EVAL.JSONL --count 1 --temperature 0 \
         --draft-length 3 --max-new-tokens 5 --out JUDGED",
        "generate --target TARGET --drafter RUNS/A/EXPORT/DRAFTER --prompt count --max-new-tokens 5",
        "generate --target TARGET --prompt count --max-new-tokens 5 --temperature 1",
        "export a --runs RUNS --to vllm --out EXPORTED",
        "data prepare --target TARGET --data EVAL.JSONL --out TOKENS",
        "data lint --target TARGET --train EVAL.JSONL",
    ];
    let path = |name: &str| root.path().join(name.to_lowercase()).display().to_string();
    let word = |word: &str| {
        let is_path = word.starts_with(|c: char| c.is_ascii_uppercase());
        if is_path { path(word) } else { word.to_owned() }
    };
    for words in commands {
        let parsed = std::iter::once("spectrain".to_owned()).chain(words.split(' ').map(word));
        crate::cli::Arguments::try_parse_from(parsed)
            .unwrap()
            .run()
            .unwrap_or_else(|error| panic!("{words:?}: {error:#}"));
    }
    let report = fs::read_to_string(root.path().join("judged/report.json")).unwrap();
    assert_eq!(
        spectrain_eval::Report::from_json(&report)
            .unwrap()
            .settings
            .len(),
        1
    );
    assert!(root.path().join("exported/config.json").exists());
    assert_eq!(
        TokenShards::open(root.path().join("tokens")).unwrap().len(),
        3
    );
}

/// The stage of this name.
fn stage(name: &str) -> &'static stage::Stage {
    STAGES.iter().find(|stage| stage.name == name).unwrap()
}

#[test]
fn other_stop_tokens_change_what_is_trained_and_other_generation_settings_do_not() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let state = |generation: serde_json::Value| {
            let file = root.path().join("target/generation_config.json");
            fs::write(file, generation.to_string()).unwrap();
            context.state(stage(TRAIN)).unwrap()
        };
        assert!(matches!(
            state(json!({"temperature": 0.5})),
            StageState::Done(_)
        ));
        let what = vec!["the list of stop tokens has changed".to_owned()];
        assert_eq!(
            state(json!({"eos_token_id": [3]})),
            StageState::Changed(what)
        );
    });
}

#[test]
fn the_targets_own_sampling_is_an_input_of_answers_that_leave_it_open() {
    let root = fixture();
    let found = |overrides: &[&str], temperature: f64| {
        let file = root.path().join("target/generation_config.json");
        fs::write(file, json!({"temperature": temperature}).to_string()).unwrap();
        with_context(root.path(), overrides, |context| {
            context.inputs(stage("regenerate")).unwrap()
        })
    };
    let open = ["regenerate.seed=1"];
    assert_ne!(found(&open, 0.5), found(&open, 0.6));
    let given = ["regenerate.temperature=1.0"];
    assert_eq!(found(&given, 0.5), found(&given, 0.6));
    // Servers are sent neither this nor where the target stops.
    let served = ["regenerate.server=\"http://localhost:1\""];
    let inputs = found(&served, 0.5);
    assert_eq!(inputs, found(&served, 0.6));
    for name in [OWN_SAMPLING, STOP_TOKENS] {
        assert!(found(&open, 0.5).contains_key(name), "{name}");
        assert!(!inputs.contains_key(name), "{name}");
    }
}

#[test]
fn the_model_that_training_starts_from_is_known_by_its_weights() {
    let root = fixture();
    let small = root.path().join("small");
    write_target(&small, 300);
    let text = recipe_text(root.path()).replace("eagle3", "distillspec");
    let text = text.replace("name = \"a\"", "name = \"small\"");
    let text = format!("{text}drafter.model = {small:?}\n");
    let recipe = recipe::read(&text, &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        let weights = |bytes: &str| {
            fs::write(small.join("model.safetensors"), bytes).unwrap();
            context.model_sha256().unwrap().unwrap()
        };
        assert_ne!(weights("trained"), weights("trained anew"));
        assert_eq!(weights("trained"), weights("trained"));
    });
    with_context(root.path(), &[], |context| {
        assert_eq!(context.model_sha256().unwrap(), None);
    });
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

#[test]
fn a_training_that_goes_on_keeps_the_type_that_it_has_begun_in() {
    let root = fixture();
    prepare(root.path(), &[]).unwrap();
    with_context(root.path(), &[], |context| {
        let start = Start {
            settings: context.settings(stage(TRAIN)).unwrap(),
            inputs: context.inputs(stage(TRAIN)).unwrap(),
            ..Start::default()
        };
        context.run.start(TRAIN, start).unwrap();
        state::save_state(&context.folder(TRAIN), 3, &json!({}), &[]).unwrap();
        on_gpu(context, |context| {
            let refused = run(context, &[TRAIN.to_owned()]).unwrap_err();
            let refused = format!("{refused:#}");
            for part in [
                "`target.dtype`: expected `f32`",
                "`bf16` on `cuda:0`",
                "`--set target.dtype=f32` goes on",
            ] {
                assert!(refused.contains(part), "no `{part}`: {refused}");
            }
        });
    });
    // As is advised.
    with_context(root.path(), &["target.dtype=f32"], |context| {
        let state = context.state(stage(TRAIN)).unwrap();
        assert_eq!(state, StageState::Interrupted);
    });
    with_context(root.path(), &["target.dtype=bf16"], |context| {
        on_gpu(context, |context| {
            let state = context.state(stage(TRAIN)).unwrap();
            assert!(matches!(state, StageState::Changed(_)), "{state:?}");
        });
    });
}

#[test]
fn a_training_that_has_nothing_to_measure_is_refused() {
    let root = fixture();
    with_trained(root.path(), |_| ());
    let few = [
        "name=b",
        "train.steps=2",
        "train.warmup_steps=1",
        "train.validate_every=2",
        "train.validate_samples=0",
    ];
    with_context(root.path(), &few, |context| {
        run(context, &["prepare".to_owned()]).unwrap();
        // As where no held-out text can be asked for.
        fs::write(context.folder("prepare").join("prompts.json"), "[]").unwrap();
        fs::create_dir_all(context.folder(TRAIN)).unwrap();
        let train = STAGES.iter().find(|stage| stage.name == TRAIN).unwrap();
        let refused = (train.run)(context, TRAIN).unwrap_err().to_string();
        let told = "key `train.validate_samples`: expected at least 1, as validations of the stage `train` do not count τ";
        assert!(refused.starts_with(told), "{refused}");
        assert!(
            refused.ends_with("there is no held-out prompt; found 0"),
            "{refused}"
        );
    });
}

#[test]
fn what_the_target_says_of_the_text_is_told_for_every_recipe_in_its_first_stage() {
    let root = fixture();
    let at = |name: &str| root.path().join(name);
    // With layers enough for every kind of drafter.
    let config = json!({
        "model_type": "qwen3", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64,
    });
    fs::write(at("target/config.json"), config.to_string()).unwrap();
    with_trained(root.path(), |_| ());
    let mut all = Vec::new();
    for kind in RECIPES {
        let name = format!("{:?}", kind.name);
        let text = recipe_text(root.path()).replace("\"eagle3\"", &name);
        let text = text.replace("\"a\"", &name);
        let eval = format!("data.eval = {:?}\n", at("eval.jsonl"));
        let recipe = recipe::read(&(text + &eval + kind.trials[0]), &[]).unwrap();
        with_recipe(root.path(), &recipe, |context| {
            run(context, &["prepare".to_owned()]).unwrap();
            let spec = target::spec(&context.target_folder().unwrap()).unwrap();
            for (place, stage) in recipe.training_stages().into_iter().enumerate() {
                let capture = recipe.method.capture(&spec).unwrap();
                let setup = Setup::new(context, stage, capture).unwrap();
                let text = setup.text(context).unwrap();
                let found = text.map(|mut text| text.found().unwrap());
                assert_eq!(found.is_some(), place == 0, "{stage} of {name}");
                all.extend(found);
            }
        });
    }
    assert_eq!(all.len(), RECIPES.len());
    assert!(all[0].tokens > 0, "{:?}", all[0]);
    for found in &all {
        assert_eq!(found.tokens, all[0].tokens);
        assert!((0.0..=1.0).contains(&found.likeliest), "{found:?}");
        assert!(found.excess_surprise.is_finite(), "{found:?}");
    }
}

#[test]
fn the_check_of_the_text_and_the_training_open_stored_features_once() {
    let root = fixture();
    with_trained(root.path(), |_| ());
    let stored = ["name=b", "features.mode=stored"];
    with_context(root.path(), &stored, |context| {
        run(context, &["prepare".to_owned(), "features".to_owned()]).unwrap();
        let spec = target::spec(&context.target_folder().unwrap()).unwrap();
        let capture = context.recipe.method.capture(&spec).unwrap();
        let setup = Setup::new(context, TRAIN, capture).unwrap();
        let mut text = setup.text(context).unwrap().unwrap();
        // What is open stays readable, and nothing is there to be opened again.
        fs::remove_dir_all(context.folder("features")).unwrap();
        setup.source(context).unwrap();
        assert!(text.found().unwrap().tokens > 0);
    });
}

#[test]
fn a_text_that_the_drafter_writes_anew_in_every_batch_is_not_looked_at() {
    let root = fixture();
    with_trained(root.path(), |_| ());
    let text = recipe_text(root.path()).replace("\"eagle3\"", "\"distillspec\"");
    let eval = format!("data.eval = {:?}\n", root.path().join("eval.jsonl"));
    let mut kinds = RECIPES.iter();
    let kind = kinds.find(|kind| kind.name == "distillspec").unwrap();
    for (fraction, is_looked_at) in [("0.5", true), ("1.0", false)] {
        let name = format!("name=on-policy-{fraction}");
        let fraction = format!("objective.on_policy.fraction={fraction}");
        let text = text.clone() + &eval + kind.trials[0];
        let recipe = recipe::read(&text, &[name, fraction]).unwrap();
        with_recipe(root.path(), &recipe, |context| {
            run(context, &["prepare".to_owned()]).unwrap();
            let spec = target::spec(&context.target_folder().unwrap()).unwrap();
            let capture = recipe.method.capture(&spec).unwrap();
            let setup = Setup::new(context, TRAIN, capture).unwrap();
            assert_eq!(setup.text(context).unwrap().is_some(), is_looked_at);
        });
    }
}

#[test]
fn a_run_with_nobody_to_borrow_from_reads_nothing_for_it() {
    let root = fixture();
    let mut writing = fs::File::options();
    let train = writing.write(true).open(root.path().join("train.jsonl"));
    let train = train.unwrap();
    // Just large enough for its hash to be remembered.
    train.set_len((4 << 20) + 1).unwrap();
    with_context(root.path(), &[], |context| {
        let remembered = || context.run.path().join(HASHES).exists();
        borrow(context, &[]);
        borrow(context, &[context.run.path().to_owned()]);
        assert!(!remembered());
        borrow(context, &[root.path().join("runs/b")]);
        assert!(remembered());
    });
}

#[test]
fn features_go_on_only_in_the_type_that_they_have_begun_in() {
    let root = fixture();
    let stored = ["features.mode=stored"];
    prepare(root.path(), &stored).unwrap();
    with_context(root.path(), &stored, |context| {
        let features = stage("features");
        let start = Start {
            settings: context.settings(features).unwrap(),
            inputs: context.inputs(features).unwrap(),
            ..Start::default()
        };
        context.run.start("features", start).unwrap();
        let check = |context: &StageContext| in_order::check_type(context, features).unwrap();
        // Nothing is written yet.
        on_gpu(context, check);
        fs::write(context.folder("features").join("features.json"), "{}").unwrap();
        on_gpu(context, |context| {
            let refused = run(context, &["features".to_owned()]).unwrap_err();
            let refused = format!("{refused:#}");
            let told = "`target.dtype`: expected `f32`, in which the stage `features` has begun, found \"auto\"";
            assert!(refused.contains(told), "{refused}");
        });
        // What is only joined may have been computed anywhere; a folder from which all parts have gone holds none.
        let parts = context.run.path().join("features-parts");
        fs::create_dir(&parts).unwrap();
        on_gpu(context, |context| {
            in_order::check_type(context, features).unwrap_err();
        });
        fs::create_dir(parts.join("part-00001-of-00002")).unwrap();
        on_gpu(context, check);
    });
}

#[test]
fn a_training_reads_features_that_were_made_elsewhere_and_imported_answers() {
    let root = fixture();
    let files = ["answers/T=0", "features", "features/held_out"];
    let inputs = |overrides: &[&str]| -> Vec<String> {
        with_context(root.path(), overrides, |context| {
            for folder in files {
                let folder = context.run.path().join(folder);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("features.json"), "{}").unwrap();
            }
            let answers = stage::Temperatures::Validated;
            let mut found = context.stored_features().unwrap();
            found.extend(context.stored_answers(answers).unwrap());
            found.into_keys().collect()
        })
    };
    let [answers, features, held_out] = files.map(|folder| format!("`{folder}/features.json`"));
    let cases: [(&[&str], &[&String]); 6] = [
        (&[], &[]),
        (&["features.mode=stored"], &[]),
        (
            &["features.mode=stored", "features.from=[\"own\"]"],
            &[&features],
        ),
        (&["features.mode=served"], &[&features, &held_out]),
        (&["features.mode=streamed"], &[&held_out]),
        (
            &["features.mode=imported"],
            &[&answers, &features, &held_out],
        ),
    ];
    for (overrides, expected) in cases {
        let found = inputs(overrides);
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{overrides:?}");
    }
}

#[test]
fn features_by_another_path_are_the_same_until_they_are_others() {
    let root = fixture();
    let own = root.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("features.json"), "{}").unwrap();
    let from = |path: &str| {
        let folder = root.path().join(path);
        format!("features.from=[{folder:?}]")
    };
    let [own_path, other_path] = ["own", "target/../own"].map(from);
    let features = stage("features");
    prepare(root.path(), &["features.mode=stored"]).unwrap();
    with_context(
        root.path(),
        &["features.mode=stored", &own_path],
        |context| {
            let start = Start {
                settings: context.settings(features).unwrap(),
                inputs: context.inputs(features).unwrap(),
                ..Start::default()
            };
            context.run.start("features", start).unwrap();
        },
    );
    let state = |from: &str| {
        with_context(root.path(), &["features.mode=stored", from], |context| {
            context.state(features).unwrap()
        })
    };
    assert_eq!(state(&other_path), StageState::Interrupted);
    fs::write(own.join("features.json"), "{ }").unwrap();
    for path in [own_path, other_path] {
        let state = state(&path);
        assert!(matches!(state, StageState::Changed(_)), "{state:?}");
    }
}

#[test]
fn a_finished_training_does_not_need_the_model_that_it_started_from() {
    let root = fixture();
    let small = root.path().join("small");
    write_target(&small, 300);
    fs::write(small.join("model.safetensors"), "weights").unwrap();
    let text = recipe_text(root.path()).replace("eagle3", "distillspec");
    let eval = root.path().join("eval.jsonl");
    let text = format!("{text}data.eval = {eval:?}\ndrafter.model = {small:?}\n");
    let recipe = recipe::read(&text, &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        run(context, &["prepare".into()]).unwrap();
        let start = Start {
            settings: context.settings(stage(TRAIN)).unwrap(),
            inputs: context.inputs(stage(TRAIN)).unwrap(),
            ..Start::default()
        };
        let manifest = context.run.start(TRAIN, start).unwrap();
        fs::remove_dir_all(&small).unwrap();
        let needed = format!("{:#}", context.state(stage(TRAIN)).unwrap_err());
        assert!(needed.contains("`drafter.model`"), "{needed}");
        context.run.finish(manifest, 1.0, json!({})).unwrap();
        let state = context.state(stage(TRAIN)).unwrap();
        assert!(matches!(state, StageState::Done(_)), "{state:?}");
    });
}
