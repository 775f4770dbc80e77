//! A real vLLM that serves: what `spectrain evaluate --server` says of it is what this program decodes.
//!
//! Opt-in, as an engine takes gigabytes: see `tests/engines/README.md`.
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::engines::{LENGTH, Last, NEW, ours, python, recipe, trained};
use crate::relayed::Relay;
use crate::workspace::{Workspace, signal};

/// How long vLLM may take to start.
const START: Duration = Duration::from_secs(300);

/// The target of the trained drafter.
const TARGET: &str = "runs/eagle3/synthetic/target";

/// A server, which ends with the test.
struct Server {
    process: Child,
    url: String,
}

impl Drop for Server {
    fn drop(&mut self) {
        // Asked so, it ends the processes that it has started.
        signal(&self.process, "-TERM");
        let _ = self.process.wait();
    }
}

impl Server {
    /// vLLM on the CPU in f32, of the target in a folder, with these options besides.
    fn start(python: &Path, workspace: &Workspace, target: &str, more: &[&str]) -> Self {
        let port = {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            free.local_addr().unwrap().port().to_string()
        };
        let words = [
            "-m",
            "vllm.entrypoints.openai.api_server",
            "--host",
            "127.0.0.1",
            "--port",
            &port,
        ];
        let fixed = [
            "--dtype",
            "float32",
            "--enforce-eager",
            "--max-model-len",
            "512",
            "--max-num-seqs",
            "8",
            "--model",
            target,
        ];
        let process = Command::new(python)
            .args([&words[..], &fixed, more].concat())
            .current_dir(workspace.path(""))
            .envs([
                ("HF_HUB_OFFLINE", "1"),
                ("VLLM_CPU_KVCACHE_SPACE", "1"),
                ("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
                ("VLLM_LOGGING_LEVEL", "ERROR"),
                ("VLLM_NO_USAGE_STATS", "1"),
            ])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self {
            process,
            url: format!("http://127.0.0.1:{port}"),
        }
    }

    fn wait(&mut self) {
        let late = Instant::now() + START;
        // Something may take connections before the server does.
        let models = format!("{}/v1/models", self.url);
        while ureq::get(&models).call().is_err() {
            assert!(self.process.try_wait().unwrap().is_none(), "vLLM ended");
            assert!(Instant::now() < late, "vLLM does not start");
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// What was served is what this program counts, without a loss.
fn expect_ours(report: &Value, [passes, accepted]: [u64; 2], prompts: usize) {
    let drafts = &report["figures"]["drafts"];
    assert_eq!(
        (&drafts["drafts"], &drafts["accepted"]),
        (&json!(passes), &json!(accepted)),
        "{report}"
    );
    assert_eq!(report["figures"]["tokens"], prompts * NEW);
    assert_eq!(report["outputs"]["differ"], 0, "{report}");
    assert!(report["in_tree"]["tau"].as_f64().unwrap() > 1.0);
    assert!(report.get("notes").is_none(), "{report}");
}

#[test]
fn vllm_serves_with_the_acceptance_that_this_program_finds() {
    let Some(python) = python("SPECTRAIN_VLLM") else {
        return;
    };
    let (workspace, prompts) = trained(&[]);
    let drafter = "runs/eagle3/export/drafter";
    let config =
        json!({"method": "eagle3", "model": drafter, "num_speculative_tokens": LENGTH}).to_string();
    let speculative = ["--speculative-config", &config];
    let telling = ["--per-request-spec-decode-metrics", "summary"];
    let ours = ours(&workspace, drafter, Last::Whole);
    let [passes, accepted] =
        [&ours.passes, &ours.accepted].map(|counts| counts.iter().sum::<u64>());
    for telling in [&telling[..], &[]] {
        let mut servers = [
            Server::start(
                &python,
                &workspace,
                TARGET,
                &[&speculative[..], telling].concat(),
            ),
            Server::start(&python, &workspace, TARGET, &[]),
        ];
        servers.iter_mut().for_each(Server::wait);
        let [length, new] = [LENGTH, NEW].map(|number| number.to_string());
        let words = [
            "evaluate",
            "--target",
            "runs/eagle3/synthetic/target",
            "--drafter",
            drafter,
            "--prompts",
            "prompts.jsonl",
            "--temperature",
            "0",
            "--draft-length",
            &length,
            "--max-new-tokens",
            &new,
            "--ignore-stop",
            "--out",
            "out",
            "--server",
            &servers[0].url,
            "--baseline-server",
            &servers[1].url,
            "--concurrency",
            "1",
            "--concurrency",
            "4",
        ];
        let outcome = workspace.run(&words).succeeded();
        eprintln!("{}", outcome.stdout);
        let report = workspace.json("out/report.json");
        let served = report["served"].as_array().unwrap().iter();
        for report in served.filter(|report| report["role"] == "drafter") {
            expect_ours(report, [passes, accepted], prompts.len());
        }
    }
}

/// Options with which vLLM hands out the states that EAGLE-3 reads of the tests' target, into this folder.
fn handing_out(states: &Path) -> Vec<String> {
    let speculative = json!({
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 5, 8]}},
    });
    let transfer = json!({
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": states},
    });
    let options = [
        "--no-enable-chunked-prefill",
        "--no-enable-prefix-caching",
        "--speculative-config",
        &speculative.to_string(),
        "--kv-transfer-config",
        &transfer.to_string(),
    ];
    options.map(str::to_owned).to_vec()
}

#[test]
fn vllm_hands_out_the_states_that_drafters_train_on() {
    let Some(python) = python("SPECTRAIN_VLLM_STATES") else {
        return;
    };
    // Of heads as wide as vLLM's attention on the CPU wants them.
    let (workspace, _) = trained(&[]);
    workspace.write("other.toml", recipe("eagle3", "here", ""));
    let states = workspace.path("states");
    let options = handing_out(&states);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let mut server = Server::start(&python, &workspace, TARGET, &options);
    server.wait();
    let servers = format!("target.server={}", json!([server.url]));
    let folder = format!("target.server_folder={}", json!(states));
    let run = |more: &[&str]| {
        // vLLM's build for the CPU draws nonsense above temperature 0; and in few steps little becomes of a rounding.
        let few = ["evaluate.temperatures=[0.0]", "train.steps=20"];
        let settings = more.iter().chain(&few);
        let settings = settings.flat_map(|setting| ["--set", *setting]);
        let words = ["recipe", "other.toml"].into_iter().chain(settings);
        workspace.run(&words.collect::<Vec<_>>()).succeeded()
    };
    run(&["features.mode=stored", "name=here"]);
    run(&["features.mode=served", "name=served", &servers, &folder]);
    // As from another machine.
    let relay = Relay::start(&workspace, &server.url, &[]);
    let servers = format!("target.server={}", json!([relay.url()]));
    run(&["features.mode=streamed", "name=streamed", &servers]);
    let loss = |run: &str| {
        let manifest = workspace.json(&format!("runs/{run}/train/manifest.json"));
        let loss = &manifest["summary"]["fit"]["loss"];
        loss.as_f64().unwrap_or_else(|| panic!("{run}: {manifest}"))
    };
    let [here, served, streamed] = ["here", "served", "streamed"].map(loss);
    assert!((here - served).abs() < 5e-3 * here, "{here} {served}");
    assert!(
        (served - streamed).abs() < 5e-3 * here,
        "{served} {streamed}"
    );
    // Greedy answers of vLLM are those of this program, so the decoder and the estimator count the same.
    let tau = |run: &str| {
        let report = workspace.json(&format!("runs/{run}/evaluate/report.json"));
        let overall = &report["settings"][0]["overall"];
        let tau = overall["tau"].as_f64();
        tau.unwrap_or_else(|| panic!("{run}: {overall}"))
    };
    assert!(
        (tau("here") - tau("served")).abs() < 0.1,
        "{} {}",
        tau("here"),
        tau("served")
    );
    let proof =
        &workspace.json("runs/served/features/manifest.json")["summary"]["servers"][0]["proof"];
    assert_eq!(proof["agreement"], json!(1.0), "{proof}");
    assert!(
        proof["largest_difference"].as_f64().unwrap() < 1e-3,
        "{proof}"
    );
    assert_eq!(proof["layers"].as_array().unwrap().len(), 3, "{proof}");
    assert_eq!(workspace.files("states").len(), 0);
}
