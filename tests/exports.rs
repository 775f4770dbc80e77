//! The bytes of an export of every recipe's samples in every layout, against digests that were taken once.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use spectrain::families::family::Writing;
use spectrain::families::registry::{RECIPES, open_drafter};
use spectrain::families::target_traits::TargetTraits;
use spectrain::families::trained::Trained;
use spectrain::recipe::tables::Engine;
use spectrain_checkpoints::launch::Choosing;
use spectrain_checkpoints::{DType, ModelFolder, hash, seal, write_folder};
use spectrain_models::device::test_device;
use spectrain_models::{TargetParts, is_part, load_parts};

use crate::golden;
use crate::samples::{Sample, changed, parts, sample, samples};
use crate::workspace::{Outcome, Workspace, wait_for};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/exports.txt");
/// The engines that samples with a switch or a word of `[drafter]` are offered to, a line for each. Nothing writes it: who adds a line
/// has looked at what each engine computes.
const BY_KEY: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/tests/golden/engines_by_key.txt"
);

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

/// Granite's logits are a quarter of its head's, and engines share the head without that.
#[test]
fn beside_a_target_whose_logits_are_scaled_a_shared_head_is_written_and_only_that_is_drawn_from() {
    let granite = golden::path("parts/granite");
    let target = load_parts(&granite, &test_device(), DType::F32).unwrap();
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("drafter");
    let choosing = |drafter: &dyn Trained| -> Vec<Choosing> {
        let lines = drafter.launch_lines(Engine::Vllm, &writing(&folder));
        let lines = lines.unwrap().into_iter();
        lines.filter_map(|line| line.choosing).collect()
    };
    let is_drawn = |choosing: &Choosing| *choosing != Choosing::Likeliest;

    let tables = "[drafter]\nhead = \"shared\"\ncaptured_layers = [0, 1]";
    let eagle3 = changed(sample("eagle3", 0).recipe, tables, &[]).drafter(&target);
    eagle3.write(&folder, DType::F32, &Value::Null).unwrap();
    let written = ModelFolder::open(&folder).unwrap();
    let head = written.read("lm_head.weight").unwrap().to_f32().unwrap();
    // It is tied.
    let own = ModelFolder::open_some(&granite, &is_part).unwrap();
    let own = own.read("model.embed_tokens.weight").unwrap();
    let scaled: Vec<f32> = own.to_f32().unwrap().iter().map(|x| x / 4.0).collect();
    assert_eq!(head, scaled);
    assert_eq!(written.config()["draft_vocab_size"], 61);
    open_drafter(&folder, &target, &test_device()).unwrap();
    assert!(choosing(eagle3.as_ref()).iter().any(is_drawn));

    let eagle1 = sample("eagle1", 0).recipe;
    let beside = |target: &TargetParts| choosing(changed(eagle1, "", &[]).drafter(target).as_ref());
    let found = beside(&target);
    assert!(
        !found.is_empty() && !found.iter().any(is_drawn),
        "{found:?}"
    );
    assert!(beside(&parts()).iter().any(is_drawn));
}

#[test]
fn a_factor_of_logits_that_keeps_engines_from_a_drafter_is_known_before_training() {
    const DFLASH: usize = 0;
    const DSPARK: usize = 5;
    let granite = TargetTraits::in_folder(&golden::path("parts/granite")).unwrap();
    assert!(granite.scales_logits && !granite.is_quantised);
    let scaled = TargetTraits {
        class: None,
        ..granite
    };
    let spec = parts().spec;
    for (number, is_served) in [(DFLASH, true), (DSPARK, false)] {
        let method = sample("dflash", number).resolved().method;
        let is_loaded = |target: &TargetTraits| {
            let [unknown, known] = method.check_export(&[Engine::Vllm], &spec, target).unwrap();
            let is_known = known.contains(&Engine::Vllm);
            assert_eq!(unknown.is_empty(), is_known);
            is_known
        };
        let (plain, why) = (TargetTraits::default(), method.unserved(&scaled).unwrap());
        assert!(is_loaded(&plain));
        assert_eq!(is_loaded(&scaled), is_served);
        assert_eq!(method.unserved(&plain).unwrap(), None);
        let is_told = |why: String| {
            let told =
                "no engine would serve this drafter: the target multiplies its head's logits";
            why.starts_with(told)
        };
        assert_eq!(why.map(is_told), (!is_served).then_some(true));
    }
}

/// TensorRT-LLM and llama.cpp were not seen to run a drafter whose heads have another width than the target's.
#[test]
fn heads_of_another_width_are_not_offered_to_engines_that_were_not_seen_to_run_them() {
    const UNSEEN: [Engine; 2] = [Engine::TensorrtLlm, Engine::LlamaCpp];
    let (spec, unknown) = (parts().spec, TargetTraits::default());
    // Granite's heads are 8 wide, as those of the samples' target.
    let folder = golden::path("parts/granite");
    let granite = load_parts(&folder, &test_device(), DType::F32).unwrap();
    assert_eq!((granite.spec.d_head, spec.d_head), (8, 8));
    for (d_head, is_own) in [(0, false), (8, false), (64, true)] {
        let tables = format!("[drafter]\ncaptured_layers = [0, 1]\nd_head = {d_head}");
        let eagle3 = changed(sample("eagle3", 0).recipe, &tables, &[]);
        let method = eagle3.method();
        let [_, known] = method.check_export(&UNSEEN, &spec, &unknown).unwrap();
        let drafter = eagle3.drafter(&granite);
        let lines = drafter
            .launch_lines(Engine::Vllm, &writing(&folder))
            .unwrap();
        let remarks = lines.iter().filter(|line| line.text.contains("64 wide"));
        assert_eq!(remarks.count(), if is_own { 2 } else { 0 }, "{lines:#?}");
        let servers = lines.iter().filter_map(|line| line.server);
        let servers: Vec<Engine> = servers.map(Engine::of).collect();
        assert!(known.contains(&Engine::Vllm), "{d_head}");
        for engine in UNSEEN {
            assert_eq!(known.contains(&engine), !is_own, "{d_head} {engine:?}");
            assert_eq!(servers.contains(&engine), !is_own, "{d_head} {engine:?}");
            let against = method.against(engine, &spec, &unknown).unwrap();
            let named = against.iter().any(|(key, _)| key == "d_head");
            assert_eq!(named, is_own, "{against:?}");
        }
    }
}

/// The samples of one recipe of each family: the others have the same.
fn of_each_family() -> impl Iterator<Item = Sample> {
    samples().filter(|sample| {
        let mut recipes = RECIPES.iter();
        let first = recipes.find(|recipe| recipe.family == sample.recipe.family);
        first.unwrap().name == sample.recipe.name
    })
}

/// The engines that a drafter of a sample is offered to, beside a target of Llama's class of which none reads the last layer.
fn offered(sample: Sample) -> BTreeSet<&'static str> {
    let method = sample.resolved().method;
    let mut spec = parts().spec;
    spec.layers = 40;
    let target = TargetTraits {
        class: Some("LlamaForCausalLM".to_owned()),
        ..Default::default()
    };
    let check = |to: &[Engine]| method.check_export(to, &spec, &target);
    let [_, mut engines] = check(&[]).unwrap();
    // Some layouts have no place for it.
    engines.retain(|engine| check(&[*engine]).is_ok());
    if engines.is_empty() {
        // Language models are offered by their own commands alone, and some layers beside targets of another class.
        let (drafter, writing) = (sample.drafter(), writing(Path::new("d")));
        let lines = drafter.launch_lines(Engine::Vllm, &writing).unwrap();
        let servers = lines.into_iter().filter_map(|line| line.server);
        engines.extend(servers.map(Engine::of));
    }
    engines.into_iter().map(Engine::key).collect()
}

#[test]
fn the_engines_of_a_family_are_those_that_its_samples_are_offered_to() {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for sample in of_each_family() {
        let engines = found.entry(sample.recipe.family).or_default();
        engines.extend(offered(sample));
    }
    for recipe in RECIPES {
        let said: BTreeSet<&str> = recipe.engines.iter().map(|engine| engine.key()).collect();
        let (family, found) = (recipe.family, &found[recipe.family]);
        assert_eq!(said, *found, "`ENGINES` and commands of {family}");
    }
}

#[test]
fn a_drafter_with_a_switch_is_offered_to_the_engines_that_were_looked_at_for_it() {
    let mut found: BTreeMap<String, BTreeSet<&str>> = BTreeMap::new();
    for sample in of_each_family() {
        let engines = offered(sample);
        let table = sample.recipe.samples[sample.number];
        for (key, value) in table.parse::<toml::Table>().unwrap() {
            let value = match value {
                toml::Value::Boolean(flag) => flag.to_string(),
                toml::Value::String(word) => word,
                _ => continue,
            };
            let key = format!("{} {key} = {value}", sample.recipe.family);
            found.entry(key).or_default().extend(&engines);
        }
    }
    let line = |(key, engines): (String, BTreeSet<&str>)| match engines.len() {
        0 => format!("{key}: none"),
        _ => format!("{key}: {}", Vec::from_iter(engines).join(", ")),
    };
    let found: BTreeSet<String> = found.into_iter().map(line).collect();
    let known = std::fs::read_to_string(BY_KEY).unwrap();
    let known: BTreeSet<String> = known.lines().map(str::to_owned).collect();
    let [new, gone] = [(&found, &known), (&known, &found)]
        .map(|(all, others)| Vec::from_iter(all.difference(others)));
    assert!(
        new.is_empty() && gone.is_empty(),
        "not in `{BY_KEY}`: {new:#?}\nthere, and not found: {gone:#?}\nlook whether each of these engines computes the key, \
         rule those out that do not where the layout's commands are made, and write the rest there"
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
        .failed(&["the card of `out.spectrain-partial/", "File too large"]);
    for name in ["out", "out.spectrain-partial"] {
        assert!(!workspace.path(name).exists(), "{name}");
    }
    workspace.run(&LINE).succeeded();
    assert_eq!(length("config.json"), KIB * 1024 + 40);
}

#[test]
fn an_export_has_its_name_once_it_is_checked_whatever_a_killed_one_has_left() {
    let workspace = Workspace::finished();
    let [out, partial] = ["out", "out.spectrain-partial"].map(|name| workspace.path(name));
    std::fs::create_dir_all(partial.join("drafter")).unwrap();
    workspace.write("out.spectrain-partial/drafter/config.json", "{}");
    let mut child = workspace.start(&["export", "run", "--to", "vllm", "--out", "out"]);
    wait_for(&mut child, || out.exists());
    // The card is written last, behind the checks.
    assert!(out.join(seal::CARD).exists());
    Outcome::from(child.wait_with_output().unwrap()).succeeded();
    workspace.open_drafter(&out);
    assert!(!partial.exists());
}
