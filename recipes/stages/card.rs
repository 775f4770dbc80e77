//! The card of an exported drafter: what it is, for which target, how it was trained, what it accepts and how it is served.
//!
//! It names no place on the machine that it was written on: a target or data of a folder there are said to be local ones.

pub mod origin;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spectrain_checkpoints::dialect::Dialect;
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::launch::is_on_hub;
use spectrain_checkpoints::{ModelFolder, printable, seal};
use spectrain_data::presets::Preset;
use spectrain_data::sources::{Origin, Sources};
use spectrain_eval::{Report, by_dataset};

use crate::families::commands::commands;
use crate::families::family::Writing;
use crate::families::trained::Trained;
use crate::recipe::tables::Engine;
use crate::runs::stage_names::TRAIN;

use origin::Before;

/// What launch lines call the drafter's folder.
pub const DRAFTER: &str = "DRAFTER";
/// What they call a target that has no name on the hub.
const TARGET: &str = "TARGET";
/// Key, under `training`, of the steps at which validations have ended stages of the training, by the names of these.
pub(super) const ENDED: &str = "ended";
/// Where the program is.
const HOME: &str = env!("CARGO_PKG_REPOSITORY");

/// What a card says beside what its folder says of its origin.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Facts {
    /// What reports call the drafter's kind.
    pub kind: String,
    /// What people call the drafter. Earlier versions have not recorded it.
    #[serde(default)]
    pub called: Option<String>,
    /// Its own parameters.
    pub parameters: u64,
    /// The type of its weights.
    pub dtype: String,
    /// The library that loads its layout, where that is one made for that library.
    pub library: Option<String>,
    /// The commands that serve it, and remarks.
    pub launch: Vec<String>,
}

impl Facts {
    /// Of a drafter that was written.
    pub fn of(drafter: &dyn Trained, engines: &[Engine], writing: &Writing) -> Result<Self> {
        let portable = Writing {
            folder: Path::new(DRAFTER),
            target: on_hub(writing.target).unwrap_or(TARGET),
            ..*writing
        };
        let library = match engines {
            [Engine::Speculators] => Some("speculators"),
            [Engine::Hf] => Some("transformers"),
            _ => None,
        };
        Ok(Self {
            kind: drafter.kind().to_owned(),
            called: Some(drafter.called()?.to_owned()),
            parameters: drafter.parameters(),
            dtype: writing.dtype.name().to_lowercase(),
            library: library.map(str::to_owned),
            launch: commands(drafter, engines, &portable)?,
        })
    }
}

/// The id of a model that is no folder here.
fn on_hub(model: &str) -> Option<&str> {
    is_on_hub(model).then_some(model)
}

/// Writes the card of a folder. A card that someone has changed stays as it is, with a warning.
pub fn write(folder: &Path, facts: &Facts, report: Option<&Report>) -> Result<()> {
    let model = ModelFolder::open_some(folder, &|_| false)?;
    let nothing = Value::Null;
    let card = Card {
        dialect: dialect_of(&model)?,
        facts,
        provenance: seal::provenance(model.config()).unwrap_or(&nothing),
        report,
    };
    let written = seal::write_card(folder, &card.text()?);
    let written = written.with_context(|| format!("the card of `{}`", folder.display()))?;
    if !written {
        tracing::warn!(
            "`{}` was changed and stays as it is; without it the next report writes it anew",
            folder.join(seal::CARD).display()
        );
    }
    Ok(())
}

/// What a card is made of.
struct Card<'a> {
    dialect: &'static Dialect,
    facts: &'a Facts,
    provenance: &'a Value,
    report: Option<&'a Report>,
}

impl Card<'_> {
    fn text(&self) -> Result<String> {
        let mut text = self.front_matter()?;
        let (called, target) = (self.called(), self.target_words());
        _ = writeln!(text, "\n# {called} drafter for {target}\n");
        _ = writeln!(
            text,
            "It drafts tokens for {target}, which verifies them: the output is the target's own, faster. It is of no use without \
             its target, and no other target accepts as much of it.\n"
        );
        text.push_str(&self.what());
        text.push_str(&self.how_trained());
        text.push_str(&self.accepted());
        text.push_str(&self.serving());
        text.push_str(&self.licence());
        text.push_str(&self.citation());
        Ok(text)
    }

    /// What people call the drafter.
    fn called(&self) -> &str {
        let called = self.facts.called.as_deref();
        called.unwrap_or(self.dialect.family)
    }

    fn recipe(&self, table: &str) -> &Value {
        &self.provenance["recipe"][table]
    }

    fn target(&self) -> Option<&str> {
        on_hub(self.provenance["target"]["model"].as_str()?)
    }

    fn target_words(&self) -> String {
        match self.target() {
            Some(id) => format!("`{}`", printable(id)),
            None => "a local target".to_owned(),
        }
    }

    /// The drafter whose weights it began with.
    fn before(&self) -> Option<Before> {
        Before::of(self.provenance)
    }

    fn given_licence(&self) -> Option<&str> {
        self.recipe("export")["license"].as_str()
    }

    /// The YAML that the hub reads. Texts are written as JSON, which is YAML.
    fn front_matter(&self) -> Result<String> {
        let quoted = |text: &str| serde_json::to_string(text).context("cannot write the card");
        let mut yaml = String::from("---\n");
        if let Some(licence) = self.given_licence() {
            _ = writeln!(yaml, "license: {}", quoted(licence)?);
        }
        let before = self.before();
        let before = before.as_ref().and_then(Before::id);
        let before = before.filter(|id| Some(*id) != self.target());
        let models: Vec<&str> = self.target().into_iter().chain(before).collect();
        match models[..] {
            [] => {}
            [one] => _ = writeln!(yaml, "base_model: {}", quoted(one)?),
            _ => yaml.push_str("base_model:\n"),
        }
        for model in models.iter().filter(|_| models.len() > 1) {
            _ = writeln!(yaml, "- {}", quoted(model)?);
        }
        let library = match self.facts.library.as_deref() {
            Some(library) => library,
            None if self.dialect.is_language_model => "transformers",
            None => "spectrain",
        };
        _ = writeln!(yaml, "library_name: {}", quoted(library)?);
        if self.dialect.is_language_model {
            yaml.push_str("pipeline_tag: text-generation\n");
        }
        let kind = self.called().to_lowercase().replace(' ', "-");
        yaml.push_str("tags:\n- speculative-decoding\n- drafter\n- spectrain\n");
        _ = writeln!(yaml, "- {}", quoted(&kind)?);
        let datasets = self.datasets();
        if !datasets.is_empty() {
            yaml.push_str("datasets:\n");
        }
        for id in datasets {
            _ = writeln!(yaml, "- {}", quoted(&id)?);
        }
        yaml.push_str("---\n");
        Ok(yaml)
    }

    /// Ids of the hub's datasets that were trained on, each once.
    fn datasets(&self) -> Vec<String> {
        let (sources, _) = self.sources();
        let ids = sources.iter().filter_map(|origin| match origin {
            Origin::Path(_) => None,
            Origin::Hub(address) => Some(address.id.clone()),
            Origin::Preset(preset) => Some(preset.address().id),
        });
        let mut ids: Vec<String> = ids.collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// What was trained on, and how many parts of it are files of its maker's.
    fn sources(&self) -> (Vec<Origin>, usize) {
        let data = self.recipe("data");
        let train = serde_json::from_value::<Sources>(data["train"].clone()).ok();
        let preset = data["preset"].as_str();
        let preset = preset.and_then(|name| Preset::find(name).ok());
        let train = train.or(preset.map(|preset| Origin::Preset(preset).into()));
        let each = train.iter().flat_map(Sources::each);
        let each: Vec<Origin> = each.map(|source| source.origin.clone()).collect();
        let own = each
            .iter()
            .filter(|origin| matches!(origin, Origin::Path(_)));
        let own = own.count();
        (each, own)
    }

    fn what(&self) -> String {
        let target = &self.provenance["target"];
        let mut text = String::from("| | |\n|---|---|\n");
        let mut row = |name: &str, value: String| _ = writeln!(text, "| {name} | {value} |");
        row("kind", self.called().to_owned());
        row("parameters", self.facts.parameters.to_string());
        row("weights", self.facts.dtype.clone());
        row("target", self.target_words());
        let revision = self.recipe("target")["revision"].as_str();
        if let (Some(revision), Some(_)) = (revision, self.target()) {
            row(
                "revision of the target",
                format!("`{}`", printable(revision)),
            );
        }
        if let Some(sha256) = target["sha256"].as_str() {
            row("SHA-256 of the target", format!("`{}`", printable(sha256)));
        }
        text
    }

    fn how_trained(&self) -> String {
        let mut text = String::from("\n## Training\n\n");
        let Some(recipe) = self.provenance["recipe"]["recipe"].as_str() else {
            text.push_str("It was not trained by the program that wrote this folder");
            if let Some(before) = self.before() {
                _ = write!(text, ", but converted from {}", before.words());
            }
            text.push_str(".\n");
            return text;
        };
        _ = write!(
            text,
            "Recipe `{}` of [spectrain]({HOME})",
            printable(recipe)
        );
        if let Some(version) = self.provenance["spectrain"].as_str() {
            _ = write!(text, " {}", printable(version));
        }
        text.push_str(&self.lengths());
        text.push_str(".\n");
        if let Some(before) = self.before() {
            let words = before.words();
            _ = writeln!(text, "\nThe training started from the weights of {words}.");
        }
        let prepared = &self.provenance["prepared"];
        if let Some(samples) = prepared["kept"].as_u64() {
            let [tokens, trained] =
                ["tokens", "trained_tokens"].map(|key| prepared[key].as_u64().unwrap_or(0));
            _ = writeln!(
                text,
                "\nThe data: {samples} samples of {tokens} tokens, {trained} of them trained on."
            );
        }
        if self.recipe("regenerate").is_object() {
            text.push_str("\nThe answers are the target's own (`[regenerate]`).\n");
        }
        text.push_str(&self.data_list());
        text.push_str("\nThe whole recipe is in `config.json`, under `spectrain.provenance`.\n");
        text
    }

    /// How long it was trained in each stage, and which of the last one's weights were kept.
    fn lengths(&self) -> String {
        let trainings = self.trainings();
        let several = trainings.len() > 1;
        let told = trainings.iter().filter_map(|(stage, train)| {
            let mut length = length(train)?;
            if let Some(end) = self.provenance["training"][ENDED][stage.unwrap_or(TRAIN)].as_u64() {
                _ = write!(length, ", ended by `patience` at step {end}");
            }
            Some(match stage {
                Some(stage) if several => format!("`{}`, {length}", printable(stage)),
                _ => length,
            })
        });
        let told: Vec<String> = told.collect();
        let Some((_, last)) = trainings.last().filter(|_| !told.is_empty()) else {
            return String::new();
        };
        let lead = if several { ", in stages: " } else { ", " };
        let mut text = format!("{lead}{}", told.join("; "));
        let kept = &self.provenance["training"]["step"];
        if let Some(step) = kept.as_u64().filter(|_| *kept != last["steps"]) {
            _ = write!(text, ", of which the weights of step {step} are kept");
        }
        text
    }

    /// The settings of each stage of the training but those of no step, in order, with its name where the recipe has several.
    fn trainings(&self) -> Vec<(Option<&str>, &Value)> {
        let stages = self.recipe("stages").as_object();
        let Some(stages) = stages.filter(|stages| !stages.is_empty()) else {
            return vec![(None, self.recipe("train"))];
        };
        let trained = stages.iter().filter(|(_, train)| train["steps"] != 0);
        // A recipe is written with its stages by their names, which is their order.
        trained
            .map(|(stage, train)| (Some(stage.as_str()), train))
            .collect()
    }

    fn data_list(&self) -> String {
        let (sources, own) = self.sources();
        let datasets = self.provenance["datasets"].as_array();
        let mut text = String::new();
        if sources.is_empty() {
            if self.recipe("synthetic").is_object() {
                text.push_str("\nThe data are made by the program (`[synthetic]`).\n");
            }
            return text;
        }
        text.push('\n');
        let known = |address: &str| {
            let mut datasets = datasets.into_iter().flatten();
            datasets.find(|data| data["address"] == address && data["key"] == "data.train")
        };
        for origin in &sources {
            let address = match origin {
                Origin::Path(_) => continue,
                Origin::Hub(address) => address.clone(),
                Origin::Preset(preset) => preset.address(),
            };
            _ = write!(
                text,
                "- [`{}`](https://huggingface.co/datasets/{0})",
                address.id
            );
            if let Some(data) = known(&address.to_string()) {
                let of = |key: &str| printable(data[key].as_str().unwrap_or_default());
                let (config, split, commit) = (of("config"), of("split"), of("commit"));
                _ = write!(text, ", `{config}/{split}` at commit `{commit}`");
            }
            text.push('\n');
        }
        if own > 0 {
            let files = if own == 1 {
                "a local file or folder"
            } else {
                "local files and folders"
            };
            _ = writeln!(text, "- {files}");
        }
        text
    }

    fn accepted(&self) -> String {
        let mut text = String::from("\n## Acceptance\n\n");
        let table = self.report.map(by_dataset).unwrap_or_default();
        if table.is_empty() {
            text.push_str("It has not been evaluated yet.\n");
            return text;
        }
        text.push_str(
            "τ is the mean number of tokens for each pass of the target, with the one that the target adds itself; α is the share \
             of drafted tokens that it accepts, of those that it judges: it judges none behind one that it has rejected. Brackets \
             hold 95 % intervals over prompts.\n\n",
        );
        text.push_str(&table);
        if let Some(known) = self.report.and_then(|report| report.known_prompts) {
            _ = writeln!(text, "\n{known}.");
        }
        if let Some(chose) = self.report.and_then(|report| report.choosing_prompts) {
            _ = writeln!(text, "\n{chose}.");
        }
        if let Some(report) = self
            .report
            .filter(|report| report.lossless.greedy_tokens > 0)
        {
            let found = &report.lossless;
            let differ = found.greedy_mismatches;
            _ = writeln!(
                text,
                "\nOf {} greedy outputs {differ} differ from those of the target alone.",
                found.greedy_outputs
            );
        }
        text
    }

    fn serving(&self) -> String {
        let mut text = String::from("\n## Serving\n\n");
        let names = match self.target() {
            Some(_) => format!("`{DRAFTER}` is this folder, or its id on the hub.\n"),
            None => format!(
                "`{DRAFTER}` is this folder, or its id on the hub; `{TARGET}` is the folder of the target.\n"
            ),
        };
        text.push_str(&names);
        text.push_str("\n```sh\n");
        for line in &self.facts.launch {
            _ = writeln!(text, "{}", printable(line));
        }
        text.push_str("```\n");
        let target = self.target().unwrap_or(TARGET);
        _ = writeln!(
            text,
            "\n`spectrain evaluate --target {target} --drafter {DRAFTER}` measures it on prompts of your own."
        );
        text
    }

    fn licence(&self) -> String {
        let said = match self.given_licence() {
            Some(licence) => format!("`{}`.", printable(licence)),
            None => "None was given: its maker has not said what others may do with these weights."
                .to_owned(),
        };
        let beside = match self.before() {
            Some(before) => format!(
                "of the target, of the data and of {}, with whose weights it began,",
                before.words()
            ),
            None => "of the target and of the data".to_owned(),
        };
        format!("\n## Licence\n\n{said} The licences {beside} hold beside it.\n")
    }

    fn citation(&self) -> String {
        let version = self.provenance["spectrain"].as_str();
        let version = printable(version.unwrap_or(env!("CARGO_PKG_VERSION")));
        let title = format!("{} drafter for {}", self.called(), self.target_words());
        let title = title.replace('`', "");
        let made = match self.provenance["recipe"].is_object() {
            true => "trained",
            false => "converted",
        };
        format!(
            "\n## Citation\n\n```bibtex\n@misc{{drafter,\n  title = {{{title}}},\n  note = {{{made} with spectrain {version}}},\n  \
             url = {{{HOME}}}\n}}\n```\n\nPlease cite the paper of the method too, which the documentation of spectrain names.\n"
        )
    }
}

/// How long a training is, as its settings say it.
fn length(train: &Value) -> Option<String> {
    let batches = train["gradient_accumulation"].as_u64().unwrap_or(1);
    let tokens = train["batch_tokens"].as_u64()? * batches;
    let most = match train["patience"].is_null() {
        true => "",
        false => "at most ",
    };
    Some(match train["steps"].as_u64() {
        Some(1) => format!("1 step of {tokens} tokens"),
        Some(steps) => format!("{most}{steps} steps of {tokens} tokens"),
        None => {
            let epochs = train["epochs"].as_f64()?;
            let plural = if epochs == 1.0 { "" } else { "s" };
            format!("{most}{epochs} epoch{plural} in steps of {tokens} tokens")
        }
    })
}

/// What the manifest of a stage says of a folder's card.
pub fn recorded(part: &Value) -> Option<Facts> {
    serde_json::from_value(part["card"].clone()).ok()
}

/// What the provenance says of the data, by what the stage `prepare` recorded.
pub fn of_data(prepared: &Value) -> [(&'static str, Value); 2] {
    let train = &prepared["train"];
    let counts = json!({
        "kept": train["kept"],
        "tokens": train["tokens"],
        "trained_tokens": train["trained_tokens"],
    });
    [
        ("prepared", counts),
        ("datasets", prepared["datasets"].clone()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_checkpoints::eagle3::EAGLE3;

    use crate::families::registry::RECIPES;
    use crate::recipe::read::read;

    #[test]
    fn a_training_is_as_long_as_its_settings_say() {
        let of = |train: Value| length(&train);
        let steps = of(json!({"steps": 6, "batch_tokens": 128, "gradient_accumulation": 2}));
        assert_eq!(steps.unwrap(), "6 steps of 256 tokens");
        let epochs = of(json!({"epochs": 2.5, "batch_tokens": 128}));
        assert_eq!(epochs.unwrap(), "2.5 epochs in steps of 128 tokens");
        let one = of(json!({"epochs": 1.0, "batch_tokens": 128}));
        assert_eq!(one.unwrap(), "1 epoch in steps of 128 tokens");
        assert_eq!(of(json!({"batch_tokens": 128})), None);
        assert_eq!(of(Value::Null), None);
    }

    #[test]
    fn a_training_that_its_validations_ended_says_where() {
        let provenance = json!({
            "recipe": {"train": {"steps": 1000, "batch_tokens": 128, "patience": 3}},
            "training": {"step": 300, "ended": {"train": 600}},
        });
        let lengths = |provenance: &Value| {
            let card = Card {
                dialect: &EAGLE3,
                facts: &Facts::default(),
                provenance,
                report: None,
            };
            card.lengths()
        };
        let expected = ", at most 1000 steps of 128 tokens, ended by `patience` at step 600, of which the weights of step 300 are kept";
        assert_eq!(lengths(&provenance), expected);
        // Of several stages not the last one alone.
        let train = &provenance["recipe"]["train"];
        let provenance = json!({
            "recipe": {"stages": {"align": train, "refine": train}},
            "training": {"step": 1000, "ended": {"align": 600}},
        });
        let expected = ", in stages: `align`, at most 1000 steps of 128 tokens, ended by `patience` at step 600; `refine`, at most \
                        1000 steps of 128 tokens";
        assert_eq!(lengths(&provenance), expected);
    }

    #[test]
    fn both_models_are_named_that_a_drafter_comes_from() {
        let provenance = json!({
            "target": {"model": "some/target"},
            "imported": {"from": "some/drafter", "hub": "some/drafter"},
        });
        let card = Card {
            dialect: &EAGLE3,
            facts: &Facts::default(),
            provenance: &provenance,
            report: None,
        };
        let yaml = card.front_matter().unwrap();
        let both = "\nbase_model:\n- \"some/target\"\n- \"some/drafter\"\n";
        assert!(yaml.contains(both), "{yaml}");
    }

    #[test]
    fn a_recipe_is_written_with_its_stages_in_their_order() {
        let mut staged = 0;
        for recipe in RECIPES {
            let text = format!(
                "recipe = {:?}\nname = \"run\"\n[synthetic]\n{}",
                recipe.name, recipe.trials[0]
            );
            let read = read(&text, &[]).unwrap();
            let Some(stages) = read.json["stages"].as_object().filter(|s| !s.is_empty()) else {
                continue;
            };
            assert!(stages.keys().eq(read.method.stages()), "{stages:?}");
            staged += 1;
        }
        assert!(staged >= 2, "{staged}");
    }
}
