//! The reports of several runs in one table, and what that says of them.
use std::fs::File;

use crate::workspace::{Outcome, Workspace};

#[test]
fn runs_of_one_name_are_told_apart_by_their_folders() {
    let workspace = Workspace::finished();
    std::fs::rename(workspace.path("runs"), workspace.path("a")).unwrap();
    workspace
        .run(&["recipe", "recipe.toml", "--runs", "b"])
        .succeeded();
    let table = workspace.run(&["report", "a/run", "b/run"]).succeeded();
    for name in ["\n  run (a) ", "\n  run (b) "] {
        assert!(table.stdout.contains(name), "no `{name}`: {table:#?}");
    }
    // One run twice is one run.
    let table = workspace
        .run(&["report", "a/run", "a/run/evaluate"])
        .succeeded();
    let rows = table.stdout.matches("\n  run  ").count();
    assert_eq!(rows, 2, "{table:#?}");
}

#[test]
fn results_of_another_drafter_than_the_one_that_is_there_are_stale() {
    let workspace = Workspace::finished();
    let judge = [
        "evaluate",
        "--target",
        "target",
        "--drafter",
        "run",
        "--prompts",
        "eval.jsonl",
    ];
    let settings = ["--count", "1", "--max-new-tokens", "4", "--out", "judged"];
    workspace.run(&[&judge[..], &settings].concat()).succeeded();
    let before = workspace.bytes("judged/report.json");
    let again = workspace.run(&[&judge[..], &settings].concat()).succeeded();
    assert!(
        again.stderr.contains("was moved to `judged/old-1`"),
        "{again:#?}"
    );
    assert!(before == workspace.bytes("judged/old-1/report.json"));
    let reports = ["report", "run", "judged"];
    let fresh = workspace.run(&reports).succeeded();
    assert!(!fresh.stdout.contains("Stale"), "{fresh:#?}");

    // As far as the export, whose drafter is another one then.
    let stages = ["prepare", "train", "export"]
        .map(|stage| ["--stage", stage])
        .concat();
    let words = [&["recipe", "recipe.toml", "--set", "seed=7"], &stages[..]].concat();
    workspace.run(&words).succeeded();
    let stale = workspace.run(&reports).succeeded();
    for told in [
        "Stale: run: `export/drafter` has changed since.",
        "Stale: judged: the drafter `runs/run/export/drafter` has changed since.",
    ] {
        assert!(stale.stdout.contains(told), "no `{told}`: {stale:#?}");
    }

    workspace
        .run(&["recipe", "recipe.toml", "--set", "seed=7"])
        .succeeded();
    let again = workspace.run(&["report", "run"]).succeeded();
    assert!(!again.stdout.contains("Stale"), "{again:#?}");
    workspace.unfinish("evaluate");
    let again = workspace.run(&["report", "run"]).succeeded();
    let told = "Stale: run: the stage `evaluate` was started again and is not done.";
    assert!(again.stdout.contains(told), "{again:#?}");
}

#[test]
fn reports_of_different_prompts_say_how_to_make_some_that_can_be_compared() {
    let workspace = Workspace::finished();
    workspace.write_conversations("other.jsonl", 90, 4);
    let judge = |prompts: &str, out: &str| {
        let words = format!(
            "evaluate --target target --drafter run --prompts {prompts} --count 3 --temperature 0 --draft-length 2 \
             --max-new-tokens 8 --out {out}"
        );
        workspace.run_line(words).succeeded();
    };
    judge("eval.jsonl", "old");
    judge("other.jsonl", "new");
    let command = "spectrain evaluate --target target --drafter runs/run/export/drafter --prompts eval.jsonl --count 3 \
                   --max-new-tokens 8 --out OLD";
    workspace.run_line("report new --baseline old").failed(&[
        "the report `new`",
        command,
        "`spectrain report NEW --baseline OLD`",
    ]);
    let told = |reports: &str| {
        let text = workspace.run_line(reports).succeeded().stdout;
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let both = told("report old new");
    assert!(
        both.contains(
            "No verdict on which is best: new and old were judged on different prompts. `spectrain evaluate`"
        ),
        "{both}"
    );
    judge("eval.jsonl", "new");
    workspace.run_line("report new --baseline old").succeeded();
    let both = told("report old new");
    assert!(!both.contains("No verdict"), "{both}");
    assert!(
        both.contains("but 3 prompts are too few to tell it from the second"),
        "{both}"
    );
}

#[test]
fn a_gate_does_not_pass_by_what_is_not_compared() {
    let workspace = Workspace::finished();
    workspace.write_conversations("six.jsonl", 90, 6);
    let judge = |words: &str, out: &str| {
        let words = format!(
            "evaluate --target target --drafter run --prompts six.jsonl --no-baseline --draft-length 2 {words} --out {out}"
        );
        workspace.run_line(words).succeeded();
    };
    judge("--temperature 0 --temperature 1 --max-new-tokens 8", "old");
    judge("--temperature 0 --max-new-tokens 8", "new");
    let told = workspace.run_line("report new --baseline old").succeeded();
    for tokens in ["drawn", "likeliest"] {
        let note = format!("- note: only the baseline has T=1, rejection, chain 2 {tokens}\n");
        assert!(told.stdout.contains(&note), "no `{note}`: {told:#?}");
    }
    workspace
        .run_line("report new --baseline old --fail-below -0.05")
        .failed(&[
            "`--fail-below`: expected everything that the baseline has",
            "new, T=1, rejection, chain 2 drawn; new, T=1, rejection, chain 2 likeliest",
        ]);
    let told = workspace
        .run_line("report old --baseline new --fail-below -0.05")
        .succeeded();
    let note = "- note: the baseline does not have T=1, rejection, chain 2 drawn\n";
    assert!(told.stdout.contains(note), "no `{note}`: {told:#?}");
}

#[test]
fn drafters_without_a_length_in_common_are_compared_each_at_its_own() {
    let workspace = Workspace::finished();
    let judge = |lengths: &str, out: &str| {
        let words = format!(
            "evaluate --target target --drafter run --prompts eval.jsonl --count 3 --no-baseline --temperature 0 --max-new-tokens 8 \
             {lengths} --out {out}"
        );
        workspace.run_line(words).succeeded();
    };
    judge("--draft-length 2", "old");
    judge("--draft-length 3", "new");
    judge("--draft-length 3 --draft-length 4", "several");
    let both = workspace.run_line("report old new").succeeded().stdout;
    let both = both.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "T=0, greedy, each at its own length old (chain 2) ",
        " new (chain 3) ",
        "T=0, greedy, each at its own length: ",
        "but 3 prompts are too few to tell it from the second",
        "chains of 2 and 3 tokens",
        "the speed-up tells which drafter is faster",
    ] {
        assert!(both.contains(part), "no `{part}`: {both}");
    }
    assert!(!both.contains("No verdict"), "{both}");

    let words = "report new --baseline old --html page.html";
    let told = workspace.run_line(words).succeeded().stdout;
    for part in [
        "- T=0, greedy, chain 3 against chain 2: τ ",
        "`spectrain evaluate --draft-length 2`",
        "`--set 'evaluate.draft_lengths=[2]'`",
    ] {
        assert!(told.contains(part), "no `{part}`: {told}");
    }
    let page = workspace.text("page.html");
    for part in [
        "Acceptance compared: old, new",
        "new against old",
        "T=0, greedy, each at its own length",
        "new (chain 3)",
    ] {
        assert!(page.contains(part), "no `{part}`");
    }
    // A gate asks for the same chain.
    workspace
        .run_line("report new --baseline old --fail-below -9")
        .failed(&[
            "expected everything that the baseline has",
            "new, T=0, greedy, chain 2 (only with chain 3)",
        ]);
    let command = "`--set 'evaluate.draft_lengths=[2]'`";
    workspace
        .run_line("report several --baseline old")
        .failed(&["one of the settings T=0, greedy, chain 2", command]);
    let both = workspace.run_line("report old several").succeeded().stdout;
    let both = both.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        both.contains("No verdict on which is best") && both.contains(command),
        "{both}"
    );
}

/// A workspace with two reports of one drafter on two datasets, `old` and `new`.
fn judged_twice() -> Workspace {
    let workspace = Workspace::finished();
    for out in ["old", "new"] {
        let words = format!(
            "evaluate --target target --drafter run --prompts eval.jsonl --prompts train.jsonl --count 3 --no-baseline --temperature 0 \
             --draft-length 2 --max-new-tokens 8 --out {out}"
        );
        workspace.run_line(words).succeeded();
    }
    workspace
}

#[test]
fn each_dataset_has_its_difference() {
    let workspace = judged_twice();
    let told = workspace.run_line("report new --baseline old").succeeded();
    let lines = told.stdout.lines();
    let ways: Vec<&str> = lines
        .filter_map(|line| line.split_once(": τ "))
        .map(|(way, _)| way)
        .collect();
    let way = "- T=0, greedy, chain 2";
    let [all, eval, train] = &ways[..] else {
        panic!("{told:#?}")
    };
    assert_eq!(*all, way);
    assert!(eval.starts_with(&format!("{way} on `")) && train.starts_with(&format!("{way} on `")));
    assert_ne!(eval, train);
    // The same side by side.
    let both = workspace.run_line("report old new").succeeded().stdout;
    assert_eq!(
        both.matches("T=0, greedy, chain 2 on `").count(),
        2,
        "{both}"
    );
}

#[test]
fn differences_are_there_for_programs() {
    let workspace = judged_twice();
    let words =
        "report new --baseline old --fail-below -0.05 --json --csv pairs.csv --html page.html";
    let outcome = workspace.run_line(words).succeeded();
    // All prompts together are enough to judge by.
    let warned = "does not judge datasets of fewer than 6 conversations by themselves: new, T=0, greedy, chain 2 on `";
    assert!(outcome.stderr.contains(warned), "{outcome:#?}");
    let printed = outcome.stdout;
    let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(json["baseline"], "old");
    let report = &json["reports"][0];
    assert_eq!(report["name"], "new");
    assert_eq!(report["not_compared"], serde_json::json!([]));
    let found = report["differences"].as_array().unwrap();
    assert_eq!(found.len(), 3, "{printed}");
    assert!(found[0].get("dataset").is_none() && found[1]["dataset"].is_string());
    let verdicts = found.iter().map(|pair| &pair["verdict"]);
    let verdicts: Vec<&serde_json::Value> = verdicts.collect();
    assert_eq!(
        verdicts,
        ["not told apart", "too few prompts", "too few prompts"]
    );
    for pair in found {
        assert_eq!(pair["difference"], 0.0);
        assert_eq!(pair["ci95"], serde_json::json!([0.0, 0.0]));
    }
    let rows = workspace.text("pairs.csv");
    let rows: Vec<&str> = rows.split_terminator("\r\n").collect();
    assert_eq!(rows.len(), 1 + found.len(), "{rows:?}");
    assert!(rows[0].starts_with("report,setting,dataset,conversations,baseline_tau,"));
    assert!(
        rows[1].starts_with("new,\"T=0, greedy, chain 2\",overall,6,"),
        "{rows:?}"
    );
    assert!(workspace.text("page.html").contains("chain 2 on `"));
    workspace
        .run_line("report new --baseline old --out pairs.md")
        .misused_by_usage(&["--out"]);
    workspace
        .run_line("report new --baseline old --fail-below 0.05")
        .misused_by_usage(&["a number that is not above 0", "found `0.05`"]);
}

#[test]
fn one_command_says_the_same_on_its_page_and_everywhere_else() {
    let workspace = judged_twice();
    let words =
        "report new old --baseline old --fail-below -0.05 --json --csv pairs.csv --html page.html";
    // The bound takes each for itself, by 6 conversations.
    let printed = workspace.run_line(words).succeeded().stdout;
    let json: serde_json::Value = serde_json::from_str(&printed).unwrap();
    // One of two may be chosen, for which 6 are too few.
    let too_few = "too few prompts";
    let reports = json["reports"].as_array().unwrap().iter();
    let found: Vec<&serde_json::Value> = reports
        .flat_map(|report| report["differences"].as_array().unwrap())
        .collect();
    assert_eq!(found.len(), 6, "{printed}");
    for pair in found {
        assert_eq!(pair["among"], 2);
        assert_eq!(pair["joint_ci95"], serde_json::json!([0.0, 0.0]));
        assert_eq!([&pair["verdict"], &pair["choice"]], [too_few; 2]);
    }
    let rows = workspace.text("pairs.csv");
    assert_eq!(rows.matches(",too few prompts,false,").count(), 6, "{rows}");
    assert_eq!(
        rows.matches(",2,0,0,too few prompts\r\n").count(),
        6,
        "{rows}"
    );
    let page = workspace.text("page.html");
    assert_eq!(page.matches("– too few prompts").count(), 6);
    let told = workspace.run_line("report new old --baseline old");
    assert_eq!(
        told.succeeded()
            .stdout
            .matches(", too few prompts;")
            .count(),
        6
    );
}

#[test]
fn runs_that_differ_in_their_seed_alone_are_pooled() {
    let workspace = Workspace::finished();
    for settings in [
        ["name=twin", "seed=1"],
        ["name=slow", "train.learning_rate=1e-4"],
    ] {
        workspace.run_recipe(&settings).succeeded();
    }
    let told = workspace
        .run_line("report run slow twin --pool")
        .succeeded();
    let words = told.stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "T=0, greedy, chain 2 τ [95 % CI]",
        " run ",
        " the first ",
        "seeds 0: ",
        "slow ",
    ] {
        assert!(words.contains(part), "no `{part}`: {told:#?}");
    }
    assert!(!words.contains("twin"), "{told:#?}");
    workspace
        .run_line("report run runs/run --pool")
        .failed(&["expected runs of one recipe to differ in `seed`, found seed 0 twice"]);
    let words = "evaluate --target target --drafter run --prompts eval.jsonl --count 1 --max-new-tokens 4 --out judged";
    workspace.run_line(words).succeeded();
    workspace
        .run_line("report run judged --pool")
        .failed(&["`--pool`: expected reports of runs, found `judged`"]);
    workspace
        .run_line("report run --pool --html page.html")
        .misused_by_usage(&["--pool", "--html"]);
    // Drafters whose reports do not say how they were trained are pooled under a name.
    let words = "report run --group others=slow,twin --csv rows.csv --json";
    let told = workspace.run_line(words).succeeded();
    let json: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
    assert_eq!(json["first"], "run");
    let rows = json["tables"][0]["rows"].as_array().unwrap();
    let others = rows.iter().find(|row| row["variation"] == "others");
    let seeds = &others.unwrap()["seeds"];
    assert_eq!([&seeds[0]["seed"], &seeds[1]["seed"]], ["slow", "twin"]);
    let rows = workspace.text("rows.csv");
    assert!(
        rows.contains("\r\nothers,,\"T=0, greedy, chain 2\",overall,"),
        "{rows}"
    );
    workspace
        .run_line("report --group others=slow,slow")
        .failed(&["found the same drafter in `slow` and `slow`"]);
    workspace
        .run_line("report --group others")
        .misused_by_usage(&["NAME=REPORT,REPORT"]);
}

#[test]
fn evaluated_prompts_that_chose_the_weights_are_in_every_report() {
    let workspace = Workspace::finished();
    let chose = |file: &str| workspace.json(file)["choosing_prompts"].clone();
    assert!(chose("runs/run/evaluate/report.json").is_null());
    let expected = serde_json::json!({"chose": 2, "of": 4});
    let words = "evaluate --target target --drafter run --prompts eval.jsonl --no-baseline --temperature 0 --max-new-tokens 4 --out judged";
    workspace.run_line(words).succeeded();
    assert_eq!(chose("judged/report.json"), expected);
    workspace.run_recipe(&["evaluate.prompts=4"]).succeeded();
    assert_eq!(chose("runs/run/evaluate/report.json"), expected);
    let told = "2 of 4 evaluated prompts also chose the weights";
    for file in ["report.md", "report.html"] {
        let text = workspace.text(&format!("runs/run/evaluate/{file}"));
        assert!(text.contains(told), "{file}: {text}");
    }
    let shown = workspace.run_line("report run").succeeded().stdout;
    let shown = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(shown.contains(told), "{shown}");
}

#[test]
fn evaluated_prompts_that_were_trained_on_are_in_every_report() {
    let workspace = Workspace::finished();
    let known = |file: &str| workspace.json(file)["known_prompts"].clone();
    let evaluate =
        "evaluate --target target --drafter run --no-baseline --temperature 0 --max-new-tokens 4";
    let told = "3 of 3 prompts are also in the training data";
    let train = format!("{evaluate} --prompts train.jsonl --count 3 --out judged");
    let outcome = workspace.run_line(&train).succeeded();
    assert!(outcome.stderr.contains(told), "{}", outcome.stderr);
    let expected = serde_json::json!({"known": 3, "of": 3});
    assert_eq!(known("judged/report.json"), expected);
    let eval = format!("{evaluate} --prompts eval.jsonl --count 3 --out others");
    workspace.run_line(&eval).succeeded();
    assert!(known("others/report.json").is_null());
    let set = r#"evaluate.prompts=[{ path = "train.jsonl", name = "known" }]"#;
    let outcome = workspace.run_recipe(&[set]).succeeded();
    assert!(
        outcome
            .stderr
            .contains("prompts are also in the training data"),
        "{}",
        outcome.stderr
    );
    let found = known("runs/run/evaluate/report.json");
    assert_eq!(found["known"], found["of"]);
}

#[test]
fn data_of_another_name_are_the_same_data() {
    let workspace = Workspace::finished();
    workspace.write("copy.jsonl", workspace.bytes("train.jsonl"));
    workspace.write_conversations("other.jsonl", 200, 40);
    for name in ["copy", "other"] {
        let (name, data) = (format!("name={name}"), format!("data.train={name}.jsonl"));
        workspace.run_recipe(&[&name, &data]).succeeded();
    }
    let told = |other: &str| {
        let outcome = workspace.run(&["report", "run", other]).succeeded();
        let differs = outcome.stdout.contains("Differs: `data.train`");
        (differs, outcome)
    };
    let (differs, outcome) = told("copy");
    assert!(!differs, "{outcome:#?}");
    let (differs, outcome) = told("other");
    assert!(differs, "{outcome:#?}");
    let prepared = |run: &str| {
        let report = workspace.json(&format!("runs/{run}/evaluate/report.json"));
        report["prepared"].clone()
    };
    assert!(prepared("run")["train"].is_string() && prepared("run")["eval"].is_string());
    assert_eq!(prepared("run"), prepared("copy"));
    assert_ne!(prepared("run")["train"], prepared("other")["train"]);
}

#[test]
fn outputs_that_end_elsewhere_are_not_compared() {
    let workspace = Workspace::finished();
    let judge = |words: &str, out: &str| {
        let words = format!(
            "evaluate --target target --drafter run --prompts eval.jsonl --count 2 --no-baseline --temperature 0 {words} --out {out}"
        );
        workspace.run_line(words).succeeded();
    };
    judge("--max-new-tokens 8", "old");
    judge("--max-new-tokens 9", "new");
    workspace
        .run_line("report new --baseline old")
        .failed(&["found answers of at most 9 tokens"]);
    let both = workspace.run_line("report old new").succeeded().stdout;
    assert!(both.contains("No verdict on which is best"), "{both}");
    let mut earlier = workspace.json("old/report.json");
    for setting in earlier["settings"].as_array_mut().unwrap() {
        let ends = setting.as_object_mut().unwrap().remove("ends").unwrap();
        assert_eq!(ends["max_new_tokens"], 8);
    }
    workspace.write("earlier.json", earlier.to_string());
    workspace
        .run_line("report new --baseline earlier.json")
        .succeeded();
}

#[test]
fn a_report_that_cannot_be_shown_is_written_all_the_same() {
    let workspace = Workspace::finished();
    let words = "evaluate --target target --drafter run --prompts eval.jsonl --count 1 --max-new-tokens 4 --out judged";
    let words: Vec<&str> = words.split(' ').collect();
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = workspace.command(&words);
    let outcome = Outcome::from(command.stdout(full).output().unwrap());
    outcome.failed(&["cannot write to standard output"]);
    assert_eq!(workspace.json("judged/report.json")["schema"], 1);
}

#[test]
fn one_conversation_has_no_interval() {
    let workspace = Workspace::finished();
    let words = "evaluate --target target --drafter run --prompts eval.jsonl --count 1 --no-baseline --temperature 0 \
                 --max-new-tokens 8 --out one";
    workspace.run_line(words).succeeded();
    let overall = workspace.json("one/report.json")["settings"][0]["overall"].clone();
    assert!(overall["tau"].is_number() && overall.get("tau_ci95").is_none());
    let told = workspace.run_line("report one --baseline one").succeeded();
    // A gate does not pass by what says nothing.
    workspace
        .run_line("report one --baseline one --fail-below -0.05")
        .failed(&[
            "`--fail-below`: expected 6 conversations or more to judge by, found fewer for one, T=0, greedy, chain ",
            " (1)",
        ]);
    assert!(
        told.stdout.contains(", +0.000, too few prompts;"),
        "{told:#?}"
    );
}

#[test]
fn a_table_is_written_as_markdown_or_not_at_all() {
    let workspace = Workspace::finished();
    let told = ["`--out table.html`", "`.svg`", "`.md`"];
    let words = ["report", "run", "--out", "table.html"];
    workspace.run(&words).misused(&told);
    assert!(!workspace.path("table.html").exists());
    let words = ["report", "run", "--out", "table.md"];
    workspace.run(&words).succeeded();
    let table = workspace.text("table.md");
    assert!(table.contains("| T=0, greedy, chain 2 | run |"), "{table}");
    let words = ["report", "run", "--out", "picture.svg"];
    workspace.run(&words).succeeded();
    let picture = workspace.text("picture.svg");
    assert!(
        picture.starts_with("<svg ") && picture.contains("T=0, greedy"),
        "{picture}"
    );
}

#[test]
fn the_same_figures_are_a_page_rows_and_json() {
    let workspace = Workspace::finished();
    let words = [
        "report",
        "run",
        "runs/run",
        "--html",
        "page.html",
        "--csv",
        "rows.csv",
    ];
    let outcome = workspace.run(&words).succeeded();
    assert_eq!(outcome.stdout, "");
    assert_eq!(outcome.stderr, "wrote `page.html`\nwrote `rows.csv`\n");
    let again = workspace.run(&words).succeeded();
    let told =
        "wrote `page.html` in place of the older one\nwrote `rows.csv` in place of the older one\n";
    assert_eq!(again.stderr, told);
    let page = workspace.text("page.html");
    assert!(page.starts_with("<!DOCTYPE html>") && page.ends_with("</html>\n"));
    assert!(page.contains("role=\"img\"") && !page.contains("<script"));
    assert!(page.contains("Differences by pairs of prompts"));
    for page in [page, workspace.text("runs/run/evaluate/report.html")] {
        for told in [
            "id=\"loss-0-title\"",
            "id=\"validated-0-title\"",
            "class=\"sample\"",
        ] {
            assert!(page.contains(told), "{told}");
        }
    }

    let outcome = workspace.run(&["report", "run", "--json"]).succeeded();
    let json: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let report = workspace.json("runs/run/evaluate/report.json");
    assert_eq!(json["reports"][0]["name"], "run");
    assert_eq!(json["reports"][0]["report"], report);
    assert_eq!(json["remarks"], serde_json::json!([]));

    let rows = workspace.text("rows.csv");
    let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(',').collect()).collect();
    let settings = report["settings"].as_array().unwrap();
    assert_eq!(rows.len(), 1 + 2 * settings.len());
    let column = rows[0].iter().position(|name| *name == "tau").unwrap();
    let tau: f64 = rows[1][column].parse().unwrap();
    assert_eq!(settings[0]["overall"]["tau"], tau);
    for words in [
        ["report", "run", "--html", "nowhere/page.html"],
        ["report", "run", "--csv", "nowhere/rows.csv"],
    ] {
        workspace.run(&words).failed(&["nowhere"]);
    }
    // Neither a report that is read nor another file that is written gives its place.
    workspace
        .run_line("report run --csv runs/run/../run/evaluate/report.json")
        .misused(&["`--csv`: expected a file that is not part of `run`, found"]);
    workspace
        .run_line("report run --html page.html --csv ./page.html")
        .misused(&["`--csv`: expected a file that is not part of `--html`, found"]);
    assert_eq!(workspace.json("runs/run/evaluate/report.json"), report);
}

#[test]
fn what_is_no_report_says_what_was_looked_for() {
    let workspace = Workspace::finished();
    for (given, told) in [
        ("walk", "no run `runs/walk`"),
        (
            "runs",
            "it holds no `evaluate/report.json` and no `report.json`",
        ),
        ("recipe.toml", "`recipe.toml` is not a report"),
        ("target", "no report of the drafter `target`"),
    ] {
        workspace.run(&["report", given]).failed(&[told]);
    }
}

#[test]
fn launch_commands_are_printed_at_every_run_and_by_themselves() {
    let workspace = Workspace::new();
    let words = ["recipe", "recipe.toml", "--quiet"];
    let first = workspace.run(&words).succeeded();
    let (commands, table) = first.stdout.split_once("\n\n").unwrap();
    let lines: Vec<&str> = commands.lines().collect();
    let here = workspace.path("").canonicalize().unwrap();
    let named = format!("# runs/run/export/drafter, in {}", here.display());
    assert_eq!(lines[0], named);
    let is_shell = |line: &&str| {
        ["# ", "vllm serve ", "python -m sglang"]
            .iter()
            .any(|start| line.starts_with(start))
    };
    assert!(lines.iter().all(is_shell), "{first:#?}");
    for part in [
        "vllm serve target --speculative-config",
        "python -m sglang.launch_server",
        "# above temperature 0 vLLM drafts the likeliest tokens",
        "# above temperature 0 SGLang drafts the likeliest tokens",
        "`\"draft_sample_method\": \"probabilistic\"`",
    ] {
        assert!(commands.contains(part), "no `{part}`: {first:#?}");
    }
    assert!(
        table.starts_with("eagle3 drafter ") && table.contains("T=0, greedy"),
        "{table}"
    );
    assert_eq!(workspace.run(&words).succeeded().stdout, first.stdout);
    let exports = [&words[..], &["--stage", "export"]].concat();
    let exported = workspace.run(&exports).succeeded();
    assert_eq!(exported.stdout, format!("{commands}\n\n"));
    let prepares = [&words[..], &["--stage", "prepare"]].concat();
    assert_eq!(workspace.run(&prepares).succeeded().stdout, "");
}

#[test]
fn data_with_something_wrong_in_it_fails_the_linter() {
    let workspace = Workspace::new();
    let words = [
        "data",
        "lint",
        "--target",
        "target",
        "--train",
        "train.jsonl",
    ];
    let sound = workspace.run(&words).succeeded();
    assert!(sound.stdout.contains("no problems found"), "{sound:#?}");
    let mut rows = workspace.text("train.jsonl");
    rows.push('\n');
    rows.push_str(rows.clone().lines().next().unwrap());
    workspace.write("train.jsonl", rows);
    let outcome = workspace.run(&words).failed(&["1 problem in the data"]);
    assert!(
        outcome
            .stdout
            .contains("1 training sample repeats an earlier one"),
        "{outcome:#?}"
    );
}
