//! `spectrain evaluate --server` against engines that are played: their counters, their streams, and what goes wrong.
use serde_json::{Value, json};

use crate::played_engine::{DRAFTED, Fault, Metrics, Played, PlayedEngine, accepted_of, answer_to};
use crate::workspace::{Outcome, Workspace, signal, wait_for};

/// Tokens of an answer.
const NEW: usize = 13;

/// A target, and prompts for it.
pub fn workspace() -> Workspace {
    let workspace = Workspace::of("");
    workspace.write_target("target", crate::workspace::VOCAB);
    workspace.write(
        "target/generation_config.json",
        r#"{"eos_token_id": [5, 6]}"#,
    );
    workspace.write_conversations("eval.jsonl", 40, 5);
    workspace
}

fn evaluate(workspace: &Workspace, more: &[&str]) -> Outcome {
    let new = NEW.to_string();
    let words = [
        "evaluate",
        "--target",
        "target",
        "--prompts",
        "eval.jsonl",
        "--out",
        "out",
    ];
    let fixed = ["--temperature", "0", "--max-new-tokens", &new];
    workspace.run(&[&words[..], &fixed, more].concat())
}

/// The served part of the report.
pub fn served(workspace: &Workspace) -> Vec<Value> {
    let report = workspace.json("out/report.json");
    report["served"].as_array().unwrap().clone()
}

/// The requests that are measured, which are longer than others.
pub fn asked_for(new: usize, engine: &PlayedEngine) -> Vec<Value> {
    let mut bodies = engine.bodies();
    bodies.retain(|body| body["max_tokens"] == new);
    bodies
}

/// The same, each prompt once.
fn measured(engine: &PlayedEngine) -> Vec<Value> {
    let mut bodies = asked_for(NEW, engine);
    let mut prompts = Vec::new();
    bodies.retain(|body| {
        let is_new = !prompts.contains(&body["prompt"]);
        prompts.push(body["prompt"].clone());
        is_new
    });
    bodies
}

/// Drafts of the measured requests, and their accepted tokens by position.
fn expected(bodies: &[Value]) -> (usize, Vec<usize>) {
    let of = |body: &Value| accepted_of(body, answer_to(body, false).len());
    let accepted: Vec<usize> = bodies.iter().flat_map(of).collect();
    let reaching = |position| accepted.iter().filter(|&&count| count > position).count();
    (accepted.len(), (0..DRAFTED).map(reaching).collect())
}

fn close(found: &Value, expected: f64) {
    let found = found.as_f64().unwrap();
    assert!((found - expected).abs() < 1e-9, "{found} {expected}");
}

/// The figures of five answers, of so many drafts, of which `reaching` were accepted up to each position.
fn expect_figures(found: &Value, drafts: usize, reaching: &[usize]) {
    let accepted: usize = reaching.iter().sum();
    assert_eq!(found["counted_by"], "answer");
    assert_eq!(found["drafts"]["drafts"], drafts);
    assert_eq!(found["drafts"]["reaching"], json!(reaching));
    close(&found["tau"], 1.0 + accepted as f64 / drafts as f64);
    close(&found["survival"][1], reaching[1] as f64 / drafts as f64);
    close(&found["draft_tokens_per_pass"], DRAFTED as f64);
    let [low, high] = [0, 1].map(|end| found["tau_ci95"][end].as_f64().unwrap());
    let tau = found["tau"].as_f64().unwrap();
    assert!(low <= tau && tau <= high && low < high);
    assert_eq!(found["tokens"], 5 * NEW);
    for key in ["tokens_per_second", "speedup"] {
        assert!(found[key].as_f64().unwrap() > 0.0);
        assert!(found[format!("{key}_ci95")][1].as_f64().unwrap() > 0.0);
    }
    for key in ["first_token", "between_tokens", "between_chunks"] {
        let times = &found[key];
        let [median, p99] = ["median", "p99"].map(|key| times[key].as_f64().unwrap());
        assert!(0.0 < median && median <= p99, "{times}");
    }
}

/// What to deploy by the servers, for each number of requests.
fn recommended(workspace: &Workspace) -> Vec<Value> {
    let report = workspace.json("out/report.json");
    let all = report["settings_recommended"].as_array();
    let mut found = all.cloned().unwrap_or_default();
    found.retain(|one| one["costs"] == "server");
    found
}

/// The lengths of the chains that could be deployed.
fn lengths(recommended: &Value) -> Vec<u64> {
    let candidates = recommended["candidates"].as_array().unwrap().iter();
    candidates
        .map(|one| one["draft"]["length"].as_u64().unwrap())
        .collect()
}

/// For each number of requests there is the server's own length: nothing is known of its drafter that says what others cost.
fn expect_own_length_alone(workspace: &Workspace, requests: &[u64]) {
    let recommended = recommended(workspace);
    let of = |one: &Value| (one["batch_size"].as_u64().unwrap(), lengths(one));
    let found: Vec<_> = recommended.iter().map(of).collect();
    let own = |&requests: &u64| (requests, vec![DRAFTED as u64]);
    assert_eq!(found, Vec::from_iter(requests.iter().map(own)));
}

#[test]
fn what_a_server_accepts_is_counted_with_every_number_of_requests_under_way() {
    // However the stream is cut into pieces.
    for piece in [1 << 20, 7, 1] {
        let workspace = workspace();
        let drafter = PlayedEngine::start(Played {
            piece,
            ..Played::vllm()
        });
        let baseline = PlayedEngine::start(Played::baseline());
        let urls = [drafter.url(), format!("{}/v1/", baseline.url())];
        let servers = ["--server", &urls[0], "--baseline-server", &urls[1]];
        let words = [&servers[..], &["--concurrency", "1", "--concurrency", "3"]].concat();
        let outcome = evaluate(&workspace, &words).succeeded();
        let served = served(&workspace);
        assert_eq!(served.len(), 4);
        let bodies = measured(&drafter);
        assert_eq!(bodies.len(), 5);
        let (drafts, reaching) = expected(&bodies);
        let accepted: usize = reaching.iter().sum();
        assert!(accepted > 0 && reaching[2] < reaching[0], "{reaching:?}");
        for (report, concurrency) in [(&served[0], 1), (&served[2], 3)] {
            assert_eq!(
                (&report["role"], &report["engine"]),
                (&json!("drafter"), &json!("vllm"))
            );
            assert_eq!(report["concurrency"], concurrency);
            expect_figures(&report["figures"], drafts, &reaching);
            assert_eq!(report["outputs"]["with"], "baseline");
            assert_eq!(
                (&report["outputs"]["outputs"], &report["outputs"]["differ"]),
                (&json!(5), &json!(0))
            );
            assert!(report.get("notes").is_none(), "{report}");
        }
        assert_eq!(
            (&served[1]["role"], served[1]["figures"].get("tau")),
            (&json!("baseline"), None)
        );
        assert_eq!(served[3]["outputs"]["with"], "first_run");
        assert_eq!(drafter.most_under_way(), 3);
        for part in [
            format!("drafter at `{}` for `target`\n\nAs served:\n", urls[0]),
            "| drafter | T=0 | 3 | 65 | ".to_owned(),
            "- drafter, T=0, 1 at once: 0 of 5 outputs differ from those of the baseline server (65 tokens compared).".to_owned(),
        ] {
            let table = workspace.text("out/report.md");
            assert!(table.contains(&part), "no `{part}`: {table}");
        }
        for part in [
            format!("drafter at {} for target\n", urls[0]),
            "served, drafter, T=0, 3 at once: τ ".to_owned(),
            "served, drafter, T=0, 1 at once: 0 of 5 outputs differ".to_owned(),
        ] {
            assert!(outcome.stdout.contains(&part), "no `{part}`: {outcome:#?}");
        }
        assert!(workspace.text("out/report.html").contains("As served"));
        expect_own_length_alone(&workspace, &[1, 3]);
    }
}

#[test]
fn prompts_are_sent_as_tokens_and_nothing_is_left_to_the_server() {
    let workspace = workspace();
    let drafter = PlayedEngine::start(Played::vllm());
    let url = drafter.url();
    evaluate(
        &workspace,
        &["--server", &url, "--concurrency", "2", "--concurrency", "1"],
    )
    .succeeded();
    let bodies = drafter.bodies();
    let whole: Vec<&Value> = bodies
        .iter()
        .filter(|body| body["max_tokens"] == NEW)
        .collect();
    assert_eq!(whole.len(), 10);
    for body in &whole {
        let expected = json!({
            "model": "served", "prompt": body["prompt"], "max_tokens": NEW, "temperature": 0.0, "top_p": 1.0, "top_k": -1,
            "min_p": 0.0, "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true}, "return_token_ids": true,
            "ignore_eos": false, "stop_token_ids": [5, 6], "cache_salt": body["cache_salt"],
        });
        assert_eq!(**body, expected);
    }
    // What one run leaves in the server's cache is of no use to the next one.
    let salt = |body: &Value| body["cache_salt"].as_str().unwrap().to_owned();
    let mut salts: Vec<String> = bodies.iter().map(salt).collect();
    salts.dedup();
    assert_eq!(
        salts.len(),
        5,
        "a trial, and two runs with an answer to warm up before each"
    );

    let other = PlayedEngine::start(Played::vllm());
    let url = other.url();
    evaluate(
        &workspace,
        &["--server", &url, "--concurrency", "1", "--ignore-stop"],
    )
    .succeeded();
    for body in other.bodies() {
        assert!(body["ignore_eos"] == true && body.get("stop_token_ids").is_none());
    }
}

#[test]
fn counters_alone_give_an_interval_only_with_one_request_at_a_time() {
    let workspace = workspace();
    let drafter = PlayedEngine::start(Played {
        tells: false,
        ..Played::vllm()
    });
    let url = drafter.url();
    let words = ["--server", &url, "--concurrency", "1", "--concurrency", "4"];
    let outcome = evaluate(&workspace, &words).succeeded();
    let served = served(&workspace);
    let (drafts, reaching) = expected(&measured(&drafter));
    let by = ["counters_around_each", "counters_around_all"];
    for (report, by) in served.iter().zip(by) {
        let found = &report["figures"];
        assert_eq!(found["counted_by"], by);
        assert_eq!(found["drafts"]["drafts"], drafts);
        assert_eq!(found["drafts"]["reaching"], json!(reaching));
        assert!(report.get("notes").is_none(), "{report}");
    }
    assert!(served[0]["figures"]["tau_ci95"].is_array());
    assert!(served[1]["figures"].get("tau_ci95").is_none());
    let table = workspace.text("out/report.md");
    assert!(table.contains("has no interval, except with one request at a time"));
    assert!(table.contains("Intervals are over conversations"));
    let counts = served[0]["figures"]["counts"].as_array().unwrap();
    assert_eq!(counts.len(), 5);
    assert!(served[1]["figures"].get("counts").is_none());
    assert!(
        outcome
            .stdout
            .contains("served, drafter, T=0, 1 at once: τ ")
    );
}

#[test]
fn sglang_is_asked_for_the_drafts_of_each_answer() {
    let workspace = workspace();
    let drafter = PlayedEngine::start(Played::sglang());
    let url = drafter.url();
    evaluate(&workspace, &["--server", &url, "--concurrency", "3"]).succeeded();
    let (drafts, reaching) = expected(&measured(&drafter));
    let report = &served(&workspace)[0];
    assert_eq!(
        (&report["engine"], &report["figures"]["counted_by"]),
        (&json!("sglang"), &json!("answer"))
    );
    assert_eq!(report["figures"]["drafts"]["drafts"], drafts);
    assert_eq!(report["figures"]["drafts"]["reaching"], json!(reaching));
    let note = "the server has no counters that would show requests of other clients";
    assert_eq!(report["notes"], json!([note]));

    // With counters only, accepted tokens follow from the passes, up to where answers are cut.
    let silent = PlayedEngine::start(Played {
        tells: false,
        metrics: Metrics::Own,
        ..Played::sglang()
    });
    let url = silent.url();
    evaluate(&workspace, &["--server", &url, "--concurrency", "3"]).succeeded();
    let found = &served(&workspace)[0]["figures"];
    assert_eq!(found["counted_by"], "counters_around_all");
    assert_eq!(found["drafts"]["drafts"], drafts);
    close(
        &found["tau"],
        1.0 + (5 * NEW - 5 - drafts) as f64 / drafts as f64,
    );
}

#[test]
fn traffic_of_others_is_noticed() {
    for (tells, words) in [
        (
            true,
            "the speed is not that of a server that has only these prompts to answer",
        ),
        (
            false,
            "neither the speed nor τ is that of these prompts alone",
        ),
    ] {
        let workspace = workspace();
        let drafter = PlayedEngine::start(Played {
            others: true,
            tells,
            ..Played::vllm()
        });
        let url = drafter.url();
        evaluate(&workspace, &["--server", &url, "--concurrency", "3"]).succeeded();
        let report = &served(&workspace)[0];
        let expected = format!(
            "beside the {0} tokens of this run the server generated {0} for other clients: {words}",
            5 * NEW
        );
        assert_eq!(report["notes"], json!([expected]));
    }
}

#[test]
fn outputs_that_the_drafter_changes_are_found() {
    let workspace = workspace();
    let asked = PlayedEngine::start(Played::vllm());
    let url = asked.url();
    evaluate(&workspace, &["--server", &url, "--concurrency", "1"]).succeeded();
    let second = &measured(&asked)[1];
    let right = answer_to(second, false)[2];

    let wrong = serde_json::from_value(second["prompt"].clone()).unwrap();
    let drafter = PlayedEngine::start(Played {
        wrong: Some(wrong),
        ..Played::vllm()
    });
    let baseline = PlayedEngine::start(Played::baseline());
    let urls = [drafter.url(), baseline.url()];
    let words = [
        "--server",
        &urls[0],
        "--baseline-server",
        &urls[1],
        "--concurrency",
        "2",
    ];
    let outcome = evaluate(&workspace, &words).succeeded();
    let outputs = &served(&workspace)[0]["outputs"];
    assert_eq!(
        (&outputs["differ"], &outputs["tokens"]),
        (&json!(1), &json!(4 * NEW + 3))
    );
    let difference = json!({"dataset": "eval", "prompt": 1, "token": 2, "plain": right, "speculative": right + 1, "tolerance": 0.0});
    assert_eq!(outputs["differences"], json!([difference]));
    let line = format!(
        "  - eval, prompt 1, token 2: {} in place of {right}\n",
        right + 1
    );
    assert!(
        outcome.stdout.contains(&line.replace("  - ", "served, ")),
        "{outcome:#?}"
    );
}

#[test]
fn answers_that_end_at_once_have_no_drafts() {
    for tells in [true, false] {
        let workspace = workspace();
        let drafter = PlayedEngine::start(Played {
            ends_at_once: true,
            tells,
            ..Played::vllm()
        });
        let url = drafter.url();
        let outcome = evaluate(&workspace, &["--server", &url, "--concurrency", "1"]).succeeded();
        let report = &served(&workspace)[0];
        assert_eq!(report["figures"]["tokens"], 5);
        assert!(report["figures"].get("tau").is_none());
        assert!(report["figures"].get("between_tokens").is_none());
        assert!(report["figures"]["first_token"]["mean"].as_f64().unwrap() > 0.0);
        let note = "the server drafted nothing, so there is no τ";
        assert_eq!(report["notes"], json!([note]), "{outcome:#?}");
    }
}

/// Role, requests at once, and whether there are figures.
fn run_of(report: &Value) -> (&str, u64, bool) {
    let role = report["role"].as_str().unwrap();
    let concurrency = report["concurrency"].as_u64().unwrap();
    (role, concurrency, report.get("figures").is_some())
}

#[test]
fn a_server_that_fails_leaves_the_runs_before_it_and_says_so() {
    // A trial, an answer to warm up and five others; then three to warm up, and the second of five fails.
    let at = 1 + 1 + 5 + 3 + 1;
    let cases = [
        (Fault::Dies, "the answer broke off after"),
        (Fault::Cut, "the answer broke off after"),
        (
            Fault::EndsEarly,
            "the answer: expected a whole answer, found the end of the stream after",
        ),
        (Fault::Status(503), "status 503: as planned"),
        (Fault::Complains, "the server says: out of memory"),
        (
            Fault::Silence,
            "not complete within the time of `--timeout`",
        ),
        (Fault::Restarts, "the counter of tokens: expected at least"),
    ];
    for (fault, words) in cases {
        let workspace = workspace();
        let drafter = PlayedEngine::start(Played {
            fault: Some((at, fault)),
            ..Played::vllm()
        });
        let baseline = PlayedEngine::start(Played::baseline());
        let urls = [drafter.url(), baseline.url()];
        let servers = ["--server", &urls[0], "--baseline-server", &urls[1]];
        let numbers = [
            "--timeout=3",
            "--concurrency=1",
            "--concurrency=3",
            "--concurrency=5",
        ];
        let outcome = evaluate(&workspace, &[&servers[..], &numbers].concat());
        let told = format!("the server `{}` failed with 3 requests at once", urls[0]);
        let outcome = outcome.failed(&[&told, "the report covers the runs before that", words]);
        let served = served(&workspace);
        let runs: Vec<_> = served.iter().map(run_of).collect();
        let expected = [
            ("drafter", 1, true),
            ("baseline", 1, true),
            ("drafter", 3, false),
            ("baseline", 3, true),
            ("baseline", 5, true),
        ];
        assert_eq!(runs, expected, "{fault:?}");
        let failed = served[2]["failed"].as_str().unwrap();
        assert!(failed.contains(words), "{fault:?}: {failed}");
        if fault != Fault::Restarts {
            assert!(failed.starts_with("dataset `eval`, prompt "), "{failed}");
        }
        let line = "served, drafter, T=0, 3 at once: failed, and nothing of this run is counted:";
        assert!(outcome.stdout.contains(line), "{outcome:#?}");
    }
}

/// Servers that cannot be measured, further options, and what is said of them.
fn unmeasurable() -> [(Played, &'static [&'static str], &'static str); 8] {
    let silent = || Played {
        tells: false,
        metrics: Metrics::Foreign,
        ..Played::vllm()
    };
    let sglang = Played {
        drafts: false,
        ..Played::sglang()
    };
    let unknown = Played {
        owned_by: "someone",
        ..silent()
    };
    let several = || Played {
        models: vec!["a", "b"],
        ..Played::vllm()
    };
    let small = Played {
        max_model_len: 20,
        ..Played::vllm()
    };
    let broken = Played {
        fault: Some((0, Fault::Status(404))),
        ..Played::vllm()
    };
    [
        (
            Played::baseline(),
            &[],
            "its counters show no drafts, so it was started without `--speculative-config`",
        ),
        (
            silent(),
            &[],
            "`/metrics` has none of vLLM's counters; start it without `--disable-log-stats`, which turns them off",
        ),
        (
            sglang,
            &[],
            "needs `--enable-metrics` (`/metrics`: status 404",
        ),
        (
            unknown,
            &[],
            "neither `/metrics` nor `/v1/models` says that it is vLLM or SGLang",
        ),
        (several(), &[], "expected one model, found 2 (`a`, `b`)"),
        (
            several(),
            &["--model", "c"],
            "expected the model `c`, found 2 (`a`, `b`)",
        ),
        (small, &[], "found a `max_model_len` of 20"),
        (broken, &[], "status 404: as planned"),
    ]
}

#[test]
fn what_cannot_be_measured_is_said_before_anything_is() {
    let workspace = workspace();
    let refused = |played: Played, more: &[&str], expected: &str| {
        let server = PlayedEngine::start(played);
        let url = server.url();
        let words = [&["--server", &url, "--concurrency", "1"], more].concat();
        evaluate(&workspace, &words).failed(&[&url, expected]);
        assert!(server.bodies().len() <= 1, "no more than a trial");
    };
    for (played, more, expected) in unmeasurable() {
        refused(played, more, expected);
    }
    let [drafter, other] = [(); 2].map(|()| PlayedEngine::start(Played::vllm()));
    let urls = [drafter.url(), other.url()];
    let both = ["--server", &urls[0], "--baseline-server", &urls[1]];
    evaluate(&workspace, &both).failed(&[&urls[1], "drafts, too"]);
    evaluate(&workspace, &["--server", "http://127.0.0.1:9"])
        .failed(&["no server answers at `http://127.0.0.1:9`", "refused"]);
}

#[test]
fn options_of_servers_that_make_no_sense_are_misuse() {
    let workspace = workspace();
    let cases: [(&[&str], &str); 8] = [
        (&[], "--drafter <DRAFTER>"),
        (&["--baseline-server", "http://a:1"], "--server <URL>"),
        (&["--drafter", "d", "--concurrency", "2"], "--server <URL>"),
        (
            &["--server", "a:1"],
            "`--server`: expected `http://HOST:PORT`, found `a:1`",
        ),
        (
            &[
                "--server",
                "http://a:1",
                "--baseline-server",
                "http://a:1/v1",
            ],
            "`--baseline-server`: expected a server without a drafter",
        ),
        (
            &[
                "--server",
                "http://a:1",
                "--concurrency",
                "2",
                "--concurrency",
                "2",
            ],
            "`--concurrency 2` twice",
        ),
        (
            &["--server", "http://a:1", "--concurrency", "0"],
            "0 is not in 1..=1024",
        ),
        (
            &["--server", "http://a:1", "--timeout", "0"],
            "`--timeout`: expected seconds",
        ),
    ];
    for (words, expected) in cases {
        let outcome = evaluate(&workspace, words);
        assert_eq!(outcome.code, Some(2), "{outcome:#?}");
        assert!(
            outcome.stderr.contains(expected),
            "no `{expected}`: {outcome:#?}"
        );
    }
}

#[test]
fn figures_of_this_program_stand_beside_those_of_drafts_as_long() {
    let workspace = Workspace::finished();
    let drafter = PlayedEngine::start(Played::vllm());
    let url = drafter.url();
    let evaluate = |lengths: &[&str]| {
        let words = [
            "--drafter",
            "run",
            "--server",
            &url,
            "--concurrency",
            "2",
            "--no-baseline",
        ];
        evaluate(&workspace, &[&words[..], lengths].concat()).succeeded();
        workspace.json("out/report.json")
    };
    let report = evaluate(&["--draft-length", "2", "--draft-length", "3"]);
    let [short, long] = [0, 1].map(|at| &report["settings"][at]["overall"]);
    let in_tree = &report["served"][0]["in_tree"];
    assert_eq!(in_tree["setting"], "T=0, greedy, chain 3");
    assert_eq!(
        (&in_tree["tau"], &in_tree["tau_ci95"]),
        (&long["tau"], &long["tau_ci95"])
    );
    assert_eq!(in_tree["survival"], long["survival"]);
    let note = "the intervals of the server's τ and of the in-tree τ (spectrain's own) do not overlap, though \
                prompts and drafter are the same";
    assert_eq!(report["served"][0]["notes"], json!([note]));
    assert_ne!(long["survival"], short["survival"]);
    assert!(workspace.text("out/report.md").contains("\nAs served:\n"));

    let report = evaluate(&["--draft-length", "2"]);
    assert!(report["served"][0].get("in_tree").is_none());
    let note = "the server drafts chains of 3, and spectrain itself decoded none of that length (in-tree): \
                `--draft-length 3` adds them";
    assert_eq!(report["served"][0]["notes"], json!([note]));
}

#[test]
fn of_several_targets_the_one_that_the_server_has_stands_beside_its_figures() {
    let workspace = Workspace::finished();
    workspace.write_target_of("second", 8, |_| {});
    let report = |model: &'static str| {
        let engine = PlayedEngine::start(Played {
            models: vec![model],
            ..Played::vllm()
        });
        let words =
            "--target second --drafter run --draft-length 3 --no-baseline --concurrency 2 --server";
        let url = engine.url();
        let words: Vec<&str> = words.split(' ').chain([&url[..]]).collect();
        evaluate(&workspace, &words).succeeded();
        workspace.json("out/report.json")
    };
    for (at, model) in ["target", "second"].into_iter().enumerate() {
        let report = report(model);
        let in_tree = &report["served"][0]["in_tree"];
        assert_eq!(report["settings"][at]["target"], model);
        assert_eq!(in_tree["target"], model);
        assert_eq!(in_tree["tau"], report["settings"][at]["overall"]["tau"]);
    }
    let served = &report("served")["served"][0];
    assert!(served.get("in_tree").is_none(), "{served}");
    let notes = served["notes"].to_string();
    let told = "calls its model `served`, which is the name of none of the targets";
    assert!(notes.contains(told), "{notes}");
}

/// The report of drafts of three tokens in a server of SGLang, of which at most two are ever accepted.
fn never_accepted_in_full(eagle_topk: Option<usize>) -> (Workspace, Value) {
    let workspace = Workspace::finished();
    let drafter = PlayedEngine::start(Played {
        accepted: DRAFTED - 1,
        eagle_topk,
        ..Played::sglang()
    });
    let baseline = PlayedEngine::start(Played {
        drafts: false,
        ..Played::sglang()
    });
    let urls = [drafter.url(), baseline.url()];
    let servers = ["--server", &urls[0], "--baseline-server", &urls[1]];
    let words = ["--drafter", "run", "--concurrency", "2", "--no-baseline"];
    let lengths = ["--draft-length", "2", "--draft-length", "3"];
    evaluate(&workspace, &[&servers[..], &words, &lengths].concat()).succeeded();
    let report = served(&workspace).swap_remove(0);
    (workspace, report)
}

#[test]
fn drafts_of_sglang_are_as_long_as_they_are_though_less_was_accepted() {
    let (workspace, report) = never_accepted_in_full(Some(1));
    let survival = report["figures"]["survival"].as_array().unwrap();
    assert_eq!((survival.len(), &survival[2]), (DRAFTED, &json!(0.0)));
    assert!(survival[1].as_f64().unwrap() > 0.0, "{survival:?}");
    assert_eq!(report["in_tree"]["setting"], "T=0, greedy, chain 3");
    let all = recommended(&workspace);
    let [recommended] = &all[..] else {
        panic!("{all:?}");
    };
    assert_eq!(lengths(recommended), [1, 2, 3]);
    let seconds = |at: usize| recommended["candidates"][at]["seconds"].as_f64().unwrap();
    let plain = recommended["plain_seconds"].as_f64().unwrap();
    // Two of three steps cost two thirds, though the third was never accepted.
    let two = plain + 2.0 / 3.0 * (seconds(2) - plain);
    assert!((seconds(1) - two).abs() < 1e-9, "{recommended}");
    let timed = [0, 1, 2].map(|at| recommended["candidates"][at]["timed"] == true);
    assert_eq!(timed, [false, false, true]);
}

#[test]
fn drafts_of_sglang_that_may_be_trees_are_compared_with_no_chain() {
    for eagle_topk in [Some(4), None] {
        let (workspace, report) = never_accepted_in_full(eagle_topk);
        assert_eq!(report["figures"]["survival"].as_array().unwrap().len(), 2);
        assert!(report.get("in_tree").is_none(), "{report}");
        assert!(recommended(&workspace).is_empty());
        let notes = report["notes"].to_string();
        for part in [
            "drafts 3 tokens for each pass and accepted at most 2 of them",
            "(`speculative_eagle_topk` of 1)",
        ] {
            assert!(notes.contains(part), "no `{part}`: {notes}");
        }
    }
}

#[test]
fn above_temperature_0_a_server_stands_beside_the_tokens_that_it_drafts() {
    let workspace = Workspace::new();
    // SGLang draws for a drafter that knows all of the target's tokens.
    workspace.run_recipe(&["drafter.draft_vocab=0"]).succeeded();
    let report = |played: Played| {
        let engine = PlayedEngine::start(played);
        let url = engine.url();
        let words =
            "--drafter run --draft-length 3 --no-baseline --concurrency 2 --temperature 1 --server";
        let words: Vec<&str> = words.split(' ').chain([&url[..]]).collect();
        evaluate(&workspace, &words).succeeded();
        served(&workspace)
    };
    let unsaid = "does not say whether it drafts the likeliest tokens or draws them: the in-tree τ (spectrain's own) is ";
    for (draws, tokens) in [(true, "drawn"), (false, "likeliest")] {
        let served = report(Played {
            draws,
            ..Played::sglang()
        });
        let in_tree = |at: usize| &served[at]["in_tree"]["setting"];
        assert_eq!(*in_tree(0), "T=0, greedy, chain 3");
        assert_eq!(*in_tree(1), format!("T=1, rejection, chain 3 {tokens}"));
        if draws {
            assert!(!served[1].to_string().contains(unsaid), "{}", served[1]);
        }
    }
    // vLLM does not say it.
    let served = report(Played::vllm());
    assert_eq!(
        served[1]["in_tree"]["setting"],
        "T=1, rejection, chain 3 likeliest"
    );
    assert!(!served[0].to_string().contains(unsaid), "{}", served[0]);
    let notes = served[1]["notes"].to_string();
    for part in [
        unsaid,
        " with T=1, rejection, chain 3 likeliest, as by default, and ",
        " with T=1, rejection, chain 3 drawn",
    ] {
        assert!(notes.contains(part), "no `{part}`: {notes}");
    }
    assert!(
        !notes.contains("though prompts and drafter are the same"),
        "{notes}"
    );
}

#[test]
fn above_temperature_0_outputs_are_not_compared() {
    let workspace = workspace();
    let drafter = PlayedEngine::start(Played::vllm());
    let baseline = PlayedEngine::start(Played::baseline());
    let urls = [drafter.url(), baseline.url()];
    let words = [
        "--server",
        &urls[0],
        "--baseline-server",
        &urls[1],
        "--concurrency",
        "8",
        "--temperature",
        "0.7",
        "--top-k",
        "20",
        "--top-p",
        "0.9",
    ];
    let outcome = evaluate(&workspace, &words).succeeded();
    let served = served(&workspace);
    let temperatures: Vec<f64> = served
        .iter()
        .map(|report| report["temperature"].as_f64().unwrap())
        .collect();
    assert_eq!(temperatures, [0.0, 0.0, 0.7, 0.7]);
    assert!(served[0].get("outputs").is_some() && served[2].get("outputs").is_none());
    assert!(served[2]["figures"]["speedup"].as_f64().is_some());
    assert_eq!(
        served[2]["notes"],
        json!(["there are only 5 prompts, so no more requests than that ran at once"])
    );
    assert!(
        outcome
            .stdout
            .contains("served, drafter, T=0.7 top-k=20 top-p=0.9, 8 at once: τ ")
    );
    let sampled = |body: &Value| body["temperature"] == 0.7;
    let bodies = drafter.bodies();
    assert!(bodies.iter().any(sampled));
    for body in bodies {
        let expected = match sampled(&body) {
            true => (json!(20), json!(0.9)),
            false => (json!(-1), json!(1.0)),
        };
        assert_eq!((body["top_k"].clone(), body["top_p"].clone()), expected);
    }
}

#[test]
fn a_measurement_can_be_stopped_also_where_the_server_is_silent() {
    for fault in [None, Some((3, Fault::Silence))] {
        let workspace = workspace();
        let drafter = PlayedEngine::start(Played {
            fault,
            ..Played::vllm()
        });
        let url = drafter.url();
        let numbers: Vec<String> = (1..=200).map(|number| number.to_string()).collect();
        let mut words = vec!["evaluate", "--target", "target", "--prompts", "eval.jsonl"];
        words.extend(["--out", "out", "--server", &url, "--temperature", "0"]);
        // An answer that never comes fails after a day.
        words.extend(["--timeout", "86400"]);
        words.extend(numbers.iter().flat_map(|number| ["--concurrency", number]));
        let mut child = workspace.start(&words);
        wait_for(&mut child, || drafter.bodies().len() > 3);
        signal(&child, "-TERM");
        let outcome = Outcome::from(child.wait_with_output().unwrap());
        outcome.interrupted(&["error: interrupted"]);
        assert!(!workspace.path("out").exists());
    }
}
