//! Stored hidden states in eight bits: written, read, joined, imported, and trained on.
use std::fs;

use serde_json::json;
use spectrain_data::features::{FeatureShards, StoredType};

use crate::array_jobs::{Contents, contents, prepared, whole};
use crate::foreign_features;
use crate::served_targets::{self, IDS, serve, with_a_norm};
use crate::state_server::Serving;
use crate::workspace::Workspace;

const INT8: &str = "features.dtype=int8";

/// What is read of features in eight bits that were written with these states, of which a token has so many.
fn in_eight_bits(samples: &[Contents], widths: [usize; 2]) -> Vec<Contents> {
    let of = |bits: &[u16], width| {
        let read = StoredType::Int8.read_back(bits, width);
        read.unwrap().into_owned()
    };
    let each = samples.iter().map(|(tokens, mask, captured, last)| {
        let (captured, last) = (of(captured, widths[0]), of(last, widths[1]));
        (tokens.clone(), mask.clone(), captured, last)
    });
    each.collect()
}

fn widths(workspace: &Workspace, folder: &str) -> [usize; 2] {
    let shards = FeatureShards::open(workspace.path(folder)).unwrap();
    shards.header().widths()
}

fn bytes_of(workspace: &Workspace, folder: &str) -> usize {
    let files = workspace.files(folder).into_iter();
    let shards = files.filter(|(path, _)| path.extension().is_some_and(|ending| ending == "arrow"));
    shards.map(|(_, bytes)| bytes.len()).sum()
}

#[test]
fn a_drafter_trains_from_states_in_eight_bits() {
    let workspace = Workspace::new();
    let stored = "features.mode=stored";
    workspace.run_recipe(&[stored, "name=whole"]).succeeded();
    workspace.run_recipe(&[stored, INT8]).succeeded();
    let [exact, eight] = ["runs/whole/features", "runs/run/features"];
    let header = &workspace.json(&format!("{eight}/features.json"))["header"];
    assert_eq!(header["dtype"], json!("int8"));
    let header = &workspace.json(&format!("{exact}/features.json"))["header"];
    assert_eq!(
        header.get("dtype"),
        None,
        "as it was before there was a choice"
    );
    let exact_states = contents(&workspace.path(exact));
    let wanted = in_eight_bits(&exact_states, widths(&workspace, exact));
    assert!(contents(&workspace.path(eight)) == wanted);
    assert!(wanted != exact_states);
    let share = bytes_of(&workspace, eight) as f64 / bytes_of(&workspace, exact) as f64;
    assert!(share < 0.75, "states of 32 channels: {share}");
    let loss = |run: &str| {
        let manifest = workspace.json(&format!("runs/{run}/train/manifest.json"));
        manifest["summary"]["fit"]["loss"].as_f64().unwrap()
    };
    let [exact, eight] = ["whole", "run"].map(loss);
    assert!(
        exact != eight && (exact - eight).abs() < 0.01 * exact,
        "{exact} {eight}"
    );
    // Nothing is made anew, until they are wanted otherwise.
    let told = workspace.run_recipe(&[stored, INT8]).succeeded();
    assert!(told.stderr.contains("features: done before"), "{told:#?}");
    assert!(told.stderr.contains("train: done before"), "{told:#?}");
    let told = workspace.run_recipe(&[stored]).succeeded();
    assert!(
        told.stderr.contains("`features.dtype`: \"int8\" → nothing"),
        "{told:#?}"
    );
    assert!(contents(&workspace.path("runs/run/features")) == exact_states);
    assert_eq!(loss("run"), exact);
}

#[test]
fn parts_in_eight_bits_are_joined_and_taken_from_elsewhere() {
    let workspace = prepared();
    whole(&workspace, "").succeeded();
    let exact = contents(&workspace.path("runs/run/features"));
    let expected = in_eight_bits(&exact, widths(&workspace, "runs/run/features"));
    let more = format!(" --set {INT8} --set name=parts");
    let prepare = "recipe recipe.toml --set features.mode=stored --stage prepare";
    workspace.run_line(format!("{prepare}{more}")).succeeded();
    for part in ["1/2", "2/2"] {
        whole(&workspace, &format!("{more} --part {part}")).succeeded();
    }
    whole(&workspace, &more).succeeded();
    assert!(contents(&workspace.path("runs/parts/features")) == expected);
    // Parts of the other type do not go together with these.
    whole(
        &workspace,
        &format!("{more} --set features.dtype=bf16 --part 1/2"),
    )
    .failed(&["features.dtype"]);
    // Who takes them has what they hold, in bf16.
    let from = format!(
        " --set name=taken --set features.from=[{:?}]",
        workspace.path("runs/parts/features")
    );
    workspace.run_line(format!("{prepare}{from}")).succeeded();
    whole(&workspace, &from).succeeded();
    assert_eq!(
        workspace.json("runs/taken/features/manifest.json")["summary"]["known"],
        json!(exact.len())
    );
    assert!(contents(&workspace.path("runs/taken/features")) == expected);
}

#[test]
fn of_servers_only_states_to_train_on_are_in_eight_bits() {
    let workspace = with_a_norm();
    let server = serve(&workspace, Serving::of(&IDS));
    served_targets::run(&workspace, &[&server], &[INT8]).succeeded();
    let dtype = |folder: &str| {
        let shards = FeatureShards::open(workspace.path(folder)).unwrap();
        shards.header().dtype
    };
    assert_eq!(dtype("runs/run/features"), StoredType::Int8);
    assert_eq!(dtype("runs/run/features/held_out"), StoredType::Bf16);
    let answers = fs::read_dir(workspace.path("runs/run/answers")).unwrap();
    let folders = answers.map(|entry| entry.unwrap().path());
    let folders: Vec<_> = folders.filter(|path| path.is_dir()).collect();
    assert!(!folders.is_empty());
    for folder in folders {
        let shards = FeatureShards::open(&folder).unwrap();
        assert_eq!(shards.header().dtype, StoredType::Bf16);
    }
}

#[test]
fn features_of_others_are_imported_in_eight_bits() {
    let workspace = foreign_features::workspace();
    let words =
        "features import theirs --target target --out ours --samples-per-shard 2 --dtype int8";
    workspace.run_line(words).succeeded();
    let exact = contents(&workspace.path("runs/run/features"));
    let expected = in_eight_bits(&exact, widths(&workspace, "runs/run/features"));
    let found = || contents(&workspace.path("ours"));
    assert!(found() == expected);
    // One that was stopped goes on, with what is there as it is.
    fs::remove_file(workspace.path("ours/features-00001.arrow")).unwrap();
    workspace.run_line(words).succeeded();
    assert!(found() == expected);
    workspace.run_line(words.replace("int8", "bf16")).failed(&[
        "`dtype`: expected bf16, found int8",
        "choose another `--out`",
    ]);
    // What goes out again is what was read.
    workspace
        .run_line("features export ours --target target --out again")
        .succeeded();
    workspace
        .run_line("features import again --target target --out back")
        .succeeded();
    assert!(contents(&workspace.path("back")) == expected);
}

#[test]
fn eight_bits_are_for_states_that_are_stored_and_a_plan_counts_them() {
    let workspace = Workspace::new();
    workspace.run_recipe(&[INT8]).misused(&[
        "`features.dtype`: expected `features.mode = \"stored\"`, `\"served\"` or `\"imported\"` beside it, found \"live\"",
    ]);
    let disk = |more: &str| {
        let plan = format!("recipe recipe.toml --set features.mode=stored --plan --json{more}");
        let told = workspace.run_line(plan).succeeded();
        let plan: serde_json::Value = serde_json::from_str(&told.stdout).unwrap();
        plan["estimates"]["disk_bytes"]["features"]
            .as_f64()
            .unwrap()
    };
    let [exact, eight] = [disk(""), disk(&format!(" --set {INT8}"))];
    assert!((0.5..0.7).contains(&(eight / exact)), "{exact} {eight}");
}
