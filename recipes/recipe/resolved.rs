//! A recipe with every default filled in.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::known::dialect_of;
use spectrain_checkpoints::known::open_folder;
use spectrain_data::mask::Masking;
use spectrain_models::TargetSpec;
use spectrain_train::{Defaults, TrainConfig};

use crate::errors::with_causes;
use crate::families::footprint::Footprint;
use crate::families::method::{Method, left_out};
use crate::recipe::inline::inline;
use crate::recipe::problem::{Problem, setting};
use crate::recipe::shipped::Origin;
use crate::recipe::tables::{
    DataTable, EvaluateTable, ExportTable, FeaturesTable, RegenerateTable, SyntheticTable,
    TargetTable, TrackTable,
};
use crate::runs::run_folder::identity::check_name;
use crate::runtime::{start_at, target};

/// Tensors with an entry for each token of a draft vocabulary.
const VOCABULARY_MAPS: [&str; 2] = ["d2t", "token_map"];

/// A recipe with every default filled in, without the types of its drafter and objective.
pub struct ResolvedRecipe {
    /// Where it was read; nothing of a text that is no user's file.
    pub origin: Option<Origin>,
    /// [`crate::families::registry::Recipe::name`].
    pub recipe: String,
    /// Folder under `runs/`.
    pub name: String,
    /// See [`crate::recipe::file::File::seed`].
    pub seed: u64,
    /// See [`crate::recipe::file::File::start`].
    pub start: Option<PathBuf>,
    /// The `[target]` table.
    pub target: TargetTable,
    /// The `[synthetic]` table.
    pub synthetic: Option<SyntheticTable>,
    /// The `[regenerate]` table.
    pub regenerate: Option<RegenerateTable>,
    /// The `[data]` table.
    pub data: DataTable,
    /// The `[features]` table.
    pub features: FeaturesTable,
    /// The `[train]` table.
    pub train: TrainConfig,
    /// The tables in `[stages]` of a recipe that trains in several stages: `[train]` with what is changed for each.
    pub stages: BTreeMap<String, TrainConfig>,
    /// The `[export]` table.
    pub export: ExportTable,
    /// The `[evaluate]` table.
    pub evaluate: EvaluateTable,
    /// The `[track]` table.
    pub track: Option<TrackTable>,
    /// The drafter and the objective with their tables.
    pub method: Box<dyn Method>,
    /// The defaults of the tables that say what is trained and how.
    pub defaults: fn() -> Defaults,
    /// The whole recipe as TOML.
    pub toml: String,
    /// The same as JSON, by table and key.
    pub json: Value,
}

/// The name of a family behind its article.
fn with_article(family: &str) -> String {
    // It is read letter by letter.
    let is_spelt = family.starts_with("MTP");
    let article = match family.starts_with(['A', 'E', 'I', 'O', 'U']) || is_spelt {
        true => "an",
        false => "a",
    };
    format!("{article} {family}")
}

/// Settings of the objective that make no sense.
fn of_objective(error: anyhow::Error) -> Problem {
    Problem::new("objective", with_causes(&error))
}

impl fmt::Debug for ResolvedRecipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.toml)
    }
}

impl ResolvedRecipe {
    /// The keys that were left out and are read nevertheless, by their tables, with what is read.
    pub(crate) fn left_out(&self) -> Vec<(String, String, Value)> {
        let of_method = self.method.left_out().into_iter();
        let of_method = of_method.map(|(table, key, value)| (table.to_owned(), key, value));
        let train = std::iter::once(("train".to_owned(), &self.train));
        let stages = self.stages.iter();
        let stages = stages.map(|(stage, training)| (format!("stages.{stage}"), training));
        let trainings = train.chain(stages).flat_map(|(table, training)| {
            let left = left_out(&json!(training), &json!(training.explicit()));
            left.into_iter()
                .map(move |(key, value)| (table.clone(), key, value))
        });
        of_method.chain(trainings).collect()
    }

    /// The keys that are set and that nothing reads, by their tables, each with why.
    pub(crate) fn unread(&self) -> Vec<(&'static str, &'static str, &'static str)> {
        type Unread = (&'static str, &'static str);
        let of = |table: &'static str| move |(key, why): Unread| (table, key, why);
        let drafter = self.method.idle_keys().into_iter().map(of("drafter"));
        let objective = self.method.unread().into_iter().map(of("objective"));
        drafter.chain(objective).collect()
    }

    /// The whole recipe as TOML, with comments that say what is read in the place of keys that were left out; without them where a
    /// line within some text of it looks like the name of a table.
    pub(crate) fn described(&self) -> String {
        let left = self.left_out();
        let mut text = String::new();
        for line in self.toml.lines() {
            text.push_str(line);
            text.push('\n');
            let header = line.strip_prefix('[');
            let table = header.and_then(|line| line.strip_suffix(']'));
            for (_, key, value) in left.iter().filter(|(of, ..)| Some(&**of) == table) {
                text.push_str(&format!("# left out: {key} = {}\n", inline(value)));
            }
        }
        let read = |text: &str| text.parse::<toml::Table>().ok();
        match read(&text) == read(&self.toml) {
            true => text,
            false => self.toml.clone(),
        }
    }

    /// The hub id or folder of the target; the folder that `[synthetic]` makes is not known here.
    pub fn model(&self) -> Option<&str> {
        self.target.model.as_deref()
    }

    /// The folder of the target, given or downloaded now: whole where it is computed here. None where `[synthetic]` makes it.
    pub fn target_folder(&self) -> anyhow::Result<Option<PathBuf>> {
        let resolve = match self.features.mode.computes_target() {
            true => target::resolve,
            false => target::resolve_parts,
        };
        let revision = self.target.revision.as_deref();
        self.model()
            .map(|model| resolve(model, revision))
            .transpose()
    }

    /// Fails unless `start` is there and of this recipe's kind, which of a drafter of the hub is known once it is on this machine.
    pub fn check_start(&self) -> anyhow::Result<()> {
        let Some(folder) = self.start.as_deref().and_then(start_at::here) else {
            return Ok(());
        };
        let model = open_folder(&folder).context("`start`")?;
        let (found, expected) = (dialect_of(&model)?.family, self.method.family());
        if found == expected {
            Ok(())
        } else {
            bail!(
                "`start`: expected {} drafter for `recipe = \"{}\"`, found {} drafter in `{}`",
                with_article(expected),
                self.recipe,
                with_article(found),
                folder.display()
            )
        }
    }

    /// Sizes of the drafter for a target of these sizes; that of `start` keeps its draft vocabulary where none is asked for.
    pub(crate) fn footprint(&self, target: &TargetSpec) -> anyhow::Result<Footprint> {
        let footprint = self.method.footprint(target)?;
        let asked = footprint.draft_vocab != target.vocab as u64;
        let start = self.start.as_deref().filter(|_| !asked);
        let Some(folder) = start.and_then(start_at::here) else {
            return Ok(footprint);
        };
        let model = open_folder(folder).context("`start`")?;
        let map = VOCABULARY_MAPS
            .iter()
            .find_map(|name| model.info(name).ok());
        let kept = map.and_then(|map| map.shape.first().copied());
        Ok(match kept {
            Some(kept) => footprint.with_vocabulary(kept as u64),
            None => footprint,
        })
    }

    /// How a stage trains.
    pub fn training(&self, stage: &str) -> &TrainConfig {
        self.stages.get(stage).unwrap_or(&self.train)
    }

    /// The training stages in order, without those of no step.
    pub fn training_stages(&self) -> Vec<&'static str> {
        let stages = self.method.stages().iter().copied();
        stages
            .filter(|stage| self.training(stage).steps > 0)
            .collect()
    }

    /// The training stage before another.
    pub fn trained_before(&self, stage: &str) -> Option<&'static str> {
        let stages = self.training_stages();
        let place = stages.iter().position(|&name| name == stage)?;
        Some(stages[place.checked_sub(1)?])
    }

    /// Whether a training stage begins with weights that were trained for what it trains; a later stage has another objective than
    /// the weights that it begins with.
    pub(crate) fn begins_trained(&self, stage: &str) -> bool {
        self.start.is_some() && self.trained_before(stage).is_none()
    }

    /// The training stage whose drafter the later stages take.
    pub fn last_trained(&self) -> &'static str {
        match self.training_stages().last() {
            Some(stage) => stage,
            None => unreachable!("a recipe has a training stage"),
        }
    }

    fn check_training(&self) -> Result<(), Problem> {
        let trains_in_one = self.stages.is_empty();
        let stages = match trains_in_one {
            true => self.method.stages().to_vec(),
            false => self.training_stages(),
        };
        if stages.is_empty() {
            let message = "expected steps in one of the stages, found 0 in each";
            return Err(Problem::new("train.steps", message));
        }
        for stage in stages {
            let checked = self.training(stage).check(self.data.max_length);
            checked.map_err(|error| self.of_stage(stage, setting(error)))?;
        }
        Ok(())
    }

    /// What is wrong with `[train]` as a stage has it, by the key that says it for this stage.
    fn of_stage(&self, stage: &str, problem: Problem) -> Problem {
        let key = match self.stages.is_empty() {
            true => problem.key,
            false => problem.key.replacen("train", &format!("stages.{stage}"), 1),
        };
        Problem { key, ..problem }
    }

    /// Checks what training needs, and what was trained does without: commands that only read a run do not ask for it.
    ///
    /// # Errors
    /// Validations of a stage would find nothing by which the best weights are chosen, or the drafter could not write in training.
    pub(crate) fn check_trainable(&self) -> Result<(), Problem> {
        for stage in self.training_stages() {
            self.check_measured(stage)?;
        }
        self.check_on_policy()
    }

    /// Checks that the validations of a stage find something by which the best weights are chosen.
    fn check_measured(&self, stage: &str) -> Result<(), Problem> {
        if self.training(stage).validate_samples > 0 {
            return Ok(());
        }
        let drafts = self.method.drafts(stage).map_err(of_objective)?;
        let is_answered = self.features.mode.computes_target();
        let is_answered = is_answered || self.evaluate.temperatures.contains(&0.0);
        let why = match (drafts, is_answered) {
            (true, true) => return Ok(()),
            (false, _) => "its drafter does not draft yet",
            (true, false) => {
                "they take the answers at temperature 0, and `evaluate.temperatures` has no 0"
            }
        };
        Err(self.unmeasured(stage, why))
    }

    /// Validations of a stage that measure no loss, and do not count τ either: `why` says for what reason.
    pub(crate) fn unmeasured(&self, stage: &str, why: &str) -> Problem {
        let message = format!(
            "expected at least 1, as validations of the stage `{stage}` do not count τ, which would choose the best weights without \
             it: {why}; found 0"
        );
        let problem = Problem::new("train.validate_samples", message);
        // A stage that says nothing itself has what `[train]` says.
        match self.train.validate_samples {
            0 => problem,
            _ => self.of_stage(stage, problem),
        }
    }

    /// Checks, where the drafter writes in training, that there are replies to write anew, and the target to judge them.
    fn check_on_policy(&self) -> Result<(), Problem> {
        let mode = &self.json["features"]["mode"];
        let why = match (self.features.mode.computes_target(), self.data.mask) {
            (false, _) => format!(
                "`features.mode = {mode}`, where the target is not here to judge what the drafter writes"
            ),
            (true, Masking::All) => {
                "`data.mask = \"all\"`, where nothing tells the replies, which the drafter writes anew, from their prompts".to_owned()
            }
            (true, Masking::Assistant | Masking::LastTurn) => return Ok(()),
        };
        for stage in self.training_stages() {
            let fraction = self.method.on_policy_fraction(stage);
            let fraction = fraction.map_err(of_objective)?;
            if fraction > 0.0 {
                let message = format!("expected 0 with {why}, found {fraction}");
                return Err(Problem::new("objective.on_policy.fraction", message));
            }
        }
        Ok(())
    }

    /// Checks what the types cannot say.
    pub(super) fn check(&self) -> Result<(), Problem> {
        check_name(&self.name).map_err(|error| Problem::new("name", error.to_string()))?;
        let given = [
            ("target.model", self.target.model.is_some()),
            ("data.train", self.data.train_sources().is_some()),
            ("data.eval", self.data.eval.is_some()),
            ("data.held_out", self.data.held_out.is_some()),
        ];
        for (key, given) in given {
            let message = match (&self.synthetic, given) {
                (Some(_), true) => {
                    "must be absent beside `[synthetic]`, which makes the target and the data"
                        .into()
                }
                // Without them some of the training data is the evaluation's.
                (None, false) if ["data.eval", "data.held_out"].contains(&key) => continue,
                (None, false) => {
                    format!("is missing; set it in the file or with `--set {key}=...`")
                }
                _ => continue,
            };
            return Err(Problem::new(key, message));
        }
        let within = |table| move |problem: Problem| problem.within(table);
        if let Some(synthetic) = &self.synthetic {
            synthetic.check().map_err(within("synthetic"))?;
        }
        if let Some(regenerate) = &self.regenerate {
            let checked = regenerate.check(&self.data.template_variables);
            checked.map_err(within("regenerate"))?;
        }
        self.data.check().map_err(within("data"))?;
        self.check_training()?;
        self.evaluate.check().map_err(within("evaluate"))?;
        if let Some(own) = self.model()
            && self.evaluate.targets.iter().any(|target| target == own)
        {
            let message = format!("expected targets other than `target.model`, found `{own}`");
            return Err(Problem::new("evaluate.targets", message));
        }
        self.features.check().map_err(within("features"))?;
        if let Some(track) = &self.track {
            track.check().map_err(within("track"))?;
        }
        self.export.check().map_err(within("export"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_have_their_article() {
        let names = ["EAGLE-3", "Medusa", "MTP", "P-EAGLE", "language model"];
        let found = names.map(with_article).join(", ");
        let expected = "an EAGLE-3, a Medusa, an MTP, a P-EAGLE, a language model";
        assert_eq!(found, expected);
    }
}
