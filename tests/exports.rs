//! The bytes of an export of every recipe's samples in every layout, against digests that were taken once.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use spectrain::families::family::Writing;
use spectrain::families::trained::Trained;
use spectrain::recipe::tables::Engine;
use spectrain_checkpoints::{DType, hash, seal, write_folder};

use crate::samples::samples;
use crate::workspace::Workspace;

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/exports.txt");

/// Digests, commands and refusals by what they are of.
struct Taken<'a> {
    root: &'a Path,
    lines: BTreeMap<String, String>,
}

impl Taken<'_> {
    fn usual(&mut self, name: &str, drafter: &dyn Trained) {
        for dtype in [DType::F32, DType::BF16] {
            let folder = self.root.join(format!("{name}-{dtype}"));
            drafter.write(&folder, dtype, &json!({"a": 1})).unwrap();
            self.folder(&format!("{name} {dtype}"), &folder);
        }
        let writing = writing(Path::new("d"));
        let lines = drafter.launch_lines(Engine::Vllm, &writing).unwrap();
        for (number, line) in lines.into_iter().enumerate() {
            self.lines
                .insert(format!("{name} launch {number}"), line.text);
        }
    }

    fn apart(&mut self, name: &str, drafter: &dyn Trained, engine: Engine) {
        let key = engine.key();
        let folder = self.root.join(format!("{name}-{key}"));
        let root = self.root.display().to_string();
        if let Err(error) = drafter.write_for(engine, &writing(&folder)) {
            let refusal = format!("{error:#}").replace(&root, "");
            self.lines.insert(format!("{name} {key}"), refusal);
            return;
        }
        self.folder(&format!("{name} {key}"), &folder);
        let mut lines = drafter.launch_lines(engine, &writing(&folder)).unwrap();
        let launch = lines.remove(0).text.replace(&root, "");
        self.lines.insert(format!("{name} {key} launch"), launch);
    }

    fn folder(&mut self, name: &str, folder: &Path) {
        for file in ["config.json", "model.safetensors"] {
            let digest = hash::sha256_file(&folder.join(file)).unwrap();
            self.lines.insert(format!("{name} {file}"), digest);
        }
    }
}

fn writing(folder: &Path) -> Writing<'_> {
    Writing {
        folder,
        dtype: DType::F16,
        target: "org/name",
        draft_length: 5,
        provenance: &Value::Null,
    }
}

/// With `UPDATE=1` the digests are taken anew; with `EXPORTS=FOLDER` what was exported stays there.
#[test]
fn an_export_has_the_bytes_that_it_always_had() {
    let root = tempfile::tempdir().unwrap();
    let kept = std::env::var_os("EXPORTS").map(PathBuf::from);
    let mut taken = Taken {
        root: kept.as_deref().unwrap_or(root.path()),
        lines: BTreeMap::new(),
    };
    for sample in samples() {
        let (name, drafter) = (sample.name(), sample.drafter());
        taken.usual(&name, drafter.as_ref());
        for engine in sample.layouts().into_iter().flatten() {
            taken.apart(&name, drafter.as_ref(), engine);
        }
    }
    let mut found = String::new();
    for (name, value) in &taken.lines {
        _ = writeln!(found, "{name}: {value}");
    }
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(GOLDEN, &found).unwrap();
    }
    let expected = std::fs::read_to_string(GOLDEN).unwrap();
    let by_name = |text: &str| -> BTreeMap<String, String> {
        let pairs = text.lines().filter_map(|line| line.split_once(": "));
        let pairs = pairs.map(|(name, digest)| (name.to_owned(), digest.to_owned()));
        pairs.collect()
    };
    let (found, expected) = (by_name(&found), by_name(&expected));
    let names: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    let differs = |name: &&&String| found.get(**name) != expected.get(**name);
    let told = names.iter().filter(differs).map(|name| {
        let what = match (found.get(*name), expected.get(*name)) {
            (None, _) => "is no longer exported",
            (_, None) => "is new",
            _ => "has other bytes",
        };
        format!("{name} {what}")
    });
    let told: Vec<String> = told.collect();
    assert!(
        told.is_empty(),
        "{told:#?}\n`UPDATE=1` writes `{GOLDEN}` anew"
    );
}

#[test]
fn an_export_that_fails_behind_its_weights_leaves_no_folder() {
    const KIB: usize = 512;
    const LINE: [&str; 8] = [
        "export", "origin", "--to", "vllm", "--out", "out", "--target", "target",
    ];
    let workspace = Workspace::finished();
    let (config, tensors) = workspace.contents("runs/run/export/drafter");
    // What it says of its origin makes the configuration the longest of its files.
    let write = |padding: usize| {
        let mut config = config.clone();
        let mut origin = config[seal::SEAL]["provenance"].take();
        config.as_object_mut().unwrap().remove(seal::SEAL);
        origin["note"] = json!("x".repeat(padding));
        let sealed = seal::sealed(config, &tensors, &[], &origin);
        write_folder(&workspace.path("origin"), &sealed, &tensors, &[]).unwrap();
    };
    write(1);
    workspace.run(&LINE).succeeded();
    let length = |file: &str| workspace.bytes(&format!("out/{file}")).len();
    let (whole, weights) = (length("config.json"), length("model.safetensors"));
    assert!(
        whole < KIB * 1024 && weights < KIB * 1024,
        "{whole} {weights}"
    );
    std::fs::remove_dir_all(workspace.path("out")).unwrap();
    // The digest of the card, which comes last, is more than it may still grow by.
    write(1 + KIB * 1024 + 40 - whole);
    workspace
        .run_with_file_limit(KIB, &LINE)
        .failed(&["the card of `out`", "File too large"]);
    assert!(!workspace.path("out").exists());
    workspace.run(&LINE).succeeded();
    assert_eq!(length("config.json"), KIB * 1024 + 40);
}
