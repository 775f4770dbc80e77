//! Parts of the stage `features`, captured by several processes, are the stage.
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use spectrain_data::features::FeatureShards;

use crate::state_server::{Serving, StateServer};
use crate::workspace::{Outcome, Workspace};

/// Runs one part in place of the whole stage.
fn part(workspace: &Workspace, part: &str, more: &str) -> Outcome {
    let words = format!(
        "recipe recipe.toml --set features.mode=stored --stage features --part {part}{more}"
    );
    workspace.run_line(words)
}

pub fn prepared() -> Workspace {
    let workspace = Workspace::new();
    workspace
        .run_line("recipe recipe.toml --set features.mode=stored --stage prepare")
        .succeeded();
    workspace
}

pub fn whole(workspace: &Workspace, more: &str) -> Outcome {
    workspace.run_line(format!(
        "recipe recipe.toml --set features.mode=stored --stage features{more}"
    ))
}

/// Tokens, mask, captured and last states of a sample.
pub type Contents = (Vec<u32>, Vec<u8>, Vec<u16>, Vec<u16>);

/// Those of a folder of features.
pub fn contents(folder: &Path) -> Vec<Contents> {
    let shards = FeatureShards::open(folder).unwrap();
    let samples = (0..shards.len()).map(|sample| shards.get(sample));
    let owned = samples.map(|of| {
        let (captured, last) = (of.captured.bits().into_owned(), of.last.bits().into_owned());
        (of.tokens.to_vec(), of.loss_mask.to_vec(), captured, last)
    });
    owned.collect()
}

pub fn features(workspace: &Workspace) -> std::path::PathBuf {
    workspace.path("runs/run/features")
}

#[test]
fn all_parts_together_are_the_stage() {
    let workspace = prepared();
    part(&workspace, "3/3", "").succeeded();
    part(&workspace, "1/3", "").succeeded();
    whole(&workspace, "").failed(&[
        "of 3 parts these are missing: 2",
        "`--stage features --part 2/3` captures one",
    ]);
    let told = part(&workspace, "2/3", "").succeeded();
    assert!(told.stderr.contains("part 2/3: "), "{told:#?}");
    let told = part(&workspace, "2/3", "").succeeded();
    assert!(told.stderr.contains("part 2/3: done before"), "{told:#?}");
    assert!(!features(&workspace).join("features.json").exists());
    whole(&workspace, "").succeeded();
    assert_eq!(workspace.manifest("features")["summary"]["parts"], json!(3));
    let joined = contents(&features(&workspace));
    let alone = prepared();
    whole(&alone, "").succeeded();
    assert_eq!(joined, contents(&features(&alone)));
    workspace
        .run_line("recipe recipe.toml --set features.mode=stored")
        .succeeded();
}

#[test]
fn a_part_that_was_stopped_goes_on() {
    let workspace = prepared();
    let few = " --set features.samples_per_shard=2";
    part(&workspace, "2/2", few).succeeded();
    let folder = workspace.path("runs/run/features-parts/part-00002-of-00002");
    let last = |folder: &Path| {
        let names = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let shards = names.filter(|path| path.extension().is_some_and(|ending| ending == "arrow"));
        shards.max().unwrap()
    };
    let (shard, before) = (last(&folder), contents_of(&folder));
    fs::remove_file(&shard).unwrap();
    fs::remove_file(folder.join("part.json")).unwrap();
    whole(&workspace, few).failed(&["of 2 parts these are missing: 1"]);
    part(&workspace, "1/2", few).succeeded();
    whole(&workspace, few).failed(&["part 2/2", "is unfinished"]);
    part(&workspace, "2/2", few).succeeded();
    assert_eq!(contents_of(&folder), before);
    whole(&workspace, few).succeeded();
}

#[test]
fn a_stage_of_parts_that_was_stopped_is_not_computed_where_nobody_says_where_they_are() {
    let workspace = prepared();
    let there = " --parts elsewhere";
    for number in ["1/2", "2/2"] {
        part(&workspace, number, there).succeeded();
    }
    let shard = workspace.path("elsewhere/part-00002-of-00002/features-00000.arrow");
    let intact = fs::read(&shard).unwrap();
    let mut bytes = intact.clone();
    bytes[200] ^= 1;
    fs::write(&shard, bytes).unwrap();
    whole(&workspace, there).failed(&["features-00000.arrow", "sha256"]);
    fs::write(&shard, intact).unwrap();
    whole(&workspace, "").failed(&[
        "stage `features`: it has begun to join the parts in `elsewhere`",
        "expected `--parts elsewhere`, found no `--parts`",
        "remove `runs/run/features` to compute it here",
    ]);
    whole(&workspace, " --plan").failed(&[
        "the run would be refused: stage `features`: it has begun to join the parts in `elsewhere`",
    ]);
    // What is only joined may have been computed in another type.
    let mut manifest = workspace.manifest("features");
    manifest["settings"]["target"]["computed_in"] = "bf16".into();
    manifest.as_object_mut().unwrap().remove("sha256");
    let manifest = manifest.to_string();
    workspace.write("runs/run/features/manifest.json", manifest);
    let plan = whole(&workspace, &format!("{there} --plan")).succeeded();
    assert!(
        plan.stdout.contains(" goes on where it was interrupted"),
        "{plan:#?}"
    );
    whole(&workspace, there).succeeded();
    assert_eq!(workspace.manifest("features")["parts"], "elsewhere");
    let joined = contents(&features(&workspace));
    fs::remove_dir_all(features(&workspace)).unwrap();
    whole(&workspace, "").succeeded();
    assert_eq!(contents(&features(&workspace)), joined);
    assert_eq!(workspace.manifest("features")["parts"], json!(null));
}

#[test]
fn a_part_goes_on_only_as_it_has_begun() {
    let workspace = prepared();
    let few = " --set features.samples_per_shard=2";
    part(&workspace, "1/2", few).succeeded();
    let folder = workspace.path("runs/run/features-parts/part-00001-of-00002");
    let before = contents_of(&folder);
    let stop = || {
        fs::remove_file(folder.join("part.json")).unwrap();
        let (last, _) = &before[before.len() - 1];
        fs::remove_file(folder.join(last)).unwrap();
    };
    stop();
    part(&workspace, "1/2", &format!("{few} --set target.dtype=int8")).failed(&[
        "part 1/2",
        "has begun with other inputs or settings",
        "`target.dtype`: \"auto\" → \"int8\"",
    ]);
    part(&workspace, "1/2", few).succeeded();
    assert_eq!(contents_of(&folder), before);
    // Nobody knows what these are of.
    stop();
    fs::remove_file(folder.join("begun.json")).unwrap();
    part(&workspace, "1/2", few).failed(&["part 1/2", "begun.json", "to capture it anew"]);
    fs::remove_dir_all(&folder).unwrap();
    part(&workspace, "1/2", few).succeeded();
    assert_eq!(contents_of(&folder), before);
}

/// The bytes of every shard in a folder, by their names.
fn contents_of(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let shards = entries.filter(|path| path.extension().is_some_and(|ending| ending == "arrow"));
    let mut found: Vec<_> = shards
        .map(|path| {
            (
                path.file_name().unwrap().to_string_lossy().into_owned(),
                fs::read(path).unwrap(),
            )
        })
        .collect();
    found.sort();
    found
}

#[test]
fn parts_that_do_not_go_together_are_named() {
    let workspace = prepared();
    let at = |name: &str| workspace.path(format!("runs/run/features-parts/{name}"));
    part(&workspace, "1/2", "").succeeded();
    // Of another recipe, and of another target.
    part(&workspace, "2/2", " --set seed=5").succeeded();
    whole(&workspace, "").failed(&["part 2/2", "`seed`: expected 0, found 5"]);
    part(&workspace, "2/2", "").failed(&[
        "made from other inputs or settings",
        "`seed`",
        "remove the part's folder there",
    ]);
    fs::remove_dir_all(at("part-00002-of-00002")).unwrap();
    part(&workspace, "2/2", " --set drafter.captured_layers=[0]").succeeded();
    whole(&workspace, "").failed(&["part 2/2", "the list of captured layers has changed"]);
    fs::remove_dir_all(at("part-00002-of-00002")).unwrap();
    workspace.write_target_of("other", 99, |_| {});
    let target = workspace.path("target").join("model.safetensors");
    let own = fs::read(&target).unwrap();
    fs::copy(workspace.path("other/model.safetensors"), &target).unwrap();
    part(&workspace, "2/2", "").succeeded();
    fs::write(&target, own).unwrap();
    whole(&workspace, "").failed(&["part 2/2", "the target has changed"]);
    // There twice, and of two jobs.
    fs::remove_dir_all(at("part-00002-of-00002")).unwrap();
    let copy = |from: &str, to: &str| {
        fs::create_dir(at(to)).unwrap();
        for entry in fs::read_dir(at(from)).unwrap() {
            let path = entry.unwrap().path();
            fs::copy(&path, at(to).join(path.file_name().unwrap())).unwrap();
        }
    };
    copy("part-00001-of-00002", "part-00002-of-00002");
    whole(&workspace, "").failed(&["part 1", "is there twice", "`part-00002-of-00002`"]);
    fs::rename(at("part-00002-of-00002"), at("part-00001-of-00003")).unwrap();
    whole(&workspace, "").failed(&["parts of two jobs: one of 2 and one of 3"]);
    fs::rename(at("part-00001-of-00003"), at("else")).unwrap();
    whole(&workspace, "").failed(&["found `else`"]);
    fs::remove_dir_all(at("else")).unwrap();
    // Not as it was written.
    part(&workspace, "2/2", "").succeeded();
    let shard = at("part-00002-of-00002/features-00000.arrow");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[200] ^= 1;
    fs::write(&shard, bytes).unwrap();
    whole(&workspace, "").failed(&[
        "part-00002-of-00002/features-00000.arrow",
        "sha256",
        "remove this file, and `--stage features --part 2/2` captures what was in it again",
    ]);
    // As is advised.
    fs::remove_file(&shard).unwrap();
    let told = part(&workspace, "2/2", "").succeeded();
    assert!(!told.stderr.contains("done before"), "{told:#?}");
    whole(&workspace, "").succeeded();
}

#[test]
fn a_single_element_of_the_example_is_the_same_part_of_all() {
    let workspace = Workspace::of("");
    workspace.write("spectrain", "#!/bin/sh\necho \"$@\"\n");
    let program = workspace.path("spectrain");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("recipes/jobs/slurm.sh");
    let told = |parts: Option<&str>| {
        let folder = program.parent().unwrap().display();
        let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
        let mut command = Command::new("bash");
        command.arg(&script).env("PATH", path);
        command.env_remove("TRAIN").env_remove("PARTS");
        // As of `--array=3`.
        command.env("SLURM_ARRAY_TASK_ID", "3");
        command.env("SLURM_ARRAY_TASK_COUNT", "1");
        command.envs(parts.map(|parts| ("PARTS", parts)));
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };
    let of_16 = told(None);
    assert!(
        of_16.ends_with(" --stage features --part 3/16\n"),
        "{of_16}"
    );
    assert!(told(Some("8")).ends_with(" --part 3/8\n"));
}

#[test]
fn what_makes_no_part_is_misuse() {
    let workspace = Workspace::new();
    let run = "recipe recipe.toml --set features.mode=stored";
    for part in ["0/3", "4/3", "3", "a/b"] {
        let words = format!("{run} --stage features --part {part}");
        workspace
            .run_line(words)
            .misused_by_usage(&["NUMBER/PARTS"]);
    }
    for stages in ["", " --stage train", " --stage features --stage train"] {
        workspace
            .run_line(format!("{run}{stages} --part 1/3"))
            .misused(&["`--part` works with one stage", "`--stage features`"]);
    }
    workspace
        .run_line("recipe recipe.toml --stage features --part 1/3")
        .misused(&["no stage `features`"]);
    workspace
        .run_line(format!("{run} --stage features --part 1/3"))
        .failed(&["`runs/run` is no run"]);
    workspace
        .run_line(format!("{run} --stage prepare"))
        .succeeded();
    workspace
        .run_line(format!(
            "{run} --stage features --part 1/3 --parts ftp://a/b"
        ))
        .misused(&["`s3://BUCKET/PREFIX`", "found `ftp://a/b`"]);
    workspace
        .run_line(format!("{run} --stage features --parts nowhere"))
        .failed(&["`nowhere` holds no part"]);
    // Where nothing has parts, they are nowhere.
    for more in ["", " --plan", " --sweep train.learning_rate=1e-2,1e-5"] {
        workspace
            .run_line(format!("recipe recipe.toml --parts nowhere{more}"))
            .misused(&["`--parts`: this recipe has no stage `features`"]);
    }
    assert!(!workspace.path("runs/run/features-parts").exists());
}

#[test]
fn parts_of_features_that_servers_hand_out_are_the_stage() {
    let serve = |workspace: &Workspace| {
        let states = workspace.path("states");
        StateServer::start(&workspace.path("target"), &states, Serving::of(&[2, 3, 6]))
    };
    let settings = |workspace: &Workspace, server: &StateServer| {
        let folder = json!(workspace.path("states"));
        format!(
            "recipe recipe.toml --set features.mode=served --set target.server=[\"{}\"] --set target.server_folder={folder}",
            server.url()
        )
    };
    let workspace = Workspace::new();
    let server = serve(&workspace);
    let run = settings(&workspace, &server);
    workspace
        .run_line(format!("{run} --stage prepare"))
        .succeeded();
    // Of the few prompts that are held out some parts have none.
    for number in 1..=6 {
        workspace
            .run_line(format!("{run} --stage features --part {number}/6"))
            .succeeded();
    }
    drop(server);
    // Nobody is asked any more.
    workspace
        .run_line(format!("{run} --stage features"))
        .succeeded();
    let alone = Workspace::new();
    let server = serve(&alone);
    let run = settings(&alone, &server);
    alone
        .run_line(format!("{run} --stage prepare --stage features"))
        .succeeded();
    for set in ["", "held_out"] {
        let [joined, alone] = [&workspace, &alone].map(|of| contents(&features(of).join(set)));
        assert_eq!(joined, alone, "{set}");
    }
}
