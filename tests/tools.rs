//! The commands around the stages: recipes that are shipped, completions, manual pages, and what is said of slips.
use clap::{Command, CommandFactory as _};
use spectrain::cli::Arguments;
use spectrain::recipe::shipped::SHIPPED;

use crate::workspace::{ENDLESS, RECIPE, Workspace, wait_for};

#[test]
fn a_shipped_recipe_is_planned_in_any_folder_by_its_name() {
    let workspace = Workspace::of(RECIPE);
    for given in ["quickstart", "quickstart.toml"] {
        let plan = workspace.run(&["recipe", given, "--plan"]).succeeded();
        assert!(plan.stdout.contains("name = \"quickstart\""), "{plan:#?}");
    }
    // A folder is no recipe, whatever it is called.
    std::fs::create_dir(workspace.path("quickstart")).unwrap();
    workspace
        .run(&["recipe", "quickstart", "--plan"])
        .succeeded();
}

#[test]
fn a_recipe_in_the_folder_wins_over_a_shipped_one() {
    let workspace = Workspace::new();
    workspace.write("quickstart.toml", RECIPE.replace("\"run\"", "\"own\""));
    for given in ["quickstart", "quickstart.toml", "./quickstart.toml"] {
        let plan = workspace.run(&["recipe", given, "--plan"]).succeeded();
        assert!(plan.stdout.contains("name = \"own\""), "{given}: {plan:#?}");
    }
    // A name stands for a file with the ending of recipes, shipped or not.
    workspace.run(&["recipe", "recipe", "--plan"]).succeeded();
}

#[test]
fn shipped_recipes_are_listed_and_shown_as_they_are() {
    let workspace = Workspace::of(RECIPE);
    let list = workspace.run(&["recipe", "--list"]).succeeded().stdout;
    assert_eq!(list.lines().count(), SHIPPED.len(), "{list}");
    assert!(list.starts_with("quickstart  "), "{list}");
    assert!(
        list.lines().all(|line| line.chars().count() <= 80),
        "{list}"
    );
    let shown = workspace
        .run(&["recipe", "--show", "hass"])
        .succeeded()
        .stdout;
    let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/hass.toml");
    assert_eq!(shown, std::fs::read_to_string(file).unwrap());
    let unknown = workspace.run(&["recipe", "--show", "has"]);
    unknown.misused(&["no recipe `has` is shipped", "did you mean `hass`?"]);
    let unknown = workspace.run(&["recipe", "quickstrat", "--plan"]);
    unknown.misused(&[
        "no file `quickstrat`",
        "did you mean `quickstart`?",
        "recipe --list",
    ]);
    let both = workspace.run(&["recipe", "hass", "--list"]);
    both.misused_by_usage(&["cannot be used with"]);
}

/// A word of a command line that is a slip, and what is asked about it.
const SLIPS: [(&str, &str); 14] = [
    ("recipe recipe.toml --set train.stpes=1", "`steps`"),
    ("recipe recipe.toml --set features.mode=strored", "`stored`"),
    ("recipe recipe.toml --set recipe=eagel3", "`eagle3`"),
    ("recipe recipe.toml --set target.model=traget", "`target`"),
    (
        "recipe recipe.toml --set data.train=trian.jsonl",
        "`train.jsonl`",
    ),
    ("recipe recipe.toml --stage prepar", "`prepare`"),
    ("recipe recipe.tml", "`recipe.toml`"),
    ("recipes/quickstart.toml", "recipe"),
    ("schema medussa", "`medusa`"),
    ("report rnu", "`runs/run`"),
    ("watch rnu", "`runs/run`"),
    ("clean rnu", "`runs/run`"),
    ("check rnu --target target", "`runs/run`"),
    (
        "evaluate --target target --drafter run --prompts gsm8",
        "`gsm8k`",
    ),
];

#[test]
fn slips_are_asked_about() {
    let workspace = Workspace::finished();
    for (line, meant) in SLIPS {
        let outcome = workspace.run_line(line);
        assert!(matches!(outcome.code, Some(1 | 2)), "{line}: {outcome:#?}");
        let asks = outcome.stderr.contains(&format!("did you mean {meant}?"));
        let tips = outcome.stderr.contains("tip:") || line.starts_with("recipes/");
        assert!(asks || tips, "{line}: {outcome:#?}");
    }
}

#[test]
fn every_shell_gets_completions_with_every_command() {
    let workspace = Workspace::of(RECIPE);
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = workspace.run(&["completions", shell]).succeeded().stdout;
        for word in ["regenerate", "doctor", "sweep"] {
            assert!(script.contains(word), "{shell} lacks {word}");
        }
    }
    let unknown = workspace.run(&["completions", "bsh"]);
    unknown.misused_by_usage(&["a similar value exists: 'bash'"]);
}

#[test]
fn every_command_has_a_manual_page() {
    let workspace = Workspace::of(RECIPE);
    workspace.run(&["man", "pages/man1"]).succeeded();
    let pages = workspace.files("pages/man1");
    for name in ["spectrain", "spectrain-recipe", "spectrain-data-lint"] {
        let page = &pages[std::path::Path::new(&format!("{name}.1"))];
        let page = String::from_utf8(page.clone()).unwrap();
        assert!(page.contains(".SH NAME"), "{page}");
    }
    let failed = workspace.run(&["man", "recipe.toml/pages"]);
    failed.failed(&["cannot write pages into `recipe.toml/pages`"]);
}

#[test]
fn the_doctor_finds_nothing_wrong_here_and_says_no_secret() {
    let workspace = Workspace::of(RECIPE);
    let mut command = workspace.command(&["doctor"]);
    command.env("HF_TOKEN", "hf_QzXwVyKjPqRtLmNb");
    let outcome = crate::workspace::Outcome::from(command.output().unwrap()).succeeded();
    let text = &outcome.stdout;
    for name in [
        "version",
        "features",
        "processor",
        "cpu",
        "runs",
        "cache",
        "hub",
        "token",
    ] {
        let begins = |line: &str| line.starts_with(&format!("{name} "));
        assert!(text.lines().any(begins), "no {name}: {text}");
    }
    assert!(!format!("{outcome:?}").contains("QzXw"), "{outcome:#?}");
    assert!(text.contains("HF_HUB_OFFLINE"), "{text}");
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert!(!workspace.path("runs").exists(), "it leaves nothing");
}

#[test]
fn the_doctor_ends_with_1_where_something_is_in_the_way_and_says_what_to_do() {
    let workspace = Workspace::of(RECIPE);
    let wrong = ["doctor", "--runs", "recipe.toml", "--online", "--json"];
    let outcome = workspace.run(&wrong).failed(&["2 problems were found"]);
    let found: serde_json::Value = serde_json::from_str(&outcome.stdout).unwrap();
    let problems = found["findings"].as_array().unwrap().iter();
    let problems = problems.filter(|of| of["state"] == "problem");
    let problems: Vec<(&str, &str)> = problems
        .map(|of| (of["name"].as_str().unwrap(), of["advice"].as_str().unwrap()))
        .collect();
    let [(runs, instead), (hub, offline)] = problems[..] else {
        panic!("{problems:?}");
    };
    assert_eq!((runs, hub), ("runs", "hub"));
    assert!(instead.contains("--runs") && offline.contains("HF_HUB_OFFLINE"));
}

#[test]
fn a_run_is_watched_once_where_there_is_no_terminal() {
    let workspace = Workspace::finished();
    for given in ["run", "runs/run"] {
        let text = workspace.run(&["watch", given]).succeeded().stdout;
        for shown in [
            "run  eagle3\n",
            "prepare done",
            "export done",
            "train: step 6 of 6\n",
            "loss ",
            "tokens/s",
            "α by depth, in training\n",
            "τ on held-out prompts\n",
            "T=0, greedy, chain 2: τ ",
        ] {
            assert!(text.contains(shown), "no {shown}: {text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
    }
    let before = workspace.files("runs");
    workspace.run(&["watch", "run", "--once"]).succeeded();
    assert_eq!(workspace.files("runs"), before, "the run is not touched");
    workspace.unfinish("train");
    let text = workspace.run(&["watch", "run"]).succeeded().stdout;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let told = "train begun export stale evaluate stale";
    assert!(words.contains(told), "{text}");
    let results = text.lines().filter(|line| line.starts_with("T=0, greedy"));
    assert!(
        results.clone().count() > 0 && results.clone().all(|line| line.ends_with(", stale")),
        "{text}"
    );
}

#[test]
fn a_watched_run_whose_process_was_killed_is_told_from_one_that_goes_on() {
    let workspace = Workspace::new();
    let steps = format!("train.steps={ENDLESS}");
    let mut running = workspace.start(&["recipe", "recipe.toml", "--set", &steps]);
    let logged = workspace.path("runs/run/train/events/metrics.jsonl");
    wait_for(&mut running, || logged.exists());
    let watched = || workspace.run(&["watch", "run"]).succeeded().stdout;
    let told = "no process works on this run any more, last written ";
    let alive = watched();
    assert!(
        alive.contains("train begun") && !alive.contains(told),
        "{alive}"
    );
    running.kill().unwrap();
    running.wait().unwrap();
    let dead = watched();
    let words = dead.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(told), "{dead}");
    assert!(
        words.contains("the command that started it resumes it"),
        "{dead}"
    );
    assert!(words.contains("train begun"), "{dead}");
}

#[test]
fn a_watched_run_that_stopped_with_an_error_shows_it() {
    let workspace = Workspace::new();
    workspace.write("empty.jsonl", "");
    let run = ["recipe", "recipe.toml", "--set", "data.train=empty.jsonl"];
    let failed = workspace.run(&run).failed(&["the dataset is empty"]);
    assert!(
        failed.stderr.contains("recipe: ./recipe.toml"),
        "{failed:#?}"
    );
    let text = workspace.run(&["watch", "run"]).succeeded().stdout;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "the run stopped with an error, last written ",
        "stage `prepare`: ",
        "the dataset is empty",
    ] {
        assert!(words.contains(part), "no `{part}`: {text}");
    }
}

/// Every command, by its words behind `spectrain`.
fn commands(command: &Command, words: &[String], found: &mut Vec<Vec<String>>) {
    found.push(words.to_vec());
    for inner in command.get_subcommands() {
        let words = [words, &[inner.get_name().to_owned()]].concat();
        commands(inner, &words, found);
    }
}

#[test]
fn help_and_lists_fit_a_terminal() {
    let workspace = Workspace::of(RECIPE);
    let mut all = Vec::new();
    commands(&Arguments::command(), &[], &mut all);
    assert!(all.len() > 20, "{all:?}");
    let mut lines: Vec<Vec<String>> = all;
    for words in &mut lines {
        words.push("--help".into());
    }
    lines.push(vec!["recipes".into()]);
    lines.push(vec!["data".into(), "prompts".into()]);
    for words in lines {
        let given: Vec<&str> = words.iter().map(String::as_str).collect();
        let text = workspace.run(&given).succeeded().stdout;
        // What has to be given stands in one line.
        let lines = text.lines().filter(|line| !line.starts_with("Usage:"));
        let long = lines
            .map(str::to_owned)
            .find(|line| line.chars().count() > 80);
        assert_eq!(long, None, "{words:?}");
    }
}

#[test]
fn a_plan_fits_a_terminal_behind_the_recipe() {
    let workspace = Workspace::of(RECIPE);
    let plan = workspace
        .run(&["recipe", "quickstart", "--plan"])
        .succeeded();
    let (_, told) = plan.stdout.split_once("\nrun: ").unwrap();
    let long = told.lines().find(|line| line.chars().count() > 80);
    assert_eq!(long, None, "{told}");
    assert!(told.contains("\n  speed                  "), "{told}");
}
