//! What stages read beside the recipe, and what becomes of them where it changes.

use super::*;
use crate::runs::hashes::HASHES;
use crate::runs::run_folder::{OWN_SAMPLING, PRINTED_DAY, STOP_TOKENS, StageState};
use crate::stages::borrowed::borrow;

#[test]
fn other_stop_tokens_change_what_is_trained_and_other_generation_settings_do_not() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let state = |generation: serde_json::Value| {
            let file = root.path().join("target/generation_config.json");
            fs::write(file, generation.to_string()).unwrap();
            context.state(stage(TRAIN)).unwrap()
        };
        assert!(matches!(
            state(json!({"temperature": 0.5})),
            StageState::Done(_)
        ));
        let what = vec!["the list of stop tokens has changed".to_owned()];
        assert_eq!(
            state(json!({"eos_token_id": [3]})),
            StageState::Changed(what)
        );
    });
}

#[test]
fn the_targets_own_sampling_is_an_input_of_answers_that_leave_it_open() {
    let root = fixture();
    let found = |overrides: &[&str], temperature: f64| {
        let file = root.path().join("target/generation_config.json");
        fs::write(file, json!({"temperature": temperature}).to_string()).unwrap();
        with_context(root.path(), overrides, |context| {
            context.inputs(stage("regenerate")).unwrap()
        })
    };
    let open = ["regenerate.seed=1"];
    assert_ne!(found(&open, 0.5), found(&open, 0.6));
    let given = ["regenerate.temperature=1.0"];
    assert_eq!(found(&given, 0.5), found(&given, 0.6));
    // Servers are sent neither this nor where the target stops.
    let served = ["regenerate.server=\"http://localhost:1\""];
    let inputs = found(&served, 0.5);
    assert_eq!(inputs, found(&served, 0.6));
    for name in [OWN_SAMPLING, STOP_TOKENS] {
        assert!(found(&open, 0.5).contains_key(name), "{name}");
        assert!(!inputs.contains_key(name), "{name}");
    }
}

#[test]
fn the_day_is_an_input_of_own_answers_whatever_settles_it_where_the_template_prints_it() {
    let root = fixture();
    let template = |text: &str| {
        let file = root.path().join("target/chat_template.jinja");
        fs::write(file, text).unwrap();
    };
    let read = |overrides: &[&str]| {
        with_context(root.path(), overrides, |context| {
            let day = "2024-02-29".parse().unwrap();
            context.run.note_day(day).unwrap();
            let stage = stage("regenerate");
            let settings = context.settings(stage).unwrap();
            (settings, context.inputs(stage).unwrap())
        })
    };
    let own = "regenerate.seed=1";
    assert!(!read(&[own]).1.contains_key(PRINTED_DAY));
    template(&format!("{{{{ strftime_now('%d %B') }}}}{TEMPLATE}"));
    let open = read(&[own]);
    assert!(open.1.contains_key(PRINTED_DAY));
    assert_eq!(read(&[own, "data.date=\"2024-02-29\""]), open);
    let other = read(&[own, "data.date=\"2024-03-01\""]);
    assert_eq!(other.0, open.0);
    assert_ne!(other.1[PRINTED_DAY], open.1[PRINTED_DAY]);
    // Servers render by their own clock.
    let served = read(&["regenerate.server=\"http://localhost:1\""]);
    assert!(!served.1.contains_key(PRINTED_DAY));
}

#[test]
fn the_model_that_training_starts_from_is_known_by_its_weights() {
    let root = fixture();
    let small = root.path().join("small");
    write_target(&small, 300);
    let text = recipe_text(root.path()).replace("eagle3", "distillspec");
    let text = text.replace("name = \"a\"", "name = \"small\"");
    let text = format!("{text}drafter.model = {small:?}\n");
    let recipe = recipe::read(&text, &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        let weights = |bytes: &str| {
            fs::write(small.join("model.safetensors"), bytes).unwrap();
            context.model_sha256().unwrap().unwrap()
        };
        assert_ne!(weights("trained"), weights("trained anew"));
        assert_eq!(weights("trained"), weights("trained"));
    });
    with_context(root.path(), &[], |context| {
        assert_eq!(context.model_sha256().unwrap(), None);
    });
}

#[test]
fn a_finished_training_does_not_need_the_model_that_it_started_from() {
    let root = fixture();
    let small = root.path().join("small");
    write_target(&small, 300);
    fs::write(small.join("model.safetensors"), "weights").unwrap();
    let text = recipe_text(root.path()).replace("eagle3", "distillspec");
    let eval = root.path().join("eval.jsonl");
    let text = format!("{text}data.eval = {eval:?}\ndrafter.model = {small:?}\n");
    let recipe = recipe::read(&text, &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        run(context, &["prepare".into()]).unwrap();
        let start = Start {
            settings: context.settings(stage(TRAIN)).unwrap(),
            inputs: context.inputs(stage(TRAIN)).unwrap(),
            ..Start::default()
        };
        let manifest = context.run.start(TRAIN, start).unwrap();
        fs::remove_dir_all(&small).unwrap();
        let needed = format!("{:#}", context.state(stage(TRAIN)).unwrap_err());
        assert!(needed.contains("`drafter.model`"), "{needed}");
        context.run.finish(manifest, 1.0, json!({})).unwrap();
        let state = context.state(stage(TRAIN)).unwrap();
        assert!(matches!(state, StageState::Done(_)), "{state:?}");
    });
}

#[test]
fn a_training_reads_features_that_were_made_elsewhere_and_imported_answers() {
    let root = fixture();
    let files = ["answers/T=0", "features", "features/held_out"];
    let inputs = |overrides: &[&str]| -> Vec<String> {
        with_context(root.path(), overrides, |context| {
            for folder in files {
                let folder = context.run.path().join(folder);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("features.json"), "{}").unwrap();
            }
            let answers = stage::Temperatures::Validated;
            let mut found = context.stored_features().unwrap();
            found.extend(context.stored_answers(answers).unwrap());
            found.into_keys().collect()
        })
    };
    let [answers, features, held_out] = files.map(|folder| format!("`{folder}/features.json`"));
    let cases: [(&[&str], &[&String]); 6] = [
        (&[], &[]),
        (&["features.mode=stored"], &[]),
        (
            &["features.mode=stored", "features.from=[\"own\"]"],
            &[&features],
        ),
        (&["features.mode=served"], &[&features, &held_out]),
        (&["features.mode=streamed"], &[&held_out]),
        (
            &["features.mode=imported"],
            &[&answers, &features, &held_out],
        ),
    ];
    for (overrides, expected) in cases {
        let found = inputs(overrides);
        assert_eq!(found.iter().collect::<Vec<_>>(), expected, "{overrides:?}");
    }
}

#[test]
fn features_by_another_path_are_the_same_until_they_are_others() {
    let root = fixture();
    let own = root.path().join("own");
    fs::create_dir(&own).unwrap();
    fs::write(own.join("features.json"), "{}").unwrap();
    let from = |path: &str| {
        let folder = root.path().join(path);
        format!("features.from=[{folder:?}]")
    };
    let [own_path, other_path] = ["own", "target/../own"].map(from);
    let features = stage("features");
    prepare(root.path(), &["features.mode=stored"]).unwrap();
    with_context(
        root.path(),
        &["features.mode=stored", &own_path],
        |context| {
            let start = Start {
                settings: context.settings(features).unwrap(),
                inputs: context.inputs(features).unwrap(),
                ..Start::default()
            };
            context.run.start("features", start).unwrap();
        },
    );
    let state = |from: &str| {
        with_context(root.path(), &["features.mode=stored", from], |context| {
            context.state(features).unwrap()
        })
    };
    assert_eq!(state(&other_path), StageState::Interrupted);
    fs::write(own.join("features.json"), "{ }").unwrap();
    for path in [own_path, other_path] {
        let state = state(&path);
        assert!(matches!(state, StageState::Changed(_)), "{state:?}");
    }
}

#[test]
fn a_run_with_nobody_to_borrow_from_reads_nothing_for_it() {
    let root = fixture();
    let mut writing = fs::File::options();
    let train = writing.write(true).open(root.path().join("train.jsonl"));
    let train = train.unwrap();
    // Just large enough for its hash to be remembered.
    train.set_len((4 << 20) + 1).unwrap();
    with_context(root.path(), &[], |context| {
        let remembered = || context.run.path().join(HASHES).exists();
        borrow(context, &[]);
        borrow(context, &[context.run.path().to_owned()]);
        assert!(!remembered());
        borrow(context, &[root.path().join("runs/b")]);
        assert!(remembered());
    });
}
