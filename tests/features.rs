//! Features from storage are those that the target makes while the drafter trains, and only those.
use std::sync::Arc;

use burn::prelude::*;
use burn::tensor::DType as BurnType;
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use spectrain::progress::Output;
use spectrain::recipe;
use spectrain::runs::run_folder::{Existing, RunFolder, RunName};
use spectrain::stages::{self, StageContext};
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_data::features::FeatureShards;
use spectrain_data::packing::RowLayout;
use spectrain_data::tokens::TokenShards;
use spectrain_models::device::test_device;
use spectrain_models::mask::Layout;
use spectrain_models::weights::host_f32;
use spectrain_models::{Capture, Target, load_target};
use spectrain_train::{BatchSource, LiveFeatures, Samples, StoredFeatures};

use crate::tiny;
use crate::workspace::{CONVERSATIONS, RECIPE, Workspace};

/// The command that captures features to train on and does no more.
const CAPTURES: [&str; 8] = [
    "recipe",
    "recipe.toml",
    "--set",
    "features.mode=stored",
    "--stage",
    "prepare",
    "--stage",
    "features",
];

/// Runs stages in this process and looks at what they left.
fn with_stages<T>(
    workspace: &Workspace,
    names: &[&str],
    body: impl FnOnce(&StageContext) -> T,
) -> T {
    let path = |name: &str| workspace.path(name).display().to_string();
    let overrides = [
        "features.mode=stored".to_owned(),
        format!("target.model={}", path("target")),
        format!("data.train={}", path("train.jsonl")),
        format!("data.eval={}", path("eval.jsonl")),
    ];
    let recipe = recipe::read(RECIPE, &overrides).unwrap();
    let run = RunName {
        root: &workspace.path("runs"),
        name: &recipe.name,
        recipe: &recipe.recipe,
    };
    let run = RunFolder::open(run, &recipe.toml, Existing::Continue).unwrap();
    let context = StageContext {
        recipe: &recipe,
        run: &run,
        device: test_device(),
        device_name: "cpu".into(),
        target_type: DType::F32.into(),
        output: Output::Quiet,
        array: Default::default(),
        group: None,
    };
    let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
    stages::run(&context, &names).unwrap();
    body(&context)
}

/// The place of a number that bf16 holds among all that it holds.
fn place(value: f32) -> i32 {
    let bits = (value.to_bits() >> 16) as i32;
    match bits & 0x8000 {
        0 => bits,
        _ => -(bits & 0x7fff),
    }
}

fn assert_within_a_rounding(what: &str, live: Tensor<3>, stored: Tensor<3>) {
    assert_eq!(live.dims(), stored.dims(), "{what}");
    let (live, stored) = (host_f32(live), host_f32(stored));
    let mut equal = 0;
    for (index, (&live, &stored)) in live.iter().zip(&stored).enumerate() {
        let near = (place(live) - place(stored)).abs() <= 1 || (live - stored).abs() < 1e-6;
        assert!(near, "{what}[{index}]: live {live}, stored {stored}");
        equal += usize::from(live == stored);
    }
    assert!(
        equal * 10 > live.len() * 9,
        "{what}: only {equal} of {} are equal",
        live.len()
    );
    assert!(
        live.iter().any(|&value| value != 0.0),
        "{what}: nothing was compared"
    );
}

#[test]
fn live_and_stored_features_make_the_same_batches() {
    let workspace = Workspace::new();
    with_stages(&workspace, &["prepare", "features"], |context| {
        let device = test_device();
        let folder = ModelFolder::open(workspace.path("target")).unwrap();
        let target = Arc::new(load_target(&folder, &device, DType::F32).unwrap());
        let tokens = TokenShards::open(context.folder("prepare").join("train")).unwrap();
        // Other rows than those in which the features were computed.
        let samples = Samples::new(Arc::new(tokens), 64, 3, 9);
        let mut live = LiveFeatures {
            samples: samples.clone(),
            capture: context.recipe.method.capture(target.spec()).unwrap(),
            target,
            compute: BurnType::F32,
            device: device.clone(),
        };
        let mut stored = StoredFeatures {
            samples: samples.clone(),
            shards: FeatureShards::open(context.folder("features"))
                .unwrap()
                .into(),
            compute: BurnType::F32,
            device,
        };
        let mut seen = Vec::new();
        for packed in samples.epoch(0).unwrap() {
            let (live, stored) = (
                live.batch(packed.clone()).unwrap(),
                stored.batch(packed).unwrap(),
            );
            assert_eq!(live.rows.packed, stored.rows.packed);
            assert_eq!(live.rows.tokens, stored.rows.tokens);
            assert_eq!(live.rows.loss_mask, stored.rows.loss_mask);
            assert_eq!(live.rows.layout, stored.rows.layout);
            assert_eq!(live.tokens.into_data(), stored.tokens.into_data());
            assert_eq!(live.layout.rows(), stored.layout.rows());
            assert_eq!(
                live.layout.positions.into_data(),
                stored.layout.positions.into_data()
            );
            let (live_features, stored_features) =
                (live.features.unwrap(), stored.features.unwrap());
            assert_within_a_rounding("captured", live_features.captured, stored_features.captured);
            assert_within_a_rounding("last", live_features.last, stored_features.last);
            seen.extend(live.rows.samples());
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..CONVERSATIONS).collect::<Vec<_>>());
    });
}

#[test]
fn an_altered_shard_is_told_by_its_name_and_computed_again_and_no_other_one() {
    let workspace = Workspace::new();
    let stored = ["recipe", "recipe.toml", "--set", "features.mode=stored"];
    workspace.run(&stored).succeeded();
    let before = workspace.files("runs/run/features");
    let shard = "runs/run/features/features-00001.arrow";
    let whole = workspace.bytes(shard);
    let mut altered = whole.clone();
    altered[whole.len() / 2] ^= 1;
    let third = workspace.path("runs/run/features/features-00002.arrow");
    let when_written = || std::fs::metadata(&third).unwrap().modified().unwrap();
    let written = when_written();
    for damaged in [&altered, &whole[..whole.len() - 100]] {
        workspace.write(shard, damaged);
        let outcome = workspace.run(&stored).succeeded();
        let told = "features: runs again: `features-00001.arrow` was changed after it was written";
        for part in [told, "train: done before"] {
            assert!(outcome.stderr.contains(part), "no `{part}`: {outcome:#?}");
        }
        assert_eq!(workspace.manifest("features")["summary"]["resumed_at"], 16);
        let after = workspace.files("runs/run/features");
        for (file, bytes) in &before {
            let is_manifest = file.ends_with("manifest.json");
            assert!(is_manifest || after[file] == *bytes, "{}", file.display());
        }
    }
    let aside = workspace.bytes(&format!("{shard}.old-1"));
    assert!(aside == altered, "what was there is kept");
    assert_eq!(when_written(), written, "what is behind it stays");
}

#[test]
fn a_damaged_or_lost_index_deletes_no_shard() {
    let workspace = Workspace::new();
    workspace.run(&CAPTURES).succeeded();
    let index = "runs/run/features/features.json";
    let shards = [0, 1, 2]
        .map(|number| workspace.path(format!("runs/run/features/features-{number:05}.arrow")));
    let when_written = || {
        let each = shards.iter();
        each.map(|shard| std::fs::metadata(shard).unwrap().modified().unwrap())
            .collect::<Vec<_>>()
    };
    let (written, whole) = (when_written(), workspace.bytes(index));
    let mut flipped = whole.clone();
    flipped[whole.len() / 2] ^= 4;
    for (damaged, is_done) in [
        (Some(&flipped[..]), true),
        (None, true),
        (Some(&whole[..whole.len() / 2]), false),
        (None, false),
    ] {
        match damaged {
            Some(damaged) => workspace.write(index, damaged),
            None => std::fs::remove_file(workspace.path(index)).unwrap(),
        }
        if !is_done {
            workspace.unfinish("features");
        }
        let outcome = workspace.run(&CAPTURES).succeeded();
        let told = "features.json` is made anew of what 3 shards say of themselves";
        assert!(outcome.stderr.contains(told), "{outcome:#?}");
        assert_eq!(when_written(), written, "no shard is written again");
        assert!(workspace.bytes(index) == whole);
    }
    // What is damaged in an interrupted stage is refused with what to do, which helps.
    let second = workspace.bytes("runs/run/features/features-00001.arrow");
    std::fs::write(&shards[1], &second[..second.len() / 2]).unwrap();
    workspace.unfinish("features");
    workspace.run(&CAPTURES).failed(&[
        "features-00001.arrow`: bytes: expected",
        "remove this file, and the same command makes it again",
    ]);
    std::fs::remove_file(&shards[1]).unwrap();
    let outcome = workspace.run(&CAPTURES).succeeded();
    assert!(
        outcome
            .stderr
            .contains("features-00001.arrow`, of samples 16 to 32, is missing")
    );
    assert!(workspace.bytes("runs/run/features/features-00001.arrow") == second);
    assert_eq!(when_written()[2], written[2]);
}

#[test]
fn features_of_another_target_are_computed_again() {
    let workspace = Workspace::new();
    workspace.run(&CAPTURES).succeeded();
    let index =
        |key: &str| workspace.json("runs/run/features/features.json")["header"][key].clone();
    let (target, layers) = (index("target_sha256"), index("captured_layers"));
    let config = workspace.text("target/config.json");
    workspace.write("target/config.json", config.replace("10000.0", "20000.0"));
    let outcome = workspace.run(&CAPTURES).succeeded();
    assert!(
        outcome
            .stderr
            .contains("features: starts over: the target has changed"),
        "{outcome:#?}"
    );
    assert_ne!(index("target_sha256"), target);
    let outcome = workspace
        .run(&[&CAPTURES[..], &["--set", "drafter.captured_layers=[0, 5]"]].concat())
        .succeeded();
    assert!(
        outcome
            .stderr
            .contains("features: starts over: the list of captured layers has changed"),
        "{outcome:#?}"
    );
    assert_ne!(index("captured_layers"), layers);
    let aside = workspace.json("runs/run/features.old-2/features.json");
    assert_eq!(aside["header"]["captured_layers"], layers, "it is kept");
    // Of the drafter's own sizes features know nothing.
    let narrow = [
        "--set",
        "drafter.captured_layers=[0, 5]",
        "--set",
        "drafter.d_ff=24",
    ];
    let outcome = workspace
        .run(&[&CAPTURES[..], &narrow].concat())
        .succeeded();
    assert!(
        outcome.stderr.contains("features: done before"),
        "{outcome:#?}"
    );
}

#[test]
fn an_interrupted_stage_keeps_its_finished_shards() {
    let workspace = Workspace::new();
    workspace.run(&CAPTURES).succeeded();
    let folder = workspace.path("runs/run/features");
    let tokens = |number| {
        FeatureShards::open(&folder)
            .unwrap()
            .get(number)
            .tokens
            .to_vec()
    };
    let expected: Vec<_> = (0..CONVERSATIONS).map(tokens).collect();

    // What a process leaves that is killed in its second shard.
    let mut index = workspace.json("runs/run/features/features.json");
    assert_eq!(index["shards"].as_array().unwrap().len(), 3);
    index["shards"].as_array_mut().unwrap().truncate(1);
    index["complete"] = false.into();
    workspace.write("runs/run/features/features.json", index.to_string());
    let second = folder.join("features-00001.arrow");
    std::fs::rename(
        &second,
        folder.join("features-00001.arrow.spectrain-partial"),
    )
    .unwrap();
    std::fs::remove_file(folder.join("features-00002.arrow")).unwrap();
    workspace.unfinish("features");
    let first = || {
        std::fs::metadata(folder.join("features-00000.arrow"))
            .unwrap()
            .modified()
            .unwrap()
    };
    let written = first();

    let outcome = workspace.run(&CAPTURES).succeeded();
    assert!(
        outcome
            .stderr
            .contains("features: goes on where it was interrupted"),
        "{outcome:#?}"
    );
    assert_eq!(workspace.manifest("features")["summary"]["resumed_at"], 16);
    assert_eq!(first(), written, "a finished shard is not written again");
    let shards = FeatureShards::open(&folder).unwrap();
    let found: Vec<_> = (0..shards.len())
        .map(|number| shards.get(number).tokens.to_vec())
        .collect();
    assert_eq!(found, expected);
}

/// Rows of several documents and padding, of `seq` tokens.
fn rows(count: usize, seq: usize, device: &Device) -> (Tensor<2, Int>, Layout) {
    let mut rng = StdRng::seed_from_u64(5);
    let (mut tokens, mut documents, mut positions) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..count {
        let ends = [seq / 3 + 7 * row, seq - 11 * row];
        for place in 0..seq {
            let document = ends.iter().filter(|&&end| end <= place).count();
            let first = if document == 0 { 0 } else { ends[document - 1] };
            tokens.push(rng.random_range(0..tiny::VOCAB as i64));
            documents.push(if document == 2 {
                0
            } else {
                1 + document as u32
            });
            positions.push((place - first) as u32);
        }
    }
    let layout = RowLayout {
        rows: count,
        row_length: seq,
        documents,
        positions,
    };
    let tokens = Tensor::<1, Int>::from_ints(tokens.as_slice(), device);
    (tokens.reshape([count, seq]), Layout::new(layout, device))
}

#[test]
fn features_of_rows_together_are_those_of_each_alone() {
    let device = test_device();
    let mut narrow = tiny::config();
    narrow.windows[1] = Some(50);
    let targets = [
        tiny::target(&device),
        tiny::mixture(&device),
        tiny::of(narrow, &device),
    ];
    let (tokens, layout) = rows(5, 330, &device);
    for (number, target) in targets.iter().enumerate() {
        for layers in [vec![0, 3], Vec::new()] {
            let capture = Capture { layers };
            let all = target.features(tokens.clone(), &layout, &capture);
            assert_eq!(
                all.captured.dims(),
                [5, 330, capture.layers.len() * all.last.dims()[2]]
            );
            for row in 0..5 {
                let of_row = |x: &Tensor<2, Int>| x.clone().narrow(0, row, 1);
                let own = layout.row(row);
                let alone = target.features(of_row(&tokens), &own, &capture);
                let same = |all: Tensor<3>, alone: Tensor<3>| {
                    host_f32(all.narrow(0, row, 1)) == host_f32(alone)
                };
                assert!(same(all.last.clone(), alone.last), "{number}, row {row}");
                if !capture.layers.is_empty() {
                    assert!(
                        same(all.captured.clone(), alone.captured),
                        "{number}, row {row}"
                    );
                }
            }
        }
    }
}
