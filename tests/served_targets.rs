//! Drafters of a target that servers have, and this program only in parts.
use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use spectrain::families::registry::RECIPES;
use spectrain_checkpoints::{NamedTensor, write_folder, write_safetensors};

use crate::state_server::{Serving, StateServer, Wrong};
use crate::workspace::{Outcome, RECIPE, Workspace};

/// The layers that EAGLE-3 reads of the tests' target of six, as vLLM counts them, and the last.
pub const IDS: [usize; 3] = [2, 3, 6];

/// A workspace whose target has a final norm that changes what goes through it twice.
pub fn with_a_norm() -> Workspace {
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

pub fn serve(workspace: &Workspace, serving: Serving) -> StateServer {
    StateServer::start(
        &workspace.path("target"),
        &workspace.path("states"),
        serving,
    )
}

/// Runs the recipe with features of these servers.
pub fn run(workspace: &Workspace, servers: &[&StateServer], more: &[&str]) -> Outcome {
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
    let fits = told["proof"]["layers"].as_array().unwrap();
    assert_eq!(fits.len(), IDS.len() - 1, "{fits:?}");
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
        (Wrong::OtherLayer, "layer 2 (id 3) is closest"),
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
fn a_last_layer_that_is_captured_too_comes_once_and_stands_for_both() {
    let workspace = with_a_norm();
    let layers = "drafter.captured_layers=[1,5]";
    let ids = [2, 6];
    workspace
        .run_recipe(&["features.mode=stored", "name=here", layers])
        .succeeded();
    // As the command that starts a server tells it to.
    let nobody = "target.server=[\"http://127.0.0.1:9\"]";
    let words = ["recipe", "recipe.toml", "--plan", "--set", layers];
    let settings = ["--set", "features.mode=served", "--set", nobody];
    let plan = workspace.run(&[&words[..], &settings].concat()).succeeded();
    let told = format!("\"eagle_aux_hidden_state_layer_ids\":{}", json!(ids));
    assert!(plan.stdout.contains(&told), "{plan:#?}");
    let server = serve(&workspace, Serving::of(&ids));
    run(&workspace, &[&server], &[layers]).succeeded();
    assert_eq!(layers_of(&workspace), [1, 5]);
    let told = &workspace.manifest("features")["summary"]["servers"][0]["proof"];
    assert_eq!(told["layers"].as_array().unwrap().len(), 2, "{told}");
    let [here, served] = ["here", "run"].map(|run| {
        let manifest = workspace.json(&format!("runs/{run}/train/manifest.json"));
        manifest["summary"]["fit"]["loss"].as_f64().unwrap()
    });
    assert!((here - served).abs() < 1e-3 * here, "{here} {served}");
    // Behind the norm it is not what is captured.
    let normed = Serving {
        normed: true,
        ..Serving::of(&ids)
    };
    let server = serve(&workspace, normed);
    run(&workspace, &[&server], &[layers, "name=normed"]).failed(&[
        &server.url(),
        "after the final norm",
        "drafter.captured_layers",
    ]);
}

#[test]
fn a_layer_of_prediction_that_a_server_has_no_states_for_is_told_what_helps() {
    let workspace = with_a_norm();
    let recipe = workspace.text("recipe.toml");
    let recipe = recipe.replace("recipe = \"eagle3\"", "recipe = \"mtp\"");
    workspace.write("recipe.toml", recipe.replace("draft_vocab = 256\n", ""));
    let normed = Serving {
        normed: true,
        ..Serving::of(&[6])
    };
    let server = serve(&workspace, normed);
    run(&workspace, &[&server], &[]).failed(&[
        &server.url(),
        "use a server that hands it out before the norm",
        "of `recipe = \"mtp\"` `drafter.after_final_norm = true`",
    ]);
}

#[test]
fn servers_that_hand_out_other_states_are_not_mixed() {
    let workspace = with_a_norm();
    let before = serve(&workspace, Serving::of(&IDS));
    let after = serve(
        &workspace,
        Serving {
            normed: true,
            ..Serving::of(&IDS)
        },
    );
    run(&workspace, &[&before, &after], &[]).failed(&[
        &before.url(),
        "before the final norm",
        &after.url(),
        "after the final norm",
    ]);
}

#[test]
fn a_drafter_trained_from_streams_is_the_one_trained_from_stored_features() {
    let workspace = with_a_norm();
    let epochs = [
        "train.steps=9",
        "train.save_every=9",
        "train.gradient_accumulation=2",
    ];
    let server = serve(&workspace, Serving::of(&IDS));
    run(
        &workspace,
        &[&server],
        &[&epochs[..], &["name=stored"]].concat(),
    )
    .succeeded();
    // One of the servers is slow and one fails; the first run ends with both dead.
    let streamed = [&epochs[..], &["features.mode=streamed", "name=streamed"]].concat();
    let slow = Serving {
        pause: Duration::from_millis(20),
        ..Serving::of(&IDS)
    };
    let dying = Serving {
        dies_after: Some(60),
        ..Serving::of(&IDS)
    };
    let dying = serve(&workspace, dying);
    let failed = run(&workspace, &[&dying], &streamed).failed(&[&dying.url()]);
    let kept = "the same command goes on from there";
    assert!(failed.stderr.contains(kept), "{failed:?}");
    let [slow, fast] = [
        serve(&workspace, slow),
        serve(&workspace, Serving::of(&IDS)),
    ];
    let resumed = run(&workspace, &[&slow, &fast], &streamed).succeeded();
    assert!(resumed.stderr.contains("resumed at step "), "{resumed:?}");
    let drafter = |run: &str| workspace.contents(&format!("runs/{run}/train/drafter")).1;
    assert_eq!(drafter("stored"), drafter("streamed"));
    let features = workspace.path("runs/streamed/features");
    assert!(!features.join("features.json").exists() && features.join("held_out").exists());
    assert_eq!(workspace.files("states").len(), 0);
}

#[test]
fn what_decides_the_answers_makes_them_anew_and_the_features_not() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    run(&workspace, &[&server], &["evaluate.max_new_tokens=8"]).succeeded();
    let before = workspace.json("runs/run/answers/T=0/features.json");
    let again = run(
        &workspace,
        &[&server],
        &["evaluate.max_new_tokens=6", "features.under_way=3"],
    );
    let again = again.succeeded();
    for stage in ["features", "train"] {
        let done = format!("{stage}: done before");
        assert!(again.stderr.contains(&done), "{again:?}");
    }
    assert!(
        again
            .stderr
            .contains("answers: starts over: `evaluate.max_new_tokens`"),
        "{again:?}"
    );
    assert_ne!(before, workspace.json("runs/run/answers/T=0/features.json"));
}

#[test]
fn prompts_that_are_held_out_several_times_are_asked_and_counted_once() {
    let workspace = with_a_norm();
    let four = workspace.text("eval.jsonl");
    workspace.write("eval.jsonl", [&four[..]; 3].join("\n"));
    let server = serve(&workspace, Serving::of(&IDS));
    let outcome = run(&workspace, &[&server], &["evaluate.prompts=8"]).succeeded();
    let told = "answers: prompts of `eval` that repeat an earlier one and are left out, as they would only make intervals too narrow: 8";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
    let report = workspace.json("runs/run/evaluate/report.json");
    let setting = &report["settings"][0];
    let dataset = &setting["datasets"][0];
    assert_eq!(dataset["prompts"], 4);
    assert_eq!(dataset["counts"].as_array().unwrap().len(), 4);
    assert_eq!(setting["ends"]["max_new_tokens"], 8);
    // Behind the longest answer that was asked for nothing is drafted, as nothing would be decoded.
    let drafted = setting["overall"]["draft_tokens_per_pass"].as_f64();
    assert!(drafted.is_some_and(|drafted| drafted < 2.0), "{setting}");
    assert_eq!(report["trained"]["draft_length"], 5, "{report}");
    // Validations have counted τ with the very same answers.
    assert_eq!(report["choosing_prompts"], json!({"chose": 4, "of": 4}));
    let told = "evaluate: 4 of 4 evaluated prompts also chose the weights";
    assert!(outcome.stderr.contains(told), "{outcome:#?}");
}

#[test]
fn runs_whose_servers_answered_otherwise_are_compared_by_their_prompts() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    let written = ["one", "other"].map(|name| {
        let seed = format!("evaluate.seed={}", name.len());
        let name = format!("name={name}");
        let settings = [&name[..], &seed, "evaluate.temperatures=[1.0]"];
        run(&workspace, &[&server], &settings).succeeded();
        let folder = name.replace("name=", "runs/");
        let answers = workspace.json(&format!("{folder}/answers/T=1/features.json"));
        answers["shards"][0]["sha256"].clone()
    });
    assert_ne!(written[0], written[1], "the answers are others");
    let compared = workspace.run_line("report other --baseline one");
    let told = compared.succeeded().stdout;
    assert!(told.contains("of 2 conversations"), "{told}");
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
    let few = [
        "features.samples_per_shard=4",
        "features.under_way=1",
        "features.wait=1",
    ];
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
fn servers_that_are_not_there_are_waited_for() {
    let workspace = with_a_norm();
    let few = ["features.samples_per_shard=4", "features.under_way=1"];
    let away = |seconds| Serving {
        away_after: Some((20, Duration::from_secs(seconds))),
        ..Serving::of(&IDS)
    };
    let gone = serve(&workspace, away(3600));
    let settings = [&few[..], &["features.wait=1"]].concat();
    run(&workspace, &[&gone], &settings).failed(&[&gone.url(), "waited for 1 s (`features.wait`)"]);
    let late = Serving {
        late: Duration::from_millis(2500),
        ..away(2)
    };
    let late = serve(&workspace, late);
    let settings = [&few[..], &["features.wait=60"]].concat();
    let outcome = run(&workspace, &[&late], &settings).succeeded();
    let url = late.url();
    let waits = format!(
        "no server answers at `{url}`: waiting for one, for at most 60 s (`features.wait`)"
    );
    let comes = format!("a server answers at `{url}`");
    for said in [waits, comes] {
        let count = outcome.stderr.matches(&said).count();
        assert_eq!(count, 2, "{said}: {outcome:#?}");
    }
    let summary = workspace.manifest("features")["summary"].clone();
    assert!(summary["resumed_at"].as_u64().unwrap() >= 4, "{summary}");
    // Of several, those that are there begin, and the other is named.
    let steady = serve(&workspace, Serving::of(&IDS));
    let never = Serving {
        late: Duration::from_secs(3600),
        ..Serving::of(&IDS)
    };
    let never = serve(&workspace, never);
    let settings = [&few[..], &["features.wait=1", "name=two"]].concat();
    let outcome = run(&workspace, &[&never, &steady], &settings).succeeded();
    let said = format!("no server answers at `{}`: ", never.url());
    assert!(outcome.stderr.contains(&said), "{outcome:#?}");
    assert!(
        outcome.stderr.contains("this server is not used"),
        "{outcome:#?}"
    );
}

#[test]
fn a_server_that_comes_back_with_other_states_is_found_out() {
    let workspace = with_a_norm();
    let server = serve(&workspace, another_from(20));
    let few = [
        "features.samples_per_shard=4",
        "features.under_way=1",
        "features.wait=60",
    ];
    let told = run(&workspace, &[&server], &few);
    let told = told.failed(&[&server.url(), "not the server that was proven", "slot 2"]);
    assert!(!workspace.path("runs/run/train").exists(), "{told:?}");
    // Once it is as it was, the run goes on.
    let server = serve(&workspace, Serving::of(&IDS));
    run(&workspace, &[&server], &few).succeeded();
    let summary = workspace.manifest("features")["summary"].clone();
    assert!(summary["resumed_at"].as_u64().unwrap() >= 4, "{summary}");
}

/// A server that goes away after so many requests, and hands out other states when it is back.
pub fn another_from(request: usize) -> Serving {
    Serving {
        away_after: Some((request, Duration::from_secs(1))),
        wrong_then: Some(Wrong::NormedTwice),
        ..Serving::of(&IDS)
    }
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
    plan(&["features.mode=served"]).misused(&["`target.server` is missing"]);
    // Without a folder the hidden states come through a relay.
    let told = plan(&[
        "features.mode=served",
        "target.server=[\"http://localhost:1\"]",
    ])
    .succeeded();
    for part in [
        "\"shared_storage_path\":\"/dev/shm/states\"",
        "\n    spectrain relay\n",
    ] {
        assert!(told.stdout.contains(part), "{part}: {told:#?}");
    }
    plan(&["target.server=[\"http://localhost:1\"]"]).misused(&["features.mode"]);
    let config = workspace.text("target/config.json");
    let mut withheld = workspace.json("target/config.json");
    withheld["architectures"] = json!(["Glm4MoeForCausalLM"]);
    workspace.write("target/config.json", withheld.to_string());
    let told = plan(&[
        "features.mode=served",
        "target.server=[\"http://localhost:1\"]",
    ])
    .succeeded();
    for part in [
        "vLLM's own code of `Glm4MoeForCausalLM` hands out no outputs of layers",
        "vllm serve target --model-impl transformers --no-enable",
    ] {
        assert!(told.stdout.contains(part), "{part}: {told:#?}");
    }
    workspace.write("target/config.json", config);
    plan(&[
        "features.mode=streamed",
        "target.server=[\"http://localhost:1\"]",
        "target.local_folder=states",
    ])
    .misused(&["`target.server_folder` is missing"]);
    // Nobody is there: how such a server is started is said.
    let folder = format!("target.server_folder={}", json!(workspace.path("states")));
    let nobody = "target.server=[\"http://127.0.0.1:9\"]";
    workspace
        .run_recipe(&["features.mode=served", nobody, &folder, "features.wait=0"])
        .failed(&[
            "127.0.0.1:9",
            "vllm serve target --no-enable",
            "ExampleHiddenStatesConnector",
            "[2,3,6]",
        ]);
}

#[test]
fn the_plan_measures_how_fast_servers_hand_out_states() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    let servers = format!(
        "target.server={}",
        json!([server.url(), "http://127.0.0.1:9"])
    );
    let folder = format!("target.server_folder={}", json!(workspace.path("states")));
    let plan = |mode: &str| {
        let words = ["recipe", "recipe.toml", "--plan", "--json"];
        let settings = ["--set", mode, "--set", &servers, "--set", &folder];
        let told = workspace.run(&[&words[..], &settings].concat());
        let plan: Value = serde_json::from_str(&told.succeeded().stdout).unwrap();
        plan
    };
    let served = plan("features.mode=served");
    let capture = &served["capture"];
    let [answers, silent] = [0, 1].map(|server| &capture["servers"][server]);
    let speed = answers["tokens_per_second"].as_f64().unwrap();
    assert!(speed > 0.0, "{capture}");
    assert!(
        silent["error"].as_str().unwrap().contains("127.0.0.1:9"),
        "{capture}"
    );
    assert_eq!(capture["tokens"], served["estimates"]["data_tokens"]);
    let seconds = capture["tokens"].as_f64().unwrap() / speed;
    assert_eq!(capture["seconds"].as_f64(), Some(seconds));
    let under_way = served["recipe"]["features"]["under_way"].as_u64().unwrap();
    assert!((1..=under_way).contains(&(server.most()[0] as u64)));
    assert!(workspace.files("states").is_empty());
    let streamed = plan("features.mode=streamed");
    assert_eq!(
        streamed["capture"]["tokens"],
        streamed["estimates"]["trained_tokens"]
    );
    let stored = workspace.run_line("recipe recipe.toml --plan --json");
    let stored: Value = serde_json::from_str(&stored.succeeded().stdout).unwrap();
    assert_eq!(stored["capture"], Value::Null);
}

#[test]
fn every_recipe_trains_from_what_servers_hand_out() {
    let workspace = with_a_norm();
    let own = "[drafter]\ndraft_vocab = 256\n\n[objective]\ndraft_steps = 2\n";
    assert!(RECIPE.contains(own));
    for recipe in RECIPES {
        let tables = recipe.trials[0];
        let text = RECIPE
            .replace(
                "recipe = \"eagle3\"",
                &format!("recipe = \"{}\"", recipe.name),
            )
            .replace("name = \"run\"", &format!("name = \"{}\"", recipe.name))
            .replace("steps = 6\n", "steps = 2\n")
            .replace(own, tables);
        workspace.write("recipe.toml", &text);
        let resolved = spectrain::recipe::read(&text, &[]).unwrap();
        let layers = resolved
            .method
            .capture(&crate::tiny::config().spec)
            .unwrap()
            .layers;
        let ids: Vec<usize> = layers.iter().map(|layer| layer + 1).chain([6]).collect();
        let server = serve(&workspace, Serving::of(&ids));
        let mut settings = vec!["features.mode=streamed"];
        if tables.contains("on_policy") {
            settings.push("objective.on_policy.fraction=0.0");
        }
        run(&workspace, &[&server], &settings).succeeded();
        let report = workspace.json(&format!("runs/{}/evaluate/report.json", recipe.name));
        let tau = report["settings"][0]["overall"]["tau"].as_f64().unwrap();
        assert!(tau >= 1.0, "{}: {tau}", recipe.name);
        // In 16 bits two tokens of a random target may come too close.
        let likeliest = report["texts"][0]["likeliest"].as_f64().unwrap();
        assert!(likeliest > 0.8, "{}: {likeliest}", recipe.name);
    }
}

#[test]
fn a_state_that_is_0_is_refused_behind_those_that_proved_the_server_too() {
    let workspace = with_a_norm();
    let serving = Serving {
        wrong: Some(Wrong::ZeroLater),
        ..Serving::of(&IDS)
    };
    let server = serve(&workspace, serving);
    run(&workspace, &[&server], &[]).failed(&["token 0: hidden states", "all 0"]);
}

#[test]
fn what_a_server_had_no_room_for_is_asked_for_again() {
    let workspace = with_a_norm();
    let serving = Serving {
        wrong: Some(Wrong::Unwritten),
        ..Serving::of(&IDS)
    };
    let server = serve(&workspace, serving);
    run(&workspace, &[&server], &[]).succeeded();
    let told = &workspace.manifest("features")["summary"]["servers"][0];
    assert!(told["failed_requests"].as_u64().unwrap() > 1, "{told}");
    assert_eq!(
        workspace.files("states").len(),
        0,
        "what is no good is gone"
    );
}

/// Moves what drafters share of the target into a shard of its own, and the rest into another.
fn split_target(workspace: &Workspace) {
    let (_, tensors) = workspace.contents("target");
    let (parts, layers): (Vec<_>, Vec<_>) = tensors
        .into_iter()
        .partition(|tensor| spectrain_models::is_part(&tensor.name));
    let folder = workspace.path("target");
    let mut map = serde_json::Map::new();
    for (file, tensors) in [("parts.safetensors", parts), ("layers.safetensors", layers)] {
        write_safetensors(&folder.join(file), &tensors, &BTreeMap::new()).unwrap();
        map.extend(tensors.into_iter().map(|tensor| (tensor.name, json!(file))));
    }
    let index = json!({ "weight_map": map }).to_string();
    workspace.write("target/model.safetensors.index.json", index);
    std::fs::remove_file(folder.join("model.safetensors")).unwrap();
}

#[test]
fn a_run_of_served_features_is_exported_without_the_targets_layers() {
    let workspace = with_a_norm();
    split_target(&workspace);
    let server = serve(&workspace, Serving::of(&IDS));
    run(&workspace, &[&server], &[]).succeeded();
    std::fs::remove_file(workspace.path("target/layers.safetensors")).unwrap();
    let export = |more: &str| workspace.run_line(format!("export run --to vllm{more}"));
    for (more, out) in [("", "out"), (" --target target", "again")] {
        let told = export(&format!(" --out {out}{more}")).succeeded();
        assert!(told.stdout.contains("vllm serve target"), "{told:#?}");
        let [own, exported] =
            ["runs/run/export/drafter", out].map(|folder| workspace.contents(folder).1);
        assert!(own == exported);
        let card = workspace.text(&format!("{out}/README.md"));
        assert!(!card.contains("has not been evaluated"), "{card}");
    }
    // Without what it is compared on nothing is written.
    std::fs::remove_dir_all(workspace.path("runs/run/answers")).unwrap();
    export(" --out none").failed(&["runs/run/answers/T=0"]);
    assert!(!workspace.path("none").exists());
}
