//! The commands that serve what `export` has left, as they are shown whenever a recipe is run.

use anyhow::{Context as _, Result};
use serde_json::Value;
use spectrain_checkpoints::printable;
use spectrain_models::load_parts;

use crate::families::commands::commands;
use crate::families::family::Writing;
use crate::families::registry::open_drafter;
use crate::stages::context::StageContext;
use crate::stages::export::{draft_length, folders, provenance_of};
use crate::stages::exported::{NAMED, named, parts, seen_from};

/// The commands that serve what the stage left, for a shell: those for each folder behind its name. They are those that it
/// recorded, unless the run or the target is called otherwise by now, or other drafts are asked for.
pub fn commands_again(context: &StageContext) -> Result<String> {
    let (run, target) = (context.run, context.target_name()?);
    let asked = context.recipe.evaluate.draft_length(0);
    let mut text = String::new();
    for part in parts(run)? {
        let name = part["folder"].as_str().unwrap_or_default();
        let folder = run.path().join(name);
        let lines: Vec<String> = match part[NAMED] == named(&folder, &target, asked) {
            true => {
                let lines = part["launch"].as_array().into_iter().flatten();
                lines.filter_map(Value::as_str).map(str::to_owned).collect()
            }
            false => commands_now(context, name)
                .with_context(|| format!("the commands that serve `{}`", folder.display()))?,
        };
        text.push_str(&format!("# {}{}\n", folder.display(), seen_from(&folder)));
        for line in lines {
            text.push_str(&format!("{}\n", printable(&line)));
        }
        text.push('\n');
    }
    Ok(text)
}

/// The commands that serve the folder `name` of the run, which the stage left, where it is now.
fn commands_now(context: &StageContext, name: &str) -> Result<Vec<String>> {
    let (export, device) = (&context.recipe.export, &context.device);
    let path = context.run.path().join(name);
    let target = load_parts(&context.target_folder()?, device, context.target_type.dtype)?;
    let drafter = open_drafter(&path, &target, device)?;
    let mut folders = folders(&export.to, drafter.as_ref()).into_iter();
    let engines = folders.find_map(|(folder, engines)| (folder == name).then_some(engines));
    let writing = Writing {
        folder: &path,
        dtype: export.dtype.dtype(),
        target: &context.target_name()?,
        draft_length: draft_length(context, drafter.as_ref()),
        provenance: &provenance_of(&path)?.unwrap_or_default(),
    };
    let engines = engines.with_context(|| format!("`export.to` asks for no folder `{name}`"))?;
    commands(drafter.as_ref(), &engines, &writing)
}
