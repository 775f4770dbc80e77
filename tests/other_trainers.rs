//! `spectrain init --from`: settings of other trainers as recipes, and the page that lists them.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::{Command, CommandFactory as _};
use spectrain::cli::Arguments;
use spectrain::trainers::{Becomes, FILE_KEYS, Row, TRAINERS, Trainer};

use crate::key_tables::has_text;
use crate::workspace::Workspace;

const PAGE: &str = "recipes/trainers.md";
/// The file of the page's example, as it stands there.
const EXAMPLE: &str = "qwen3-8b.yaml";

fn page() -> String {
    std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE)).unwrap()
}

/// A page with the text between two marks made anew.
fn with_between(page: &str, [start, end]: [&str; 2], text: &str) -> String {
    let (before, rest) = page
        .split_once(start)
        .unwrap_or_else(|| panic!("{PAGE} lacks {start}"));
    let (_, after) = rest
        .split_once(end)
        .unwrap_or_else(|| panic!("{PAGE} lacks {end}"));
    format!("{before}{start}\n{text}{end}{after}")
}

#[test]
fn the_page_of_trainers_is_what_the_code_says() {
    let mut text = page();
    for trainer in TRAINERS {
        let start = format!("<!-- trainer:{} -->", trainer.name);
        text = with_between(&text, [&start, "<!-- /trainer -->"], &table(trainer));
    }
    let marks = ["<!-- file-keys -->", "<!-- /file-keys -->"];
    text = with_between(&text, marks, &file_keys());
    let shown = example(&text);
    has_text(
        PAGE,
        &with_between(&text, ["<!-- example -->", "<!-- /example -->"], &shown),
    );
}

#[test]
fn the_help_and_the_pages_name_every_trainer() {
    let command = Arguments::command();
    let init = command.find_subcommand("init").unwrap();
    let mut options = init.get_arguments();
    let from = options.find(|option| option.get_long() == Some("from"));
    let help = from.unwrap().get_help().unwrap().to_string();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("recipes/README.md")).unwrap();
    let mut paragraphs = readme.split("\n\n");
    let of_init = paragraphs.find(|text| text.contains("`spectrain init --from FILE`"));
    let page = page();
    let (intro, _) = page.split_once("\n- [").unwrap();
    for trainer in TRAINERS {
        let name = trainer.name;
        for (place, text) in [
            ("`spectrain init --help`", &*help),
            ("recipes/README.md", of_init.unwrap()),
            (PAGE, intro),
        ] {
            assert!(words(text).contains(name), "{place} lacks {name}: {text}");
        }
        let link = format!("\n- [{name}](#");
        assert!(page.contains(&link), "the contents of {PAGE} lack {name}");
    }
}

/// Text without its line breaks.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Every setting of a trainer.
fn table(trainer: &Trainer) -> String {
    let mut text = "| setting | of | default | in a recipe |\n|---|---|---|---|\n".to_owned();
    for Row {
        kinds,
        key,
        default,
        becomes,
    } in trainer.rows
    {
        let of = named(kinds);
        let default = match *default {
            "" => String::new(),
            default => format!("`{}`", default.trim_matches('"')),
        };
        let becomes = match becomes {
            Becomes::Key(key) => format!("`{key}`"),
            Becomes::Made(what, _) | Becomes::Read(what) => (*what).to_owned(),
            Becomes::Nothing(why) => format!("nothing: {why}"),
        };
        let becomes = becomes.replace('|', "\\|");
        _ = writeln!(text, "| `{key}` | {of} | {default} | {becomes} |");
    }
    for (kinds, key, value) in trainer.always {
        let of = named(kinds);
        _ = writeln!(text, "| whatever is set | {of} | | `{key} = {value}` |");
    }
    text
}

/// Every key that the files of all drafters have.
fn file_keys() -> String {
    let mut text = "| key | holds in its place |\n|---|---|\n".to_owned();
    for known in FILE_KEYS {
        _ = writeln!(text, "| `{}` | {} |", known.key, known.holds);
    }
    text
}

/// The kinds that something is for.
fn named(kinds: &[&str]) -> String {
    match kinds {
        [] => "all".to_owned(),
        some => some.join(", "),
    }
}

/// What the command says of the page's example, and the keys of the recipe.
fn example(page: &str) -> String {
    let (_, rest) = page.split_once(&format!("`{EXAMPLE}`")).unwrap();
    let (_, rest) = rest.split_once("\n\n").unwrap();
    let (block, _) = rest.split_once("\n\n").unwrap();
    let lines = block
        .lines()
        .map(|line| line.trim_start_matches("    ").len());
    assert!(lines.count() > 5, "{block}");
    let file: String = block
        .lines()
        .map(|line| format!("{}\n", &line[4..]))
        .collect();
    let workspace = Workspace::new();
    workspace.write(EXAMPLE, &file);
    let found = workspace
        .run_line(format!("init --from {EXAMPLE} --yes"))
        .succeeded();
    let said = found.stderr.lines().map(|line| format!("    {line}\n"));
    let recipe = workspace.text("eagle3-qwen3-8b-own.toml");
    let keys = recipe
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty());
    let keys = keys.map(|line| format!("    {line}\n"));
    let all =
        said.collect::<String>() + "\nThe keys of the recipe, which also says what each means:\n\n";
    format!("The command says:\n\n{all}{}", keys.collect::<String>())
}

/// The trainer of this name.
fn trainer(name: &str) -> &'static Trainer {
    let mut trainers = TRAINERS.into_iter();
    let found = trainers.find(|trainer| trainer.name == name);
    found.unwrap_or_else(|| panic!("no trainer `{name}`"))
}

/// Sizes of a drafter for the target of the workspace, as the file has them that files of trainers name.
const SIZES: &str = r#"{"hidden_size": 32, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}"#;

/// A file of a trainer that trains a kind of drafter for the target of the workspace. It names a file `draft.json`, or one that is named
/// after the kind, where the trainer reads sizes of drafters from files.
pub fn file_of(trainer: &Trainer, kind: &str) -> [String; 2] {
    let [name, text] = match trainer.name {
        "SpecForge" => [
            "a.yaml",
            "model:\n  target_model_path: target\n  draft_model_config: draft.json\ndata:\n  train_data_path: train.jsonl\n  max_length: 64\n\
             training:\n  strategy: KIND\n",
        ],
        "speculators" => [
            "a.sh",
            "T=target\nspeculators prepare-data --model $T --data train.jsonl\n\
             speculators train --verifier-name-or-path \"$T\" --speculator-type KIND --total-seq-len 64 \
             --draft-config draft.json\n",
        ],
        "ModelOpt" => return ["a.yaml".to_owned(), text_of_modelopt(kind)],
        "NeMo Automodel" => {
            let (class, parallel) = match kind {
                "eagle1" => ("Eagle1", ""),
                "eagle3" => ("Eagle3", ""),
                "peagle" => ("Eagle3", "  parallel_drafting: true\n"),
                "dflash" => ("DFlash", ""),
                "dflash2" => ("DFlash2", ""),
                "dspark" => ("DSpark", ""),
                "domino" => ("Domino", ""),
                _ => ("JetSpec", ""),
            };
            let text = format!(
                "recipe: Train{class}Recipe\nrecipe_args:\n  target_model_name_or_path: target\n  train_data_path: train.jsonl\n  \
                 seq_length: 64\n  num_epochs: 2\n{parallel}optimizer:\n  lr: 1.0e-4\n"
            );
            return ["a.yaml".to_owned(), text];
        }
        "TorchSpec" => [
            "a.yaml",
            "model:\n  target_model_path: target\n  draft_model_config: KIND.json\ndataset:\n  train_data_path: train.jsonl\n\
             training:\n  max_seq_length: 64\n",
        ],
        other => panic!("no file of {other}"),
    };
    [name.to_owned(), text.replace("KIND", kind)]
}

/// The same of ModelOpt, whose kinds of drafters are sections and projectors.
fn text_of_modelopt(kind: &str) -> String {
    let (section, projector) = match kind {
        "eagle3" => ("eagle", ""),
        "medusa" => ("medusa", ""),
        "dflash2" => (
            "dflash",
            "  dflash_architecture_config:\n    projector_type: KIND\n    conv_kernel_size: 2\n    conv_group_size: 8\n    \
             selector_rank: 8\n    selector_top_k: 4\n",
        ),
        "dspark" | "domino" => (
            "dflash",
            "  dflash_architecture_config:\n    projector_type: KIND\n",
        ),
        _ => ("dflash", ""),
    };
    let mask = match section {
        "dflash" => "  dflash_num_anchors: 4\n",
        "medusa" => "  medusa_num_heads: 3\n",
        _ => "  eagle_ttt_steps: 4\n",
    };
    let text = format!(
        "metadata:\n  recipe_type: speculative_{section}\nmodel:\n  model_name_or_path: target\ndata:\n  data_path: train.jsonl\n\
         training:\n  training_seq_len: 64\n{section}:\n{mask}{projector}"
    );
    text.replace("KIND", kind)
}

#[test]
fn the_settings_of_every_trainer_become_a_recipe_for_each_of_its_kinds() {
    let workspace = Workspace::new();
    for trainer in TRAINERS {
        for (kind, recipe) in trainer.kinds {
            let what = format!("{}, {kind}", trainer.name);
            let [name, text] = file_of(trainer, kind);
            workspace.write(&name, &text);
            for file in ["draft.json", &format!("{kind}.json")] {
                workspace.write(file, SIZES);
            }
            let of = trainer.name.replace(' ', "-");
            let out = format!("{of}-{kind}.toml");
            let line = format!("init --from {name} --yes --name {kind}-{of} --out {out}");
            let found = workspace.run_line(line).succeeded();
            assert!(
                found
                    .stderr
                    .contains(&format!("settings of {}", trainer.name)),
                "{what}: {found:?}"
            );
            let text = workspace.text(&out);
            assert!(
                text.contains(&format!("\nrecipe = \"{recipe}\"\n")),
                "{what}: {text}"
            );
            // The layer of prediction has the target's sizes.
            if trainer.further.is_some() && *recipe != "mtp-qwen" {
                has_lines(&text, &["d_ff = 96", "heads = 4", "kv_heads = 2"]);
            }
            let plan = workspace.run(&["recipe", &out, "--plan"]).succeeded();
            assert!(
                !plan.stdout.contains("\nrefused:"),
                "{what}: {}",
                plan.stdout
            );
        }
    }
}

#[test]
fn what_a_trainer_always_does_is_no_setting_of_it() {
    for trainer in TRAINERS {
        for (kinds, always, _) in trainer.always {
            let share_a_kind = |row: &Row| {
                let (one, other) = (row.kinds, *kinds);
                one.is_empty() || other.is_empty() || one.iter().any(|kind| other.contains(kind))
            };
            let is_set = |row: &Row| {
                matches!(row.becomes, Becomes::Key(key) if key == *always) && share_a_kind(row)
            };
            assert!(
                !trainer.rows.iter().any(is_set),
                "{}: {always}",
                trainer.name
            );
        }
    }
    let [name, text] = file_of(trainer("ModelOpt"), "eagle3");
    let text = text.replace("training:\n", "training:\n  adam_beta2: 0.98\n");
    let [recipe, _] = translated(&name, &text, "");
    has_lines(&recipe, &["beta2 = 0.98"]);
}

/// The recipe that a file becomes, and what the command says.
fn translated(file: &str, text: &str, more: &str) -> [String; 2] {
    let workspace = Workspace::new();
    workspace.write("draft.json", r#"{"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "draft_vocab_size": 128, "intermediate_size": 96, "hidden_size": 32}"#);
    workspace.write(file, text);
    let line = format!("init --from {file} --yes --out out.toml {more}");
    let found = workspace.run_line(line.trim_end()).succeeded();
    [workspace.text("out.toml"), found.stderr]
}

fn has_lines(text: &str, lines: &[&str]) {
    for line in lines {
        assert!(text.contains(&format!("\n{line}\n")), "no `{line}`: {text}");
    }
}

#[test]
fn a_file_of_specforge_becomes_a_recipe_with_its_defaults() {
    let file = "model:\n  target_model_path: target\n  draft_model_config: draft.json\ndata:\n  train_data_path: train.jsonl\n  max_length: 32\n  \
                train_only_last_turn: true\n  chat_template: llama3\ntraining:\n  strategy: eagle3\n  max_steps: 200\n  batch_size: 4\n  \
                accumulation_steps: 2\n  learning_rate: 5e-5\n  warmup_ratio: 0.1\n  lk_loss_type: lambda\n  save_interval: 50\n  tp_size: 1\n\
                deployment:\n  trainer:\n    nproc_per_node: 4\nrun_id: mine\nunheard_of: 1\n";
    let [recipe, said] = translated("a.yaml", file, "");
    has_lines(
        &recipe,
        &[
            "recipe = \"eagle3\"",
            "name = \"mine\"",
            "model = \"target\"",
            "train = \"train.jsonl\"",
            "max_length = 32",
            "mask = \"last_turn\"",
            "overlong = \"truncate\"",
            "draft_vocab = 128",
            "d_ff = 96",
            "divergence = { lk_hybrid = 1.0 }",
            "draft_steps = 7",
            "steps = 200",
            "warmup_steps = 20",
            "batch_tokens = 128",
            "gradient_accumulation = 8",
            "learning_rate = 0.00005",
            "beta2 = 0.999",
            "save_every = 50",
            "seed = 42",
        ],
    );
    for part in [
        "settings of SpecForge 0.2",
        "`data.chat_template = llama3`: the target's own template is read",
        "`training.tp_size = 1`:",
        "`unheard_of = 1`: no setting of SpecForge 0.2 that is known",
    ] {
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(said.contains(part), "no `{part}`: {said}");
    }
    // The hidden size is the target's, and no setting of the drafter.
    assert!(!said.contains("hidden_size"), "{said}");
    assert!(recipe.contains("# - `training.tp_size = 1`"), "{recipe}");
}

#[test]
fn flags_of_a_script_and_overrides_of_a_file_are_settings_too() {
    let script = "#!/bin/bash\nROOT=$(pwd)\nN=${N:-2}\ntorchrun --standalone --nproc_per_node $N scripts/train_eagle3.py \\\n    \
                  --target-model-path target --train-data-path=train.jsonl \\\n    --max-length 32 --ttt-length 3 --num-epochs 2 \
                  --output-dir $ROOT/out\n";
    let [recipe, said] = translated("a.sh", script, "--set train.learning_rate=3e-4");
    has_lines(
        &recipe,
        &[
            "draft_steps = 3",
            "epochs = 2.0",
            "gradient_accumulation = 2",
            "learning_rate = 0.0003",
            // The target has no more tokens.
            "#draft_vocab = 0",
        ],
    );
    assert!(said.contains("--devices"), "{said}");
    let workspace = Workspace::new();
    workspace.write("a.yaml", "model:\n  target_model_path: other\ndata:\n  train_data_path: train.jsonl\ntraining:\n  ttt_length: 7\n");
    workspace.write("a.sh", "specforge train --config a.yaml training.ttt_length=2 model.target_model_path=target data.max_length=32\n");
    workspace
        .run_line("init --from a.sh --yes --out out.toml")
        .succeeded();
    has_lines(
        &workspace.text("out.toml"),
        &["draft_steps = 2", "model = \"target\"", "max_length = 32"],
    );
}

#[test]
fn a_flag_is_the_setting_of_its_own_name_and_goes_before_a_file() {
    let speculators = "speculators train --verifier-name-or-path target --total-seq-len 64 --speculator-type dflash \
                       --mask-token-id 41 --seed 7 --target-layer-ids 3\n";
    let specforge = "python train_KIND.py --target-model-path target --train-data-path train.jsonl --max-length 64 \
                     --mask-token-id 41 --draft-config-path sizes.json --draft-model-config sizes.json\n";
    let sizes =
        r#"{"num_hidden_layers": 1, "mask_token_id": 40, "dflash_config": {"mask_token_id": 40}}"#;
    let of = |script: &str| {
        let workspace = Workspace::new();
        workspace.write("sizes.json", sizes);
        workspace.write("a.sh", script);
        let line = "init --from a.sh --data train.jsonl --yes --out out.toml";
        workspace.run_line(line).succeeded();
        workspace.text("out.toml")
    };
    let recipe = of(speculators);
    has_lines(
        &recipe,
        &["mask_token = 41", "seed = 7", "captured_layers = [2]"],
    );
    assert!(!recipe.contains("prepare_data.seed"), "{recipe}");
    for kind in ["peagle", "dflash"] {
        has_lines(&of(&specforge.replace("KIND", kind)), &["mask_token = 41"]);
    }
}

#[test]
fn what_a_setting_hides_is_not_written_into_the_recipe() {
    let [name, file] = file_of(trainer("ModelOpt"), "eagle3");
    let file = file.replace(
        "  training_seq_len: 64\n",
        "  training_seq_len: 64\n  hub_token: hf_hidden\n  push_to_hub_token: hf_hidden\n",
    );
    let [recipe, said] = translated(&name, &file, "");
    assert!(recipe.contains("training.hub_token = …"), "{recipe}");
    assert!(!recipe.contains("hf_hidden") && !said.contains("hf_hidden"));
}

#[test]
fn a_run_of_speculators_becomes_a_recipe_with_the_rates_of_this_programs_muon() {
    let file = "train:\n  speculator_type: eagle3\n  verifier:\n    verifier_name_or_path: target\n  draft:\n    draft_vocab_size: 64\n    \
                target_layer_ids: [2, 3, 4]\n  data:\n    total_seq_len: 64\n  loss:\n    loss_fn: '{\"tv\": 1.0}'\n  optimizer:\n    lr: 1e-3\n  \
                trainer:\n    epochs: 3\n";
    let [recipe, _] = translated("run.yaml", file, "--data train.jsonl");
    // A target of width 32: 1e-3 · 0.2 · √32, and 0.1 over as much.
    has_lines(
        &recipe,
        &[
            "captured_layers = [1, 2, 3]",
            "draft_vocab = 64",
            "window = 2048",
            "norm_before_residual = true",
            "divergence = \"tv\"",
            "draft_steps = 3",
            "optimizer = \"muon\"",
            "learning_rate = 0.001",
            "matrix_learning_rate = 0.00113",
            "weight_decay = 0.0884",
            "schedule = \"linear\"",
            "epochs = 3.0",
            "held_out = 0.1",
            "to = [\"vllm\"]",
        ],
    );
    assert!(recipe.contains("\nwarmup_ratio = 0.01\n"), "{recipe}");
    let mixed = file.replace("{\"tv\": 1.0}", "{\"tv\": 0.5, \"ce\": 0.5}");
    let [recipe, _] = translated("run.yaml", &mixed, "--data train.jsonl");
    let sum = "\ndivergence = { sum = { ce = 0.5, tv = 0.5 } }\n";
    assert!(recipe.contains(sum), "{recipe}");
}

#[test]
fn layers_norm_queries_and_keys_where_the_library_makes_qwen3s() {
    // Layers of both slide unless they are named, or a file describes them.
    for (flags, head_norm, window) in [
        ("eagle3", false, 2048),
        ("eagle3 --draft-arch qwen3", true, 2048),
        ("peagle", true, 2048),
        ("peagle --draft-arch llama", false, 2048),
        ("peagle --draft-config draft.json", false, 0),
    ] {
        let script = format!(
            "speculators train --verifier-name-or-path target --total-seq-len 64 --speculator-type {flags}\n"
        );
        let [recipe, _] = translated("a.sh", &script, "--data train.jsonl");
        let head_norm = format!("head_norm = {head_norm}");
        has_lines(&recipe, &[&head_norm, &format!("window = {window}")]);
    }
}

#[test]
fn what_cannot_be_translated_is_refused_with_what_can() {
    let workspace = Workspace::new();
    let refused = |file: &str, text: &str, parts: &[&str]| {
        workspace.write(file, text);
        workspace
            .run_line(format!("init --from {file} --yes --out out.toml"))
            .failed(parts);
    };
    refused("a.yaml", "a: [", &["`a.yaml`", "YAML"]);
    let known = TRAINERS.map(|trainer| format!("{} {}", trainer.name, trainer.version));
    let known = known.join(", ");
    refused("a.yaml", "lr: 1\n", &[known.as_str()]);
    refused("a.sh", "python other.py --lr 1\n", &["no such command"]);
    refused("a.sh", "echo 'a\n", &["a quote does not end"]);
    refused(
        "a.yaml",
        "model:\n  target_model_path: target\ndata:\n  train_data_path: train.jsonl\ntraining:\n  strategy: xpress\n",
        &["calls `xpress`", "eagle3, peagle, dflash, dspark, domino"],
    );
    refused(
        "a.sh",
        "specforge train --config none.yaml\n",
        &["`none.yaml`"],
    );
    workspace
        .run_line("init --from none.sh --yes")
        .failed(&["cannot read `none.sh`"]);
    workspace
        .run_line("init --from a.sh --family eagle3")
        .misused_by_usage(&["cannot be used with"]);
    // A script that says nothing of conversations.
    workspace.write("a.sh", "speculators train --verifier-name-or-path target\n");
    workspace
        .run_line("init --from a.sh --yes")
        .misused(&["`--data` is missing"]);
}

/// The options of each command by its words, and of all commands under "".
fn options(command: &Command, words: &str, found: &mut BTreeMap<String, BTreeSet<String>>) {
    let longs = command
        .get_arguments()
        .filter_map(|argument| argument.get_long());
    let longs: BTreeSet<String> = longs.map(|long| format!("--{long}")).collect();
    found
        .entry(String::new())
        .or_default()
        .extend(longs.clone());
    found.entry(words.to_owned()).or_default().extend(longs);
    for inner in command.get_subcommands() {
        let words = format!("{words} {}", inner.get_name());
        options(inner, words.trim_start(), found);
    }
}

/// What the sources say behind `spectrain` or as an option: the text between two back-ticks.
fn named_in(source: &str) -> Vec<&str> {
    let code = source.split("#[cfg(test)]").next().unwrap();
    let lines = code.lines().map(str::trim_start);
    let lines = lines.filter(|line| !line.starts_with("//"));
    let spans = lines.flat_map(|line| line.split('`').skip(1).step_by(2));
    let is_option = |span: &&str| {
        let name = span.strip_prefix("--").unwrap_or_default();
        name.starts_with(|c: char| c.is_ascii_lowercase())
    };
    spans
        .filter(|span| span.starts_with("spectrain ") || is_option(span))
        .collect()
}

#[test]
fn every_option_that_tables_and_messages_name_is_there() {
    let mut known = BTreeMap::new();
    options(&Arguments::command(), "", &mut known);
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/trainers");
    let mut seen = BTreeSet::new();
    for file in folder.read_dir().unwrap() {
        let source = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for span in named_in(&source) {
            let mut words = span.trim_start_matches("spectrain ").split(' ').peekable();
            let mut command = String::new();
            while let Some(word) = words.peek() {
                let longer = format!("{command} {word}").trim_start().to_owned();
                if word.is_empty() || !known.contains_key(&longer) {
                    break;
                }
                command = longer;
                words.next();
            }
            let is_command = !command.is_empty() || !span.starts_with("spectrain ");
            assert!(is_command, "`{span}` names no command");
            for option in words.filter(|word| word.starts_with("--")) {
                let option = option.split('=').next().unwrap();
                assert!(
                    known[&command].contains(option),
                    "`{span}`: there is no `{option}`"
                );
                seen.insert(option.to_owned());
            }
        }
    }
    for option in ["--fresh", "--devices", "--plan", "--data"] {
        assert!(seen.contains(option), "{seen:?}");
    }
}

#[test]
fn a_file_that_is_not_there_is_named_with_the_setting_that_names_it() {
    let workspace = Workspace::new();
    let text = "model:\n  target_model_path: target\ndata:\n  train_data_path: none.jsonl\n  max_length: 64\n";
    workspace.write("a.yaml", text);
    let refused = workspace.run_line("init --from a.yaml --yes").misused(&[
        "`a.yaml`: `data.train_data_path`: `none.jsonl`: No such file",
        "the path is taken from the working folder",
    ]);
    assert!(!refused.stderr.contains("error: `--data`"), "{refused:?}");
    // What was given as an option is that option's fault.
    workspace
        .run_line("init --from a.yaml --yes --data other.jsonl")
        .misused(&["error: `--data`: `other.jsonl`"]);
    workspace.write("b.yaml", text.replace("path: target", "path: ."));
    workspace
        .run_line("init --from b.yaml --yes")
        .misused(&["`b.yaml`: `model.target_model_path`: `.` has no `config.json`"]);
}

#[test]
fn a_value_that_does_not_fit_is_told_with_the_setting_of_the_file() {
    let workspace = Workspace::new();
    let [name, text] = file_of(trainer("ModelOpt"), "eagle3");
    let text = text.replace("\neagle:\n", "\neagle:\n  eagle_loss_decay_factor: 1.5\n");
    workspace.write(&name, &text);
    let line = format!("init --from {name} --yes --out out.toml");
    let refused = workspace.run_line(&line).misused(&[
        "error: `a.yaml`: `eagle.eagle_loss_decay_factor`: key `objective.decay`: expected",
        "found 1.5",
    ]);
    assert!(!refused.stderr.contains("`--set "), "{refused:?}");
    // What was given as an option is that option's fault, even where the file says the same.
    for given in ["objective.decay=2", "objective.decay=1.5"] {
        let expected = format!("error: `--set {given}`: key `objective.decay`");
        workspace
            .run_line(format!("{line} --set {given}"))
            .misused(&[&expected]);
    }
    assert!(!workspace.path("out.toml").exists());
    workspace
        .run_line(format!("{line} --set objective.decay=0.5"))
        .succeeded();
    has_lines(&workspace.text("out.toml"), &["decay = 0.5"]);
}

#[test]
fn what_the_schedule_of_a_file_reads_is_left_out_beside_another_one() {
    let [name, text] = file_of(trainer("TorchSpec"), "eagle3");
    let falls = "training:\n  lr_decay_style: WSD\n  lr_wsd_decay_ratio: 0.1\n";
    let text = text.replace("training:\n", falls);
    let [recipe, _] = translated(&name, &text, "");
    let lines = [
        "schedule = \"wsd\"",
        "decay_ratio = 0.1",
        "decay_shape = \"cosine\"",
    ];
    has_lines(&recipe, &lines);
    let [recipe, _] = translated(&name, &text, "--set train.schedule=linear");
    has_lines(&recipe, &["schedule = \"linear\""]);
    assert!(!recipe.contains("\ndecay_"), "{recipe}");
}

#[test]
fn a_server_without_its_folder_is_told_of_it_and_of_the_relay() {
    let workspace = Workspace::new();
    let script = "speculators train --verifier-name-or-path target --total-seq-len 64 \
                  --vllm-endpoint http://localhost:8000/v1 --on-missing generate\n";
    workspace.write("a.sh", script);
    let line = "init --from a.sh --data train.jsonl --yes --out out.toml";
    let done = workspace.run_line(line).succeeded();
    let said = words(&done.stderr);
    for part in [
        "not carried over",
        "`target.server_folder`",
        "`spectrain relay`",
    ] {
        assert!(said.contains(part), "{said}");
    }
    let of_missing = "`on_missing = generate`: the server computes the hidden states";
    assert!(said.contains(of_missing), "{said}");
    assert!(!said.contains("names no server"), "{said}");
    assert_eq!(
        done.stderr.matches("not carried over").count(),
        1,
        "{done:?}"
    );
    let script = script.replace("--vllm-endpoint http://localhost:8000/v1 ", "");
    let [_, said] = translated("a.sh", &script, "--data train.jsonl");
    assert!(
        words(&said).contains("the script names no server"),
        "{said}"
    );
}

#[test]
fn a_setting_of_parallelism_is_answered_with_what_to_do() {
    let [name, text] = file_of(trainer("SpecForge"), "eagle3");
    let text = text.replace("training:\n", "training:\n  tp_size: 8\n");
    let [_, said] = translated(&name, &text, "");
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "no tensor or sequence parallelism",
        "`features.mode = \"served\"`",
    ] {
        assert!(said.contains(part), "{said}");
    }
}
