//! Files that a run leaves, as Python reads them without this program: the examples of `tests/reading/`, run as they are.
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use spectrain_data::features::FeatureShards;

use crate::links::pages;
use crate::workspace::{Outcome, Workspace};

const RUN: &str = "runs/run";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What an example prints of a file or folder of the run; nothing where there is no Python, or not with the packages that it
/// needs. `SPECTRAIN_PYTHON` names another Python than `python3`.
fn read(workspace: &Workspace, example: &str, packages: &[&str], path: &str) -> Option<String> {
    let python = std::env::var("SPECTRAIN_PYTHON").unwrap_or("python3".to_owned());
    let imports: String = packages
        .iter()
        .map(|name| format!("import {name}\n"))
        .collect();
    let found = Command::new(&python).args(["-c", &imports]).output();
    if !found.is_ok_and(|found| found.status.success()) {
        let with = match packages {
            [] => String::new(),
            packages => format!(" with {}", packages.join(" and ")),
        };
        eprintln!("skipped: `{example}`: `{python}` is no Python{with}; see `tests/README.md`");
        return None;
    }
    let mut command = Command::new(&python);
    command
        .arg(root().join("tests/reading").join(example))
        .arg(workspace.path(path));
    let outcome = Outcome::from(command.output().unwrap()).succeeded();
    assert_eq!(outcome.stderr, "", "{outcome:#?}");
    Some(outcome.stdout)
}

/// Fails unless the text has these lines one after the other.
fn has(text: &str, lines: &[String]) {
    let expected = lines.join("\n");
    assert!(text.contains(&expected), "no\n{expected}\nin\n{text}");
}

/// The lines that the example for reports should print of a report, by the table that the program makes of it.
fn figures(csv: &str) -> Vec<String> {
    let heads: Vec<&str> = csv.lines().next().unwrap().split(',').collect();
    let rows = csv.lines().skip(1).flat_map(|row| {
        let cells: Vec<&str> = row.split(',').collect();
        assert_eq!(cells.len(), heads.len(), "{row}");
        let cell = |name: &str| cells[heads.iter().position(|head| *head == name).unwrap()];
        let figure = |name: &str, key: &str| {
            let ends = ["", "_low", "_high"].map(|end| cell(&format!("{key}{end}")));
            let [value, low, high] = ends.map(|value| value.parse::<f64>().unwrap());
            format!("{name} {value:.2} [{low:.2}, {high:.2}]")
        };
        let [dataset, prompts, tokens, passes] =
            ["dataset", "prompts", "tokens", "passes"].map(cell);
        let tau = figure("tau", "tau");
        let (alpha, wall) = (figure("alpha", "alpha"), figure("wall", "speedup_wall"));
        [
            format!("  {dataset}: {prompts} prompts, {tokens} tokens, {passes} passes"),
            format!("    {tau}  {alpha}  {wall}"),
        ]
    });
    rows.collect()
}

#[test]
fn python_reads_report_json() {
    let workspace = Workspace::finished();
    // A drafter of which some tokens are accepted, and two datasets.
    let sets = [
        "evaluate.training_free=[{ name = \"early-layers\", layers = 5 }]",
        "evaluate.prompts=[\"eval.jsonl\", \"train.jsonl\"]",
        "evaluate.count=3",
    ];
    workspace.run_recipe(&sets).succeeded();
    let file = "runs/run/evaluate/report.json";
    let Some(read) = read(&workspace, "report.py", &[], file) else {
        return;
    };
    workspace.run_line("report run --csv table.csv").succeeded();
    let expected = figures(&workspace.text("table.csv"));
    let found = read.lines().filter(|line| !line.contains("accepted:"));
    let found: Vec<&str> = found.filter(|line| line.starts_with(' ')).collect();
    assert_eq!(found, expected, "{read}");
    assert_eq!(expected.len(), 2 * 2 * 3);
    assert!(read.starts_with("eagle3 drafter for target\n"), "{read}");
    for setting in ["the drafter: T=0, greedy, chain 2", "early-layers"] {
        assert!(read.contains(setting), "no `{setting}`: {read}");
    }
    assert!(read.ends_with("0 of 12 greedy outputs differ\n"), "{read}");
}

#[test]
fn python_reads_metrics_jsonl() {
    let workspace = Workspace::new();
    let told = workspace.run(&["recipe", "recipe.toml"]).succeeded().stderr;
    let file = "runs/run/train/events/metrics.jsonl";
    let Some(read) = read(&workspace, "metrics.py", &[], file) else {
        return;
    };
    // `step 2/6 loss 5.1234 …` of the log, of every second step.
    let logged = told.lines().filter_map(|line| {
        let (step, rest) = line.strip_prefix("step ")?.split_once("/6 loss ")?;
        Some(format!("step {step} loss {}", rest.split(' ').next()?))
    });
    let losses: Vec<String> = logged.collect();
    assert_eq!(losses.len(), 3, "{told}");
    has(&read, &losses);
    // `step 3 validation: loss … simulated τ … τ 1.000 [1.00, 1.00] …`, of every third step.
    let validated = told.lines().filter_map(|line| {
        let (step, rest) = line.split_once(" validation: loss ")?;
        let step = step.rsplit(' ').next()?;
        let (_, tau) = rest.split_once("simulated τ ")?;
        let (_, tau) = tau.split_once(" τ ")?;
        let (tau, _) = tau.split_once(']')?;
        Some(format!("step {step} validation tau {tau}]"))
    });
    let taus: Vec<String> = validated.collect();
    assert_eq!(taus.len(), 2, "{told}");
    has(&read, &taus);
    let tags = read.lines().last().unwrap();
    let page = fs::read_to_string(root().join("train/README.md")).unwrap();
    for tag in tags.trim_start_matches("tags: ").split(' ') {
        let documented = tag.trim_end_matches(|c: char| c.is_ascii_digit());
        let found = page.contains(&format!("`{documented}")) && documented.contains('/');
        assert!(found, "`{tag}` is not in train/README.md");
    }
}

#[test]
fn python_reads_tokens() {
    let workspace = Workspace::new();
    let prepare = ["recipe", "recipe.toml", "--stage", "prepare"];
    workspace.run(&prepare).succeeded();
    let folder = "runs/run/prepare/train";
    let Some(read) = read(&workspace, "tokens.py", &["pyarrow.parquet"], folder) else {
        return;
    };
    let report = &workspace.manifest("prepare")["summary"]["train"];
    let index = workspace.json(&format!("{folder}/tokens.json"));
    let (samples, trained) = (&report["kept"], &index["trained_tokens"]);
    let tokens = &index["tokens"];
    let first = format!("{samples} samples, {tokens} tokens, {trained} of them trained on");
    // How often each token is trained on, by the program's own count.
    let counts: Vec<u64> =
        serde_json::from_value(workspace.json("runs/run/prepare/counts.json")).unwrap();
    let mut counts: Vec<(usize, u64)> = counts.into_iter().enumerate().collect();
    counts.sort_by_key(|&(token, count)| (std::cmp::Reverse(count), token));
    let most = counts[..5].iter();
    let most = most.map(|(token, count)| format!("token {token}: {count} times"));
    has(&read, &[first].into_iter().chain(most).collect::<Vec<_>>());
}

#[test]
fn python_reads_features() {
    for dtype in ["bf16", "int8"] {
        python_reads_features_in(dtype);
    }
}

fn python_reads_features_in(dtype: &str) {
    let workspace = Workspace::new();
    let stage = [
        "recipe",
        "recipe.toml",
        "--set",
        "features.mode=stored",
        "--set",
        &format!("features.dtype={dtype}"),
        "--stage",
    ];
    for name in ["prepare", "features"] {
        workspace.run(&[&stage[..], &[name]].concat()).succeeded();
    }
    let folder = format!("{RUN}/features");
    let packages = ["numpy", "pyarrow"];
    let Some(read) = read(&workspace, "features.py", &packages, &folder) else {
        return;
    };
    let shards = FeatureShards::open(workspace.path(&folder)).unwrap();
    let header = shards.header();
    let (layers, width) = (&header.captured_layers, header.d_model);
    let mut squares = vec![0.0; layers.len() + 1];
    let value = |bits: &u16| f64::from(f32::from_bits(u32::from(*bits) << 16)).powi(2);
    for sample in (0..shards.len()).map(|number| shards.get(number)) {
        for (at, states) in sample.captured.bits().chunks(width).enumerate() {
            squares[at % layers.len()] += states.iter().map(value).sum::<f64>();
        }
        squares[layers.len()] += sample.last.bits().iter().map(value).sum::<f64>();
    }
    let tokens: usize = shards.lengths().iter().sum();
    let names = layers.iter().map(|layer| format!("layer {layer}"));
    let states = names.chain(["last".to_owned()]).zip(squares);
    let mean = |sum: f64| (sum / tokens as f64 / width as f64).sqrt();
    let lines = states.map(|(name, sum)| format!("{name}: root mean square {:.4}", mean(sum)));
    let first = format!("{} samples, {tokens} tokens", shards.len());
    has(&read, &[first].into_iter().chain(lines).collect::<Vec<_>>());
}

#[test]
fn every_example_is_short_tested_and_shown_where_its_format_is() {
    let own = fs::read_to_string(root().join(file!())).unwrap();
    let texts = pages()
        .into_iter()
        .map(|page| fs::read_to_string(page).unwrap());
    let texts: Vec<String> = texts.collect();
    let examples = fs::read_dir(root().join("tests/reading")).unwrap();
    let examples: Vec<PathBuf> = examples.map(|entry| entry.unwrap().path()).collect();
    assert_eq!(examples.len(), 4);
    for example in examples {
        let name = example.file_name().unwrap().to_str().unwrap();
        assert!(own.contains(&format!("\"{name}\"")), "{name} is not run");
        let link = format!("(../tests/reading/{name})");
        assert!(
            texts.iter().any(|text| text.contains(&link)),
            "no page has {link}"
        );
        let lines = fs::read_to_string(&example).unwrap().lines().count();
        assert!(lines <= 36, "{name} has {lines} lines");
    }
}
