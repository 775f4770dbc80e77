//! The samples of every recipe in the registry, as drafters and as folders in every layout.
use std::path::{Path, PathBuf};

use burn::prelude::Device;
use serde_json::Value;
use spectrain::families::family::Writing;
use spectrain::families::method::Method;
use spectrain::families::registry::{RECIPES, Recipe, open_drafter};
use spectrain::families::trained::Trained;
use spectrain::recipe::tables::Engine;
use spectrain::recipe::{self, ResolvedRecipe};
use spectrain_checkpoints::dialect::{Dialect, Reading, Settings};
use spectrain_checkpoints::{DType, ModelFolder, NamedTensor, seal, write_folder};
use spectrain_data::vocabulary::DraftVocabulary;
use spectrain_models::device::test_device;
use spectrain_models::{Target as _, TargetParts, Transformer};
use spectrain_train::Train;
use tempfile::TempDir;

use crate::tiny;

/// A recipe with one of its `[drafter]` tables.
#[derive(Clone, Copy)]
pub struct Sample {
    pub recipe: &'static Recipe,
    pub number: usize,
}

/// Those of every recipe. Recipes of one family share them; here they are once for each recipe.
pub fn samples() -> impl Iterator<Item = Sample> {
    let of = |recipe: &'static Recipe| {
        (0..recipe.samples.len()).map(move |number| Sample { recipe, number })
    };
    RECIPES.iter().flat_map(of)
}

/// A recipe with one of its pairs of `[drafter]` and `[objective]` tables, to be trained.
pub struct Trial {
    pub name: &'static str,
    resolved: ResolvedRecipe,
}

/// Those of every recipe.
pub fn trials() -> Vec<Trial> {
    let of = |recipe: &'static Recipe| {
        let trials = recipe.trials.iter();
        trials.map(move |tables| changed(recipe, tables, &[]))
    };
    RECIPES.iter().flat_map(of).collect()
}

/// A recipe with such tables and overrides, such as `objective.label_weight=0.5`.
pub fn changed(recipe: &'static Recipe, tables: &str, overrides: &[String]) -> Trial {
    Trial {
        name: recipe.name,
        resolved: read(recipe, tables, overrides),
    }
}

/// Whether a recipe is one of those that `SPECTRAIN_TEST_RECIPES` names, separated by commas; without it, every recipe is. For tests that take
/// hours on a slow device.
pub fn chosen(recipe: &str) -> bool {
    let Ok(names) = std::env::var("SPECTRAIN_TEST_RECIPES") else {
        return true;
    };
    names.split(',').any(|name| name == recipe)
}

impl Trial {
    pub fn method(&self) -> &dyn Method {
        self.resolved.method.as_ref()
    }

    /// An untrained drafter that can propose every token.
    pub fn drafter(&self, target: &TargetParts) -> Box<dyn Trained> {
        let vocabulary = DraftVocabulary::full(target.spec.vocab);
        let fresh = self.method().fresh(target, &vocabulary, &test_device());
        fresh.unwrap()
    }

    /// The same in training.
    pub fn trainee(&self, target: &Transformer, device: &Device) -> Box<dyn Train> {
        let vocabulary = DraftVocabulary::full(target.spec().vocab);
        let parts = target.parts();
        self.method().trainee(&parts, &vocabulary, device).unwrap()
    }
}

fn read(recipe: &Recipe, tables: &str, overrides: &[String]) -> ResolvedRecipe {
    let text = format!(
        "recipe = \"{}\"\nname = \"a\"\n[target]\nmodel = \"t\"\n[data]\ntrain = \"a\"\neval = \"b\"\n{tables}\n",
        recipe.name
    );
    recipe::read(&text, overrides).unwrap_or_else(|error| panic!("{text}: {error:#}"))
}

/// The sample of a recipe.
pub fn sample(recipe: &str, number: usize) -> Sample {
    let recipe = RECIPES.iter().find(|found| found.name == recipe).unwrap();
    Sample { recipe, number }
}

pub fn parts() -> TargetParts {
    tiny::target(&test_device()).parts()
}

impl Sample {
    pub fn name(self) -> String {
        format!("{}-{}", self.recipe.name, self.number)
    }

    /// The recipe file.
    pub fn resolved(self) -> ResolvedRecipe {
        let table = self.recipe.samples[self.number];
        read(self.recipe, &format!("[drafter]\n{table}"), &[])
    }

    /// An untrained drafter.
    pub fn drafter(self) -> Box<dyn Trained> {
        let (resolved, parts) = (self.resolved(), parts());
        let vocab = parts.spec.vocab;
        let footprint = resolved.method.footprint(&parts.spec).unwrap();
        let counts: Vec<u64> = (0..vocab as u64).map(|token| token * 7 % 13).collect();
        let vocabulary = match footprint.draft_vocab as usize {
            size if size == vocab => DraftVocabulary::full(vocab),
            size => DraftVocabulary::from_counts(&counts, size, &[]).unwrap(),
        };
        let fresh = resolved.method.fresh(&parts, &vocabulary, &test_device());
        fresh.unwrap_or_else(|error| panic!("{}: {error:#}", self.name()))
    }

    /// The engines whose layouts it can be written in; none stands for the usual one.
    pub fn layouts(self) -> Vec<Option<Engine>> {
        let mut layouts = vec![None];
        layouts.extend((self.recipe.apart)().into_iter().map(Some));
        layouts
    }

    /// Its folder in a layout, where it can be written in that.
    pub fn folder(self, layout: Option<Engine>) -> Option<Folder> {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("drafter");
        let writing = Writing {
            folder: &path,
            dtype: DType::F32,
            target: "org/name",
            draft_length: 5,
            provenance: &Value::Null,
        };
        let drafter = self.drafter();
        match layout {
            None => drafter.write(&path, DType::F32, &Value::Null).unwrap(),
            Some(engine) => drafter.write_for(engine, &writing).ok()?,
        }
        Some(Folder { _root: root, path })
    }
}

/// A drafter's folder, to be changed.
pub struct Folder {
    _root: TempDir,
    path: PathBuf,
}

impl Folder {
    /// The usual one of a recipe's sample.
    pub fn of(recipe: &str, number: usize) -> Self {
        sample(recipe, number).folder(None).unwrap()
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn config(&self) -> Value {
        ModelFolder::open(&self.path).unwrap().config().clone()
    }

    pub fn tensors(&self) -> Vec<NamedTensor> {
        let model = ModelFolder::open(&self.path).unwrap();
        let read = |info: &spectrain_checkpoints::TensorInfo| model.read(&info.name).unwrap();
        model.tensors().map(read).collect()
    }

    /// With another configuration and other tensors, and no seal.
    pub fn rewrite(&self, mut config: Value, tensors: &[NamedTensor]) {
        config.as_object_mut().unwrap().remove(seal::SEAL);
        std::fs::remove_dir_all(&self.path).unwrap();
        write_folder(&self.path, &config, tensors, &[]).unwrap();
    }

    /// What it says in a dialect, for the target that all samples are for.
    pub fn settings(&self, dialect: &'static Dialect) -> spectrain_checkpoints::Result<Settings> {
        let model = ModelFolder::open(&self.path)?;
        let reading = Reading {
            target_layers: Some(6),
            target_vocab: Some(tiny::VOCAB),
            ..Reading::default()
        };
        Ok(dialect.open(&model, reading)?.settings)
    }

    /// With keys of its configuration taken away.
    pub fn without(self, keys: &[&str]) -> Self {
        self.with_config(|config| remove(config, keys))
    }

    /// With the names of its tensors changed.
    pub fn renamed(self, rename: impl Fn(&str) -> String) -> Self {
        self.with_tensors(|tensors| {
            for tensor in tensors {
                tensor.name = rename(&tensor.name);
            }
        })
    }

    /// With its configuration changed.
    pub fn with_config(self, change: impl FnOnce(&mut Value)) -> Self {
        let mut config = self.config();
        change(&mut config);
        self.rewrite(config, &self.tensors());
        self
    }

    /// With its tensors changed.
    pub fn with_tensors(self, change: impl FnOnce(&mut Vec<NamedTensor>)) -> Self {
        let mut tensors = self.tensors();
        change(&mut tensors);
        self.rewrite(self.config(), &tensors);
        self
    }

    pub fn open(&self) -> anyhow::Result<Box<dyn Trained>> {
        open_drafter(&self.path, &parts(), &test_device())
    }

    /// Fails unless it is refused in words that name `part`.
    pub fn is_refused(&self, part: &str) {
        match self.open() {
            Ok(_) => panic!("taken, and not refused for {part}"),
            Err(error) => {
                let text = format!("{error:#}");
                assert!(text.contains(part), "`{text}` does not name {part}");
            }
        }
    }
}

/// Takes keys away from a table.
pub fn remove(config: &mut Value, keys: &[&str]) {
    for key in keys {
        config.as_object_mut().unwrap().remove(*key);
    }
}

/// Tensors by name, in the order of their names.
pub fn sorted(mut tensors: Vec<NamedTensor>) -> Vec<NamedTensor> {
    tensors.sort_by(|a, b| a.name.cmp(&b.name));
    tensors
}
