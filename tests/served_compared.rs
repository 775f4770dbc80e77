//! Two drafters in engines that are played, compared by `spectrain report --baseline`; and what `evaluate --server` needs of a target.
use serde_json::{Value, json};

use crate::played_engine::{DRAFTED, Played, PlayedEngine, accepted_of_drafts};
use crate::served::{asked_for, workspace};
use crate::workspace::{Outcome, Workspace};

/// Tokens of an answer.
const NEW: usize = 13;
/// Tokens of the shorter drafts.
const SHORT: usize = 2;

/// Measures a server, with these further words, and leaves the report in `out`.
fn measure(workspace: &Workspace, engine: &PlayedEngine, out: &str, more: &str) -> Outcome {
    let url = engine.url();
    workspace.run_line(format!(
        "evaluate --target target --prompts eval.jsonl --temperature 0 --server {url} --out {out}{more}"
    ))
}

/// A server whose drafts have so many tokens.
fn drafting(drafted: usize) -> PlayedEngine {
    PlayedEngine::start(Played {
        drafted,
        ..Played::vllm()
    })
}

/// A server whose drafts are known only by its counters.
fn silent() -> PlayedEngine {
    PlayedEngine::start(Played {
        tells: false,
        ..Played::vllm()
    })
}

fn counts(workspace: &Workspace, report: &str) -> Vec<[u64; 2]> {
    let report = workspace.json(&format!("{report}/report.json"));
    serde_json::from_value(report["served"][0]["figures"]["counts"].clone()).unwrap()
}

/// Tokens and passes of each of the first answers, and τ of all.
fn expected(bodies: &[Value], drafted: usize) -> (Vec<[u64; 2]>, f64) {
    let of = |body: &Value| {
        let accepted = accepted_of_drafts(body, NEW, drafted);
        let passes = accepted.len() as u64;
        [passes + accepted.iter().sum::<usize>() as u64, passes]
    };
    let counts: Vec<[u64; 2]> = bodies.iter().map(of).collect();
    let sum = |at: usize| counts.iter().map(|of| of[at] as f64).sum::<f64>();
    let tau = sum(0) / sum(1);
    (counts, tau)
}

#[test]
fn two_drafters_are_compared_conversation_by_conversation() {
    let workspace = workspace();
    workspace.write_conversations("eval.jsonl", 40, 6);
    let (long, short) = (drafting(DRAFTED), drafting(SHORT));
    let words = format!(" --max-new-tokens {NEW} --concurrency 1 --concurrency 3");
    measure(&workspace, &short, "old", &words).succeeded();
    measure(&workspace, &long, "new", &words).succeeded();
    let bodies = &asked_for(NEW, &long)[..6];
    let (of_long, tau) = expected(bodies, DRAFTED);
    let (of_short, baseline) = expected(bodies, SHORT);
    assert_eq!(counts(&workspace, "new"), of_long);
    assert_eq!(counts(&workspace, "old"), of_short);

    let told = workspace
        .run_line("report new --baseline old")
        .succeeded()
        .stdout;
    for at_once in [1, 3] {
        let line = told.lines().find(|line| {
            line.starts_with(&format!("- served, T=0, {at_once} at once: τ {tau:.3} ["))
        });
        let line = line.unwrap_or_else(|| panic!("no line of {at_once}: {told}"));
        assert!(
            line.contains(&format!("] against {baseline:.3} [")),
            "{line}"
        );
        assert!(
            line.contains("better; larger in 6, smaller in 0 of 6 conversations"),
            "{line}"
        );
    }
    let note = format!("- note: the drafts have {DRAFTED} tokens here and {SHORT} in the baseline");
    assert_eq!(told.matches(&note).count(), 1, "{told}");
    workspace
        .run_line("report old --baseline new --fail-below -0.05")
        .failed(&["τ has fallen by more than 0.05: old, served, T=0, 1 at once; old, served, T=0, 3 at once"]);
    let same = workspace
        .run_line("report new --baseline new")
        .succeeded()
        .stdout;
    assert!(
        same.contains("+0.000 [+0.000, +0.000], not told apart"),
        "{same}"
    );

    workspace
        .run_line("report old new --html page.html")
        .succeeded();
    let page = workspace.text("page.html");
    for part in [
        "new against old",
        "served, T=0, 3 at once",
        "Intervals are over conversations",
    ] {
        assert!(page.contains(part), "no `{part}`: {page}");
    }
}

#[test]
fn reports_that_were_asked_something_else_are_refused() {
    let workspace = workspace();
    let engine = drafting(DRAFTED);
    let url = engine.url();
    let one = " --concurrency 1 --max-new-tokens 8";
    measure(&workspace, &engine, "old", one).succeeded();
    let cases = [
        (
            format!("{one} --count 4"),
            vec![
                "expected the prompts that the baseline's server was asked".to_owned(),
                format!("--server {url} --prompts eval.jsonl --count 64 --max-new-tokens 8 --out OLD"),
            ],
        ),
        (
            " --concurrency 1 --max-new-tokens 9".to_owned(),
            vec!["expected answers of at most 8 tokens (`--max-new-tokens 8`), found answers of at most 9 tokens".to_owned()],
        ),
        (
            format!("{one} --ignore-stop"),
            vec!["found answers that end at their length alone (`--ignore-stop`)".to_owned()],
        ),
        (
            " --concurrency 2 --max-new-tokens 8".to_owned(),
            vec!["expected one of the runs served, T=0, 1 at once".to_owned()],
        ),
    ];
    for (words, told) in cases {
        measure(&workspace, &engine, "new", &words).succeeded();
        let told: Vec<&str> = told.iter().map(String::as_str).collect();
        workspace
            .run_line("report new --baseline old")
            .failed(&told);
    }
}

#[test]
fn reports_without_counts_of_conversations_say_what_to_do() {
    let workspace = workspace();
    let engine = silent();
    measure(
        &workspace,
        &engine,
        "each",
        " --concurrency 1 --concurrency 3",
    )
    .succeeded();
    assert_eq!(counts(&workspace, "each").len(), 5);
    let told = workspace
        .run_line("report each --baseline each")
        .succeeded()
        .stdout;
    assert!(told.contains("- served, T=0, 1 at once: τ "), "{told}");
    assert!(
        told.contains("- note: served, T=0, 3 at once: τ "),
        "{told}"
    );
    measure(&workspace, &engine, "all", " --concurrency 3").succeeded();
    workspace.run_line("report all --baseline each").failed(&[
        "expected counts of each conversation, found none (served, T=0, 3 at once: τ ",
        "measure with `--concurrency 1`",
    ]);

    let mut old = workspace.json("each/report.json");
    for run in old["served"].as_array_mut().unwrap() {
        run.as_object_mut().unwrap().remove("asked");
        run["figures"].as_object_mut().unwrap().remove("counts");
    }
    workspace.write("old.json", old.to_string());
    workspace.run_line("report old.json").succeeded();
    workspace
        .run_line("report each --baseline old.json")
        .failed(&[
            "the baseline was written by an older spectrain",
            "measure that server again",
        ]);
}

#[test]
fn what_was_decoded_here_is_not_compared_with_what_was_served() {
    let workspace = Workspace::finished();
    measure(&workspace, &drafting(DRAFTED), "served", " --concurrency 1").succeeded();
    workspace.run_line("report served --baseline run").failed(&[
        "expected outputs that spectrain decoded itself",
        "found only figures of a server",
        "`spectrain evaluate --drafter DRAFTER`",
    ]);
    workspace.run_line("report run --baseline served").failed(&[
        "expected figures of a server, as the baseline has (`spectrain evaluate --server URL`",
        "found only outputs that spectrain decoded itself",
    ]);
    let both = workspace.run_line("report run served").succeeded().stdout;
    let both = both.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        both.contains("run was decoded by spectrain itself, served was not"),
        "{both}"
    );
}

#[test]
fn of_a_target_that_only_a_server_has_no_weights_need_be_there() {
    let workspace = workspace();
    workspace.write_conversations("eval.jsonl", 40, 6);
    let engine = drafting(DRAFTED);
    measure(&workspace, &engine, "whole", " --concurrency 1").succeeded();
    let target = |out: &str| workspace.json(&format!("{out}/report.json"))["target"].clone();
    assert_eq!(target("whole")["sha256"].as_str().unwrap().len(), 64);
    std::fs::remove_file(workspace.path("target/model.safetensors")).unwrap();
    measure(&workspace, &engine, "text", " --concurrency 1").succeeded();
    assert_eq!(target("text"), json!({"model": "target"}));
    let last = engine.bodies().pop().unwrap();
    assert_eq!(last["stop_token_ids"], json!([5, 6]));
    let told = workspace
        .run_line("report text --baseline whole")
        .succeeded()
        .stdout;
    assert!(
        told.contains("not told apart") && !told.contains("note"),
        "{told}"
    );
}

#[test]
fn a_target_that_may_think_is_not_asked_to_in_silence() {
    let workspace = workspace();
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if enable_thinking is false %}no thoughts{% endif %}";
    workspace.write("target/chat_template.jinja", template);
    let engine = drafting(DRAFTED);
    let told = "warning: the chat template of `target` reads `enable_thinking`";
    let open = measure(&workspace, &engine, "open", " --concurrency 1").succeeded();
    assert!(open.stderr.contains(told), "{open:#?}");
    assert!(
        open.stderr
            .contains("`--template-variable enable_thinking=false`"),
        "{open:#?}"
    );
    let variable = " --concurrency 1 --template-variable enable_thinking=false";
    let said = measure(&workspace, &engine, "said", variable).succeeded();
    assert!(!said.stderr.contains(told), "{said:#?}");
    workspace
        .run_line("report open --baseline said")
        .failed(&["other prompts", "--template-variable enable_thinking=false"]);
}
