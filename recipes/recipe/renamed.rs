//! Keys that had another name.

/// A table, the name that one of its keys had, and the name that the key has now.
const RENAMED: [(&str, &str, &str); 8] = [
    ("drafter", "heads", "medusa_heads"),
    ("drafter", "heads", "hydra_heads"),
    ("objective", "steps", "draft_steps"),
    ("synthetic", "warmup", "warmup_steps"),
    ("train", "accumulate", "gradient_accumulation"),
    ("train", "clip", "max_grad_norm"),
    ("train", "floor", "min_lr_ratio"),
    ("train", "warmup", "warmup_steps"),
];

/// The name that `key` of `table` has now, where the parser's `message` lists it: the tables of other drafters may still
/// have a key of the old name, or never had it.
pub(super) fn new_name(table: &str, key: &str, message: &str) -> Option<&'static str> {
    let listed = |name: &str| message.contains(&format!("`{name}`"));
    let found = RENAMED
        .iter()
        .find(|(of, old, new)| *of == table && *old == key && listed(new));
    found.map(|(_, _, new)| *new)
}

#[cfg(test)]
mod tests {
    use super::RENAMED;
    use crate::families::registry::RECIPES;
    use crate::recipe::read::read;

    /// What is said of a recipe in whose fourth line the key of the table stands; nothing where all is well.
    fn said(recipe: &str, table: &str, key: &str) -> String {
        let text = format!("recipe = \"{recipe}\"\nname = \"a\"\n[{table}]\n{key} = 1\n");
        read(&text, &[]).map_or_else(|error| format!("{error:#}"), |_| String::new())
    }

    #[test]
    fn an_old_name_is_refused_with_the_new_one_where_it_stands() {
        for (table, old, new) in RENAMED {
            let words = format!("line 4, column 1: key `{table}.{old}`: is now called `{new}`");
            let named = |recipe: &str| said(recipe, table, old) == words;
            let recipes: Vec<&str> = RECIPES.iter().map(|recipe| recipe.name).collect();
            assert!(recipes.iter().any(|recipe| named(recipe)), "{table}.{old}");
            for recipe in recipes {
                let error = said(recipe, table, new);
                assert!(!error.contains("is now called"), "{error}");
            }
        }
    }

    #[test]
    fn an_old_name_in_an_override_is_refused_with_the_new_one() {
        let text = "recipe = \"eagle3\"\nname = \"a\"\n";
        let refused = |given: &str| format!("{:#}", read(text, &[given.to_owned()]).unwrap_err());
        for (given, message) in [
            (
                "objective.steps=3",
                "key `objective.steps`: is now called `draft_steps`",
            ),
            (
                "train.clip=1.0",
                "key `train.clip`: is now called `max_grad_norm`",
            ),
        ] {
            assert_eq!(refused(given), format!("`--set {given}`: {message}"));
        }
    }

    #[test]
    fn a_stages_own_table_has_the_new_names_too() {
        let text = "recipe = \"deer\"\nname = \"a\"\n[stages.align]\nfloor = 0.1\n";
        let error = format!("{:#}", read(text, &[]).unwrap_err());
        let words = "line 4, column 1: key `stages.align.floor`: is now called `min_lr_ratio`";
        assert_eq!(error, words);
    }

    #[test]
    fn attention_heads_keep_their_name() {
        let error = said("dflash", "drafter", "heads");
        assert!(!error.contains("is now called"), "{error}");
        let error = said("pard", "drafter", "heads");
        assert!(error.contains("unknown field `heads`"), "{error}");
    }
}
