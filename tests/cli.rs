//! What the program says of itself, and how it tells misuse from failure.
use std::fs::File;

use spectrain::families::registry::RECIPES;

use crate::workspace::{Outcome, RECIPE, Workspace};

const HELP: &str = "\
Train the drafters of speculative decoding, export them, and judge them

Usage: spectrain <COMMAND>

Commands:
  recipe       Run a recipe file: every stage that is not done yet
  init         Write a recipe for a target and data of your own
  recipes      List the kinds of recipes
  schema       Print the JSON schema of recipe files, by which editors complete
               and check keys
  evaluate     Judge any drafter's folder, ours or a published one
  generate     Answer one prompt and show which tokens were drafted
  export       Write the drafter of a run or a folder for a serving engine
  import       Turn a published drafter into a run
  push         Upload an exported drafter with its card to the hub, in one
               commit
  check        Check that a drafter's folder is unchanged and made for this
               target
  data         Prepare, check or regenerate a dataset by itself
  features     Bring in features that others captured, or write stored ones for
               others
  relay        Send the hidden states that a server on this machine writes to
               trainers on other machines
  clean        Remove what a run has set aside: `RUN.old-N` and
               `RUN/STAGE.old-N`
  report       Show or compare reports: on the terminal, as a page, a table, a
               picture or data
  watch        Show on the terminal what a run is doing: stages, loss, τ, α by
               depth, speed and the time left
  track        Send the figures of a run to a tracking server
  bench        Measure the speed of feature capture, training and decoding
  doctor       Look at what the program stands on: devices, memory, folders, the
               hub; and say what to do about problems
  completions  Print a script by which a shell completes commands and options
  man          Write a manual page of each command
  help         Print this message or the help of the given subcommand(s)

Options:
  -h, --help     Print help
  -V, --version  Print version
";

const RECIPE_HELP: &str = "\
Run a recipe file: every stage that is not done yet

Usage: spectrain recipe [OPTIONS] [FILE]

Arguments:
  [FILE]  The recipe: a TOML file, or the name of one that is shipped

Options:
      --list               List the recipes that are shipped
      --show <NAME>        Print a recipe that is shipped, to be changed in a
                           file of your own
      --plan               Print the resolved recipe, what would run and what it
                           would take, and stop
      --json               With `--plan`, print it as JSON
      --stage <NAME>       Run or plan only this stage; may be repeated
      --set <KEY=VALUE>    Set one key of the recipe, such as `train.steps=100`;
                           may be repeated
      --sweep <KEY=V,V>    Train once with each of these values of a key, such
                           as `train.learning_rate=1e-3,2e-3`, each in a run of
                           its own, and print τ of each beside that of the
                           first; repeated, every combination; several of `seed`
                           are pooled
      --vary <KEY=V,V>     Train the recipe as it is and once with each of these
                           values of a key, such as `train.ema_decay=0.95,0.99`,
                           and print τ of each beside that of the recipe;
                           repeated, one change at a time; `KEY=V; KEY=V` is one
                           change of several keys. With `--sweep seed=0,1,2`,
                           each with all of these
      --part <N/PARTS>     With `--stage features`, capture only this part of
                           the samples, such as `3/16`, as an element of an
                           array job
      --parts <DIR|URL>    Where parts are: a folder, or `s3://`, `gs://` or
                           `az://` with bucket and prefix; without it
                           `features-parts` in the run
      --device <DEVICE>    `cpu` or `cuda:N` [default: cpu]
      --devices <DEVICES>  Devices to train on together, such as `cuda:0,cuda:1`
                           or `cuda:0-7`, with a process for each; all else is
                           computed on the first one
      --fresh              Move an older run of this name aside and start anew
      --runs <DIR>         The folder of runs [default: runs]
      --quiet              Show no progress, only warnings and errors
  -h, --help               Print help
";

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn help_and_lists_go_to_standard_output() {
    let workspace = Workspace::of(RECIPE);
    let version = format!("spectrain {}\n", env!("CARGO_PKG_VERSION"));
    let cases: [(&[&str], &str); 3] = [
        (&["--help"], HELP),
        (&["recipe", "--help"], RECIPE_HELP),
        (&["--version"], &version),
    ];
    for (words, expected) in cases {
        let outcome = workspace.run(words).succeeded();
        assert_eq!(outcome.stdout, expected, "{words:?}");
        assert_eq!(outcome.stderr, "", "{words:?}");
    }
    let list = workspace.run(&["recipes"]).succeeded().stdout;
    assert!(
        list.lines().all(|line| line.chars().count() <= 80),
        "{list}"
    );
    let said: Vec<String> = words(&list);
    let known = RECIPES.iter();
    let expected: Vec<String> = known
        .flat_map(|kind| words(&format!("{} {}", kind.name, kind.about)))
        .collect();
    assert_eq!(said, expected);
    // No command is a question, but not one that can be answered with success.
    let outcome = workspace.run(&[]);
    assert_eq!((outcome.code, outcome.stderr.as_str()), (Some(2), HELP));
}

#[test]
fn misuse_ends_with_2_and_says_what_there_is() {
    let workspace = Workspace::of(RECIPE);
    let run = ["recipe", "recipe.toml"];
    let cases: [(&[&str], &[&str]); 8] = [
        (&["teach"], &["unrecognized subcommand 'teach'"]),
        (&["recipe"], &["<FILE>"]),
        (
            &[&run[..], &["--plann"]].concat(),
            &["unexpected argument '--plann'", "'--plan'"],
        ),
        (
            &[&run[..], &["--set", "steps"]].concat(),
            &["'steps'", "expected KEY=VALUE"],
        ),
        (
            &[&run[..], &["--device", "gpu"]].concat(),
            &["'gpu'", "known devices: cpu, cuda:N"],
        ),
        (
            &[&run[..], &["--device", "cuda:x"]].concat(),
            &["'cuda:x'", "known devices: cpu, cuda:N"],
        ),
        (
            &[&run[..], &["--stage", "judge"]].concat(),
            &[
                "no stage `judge`",
                "its stages: prepare, train, export, evaluate",
            ],
        ),
        (
            &["evaluate", "--target", "t", "--drafter", "d"],
            &["--prompts <PROMPTS>"],
        ),
    ];
    for (words, expected) in cases {
        let outcome = workspace.run(words);
        assert_eq!(
            (outcome.code, outcome.stdout.as_str()),
            (Some(2), ""),
            "{words:?}: {outcome:#?}"
        );
        for expected in expected {
            assert!(
                outcome.stderr.contains(expected),
                "no `{expected}`: {outcome:#?}"
            );
        }
    }
    assert!(!workspace.path("runs").exists(), "misuse leaves nothing");
}

#[test]
fn numbers_and_words_that_make_no_sense_for_texts_are_refused_by_their_options() {
    let workspace = Workspace::new();
    let prepare = "data prepare --target target --data train.jsonl --out out";
    let lint = "data lint --target target --train train.jsonl";
    for (line, told) in [
        (
            format!("{prepare} --max-length 1"),
            "`--max-length`: expected",
        ),
        (
            format!("{prepare} --min-trained-tokens 0"),
            "`--min-trained-tokens`: expected",
        ),
        (format!("{lint} --turns expand --mask all"), "`--turns`: "),
        (
            format!("{lint} --draft-vocab 5000"),
            "`--draft-vocab`: expected less than the target's vocabulary of 300 tokens, found 5000",
        ),
    ] {
        workspace.run_line(line).misused(&[told]);
    }
    assert!(!workspace.path("out").exists());
}

#[test]
fn options_that_would_have_no_effect_are_refused() {
    let workspace = Workspace::of(RECIPE);
    let served = "evaluate --target t --prompts p.jsonl --server http://a:1";
    for option in [
        "--outputs o.jsonl",
        "--batch-size 8",
        "--draft-length 3",
        "--verifier greedy",
        "--no-baseline",
        "--device cuda:0",
        "--target-dtype f32",
    ] {
        let refused = workspace.run_line(format!("{served} {option}"));
        let name = option.split(' ').next().unwrap();
        let expected = "expected `--drafter` or `--training-free` beside it";
        refused.misused(&[&format!("`{name}`"), expected]);
    }
    workspace
        .run_line(format!("{served} --other-target"))
        .misused_by_usage(&["--drafter <DRAFTER>"]);
    workspace
        .run_line("generate --target t --prompt p --other-target")
        .misused_by_usage(&["--drafter <DRAFTER>"]);
    let stored = "evaluate --target t --drafter d --features f";
    for option in ["--batch-size 8", "--template-variable a=1"] {
        let name = option.split(' ').next().unwrap();
        workspace
            .run_line(format!("{stored} {option}"))
            .misused_by_usage(&["'--features <DIR>'", name]);
    }
    assert!(!workspace.path("o.jsonl").exists());
}

#[cfg(not(feature = "cuda"))]
#[test]
fn a_gpu_without_its_feature_is_a_failure_that_names_the_feature() {
    let workspace = Workspace::new();
    let outcome = workspace.run(&["recipe", "recipe.toml", "--device", "cuda:0"]);
    outcome.failed(&[
        "device `cuda:0`",
        "without the feature `cuda`",
        "--features cuda",
    ]);
    assert!(!workspace.path("runs").exists());
}

#[test]
fn an_error_says_each_thing_once() {
    let workspace = Workspace::new();
    workspace.write("train.jsonl", "");
    let outcome = workspace
        .run(&["recipe", "recipe.toml", "--quiet"])
        .failed(&[]);
    assert_eq!(
        outcome.stderr,
        "error: stage `prepare`: cannot prepare `data.train`: `train.jsonl`: the dataset is empty: expected rows in \
         `.jsonl` or `.json` files, also compressed as `.gz` or `.zst`, or in `.parquet` files\n"
    );
    let outcome = workspace
        .run_with_file_limit(0, &["recipe", "recipe.toml"])
        .failed(&["File too large"]);
    assert_eq!(
        outcome.stderr.matches("File too large").count(),
        1,
        "{outcome:#?}"
    );
}

#[test]
fn results_that_cannot_be_written_are_an_error_and_a_reader_who_has_seen_enough_is_none() {
    let workspace = Workspace::finished();
    let drafter = "run --target target";
    for words in [
        format!("check {drafter}"),
        format!("evaluate --drafter {drafter} --prompts eval.jsonl --count 1 --max-new-tokens 4"),
        format!("generate --drafter {drafter} --prompt count --max-new-tokens 4"),
        "export run --to vllm --out OUT".into(),
        "data prepare --target target --data eval.jsonl --out OUT".into(),
        format!("import {drafter} --name OUT"),
        "recipes".into(),
    ] {
        let ended = |stdout: std::process::Stdio, out: &str| {
            let words = words.replace("OUT", out);
            let words: Vec<&str> = words.split(' ').collect();
            let mut command = workspace.command(&words);
            Outcome::from(command.stdout(stdout).output().unwrap())
        };
        let full = File::options().write(true).open("/dev/full").unwrap();
        let outcome = ended(full.into(), "full");
        assert!(
            !outcome.stderr.contains("panicked"),
            "{words}: {outcome:#?}"
        );
        outcome.failed(&["cannot write to standard output"]);
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let outcome = ended(writer.into(), "closed").succeeded();
        assert!(
            !outcome.stderr.contains("panicked"),
            "{words}: {outcome:#?}"
        );
    }
}

#[test]
fn several_reports_stand_in_one_table_and_a_missing_one_is_named() {
    let workspace = Workspace::of("");
    let missing = workspace.run(&["report", "nowhere"]);
    assert!(
        missing
            .stderr
            .contains("no report `nowhere`: there is no such file or folder"),
        "{missing:#?}"
    );
    std::fs::write(workspace.path("other.json"), r#"{"schema": 9}"#).unwrap();
    let other = workspace.run(&["report", "other.json"]);
    assert!(
        other.stderr.contains("`other.json` is not a report"),
        "{other:#?}"
    );
}

#[test]
fn a_benchmark_measures_at_least_once_and_on_a_device() {
    let workspace = Workspace::of("");
    let refused = |words: &str| workspace.run_line(words);
    refused("bench --repeat 0").misused_by_usage(&["--repeat <N>", "0 is not in 1.."]);
    for share in ["1", "-0.5", "nan", "half"] {
        refused(&format!("bench --prompts={share}"))
            .misused_by_usage(&[share, "expected a number from 0 to below 1"]);
    }
    refused("bench --divergence kld").misused_by_usage(&[
        "'kld'",
        "unknown variant",
        "`reverse_kl`",
    ]);
    refused("bench --device gpu").misused_by_usage(&["'gpu'", "known devices: cpu, cuda:N"]);
    workspace
        .run(&["bench", "--divergence", "{ jsd = 3.0 }"])
        .misused_by_usage(&["expected a jsd between 0 and 1, found 3"]);
    // What would change nothing about the task that is asked for.
    for (option, task, tasks) in [
        ("--divergence tv", "train-medusa", "`train`"),
        ("--keep-activations", "plain", "`train`"),
        ("--gradient-checkpointing", "verify", "`train-pard`"),
        ("--int8", "train", "`capture`"),
        ("--packed", "plain", "`capture`"),
        ("--prompts 0.5", "capture", "`train-pard`"),
    ] {
        let refused = refused(&format!("bench --task {task} {option}"));
        let name = option.split(' ').next().unwrap();
        let refused = refused.misused(&[&format!("`{name}`: expected"), tasks, task]);
        assert_eq!(refused.stdout, "", "{refused:#?}");
    }
}

#[test]
fn a_case_of_the_benchmark_alone_has_the_header_too() {
    let workspace = Workspace::of("");
    let words = [
        "bench", "--size", "small", "--task", "plain", "--repeat", "1",
    ];
    let outcome = workspace.run(&words).succeeded();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(lines.len(), 2, "{outcome:#?}");
    assert!(
        lines[0].starts_with("task         size     tokens/s"),
        "{outcome:#?}"
    );
    assert!(lines[1].starts_with("plain        small"), "{outcome:#?}");
}
