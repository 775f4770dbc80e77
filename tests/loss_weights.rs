//! Weights of losses that change over the steps: at each step a loss is what it would be with the number that they are there, for
//! every key of every recipe.
use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;
use spectrain::cli::commands::schema;
use spectrain::families::registry::{RECIPES, Recipe, find};
use spectrain::plan::preflight::Asked;
use spectrain::recipe;
use spectrain::runs::run_folder::Existing;
use spectrain_checkpoints::NamedTensor;
use spectrain_models::device::test_device;
use spectrain_models::{Target as _, Transformer};
use spectrain_train::{Batch, Judges, LossReport, Statistics, Step};

use crate::samples::{Trial, changed};
use crate::tiny;

/// Tables of DFlash with a guess how likely drafts are kept, with a selector of paths, and with passes that refine drafts.
const CONFIDENT: &str =
    "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 4\nmarkov_rank = 4\nconfidence = true";
const SELECTING: &str =
    "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 4\nselector_rank = 4\nselector_top_k = 4";

const REFINING: &str = "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 4\nmarkov_rank = 4\nmarkov = \"xpress\"\nmarkov_passes = 2";

/// The keys of a recipe's objective that take a weight.
fn keys(recipe: &Recipe) -> Vec<String> {
    let root = schema::of(&[recipe]).to_value();
    let refers = |schema: &Value| {
        let name = schema["$ref"].as_str();
        let name = name.or(schema["allOf"][0]["$ref"].as_str());
        name.unwrap_or_default().to_owned()
    };
    let objective = refers(&root["allOf"][0]["then"]["properties"]["objective"]);
    let objective = root.pointer(objective.trim_start_matches('#')).unwrap();
    let keys = objective["properties"].as_object().unwrap().iter();
    let keys = keys.filter(|(_, schema)| refers(schema) == "#/definitions/Weight");
    keys.map(|(key, _)| key.clone()).collect()
}

/// A weight in the second of four steps, as a table and as a number.
fn of_second_step() -> [String; 2] {
    let (start, end) = (0.4, 0.8);
    let number: f64 = start * 0.75 + end * 0.25;
    [
        format!("{{ start = {start}, end = {end} }}"),
        format!("{number:?}"),
    ]
}

fn with(recipe: &'static Recipe, tables: &str, key: &str, value: &str) -> Trial {
    changed(recipe, tables, &[format!("objective.{key}={value}")])
}

fn batch(target: &Transformer, trial: &Trial) -> Batch {
    let capture = trial.method().capture(target.spec()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let samples = tiny::samples(folder.path(), &tiny::random_samples(3), 1);
    tiny::batch(&mut tiny::live(samples, target, capture))
}

/// What the step of this number, of four, makes of a batch: its loss, the weights behind it, and what the optimiser keeps.
fn step(
    trial: &Trial,
    target: &Transformer,
    batch: &Batch,
    number: usize,
) -> (LossReport, Vec<NamedTensor>, Vec<NamedTensor>) {
    let mut trainee = trial.trainee(target, &test_device().autodiff());
    let batch = batch.clone().in_training(3, Step { number, of: 4 });
    let report = trainee.accumulate(&batch, Statistics::Loss).report();
    trainee.update(1e-3, 0.5);
    (report, trainee.weights(), trainee.optimizer().1)
}

fn measured(trial: &Trial, target: &Transformer, batch: &Batch) -> f64 {
    let trainee = trial.trainee(target, &test_device().autodiff());
    trainee.measure(batch).total
}

/// Fails unless a key's table is what a number is, in a step and in a validation. Whether another step is another loss.
fn is_a_number_at_each_step(
    recipe: &'static Recipe,
    tables: &str,
    key: &str,
    target: &Transformer,
) -> bool {
    let [table, number] = of_second_step();
    let trial = |value: &str| with(recipe, tables, key, value);
    let [changing, fixed, end] = [&*table, &*number, "0.8"].map(trial);
    let batch = batch(target, &changing);
    let what = format!("{} {key}", recipe.name);
    let (report, weights, kept) = step(&changing, target, &batch, 1);
    let (expected, expected_weights, expected_kept) = step(&fixed, target, &batch, 1);
    assert!(weights == expected_weights, "{what}");
    assert!(kept == expected_kept, "{what}");
    let told = LossReport {
        changing: expected.changing.clone(),
        ..report.clone()
    };
    assert_eq!(told, expected, "{what}");
    let held_out = [&changing, &end].map(|trial| measured(trial, target, &batch));
    assert_eq!(held_out[0], held_out[1], "{what}");
    let (last, ..) = step(&changing, target, &batch, 3);
    // The parts are what they were: only what they count is another.
    let weighs_inside = |name: &str| {
        // Rounds and guesses are judged as drafts are, by labels and by the target.
        ["consistency", "guesses"].contains(&name)
            && ["label_weight", "teacher_weight"].contains(&key)
    };
    let parts = report.parts.iter();
    for (name, part) in parts.filter(|(name, _)| !weighs_inside(name)) {
        let apart = (last.parts[name] - part).abs();
        assert!(apart < 1e-4 * part.abs(), "{what}: {name} {apart}");
    }
    let counts = last.total != report.total;
    // A weight of what this drafter does not have is not told.
    assert_eq!(report.changing.len(), usize::from(counts), "{what}");
    counts
}

#[test]
fn weights_of_every_recipe_are_at_each_step_what_a_number_would_be() {
    let target = tiny::target(&test_device());
    let others = [CONFIDENT, SELECTING, REFINING];
    let others = others.map(|tables| (find("dflash").unwrap(), tables));
    let trials = RECIPES.iter();
    let trials = trials.map(|recipe| (recipe, recipe.trials[0]));
    let (mut all, mut effective) = (BTreeSet::new(), BTreeSet::new());
    for (recipe, tables) in trials.chain(others) {
        // A number has another meaning there.
        for key in keys(recipe).into_iter().filter(|key| key != "base_weight") {
            if is_a_number_at_each_step(recipe, tables, &key, &target) {
                effective.insert(key.clone());
            }
            all.insert(key);
        }
    }
    assert_eq!(effective, all);
    // The last two may be left out.
    for key in [
        "label_weight",
        "class_weight",
        "selector_weight",
        "consistency_weight",
        "guess_weight",
    ] {
        assert!(all.contains(key), "{all:?}");
    }
}

#[test]
fn the_share_of_a_base_is_a_number_that_falls_or_a_table() {
    let recipe = find("dflash").unwrap();
    let target = tiny::target(&test_device());
    let tables = "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 4\nmarkov_rank = 8\nmarkov = \"domino\"\nmarkov_state = 24";
    let number = ["base_weight=0.8", "base_until=0.75"];
    let number = number.map(|set| format!("objective.{set}"));
    let number = changed(recipe, tables, &number);
    let table = "{ start = 0.8, end = 0.0, until = 0.75 }";
    let table = with(recipe, tables, "base_weight", table);
    let batch = batch(&target, &number);
    for at in 0..4 {
        let [one, other] = [&number, &table].map(|trial| step(trial, &target, &batch, at));
        assert!(one == other, "{at}");
        // Behind its fall nothing is computed for it.
        assert_eq!(one.0.parts.contains_key("base"), at < 3, "{at}");
        assert!(one.0.changing.contains_key("base"));
    }
}

/// Else the first steps in which it counts would be taken as later ones of many, and nothing would decay before.
#[test]
fn what_only_one_loss_trains_has_a_gradient_while_that_weighs_nothing() {
    let recipe = find("dflash").unwrap();
    let target = tiny::target(&test_device());
    for (tables, key, part) in [
        (CONFIDENT, "confidence_weight", "confidence"),
        (SELECTING, "selector_weight", "selector"),
    ] {
        let rising = "{ start = 0.0, end = 1.0, from = 0.5 }";
        let [rising, one, none] = [rising, "1.0", "0.0"].map(|of| with(recipe, tables, key, of));
        let batch = batch(&target, &rising);
        let kept = |trial: &Trial| {
            let (report, _, kept) = step(trial, &target, &batch, 0);
            let names = kept.iter().map(|tensor| tensor.name.clone());
            (report, names.collect::<BTreeSet<_>>())
        };
        let (report, names) = kept(&rising);
        assert_eq!(names, kept(&one).1, "{key}");
        let (plain, of_others) = kept(&none);
        assert!(of_others.len() < names.len(), "{key}");
        // It is told, and counts nothing.
        assert!(report.parts[part] > 0.0, "{key}: {report:?}");
        assert_eq!((report.changing[part], report.terms), (0.0, 0.0));
        assert!((report.total - plain.total).abs() < 1e-6, "{key}");
    }
}

/// Slots are weighed by what the drafter makes of them, beside the loss.
#[test]
fn a_target_that_weighs_nothing_yet_is_reported_and_the_text_counts_alone() {
    let target = tiny::target(&test_device());
    let rising = "{ start = 0.0, end = 1.0, from = 0.5 }";
    let recipe = find("dflash").unwrap();
    let tables = "[drafter]\nlayers = 2\nmask_token = 47\nblock_size = 4";
    let trial = with(recipe, tables, "teacher_weight", rising);
    let (report, ..) = step(&trial, &target, &batch(&target, &trial), 0);
    let of = |part: &str| report.parts[part];
    assert!(of("teacher") > 0.0 && of("labels") > 0.0, "{report:?}");
    assert!((report.total - of("labels")).abs() < 1e-6, "{report:?}");
    assert!((report.terms - of("labels")).abs() < 1e-6, "{report:?}");
}

/// One part says more than the loss where a factor changes.
#[test]
fn the_loss_of_an_unrolled_drafter_is_told_by_its_name() {
    let target = tiny::target(&test_device());
    let sum = "{ sum = { kl = { start = 1.0, end = 0.5 }, tv = 0.5 } }";
    for name in ["eagle3", "mtp"] {
        let recipe = find(name).unwrap();
        let trial = with(recipe, recipe.trials[0], "divergence", sum);
        let (report, ..) = step(&trial, &target, &batch(&target, &trial), 1);
        assert_eq!(report.changing["kl"], 0.875, "{name}");
        let parts: Vec<&String> = report.parts.keys().collect();
        assert_eq!(parts, ["teacher"], "{name}");
        let apart = (report.parts["teacher"] - report.total).abs();
        assert!(apart < 1e-6 * report.total, "{name}: {report:?}");
    }
}

#[test]
fn what_judges_at_any_step_is_planned_for() {
    let judges = |set: &[&str]| {
        let set: Vec<String> = set.iter().map(|set| format!("objective.{set}")).collect();
        let trial = changed(find("medusa").unwrap(), "", &set);
        trial.method().workload("train").judges
    };
    assert_eq!(judges(&[]), Judges::Text);
    let rising = "teacher_weight={ start = 0.0, end = 1.0, from = 0.5 }";
    assert_eq!(judges(&[rising]), Judges::Target { panels: 1 });
    let falling = "divergence={ sum = { tv = 1.0, reverse_kl = { start = 0.5, end = 0.0 } } }";
    assert_eq!(judges(&[rising, falling]), Judges::Target { panels: 2 });
}

fn read(set: &[&str]) -> anyhow::Result<recipe::ResolvedRecipe> {
    let text = "recipe = \"dflash\"\nname = \"a\"\n[synthetic]\n";
    let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
    recipe::read(text, &set)
}

#[test]
fn a_weight_that_makes_no_sense_is_refused_with_its_key() {
    for (set, told) in [
        (
            &["objective.label_weight=high"][..],
            "expected a number, or a table such as",
        ),
        (
            &["objective.label_weight={ start = 1.0 }"],
            "missing field `end`",
        ),
        (
            &["objective.label_weight={ start = 1, end = 0, to = 1 }"],
            "unknown field `to`",
        ),
        (
            &["objective.selector_weight={ start = 1, end = 0, from = 0.6, until = 0.5 }"],
            "`from` at most `until`, both from 0 to 1, found { start = 1, end = 0, from = 0.6, until = 0.5 }",
        ),
        (
            &["objective.confidence_weight={ start = -1, end = 0 }"],
            "expected 0 or more, found { start = -1,",
        ),
        (
            &[
                "objective.label_weight={ start = 1, end = 0, until = 0.5 }",
                "objective.teacher_weight={ start = 0, end = 1, from = 0.5 }",
            ],
            "above 0 where `label_weight` is 0 after the share 0.5 of the steps",
        ),
        (
            &["objective.base_weight={ start = 1.5, end = 0 }"],
            "a number from 0 to 1",
        ),
        (
            &[
                "objective.base_until=0.5",
                "objective.base_weight={ start = 1, end = 0 }",
            ],
            "`objective.base_until`",
        ),
    ] {
        let error = format!("{:#}", read(set).err().unwrap());
        let keys = set.iter().map(|set| set.split('=').next().unwrap());
        let named = keys.filter(|key| error.contains(key)).count();
        assert!(error.contains(told) && named > 0, "{set:?}: {error}");
    }
}

/// The warnings of keys that nothing reads.
fn warned(set: &[&str]) -> Vec<String> {
    let mut warnings = warnings(&read(set).unwrap());
    warnings.retain(|warning| warning.contains("nothing reads it"));
    warnings
}

/// All that is to be known before a run.
fn warnings(recipe: &recipe::ResolvedRecipe) -> Vec<String> {
    let asked = Asked {
        recipe,
        runs: Path::new("absent"),
        existing: Existing::Continue,
        device: "cpu",
        ranks: 1,
        only: &[],
        parts: None,
    };
    asked.warnings()
}

#[test]
fn heads_of_a_width_that_engines_may_not_take_are_warned_of() {
    for (kind, table) in [
        ("eagle3", "drafter"),
        ("eagle1", "drafter"),
        ("dflash", "drafter"),
        ("distillspec", "drafter.fresh"),
    ] {
        let told = |width: usize| {
            let text = format!(
                "recipe = \"{kind}\"\nname = \"a\"\n[synthetic]\n[{table}]\nd_head = {width}\n"
            );
            let mut found = warnings(&recipe::read(&text, &[]).unwrap());
            found.retain(|warning| warning.contains("engines' kernels take"));
            found
        };
        for width in [0, 32, 72, 256] {
            assert_eq!(told(width), [""; 0], "{kind} {width}");
        }
        for width in [6, 24, 68, 264] {
            let found = told(width);
            let named = format!("`{table}.d_head = {width}`: ");
            assert_eq!(found.len(), 1, "{kind} {width}: {found:?}");
            assert!(found[0].starts_with(&named), "{found:?}");
            assert!(
                found[0].contains("multiples of 8 from 32 to 256"),
                "{found:?}"
            );
        }
    }
}

#[test]
fn what_is_set_for_a_part_that_the_drafter_does_not_have_is_warned_of() {
    let none: [&str; 0] = [];
    assert_eq!(warned(&[]), none);
    let table = "objective.selector_weight={ start = 0.0, end = 1.0 }";
    let told = "`objective.selector_weight` is set and nothing reads it: the drafter has no selector (`drafter.selector_rank`)";
    for set in [table, "objective.selector_weight=0.5"] {
        assert_eq!(warned(&[set]), [told]);
        assert_eq!(warned(&[set, "drafter.selector_rank=4"]), none);
    }
    for (set, has) in [
        ("objective.inject=false", &["drafter.selector_rank=4"][..]),
        (
            "objective.confidence_weight=0.5",
            &["drafter.confidence=true"],
        ),
        ("objective.base_weight=0.5", &["drafter.markov_rank=4"]),
        (
            "objective.guess_weight=0.5",
            &["drafter.markov_rank=4", "drafter.markov=xpress"],
        ),
        ("objective.base_until=0.3", &["drafter.markov_rank=4"]),
    ] {
        assert_eq!(warned(&[set]).len(), 1, "{set}");
        assert_eq!(warned(&[&[set][..], has].concat()), none, "{set}");
    }
    // A table leaves out the key beside it, which nobody has set.
    let table = "objective.base_weight={ start = 1.0, end = 0.0 }";
    assert_eq!(warned(&[table]).len(), 1);
    let without_rank = warned(&["objective.guess_weight=0.5", "drafter.markov=xpress"]);
    let both = "(`drafter.markov = \"xpress\"` with a `drafter.markov_rank`)";
    let [of_drafter, of_objective] = &without_rank[..] else {
        panic!("{without_rank:?}");
    };
    assert!(
        of_drafter.starts_with("`drafter.markov` is set"),
        "{of_drafter}"
    );
    assert!(of_objective.ends_with(both), "{of_objective}");
}

#[test]
fn what_another_setting_rules_out_is_warned_of() {
    let none: [&str; 0] = [];
    // Runs of before may have these, which no weight depends on.
    for set in ["drafter.markov_state=8", "drafter.markov_from=0"] {
        let key = set.split('=').next().unwrap();
        let told =
            format!("`{key}` is set and nothing reads it: `drafter.markov` is not `\"domino\"`");
        for kind in ["vanilla", "rnn", "xpress"] {
            let kind = format!("drafter.markov={kind}");
            let warnings = warned(&[set, "drafter.markov_rank=4", &kind]);
            assert_eq!(warnings, [told.as_str()]);
        }
        let domino = ["drafter.markov_rank=4", "drafter.markov=domino", set];
        assert_eq!(warned(&domino), none);
    }
    // Without the bias nothing reads what is in it.
    let without = |key: &str| {
        format!(
            "`drafter.{key}` is set and nothing reads it: the drafter has no bias by the tokens before (`drafter.markov_rank`)"
        )
    };
    for (set, keys) in [
        (&["drafter.markov_state=8"][..], &["markov_state"][..]),
        (
            &["drafter.markov=domino", "drafter.markov_from=0"],
            &["markov", "markov_from"],
        ),
        (
            &[
                "drafter.markov=xpress",
                "drafter.markov_d_ff=64",
                "drafter.markov_passes=2",
            ],
            &["markov", "markov_d_ff", "markov_passes"],
        ),
    ] {
        let expected: Vec<String> = keys.iter().map(|key| without(key)).collect();
        assert_eq!(warned(set), expected);
        // A rank alone does not make the vanilla bias read what is Domino's.
        let with_rank = warned(&[set, &["drafter.markov_rank=4"][..]].concat());
        assert_eq!(
            with_rank.is_empty(),
            keys.contains(&"markov"),
            "{with_rank:?}"
        );
    }
    // What another key of the objective rules out.
    let shown = [
        "objective.consistency_passes=2",
        "objective.masking=some",
        "drafter.markov_rank=4",
        "drafter.markov=xpress",
    ];
    let told = "`objective.consistency_passes` is set and nothing reads it: with `objective.masking = \"some\"` no draft is judged";
    assert_eq!(warned(&shown), [told]);
    assert_eq!(warned(&shown[..3]).len(), 1);
}

#[test]
fn a_weight_is_written_into_the_run_as_it_was_given() {
    let table = "{ start = 0.9, end = 0.1 }";
    let labels = format!("objective.label_weight={table}");
    let base = format!("objective.base_weight={table}");
    let resolved = read(&[&labels, &base]).unwrap();
    let objective = &resolved.json["objective"];
    let whole = serde_json::json!({ "start": 0.9, "end": 0.1, "from": 0.0, "until": 1.0 });
    assert_eq!(
        (&objective["label_weight"], &objective["base_weight"]),
        (&whole, &whole)
    );
    assert!(objective.get("base_until").is_none(), "{objective}");
    assert_eq!(objective["selector_weight"], 1.0);
    let again = recipe::read(&resolved.toml, &[]).unwrap();
    assert_eq!(again.json, resolved.json);
    // Numbers as ever: a run that has begun goes on.
    let default = read(&[]).unwrap();
    assert_eq!(default.json["objective"]["base_until"], 0.5);
}

#[test]
fn the_share_of_the_shipped_domino_may_be_a_table() {
    let table = "objective.base_weight={ start = 1.0, end = 0.1 }".to_owned();
    let resolved = recipe::read(include_str!("../recipes/domino.toml"), &[table]).unwrap();
    assert_eq!(resolved.json["objective"]["base_weight"]["end"], 0.1);
}

/// A run that has begun would start over for a key that it does not know.
#[test]
fn only_recipes_of_xpress_have_its_keys() {
    let of_drafter = ["markov_d_ff", "markov_passes"].map(|key| ("drafter", key));
    let of_objective = ["consistency_weight", "consistency_passes", "guess_weight"];
    let of_objective = of_objective.map(|key| ("objective", key));
    let none: &[&str] = &[];
    for tables in [none, &["drafter.markov_rank=4"]] {
        let resolved = read(tables).unwrap();
        for (table, key) in of_drafter.iter().chain(&of_objective) {
            let found = resolved.json[table].get(key);
            assert!(found.is_none(), "{tables:?} {key}: {found:?}");
        }
    }
    for (_, key) in of_drafter {
        let error = read(&["drafter.markov_rank=4", &format!("drafter.{key}=6")]);
        let error = format!("{:#}", error.err().unwrap());
        assert!(error.contains(key) && error.contains("xpress"), "{error}");
    }
    let xpress = ["drafter.markov_rank=4", "drafter.markov=xpress"];
    let given = [&xpress[..], &["drafter.markov_passes=3"]].concat();
    let resolved = read(&given).unwrap();
    assert_eq!(resolved.json["drafter"]["markov_passes"], 3);
    let again = recipe::read(&resolved.toml, &[]).unwrap();
    assert_eq!(again.json, resolved.json);
}
