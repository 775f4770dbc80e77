//! Parts of an array job on machines that share nothing but an object store.
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use serde_json::json;

use crate::array_jobs::{contents, features, prepared, whole};
use crate::object_server::ObjectServer;
use crate::workspace::{Outcome, Workspace};

/// An object store: what the environment says of it, and an address in it.
struct Store {
    environment: Vec<(&'static str, String)>,
    url: String,
}

impl Store {
    /// Runs the stage `features`, or a part of it.
    fn run(&self, machine: &Workspace, more: &str) -> Outcome {
        let words = format!(
            "recipe recipe.toml --set features.mode=stored --stage features --parts {}{more}",
            self.url
        );
        let words: Vec<&str> = words.split(' ').collect();
        let mut command = machine.command(&words);
        command.envs(self.environment.iter().cloned());
        Outcome::from(command.output().unwrap())
    }
}

/// Two machines capture a part each, and a third has all.
fn capture_together(store: &Store) {
    let machines = [(); 3].map(|()| prepared());
    let [first, second, third] = &machines;
    store.run(first, "").failed(&["holds no part"]);
    store.run(first, " --part 1/2").succeeded();
    let told = store.run(first, " --part 1/2").succeeded();
    assert!(told.stderr.contains("part 1/2: done before"), "{told:#?}");
    assert!(
        !first
            .path("runs/run/features-parts/part-00001-of-00002")
            .exists()
    );
    store
        .run(third, "")
        .failed(&["of 2 parts these are missing: 2", "--part 2/2`"]);
    // Before it captures anything.
    store
        .run(second, " --part 2/2 --set seed=5")
        .failed(&["part 1/2 in `", "`seed`: expected 5, found 0"]);
    store.run(second, " --part 2/2").succeeded();
    store
        .run(third, " --set seed=3")
        .failed(&["was made from other inputs or settings", "`seed`"]);
    store.run(third, "").succeeded();
    let alone = prepared();
    whole(&alone, "").succeeded();
    assert_eq!(contents(&features(third)), contents(&features(&alone)));
    assert!(!third.path("runs/run/.features-parts-fetched").exists());
    // They are known as they are since then, so that they need not be read again.
    let shard = fs::canonicalize(features(third).join("features-00000.arrow")).unwrap();
    let data = fs::metadata(&shard).unwrap();
    let touched = data.ctime() * 1_000_000_000 + data.ctime_nsec();
    let known = &third.json("runs/run/hashes.json")["files"][shard.to_str().unwrap()];
    assert_eq!(known["touched"], json!(touched));
    third
        .run_line("recipe recipe.toml --set features.mode=stored")
        .succeeded();
}

#[test]
fn machines_that_share_an_object_store_capture_together() {
    let server = ObjectServer::start();
    // As consoles do where one makes a folder.
    let mut objects = server.objects.lock().unwrap();
    objects.insert("bucket/a/b/".into(), Vec::new());
    drop(objects);
    capture_together(&Store {
        environment: server.environment(),
        url: "s3://bucket/a/b".into(),
    });
}

#[test]
fn what_was_changed_in_the_store_is_named() {
    let server = ObjectServer::start();
    let store = Store {
        environment: server.environment(),
        url: "s3://bucket".into(),
    };
    let machine = prepared();
    for part in [" --part 1/2", " --part 2/2"] {
        store.run(&machine, part).succeeded();
    }
    let key = "bucket/part-00001-of-00002/features-00000.arrow";
    let flip = || server.objects.lock().unwrap().get_mut(key).unwrap()[300] ^= 1;
    flip();
    store.run(&machine, "").failed(&[
        "`s3://bucket/part-00001-of-00002/features-00000.arrow`",
        "SHA-256",
    ]);
    // The other files are there already; this one is fetched anew.
    flip();
    store.run(&machine, "").succeeded();
    server.objects.lock().unwrap().remove(key);
    fs::remove_dir_all(features(&machine)).unwrap();
    store
        .run(&machine, "")
        .failed(&["cannot fetch `s3://bucket/part-00001"]);
}

#[test]
fn a_part_that_was_stopped_while_it_was_sent_is_only_sent_and_no_file_twice() {
    let server = ObjectServer::start();
    let store = Store {
        environment: server.environment(),
        url: "s3://bucket".into(),
    };
    let machine = prepared();
    // As it stands once it is captured.
    let words = "recipe recipe.toml --set features.mode=stored --stage features --part 1/2";
    machine.run_line(words).succeeded();
    let (name, shard) = ("part-00001-of-00002", "features-00000.arrow");
    let folder = format!("runs/run/features-parts/{name}");
    let file = machine.json(&format!("{folder}/part.json"))["files"][shard].clone();
    let address = format!("s3://bucket/{name}/{shard}");
    let sent = json!(BTreeMap::from([(address, &file["sha256"])]));
    machine.write(&format!("{folder}/sent.json"), sent.to_string());
    // As long and another one, so that it shows whether it is sent.
    let other = vec![0; file["bytes"].as_u64().unwrap() as usize];
    let key = format!("bucket/{name}/{shard}");
    let mut objects = server.objects.lock().unwrap();
    objects.insert(key.clone(), other.clone());
    drop(objects);
    let told = store.run(&machine, " --part 1/2").succeeded();
    assert!(!told.stderr.contains(" samples ("), "{told:#?}");
    assert!(told.stderr.contains("part 1/2: `s3://bucket`"), "{told:#?}");
    let objects = server.objects.lock().unwrap();
    assert_eq!(objects[&key], other);
    for file in ["features.json", "part.json"] {
        assert!(objects.contains_key(&format!("bucket/{name}/{file}")));
    }
    assert!(!machine.path(&folder).exists());
}

#[test]
fn a_store_that_refuses_or_is_not_there_is_named() {
    let server = ObjectServer::start();
    let machine = prepared();
    let mut store = Store {
        environment: server.environment(),
        url: "s3://bucket/a".into(),
    };
    let address = "cannot read `s3://bucket/a/part-00001-of-00002/part.json`";
    for (name, value) in &mut store.environment {
        if *name == "AWS_ACCESS_KEY_ID" {
            *value = "foreign".into();
        }
    }
    store.run(&machine, " --part 1/2").failed(&[address, "403"]);
    store
        .environment
        .retain(|(name, _)| *name != "AWS_ALLOW_HTTP");
    store
        .run(&machine, " --part 1/2")
        .failed(&[address, "https"]);
}

/// With a server of the S3 protocol such as `moto_server`: `SPECTRAIN_S3` is an address in a bucket that is there, and the
/// environment has `AWS_ENDPOINT_URL` and keys.
#[test]
fn a_real_server_of_the_protocol_does_the_same() {
    let Ok(url) = std::env::var("SPECTRAIN_S3") else {
        return;
    };
    capture_together(&Store {
        environment: Vec::new(),
        url,
    });
}
