//! Folders of targets and drafters that are broken: the program says which file and what of it, judges nothing by them, and
//! waits for nothing.
use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::{Value, json};
use spectrain_checkpoints::{ModelFolder, NamedTensor, write_folder};

use crate::golden::path;
use crate::workspace::{Outcome, Workspace};
use spectrain_models::device::test_device;

const DRAFTER: &str = "runs/run/export/drafter";
const WEIGHTS: &str = "model.safetensors";

/// A copy of a folder with its configuration and weights changed, as another program may have left it.
fn changed(
    workspace: &Workspace,
    from: &str,
    to: &str,
    change: impl FnOnce(&mut Value, &mut Vec<NamedTensor>),
) {
    let (mut config, mut tensors) = workspace.contents(from);
    config.as_object_mut().unwrap().remove("spectrain");
    change(&mut config, &mut tensors);
    let _ = fs::remove_dir_all(workspace.path(to));
    write_folder(&workspace.path(to), &config, &tensors, &[]).unwrap();
    for entry in fs::read_dir(workspace.path(from)).unwrap() {
        let file = entry.unwrap();
        let copy = workspace.path(to).join(file.file_name());
        if !copy.exists() {
            fs::copy(file.path(), copy).unwrap();
        }
    }
}

fn evaluate(workspace: &Workspace, target: &str, drafter: &str) -> Outcome {
    workspace.run(&[
        "evaluate",
        "--target",
        target,
        "--drafter",
        drafter,
        "--prompts",
        "eval.jsonl",
        "--count",
        "2",
        "--temperature",
        "0",
        "--max-new-tokens",
        "8",
        "--other-target",
    ])
}

/// The command ends, as nothing is waited for, and fails as [`Outcome::failed`] says.
fn fails_at_once(workspace: &Workspace, words: &[&str], expected: &[&str]) {
    let outcome = Outcome::of_ending(workspace.command(words));
    outcome.failed(expected);
}

/// The commands that open a drafter's folder, or a target's.
fn commands<'a>(target: &'a str, drafter: &'a str) -> Vec<Vec<&'a str>> {
    vec![
        vec![
            "evaluate",
            "--target",
            target,
            "--drafter",
            drafter,
            "--prompts",
            "eval.jsonl",
        ],
        vec![
            "generate",
            "--target",
            target,
            "--drafter",
            drafter,
            "--prompt",
            "count",
        ],
        vec!["check", drafter, "--target", target],
        vec!["import", drafter, "--target", target, "--name", "new"],
        vec![
            "export", drafter, "--target", target, "--to", "vllm", "--out", "new",
        ],
    ]
}

#[test]
fn a_pipe_or_a_link_that_leads_nowhere_in_the_place_of_weights_is_called_one() {
    let workspace = Workspace::finished();
    for (from, place) in [(DRAFTER, "drafter"), ("target", "other")] {
        changed(&workspace, from, place, |_, _| ());
        let weights = workspace.path(place).join(WEIGHTS);
        let (target, drafter) = match place {
            "drafter" => ("target", "drafter"),
            _ => ("other", DRAFTER),
        };
        fs::remove_file(&weights).unwrap();
        let made = Command::new("mkfifo").arg(&weights).status().unwrap();
        assert!(made.success());
        let file = format!("{place}/{WEIGHTS}`");
        for words in commands(target, drafter) {
            fails_at_once(&workspace, &words, &[&file, "not a regular file"]);
        }
        fs::remove_file(&weights).unwrap();
        symlink("../gone/weights", &weights).unwrap();
        for words in commands(target, drafter) {
            let says = format!("{file} -> `../gone/weights`: the file it points to does not exist");
            workspace.run(&words).failed(&[&says]);
        }
    }
    let config = workspace.path("other/config.json");
    fs::remove_file(&config).unwrap();
    symlink("nowhere", &config).unwrap();
    let says = ["other/config.json` -> `nowhere`: the file it points to does not exist"];
    evaluate(&workspace, "other", DRAFTER).failed(&says);
    symlink("gone", workspace.path("folder")).unwrap();
    evaluate(&workspace, "target", "folder")
        .failed(&["`folder` -> `gone`: the file it points to does not exist"]);
    assert!(!workspace.path("runs/new").exists() && !workspace.path("new").exists());
}

#[test]
fn a_target_that_is_broken_is_not_judged_with() {
    let workspace = Workspace::finished();
    for (key, value) in [
        ("rms_norm_eps", json!(-1e-6)),
        ("rope_theta", json!(0)),
        ("head_dim", json!(7)),
    ] {
        changed(&workspace, "target", "broken", |config, _| {
            config[key] = value.clone();
            config.as_object_mut().unwrap().remove("rope_parameters");
        });
        evaluate(&workspace, "broken", DRAFTER)
            .failed(&["broken/config.json`", &format!("key `{key}`")]);
    }
    for bad in [f32::NAN, f32::NEG_INFINITY] {
        changed(&workspace, "target", "broken", |_, tensors| {
            let norm = tensors
                .iter_mut()
                .find(|tensor| tensor.name == "model.norm.weight")
                .unwrap();
            let mut values = norm.to_f32().unwrap();
            values[3] = bad;
            *norm = NamedTensor::from_f32("model.norm.weight", norm.shape.clone(), values);
        });
        let says = [
            "tensor `model.norm.weight` in `broken/model.safetensors`: element 3 is not a finite number",
        ];
        evaluate(&workspace, "broken", DRAFTER).failed(&says);
        // A language model that drafts is read in the same way.
        evaluate(&workspace, "target", "broken").failed(&says);
    }
    for (key, value) in [
        ("temperature", json!(-1)),
        ("top_p", json!(0)),
        ("top_k", json!(-3)),
        ("eos_token_id", json!("x")),
    ] {
        changed(&workspace, "target", "broken", |_, _| ());
        workspace.write(
            "broken/generation_config.json",
            json!({ key: value }).to_string(),
        );
        let says = [
            "broken/generation_config.json`",
            &format!("key `{key}`: expected "),
        ];
        evaluate(&workspace, "broken", DRAFTER).failed(&says);
    }
}

#[test]
fn a_drafter_that_is_broken_is_not_judged() {
    let workspace = Workspace::finished();
    for (key, value) in [
        ("rms_norm_eps", json!(0)),
        ("rope_theta", json!(-1)),
        ("head_dim", json!(0)),
    ] {
        changed(&workspace, DRAFTER, "broken", |config, _| {
            config[key] = value.clone();
            config.as_object_mut().unwrap().remove("rope_parameters");
        });
        evaluate(&workspace, "target", "broken")
            .failed(&["broken/config.json`", &format!("key `{key}`")]);
    }
    changed(&workspace, DRAFTER, "broken", |config, _| {
        config["rope_scaling"] = json!({"rope_type": "dynamic\u{1b}[2J", "factor": 2.0});
        config.as_object_mut().unwrap().remove("rope_parameters");
    });
    let outcome = evaluate(&workspace, "target", "broken").failed(&[
        "broken/config.json`: `rope_parameters` or `rope_scaling`",
        "default, linear, llama3 or yarn",
        r"dynamic\u",
    ]);
    assert!(!outcome.stderr.contains('\u{1b}'));
    // So large that sums overflow.
    changed(&workspace, DRAFTER, "broken", |_, tensors| {
        let fc = tensors
            .iter_mut()
            .find(|tensor| tensor.name == "fc.weight")
            .unwrap();
        let values = (0..fc.shape.iter().product()).map(|i| if i % 2 == 0 { 3e38 } else { -3e38 });
        *fc = NamedTensor::from_f32("fc.weight", fc.shape.clone(), values.collect());
    });
    evaluate(&workspace, "target", "broken").failed(&["logits of the drafter", "too large"]);
}

#[test]
fn names_out_of_files_do_not_steer_the_terminal() {
    let workspace = Workspace::finished();
    let hostile = "x\u{1b}]0;title\u{7}\u{9b}2J\u{202e}\r";
    let clean = |outcome: Outcome| {
        for text in [&outcome.stdout, &outcome.stderr] {
            let steers = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
            assert!(!text.contains(steers), "{text:?}");
        }
        outcome
    };
    changed(&workspace, "target", "broken", |config, _| {
        config["model_type"] = json!(hostile)
    });
    clean(evaluate(&workspace, "broken", DRAFTER))
        .failed(&["unsupported architecture", r"x\u{1b}]0;title"]);
    changed(&workspace, DRAFTER, "broken", |config, _| {
        config["architectures"] = json!([hostile])
    });
    clean(evaluate(&workspace, "target", "broken")).failed(&["key `architectures`"]);
    changed(&workspace, DRAFTER, "broken", |_, tensors| {
        tensors[0].name = hostile.to_string()
    });
    clean(evaluate(&workspace, "target", "broken")).failed(&[r"x\u{1b}]0;title"]);
    // What a folder says of its own target.
    changed(&workspace, DRAFTER, "broken", |config, _| {
        config["spectrain"] = json!({"provenance": {"target": {"model": hostile, "sha256": "0"}}});
    });
    let words = [
        "evaluate",
        "--target",
        "target",
        "--drafter",
        "broken",
        "--prompts",
        "eval.jsonl",
    ];
    clean(workspace.run(&words)).failed(&["was trained for", r"x\u{1b}]0;title"]);
}

#[test]
fn weights_that_overflow_in_a_block_drafter_are_an_error_wherever_they_are() {
    use burn::prelude::*;
    use rand::{SeedableRng, rngs::StdRng};
    use spectrain::families::registry::open_drafter;
    use spectrain_checkpoints::DType;
    use spectrain_models::{DraftRequest, DraftShape, Features, Proposal, Sampling, load_target};

    let device = test_device();
    let target = ModelFolder::open(path("targets/llama")).unwrap();
    let target = load_target(&target, &device, DType::F32).unwrap().parts();
    let published = ModelFolder::open(path("published/speculators-dflash2")).unwrap();
    let names: Vec<String> = published.tensors().map(|info| info.name.clone()).collect();
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("large");
    let features: Tensor<3> = Tensor::ones([1, 4, 3 * 32], &device);
    for large in &names {
        let tensors: Vec<NamedTensor> = names
            .iter()
            .map(|name| {
                let tensor = published.read(name).unwrap();
                let count = tensor.shape.iter().product::<usize>();
                if name == large {
                    let values = (0..count).map(|i| if i % 3 == 0 { -3e38 } else { 3e38 });
                    NamedTensor::from_f32(name.as_str(), tensor.shape, values.collect())
                } else {
                    tensor.cast(DType::F32).unwrap()
                }
            })
            .collect();
        write_folder(&folder, published.config(), &tensors, &[]).unwrap();
        let drafter = open_drafter(&folder, &target, &device).unwrap();
        for temperature in [0.0, 1.0] {
            let mut session = drafter.session();
            session.start(16, 5);
            let features = Features {
                captured: features.clone(),
                last: features.clone().narrow(2, 0, 32),
            };
            session.observe(&[6, 7, 8, 9], &features);
            let request = DraftRequest {
                shape: DraftShape::Chain { length: 3 },
                length: 3,
                sampling: if temperature > 0.0 {
                    Sampling::at(temperature)
                } else {
                    Sampling::GREEDY
                },
            };
            let draft = session.propose(&request, &mut StdRng::seed_from_u64(0));
            assert!(
                matches!(draft.proposal, Proposal::Broken),
                "{large} at temperature {temperature}"
            );
        }
    }
}
