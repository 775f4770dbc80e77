//! What would stop a run, found before anything heavy is done: by the run itself, and by its plan.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Error, Result, anyhow, bail};
use serde_json::Value;
use spectrain_checkpoints::ModelFolder;
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::hub::{Repository, check_model};
use spectrain_checkpoints::known::{dialect_of, open_folder};
use spectrain_data::template::ChatTemplate;

use crate::errors::{Misuse, with_causes};
use crate::families::described::reading_for;
use crate::families::model_at_start;
use crate::families::target_traits::TargetTraits;
use crate::plan::{offline, samples, target_sizes};
use crate::recipe::inline::assigned;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::{Engine, ExportTable, FeatureMode};
use crate::runs::run_folder::{
    self, Existing, RunFolder, RunName, StageState, Wanted, is_held, manifest_in, stage_state,
};
use crate::runtime::capture::servers::check_folders;
use crate::runtime::pair::with_way_out;
use crate::runtime::server::client::Client;
use crate::runtime::sizes::{folder_of, traits_of};
use crate::runtime::text::{Text, longer_texts};
use crate::runtime::weights::check_weights;
use crate::runtime::{device, prompt_sets, start_at, target};
use crate::stages::drafter_at::DrafterAt;
use crate::stages::order;
use crate::stages::settings::{effect, settings};
use crate::stages::stage::Stage;

/// Fails with the first of them.
fn first(refusals: Vec<Error>) -> Result<()> {
    refusals.into_iter().next().map_or(Ok(()), Err)
}

/// What a check has found wrong with a value of the recipe, by itself or beside its target.
fn of_value(checked: Result<()>) -> Result<()> {
    checked.map_err(|error| Misuse(with_causes(&error)).into())
}

/// What is asked for.
#[derive(Clone, Copy)]
pub struct Asked<'a> {
    /// The recipe.
    pub recipe: &'a ResolvedRecipe,
    /// The folder of runs.
    pub runs: &'a Path,
    /// What is done with a run of this name that is there.
    pub existing: Existing,
    /// The device's name.
    pub device: &'a str,
    /// How many processes train together, each on such a device.
    pub ranks: usize,
    /// The stages that are planned; all where none is named.
    pub only: &'a [String],
    /// Where the parts of an array job are, as `--parts` says it.
    pub parts: Option<&'a str>,
}

impl<'a> Asked<'a> {
    /// The folder it would run in.
    pub fn run(&self) -> RunName<'a> {
        RunName {
            root: self.runs,
            name: &self.recipe.name,
            recipe: &self.recipe.recipe,
        }
    }

    /// Everything that would stop the run and needs no reading of weights or data, the first thing first.
    pub fn refusals(&self) -> Vec<Error> {
        let built = device::check_built(self.device).err();
        built.into_iter().chain(self.refusals_planned()).collect()
    }

    /// The same but for the device: a plan is often made where it is not.
    fn refusals_planned(&self) -> Vec<Error> {
        let mut refusals = self.refusals_anywhere();
        let start = self.start_on_hub().and(self.recipe.start.as_deref());
        refusals.extend(offline::refusals(self.recipe, start));
        refusals
    }

    /// The same but for what is only so here, what this program was built without and what is not on this machine: it may be
    /// trained elsewhere.
    fn refusals_anywhere(&self) -> Vec<Error> {
        let trainable = self.recipe.check_trainable();
        let checks = [
            of_value(trainable.map_err(Error::from)),
            self.check_start(),
            of_value(self.check_target_type()),
            run_folder::check(self.run(), self.existing),
            self.check_models(),
            of_value(self.check_drafter()),
            self.check_drafter_model(),
            of_value(self.check_drafts()),
            of_value(self.check_training_free()),
            of_value(self.check_features()),
            self.check_computed(),
            self.check_weights(),
            self.check_addresses(),
        ];
        let checks = checks.into_iter().chain(self.check_files());
        checks.filter_map(Result::err).collect()
    }

    /// That this program does not run on the device for which it plans, and what to do about it.
    pub(super) fn device_elsewhere(&self) -> Option<String> {
        let missing = device::check_built(self.device).err()?;
        Some(format!(
            "{missing}; until then it plans for this device and refuses to run on it"
        ))
    }

    /// That another process uses the run, which refuses it until that process has ended.
    pub(super) fn in_use(&self) -> Option<String> {
        let run = self.runs.join(&self.recipe.name);
        is_held(&run).then(|| {
            format!(
                "`{}` is in use by another process: until that has ended, the run is refused, and what is said of its stages changes",
                run.display()
            )
        })
    }

    /// What a plan is refused for: the refusals, but for the device's, and those `of_hub`, or where there is none, the first
    /// failures.
    pub(super) fn all_refusals(&self, of_hub: Vec<Error>) -> Vec<Error> {
        let mut refusals = self.refusals_planned();
        refusals.extend(of_hub);
        if refusals.is_empty() {
            refusals = self.first_failures();
        }
        refusals
    }

    /// What a plan says beyond [`refusals`](Self::refusals), which a run comes to in its first minutes: whether its folder can be
    /// written, and whether the data gives samples.
    pub fn first_failures(&self) -> Vec<Error> {
        let run = self.runs.join(&self.recipe.name);
        let mut found = Vec::from_iter(run_folder::check_writable(&run).err());
        found.extend(samples::failures(self.recipe));
        found
    }

    /// Fails on the first thing in the data that would stop the run.
    pub fn check_samples(&self) -> Result<()> {
        first(samples::failures(self.recipe))
    }

    /// Fails on the first thing that would stop the run.
    pub fn check(&self) -> Result<()> {
        first(self.refusals())
    }

    /// The same of a run on another machine, whose program may have been built with what this one was not.
    pub fn check_anywhere(&self) -> Result<()> {
        first(self.refusals_anywhere())
    }

    /// What does not stop the run and should be known before it.
    pub fn warnings(&self) -> Vec<String> {
        let found = [
            self.longer_texts(),
            self.unserved(),
            self.unloaded(),
            self.shorter_chains(),
            self.unclear_start(),
            self.unusual_heads(),
            self.unrounded(),
        ];
        let found = found.into_iter().flatten().chain(self.remarked());
        found.chain(self.unread()).collect()
    }

    /// What the export will remark on before its commands, such as versions of engines, as far as the target's sizes are known.
    fn remarked(&self) -> Vec<String> {
        let (recipe, target) = (self.recipe, self.target_traits());
        let found = target_sizes::of(recipe).map(|sizes| {
            let remarked = recipe
                .method
                .remarked(&recipe.export.to, &sizes.spec, &target);
            // What is wrong with the settings is refused elsewhere.
            remarked.unwrap_or_default()
        });
        let remarks = found.unwrap_or_default().into_iter();
        remarks
            .map(|remark| format!("serving this drafter: {remark}"))
            .collect()
    }

    /// That keys of the drafter and the objective are set and not read.
    fn unread(&self) -> Vec<String> {
        let unread = self.recipe.unread().into_iter();
        unread
            .map(|(table, key, why)| format!("`{table}.{key}` is set and nothing reads it: {why}"))
            .collect()
    }

    /// Whether an engine is known to load the drafter, as far as the target's sizes are known.
    pub fn loads(&self, engine: Engine) -> bool {
        let found = self.engines(&[engine]);
        found.is_ok_and(|[unknown, _]| unknown.is_empty())
    }

    /// Those of these engines that are not known to load the drafter, and all that are.
    fn engines(&self, to: &[Engine]) -> Result<[Vec<Engine>; 2]> {
        let (recipe, sizes) = (self.recipe, target_sizes::of(self.recipe));
        let Some(sizes) = sizes else {
            return Ok(Default::default());
        };
        let target = self.target_traits();
        recipe.method.check_export(to, &sizes.spec, &target)
    }

    /// That an engine which the recipe names would not load the drafter. The usual ones, which most recipes do not name, are
    /// remarked upon when the drafter is written, unless no engine at all would load it.
    fn unloaded(&self) -> Option<String> {
        let is_usual = self.recipe.export.to == ExportTable::default().to;
        let names = |engines: &[Engine]| {
            let mut names: Vec<&'static str> = engines.iter().map(|engine| engine.key()).collect();
            names.dedup();
            names
        };
        let quoted = |names: &[&str]| format!("`{}`", names.join("`, `"));
        let [unknown, known] = self.engines(&self.recipe.export.to).ok()?;
        let mut keys: Vec<(String, Value)> = Vec::new();
        for key in unknown.iter().flat_map(|engine| self.against(*engine)) {
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        let keys = match keys.is_empty() {
            true => String::new(),
            false => format!(" ({})", assigned(&keys)),
        };
        let [unknown, known] = [unknown, known].map(|engines| names(&engines));
        let (are, them) = match unknown.len() {
            1 => ("is", "it"),
            _ => ("are", "them"),
        };
        let others = match known.is_empty() {
            true => "no other engine is known to load it".to_owned(),
            false => format!("these do: {}", quoted(&known)),
        };
        // That none does, whatever these settings are, is said by itself.
        let is_new = !known.is_empty() || self.unserved().is_none();
        let is_worth = !is_usual || known.is_empty();
        let is_told = is_worth && !unknown.is_empty() && is_new;
        is_told.then(|| {
            format!(
                "`export.to`: {} {are} not known to load a drafter with these settings{keys}, and no command for {them} will be \
                 printed; {others}",
                quoted(&unknown)
            )
        })
    }

    /// The keys of `[drafter]` that keep an engine from loading the drafter, each by itself, with their values.
    pub fn against(&self, engine: Engine) -> Vec<(String, Value)> {
        let target = self.target_traits();
        let found = target_sizes::of(self.recipe).map(|sizes| {
            let method = &self.recipe.method;
            method.against(engine, &sizes.spec, &target)
        });
        // What is wrong with the settings is refused elsewhere.
        found.and_then(Result::ok).unwrap_or_default()
    }

    /// That the drafter's heads are of a width that the recipe names and engines' kernels may not take.
    fn unusual_heads(&self) -> Option<String> {
        const STEP: u64 = 8;
        const LEAST: u64 = 32;
        const MOST: u64 = 256;
        let drafter = &self.recipe.json["drafter"];
        let widths = [
            ("drafter.d_head", &drafter["d_head"]),
            ("drafter.fresh.d_head", &drafter["fresh"]["d_head"]),
        ];
        widths.into_iter().find_map(|(key, width)| {
            let width = width.as_u64().filter(|&width| width > 0)?;
            let is_usual = (LEAST..=MOST).contains(&width) && width.is_multiple_of(STEP);
            (!is_usual).then(|| {
                format!(
                    "`{key} = {width}`: engines' kernels take multiples of {STEP} from {LEAST} to {MOST}, so that an engine may refuse \
                     this drafter"
                )
            })
        })
    }

    /// That bf16 is asked of a processor that multiplies in f32 all the same.
    fn unrounded(&self) -> Option<String> {
        let held = device::target_type(self.recipe.target.dtype, self.device);
        (!held.precision.is_here()).then(|| {
            "`target.dtype = \"bf16\"`: this processor does not multiply in bf16 faster than in f32 (it has neither AMX, which the system lets \
             programs use, nor AVX512-BF16 of AMD's): all is computed in f32"
                .into()
        })
    }

    /// That no engine would serve the drafter, beside any target or, as its configuration says, that on this machine.
    fn unserved(&self) -> Option<String> {
        self.recipe.method.unserved(&self.target_traits()).ok()?
    }

    /// What engines go by of the target, where that is on this machine.
    fn target_traits(&self) -> TargetTraits {
        let revision = self.recipe.target.revision.as_deref();
        let model = self.recipe.model();
        let known = model.and_then(|model| traits_of(model, revision));
        known.unwrap_or_default()
    }

    /// That texts are longer than the target was made for.
    fn longer_texts(&self) -> Option<String> {
        let positions = target_sizes::of(self.recipe)?.spec.max_positions;
        longer_texts("data.max_length", self.recipe.data.max_length, positions)
    }

    /// What the stage `prepare` will say of the target and of the variables of its chat template, where these are on this machine.
    pub(super) fn of_text(&self) -> Vec<String> {
        let Some(folder) = self.target_folder() else {
            return Vec::new();
        };
        // What cannot be read of it is refused elsewhere.
        let Ok(text) = Text::of(&folder, &self.recipe.data) else {
            return Vec::new();
        };
        let template = text.template.as_ref();
        let unread = template.map(ChatTemplate::unread_variables);
        let unread = unread.unwrap_or_default().into_iter();
        unread.chain(text.endless(&folder)).collect()
    }

    /// Whether training can start from `start`, of which and of the target nothing is downloaded.
    fn check_start(&self) -> Result<()> {
        let recipe = self.recipe;
        self.check_start_named()?;
        recipe.check_start()?;
        let start = recipe.start.as_deref().and_then(start_at::here);
        let (Some(start), Some(sizes)) = (start, target_sizes::of(recipe)) else {
            return Ok(());
        };
        let checked = recipe.method.check_start(&start, &sizes.spec);
        checked.map_err(|refused| match self.other_ways() {
            Some(ways) => anyhow!("{refused:#}; {ways}"),
            None => with_way_out(refused),
        })
    }

    /// Fails where `start` holds no drafter, or is not here and cannot be on the hub: the name of a run, or what is missing in the
    /// folder of runs.
    fn check_start_named(&self) -> Result<()> {
        let Some(start) = self.recipe.start.as_deref() else {
            return Ok(());
        };
        if start.join(CONFIG).is_file() {
            return Ok(());
        }
        if RunFolder::is_run(start) {
            let has_drafter = start_at::here(start).as_deref() != Some(start);
            let run = DrafterAt::Run(start.to_owned());
            return match has_drafter {
                true => Ok(()),
                false => run.folder().map(drop).context("`start`"),
            };
        }
        let found = DrafterAt::find(&start.to_string_lossy(), self.runs);
        match found.context("`start`")? {
            DrafterAt::Run(run) => bail!(
                "`start`: expected a folder or a hub id, found `{}`, the name of a run: give its folder, `{}`",
                start.display(),
                run.display()
            ),
            _ => Ok(()),
        }
    }

    /// The drafter of the hub that training starts from; none where `start` is a folder or is refused.
    pub(super) fn start_on_hub(&self) -> Option<Repository> {
        let start = self.recipe.start.as_deref()?;
        self.check_start_named().ok()?;
        start_at::on_hub(start)
    }

    /// How the folder of `start` is read and how else it can be, where it can be read in several ways.
    fn other_ways(&self) -> Option<String> {
        let start = self.recipe.start.as_deref().and_then(start_at::here)?;
        let reading = reading_for(&target_sizes::of(self.recipe)?.spec);
        let model = open_folder(start).ok()?;
        let meanings = dialect_of(&model).ok()?.meanings(&model, &reading, None);
        match &meanings.ok()?[..] {
            [taken, other, ..] => Some(format!(
                "`{}` can be read in several ways and is read so: {}; another way: {}; `spectrain import` measures which way is \
                 right, and training can start from the run that it makes",
                model.path().display(),
                taken.text,
                other.text
            )),
            _ => None,
        }
    }

    /// That only an import tells how the folder of `start` is to be read.
    fn unclear_start(&self) -> Option<String> {
        // Where it is refused, the error says so.
        self.check_start().ok()?;
        Some(format!("`start`: {}", self.other_ways()?))
    }

    /// Whether the names of targets can be those of models: which are downloaded, and whether they are there, shows later.
    fn check_models(&self) -> Result<()> {
        let further = self.recipe.evaluate.targets.iter().map(String::as_str);
        let own = self.recipe.model().map(|model| ("target.model", model));
        let further = further.map(|model| ("evaluate.targets", model));
        for (key, model) in own.into_iter().chain(further) {
            check_model(model).with_context(|| format!("cannot open the target `{model}`"))?;
            if Path::new(model).is_dir() && !Path::new(model).join(CONFIG).exists() {
                bail!(
                    "`{key}`: the folder `{model}` holds no model: expected `{CONFIG}`, weights in `*.safetensors`, \
                     `tokenizer.json` and `tokenizer_config.json`, found no `{CONFIG}`"
                );
            }
        }
        match self.recipe.model() {
            // Whether the files of all weights are there and whole; of a target that servers have, parts are enough.
            Some(model)
                if self.recipe.features.mode.computes_target()
                    && Path::new(model).join(CONFIG).is_file() =>
            {
                ModelFolder::open(model)
                    .map(drop)
                    .with_context(|| format!("cannot open the target `{model}`"))
            }
            _ => Ok(()),
        }
    }

    /// Whether the addresses of servers are some; nobody is asked there.
    fn check_addresses(&self) -> Result<()> {
        let regenerate = self.recipe.regenerate.as_ref();
        let answering = regenerate.and_then(|table| table.server.as_ref());
        let answering = answering.into_iter().flat_map(|server| server.each());
        let answering = answering.map(|url| ("regenerate.server", url));
        let capturing = self.recipe.target.server.iter();
        let capturing = capturing.map(|url| ("target.server", url));
        for (key, url) in answering.chain(capturing) {
            Client::new(key, url, None, Duration::ZERO)?;
        }
        Ok(())
    }

    fn check_target_type(&self) -> Result<()> {
        let wanted = self.recipe.target.dtype;
        device::check_target_type(wanted, self.device, device::TARGET_DTYPE).map_err(Error::msg)
    }

    /// Whether the drafter's settings fit a target whose sizes need no download.
    fn check_drafter(&self) -> Result<()> {
        let Some(sizes) = target_sizes::of(self.recipe) else {
            return Ok(());
        };
        let method = &self.recipe.method;
        method.capture(&sizes.spec)?;
        self.engines(&self.recipe.export.to)?;
        match method.footprint(&sizes.spec) {
            // What it starts from is no model to start from.
            Err(refused) if refused.is::<spectrain_models::Error>() => Err(refused),
            // Its sizes may be unknown yet.
            _ => Ok(()),
        }
    }

    /// Whether the drafter can start from the model that it names.
    fn check_drafter_model(&self) -> Result<()> {
        match self.recipe.method.model_at_start() {
            Some(start) => model_at_start::check_here(&start, self.target_folder().as_deref()),
            None => Ok(()),
        }
    }

    /// The folder of the target, where it is on this machine: of one that `[synthetic]` has made, where it will not be made anew.
    fn target_folder(&self) -> Option<PathBuf> {
        let recipe = self.recipe;
        if let Some(model) = recipe.model() {
            return folder_of(model, recipe.target.revision.as_deref());
        }
        let run = self.runs.join(&recipe.name);
        let stage = order::of(recipe).into_iter().next()?;
        self.is_noted_as_done(&stage)
            .then(|| run.join(stage.name).join("target"))
    }

    /// Whether the run has done a stage with the recipe's settings and will keep it, as its manifest says: nothing is hashed.
    pub(super) fn is_noted_as_done(&self, stage: &Stage) -> bool {
        let run = self.runs.join(&self.recipe.name);
        let made = manifest_in(&run, stage.name).ok().flatten();
        let (Some(made), Ok(settings)) = (made, settings(self.recipe, stage)) else {
            return false;
        };
        let wanted = Wanted {
            settings: &settings,
            inputs: &made.inputs,
            defaults: &(self.recipe.defaults)(),
            effect,
            ends: &|| Ok(0),
        };
        let state = stage_state(&run, stage.name, wanted);
        self.existing == Existing::Continue && matches!(state, Ok(StageState::Done(_)))
    }

    /// Whether the keys go together that say how what the target computes is had: here, from servers that are named, or from what was
    /// imported.
    fn check_features(&self) -> Result<()> {
        let (recipe, mode) = (self.recipe, self.recipe.features.mode);
        if !recipe.features.from.is_empty()
            && !matches!(mode, FeatureMode::Stored | FeatureMode::Served)
        {
            bail!(
                "`features.from`: expected `features.mode = \"stored\"` or `\"served\"` beside it, found {}",
                recipe.json["features"]["mode"]
            );
        }
        if !mode.is_stored() && !recipe.features.dtype.is_default() {
            bail!(
                "`features.dtype`: expected `features.mode = \"stored\"`, `\"served\"` or `\"imported\"` beside it, found {}",
                recipe.json["features"]["mode"]
            );
        }
        let asks_server = recipe
            .regenerate
            .as_ref()
            .is_none_or(|table| table.server.is_some());
        if !mode.computes_target() && !asks_server {
            bail!(
                "`[regenerate]`: expected the key `server`: with `features.mode = {}` this program does not decode the \
                 target itself; `spectrain data regenerate --capture` gets answers and hidden states from the servers at \
                 once",
                recipe.json["features"]["mode"]
            );
        }
        if mode.computes_target() {
            return self.check_keys(&[], "");
        }
        let (needed, judged_by) = match mode {
            FeatureMode::Imported => (&["features.imported"][..], "the imported texts"),
            _ => (
                &["target.server"][..],
                "the servers' answers to `data.eval`",
            ),
        };
        self.check_keys(needed, judged_by)?;
        match mode {
            FeatureMode::Imported => Ok(()),
            _ => Ok(check_folders(&recipe.target)?),
        }
    }

    /// Whether this program computes the target, where it has to and the target is in a folder.
    fn check_computed(&self) -> Result<()> {
        let folder = self.recipe.model().map(Path::new);
        let folder = folder.filter(|folder| folder.join(CONFIG).exists());
        match folder.filter(|_| self.recipe.features.mode.computes_target()) {
            Some(folder) => target::check_computed(folder),
            None => Ok(()),
        }
    }

    /// Whether the weights of targets on this machine are those of which their configurations speak.
    fn check_weights(&self) -> Result<()> {
        let (recipe, mode) = (self.recipe, self.recipe.features.mode);
        let own = recipe.model();
        let own = own.and_then(|model| folder_of(model, recipe.target.revision.as_deref()));
        let further = recipe.evaluate.targets.iter();
        let further = further.filter_map(|model| folder_of(model, None));
        let mut folders = own.into_iter().chain(further);
        folders.try_for_each(|folder| check_weights(&folder, mode))
    }

    /// Fails where keys about where features come from are missing or go with another mode, or where prompts are named that
    /// nothing here decodes.
    fn check_keys(&self, needed: &[&str], judged_by: &str) -> Result<()> {
        let recipe = self.recipe;
        let mode = &recipe.json["features"]["mode"];
        for (key, is_there, of) in [
            ("target.server", !recipe.target.server.is_empty(), "served"),
            (
                "features.imported",
                recipe.features.imported.is_some(),
                "imported",
            ),
        ] {
            if needed.contains(&key) && !is_there {
                bail!("`{key}` is missing; `features.mode = {mode}` needs it");
            }
            if is_there && !needed.contains(&key) {
                bail!("`{key}`: expected `features.mode = \"{of}\"` beside it, found {mode}");
            }
        }
        if needed.is_empty() {
            return Ok(());
        }
        let evaluate = &recipe.evaluate;
        for (key, is_there) in [
            ("evaluate.prompts", !evaluate.sets().is_empty()),
            ("evaluate.targets", !evaluate.targets.is_empty()),
            ("evaluate.training_free", !evaluate.training_free.is_empty()),
        ] {
            if is_there {
                bail!(
                    "`{key}`: leave it out: with `features.mode = {mode}` drafters are judged by {judged_by}; `spectrain \
                     evaluate --server` measures more"
                );
            }
        }
        Ok(())
    }

    /// Whether the files are there that the recipe names.
    fn check_files(&self) -> Vec<Result<()>> {
        let data = &self.recipe.data;
        let options = target::hub_options();
        let sources = [
            ("data.train", data.train_sources()),
            ("data.eval", data.eval.clone()),
        ];
        let sources = sources.into_iter().filter_map(|(key, sources)| {
            let found = sources?.downloads(&options).map(drop);
            Some(found.with_context(|| format!("`{key}`")))
        });
        let template = data.template.iter().map(|path| {
            let found = std::fs::metadata(path).map(drop);
            let found = found.with_context(|| format!("cannot read `{}`", path.display()));
            found.context("`data.template`")
        });
        let prompts = prompt_sets::check(self.recipe.evaluate.sets());
        let prompts = std::iter::once(prompts.context("`evaluate.prompts`"));
        sources.chain(template).chain(prompts).collect()
    }
}
