//! Whether what `[evaluate]` asks for can be drafted and judged, which would otherwise show when all is trained.

use anyhow::{Error, Result, anyhow};
use spectrain_eval::{DraftChoice, Error as EvalError, Reach, TextSettings};
use spectrain_models::Error as ModelError;

use crate::plan::preflight::Asked;
use crate::plan::target_sizes;
use crate::runtime::sizes::known_sizes;

/// An error about drafts, by the recipe's key.
fn by_key(error: EvalError) -> Error {
    match error {
        EvalError::Setting {
            key: "drafts",
            mismatch,
        } => anyhow!("`evaluate.drafts`: {mismatch}"),
        other => other.into(),
    }
}

impl Asked<'_> {
    /// What the recipe's drafter can draft, where that is known before there is one.
    pub(super) fn reach(&self) -> Option<Reach> {
        let sizes = target_sizes::of(self.recipe)?;
        self.recipe.method.reach(&sizes.spec).ok()
    }

    /// Fails where the drafter cannot draft in a way that is to be judged, or where nothing can judge it.
    pub(super) fn check_drafts(&self) -> Result<()> {
        let (recipe, evaluate) = (self.recipe, &self.recipe.evaluate);
        let Some(reach) = self.reach() else {
            return Ok(());
        };
        if recipe.features.mode.computes_target() {
            let mut drafts = evaluate.drafts.iter();
            return drafts.try_for_each(|draft| draft.suits(&reach).map_err(by_key));
        }
        evaluate.samplings().into_iter().try_for_each(|sampling| {
            let settings = TextSettings {
                sampling,
                drafts: evaluate.choices(reach.own),
                verifier: evaluate.verifier.into(),
                ends: None,
                thinking: None,
                seed: evaluate.seed,
            };
            settings.check(&reach).map_err(by_key)
        })
    }

    /// Fails where a training-free drafter needs layers that a target does not have.
    pub(super) fn check_training_free(&self) -> Result<()> {
        let (recipe, evaluate) = (self.recipe, &self.recipe.evaluate);
        let own = target_sizes::of(recipe).map(|sizes| sizes.spec);
        let further = evaluate.targets.iter();
        let further =
            further.filter_map(|model| Some((model.as_str(), known_sizes(model, None)?.0)));
        let name = recipe.model().unwrap_or("the target of `[synthetic]`");
        let targets = own.map(|spec| (name, spec)).into_iter().chain(further);
        for (target, spec) in targets {
            for free in &evaluate.training_free {
                free.check(spec.layers).map_err(|error| match error {
                    ModelError::TrainingFree(mismatch) => {
                        anyhow!("`evaluate.training_free`: `{free}` for {target}: {mismatch}")
                    }
                    other => other.into(),
                })?;
            }
        }
        Ok(())
    }

    /// That chains are asked for that are longer than what the drafter can draft.
    pub(super) fn shorter_chains(&self) -> Option<String> {
        let (reach, evaluate) = (self.reach()?, &self.recipe.evaluate);
        let longest = reach.longest?;
        let in_drafts = evaluate.drafts.iter().filter_map(|draft| match draft {
            DraftChoice::Chain { length, .. } => Some(("evaluate.drafts", *length)),
            _ => None,
        });
        let lengths = evaluate.draft_lengths.iter();
        let lengths = lengths.map(|&length| ("evaluate.draft_lengths", length));
        let longer = lengths.chain(in_drafts);
        let longer = longer.filter(|(_, length)| *length > longest);
        let longer: Vec<String> = longer
            .map(|(key, length)| format!("{length} (`{key}`)"))
            .collect();
        (!longer.is_empty()).then(|| {
            format!(
                "chains of more tokens than this drafter drafts, which is {longest}: {}; chains of {longest} are evaluated in \
                 their place",
                longer.join(", ")
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::families::registry::RECIPES;
    use crate::recipe::read;
    use crate::recipe::resolved::ResolvedRecipe;
    use crate::runs::run_folder::Existing;

    fn recipe(kind: &str, tables: &str) -> ResolvedRecipe {
        let text = format!("recipe = \"{kind}\"\nname = \"a\"\n[synthetic]\nlayers = 6\n{tables}");
        read(&text, &[]).unwrap()
    }

    fn asked(recipe: &ResolvedRecipe) -> Asked<'_> {
        Asked {
            recipe,
            runs: Path::new("runs"),
            existing: Existing::Continue,
            device: "cpu",
            ranks: 1,
            only: &[],
            parts: None,
        }
    }

    #[test]
    fn what_every_drafter_can_draft_is_known_before_it_is_trained() {
        for kind in RECIPES {
            for trial in kind.trials {
                let recipe = recipe(kind.name, trial);
                let reach = asked(&recipe).reach();
                assert!(reach.is_some(), "{} {trial}", kind.name);
            }
        }
        let of = |kind, drafter| asked(&recipe(kind, drafter)).reach().unwrap();
        let found = of("dflash", "[drafter]\nmask_token = 5\nblock_size = 4");
        assert_eq!((found.longest, found.one_pass), (Some(3), true));
        let found = of("medusa", "[drafter]\nmedusa_heads = 2");
        assert_eq!((found.longest, found.one_pass), (Some(2), true));
        let found = of("distillspec", "[drafter]\nkeep_layers = [0, 3]");
        assert_eq!((found.longest, found.one_pass), (None, false));
        assert_eq!(found.own, 5);
        assert!(!of("eagle3", "").has_confidence);
        let found = of("pard", "[drafter]\nfresh = { layers = 2 }\nmask_token = 5");
        assert_eq!(found.own, 8);
    }

    #[test]
    fn drafts_that_the_drafter_cannot_make_are_refused_before_it_is_trained() {
        for (drafts, expected) in [
            (
                "{ shape = \"best_first\", nodes = 4 }",
                "all steps in one pass",
            ),
            ("{ shape = \"confident\" }", "a confidence head"),
        ] {
            let recipe = recipe("eagle3", &format!("[evaluate]\ndrafts = [{drafts}]"));
            let found = asked(&recipe).check_drafts().unwrap_err().to_string();
            assert!(found.starts_with("`evaluate.drafts`: expected "), "{found}");
            assert!(found.contains(expected), "{found}");
            assert!(
                asked(&recipe)
                    .refusals()
                    .iter()
                    .any(|why| why.to_string() == found)
            );
        }
        let entropy = "[evaluate]\ndrafts = [{ shape = \"confident\", by = \"entropy\" }]";
        asked(&recipe("eagle3", entropy)).check_drafts().unwrap();
        let best = "[drafter]\nmask_token = 5\n[evaluate]\ndrafts = [{ shape = \"best_first\", nodes = 4 }]";
        asked(&recipe("dflash", best)).check_drafts().unwrap();
    }

    #[test]
    fn layers_that_the_target_does_not_have_are_refused_before_training() {
        let of = |layers: usize| {
            let free = format!(
                "[evaluate]\ntraining_free = [{{ name = \"early-layers\", layers = {layers} }}]"
            );
            asked(&recipe("eagle3", &free)).check_training_free()
        };
        of(5).unwrap();
        let found = of(9).unwrap_err().to_string();
        let told = "`evaluate.training_free`: `early-layers:9` for the target of `[synthetic]`: ";
        assert!(
            found.starts_with(told) && found.contains("1 to 5"),
            "{found}"
        );
    }

    #[test]
    fn chains_that_are_longer_than_what_can_be_drafted_are_told_beforehand() {
        let of = |evaluate: &str| {
            let tables =
                format!("[drafter]\nmask_token = 5\nblock_size = 4\n[evaluate]\n{evaluate}");
            asked(&recipe("dflash", &tables)).shorter_chains()
        };
        assert_eq!(of("draft_lengths = [0, 3]"), None);
        let told = of("draft_lengths = [2, 100]").unwrap();
        assert!(
            told.contains("which is 3: 100 (`evaluate.draft_lengths`);"),
            "{told}"
        );
        let told = of("drafts = [{ shape = \"chain\", length = 9 }]").unwrap();
        assert!(told.contains("9 (`evaluate.drafts`)"), "{told}");
    }
}
