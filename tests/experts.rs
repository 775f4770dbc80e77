//! Targets that are mixtures of experts: long rows, broken folders, what is refused, and a run of the program from its plan to
//! its report.
use std::path::Path;

use burn::module::Module as _;
use burn::prelude::*;
use serde_json::{Value, json};
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, write_folder};
use spectrain_models::device::test_device;
use spectrain_models::weights::host_f32;
use spectrain_models::{
    Caches, Capture, Layout, LogitRows, Pass, Target as _, TransformerConfig, chain, load_target,
};

use crate::golden::{assert_close, path};
use crate::tiny;
use crate::workspace::Workspace;

const LENGTH: usize = 300;

#[test]
fn a_long_row_gives_the_same_at_once_and_in_passes_of_any_length() {
    let device = test_device();
    let target = tiny::mixture(&device);
    let capture = Capture {
        layers: vec![0, 2, 5],
    };
    let tokens: Vec<u32> = (0..LENGTH)
        .map(|at| ((at * at + at / 3) % tiny::VOCAB) as u32)
        .collect();
    let ids: Vec<i64> = tokens.iter().map(|&token| i64::from(token)).collect();
    let ids = Tensor::<1, Int>::from_ints(ids.as_slice(), &device).unsqueeze::<2>();
    let layout = Layout::whole([1, LENGTH], &device);
    let whole = target.features(ids, &layout, &capture);
    let logits = host_f32(target.head().forward(whole.last.clone()));
    let mut caches = Caches::new(target.spec().layers, LENGTH);
    let (mut found, mut captured, mut from) = (Vec::new(), Vec::new(), 0);
    for count in [1, 2, 5, 1, 40, 250, 1] {
        let pass = Pass {
            tokens: &tokens[from..from + count],
            parents: &chain(count),
            logits: LogitRows::All,
        };
        let output = target.decode(pass, &mut caches, &capture);
        found.extend(host_f32(output.logits));
        captured.extend(host_f32(output.features.captured));
        from += count;
    }
    assert_eq!(from, LENGTH);
    assert_close("logits", &found, &logits, 1e-4);
    assert_close("captured", &captured, &host_f32(whole.captured), 1e-4);
}

#[test]
fn a_pass_of_one_token_reads_the_parameters_of_its_experts_alone() {
    let target = tiny::mixture(&test_device());
    let routing = tiny::routing();
    let of_expert = 3 * 32 * 20;
    assert_eq!(routing.routed(), 5);
    let all = target.num_params() as u64;
    assert_eq!(target.parameters(), all);
    // Of the embedding, which is not the head, it reads one row.
    let spec = target.spec();
    let embedding = (spec.vocab * spec.d_model) as u64;
    assert_eq!(
        target.parameters_per_pass(),
        all - embedding - 5 * 6 * of_expert
    );
    let dense = tiny::target(&test_device());
    let dense_parameters = dense.num_params() as u64;
    assert_eq!(dense.parameters_per_pass(), dense_parameters - embedding);
    // In place of one feed-forward part of width 48: eight of width 20, and what chooses among them.
    let more = 5 * (8 * of_expert + 8 * 32 - 3 * 32 * 48);
    assert_eq!(all, dense.num_params() as u64 + more);
}

#[test]
fn experts_compute_in_the_type_of_the_weights() {
    let folder = ModelFolder::open(path("targets/qwen3_moe_step")).unwrap();
    let logits = |dtype| {
        let target = load_target(&folder, &test_device(), dtype).unwrap();
        let pass = Pass {
            tokens: &[5, 17, 3],
            parents: &chain(3),
            logits: LogitRows::All,
        };
        let output = target.decode(pass, &mut Caches::new(3, 3), &Capture::default());
        (output.features.last.dtype(), host_f32(output.logits))
    };
    let (narrow, wide) = (logits(DType::BF16), logits(DType::F32));
    assert_eq!(narrow.0, burn::tensor::DType::BF16);
    assert_close("logits", &narrow.1, &wide.1, 0.2);
}

/// Configuration and tensors of a small mixture of experts.
fn contents() -> (Value, Vec<NamedTensor>) {
    let folder = ModelFolder::open(path("targets/qwen3_moe_step")).unwrap();
    let tensors = folder
        .tensors()
        .map(|info| folder.read(&info.name).unwrap());
    (folder.config().clone(), tensors.collect())
}

/// Why a folder that was changed is not loaded.
fn refused(change: impl FnOnce(&mut Value, &mut Vec<NamedTensor>)) -> String {
    let (mut config, mut tensors) = contents();
    change(&mut config, &mut tensors);
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("changed");
    write_folder(&folder, &config, &tensors, &[]).unwrap();
    let opened = ModelFolder::open(&folder).unwrap();
    let loaded = load_target(&opened, &test_device(), DType::F32);
    loaded.map(drop).unwrap_err().to_string()
}

#[test]
fn settings_of_experts_that_make_no_sense_are_refused_by_key() {
    for (key, value, expected) in [
        ("num_local_experts", json!(0), "a whole number from 1"),
        ("num_local_experts", json!(1 << 20), "at most 4096"),
        ("num_local_experts", json!(null), "a whole number from 1"),
        ("num_local_experts", json!("8"), "a whole number from 1"),
        ("num_experts_per_tok", json!(9), "at most 8 experts"),
        ("num_experts_per_tok", json!(0), "a whole number from 1"),
        ("moe_intermediate_size", json!(-14), "a whole number from 1"),
        (
            "moe_intermediate_size",
            json!(null),
            "a whole number from 1",
        ),
        ("norm_topk_prob", json!("yes"), "`true` or `false`"),
        ("decoder_sparse_step", json!(0), "a whole number from 1"),
        ("mlp_only_layers", json!([3]), "a list of layers below 3"),
        ("mlp_only_layers", json!([-1]), "a list of layers below 3"),
        ("mlp_only_layers", json!(1), "a list of layers below 3"),
        ("mlp_bias", json!(true), "experts add no bias"),
        ("intermediate_size", json!(0), "a whole number from 1"),
    ] {
        let error = refused(|config, _| config[key] = value.clone());
        let named = match key {
            "num_local_experts" if value.is_null() => "num_experts",
            _ => key,
        };
        assert!(
            error.contains(&format!("key `{named}`")) && error.contains(expected),
            "{key} = {value}: {error}"
        );
    }
    let error = refused(|config, _| config["num_experts"] = json!(4));
    assert!(
        error.contains("key `num_local_experts`: expected 4, as in `num_experts`"),
        "{error}"
    );
}

#[test]
fn tensors_of_experts_that_are_missing_misshaped_or_too_many_are_refused_by_name() {
    let name = "model.layers.1.mlp.experts.5.up_proj.weight";
    let missing = refused(|_, tensors| tensors.retain(|tensor| tensor.name != name));
    assert!(missing.contains(name), "{missing}");
    let misshaped = refused(|_, tensors| {
        let tensor = tensors
            .iter_mut()
            .find(|tensor| tensor.name == name)
            .unwrap();
        assert_eq!(tensor.shape, [14, 20]);
        tensor.shape = vec![20, 14];
    });
    assert!(
        misshaped.contains(name)
            && misshaped.contains("[14, 20]")
            && misshaped.contains("[20, 14]"),
        "{misshaped}"
    );
    let router = refused(|_, tensors| {
        tensors.retain(|tensor| tensor.name != "model.layers.1.mlp.gate.weight");
    });
    assert!(
        router.contains("model.layers.1.mlp.gate.weight"),
        "{router}"
    );
    // Fewer experts than the folder holds.
    let left = refused(|config, tensors| {
        config["num_local_experts"] = json!(7);
        let router = tensors
            .iter_mut()
            .find(|tensor| tensor.name.ends_with("mlp.gate.weight"));
        let router = router.unwrap();
        router.bytes.truncate(router.bytes.len() / 8 * 7);
        router.shape[0] = 7;
    });
    assert!(left.contains("model.layers.1.mlp.experts.7."), "{left}");
    // A layer that is said to have none has none of its own.
    let dense = refused(|config, _| config["mlp_only_layers"] = json!([1]));
    assert!(
        dense.contains("model.layers.1.mlp.gate_proj.weight"),
        "{dense}"
    );
}

#[test]
fn both_names_of_the_number_of_experts_are_read_and_windows_hold_in_every_layer() {
    let read = |config: &Value| TransformerConfig::read(config, Path::new("config.json")).unwrap();
    let (mut config, _) = contents();
    let written = read(&config);
    let routing = written.spec.routing.clone().unwrap();
    assert_eq!(routing.layers, [false, true, false]);
    let count = config.as_object_mut().unwrap().remove("num_local_experts");
    config["num_experts"] = count.unwrap();
    assert_eq!(read(&config), written);
    assert_eq!(read(&written.to_json().unwrap()), written);
    config["sliding_window"] = json!(5);
    assert_eq!(read(&config).windows, [None; 3]);
    config["use_sliding_window"] = json!(true);
    config["max_window_layers"] = json!(2);
    assert_eq!(read(&config).windows, [Some(5); 3]);
}

/// A recipe over a target with experts, and its data.
fn workspace() -> Workspace {
    let workspace = Workspace::new();
    workspace.write_target_of("target", 7, |spec| spec.routing = Some(tiny::routing()));
    workspace
}

#[test]
fn a_drafter_is_planned_trained_exported_and_judged_without_loss() {
    let workspace = workspace();
    let plan = workspace
        .run(&["recipe", "recipe.toml", "--plan"])
        .succeeded();
    assert!(
        plan.stdout.contains(" for each token; sizes from"),
        "{}",
        plan.stdout
    );
    workspace.run(&["recipe", "recipe.toml"]).succeeded();
    let report = workspace.json("runs/run/evaluate/report.json");
    let lossless = &report["lossless"];
    assert_eq!(lossless["greedy_outputs"], 2, "{lossless}");
    assert_eq!(lossless["greedy_mismatches"], 0, "{lossless}");
}

#[test]
fn a_mixture_of_experts_drafts_and_its_passes_cost_what_a_token_reads() {
    let workspace = workspace();
    let words = "evaluate --target target --drafter target --prompts eval.jsonl --count 2 --temperature 0 \
                 --max-new-tokens 8 --draft-length 2 --out judged";
    workspace.run_line(words).succeeded();
    let report = workspace.json("judged/report.json");
    let setting = &report["settings"][0];
    let all = &setting["overall"];
    assert_eq!(all["alpha"], 1.0, "{all}");
    // It is the target, and all of a draft is accepted: it pays for what it drafts with as much.
    let found = all["speedup"]["memory_bound"].as_f64().unwrap();
    assert!((found - 1.0).abs() < 1e-9, "{found}");
}

#[test]
fn drafters_made_of_layers_with_experts_are_refused_where_they_are_planned() {
    let workspace = workspace();
    workspace.write_target("dense", crate::workspace::VOCAB);
    let recipes = [
        ("distillspec", ""),
        ("pard", "mask_token = 299\n"),
        ("deer", "mask_token = 299\nseparator_token = 298\n"),
    ];
    for (recipe, more) in recipes {
        for (target, key, start) in [
            ("target", "keep_layers", "keep_layers = [0, 2]"),
            ("dense", "model", "model = \"target\""),
        ] {
            let data = "[data]\ntrain = \"train.jsonl\"\neval = \"eval.jsonl\"\nmax_length = 64";
            let text = format!(
                "recipe = \"{recipe}\"\nname = \"run\"\n[target]\nmodel = \"{target}\"\n{data}\n[drafter]\n{start}\n{more}"
            );
            workspace.write("recipe.toml", text);
            for words in [
                &["recipe", "recipe.toml", "--plan"][..],
                &["recipe", "recipe.toml"],
            ] {
                workspace.run(words).misused(&[
                    &format!("`[drafter] {key}`"),
                    "a model without experts",
                    "qwen3_moe",
                ]);
            }
        }
    }
}
