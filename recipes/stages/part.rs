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
use crate::stages::parts::{Description, Made, PART, PARTS, STAGE, begin, files, is_done, store};

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
    let folder = match &store {
        Store::Folder(folder) => folder.join(part.folder()),
        Store::Remote(_) => context.run.path().join(PARTS).join(part.folder()),
    };
    let made = Made::of(context, &stages[place], part)?;
    if is_done(&store, &made, part)? {
        context.output.say(format!("part {part}: done before"));
        return Ok(());
    }
    let _lock = lock_for(&folder, "capture another `--part`")?;
    begin(&folder, &made, part)?;
    context.array.part = Some(PartOf {
        part,
        folder: folder.clone(),
    });
    let summary = (stages[place].run)(context, STAGE)?;
    let description = Description {
        made,
        files: files(&folder)?,
        summary,
    };
    write_json(&folder.join(PART), &description)?;
    if let Store::Remote(remote) = &store {
        for file in description.files.keys() {
            remote.send(&folder.join(file), &format!("{}/{file}", part.folder()))?;
        }
        // The last file says that the others are there.
        remote.send(&folder.join(PART), &format!("{}/{PART}", part.folder()))?;
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
