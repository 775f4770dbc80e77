//! Features that others captured, and ours for them.
use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Value, json};
use spectrain_checkpoints::folder::read_safetensors;
use spectrain_checkpoints::{DType, NamedTensor, write_safetensors};
use spectrain_data::features::FeatureShards;

use crate::own_texts::{OwnTexts, multiply_head, write_deepspec};
use crate::workspace::{Files, Outcome, RECIPE, Workspace};

/// Stored features of the target's own texts in `runs/run/features`, and the same in speculators' layout in `theirs`.
pub fn workspace() -> Workspace {
    workspace_of(&OwnTexts::default())
}

fn workspace_of(texts: &OwnTexts) -> Workspace {
    let workspace = texts.workspace();
    workspace
        .run_line("recipe recipe.toml --set features.mode=stored --stage prepare --stage features")
        .succeeded();
    let told = workspace
        .run_line("features export run --target target --out theirs")
        .succeeded();
    assert!(
        told.stdout.contains("--target-layer-ids 2 3`\n"),
        "{told:#?}"
    );
    workspace
}

fn import(workspace: &Workspace, from: &str, more: &str) -> Outcome {
    let _ = std::fs::remove_dir_all(workspace.path("ours"));
    workspace.run_line(format!(
        "features import {from} --target target --out ours{more}"
    ))
}

/// Tokens, mask and states of every sample.
type Samples = Vec<(Vec<u32>, Vec<u8>, Vec<u16>, Vec<u16>)>;

fn samples(workspace: &Workspace, folder: &str) -> Samples {
    let shards = FeatureShards::open(workspace.path(folder)).unwrap();
    let all = (0..shards.len()).map(|sample| shards.get(sample));
    all.map(|of| {
        (
            of.tokens.into(),
            of.loss_mask.into(),
            of.captured.bits().into_owned(),
            of.last.bits().into_owned(),
        )
    })
    .collect()
}

/// Changes every file of states.
fn change(workspace: &Workspace, mut change: impl FnMut(&mut Vec<NamedTensor>)) {
    let folder = workspace.path("theirs/hidden_states");
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let mut tensors = read_safetensors(&path).unwrap();
        change(&mut tensors);
        write_safetensors(&path, &tensors, &BTreeMap::new()).unwrap();
    }
}

fn tensor<'a>(tensors: &'a mut [NamedTensor], name: &str) -> &'a mut NamedTensor {
    tensors
        .iter_mut()
        .find(|tensor| tensor.name == name)
        .unwrap()
}

/// Drops the exact states after the norm, as if nobody here had written the files.
fn forget(tensors: &mut Vec<NamedTensor>) {
    tensors.retain(|tensor| tensor.name != "last_hidden_state_normed");
}

/// Changes the rows `[slots, d_model]` of a file's states.
fn rows(tensors: &mut [NamedTensor], change: impl Fn(usize, &mut [Vec<f32>])) {
    let states = tensor(tensors, "hidden_states");
    let [_, slots, d_model] = states.shape[..] else {
        panic!("{:?}", states.shape)
    };
    let values = states.to_f32().unwrap();
    let rows = values.chunks(slots * d_model).enumerate();
    let changed = rows.flat_map(|(number, row)| {
        let mut row: Vec<Vec<f32>> = row.chunks(d_model).map(<[f32]>::to_vec).collect();
        change(number, &mut row);
        row.concat()
    });
    let changed = NamedTensor::from_f32("hidden_states", states.shape.clone(), changed.collect());
    *states = changed.cast(DType::BF16).unwrap();
}

#[test]
fn exported_features_come_back_to_the_last_bit() {
    let workspace = workspace();
    let told = import(&workspace, "theirs", " --check-layers").succeeded();
    assert!(told.stdout.contains("before the final norm"), "{told:#?}");
    assert!(
        told.stdout.contains("equal to what the target computes"),
        "{told:#?}"
    );
    assert_eq!(
        samples(&workspace, "ours"),
        samples(&workspace, "runs/run/features")
    );
    let [own, came] = ["runs/run/features", "ours"]
        .map(|folder| workspace.json(&format!("{folder}/features.json"))["header"].clone());
    for key in ["target_sha256", "captured_layers", "d_model"] {
        assert_eq!(own[key], came[key], "{key}");
    }
    // An import that was done is not done again, and drafters are judged by what came.
    let before = workspace.bytes("ours/features-00000.arrow");
    workspace
        .run_line("features import theirs --target target --out ours")
        .succeeded();
    assert_eq!(workspace.bytes("ours/features-00000.arrow"), before);
    let refused = workspace.run_line("features export run --target target --out theirs");
    refused.failed(&["`theirs` exists already"]);
}

#[test]
fn what_the_connector_leaves_is_found_before_the_norm_and_after_it() {
    let workspace = workspace();
    let own = samples(&workspace, "runs/run/features");
    change(&workspace, forget);
    import(&workspace, "theirs", "").succeeded();
    let came = samples(&workspace, "ours");
    for (own, came) in own.iter().zip(&came) {
        assert_eq!((&own.0, &own.1, &own.2), (&came.0, &came.1, &came.2));
        let value = |bits: &u16| f32::from_bits(u32::from(*bits) << 16);
        let apart = own
            .3
            .iter()
            .zip(&came.3)
            .map(|(one, two)| (value(one), value(two)));
        for (own, came) in apart {
            assert!(
                (own - came).abs() <= 0.02 * own.abs() + 1e-3,
                "{own} {came}"
            );
        }
    }
    // The same states behind the norm, as SGLang hands them out, though the folder says nothing of it.
    write_deepspec(&workspace, "runs/run/features", "cache");
    let told = import(&workspace, "cache", " --check-layers").succeeded();
    assert!(told.stdout.contains("after the final norm"), "{told:#?}");
    assert_eq!(samples(&workspace, "ours"), own);
    let found = workspace.json("ours/import.json");
    assert_eq!(found["proof"]["last_state"], "after_norm");
    assert!(
        found["proof"]["as_long_as_normed"].as_f64().unwrap() > 0.95,
        "{found}"
    );
    assert_eq!(found["layout"], "DeepSpec's cache, version 2");
}

#[test]
fn the_last_slot_is_captured_too_where_its_id_is_given_twice() {
    let workspace = OwnTexts::default().workspace();
    let captured = "--set drafter.captured_layers=[1,5]";
    workspace
        .run_line(format!(
            "recipe recipe.toml --set features.mode=stored {captured} --stage prepare --stage features"
        ))
        .succeeded();
    workspace
        .run_line("features export run --target target --out theirs")
        .succeeded();
    std::fs::remove_file(workspace.path("theirs/layers.json")).unwrap();
    let own = samples(&workspace, "runs/run/features");
    // vLLM hands out no state twice: the output of the last layer, as it is, comes last.
    change(&workspace, |tensors| {
        forget(tensors);
        let states = tensor(tensors, "hidden_states");
        let [tokens, slots, d_model] = states.shape[..] else {
            panic!("{:?}", states.shape)
        };
        let slot = d_model * states.dtype.size();
        let rows = states.bytes.chunks(slots * slot);
        states.bytes = rows.flat_map(|row| row[..2 * slot].to_vec()).collect();
        states.shape = vec![tokens, 2, d_model];
    });
    import(&workspace, "theirs", " --layer-ids 2,6,6 --check-layers").succeeded();
    let came = samples(&workspace, "ours");
    let states =
        |samples: &Samples| -> Vec<_> { samples.iter().map(|sample| sample.2.clone()).collect() };
    assert_eq!(states(&came), states(&own));
    let header = &workspace.json("ours/features.json")["header"];
    assert_eq!(header["captured_layers"], json!([1, 5]));
    import(&workspace, "theirs", " --layer-ids 2,6").succeeded();
    let header = &workspace.json("ours/features.json")["header"];
    assert_eq!(header["captured_layers"], json!([1]));
    // Behind the norm it is no output of a layer.
    let (_, target) = workspace.contents("target");
    let norm = target
        .iter()
        .find(|tensor| tensor.name == "model.norm.weight");
    let norm = norm.unwrap().to_f32().unwrap();
    change(&workspace, |tensors| {
        rows(tensors, |_, row| through_the_norm(&norm, &mut row[1]));
    });
    import(&workspace, "theirs", " --layer-ids 2,6").succeeded();
    import(&workspace, "theirs", " --layer-ids 2,6,6")
        .failed(&["expected states before the final norm, found states after the final norm"]);
}

/// Sends a state through the final norm, whose weight is given.
fn through_the_norm(norm: &[f32], state: &mut [f32]) {
    let square: f32 = state.iter().map(|value| value * value).sum();
    let length = (square / state.len() as f32).sqrt();
    state
        .iter_mut()
        .zip(norm)
        .for_each(|(value, norm)| *value *= norm / length);
}

/// Changes a token's states: those of each slot; given the norm's weight and the token's place.
type Wrong = fn(&[f32], usize, &mut [Vec<f32>]);

/// States that are not the target's, and words of what is said of them.
fn wrong_states() -> [(Wrong, &'static str); 6] {
    [
        (|_, _, row| row[1].fill(0.0), "all 0"),
        (
            |_, at, row| row[0][0] = if at == 2 { f32::NAN } else { row[0][0] },
            "that is none",
        ),
        (
            |norm, _, row| {
                for _ in 0..2 {
                    through_the_norm(norm, &mut row[2]);
                }
            },
            "went through the final norm twice",
        ),
        (
            |_, _, row| row.rotate_left(1),
            "slot 1 of 3 in place of the last one",
        ),
        (
            |_, at, row| {
                row[2]
                    .iter_mut()
                    .for_each(|value| *value *= 1.0 + 1e7 * f32::from(at == 3))
            },
            "norms of similar size",
        ),
        (|_, _, row| row[2].reverse(), "is not the target's"),
    ]
}

/// Puts back what was changed.
fn restore(workspace: &Workspace, whole: &Files) {
    for (name, bytes) in whole {
        std::fs::write(workspace.path("theirs/hidden_states").join(name), bytes).unwrap();
    }
}

#[test]
fn states_that_are_not_the_targets_are_refused_with_what_fits_better() {
    let norm = |workspace: &Workspace| -> Vec<f32> {
        let (_, tensors) = workspace.contents("target");
        let norm = tensors
            .iter()
            .find(|tensor| tensor.name == "model.norm.weight");
        norm.unwrap().to_f32().unwrap()
    };
    let workspace = workspace();
    let weight = norm(&workspace);
    let whole = workspace.files("theirs/hidden_states");
    for (wrong, words) in wrong_states() {
        change(&workspace, |tensors| {
            forget(tensors);
            rows(tensors, |at, row| wrong(&weight, at, row));
        });
        let outcome = import(&workspace, "theirs", "").failed(&[words]);
        assert!(!workspace.path("ours").exists(), "{outcome:#?}");
        restore(&workspace, &whole);
    }
}

#[test]
fn states_of_other_places_layers_and_models_are_refused() {
    let workspace = workspace();
    let whole = workspace.files("theirs/hidden_states");
    // One token late or early.
    for late in [true, false] {
        change(&workspace, |tensors| {
            forget(tensors);
            let states = tensor(tensors, "hidden_states");
            let row = states.bytes.len() / states.shape[0];
            if late {
                states.bytes.rotate_right(row);
            } else {
                states.bytes.rotate_left(row);
            }
        });
        let word = if late {
            "one token late"
        } else {
            "one token early"
        };
        import(&workspace, "theirs", "").failed(&[word]);
        restore(&workspace, &whole);
    }
    // Layers that are others than is said, which only the target can tell.
    let layers = workspace.path("theirs/layers.json");
    std::fs::write(&layers, r#"{"layer_ids": [2, 4, 6]}"#).unwrap();
    import(&workspace, "theirs", "").succeeded();
    import(&workspace, "theirs", " --check-layers")
        .failed(&["the output of layer 2 (id 3) is closest"]);
    workspace.write_target_of("other", 99, |_| {});
    std::fs::write(&layers, r#"{"layer_ids": [2, 3, 6]}"#).unwrap();
    change(&workspace, forget);
    let words = "features import theirs --target other --out ours2";
    workspace.run_line(words).failed(&["of another model"]);
}

#[test]
fn logits_that_are_much_too_large_for_the_texts_are_told() {
    const WARNING: &str = "lacks a factor of its logits";
    let workspace = workspace_of(&OwnTexts {
        temperature: 1.0,
        sure: 8.0,
        ..OwnTexts::default()
    });
    let told = import(&workspace, "theirs", "").succeeded();
    assert!(!told.stdout.contains(WARNING), "{told:#?}");
    multiply_head(&workspace, 8.0);
    let told = import(&workspace, "theirs", "").succeeded();
    assert!(
        told.stdout.contains("warning: ") && told.stdout.contains(WARNING),
        "{told:#?}"
    );
    let found = workspace.json("ours/import.json");
    assert_eq!(found["proof"]["readings"][0]["sharpness"], 0.5);
}

#[test]
fn that_greedy_texts_do_not_tell_how_large_logits_are_is_said() {
    const UNKNOWN: &str = "not checked: whether the target's configuration lacks a factor";
    let workspace = workspace();
    for _ in 0..2 {
        let told = import(&workspace, "theirs", "").succeeded();
        assert!(told.stdout.contains(UNKNOWN), "{told:#?}");
        assert!(!told.stdout.contains("warning: "), "{told:#?}");
        multiply_head(&workspace, 8.0);
    }
}

#[test]
fn a_normed_state_beside_the_others_must_be_the_same() {
    let workspace = workspace();
    change(&workspace, |tensors| {
        let normed = tensor(tensors, "last_hidden_state_normed");
        normed.bytes.rotate_left(2);
    });
    import(&workspace, "theirs", "").failed(&[
        "sample 0",
        "last_hidden_state_normed",
        "which the norm makes",
    ]);
}

#[test]
fn what_is_not_said_is_asked_for() {
    let workspace = workspace();
    let own = samples(&workspace, "runs/run/features");
    std::fs::remove_file(workspace.path("theirs/layers.json")).unwrap();
    import(&workspace, "theirs", "").failed(&[
        "--layer-ids",
        "its 3 slots",
        "the last of which is 6",
    ]);
    import(&workspace, "theirs", " --layer-ids 2,3,5").failed(&["id 6, found id 5"]);
    import(&workspace, "theirs", " --layer-ids 2,3,6").succeeded();
    assert_eq!(samples(&workspace, "ours"), own);
    // Files alone have no loss masks.
    let states = "theirs/hidden_states --layer-ids 2,3,6";
    import(&workspace, states, "").failed(&["sample 0", "--rows DIR", "--mask all"]);
    import(&workspace, states, " --mask all").succeeded();
    assert!(
        samples(&workspace, "ours")
            .iter()
            .all(|sample| sample.1.iter().all(|bit| *bit == 1))
    );
    import(&workspace, states, " --rows theirs").succeeded();
    assert_eq!(samples(&workspace, "ours"), own);
    assert_eq!(workspace.json("ours/import.json")["without_mask"], json!(0));
    // A token that the target does not have.
    change(&workspace, |tensors| {
        let ids = tensor(tensors, "token_ids");
        ids.bytes[..8].copy_from_slice(&900i64.to_le_bytes());
    });
    import(&workspace, states, " --mask all").failed(&["sample 0", "tokens below 300, found 900"]);
    import(&workspace, "theirs --layer-ids 2,3,6", "").failed(&["`input_ids` in row 0"]);
    import(&workspace, "runs", "").failed(&["none of these"]);
    let there =
        workspace.run_line("features import theirs --target target --out runs --layer-ids 2,3,6");
    there.failed(&["`runs` exists already"]);
    workspace
        .run_line("features export train.jsonl --target target --out x")
        .failed(&["no `features.json`"]);
}

#[test]
fn drafters_are_trained_and_judged_by_imported_texts() {
    let workspace = workspace();
    import(&workspace, "theirs", "").succeeded();
    let recipe = RECIPE.replace("eval = \"eval.jsonl\"\n", "");
    let recipe = recipe.replace("\"train.jsonl\"", "\"ours/tokens.jsonl\"");
    workspace.write("imported.toml", recipe.replace("\"run\"", "\"imported\""));
    let set = "--set features.mode=imported --set features.imported=ours";
    workspace
        .run_line(format!("recipe imported.toml {set}"))
        .succeeded();
    let summary = workspace.json("runs/imported/features/manifest.json")["summary"].clone();
    assert_eq!(summary, json!({"samples": 8, "held_out": 2}));
    let trained = samples(&workspace, "runs/imported/features");
    let own = samples(&workspace, "ours");
    assert!(trained.iter().all(|sample| own.contains(sample)));
    let report = workspace.json("runs/imported/evaluate/report.json");
    assert_eq!(report["texts"][0]["temperature"], json!(0.0));
    assert!(report["settings"][0]["overall"]["tau"].as_f64().unwrap() >= 1.0);
    // A held-out text in which nothing tells what the target was asked is left out, also of what is known of the prompts.
    let rows = workspace.text("ours/tokens.jsonl");
    let mut rows = rows.lines().map(str::to_owned);
    let [whole, other] = [rows.next(), rows.next()].map(Option::unwrap);
    let mut whole: Value = serde_json::from_str(&whole).unwrap();
    let mask = whole["loss_mask"].as_array_mut().unwrap();
    mask[1..].fill(json!(1));
    workspace.write("mixed.jsonl", format!("{whole}\n{other}\n"));
    let outcome = workspace
        .run_line(format!(
            "recipe imported.toml --set name=mixed --set data.eval=mixed.jsonl {set}"
        ))
        .succeeded();
    let told = "evaluate: texts of `mixed` with every token in the loss mask";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
    let report = workspace.json("runs/mixed/evaluate/report.json");
    assert_eq!(report["texts"][0]["conversations"], json!(1));
    assert_eq!(report["known_prompts"], json!({"known": 1, "of": 1}));
    assert_eq!(report["choosing_prompts"], json!({"chose": 1, "of": 1}));
    // Texts that were not imported, and keys that do not go together.
    workspace
        .run_line(format!("recipe recipe.toml --set name=other {set}"))
        .failed(&["sample 0 of `data.eval`", "one of the imported texts"]);
    let words = "recipe imported.toml --set features.mode=imported --plan";
    workspace
        .run_line(words)
        .misused(&["`features.imported` is missing"]);
    let words = "recipe imported.toml --set features.imported=ours --plan";
    workspace
        .run_line(words)
        .misused(&["`features.imported`", "\"imported\""]);
}

#[test]
fn where_every_token_is_trained_on_imported_masks_tell_the_answers() {
    let workspace = workspace();
    import(&workspace, "theirs", "").succeeded();
    let own = samples(&workspace, "ours");
    let recipe = RECIPE.replace("eval = \"eval.jsonl\"\n", "mask = \"all\"\n");
    let recipe = recipe.replace("\"train.jsonl\"", "\"ours/tokens.jsonl\"");
    workspace.write("imported.toml", recipe.replace("\"run\"", "\"imported\""));
    let words = "recipe imported.toml --set features.mode=imported --set features.imported=ours \
                 --stage prepare --stage features --stage answers";
    workspace.run_line(words).succeeded();
    let trained = samples(&workspace, "runs/imported/features");
    let is_whole = |sample: &(_, Vec<u8>, _, _)| sample.1.iter().all(|bit| *bit == 1);
    assert!(trained.iter().all(is_whole));
    let answers = samples(&workspace, "runs/imported/answers/T=0");
    assert!(answers.len() == 2 && answers.iter().all(|answer| own.contains(answer)));
    // Earlier versions wrote other masks, and did not record which.
    let manifest = "runs/imported/answers/manifest.json";
    let mut earlier = workspace.json(manifest);
    let inputs = earlier["inputs"].as_object_mut().unwrap();
    inputs.remove("the loss mask of imported texts").unwrap();
    // With it the manifest would be one that was changed.
    earlier.as_object_mut().unwrap().remove("sha256");
    workspace.write(manifest, earlier.to_string());
    let again = workspace.run_line(words).succeeded();
    for told in [
        "features: done before",
        "answers: starts over: the loss mask of imported texts is a new input",
    ] {
        assert!(again.stderr.contains(told), "no `{told}`: {again:#?}");
    }
    let again = workspace.run_line(words).succeeded();
    assert!(again.stderr.contains("answers: done before"), "{again:#?}");
    // Where no mask tells an answer, there is nothing to judge drafters on.
    let states = "theirs/hidden_states --layer-ids 2,3,6";
    import(&workspace, states, " --mask all").succeeded();
    let other = words.replace(
        "imported.toml",
        "imported.toml --set name=own --set data.mask=assistant",
    );
    for words in [words, &other] {
        let refused =
            "the held-out rows of `data.train` (`data.eval` can name others): it holds no prompt";
        workspace.run_line(words).failed(&[refused]);
    }
}

#[test]
fn an_import_that_was_stopped_goes_on() {
    let workspace = workspace();
    import(&workspace, "theirs", " --samples-per-shard 2").succeeded();
    let index = workspace.json("ours/features.json");
    let names = |index: &Value| index["shards"].as_array().unwrap().len();
    assert!(names(&index) > 3);
    let own = samples(&workspace, "ours");
    let last = names(&index) - 1;
    std::fs::remove_file(workspace.path(format!("ours/features-{last:05}.arrow"))).unwrap();
    let words = "features import theirs --target target --out ours --samples-per-shard 2";
    workspace.run_line(words).succeeded();
    assert_eq!(samples(&workspace, "ours"), own);
    assert!(Path::new(&workspace.path("ours/tokens.jsonl")).exists());
}

#[test]
fn an_import_of_other_states_of_the_same_texts_is_refused() {
    let workspace = workspace();
    let words = "features import theirs --target target --out ours --samples-per-shard 2";
    workspace.run_line(words).succeeded();
    let [whole, before] = ["theirs/hidden_states", "ours"].map(|folder| workspace.files(folder));
    // A layer that only the target could tell from the right one.
    change(&workspace, |tensors| {
        rows(tensors, |_, row| row[0].reverse())
    });
    let refused = [
        "`ours`: sample 0: expected the hidden states in `theirs`, found others of the same text",
        "choose another `--out`",
    ];
    workspace.run_line(words).failed(&refused);
    assert!(workspace.files("ours") == before, "nothing has changed");
    // Nor does an import go on with them that was stopped.
    std::fs::remove_file(workspace.path("ours/features-00001.arrow")).unwrap();
    workspace.run_line(words).failed(&refused);
    // Every sample counts.
    restore(&workspace, &whole);
    let (name, bytes) = whole.iter().next_back().unwrap();
    let path = workspace.path("theirs/hidden_states").join(name);
    let mut tensors = read_safetensors(&path).unwrap();
    rows(&mut tensors, |_, row| row[1].reverse());
    write_safetensors(&path, &tensors, &BTreeMap::new()).unwrap();
    workspace
        .run_line("features import theirs --target target --out ours2")
        .succeeded();
    std::fs::write(&path, bytes).unwrap();
    workspace
        .run_line("features import theirs --target target --out ours2")
        .failed(&["`ours2`: sample ", "choose another `--out`"]);
    workspace.run_line(words).succeeded();
    let own = samples(&workspace, "runs/run/features");
    assert_eq!(samples(&workspace, "ours"), own);
}

#[test]
fn a_damaged_file_of_an_import_is_told_with_what_to_do_and_imported_again_alone() {
    let workspace = workspace();
    let words = "features import theirs --target target --out ours --samples-per-shard 2";
    workspace.run_line(words).succeeded();
    let whole = workspace.bytes("ours/features-00001.arrow");
    let second = workspace.path("ours/features-00001.arrow");
    let mut bytes = whole.clone();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&second, bytes).unwrap();
    workspace.run_line(words).failed(&[
        "features-00001.arrow`: sha256: expected",
        "remove this file, and the same command imports it again, or choose another `--out`",
    ]);
    let third = workspace.path("ours/features-00002.arrow");
    let when_written = || std::fs::metadata(&third).unwrap().modified().unwrap();
    let written = when_written();
    std::fs::remove_file(&second).unwrap();
    workspace.run_line(words).succeeded();
    assert!(workspace.bytes("ours/features-00001.arrow") == whole);
    assert_eq!(when_written(), written);
    std::fs::remove_file(workspace.path("ours/features.json")).unwrap();
    let told = workspace.run_line(words).succeeded();
    assert!(
        told.stderr.contains("features.json` is made anew of what"),
        "{told:#?}"
    );
    assert_eq!(when_written(), written);
    // Of one text less it is another folder.
    let (name, _) = workspace.files("theirs/hidden_states").pop_last().unwrap();
    std::fs::remove_file(workspace.path("theirs/hidden_states").join(name)).unwrap();
    workspace.run_line(words).failed(&[
        "`tokens_fingerprint`: expected",
        "choose another `--out`, or remove `ours` to import all anew",
    ]);
}

#[test]
fn two_imports_do_not_write_into_one_folder() {
    let workspace = workspace();
    std::fs::create_dir(workspace.path("ours")).unwrap();
    let lock = std::fs::File::create(workspace.path("ours/.lock")).unwrap();
    lock.lock().unwrap();
    let words = "features import theirs --target target --out ours";
    workspace
        .run_line(words)
        .failed(&["`ours` is in use by another run", "choose another `--out`"]);
    assert!(!workspace.path("ours/features.json").exists());
    drop(lock);
    workspace.run_line(words).succeeded();
}

#[test]
fn the_program_that_converts_pickles_is_printed_as_it_runs() {
    let workspace = Workspace::of("");
    let told = workspace.run_line("features converter").succeeded();
    assert!(
        told.stdout
            .starts_with("import gzip, io, pathlib, sys, torch\n"),
        "{told:#?}"
    );
    assert!(told.stdout.contains(
        "\n    x = torch.load(io.BytesIO(data), map_location=\"cpu\", weights_only=True)\n"
    ));
    workspace.write_target("target", crate::workspace::VOCAB);
    std::fs::create_dir(workspace.path("theirs")).unwrap();
    workspace.write("theirs/data_0.ckpt", "x");
    let words = "features import theirs --target target --out ours";
    let command = "`spectrain features converter > convert.py` and `python convert.py FROM TO`";
    workspace
        .run_line(words)
        .failed(&["`data_0.ckpt`, a pickle", command]);
}

#[test]
fn a_corrected_dump_trains_exports_and_judges_anew() {
    let workspace = workspace();
    let whole = workspace.files("theirs/hidden_states");
    // A layer that only the target could tell from the right one.
    change(&workspace, |tensors| {
        rows(tensors, |_, row| row[0].reverse())
    });
    import(&workspace, "theirs", "").succeeded();
    let recipe = RECIPE.replace("eval = \"eval.jsonl\"\n", "");
    let recipe = recipe.replace("\"train.jsonl\"", "\"ours/tokens.jsonl\"");
    workspace.write("imported.toml", recipe.replace("\"run\"", "\"imported\""));
    let words = "recipe imported.toml --set features.mode=imported --set features.imported=ours";
    workspace.run_line(words).succeeded();
    let weights = |folder: &str| {
        workspace.bytes(&format!("runs/imported/{folder}/drafter/model.safetensors"))
    };
    let wrong = weights("train");
    let again = workspace.run_line(words).succeeded();
    assert_eq!(again.stderr.matches("done before").count(), 6, "{again:#?}");

    restore(&workspace, &whole);
    import(&workspace, "theirs", "").succeeded();
    let told = workspace.run_line(words).succeeded();
    for part in [
        "prepare: done before",
        "features: starts over: the features `",
        "answers: starts over: the features `",
        "train: starts over: `answers/T=0/features.json` has changed, `features/features.json` has changed",
        "export: starts over: `answers/T=0/features.json` has changed",
        "evaluate: starts over: `answers/T=0/features.json` has changed",
    ] {
        assert!(told.stderr.contains(part), "no `{part}`: {told:#?}");
    }
    assert_ne!(weights("train"), wrong);
    assert_eq!(weights("train.old-1"), wrong, "it is kept");
    assert!(workspace.path("runs/imported/features.old-1").exists());
}
