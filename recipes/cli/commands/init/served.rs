//! Whether an engine serves the drafter of a recipe beside its target, and the key that decides it.

use super::keys::Keys;
use crate::recipe::resolved::ResolvedRecipe;
use crate::runtime::sizes::traits_of;

/// The key of `[drafter]` with which another engine serves some drafters, beside other targets.
const AFTER_FINAL_NORM: &str = "after_final_norm";

/// Why no engine serves the drafter beside its target; nothing where one does, or where the target is not on this machine.
pub(super) fn unserved(recipe: &ResolvedRecipe) -> Option<String> {
    let target = traits_of(recipe.model()?, recipe.target.revision.as_deref())?;
    recipe.method.unserved(&target).ok()?
}

/// The key of `[drafter]` with which an engine may serve a drafter that none serves as it is; `is_set` says of a key, named with its
/// table, that it is set already.
pub(super) fn key(
    keys: &Keys,
    recipe: &ResolvedRecipe,
    is_set: &dyn Fn(&str) -> bool,
) -> Option<&'static str> {
    let has = keys
        .names("drafter")
        .iter()
        .any(|name| name == AFTER_FINAL_NORM);
    let is_free = has && !is_set(&format!("drafter.{AFTER_FINAL_NORM}"));
    let is_wanted = is_free && unserved(recipe).is_some();
    is_wanted.then_some(AFTER_FINAL_NORM)
}
