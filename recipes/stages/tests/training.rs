//! Trainings, and the features that they read.

use serde_json::Value;
use spectrain_checkpoints::state;

use super::*;
use crate::families::registry::RECIPES;
use crate::runs::run_folder::StageState;
use crate::stages::setup::Setup;

#[test]
fn a_training_that_goes_on_keeps_the_type_that_it_has_begun_in() {
    let root = fixture();
    prepare(root.path(), &[]).unwrap();
    with_context(root.path(), &[], |context| {
        let start = Start {
            settings: context.settings(stage(TRAIN)).unwrap(),
            inputs: context.inputs(stage(TRAIN)).unwrap(),
            ..Start::default()
        };
        context.run.start(TRAIN, start).unwrap();
        state::save_state(&context.folder(TRAIN), 3, &json!({}), &[]).unwrap();
        on_gpu(context, |context| {
            let refused = run(context, &[TRAIN.to_owned()]).unwrap_err();
            let refused = format!("{refused:#}");
            for part in [
                "`target.dtype`: expected `f32`",
                "`bf16` on `cuda:0`",
                "`--set target.dtype=f32` goes on",
            ] {
                assert!(refused.contains(part), "no `{part}`: {refused}");
            }
        });
    });
    // As is advised.
    with_context(root.path(), &["target.dtype=f32"], |context| {
        let state = context.state(stage(TRAIN)).unwrap();
        assert_eq!(state, StageState::Interrupted);
    });
    with_context(root.path(), &["target.dtype=bf16"], |context| {
        on_gpu(context, |context| {
            let state = context.state(stage(TRAIN)).unwrap();
            assert!(matches!(state, StageState::Changed(_)), "{state:?}");
        });
    });
}

#[test]
fn a_drafter_of_an_earlier_version_can_be_trained_on_where_only_its_training_changes() {
    let root = fixture();
    with_trained(root.path(), |context| {
        run(context, &["export".to_owned()]).unwrap();
        let start = |settings: Value| Start {
            settings,
            inputs: context.inputs(stage(TRAIN)).unwrap(),
            ..Start::default()
        };
        let mut settings = context.settings(stage(TRAIN)).unwrap();
        settings["train"]["learning_rate"] = json!(0.5);
        let drafter = settings["drafter"].as_object_mut().unwrap();
        drafter.shift_remove("fc_norm").unwrap();
        context.run.start(TRAIN, start(settings.clone())).unwrap();
        let told = in_order::instead(context, stage(TRAIN)).unwrap().unwrap();
        assert!(told.contains("set `start = "), "{told}");
        settings["drafter"]["fc_norm"] = json!(true);
        context.run.start(TRAIN, start(settings)).unwrap();
        let told = in_order::instead(context, stage(TRAIN)).unwrap();
        assert_eq!(told, None);
    });
}

#[test]
fn features_go_on_only_in_the_type_that_they_have_begun_in() {
    let root = fixture();
    let stored = ["features.mode=stored"];
    prepare(root.path(), &stored).unwrap();
    with_context(root.path(), &stored, |context| {
        let features = stage("features");
        let start = Start {
            settings: context.settings(features).unwrap(),
            inputs: context.inputs(features).unwrap(),
            ..Start::default()
        };
        context.run.start("features", start).unwrap();
        let check = |context: &StageContext| in_order::check_type(context, features).unwrap();
        // Nothing is written yet.
        on_gpu(context, check);
        fs::write(context.folder("features").join("features.json"), "{}").unwrap();
        on_gpu(context, |context| {
            let refused = run(context, &["features".to_owned()]).unwrap_err();
            let refused = format!("{refused:#}");
            let told = "`target.dtype`: expected `f32`, in which the stage `features` has begun, found \"auto\"";
            assert!(refused.contains(told), "{refused}");
        });
        // What is only joined may have been computed anywhere; a folder from which all parts have gone holds none.
        let parts = context.run.path().join("features-parts");
        fs::create_dir(&parts).unwrap();
        on_gpu(context, |context| {
            in_order::check_type(context, features).unwrap_err();
        });
        fs::create_dir(parts.join("part-00001-of-00002")).unwrap();
        on_gpu(context, check);
    });
}

#[test]
fn a_training_that_has_nothing_to_measure_is_refused() {
    let root = fixture();
    with_trained(root.path(), |_| ());
    let few = [
        "name=b",
        "train.steps=2",
        "train.warmup_steps=1",
        "train.validate_every=2",
        "train.validate_samples=0",
    ];
    with_context(root.path(), &few, |context| {
        run(context, &["prepare".to_owned()]).unwrap();
        // As where no held-out text can be asked for.
        fs::write(context.folder("prepare").join("prompts.json"), "[]").unwrap();
        fs::create_dir_all(context.folder(TRAIN)).unwrap();
        let train = STAGES.iter().find(|stage| stage.name == TRAIN).unwrap();
        let refused = (train.run)(context, TRAIN).unwrap_err().to_string();
        let told = "key `train.validate_samples`: expected at least 1, as validations of the stage `train` do not count τ";
        assert!(refused.starts_with(told), "{refused}");
        assert!(
            refused.ends_with("there is no held-out prompt; found 0"),
            "{refused}"
        );
    });
}

/// The key of the identity of saved states by which an input of a training is known, or why there is none.
const KNOWN_BY: [(stage::Input, Result<&str, &str>); 10] = [
    (stage::Input::Target, Ok("target")),
    (stage::Input::Start, Ok("start")),
    (stage::Input::Model, Ok("model")),
    (stage::Input::StopTokens, Err(COMPARED)),
    (stage::Input::Features, Ok("stored")),
    (
        stage::Input::Answers(stage::Temperatures::Validated),
        Ok("stored"),
    ),
    (
        stage::Input::Output("prepare/train/tokens.json"),
        Ok("tokens"),
    ),
    (
        stage::Input::Output("prepare/eval/tokens.json"),
        Err(COMPARED),
    ),
    (
        stage::Input::Output("prepare/counts.json"),
        Err("what is counted are the tokens"),
    ),
    (stage::Input::Before, Ok("before")),
];
/// A training that was made from another one makes room, whatever its states say.
const COMPARED: &str = "the manifest of the stage has it";

#[test]
fn saved_states_are_known_by_the_inputs_of_their_training() {
    let root = fixture();
    let at = |path: &str| root.path().join(path);
    with_trained(root.path(), |_| ());
    let inputs = KNOWN_BY.map(|(input, _)| input);
    assert_eq!(stage(TRAIN).inputs, inputs);

    for folder in ["answers/T=0", "features", "features/held_out"] {
        let folder = at("runs/a").join(folder);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("features.json"), "{}").unwrap();
    }
    let small = at("small");
    write_target(&small, 300);
    fs::write(small.join("model.safetensors"), "weights").unwrap();
    let tokens = TokenShards::open(at("runs/a/prepare/train")).unwrap();
    let mut found = Vec::new();
    let mut find = |context: &StageContext, stage: &str| {
        let nothing = json!({});
        let identity = train::identity(context, stage, (&nothing, &nothing), &tokens).unwrap();
        found.extend(identity.as_object().unwrap().keys().cloned());
    };
    let start = format!("start={:?}", at("runs/a/train/drafter"));
    for set in [&*start, "features.mode=imported"] {
        with_context(root.path(), &[set], |context| find(context, TRAIN));
    }
    let model = format!("drafter.model = {small:?}\n");
    for (kind, own, of) in [("distillspec", &*model, TRAIN), ("deer", "", "align")] {
        let text = recipe_text(root.path()).replace("eagle3", kind);
        let text = text.replace("name = \"a\"", &format!("name = {kind:?}"));
        let recipe = recipe::read(&(text + own), &[]).unwrap();
        with_recipe(root.path(), &recipe, |context| {
            let before = context.run.path().join(trained("adapt"));
            fs::create_dir_all(&before).unwrap();
            fs::write(before.join("config.json"), "{}").unwrap();
            find(context, of);
        });
    }
    for (input, known) in KNOWN_BY {
        if let Ok(key) = known {
            assert!(found.iter().any(|found| found == key), "{input:?}");
        }
    }
}

#[test]
fn what_the_target_says_of_the_text_is_told_for_every_recipe_in_its_first_stage() {
    let root = fixture();
    let at = |name: &str| root.path().join(name);
    // With layers enough for every kind of drafter.
    let config = json!({
        "model_type": "qwen3", "vocab_size": 300, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "max_position_embeddings": 64,
    });
    fs::write(at("target/config.json"), config.to_string()).unwrap();
    with_trained(root.path(), |_| ());
    let mut all = Vec::new();
    for kind in RECIPES {
        let name = format!("{:?}", kind.name);
        let text = recipe_text(root.path()).replace("\"eagle3\"", &name);
        let text = text.replace("\"a\"", &name);
        let eval = format!("data.eval = {:?}\n", at("eval.jsonl"));
        let recipe = recipe::read(&(text + &eval + kind.trials[0]), &[]).unwrap();
        with_recipe(root.path(), &recipe, |context| {
            run(context, &["prepare".to_owned()]).unwrap();
            let spec = target::spec(&context.target_folder().unwrap()).unwrap();
            for (place, stage) in recipe.training_stages().into_iter().enumerate() {
                let capture = recipe.method.capture(&spec).unwrap();
                let setup = Setup::new(context, stage, capture).unwrap();
                let text = setup.text(context).unwrap();
                let found = text.map(|mut text| text.found().unwrap());
                assert_eq!(found.is_some(), place == 0, "{stage} of {name}");
                all.extend(found);
            }
        });
    }
    assert_eq!(all.len(), RECIPES.len());
    assert!(all[0].tokens > 0, "{:?}", all[0]);
    for found in &all {
        assert_eq!(found.tokens, all[0].tokens);
        assert!((0.0..=1.0).contains(&found.likeliest), "{found:?}");
        assert!(found.excess_surprise.is_finite(), "{found:?}");
    }
}

#[test]
fn the_check_of_the_text_and_the_training_open_stored_features_once() {
    let root = fixture();
    with_trained(root.path(), |_| ());
    let stored = ["name=b", "features.mode=stored"];
    with_context(root.path(), &stored, |context| {
        run(context, &["prepare".to_owned(), "features".to_owned()]).unwrap();
        let spec = target::spec(&context.target_folder().unwrap()).unwrap();
        let capture = context.recipe.method.capture(&spec).unwrap();
        let setup = Setup::new(context, TRAIN, capture).unwrap();
        let mut text = setup.text(context).unwrap().unwrap();
        // What is open stays readable, and nothing is there to be opened again.
        fs::remove_dir_all(context.folder("features")).unwrap();
        setup.source(context).unwrap();
        assert!(text.found().unwrap().tokens > 0);
    });
}

#[test]
fn a_text_that_the_drafter_writes_anew_in_every_batch_is_not_looked_at() {
    let root = fixture();
    with_trained(root.path(), |_| ());
    let text = recipe_text(root.path()).replace("\"eagle3\"", "\"distillspec\"");
    let eval = format!("data.eval = {:?}\n", root.path().join("eval.jsonl"));
    let mut kinds = RECIPES.iter();
    let kind = kinds.find(|kind| kind.name == "distillspec").unwrap();
    for (fraction, is_looked_at) in [("0.5", true), ("1.0", false)] {
        let name = format!("name=on-policy-{fraction}");
        let fraction = format!("objective.on_policy.fraction={fraction}");
        let text = text.clone() + &eval + kind.trials[0];
        let recipe = recipe::read(&text, &[name, fraction]).unwrap();
        with_recipe(root.path(), &recipe, |context| {
            run(context, &["prepare".to_owned()]).unwrap();
            let spec = target::spec(&context.target_folder().unwrap()).unwrap();
            let capture = recipe.method.capture(&spec).unwrap();
            let setup = Setup::new(context, TRAIN, capture).unwrap();
            assert_eq!(setup.text(context).unwrap().is_some(), is_looked_at);
        });
    }
}
