//! `spectrain recipe`: every stage of a recipe that is not done yet.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use clap::Args;
use spectrain_checkpoints::columns::listed;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_train::Share;

use crate::cli::arguments::{DeviceArgument, key_value};
use crate::cli::written::write_sweep;
use crate::errors::{Misuse, with_causes};
use crate::plan::preflight::Asked;
use crate::plan::{self, Plan};
use crate::progress::{Output, print, print_json, tell};
use crate::recipe::read::{is_set, read_file};
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::shipped::{SHIPPED, ShippedRecipe};
use crate::runs::run_folder::{Existing, RunFolder};
use crate::runs::stage_names;
use crate::runtime::device::{self, DeviceNames};
use crate::runtime::interruption::{Interrupted, or_interrupted};
use crate::runtime::ranks::{Group, Place};
use crate::stages::array::{ArrayJob, Part};
use crate::stages::borrowed::borrow;
use crate::stages::commands_again::commands_again;
use crate::stages::context::StageContext;
use crate::stages::in_order::Told;
use crate::stages::parts::capture::{capture, check_place, check_stages};
use crate::stages::{in_order, kept, order, report};
use crate::tracking::live::Live;

mod sweep;

use sweep::{Combination, Swept, Varied};

/// Arguments of `spectrain recipe`.
#[derive(Debug, Args)]
pub struct RecipeArguments {
    /// The recipe: a TOML file, or the name of one that is shipped
    #[arg(required_unless_present_any = ["list", "show"])]
    file: Option<PathBuf>,
    /// List the recipes that are shipped
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print a recipe that is shipped, to be changed in a file of your own
    #[arg(long, value_name = "NAME", exclusive = true)]
    show: Option<String>,
    /// Print the resolved recipe, what would run and what it would take, and stop
    #[arg(long)]
    plan: bool,
    /// With `--plan`, print it as JSON
    #[arg(long, requires = "plan")]
    json: bool,
    /// Run or plan only this stage; may be repeated
    #[arg(long = "stage", value_name = "NAME")]
    stages: Vec<String>,
    /// Set one key of the recipe, such as `train.steps=100`; may be repeated
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    overrides: Vec<String>,
    /// Train once with each of these values of a key, such as `train.learning_rate=1e-3,2e-3`, each in a run of its own, and
    /// print τ of each beside that of the first; repeated, every combination; several of `seed` are pooled
    #[arg(long, value_name = "KEY=V,V", conflicts_with_all = ["part", "devices"])]
    sweep: Vec<Swept>,
    /// Train the recipe as it is and once with each of these values of a key, such as `train.ema_decay=0.95,0.99`, and print τ of
    /// each beside that of the recipe; repeated, one change at a time; `KEY=V; KEY=V` is one change of several keys. With
    /// `--sweep seed=0,1,2`, each with all of these
    #[arg(long, value_name = "KEY=V,V", conflicts_with_all = ["part", "devices"])]
    vary: Vec<Varied>,
    /// With `--stage features`, capture only this part of the samples, such as `3/16`, as an element of an array job
    #[arg(long, value_name = "N/PARTS", conflicts_with_all = ["plan", "fresh"])]
    part: Option<Part>,
    /// Where parts are: a folder, or `s3://`, `gs://` or `az://` with bucket and prefix; without it `features-parts` in the run
    #[arg(long, value_name = "DIR|URL")]
    parts: Option<String>,
    #[command(flatten)]
    device: DeviceArgument,
    /// Devices to train on together, such as `cuda:0,cuda:1` or `cuda:0-7`, with a process for each; all else is computed on the
    /// first one
    #[arg(long, value_name = "DEVICES", value_delimiter = ',', conflicts_with_all = ["device", "part"])]
    devices: Vec<DeviceNames>,
    /// Move an older run of this name aside and start anew
    #[arg(long)]
    fresh: bool,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// Show no progress, only warnings and errors
    #[arg(long)]
    pub(crate) quiet: bool,
}

/// Prints what would run. Fails where it would be refused.
fn show(plan: Plan, as_json: bool) -> Result<()> {
    if as_json {
        print_json(&plan.json)?;
    } else {
        print(plan.text)?;
    }
    match plan.refusal {
        Some(refusal) => Err(refusal),
        None => Ok(()),
    }
}

/// What all ranks must have in common.
fn identity(recipe: &ResolvedRecipe) -> String {
    let identity = [env!("CARGO_PKG_VERSION"), &recipe.toml].join("\n");
    sha256_bytes(identity.as_bytes())
}

/// Runs the command: as one of several ranks, if it is one.
pub fn run(arguments: &RecipeArguments) -> Result<()> {
    if arguments.list {
        let rows: Vec<_> = SHIPPED.iter().map(|of| (of.name, of.purpose())).collect();
        return print(listed(
            rows.iter().map(|(name, purpose)| (*name, purpose.as_str())),
        ));
    }
    if let Some(name) = &arguments.show {
        return print(ShippedRecipe::of(name)?.text);
    }
    let combinations = sweep::combinations(&arguments.vary, &arguments.sweep)?;
    let recipe = arguments.read_first(&combinations)?;
    order::selected(&recipe, &arguments.stages)?;
    let place = Place::of_environment()?.filter(|_| arguments.part.is_none());
    if arguments.are_several() {
        return match place {
            None => arguments.run_sweep(&recipe.name, &combinations),
            Some(_) => Err(Misuse(
                "`--sweep` and `--vary` train with one rank, and the environment's `WORLD_SIZE` asks for more"
                    .into(),
            )
            .into()),
        };
    }
    check_place(arguments.parts.as_deref(), &[&recipe])?;
    let ranks = match &place {
        Some(place) => place.count,
        None => arguments.devices().len().max(1),
    };
    for stage in recipe.training_stages() {
        Share::of(0, ranks, recipe.training(stage).gradient_accumulation)
            .map_err(|error| Misuse(error.to_string()))?;
    }
    let device = arguments.device(place.as_ref())?;
    if arguments.plan {
        // All ranks would plan the same, and ask the servers at once.
        if place.as_ref().is_some_and(|place| place.rank > 0) {
            return Ok(());
        }
        let plan = plan::plan(&arguments.asked(&recipe, &device, ranks))?;
        return show(plan, arguments.json);
    }
    let identity = identity(&recipe);
    let group = match &place {
        Some(place) if place.rank > 0 => {
            device::check_built(&device)?;
            let group = Group::join(place, &identity)?;
            return arguments.follow(&recipe, &device, &group);
        }
        Some(place) => Some(Group::invite(place, &identity)?),
        None if ranks > 1 => Some(Group::start(ranks, &identity)?),
        None => None,
    };
    let run = arguments.open(&recipe, &device, ranks)?;
    let run = arguments.lead(&recipe, (run, device.as_str()), group.as_ref(), &[])?;
    group.iter().for_each(Group::end);
    if arguments.evaluates() {
        print(report::of_run(&RunFolder::unlocked(run))?)?;
    }
    Ok(())
}

impl RecipeArguments {
    /// The recipe with these overrides, and with what a training that has begun keeps.
    fn read(&self, overrides: &[String]) -> Result<ResolvedRecipe> {
        let Some(file) = &self.file else {
            unreachable!("the command line is refused without a file");
        };
        let recipe = read_file(file, overrides)?;
        if self.fresh {
            return Ok(recipe);
        }
        let run = self.runs.join(&recipe.name);
        let kept = kept::overrides(&recipe, &run, &|keys| is_set(file, overrides, keys))?;
        if kept.is_empty() {
            return Ok(recipe);
        }
        read_file(file, &[overrides, &kept].concat())
    }

    /// The name of the device to compute on here.
    fn device(&self, place: Option<&Place>) -> Result<String> {
        let devices = self.devices();
        match place {
            Some(place) => place.device(&devices, &self.device.device),
            None => Ok(devices.first().unwrap_or(&self.device.device).clone()),
        }
    }

    /// The names of the devices to train on together.
    fn devices(&self) -> Vec<String> {
        let names = self.devices.iter().flat_map(|given| &given.0);
        names.cloned().collect()
    }

    /// Whether the recipe is trained with several values of some key.
    fn are_several(&self) -> bool {
        !self.sweep.is_empty() || !self.vary.is_empty()
    }

    /// The recipe as it is given, with the first of the swept values, where there are some: what is swept need not stand in it.
    fn read_first(&self, combinations: &[Combination]) -> Result<ResolvedRecipe> {
        let first = combinations.first().filter(|_| self.are_several());
        let Some(first) = first else {
            return self.read(&self.overrides);
        };
        let overrides = [self.overrides.clone(), first.overrides()].concat();
        self.read(&overrides).with_context(|| first.to_string())
    }

    /// The recipe of each combination of the swept values, all of them before any is trained: what is wrong with the last one is told
    /// at once.
    fn read_all(&self, name: &str, combinations: &[Combination]) -> Result<Vec<ResolvedRecipe>> {
        let read = |overrides: &[String]| {
            let recipe = self.read(&[&self.overrides, overrides].concat())?;
            order::selected(&recipe, &self.stages)?;
            Ok(recipe)
        };
        let recipes = sweep::recipes(name, combinations, &read)?;
        check_place(self.parts.as_deref(), &recipes.iter().collect::<Vec<_>>())?;
        if self.evaluates() {
            sweep::check_judged_alike(&recipes)?;
        }
        Ok(recipes)
    }

    /// Trains every combination of the swept values in a run of its own, and prints τ of each.
    fn run_sweep(&self, name: &str, combinations: &[Combination]) -> Result<()> {
        let recipes = self.read_all(name, combinations)?;
        let beside = self.run_beside(name, &recipes);
        // What is swept need not stand in the recipe, which then cannot be read.
        let lender = beside.as_ref();
        let lender = lender.and_then(|_| self.read(&self.overrides).ok());
        let device = self.device.device.as_str();
        let lender = lender.as_ref().map(|of| self.asked(of, device, 1));
        let all = recipes.iter().map(|of| self.asked(of, device, 1));
        let all: Vec<Asked> = all.collect();
        if self.plan {
            return show(plan::plan_all(&all, lender.as_ref()), self.json);
        }
        for (combination, asked) in combinations.iter().zip(&all) {
            asked.check().with_context(|| combination.to_string())?;
        }
        for warning in plan::too_little_room_for_all(&all, lender.as_ref()) {
            self.output().warn(warning);
        }
        let folder = |recipe: &ResolvedRecipe| self.runs.join(&recipe.name);
        // Those that have failed, or come later and are there, may have made what another needs. Where all start anew, none that was
        // there before has.
        let mut others: Vec<PathBuf> = match self.fresh {
            true => Vec::new(),
            false => recipes.iter().map(folder).chain(beside).collect(),
        };
        let (mut runs, mut failures) = (Vec::new(), Vec::new());
        for (number, (combination, recipe)) in combinations.iter().zip(&recipes).enumerate() {
            let of_all = format!("{} of {}: {combination}", number + 1, recipes.len());
            tell(&of_all);
            let led = self.open(recipe, device, 1).and_then(|run| {
                if self.fresh {
                    others.push(run.path().to_owned());
                }
                self.lead(recipe, (run, device), None, &others)
            });
            match led {
                Ok(run) => runs.push(Some(run)),
                Err(error) if error.is::<Interrupted>() => return Err(error),
                // What is wrong with one is no fault of the others.
                Err(error) => {
                    tell(format!("{of_all}: {}", with_causes(&error)));
                    failures.push(error.context(combination.to_string()));
                    runs.push(None);
                }
            }
        }
        if self.evaluates() && runs.iter().any(Option::is_some) {
            let trained = combinations.iter().zip(&recipes).zip(runs);
            let trained = trained.map(|((combination, recipe), run)| (combination, recipe, run));
            let found = spectrain_eval::sweep(&sweep::variations(trained)?);
            print(found.to_text())?;
            write_sweep(&found, &self.runs, name)?;
        }
        let failed = failures.len();
        match failures.into_iter().next() {
            None => Ok(()),
            Some(first) => Err(first.context(format!("{failed} of {} runs failed", recipes.len()))),
        }
    }

    /// The run of the recipe as it is, of this name, where it is there and none of those of these recipes, which take over what it has
    /// made.
    fn run_beside(&self, name: &str, recipes: &[ResolvedRecipe]) -> Option<PathBuf> {
        let run = self.runs.join(name);
        let is_beside = !self.fresh && recipes.iter().all(|recipe| recipe.name != name);
        (is_beside && run.exists()).then_some(run)
    }

    fn existing(&self) -> Existing {
        if self.fresh {
            Existing::SetAside
        } else {
            Existing::Continue
        }
    }

    fn asked<'a>(&'a self, recipe: &'a ResolvedRecipe, device: &'a str, ranks: usize) -> Asked<'a> {
        Asked {
            recipe,
            runs: &self.runs,
            existing: self.existing(),
            device,
            ranks,
            only: &self.stages,
            parts: self.parts.as_deref(),
        }
    }

    /// Whether there is a report in the end.
    fn evaluates(&self) -> bool {
        order::is_selected(stage_names::EVALUATE, &self.stages) && self.part.is_none()
    }

    /// Where progress goes.
    fn output(&self) -> Output {
        match self.quiet {
            true => Output::Quiet,
            false => Output::detect(),
        }
    }

    /// Opens the folder of a run that nothing speaks against, and says what should be known before it. `name` is that of the device.
    fn open(&self, recipe: &ResolvedRecipe, name: &str, ranks: usize) -> Result<RunFolder> {
        if self.part.is_some() {
            check_stages(&self.stages)?;
        }
        let asked = self.asked(recipe, name, ranks);
        asked.check()?;
        for warning in asked.warnings().into_iter().chain(self.room(&asked)) {
            self.output().warn(warning);
        }
        match self.part {
            None => RunFolder::open(asked.run(), &recipe.described(), self.existing()),
            // Other parts may be captured in the same run.
            Some(_) => RunFolder::shared(&self.runs, &recipe.name),
        }
    }

    /// What is said where this machine has too little room for a run, or for a part of its features. Those of a sweep share what one of
    /// them has made, which is told of all together.
    fn room(&self, asked: &Asked) -> Vec<String> {
        match (self.part, self.are_several()) {
            (Some(part), _) => Vec::from_iter(plan::too_little_for_part(asked, part)),
            (None, true) => Vec::new(),
            (None, false) => plan::too_little_room(asked),
        }
    }

    /// Runs the stages, of those of the training on other ranks, too. What the runs in `others` have made alike is taken from there.
    /// Returns the run's folder.
    fn lead(
        &self,
        recipe: &ResolvedRecipe,
        (run, name): (RunFolder, &str),
        group: Option<&Group>,
        others: &[PathBuf],
    ) -> Result<PathBuf> {
        let mut context = self.context(recipe, (&run, name, self.output()), group)?;
        if let Some(part) = self.part {
            capture(&mut context, part).map_err(|error| or_interrupted(error, Interrupted::Run))?;
            return Ok(run.path().to_owned());
        }
        borrow(&context, others);
        let started = Instant::now();
        let tracked = Live::begin(run.path().to_owned(), recipe);
        let training = recipe.training_stages();
        let told = Told {
            begins: &mut |stage| {
                if training.contains(&stage) {
                    self.warn_of_memory(&context, stage);
                }
            },
            // Whoever runs a recipe again may want just these, and what comes after may take long.
            done: &mut |stage| match stage == stage_names::EXPORT && !self.are_several() {
                true => print(commands_again(&context)?),
                false => Ok(()),
            },
        };
        let done = in_order::run_and_tell(&context, &self.stages, told);
        if let Some(tracked) = tracked {
            tracked.finish();
        }
        done?;
        context.output.say(format!(
            "all stages: {:.0} s",
            started.elapsed().as_secs_f64()
        ));
        Ok(run.path().to_owned())
    }

    /// Trains with rank 0 the stages that it begins; nothing else is done here, and nothing written.
    fn follow(&self, recipe: &ResolvedRecipe, name: &str, group: &Group) -> Result<()> {
        while let Some(stage) = group.next()? {
            let stages = order::selected(recipe, &[])?;
            let begun = stages.iter().find(|of| of.name == stage);
            let begun = begun.with_context(|| format!("rank 0 begins a stage `{stage}`"))?;
            let run = RunFolder::shared(&self.runs, &recipe.name)?;
            let context = self.context(recipe, (&run, name, Output::Quiet), Some(group))?;
            self.warn_of_memory(&context, begun.name);
            (begun.run)(&context, begun.name)
                .map_err(|error| or_interrupted(error, Interrupted::Run))
                .with_context(|| format!("stage `{stage}`"))?;
        }
        Ok(())
    }

    /// Warns where a GPU has too little memory for a training stage, which begins now: whoever asks a GPU opens it.
    fn warn_of_memory(&self, context: &StageContext, stage: &str) {
        let ranks = context.group.map_or(1, Group::count);
        let asked = self.asked(context.recipe, &context.device_name, ranks);
        let available = device::available_memory(&context.device);
        let warning = available.and_then(|free| plan::too_little_on_device(&asked, stage, free));
        if let Some(warning) = warning {
            context.output.warn(warning);
        }
    }

    fn context<'a>(
        &self,
        recipe: &'a ResolvedRecipe,
        (run, name, output): (&'a RunFolder, &str, Output),
        group: Option<&'a Group>,
    ) -> Result<StageContext<'a>> {
        Ok(StageContext {
            recipe,
            run,
            target_type: device::target_type(recipe.target.dtype, name),
            device: device::device(name)?,
            device_name: name.to_owned(),
            output,
            array: ArrayJob {
                part: None,
                parts: self.parts.clone(),
            },
            group,
        })
    }
}
