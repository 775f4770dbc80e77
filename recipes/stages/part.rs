//! One element of an array job: a part of the stage `features`.

use std::fs;

use anyhow::{Context as _, Result, bail};

use crate::errors::Misuse;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runs::files::write_json;
use crate::runs::run_folder::lock_for;
use crate::runtime::store::Store;
use crate::stages::array::{Part, PartOf};
use crate::stages::context::StageContext;
use crate::stages::in_order::require_done;
use crate::stages::order::selected;
use crate::stages::parts::{
    Description, Made, PART, PARTS, STAGE, agree, begin, begin_beside_others, done, files, send,
    store,
};

/// Captures a part, or goes on with it. The run's other stages are not touched, and it is not locked: its parts may be captured
/// at the same time.
pub fn capture(context: &mut StageContext, part: Part) -> Result<()> {
    let given = context.array.parts.clone();
    let stages = selected(context.recipe, &[STAGE.into()])?;
    let Some(place) = stages.iter().position(|stage| stage.name == STAGE) else {
        bail!("the recipe has no stage `{STAGE}`");
    };
    for stage in &stages[..place] {
        require_done(context, stage)?;
    }
    let store = store(context, given.as_deref())?;
    let parts = match &store {
        Store::Folder(folder) => folder.clone(),
        Store::Remote(_) => context.run.path().join(PARTS),
    };
    let folder = parts.join(part.folder());
    // What it has learned of the target before.
    context.run.recall_in(&folder)?;
    let made = Made::of(context, &stages[place], part)?;
    if done(&store, &made, part)?.is_some() {
        context.output.say(format!("part {part}: done before"));
        return Ok(());
    }
    if given.is_some() {
        agree(&store, &made, part)?;
    }
    let _lock = lock_for(&folder, "capture another `--part`")?;
    context.run.keep_in(&folder)?;
    match given {
        Some(_) => begin_beside_others(&store, &folder, &made, part)?,
        None => begin(&folder, &made, part)?,
    }
    // One that was stopped while it was sent is whole here.
    let description = match done(&Store::Folder(parts), &made, part)? {
        Some(found) if found.is_whole(context.run, &folder)? => found,
        _ => {
            context.array.part = Some(PartOf {
                part,
                folder: folder.clone(),
            });
            let summary = (stages[place].run)(context, STAGE)?;
            let description = Description {
                made,
                files: files(context.run, &folder)?,
                summary,
            };
            write_json(&folder.join(PART), &description)?;
            description
        }
    };
    if let Store::Remote(remote) = &store {
        send(context, remote, (part, &folder), &description.files)?;
        fs::remove_dir_all(&folder)
            .with_context(|| format!("cannot remove `{}`", folder.display()))?;
    }
    context
        .output
        .say(format!("part {part}: `{}`", store.name()));
    Ok(())
}

/// Fails where parts are said to be somewhere, and none of the recipes has the stage that has some.
pub fn check_place(parts: Option<&str>, recipes: &[&ResolvedRecipe]) -> Result<()> {
    let only = [STAGE.to_owned()];
    let found = recipes
        .iter()
        .map(|recipe| selected(recipe, &only).map(drop));
    match (parts, found.reduce(|one, other| one.or(other))) {
        (Some(_), Some(Err(error))) => Err(error.context("`--parts`")),
        _ => Ok(()),
    }
}

/// Fails for a part of other stages than the one that has some.
pub fn check_stages(stages: &[String]) -> Result<()> {
    if stages != [STAGE] {
        let message =
            format!("`--part` works with one stage: expected `--stage {STAGE}` beside it");
        return Err(Misuse(message).into());
    }
    Ok(())
}
