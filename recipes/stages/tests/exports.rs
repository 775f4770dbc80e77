//! The stages `export` and `evaluate`, and the commands that take what they leave.

use clap::Parser as _;
use serde_json::Value;
use spectrain_checkpoints::sealed_lines::{sealed, unsealed};
use spectrain_checkpoints::{ModelFolder, seal};

use super::*;
use crate::recipe::tables::FeatureMode;
use crate::runs::places::EXPORTED;
use crate::runs::run_folder::StageState;
use crate::stages::commands_again::commands_again;
use crate::stages::stage::AfterInterruption;

#[test]
fn a_trained_drafter_is_exported_and_judged() {
    let root = fixture();
    with_trained(root.path(), |context| {
        run(context, &[]).unwrap();
        let export = context.run.manifest("export").unwrap().unwrap().summary;
        let lines = export["launch"].as_array().unwrap().iter();
        let lines = lines.map(|line| line.as_str().unwrap());
        let (remarks, commands): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with('#'));
        // Of each engine there is a command and what it drafts above temperature 0.
        assert_eq!((commands.len(), remarks.len()), (2, 2));
        assert_eq!(export["tau_trained"], export["tau_exported"]);
        let report = fs::read_to_string(context.folder("evaluate").join("report.json")).unwrap();
        let report = spectrain_eval::Report::from_json(&report).unwrap();
        // Greedy, drawn, and the likeliest tokens above temperature 0.
        assert_eq!(report.settings.len(), 3);
        assert_eq!(
            (
                report.lossless.greedy_mismatches,
                report.drafter.kind.as_str()
            ),
            (0, "eagle3")
        );
        assert!(report.lossless.greedy_tokens > 0 && report.lossless.sampling.is_some());
        assert_eq!(report.recipe["evaluate"]["prompts"], 2);
        let shown = report::of_run(context.run).unwrap();
        assert!(shown.contains("T=0, greedy, chain"), "{shown}");
        let folder = context.run.stage("evaluate");
        let page = std::fs::read_to_string(folder.join("report.html")).unwrap();
        assert!(page.starts_with("<!DOCTYPE html>") && page.contains("T=0, greedy, chain"));
        // What was found is in the folder, which is the same drafter as before.
        let model = ModelFolder::open(context.run.path().join(EXPORTED)).unwrap();
        assert!(seal::check(&model).unwrap());
        let found = &seal::provenance(model.config()).unwrap()["report"];
        assert_eq!(found["drafter"]["sha256"], report.drafter.sha256);
        assert_eq!(found["settings"].as_array().unwrap().len(), 3);
        let judged = STAGES
            .iter()
            .find(|stage| stage.name == "evaluate")
            .unwrap();
        assert!(matches!(
            context.state(judged).unwrap(),
            StageState::Done(_)
        ));
    });
}

#[test]
fn the_commands_of_a_run_that_has_moved_name_where_it_is() {
    let root = fixture();
    let first = with_trained(root.path(), |context| {
        run(context, &["export".into()]).unwrap();
        commands_again(context).unwrap()
    });
    assert!(first.contains("runs/a/export/drafter\"") || first.contains("runs/a/export/drafter "));
    let at = |name: &str| root.path().join(name);
    fs::rename(at("runs/a"), at("runs/moved")).unwrap();
    fs::rename(at("target"), at("renamed")).unwrap();
    let target = format!("target.model={:?}", at("renamed"));
    let again = with_context(
        root.path(),
        &[
            "name=moved",
            &target,
            "evaluate.draft_lengths=[2]",
            "export.dtype=f32",
        ],
        |context| commands_again(context).unwrap(),
    );
    let longer = with_context(
        root.path(),
        &[
            "name=moved",
            &target,
            "evaluate.draft_lengths=[3]",
            "export.dtype=f32",
        ],
        |context| commands_again(context).unwrap(),
    );
    let drafts = |text: &str, length: usize| {
        let given = format!("\"num_speculative_tokens\":{length}");
        text.matches(&given).count()
    };
    assert!(drafts(&first, 2) > 0, "{first}");
    let found = [2, 3].map(|length| drafts(&longer, length));
    assert_eq!(found, [0, drafts(&first, 2)], "{longer}");
    let path = |name: &str| at(name).display().to_string();
    let expected = first.replace(&path("runs/a"), &path("runs/moved"));
    assert_eq!(again, expected.replace(&path("target"), &path("renamed")));
}

#[test]
fn a_folder_that_names_the_target_is_written_anew_where_that_has_another_name() {
    let export = STAGES.iter().find(|stage| stage.name == "export").unwrap();
    for (to, is_done) in [("vllm", true), ("speculators", false)] {
        let root = fixture();
        let to = format!("export.to=[{to:?}]");
        let settings = ["evaluate.draft_lengths=[2]", "export.dtype=f32", &to];
        with_trained(root.path(), |_| ());
        with_context(root.path(), &settings, |context| {
            run(context, &["export".into()]).unwrap();
            assert!(matches!(
                context.state(export).unwrap(),
                StageState::Done(_)
            ));
        });
        let renamed = root.path().join("renamed");
        fs::rename(root.path().join("target"), &renamed).unwrap();
        let target = format!("target.model={renamed:?}");
        let settings = [&settings[..], &[&target]].concat();
        with_context(root.path(), &settings, |context| {
            let state = context.state(export).unwrap();
            assert_eq!(
                matches!(state, StageState::Done(_)),
                is_done,
                "{to}: {state:?}"
            );
        });
    }
}

#[test]
fn the_other_commands_take_what_a_run_has_left() {
    let root = fixture();
    with_trained(root.path(), |context| {
        run(context, &["export".into()]).unwrap()
    });
    // In capitals: a path within the folder of the test.
    let commands = [
        "evaluate --target TARGET --drafter RUNS/A/EXPORT/DRAFTER --prompts EVAL.JSONL --count 1 --temperature 0 \
         --draft-length 3 --max-new-tokens 5 --out JUDGED",
        "generate --target TARGET --drafter RUNS/A/EXPORT/DRAFTER --prompt count --max-new-tokens 5",
        "generate --target TARGET --prompt count --max-new-tokens 5 --temperature 1",
        "export a --runs RUNS --to vllm --out EXPORTED",
        "data prepare --target TARGET --data EVAL.JSONL --out TOKENS",
        "data lint --target TARGET --train EVAL.JSONL",
    ];
    let path = |name: &str| root.path().join(name.to_lowercase()).display().to_string();
    let word = |word: &str| {
        let is_path = word.starts_with(|c: char| c.is_ascii_uppercase());
        if is_path { path(word) } else { word.to_owned() }
    };
    for words in commands {
        let parsed = std::iter::once("spectrain".to_owned()).chain(words.split(' ').map(word));
        crate::cli::Arguments::try_parse_from(parsed)
            .unwrap()
            .run()
            .unwrap_or_else(|error| panic!("{words:?}: {error:#}"));
    }
    let report = fs::read_to_string(root.path().join("judged/report.json")).unwrap();
    assert_eq!(
        spectrain_eval::Report::from_json(&report)
            .unwrap()
            .settings
            .len(),
        1
    );
    assert!(root.path().join("exported/config.json").exists());
    assert_eq!(
        TokenShards::open(root.path().join("tokens")).unwrap().len(),
        3
    );
}

/// Seconds of a pass that no pass takes.
const SLOW: f64 = 10.0;

/// The report of a run.
fn judged(context: &StageContext) -> spectrain_eval::Report {
    let report = fs::read_to_string(context.folder("evaluate").join("report.json")).unwrap();
    spectrain_eval::Report::from_json(&report).unwrap()
}

#[test]
fn an_evaluation_goes_on_where_it_decodes_and_starts_over_where_answers_are_stored() {
    let root = fixture();
    let mut recipe = recipe(root.path(), &[]);
    for (mode, expected) in [
        (FeatureMode::Live, AfterInterruption::TakesWhatFits),
        (FeatureMode::Stored, AfterInterruption::TakesWhatFits),
        (FeatureMode::Served, AfterInterruption::StartsOver),
        (FeatureMode::Imported, AfterInterruption::StartsOver),
    ] {
        recipe.features.mode = mode;
        let found = (stage("evaluate").after_interruption)(&recipe);
        assert_eq!(found, expected, "{mode:?}");
    }
}

#[test]
fn an_interrupted_evaluation_takes_what_it_has_decoded_with_its_times() {
    let root = fixture();
    with_trained(root.path(), |context| {
        let folder = context.folder("evaluate");
        let journal = folder.join("decoded.journal");
        // Where a folder stands no report is written.
        let in_the_way = folder.join("report.json");
        fs::create_dir_all(&in_the_way).unwrap();
        run(context, &[]).unwrap_err();
        let lines = fs::read(&journal).unwrap();
        let lines = lines.split_inclusive(|&byte| byte == b'\n');
        let slower = lines.flat_map(|line| {
            let mut line: Value = serde_json::from_slice(&unsealed(line).unwrap()).unwrap();
            let passes = line.pointer_mut("/found/passes");
            for pass in passes.and_then(Value::as_array_mut).into_iter().flatten() {
                pass["seconds"]["verify"] = json!(SLOW);
            }
            sealed(&line).unwrap()
        });
        fs::write(&journal, slower.collect::<Vec<u8>>()).unwrap();
        fs::remove_dir(in_the_way).unwrap();
        assert_eq!(
            context.state(stage("evaluate")).unwrap(),
            StageState::Interrupted
        );
        run(context, &[]).unwrap();
        for setting in &judged(context).settings {
            let overall = &setting.overall;
            assert_eq!(overall.seconds.verify, SLOW * overall.passes as f64);
        }
        assert!(!journal.exists());
        // What is made anew is decoded anew.
        fs::write(folder.join("report.md"), "changed").unwrap();
        run(context, &[]).unwrap();
        for setting in &judged(context).settings {
            assert!(setting.overall.seconds.verify < SLOW);
        }
    });
}
