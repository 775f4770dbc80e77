//! Drafters of a target that servers have, and this program only in parts.
use std::time::Duration;

use serde_json::{Value, json};
use spectrain_checkpoints::{NamedTensor, write_folder};

use crate::state_server::{Serving, StateServer, Wrong};
use crate::workspace::{Outcome, Workspace};

/// The layers that EAGLE-3 reads of the tests' target of six, as vLLM counts them, and the last.
const IDS: [usize; 3] = [2, 3, 6];

/// A workspace whose target has a final norm that changes what goes through it twice.
fn with_a_norm() -> Workspace {
    let workspace = Workspace::new();
    let folder = workspace.path("target");
    let (config, mut tensors) = workspace.contents("target");
    for tensor in tensors
        .iter_mut()
        .filter(|tensor| tensor.name == "model.norm.weight")
    {
        let values = (0..tensor.shape[0]).map(|at| 0.25 + 0.5 * (at % 5) as f32);
        *tensor = NamedTensor::from_f32(&tensor.name, tensor.shape.clone(), values.collect());
    }
    let files = workspace.files("target");
    let texts = files.iter().filter(|(name, _)| {
        !["config.json", "model.safetensors"]
            .iter()
            .any(|known| name.ends_with(known))
    });
    let texts: Vec<_> = texts
        .map(|(name, bytes)| (name.to_str().unwrap(), &bytes[..]))
        .collect();
    write_folder(&folder, &config, &tensors, &texts).unwrap();
    workspace
}

fn serve(workspace: &Workspace, serving: Serving) -> StateServer {
    StateServer::start(
        &workspace.path("target"),
        &workspace.path("states"),
        serving,
    )
}

/// Runs the recipe with features of these servers.
fn run(workspace: &Workspace, servers: &[&StateServer], more: &[&str]) -> Outcome {
    let urls: Vec<String> = servers.iter().map(|server| server.url()).collect();
    let server = format!("target.server={}", json!(urls));
    let folder = format!("target.server_folder={}", json!(workspace.path("states")));
    let mut settings = vec!["features.mode=served", &server, &folder];
    settings.extend(more);
    workspace.run_recipe(&settings)
}

/// τ of the settings of a report.
fn taus(report: &Value) -> Vec<f64> {
    let settings = report["settings"].as_array().unwrap();
    settings
        .iter()
        .map(|setting| setting["overall"]["tau"].as_f64().unwrap())
        .collect()
}

fn layers_of(workspace: &Workspace) -> Vec<usize> {
    let index = workspace.json("runs/run/features/features.json");
    serde_json::from_value(index["header"]["captured_layers"].clone()).unwrap()
}

#[test]
fn training_from_served_features_is_training_from_stored_ones() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    workspace
        .run_recipe(&["features.mode=stored", "name=here"])
        .succeeded();
    run(&workspace, &[&server], &[]).succeeded();
    assert_eq!(
        layers_of(&workspace),
        IDS[..2].iter().map(|id| id - 1).collect::<Vec<_>>()
    );
    // The same numbers, but for how a server's arithmetic rounds.
    let [here, served] =
        ["here", "run"].map(|run| workspace.json(&format!("runs/{run}/train/manifest.json")));
    let loss = |manifest: &Value| manifest["summary"]["fit"]["loss"].as_f64().unwrap();
    let [here, served] = [loss(&here), loss(&served)];
    assert!((here - served).abs() < 1e-3 * here, "{here} {served}");
    let report = workspace.json("runs/run/evaluate/report.json");
    assert_eq!(taus(&report).len(), 1);
    assert_eq!(report["texts"][0]["temperature"], json!(0.0));
    assert_eq!(
        workspace.files("states").len(),
        0,
        "files are deleted once they are read"
    );
    let told = &workspace.manifest("features")["summary"]["servers"][0];
    assert_eq!(told["proof"]["last_state"], "before_norm");
    assert!(told["tokens"].as_u64().unwrap() > 100, "{told}");
}

#[test]
fn states_that_are_not_what_they_should_be_are_refused_before_training() {
    let workspace = with_a_norm();
    for (wrong, words) in [
        (Wrong::Zeros, "all 0"),
        (Wrong::NoNumber, "expected numbers"),
        (Wrong::NormedTwice, "not the target's"),
        (Wrong::OneLayerEarly, "not the target's"),
        (Wrong::Permuted, "not the target's"),
        (Wrong::OtherTokens, "token_ids"),
        (Wrong::OneSlotLess, "expected the shape"),
        (Wrong::Elsewhere, "expected a file in"),
        (Wrong::NoFile, "extract_hidden_states"),
    ] {
        let server = serve(
            &workspace,
            Serving {
                wrong: Some(wrong),
                ..Serving::of(&IDS)
            },
        );
        let outcome = run(&workspace, &[&server], &[]).failed(&[&server.url(), words]);
        assert!(
            !workspace.path("runs/run/train").exists(),
            "{wrong:?}: {outcome:?}"
        );
        drop(std::fs::remove_dir_all(workspace.path("states")));
    }
    // Another model behind the address.
    workspace.write_target_of("other", 99, |_| {});
    let server = StateServer::start(
        &workspace.path("other"),
        &workspace.path("states"),
        Serving::of(&IDS),
    );
    run(&workspace, &[&server], &[]).failed(&["not the target's", "another model"]);
    let server = serve(
        &workspace,
        Serving {
            max_model_len: 20,
            ..Serving::of(&IDS)
        },
    );
    run(&workspace, &[&server], &[]).failed(&["20 tokens", "max_model_len", "--max-model-len"]);
}

#[test]
fn a_state_that_went_through_the_norm_is_found_out() {
    let workspace = with_a_norm();
    let server = serve(
        &workspace,
        Serving {
            normed: true,
            ..Serving::of(&IDS)
        },
    );
    run(&workspace, &[&server], &[]).succeeded();
    let told = &workspace.manifest("features")["summary"]["servers"][0];
    assert_eq!(told["proof"]["last_state"], "after_norm");
}

#[test]
fn servers_that_fail_cost_no_sample_and_none_comes_twice() {
    let workspace = with_a_norm();
    let steady = serve(
        &workspace,
        Serving {
            hangs_up_at: Some(7),
            pause: Duration::from_millis(1),
            ..Serving::of(&IDS)
        },
    );
    let folder = workspace.path("states");
    let dying = StateServer::start(
        &workspace.path("target"),
        &folder,
        Serving {
            dies_after: Some(12),
            ..Serving::of(&IDS)
        },
    );
    run(&workspace, &[&steady, &dying], &["features.under_way=2"]).succeeded();
    let index = workspace.json("runs/run/features/features.json");
    let shards = index["shards"].as_array().unwrap();
    let samples: u64 = shards
        .iter()
        .map(|shard| shard["samples"].as_u64().unwrap())
        .sum();
    assert_eq!(
        samples,
        workspace.json("runs/run/prepare/train/tokens.json")["samples"]
            .as_u64()
            .unwrap()
    );
    let [requests, files] = steady.most();
    assert!(requests <= 2, "{requests} requests at once");
    assert!(files <= 4 * 2 * 2 + 4, "{files} files at once");
    // A run whose servers are gone goes on once they are back, without asking for what it has.
    let before = workspace.manifest("features")["summary"]["servers"].clone();
    assert!(
        before[1]["failed_requests"].as_u64().unwrap() > 0,
        "{before}"
    );
}

#[test]
fn a_run_whose_servers_die_goes_on_where_it_was() {
    let workspace = with_a_norm();
    let few = ["features.samples_per_shard=4", "features.under_way=1"];
    let dying = serve(
        &workspace,
        Serving {
            dies_after: Some(20),
            ..Serving::of(&IDS)
        },
    );
    run(&workspace, &[&dying], &few).failed(&[&dying.url()]);
    let server = serve(&workspace, Serving::of(&IDS));
    run(&workspace, &[&server], &few).succeeded();
    let summary = workspace.manifest("features")["summary"].clone();
    assert!(summary["resumed_at"].as_u64().unwrap() >= 4, "{summary}");
    let whole = with_a_norm();
    let server = serve(&whole, Serving::of(&IDS));
    run(&whole, &[&server], &few).succeeded();
    let digest =
        |workspace: &Workspace| workspace.json("runs/run/features/features.json")["shards"].clone();
    let names = |shards: &Value| {
        shards
            .as_array()
            .unwrap()
            .iter()
            .map(|shard| shard["sha256"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(
        names(&digest(&workspace)),
        names(&digest(&whole)),
        "the same bits, interrupted or not"
    );
}

#[test]
fn what_is_missing_for_servers_is_said_by_the_plan() {
    let workspace = with_a_norm();
    let plan = |settings: &[&str]| {
        let settings = settings.iter().flat_map(|setting| ["--set", *setting]);
        let words = ["recipe", "recipe.toml", "--plan"]
            .into_iter()
            .chain(settings);
        workspace.run(&words.collect::<Vec<_>>())
    };
    plan(&["features.mode=served"]).failed(&["`target.server` is missing"]);
    plan(&[
        "features.mode=served",
        "target.server=[\"http://localhost:1\"]",
    ])
    .failed(&["target.server_folder"]);
    plan(&["target.server=[\"http://localhost:1\"]"]).failed(&["features.mode"]);
    // Nobody is there: how such a server is started is said.
    let folder = format!("target.server_folder={}", json!(workspace.path("states")));
    let nobody = "target.server=[\"http://127.0.0.1:9\"]";
    workspace
        .run_recipe(&["features.mode=served", nobody, &folder])
        .failed(&[
            "127.0.0.1:9",
            "vllm serve",
            "ExampleHiddenStatesConnector",
            "[2,3,6]",
        ]);
}
