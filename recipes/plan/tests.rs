use std::path::Path;

use serde_json::json;
use spectrain_checkpoints::HubOptions;

use super::several::Features;
use super::words::bytes;
use super::*;
use crate::recipe::shipped::Origin;
use crate::recipe::tables::{FeatureMode, Prompts, RegenerateTable};
use crate::recipe::{ResolvedRecipe, read};
use crate::runs::run_folder::{Existing, RunFolder, Start, lock_for};
use crate::runtime::sizes::Sizes;
use crate::stages::order;
use crate::stages::parts::FETCHED;
use crate::stages::settings::settings;

fn qwen3() -> ResolvedRecipe {
    of("eagle3")
}

/// A recipe of this kind for Qwen3-8B.
fn of(kind: &str) -> ResolvedRecipe {
    with_drafter(kind, "draft_vocab = 32000")
}

/// The same with these lines in `[drafter]`.
fn with_drafter(kind: &str, drafter: &str) -> ResolvedRecipe {
    let text = r#"
        recipe = "KIND"
        name = "qwen3"
        [target]
        model = "Qwen/Qwen3-8B"
        [data]
        train = "absent.jsonl"
        eval = "absent.jsonl"
        [drafter]
    "#;
    let text = text.replace("KIND", kind) + drafter;
    read(&text, &[]).unwrap()
}

fn estimated(recipe: &ResolvedRecipe, sizes: &Sizes, runs: &Path) -> Estimate {
    estimated_on(1, recipe, sizes, runs)
}

fn estimated_on(ranks: usize, recipe: &ResolvedRecipe, sizes: &Sizes, runs: &Path) -> Estimate {
    let asked = Asked {
        recipe,
        runs,
        existing: Existing::Continue,
        device: "cuda:0",
        ranks,
        only: &[],
        parts: None,
    };
    Estimate::of(&asked, sizes, &TrainingData::of(&asked, &[])).unwrap()
}

fn text(recipe: &ResolvedRecipe, runs: &Path, device: &str) -> String {
    planned(1, recipe, runs, device).text
}

fn planned(ranks: usize, recipe: &ResolvedRecipe, runs: &Path, device: &str) -> Plan {
    let asked = Asked {
        recipe,
        runs,
        existing: Existing::Continue,
        device,
        ranks,
        only: &[],
        parts: None,
    };
    plan_with(&asked, &mut nowhere()).unwrap()
}

/// A hub at which nobody listens.
fn nowhere() -> OnHub {
    OnHub::with(HubOptions {
        endpoint: Some("http://127.0.0.1:9".into()),
        ..HubOptions::default()
    })
}

#[test]
fn a_target_that_could_not_be_looked_up_on_the_hub_is_warned_of() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.target.model = Some("nobody/nothing".into());
    let text = text(&recipe, root.path(), "cpu");
    let warned = text.split("\nwarnings:\n").nth(1).unwrap_or_default();
    let told = "  `target.model`: `nobody/nothing` was not looked up: `http://127.0.0.1:9` cannot be reached: ";
    assert!(warned.starts_with(told), "{text}");
}

#[test]
fn frozen_weights_are_told_apart_and_take_two_bytes_on_a_gpu() {
    let root = tempfile::tempdir().unwrap();
    let drafter = "model = \"Qwen/Qwen3-0.6B\"\nlora = {}";
    let recipe = with_drafter("distillspec", drafter);
    for (device, told) in [
        ("cuda:0", "f32; 1.1 GiB of it frozen weights, bf16)"),
        ("cpu", "f32; 2.2 GiB of it frozen weights)"),
    ] {
        let text = text(&recipe, root.path(), device);
        let words: Vec<&str> = text.split_whitespace().collect();
        assert!(words.join(" ").contains(told), "{device}: {text}");
    }
}

#[test]
fn a_drafter_to_start_from_that_could_not_be_looked_up_is_warned_of() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.start = Some("nobody/drafter@v1".into());
    let text = text(&recipe, root.path(), "cpu");
    let told =
        "  `start`: `nobody/drafter` was not looked up: `http://127.0.0.1:9` cannot be reached: ";
    assert!(text.contains(told), "{text}");
}

#[test]
fn servers_at_whose_addresses_nobody_is_are_warned_of() {
    let root = tempfile::tempdir().unwrap();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let mut recipe = qwen3();
    recipe.regenerate = Some(RegenerateTable {
        server: Some(url.as_str().into()),
        wait: 7,
        ..RegenerateTable::default()
    });
    let text = text(&recipe, root.path(), "cuda:0");
    let told = format!("  `regenerate.server`: no server answers at `{url}`: ");
    let line = text.lines().find(|line| line.starts_with(&told));
    let line = line.unwrap_or_else(|| panic!("no `{told}`: {text}"));
    let waits = "; the run waits for one, for at most 7 s (`regenerate.wait`)";
    assert!(line.ends_with(waits), "{line}");
}

#[test]
fn a_run_that_another_process_uses_is_warned_of() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.target.model = Some("nobody/nothing".into());
    let run = root.path().join(&recipe.name);
    let held = lock_for(&run, "").unwrap();
    let told = format!("  `{}` is in use by another process: ", run.display());
    let planned = text(&recipe, root.path(), "cpu");
    assert!(planned.contains(&told), "{planned}");
    drop(held);
    let planned = text(&recipe, root.path(), "cpu");
    assert!(!planned.contains("is in use"), "{planned}");
}

#[test]
fn runs_that_are_together_larger_than_the_disk_are_told() {
    let root = tempfile::tempdir().unwrap();
    let recipes = ["a", "b", "c"].map(|name| ResolvedRecipe {
        name: name.into(),
        ..qwen3()
    });
    let asked = |recipe| Asked {
        recipe,
        runs: root.path(),
        existing: Existing::Continue,
        device: "cuda:0",
        ranks: 1,
        only: &[],
        parts: None,
    };
    let all = recipes.each_ref().map(asked);
    let told = |bytes: [Option<u64>; 3]| {
        let takes = all.iter().zip(bytes);
        room::too_little_disk_for_all(takes)
    };
    let half = Some(1 << 63);
    assert_eq!(told([Some(1), None, Some(1)]), None);
    let found = told([half, None, half]).unwrap();
    let expected = format!("the runs together take {} of the disk", bytes(u64::MAX));
    assert!(found.starts_with(&expected), "{found}");
    // Of runs that go on a part is on the disk already.
    for name in ["a", "b", "c"] {
        std::fs::create_dir_all(root.path().join(name)).unwrap();
    }
    assert_eq!(told([half, half, half]), None);
}

#[test]
fn what_a_run_has_made_before_its_training_is_known_by_its_manifests() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.features.mode = FeatureMode::Stored;
    let asked = |existing| Asked {
        recipe: &recipe,
        runs: root.path(),
        existing,
        device: "cuda:0",
        ranks: 1,
        only: &[],
        parts: None,
    };
    let other = ResolvedRecipe {
        name: "other".into(),
        features: recipe.features.clone(),
        ..qwen3()
    };
    let is_taken = |existing| {
        let of_other = Asked {
            recipe: &other,
            ..asked(Existing::Continue)
        };
        let lender = Begun::noted(&asked(existing));
        shares(&[Begun::noted(&of_other)], Some(&lender)) == [Features::Linked]
    };
    assert!(!is_taken(Existing::Continue));
    let run = asked(Existing::Continue).run();
    let run = RunFolder::open(run, &recipe.toml, Existing::Continue).unwrap();
    for stage in order::of(&recipe) {
        if recipe.method.stages().contains(&stage.name) {
            break;
        }
        let start = Start {
            settings: settings(&recipe, &stage).unwrap(),
            ..Start::default()
        };
        let manifest = run.start(stage.name, start).unwrap();
        let name = stage.name;
        assert!(!is_taken(Existing::Continue), "`{name}` is not done");
        run.finish(manifest, 1.0, Value::Null).unwrap();
    }
    assert!(is_taken(Existing::Continue));
    // Set aside, it lends nothing.
    assert!(!is_taken(Existing::SetAside));
}

#[test]
fn a_disk_that_is_too_small_is_known_without_a_plan() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    let told = |recipe: &ResolvedRecipe| {
        too_little_room(&Asked {
            recipe,
            runs: root.path(),
            existing: Existing::Continue,
            device: "cuda:0",
            ranks: 1,
            only: &[],
            parts: None,
        })
    };
    recipe.train.steps = 1_000_000;
    recipe.train.save_every = 1;
    recipe.train.keep = 1_000_000;
    let warned = told(&recipe);
    let is_told = warned
        .iter()
        .any(|line| line.contains(" of the disk, and "));
    assert!(is_told, "{warned:?}");
    // As well where a part of the run is there, of what is still to come.
    std::fs::create_dir_all(root.path().join("qwen3/train")).unwrap();
    let warned = told(&recipe);
    let is_told = warned
        .iter()
        .any(|line| line.starts_with("the run still takes "));
    assert!(is_told, "{warned:?}");
    recipe.target.model = Some("nobody/nothing".into());
    assert_eq!(told(&recipe), [""; 0]);
}

#[test]
fn how_much_room_a_run_takes_is_known_without_what_its_stages_have_done() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.train.batch_tokens = 1 << 30;
    // Who looks at the stages fails here, as the run does later.
    let stage = root.path().join("qwen3/prepare");
    std::fs::create_dir_all(&stage).unwrap();
    std::fs::write(stage.join("manifest.json"), "{").unwrap();
    let asked = Asked {
        recipe: &recipe,
        runs: root.path(),
        existing: Existing::Continue,
        device: "cpu",
        ranks: 1,
        only: &[],
        parts: None,
    };
    assert!(stages::stages(&asked).is_err());
    let mut warned = too_little_room(&asked);
    // How much room the disk of this machine has is not what is asked here.
    warned.retain(|line| !line.contains(" of the disk, and "));
    let memory = |line: &String| line.contains(" of memory at its peak, and ");
    assert!(warned.len() == 1 && memory(&warned[0]), "{warned:?}");
}

#[test]
fn columns_are_wide_enough_for_the_names_of_stages() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.regenerate = Some(RegenerateTable::default());
    let text = text(&recipe, root.path(), "cuda:0");
    assert!(
        text.contains("\n  regenerate runs\n  prepare    runs\n"),
        "{text}"
    );
}

#[test]
fn a_plan_says_which_recipe_was_read_and_how_many_steps_it_trains() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.origin = Some(Origin::File("mine.toml".into()));
    let plan = planned(1, &recipe, root.path(), "cuda:0");
    assert!(
        plan.text.contains("\nrecipe: ./mine.toml\nrun: "),
        "{}",
        plan.text
    );
    assert_eq!(plan.json["recipe_from"], "./mine.toml");
    assert!(
        plan.text
            .contains("1,000 steps of 4,096 tokens, 4.10 M tokens\n"),
        "{}",
        plan.text
    );
    let steps = &plan.json["estimates"]["training_steps"]["train"];
    assert_eq!(
        (&steps["steps"], &steps["tokens_per_step"]),
        (&1000.into(), &4096.into())
    );
}

#[test]
fn more_passes_over_the_data_than_help_are_told() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("train.jsonl");
    let row = r#"{"messages": [{"role": "user", "content": "a b"}, {"role": "assistant", "content": "c"}]}"#;
    let mut recipe = qwen3();
    recipe.data.train = Some(serde_json::from_value(json!(file)).unwrap());
    let warned = |rows: usize| {
        std::fs::write(&file, format!("{row}\n").repeat(rows)).unwrap();
        text(&recipe, root.path(), "cuda:0").contains("times over the data, and more than 20")
    };
    assert!(warned(100));
    assert!(!warned(20_000));
    // A thousand steps of 4,096 tokens, of 4 bytes each.
    let rows = |passes: usize| 4 * 4_096_000 / passes / (row.len() + 1);
    assert!(warned(rows(22)));
    assert!(!warned(rows(20)));
    recipe.train.steps = 1;
    assert!(!text(&recipe, root.path(), "cuda:0").contains("times over the data"));
}

#[test]
fn passes_that_were_chosen_by_the_sizes_of_files_may_be_more_once_tokens_are_counted() {
    let root = tempfile::tempdir().unwrap();
    let recipe = qwen3();
    let sizes = target_sizes::of(&recipe).unwrap();
    let mut estimate = estimated(&recipe, &sizes, root.path());
    let mut warned = |passes: u64| {
        estimate.data_tokens = Some(4_096_000 / passes);
        [false, true].map(|is_counted| {
            estimate.is_counted = is_counted;
            estimate.many_passes(&recipe).is_some()
        })
    };
    assert_eq!(warned(20), [false, false]);
    assert_eq!(warned(25), [true, false]);
    assert_eq!(warned(32), [true, true]);
}

#[test]
fn texts_take_memory_of_the_machine_in_each_process() {
    let root = tempfile::tempdir().unwrap();
    let recipe = qwen3();
    let sizes = target_sizes::of(&recipe).unwrap();
    let mut estimate = estimated_on(8, &recipe, &sizes, root.path());
    let text = |estimate: &Estimate| estimate.text(&recipe, &sizes);
    assert_eq!(estimate.all_texts(), None);
    assert!(!text(&estimate).contains("memory, texts"));
    let peak = estimate.peak().unwrap();
    assert_eq!(estimate.all_processes(), Some(8 * peak));
    estimate.data_tokens = Some(7_500_000_000);
    assert_eq!(estimate.all_texts(), Some(300_000_000_000));
    assert_eq!(estimate.all_processes(), Some(8 * peak + 300_000_000_000));
    let told = "memory, texts          34.9 GiB of the machine's own, in each of 8 processes\n";
    assert!(text(&estimate).contains(told), "{}", text(&estimate));
    let asked = Asked {
        recipe: &recipe,
        runs: root.path(),
        existing: Existing::Continue,
        device: "cuda:0",
        ranks: 8,
        only: &[],
        parts: None,
    };
    assert_eq!(
        room::needed_memory(&asked, &estimate),
        Some(300_000_000_000)
    );
}

#[test]
fn a_part_of_the_features_that_is_larger_than_the_disk_is_told() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.features.mode = FeatureMode::Stored;
    let sizes = target_sizes::of(&recipe).unwrap();
    let part = Part { part: 3, of: 4 };
    let mut estimate = estimated(&recipe, &sizes, root.path());
    let told = |estimate: &Estimate, parts: Option<&str>| {
        let asked = Asked {
            recipe: &recipe,
            runs: root.path(),
            existing: Existing::Continue,
            device: "cuda:0",
            ranks: 1,
            only: &[],
            parts,
        };
        room::too_little_for_part(&asked, part, estimate)
    };
    assert_eq!(told(&estimate, None), None);
    // The share of a part is larger than any disk.
    estimate.feature_bytes = Some(1 << 62);
    let expected = format!("part 3/4 takes {} of the disk", bytes(1 << 60));
    let there = root.path().join("there").display().to_string();
    for parts in [None, Some(&*there)] {
        let told = told(&estimate, parts).unwrap();
        assert!(told.starts_with(&expected), "{told}");
    }
}

#[test]
fn parts_that_are_there_are_not_left_to_write_wherever_they_are() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.features.mode = FeatureMode::Stored;
    let sizes = target_sizes::of(&recipe).unwrap();
    let mut estimate = estimated(&recipe, &sizes, root.path());
    estimate.feature_bytes = Some(1 << 30);
    let there = root.path().join("there");
    let given = there.display().to_string();
    let left = |parts: Option<&str>| {
        let asked = Asked {
            recipe: &recipe,
            runs: root.path(),
            existing: Existing::Continue,
            device: "cuda:0",
            ranks: 1,
            only: &[],
            parts,
        };
        on_disk::left(&asked, &estimate)
    };
    let all = left(None);
    let run = root.path().join(&recipe.name);
    for parts in [&there, &run.join(FETCHED)] {
        let part = parts.join("part-00001-of-00002");
        std::fs::create_dir_all(&part).unwrap();
        std::fs::write(part.join("features-00000.arrow"), vec![0; 1000]).unwrap();
    }
    assert_eq!(left(None), all - 1000);
    assert_eq!(left(Some(&given)), all - 2000);
}

#[test]
fn a_stage_that_an_earlier_version_did_without_a_key_is_noted_as_done() {
    let root = tempfile::tempdir().unwrap();
    let recipe = qwen3();
    let asked = Asked {
        recipe: &recipe,
        runs: root.path(),
        existing: Existing::Continue,
        device: "cuda:0",
        ranks: 1,
        only: &[],
        parts: None,
    };
    let stages = order::of(&recipe);
    let prepare = stages.iter().find(|stage| stage.name == "prepare");
    let prepare = prepare.unwrap();
    let run = RunFolder::open(asked.run(), &recipe.toml, Existing::Continue).unwrap();
    let noted = |change: &dyn Fn(&mut Map<String, Value>)| {
        let mut settings = settings(&recipe, prepare).unwrap();
        change(settings["data"].as_object_mut().unwrap());
        let start = Start {
            settings,
            ..Start::default()
        };
        let manifest = run.start("prepare", start).unwrap();
        run.finish(manifest, 1.0, Value::Null).unwrap();
        asked.is_noted_as_done(prepare)
    };
    assert!(noted(&|_| {}));
    assert!(noted(&|data| drop(data.shift_remove("date").unwrap())));
    assert!(!noted(&|data| data["max_length"] = json!(1)));
}

#[test]
fn a_patience_that_cannot_end_a_training_is_warned_of() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.train.steps = 30;
    recipe.train.validate_every = 10;
    let told = "`train.patience = 2` cannot end the stage `train`: before its last step no more than 1 validation ";
    for (patience, expected) in [(None, false), (Some(1), false), (Some(2), true)] {
        recipe.train.patience = patience;
        let text = text(&recipe, root.path(), "cpu");
        assert_eq!(text.contains(told), expected, "{text}");
    }
}

#[test]
fn of_a_target_that_servers_have_it_is_said_how_much_is_read() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.features.mode = FeatureMode::Served;
    let plan = planned(1, &recipe, root.path(), "cuda:0");
    assert!(
        plan.text
            .contains("  read of the target     1.24 G of 8.19 G parameters;"),
        "{}",
        plan.text
    );
    assert_eq!(
        plan.json["estimates"]["target"]["of_parameters"],
        8_190_722_048_u64
    );
}

#[test]
fn addresses_and_folders_that_are_none_are_refused() {
    let root = tempfile::tempdir().unwrap();
    let first = |recipe: &ResolvedRecipe| {
        let plan = planned(1, recipe, root.path(), "cpu");
        assert!(plan.text.ends_with(REFUSED), "{}", plan.text);
        with_causes(&plan.refusal.unwrap())
    };
    let mut recipe = qwen3();
    recipe.regenerate = Some(RegenerateTable {
        server: Some("localhost:8000".into()),
        ..RegenerateTable::default()
    });
    let told = "`regenerate.server`: expected `http://HOST:PORT`, found `localhost:8000`";
    assert!(first(&recipe).contains(told), "{}", first(&recipe));
    let mut recipe = qwen3();
    let folder = root.path().display().to_string();
    recipe.target.model = Some(folder.clone());
    let told =
        format!("`target.model`: the folder `{folder}` holds no model: expected `config.json`");
    assert!(first(&recipe).contains(&told), "{}", first(&recipe));
}

#[test]
fn a_hub_target_is_planned_without_network_or_download() {
    let root = tempfile::tempdir().unwrap();
    let text = text(&qwen3(), root.path(), "cuda:0");
    let words: Vec<&str> = text.split_whitespace().collect();
    let words = words.join(" ");
    assert!(
        words.contains("8.19 G parameters") && words.contains("this program's list"),
        "{text}"
    );
    assert!(text.contains("train     runs"), "{text}");
    assert!(!root.path().join("qwen3").exists(), "a plan leaves nothing");
}

#[test]
fn an_unknown_target_says_why_there_are_no_estimates() {
    let root = tempfile::tempdir().unwrap();
    let mut recipe = qwen3();
    recipe.target.model = Some("nobody/nothing".into());
    let text = text(&recipe, root.path(), "cuda:0");
    assert!(text.contains("`nobody/nothing` are known once"), "{text}");
}

#[test]
fn the_eagle3_drafter_of_an_8b_target_has_the_published_size() {
    let recipe = qwen3();
    let sizes = target_sizes::of(&recipe).unwrap();
    let footprint = recipe.method.footprint(&sizes.spec).unwrap();
    // fc 3·4096², attention 2·4096·(32+16)·128 + 4096², MLP 3·4096·12288, head 32000·4096.
    assert_eq!(footprint.parameters, 399_523_840);
}

#[test]
fn stored_features_take_the_target_out_of_the_training_step() {
    let recipe = qwen3();
    let sizes = target_sizes::of(&recipe).unwrap();
    let root = tempfile::tempdir().unwrap();
    let live = estimated(&recipe, &sizes, root.path());
    let mut recipe = recipe;
    recipe.features.mode = FeatureMode::Stored;
    let stored = estimated(&recipe, &sizes, root.path());
    assert_eq!(stored.target_bytes, live.target_bytes);
    assert!(stored.flops_per_token < live.flops_per_token);
}

#[test]
fn several_devices_share_the_optimisers_state_and_the_time() {
    let recipe = qwen3();
    let sizes = target_sizes::of(&recipe).unwrap();
    let root = tempfile::tempdir().unwrap();
    let found = [1, 4, 100].map(|ranks| {
        let estimate = estimated_on(ranks, &recipe, &sizes, root.path());
        (estimate.memory.drafter, estimate.speed().0)
    });
    let [(alone, slow), (of_four, fast), (of_many, _)] = found;
    // AdamW's two moments of 399,523,840 parameters, of which the head's 131,072,000 are one rank's.
    assert_eq!(alone - of_four, 4 * 2 * (399_523_840 - 131_072_000));
    assert_eq!(of_many, of_four);
    assert_eq!(fast, 4.0 * slow);
}

#[test]
fn the_memory_of_several_processes_is_said_to_be_that_of_each() {
    let root = tempfile::tempdir().unwrap();
    let words = |ranks: usize| {
        let plan = planned(ranks, &qwen3(), root.path(), "cuda:0");
        assert_eq!(plan.json["estimates"]["processes"], ranks);
        plan.text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let of_each = "in the stage `train`, of each of 2 processes";
    assert!(words(2).contains(of_each) && !words(1).contains("of each of"));
}

#[test]
fn steps_are_unrolled_where_there_are_several() {
    let root = tempfile::tempdir().unwrap();
    let activations = |kind: &str| {
        let text = text(&of(kind), root.path(), "cuda:0");
        let line = text.lines().find(|line| line.contains("activations"));
        line.unwrap().to_owned()
    };
    let unrolled = activations("eagle3");
    assert!(
        unrolled.ends_with(" (7 draft steps unrolled, 2 held at a time)"),
        "{unrolled}"
    );
    assert!(!activations("medusa").contains('('), "{unrolled}");
}

#[test]
fn devices_and_their_speed_are_said_in_units_that_are_read() {
    let root = tempfile::tempdir().unwrap();
    let words = |ranks: usize| {
        let text = planned(ranks, &qwen3(), root.path(), "cuda:0").text;
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let many = "GFLOP per token, 3.2 PFLOP/s on 8 devices (assumed: 40 % of the dense bf16 peak of an H100 or H200 on each)";
    assert!(words(8).contains(many), "{}", words(8));
    let one = "400 TFLOP/s on cuda:0 (assumed: 40 % of the dense bf16 peak of an H100 or H200)";
    assert!(words(1).contains(one), "{}", words(1));
}

#[test]
fn an_evaluation_takes_what_its_passes_take() {
    let root = tempfile::tempdir().unwrap();
    let seconds = |recipe: &ResolvedRecipe| {
        let plan = planned(1, recipe, root.path(), "cuda:0");
        plan.json["estimates"]["time"]["stages"]["evaluate"]
            .as_f64()
            .unwrap()
    };
    let mut recipe = qwen3();
    // 64 prompts of 128 tokens at two temperatures. A token of Qwen3-8B takes 25.4 ms; a pass over a draft of five 32 ms with the
    // draft, for two tokens, in one way at temperature 0 and in two above it. Each of these two is tested on 4,000 tokens, and each
    // temperature is timed for 16 s.
    let plain = 64.0 * 128.0 * 0.0254;
    let expected = 2.0 * (plain + 16.0) + (3.0 * 4096.0 + 2.0 * 1.35 * 2000.0) * 0.032;
    let found = seconds(&recipe);
    assert!((found / expected - 1.0).abs() < 0.05, "{found} {expected}");
    recipe.evaluate.temperatures = vec![0.0];
    recipe.evaluate.baseline = false;
    let found = seconds(&recipe);
    let expected = 4096.0 * 0.032;
    assert!((found / expected - 1.0).abs() < 0.05, "{found} {expected}");
    recipe.evaluate.prompts = Prompts::Count(128);
    assert!((seconds(&recipe) / found - 2.0).abs() < 1e-9);
    // No more are decoded at a time than there are.
    recipe.evaluate.prompts = Prompts::Count(8);
    let [half, all, more] = [4, 8, 64].map(|size| {
        recipe.evaluate.batch_size = size;
        seconds(&recipe)
    });
    assert!(all < half, "{all} {half}");
    assert_eq!(more, all);
}

#[test]
fn what_servers_decide_is_not_estimated_and_what_the_target_writes_is() {
    let root = tempfile::tempdir().unwrap();
    let file = root.path().join("train.jsonl");
    let row = r#"{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "forty bytes of an answer that is here...."}]}"#;
    std::fs::write(&file, format!("{row}\n").repeat(3)).unwrap();
    let mut recipe = qwen3();
    recipe.data.train = Some(serde_json::from_value(json!(file)).unwrap());
    recipe.regenerate = Some(RegenerateTable::default());
    let words = |recipe: &ResolvedRecipe| {
        let text = planned(1, recipe, root.path(), "cuda:0").text;
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let told = "3 answers as long as those of the data, 30 tokens";
    assert!(words(&recipe).contains(told), "{}", words(&recipe));
    recipe.regenerate = Some(RegenerateTable {
        server: Some("http://localhost:8000".into()),
        ..RegenerateTable::default()
    });
    let found = words(&recipe);
    assert!(
        found.contains("regenerate not known: as fast as its servers answer"),
        "{found}"
    );
    assert!(found.contains(" besides regenerate Guessed:"), "{found}");
}
