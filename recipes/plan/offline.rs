//! What is not on this machine, where the environment says that the hub is not to be asked for it. Datasets are refused with their
//! files.

use std::path::Path;

use anyhow::{Context as _, Error, Result};
use spectrain_checkpoints::Error as HubError;
use spectrain_checkpoints::hub::Surroundings;

use crate::families::model_at_start::WHAT;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runtime::{prompt_sets, start_at, target};

/// What the run would fail to download, where training starts from `start`.
pub(super) fn refusals(recipe: &ResolvedRecipe, start: Option<&Path>) -> Vec<Error> {
    if !Surroundings::of_process(&target::hub_options()).is_offline {
        return Vec::new();
    }
    let found = |folder: Result<_>| folder.map(drop).err().filter(is_unreachable);
    let further = recipe.evaluate.targets.iter().map(String::as_str);
    let further = further.filter_map(|model| found(target::resolve(model, None)));
    let drafter = recipe.method.model();
    let drafter = drafter.map(|(model, revision)| target::resolve_as(WHAT, model, revision));
    let drafter = drafter.map(|folder| folder.context("`drafter.model`"));
    let start = start.map(start_at::folder).into_iter();
    let own = recipe.target_folder().map(drop).err();
    let own = own.filter(is_unreachable).into_iter();
    let models = own.chain(start.filter_map(found));
    let models = models.chain(drafter.and_then(found)).chain(further);
    models.chain(prompts(recipe)).collect()
}

/// What is wrong otherwise is refused elsewhere.
fn is_unreachable(error: &Error) -> bool {
    matches!(error.downcast_ref(), Some(HubError::Unreachable { .. }))
}

fn prompts(recipe: &ResolvedRecipe) -> Option<Error> {
    let sets = recipe.evaluate.sets();
    prompt_sets::check(sets).ok()?;
    let found = prompt_sets::datasets(sets).map(drop);
    found.context("`evaluate.prompts`").err()
}
