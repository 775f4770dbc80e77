//! A drafter that is trained further: what a recipe takes from it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde_json::Value;
use spectrain_checkpoints::{ModelFolder, printable, speculators};
use spectrain_models::TargetSpec;
use spectrain_train::TrainConfig;

use super::amount::{self, Own, Recommended};
use super::recommended::Recommendation;
use super::settings::at;
use super::train_keys::{self, EPOCHS, LENGTH, RATES, STEPS, TRAIN, WARM_UP, training_tables};
use crate::families::registry::{self, Recipe};
use crate::families::shipped::NamedBy;
use crate::recipe::document::rival;
use crate::runtime::start_at;
use crate::runtime::target::trained_for;
use crate::stages::drafter_at::DrafterAt;
use crate::trainers::rounded_rate;

/// Rates of a tuning, as a share of those that the drafter was trained with; and its length.
const RATE_SHARE: f64 = 0.25;
const LENGTH_SHARE: f64 = 0.2;
/// Keys of `[data]` that are taken from the recipe of the run: how conversations become rows, and how long these are.
const DATA: [&str; 6] = [
    "max_length",
    "overlong",
    "mask",
    "turns",
    "template",
    "template_variables",
];

/// The key of `[drafter]` that is taken too, where the drafter is a language model: the run's rates are then those of thin matrices,
/// which its folder does not tell of, as they are added to the weights there.
const LORA: &str = "lora";

/// Keys of `[target]` and `[features]` that are, where the target is the same: what it computes in, and where its hidden states come from.
const TARGET: [&str; 2] = ["revision", "dtype"];
const SERVER: [&str; 5] = [
    "server",
    "server_model",
    "server_folder",
    "local_folder",
    "api_key_env",
];
const FEATURES: [&str; 4] = ["samples_per_shard", "under_way", "timeout", "wait"];
const FEATURES_TABLE: &str = "features";
const MODE: &str = "mode";
/// The mode of hidden states of the run's own texts, which are none of other texts.
const IMPORTED: &str = "imported";

/// What names the drafter in a recipe.
pub(super) struct Named {
    /// The key `start`; none where `[drafter]` names it.
    pub(super) start: Option<String>,
    /// Keys of `[drafter]`.
    pub(super) keys: Vec<(String, Value)>,
}

/// The drafter.
pub(super) struct Start {
    /// As a recipe names it.
    pub(super) given: String,
    /// The name of the run that it is from, where it is of one.
    pub(super) run: Option<String>,
    folder: PathBuf,
    /// The recipe of the run that has trained it, where it is a run's.
    recipe: Option<toml::Table>,
}

impl Start {
    /// The drafter that `--start` names: a run or its folder, a drafter's folder, or an id on the hub, which is downloaded.
    pub(super) fn find(given: &str) -> Result<Self> {
        let found = DrafterAt::find(given, Path::new("runs"))?;
        let (given, recipe, run) = match &found {
            DrafterAt::Run(run) => {
                let name = run
                    .file_name()
                    .map(|name| name.to_string_lossy().into_owned());
                (run.display().to_string(), recipe_of(run), name)
            }
            _ => (given.to_owned(), None, None),
        };
        let folder = match &found {
            DrafterAt::Hub { .. } => start_at::folder(Path::new(&given))?,
            _ => found.folder()?,
        };
        Ok(Self {
            given,
            run,
            folder,
            recipe,
        })
    }

    /// The name of the recipe for it: that of its run, else the first one of its kind.
    pub(super) fn kind(&self) -> Result<&'static str> {
        let named = self.recipe.as_ref().and_then(|recipe| recipe.get("recipe"));
        let named = named.and_then(toml::Value::as_str).and_then(registry::find);
        match named {
            Some(recipe) => Ok(recipe.name),
            None => Ok(registry::of_drafter(&ModelFolder::open(&self.folder)?)?.name),
        }
    }

    /// The target that it was trained for, where its run or its folder says so.
    pub(super) fn target(&self) -> Option<String> {
        let of_recipe = || {
            let target = self.recipe.as_ref()?.get("target")?;
            Some(target.get("model")?.as_str()?.to_owned())
        };
        of_recipe().or_else(|| {
            let opened = ModelFolder::open(&self.folder).ok()?;
            let trained = trained_for(&opened).map(|found| found.model);
            trained.or_else(|| speculators::verifier(opened.config()).map(printable))
        })
    }

    /// The revision of this target on the hub that it was trained for, where its run names one.
    pub(super) fn revision(&self, target: &str) -> Option<&str> {
        let recipe = self.recipe.as_ref();
        let recipe = recipe.filter(|recipe| is_for(recipe, target))?;
        at(recipe, "target.revision")?.as_str()
    }

    /// What names it in a recipe for a target of these sizes.
    pub(super) fn named(&self, kind: &Recipe, target: &TargetSpec) -> Result<Named> {
        let found = (kind.at_start)(&self.folder, target).context("`--start`")?;
        Ok(match found {
            NamedBy::Start(keys) => Named {
                start: Some(self.given.clone()),
                keys,
            },
            NamedBy::Model(keys) => Named {
                start: None,
                keys: [self.as_model()?, keys].concat(),
            },
        })
    }

    /// The keys of `[drafter]` with which a language model starts from it, beside those that its folder tells.
    fn as_model(&self) -> Result<Vec<(String, Value)>> {
        // The folder of a run is no model's.
        let model = match self.run {
            Some(_) => self.folder.display().to_string(),
            None => self.given.clone(),
        };
        let mut keys = vec![("model".to_owned(), model.into())];
        let recipe = self.recipe.as_ref();
        if let Some(lora) = recipe.and_then(|recipe| at(recipe, &format!("drafter.{LORA}"))) {
            let lora = serde_json::to_value(lora).context("`drafter.lora` of the run")?;
            keys.push((LORA.to_owned(), lora));
        }
        Ok(keys)
    }

    /// What is recommended for its tuning: the objective, the optimiser and the amounts of its run, else those of `shipped`, with a
    /// quarter of the rates and a fifth of the steps; and where the run had the hidden states of the same target from.
    pub(super) fn recommended(&self, own: &Own, shipped: Recommendation) -> Recommendation {
        let (mut keys, mut told) = match &self.recipe {
            Some(recipe) => (of_run(recipe, own), OF_RUN.to_owned()),
            None => (shipped.keys, shipped.told),
        };
        add_defaults(&mut keys, own);
        keys.iter_mut().for_each(tune);
        if keys.iter().any(|key| key.table == FEATURES_TABLE) {
            told += OF_FEATURES;
        }
        told += FURTHER;
        Recommendation { keys, told }
    }
}

const OF_RUN: &str =
    "Objective, optimiser and lengths are those of the run that the drafter is from.";
const OF_FEATURES: &str = " So is where the target's hidden states come from.";
const FURTHER: &str = " As it is trained further, rates are a quarter of those, steps and warm-up a fifth. Mix other texts into \
                       `data.train`, or it drafts worse for them than before: recipes/README.md, \"Tuning a drafter for your texts\".";

/// The recipe in the folder of a run; none where it was imported.
fn recipe_of(run: &Path) -> Option<toml::Table> {
    let text = std::fs::read_to_string(run.join("recipe.toml")).ok()?;
    let recipe: toml::Table = text.parse().ok()?;
    recipe.contains_key("train").then_some(recipe)
}

/// Whether the recipe of a run is for this target.
fn is_for(recipe: &toml::Table, target: &str) -> bool {
    let model = at(recipe, "target.model").and_then(toml::Value::as_str);
    model == Some(target)
}

/// What the recipe of a run says that a tuning needs too.
fn of_run(recipe: &toml::Table, own: &Own) -> Vec<Recommended> {
    let objective = recipe.get("objective").and_then(toml::Value::as_table);
    let objective = objective.into_iter().flat_map(toml::Table::keys);
    let objective = objective.map(|key| ("objective".to_owned(), key.as_str()));
    let others = DATA.map(|key| ("data", key)).into_iter();
    let others = others.chain(of_target(recipe, own));
    let others = others.map(|(table, key)| (table.to_owned(), key));
    let all = objective.chain(of_training(recipe, own)).chain(others);
    let line = |(table, key): (String, &str)| {
        let value = at(recipe, &format!("{table}.{key}"))?;
        let is_free = own.settings.leaves(&table, key);
        is_free.then(|| Recommended::new(&table, key, value))
    };
    all.filter_map(line).collect()
}

/// The keys of the training that are taken; of its stages those that the run gave another value.
fn of_training(recipe: &toml::Table, own: &Own) -> Vec<(String, &'static str)> {
    let mut keys = Vec::new();
    for table in training_tables(own.kind) {
        let differs = |key: &&str| {
            let of_all = at(recipe, &format!("{TRAIN}.{key}"));
            at(recipe, &format!("{table}.{key}")) != of_all
        };
        let taken = train_keys::all().filter(|key| table == TRAIN || differs(key));
        keys.extend(taken.map(|key| (table.clone(), key)));
    }
    keys
}

/// The keys of the target that are taken, and of where its hidden states come from.
fn of_target(recipe: &toml::Table, own: &Own) -> Vec<(&'static str, &'static str)> {
    if !is_for(recipe, own.target) {
        return Vec::new();
    }
    let mut keys = TARGET.map(|key| ("target", key)).to_vec();
    let path = format!("{FEATURES_TABLE}.{MODE}");
    let mode = at(recipe, &path).and_then(toml::Value::as_str);
    let mode = mode.filter(|mode| *mode != IMPORTED);
    let set_mode = own.settings.value(&path);
    // Servers go with the mode that asks them, and all that is said of them together: a key is for its server only.
    if mode.is_some() && set_mode.is_none_or(|set| set.as_str() == mode) {
        keys.push((FEATURES_TABLE, MODE));
        keys.extend(FEATURES.map(|key| (FEATURES_TABLE, key)));
        let mut server = SERVER.iter();
        if !server.any(|key| own.settings.has(&format!("target.{key}"))) {
            keys.extend(SERVER.map(|key| ("target", key)));
        }
    }
    keys
}

/// Adds the defaults of rates and lengths of which nothing is said: a tuning lowers these too.
fn add_defaults(keys: &mut Vec<Recommended>, own: &Own) {
    let defaults = serde_json::to_value(TrainConfig::default()).unwrap_or_default();
    // A warm-up that nobody set goes with the steps or epochs that somebody did.
    let has_epochs = keys.iter().any(|found| found.is(TRAIN, EPOCHS));
    let is_free = !has_epochs && amount::is_free(own.settings, TRAIN);
    let lengths = [STEPS, WARM_UP].into_iter().filter(|_| is_free);
    for key in RATES.into_iter().chain(lengths) {
        let mut same = [Some(key), rival(key)].into_iter().flatten();
        let is_said = same.any(|key| {
            let is_recommended = keys.iter().any(|found| found.is(TRAIN, key));
            is_recommended || !own.settings.leaves(TRAIN, key)
        });
        let value = defaults
            .get(key)
            .filter(|value| value.is_number() && !is_said);
        keys.extend(value.map(|value| Recommended::new(TRAIN, key, value)));
    }
}

/// Lowers a rate or a length.
fn tune(key: &mut Recommended) {
    let Some((name, value)) = key.line.split_once(" = ") else {
        return;
    };
    let Ok(value) = value.parse::<f64>() else {
        return;
    };
    let lower = match name {
        _ if RATES.contains(&name) => toml::Value::Float(rounded_rate(value * RATE_SHARE)),
        EPOCHS => toml::Value::Float(rounded_rate(value * LENGTH_SHARE)),
        _ if (LENGTH.contains(&name) || name == WARM_UP) && value >= 1.0 => {
            toml::Value::Integer((value * LENGTH_SHARE).ceil() as i64)
        }
        _ => return,
    };
    key.line = format!("{name} = {lower}");
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::settings::Settings;
    use super::*;

    /// The recipe of a run in stages.
    const RUN: &str = r#"
recipe = "dflash-deer"

[target]
model = "org/t"
revision = "v1"

[train]
steps = 100
warmup_steps = 10
learning_rate = 4e-3
matrix_learning_rate = 4e-2
table_learning_rate = 4e-4
max_grad_norm = 0.0
clip_value = 0.5
weight_decay = 0.1
beta2 = 0.999
ema_decay = 0.99
save_every = 7

[stages.align]
steps = 100
learning_rate = 4e-3
clip_value = 0.5

[stages.refine]
epochs = 5.0
warmup_steps = 10
learning_rate = 1e-3
clip_value = 0.25
"#;

    fn start() -> Start {
        Start {
            given: "runs/run".to_owned(),
            run: None,
            folder: PathBuf::new(),
            recipe: Some(RUN.parse().unwrap()),
        }
    }

    /// The keys of this table that are recommended for a tuning beside what is set.
    fn lines(kind: &str, table: &str, set: &[&str]) -> Vec<String> {
        let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
        let own = Own {
            kind: registry::find(kind).unwrap(),
            target: "org/t",
            revision: None,
            is_made: true,
            tokens: None,
            settings: &Settings::of(&set).unwrap(),
        };
        let mut keys = start().recommended(&own, Recommendation::default()).keys;
        keys.retain(|found| found.table == table);
        keys.into_iter().map(|found| found.line).collect()
    }

    #[test]
    fn a_tuning_has_all_of_the_optimiser_of_its_run() {
        let expected = [
            "learning_rate = 0.001",
            "matrix_learning_rate = 0.01",
            "table_learning_rate = 0.0001",
            "max_grad_norm = 0.0",
            "clip_value = 0.5",
            "weight_decay = 0.1",
            "beta2 = 0.999",
            "ema_decay = 0.99",
            "steps = 20",
            "warmup_steps = 2",
        ];
        assert_eq!(lines("dflash-deer", "train", &[]), expected);
        let set = ["train={ clip_value = 1.0, epochs = 2 }"];
        let some = lines("dflash-deer", "train", &set);
        assert!(!some.contains(&expected[4].to_owned()), "{some:?}");
    }

    #[test]
    fn a_tuning_of_what_no_run_has_trained_lowers_the_defaults_too() {
        let lines = |recommended: &[(&str, &str)], set: &[&str]| {
            let set: Vec<String> = set.iter().map(|set| (*set).to_owned()).collect();
            let own = Own {
                kind: registry::find("eagle3").unwrap(),
                target: "org/t",
                revision: None,
                is_made: true,
                tokens: None,
                settings: &Settings::of(&set).unwrap(),
            };
            let keys = recommended.iter();
            let shipped = Recommendation {
                keys: keys
                    .map(|(key, value)| Recommended::new(TRAIN, key, value))
                    .collect(),
                told: String::new(),
            };
            let published = Start {
                recipe: None,
                ..start()
            };
            let keys = published.recommended(&own, shipped).keys.into_iter();
            keys.map(|found| found.line).collect::<Vec<_>>()
        };
        let lengths = ["steps = 200", "warmup_steps = 10"];
        let own = lines(&[], &[]);
        assert_eq!(own, [&["learning_rate = 0.000025"][..], &lengths].concat());
        let shipped = lines(&[("learning_rate", "4e-3")], &[]);
        assert_eq!(shipped, [&["learning_rate = 0.001"][..], &lengths].concat());
        // What is set is not lowered, and a warm-up goes with it.
        for set in ["train.steps=3", "train.epochs=2"] {
            let own = lines(&[], &[set, "train.learning_rate=1e-3"]);
            assert!(own.is_empty(), "{set}: {own:?}");
        }
        let epochs = lines(&[("epochs", "5.0")], &["train.learning_rate=1e-3"]);
        assert_eq!(epochs, ["epochs = 1.0"]);
    }

    #[test]
    fn a_tuning_in_stages_has_what_differed_in_those_of_its_run() {
        let none = [""; 0];
        assert_eq!(lines("dflash-deer", "stages.align", &[]), none);
        let refine = |set: &[&str]| lines("dflash-deer", "stages.refine", set);
        let expected = [
            "learning_rate = 0.00025",
            "clip_value = 0.25",
            "epochs = 1.0",
        ];
        assert_eq!(refine(&[]), expected);
        // What is set of the training holds for its stages.
        let set = ["train.learning_rate=1e-4", "train.steps=3"];
        assert_eq!(refine(&set), ["clip_value = 0.25"]);
        // Another kind has no such stages.
        assert_eq!(lines("dflash", "stages.refine", &[]), none);
    }

    #[test]
    fn a_language_model_has_the_thin_matrices_that_the_rates_of_its_run_are_for() {
        let as_model = |table: &str| {
            let start = Start {
                recipe: Some(format!("{table}{RUN}").parse().unwrap()),
                ..start()
            };
            start.as_model().unwrap()
        };
        let model = ("model".to_owned(), Value::from("runs/run"));
        let lora = "drafter = { keep_layers = [0], lora = { rank = 2, alpha = 4.5 } }";
        let found = ("lora".to_owned(), json!({ "rank": 2, "alpha": 4.5 }));
        assert_eq!(as_model(lora), [model.clone(), found]);
        assert_eq!(as_model("drafter = { keep_layers = [0] }"), [model]);
    }

    #[test]
    fn the_revision_is_that_of_the_runs_target_and_of_no_other() {
        assert_eq!(start().revision("org/t"), Some("v1"));
        assert_eq!(start().revision("org/other"), None);
        let target = lines("dflash-deer", "target", &[]);
        assert_eq!(target, ["revision = \"v1\""]);
    }
}
