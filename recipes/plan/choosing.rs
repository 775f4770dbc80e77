//! Whether the evaluation leaves prompts over by which trainings choose their weights.

use super::data::TrainingData;
use super::stages::Planned;
use crate::recipe::resolved::ResolvedRecipe;
use crate::stages::evaluate::choosing::leave_some;

/// That the evaluation takes all prompts by which the weights are chosen, where a training is left that chooses among some and it is known
/// how many prompts there are.
pub(super) fn none_left(
    recipe: &ResolvedRecipe,
    data: &TrainingData,
    stages: &[Planned],
) -> Option<String> {
    let is_left = |name: &str| {
        stages
            .iter()
            .any(|stage| stage.name == name && stage.is_left())
    };
    let mut trainings = recipe.training_stages().into_iter();
    let chooses = trainings.any(|stage| is_left(stage) && chooses_by_prompts(recipe, stage));
    // Of stored answers validations and evaluation have the same.
    let is_own = recipe.features.mode.computes_target() && recipe.evaluate.sets().is_empty();
    let asked = recipe.evaluate.of_eval();
    let there = data.held_out(asked)?;
    (chooses && is_own && there <= asked).then(|| {
        let about = if data.is_exact() { "" } else { "about " };
        let all = format!("the {about}{there} held-out prompts");
        format!(
            "`evaluate.prompts = {asked}` leaves none of {all} to validations, so some of the evaluated ones also choose the weights, \
             which makes τ a little too high; {}",
            leave_some("evaluate.prompts", &all)
        )
    })
}

/// Whether a training stage validates several weights and decodes prompts for it.
fn chooses_by_prompts(recipe: &ResolvedRecipe, stage: &str) -> bool {
    let training = recipe.training(stage);
    let before_last = training.validations_before_last();
    let is_one = before_last == Some(0) && !recipe.begins_trained(stage);
    // Settings that are refused elsewhere draft nothing.
    let drafts = recipe.method.drafts(stage).unwrap_or(false);
    drafts && training.decode_prompts > 0 && !is_one
}
