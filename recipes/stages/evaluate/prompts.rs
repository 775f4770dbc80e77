//! Which prompts the evaluation of a run decodes. Nothing else is found on them: neither which weights are the best nor, as
//! far as there are others, trees and thresholds.

use std::collections::HashSet;

use anyhow::{Context as _, Result};
use spectrain_eval::{Prompt, PromptSet};

use crate::recipe::tables::EvaluateTable;
use crate::runtime::prompt_sets::{self, ReadSets};
use crate::runtime::prompts::{beside, distinct, has_room, repeated, split};
use crate::runtime::target;
use crate::stages::context::StageContext;
use crate::stages::prepare;

/// What is decoded, and what there is to say of what is not.
pub(crate) struct Evaluated {
    /// What is decoded, and the prompts of `data.eval` and of the sets that are not.
    pub read: ReadSets,
    /// What was left out, and what is missing.
    pub warnings: Vec<String>,
}

impl Evaluated {
    /// Those of a run with prepared data, of which `name` is what the prompts of `data.eval` are called. Downloads what is
    /// missing of the sets that the recipe names.
    pub(crate) fn of(context: &StageContext, name: &str) -> Result<Self> {
        let places = target::spec(&context.target_folder()?)?.max_positions;
        let (held_out, too_long) = fitting(prepare::labelled_prompts(context.run)?, places);
        let mut found = match context.recipe.evaluate.sets() {
            [] => Self::of_held_out(held_out, name, &context.recipe.evaluate),
            _ => Self::of_sets(context, held_out, places)?,
        };
        found.warnings.extend(too_long);
        Ok(found)
    }

    /// Leaves out what has no room in a context of so many `places`, which is `whose`.
    pub(crate) fn fit(&mut self, whose: &str, places: usize) {
        let mut left_out = 0;
        for set in &mut self.read.sets {
            let all = set.prompts.len();
            set.prompts
                .retain(|prompt| has_room(&prompt.tokens, places));
            left_out += all - set.prompts.len();
        }
        self.read.others.retain(|prompt| has_room(prompt, places));
        self.warnings.extend(too_long(whose, places, left_out));
    }

    fn of_held_out(prompts: Vec<Prompt>, name: &str, table: &EvaluateTable) -> Self {
        let (prompts, repeats) = distinct(prompts);
        let repeats = repeated(name, repeats).map(|told| format!("evaluate: {told}"));
        let is_asked = table.prompts != EvaluateTable::default().prompts;
        let fewer = fewer(name, table.of_eval(), prompts.len()).filter(|_| is_asked);
        let (prompts, others) = split(prompts, table.of_eval());
        let name = name.to_owned();
        Self {
            read: ReadSets {
                sets: vec![PromptSet { name, prompts }],
                others,
                ..ReadSets::default()
            },
            warnings: repeats.into_iter().chain(fewer).collect(),
        }
    }

    fn of_sets(context: &StageContext, held_out: Vec<Prompt>, places: usize) -> Result<Self> {
        let table = &context.recipe.evaluate;
        let mut text = context.text()?;
        // Of training rows their prompts need not know.
        text.settings.max_length = places.saturating_sub(table.max_new_tokens).max(1);
        let read = prompt_sets::read(table.sets(), &text, table.of_each_set());
        let mut read = read.context("`evaluate.prompts`")?;
        let asked = read.sets.iter().zip(table.count.iter().cycle());
        let fewer = asked.filter_map(|(set, &count)| fewer(&set.name, count, set.prompts.len()));
        let mut warnings = read.warnings(text.settings.max_length);
        warnings.extend(fewer);
        // The sets may be of the same file as `data.eval`.
        let held_out = held_out.into_iter().map(|prompt| prompt.tokens);
        let mut held_out = beside(decoded(&read), held_out.collect());
        let known: HashSet<&Vec<u32>> = read.others.iter().collect();
        held_out.retain(|prompt| !known.contains(prompt));
        read.others.extend(held_out);
        Ok(Self { read, warnings })
    }
}

/// The prompts of all sets, which are decoded.
pub(crate) fn decoded(read: &ReadSets) -> impl Iterator<Item = &Prompt> {
    read.sets.iter().flat_map(|set| &set.prompts)
}

/// The prompts behind which a target of so many `places` has room for a token, and what to say of the others.
fn fitting(mut prompts: Vec<Prompt>, places: usize) -> (Vec<Prompt>, Option<String>) {
    let all = prompts.len();
    prompts.retain(|prompt| has_room(&prompt.tokens, places));
    let left_out = all - prompts.len();
    (prompts, too_long("the target's", places, left_out))
}

/// What to say of so many prompts that are left out because they fill a context, which is `whose`.
fn too_long(whose: &str, places: usize, left_out: usize) -> Option<String> {
    (left_out > 0).then(|| {
        format!(
            "evaluate: held-out prompts that fill {whose} context of {places} tokens and are left out: {left_out}"
        )
    })
}

/// What is said where fewer prompts are `there` than were asked for.
fn fewer(name: &str, asked: usize, there: usize) -> Option<String> {
    let text = || format!("evaluate: `{name}`: asked for {asked} prompts, found {there}");
    (there < asked).then(text)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::recipe;
    use crate::stages;
    use crate::stages::tests::{fixture, recipe_text, with_recipe, write_data};
    use crate::stages::validation::validation_prompts;

    /// Conversations that begin with these numbers.
    fn write(path: &Path, numbers: &[usize]) {
        let row = |&number: &usize| {
            write_data(path, number, 1);
            fs::read_to_string(path).unwrap()
        };
        let rows: Vec<String> = numbers.iter().map(row).collect();
        fs::write(path, rows.join("\n")).unwrap();
    }

    /// What is decoded of a run with the held-out prompts `eval`, what is not, and what is validated with, each as its place
    /// among the held-out prompts.
    fn places(eval: &[usize], sets: &[(&str, &[usize])], keys: &str) -> [Vec<usize>; 3] {
        let root = fixture();
        let file = |name: &str| root.path().join(name);
        write(&file("eval.jsonl"), eval);
        let mut text = recipe_text(root.path()) + keys;
        text += &format!("data.eval = {:?}\n", file("eval.jsonl"));
        text += "evaluate.max_new_tokens = 6\n";
        if !sets.is_empty() {
            let paths = sets.iter().map(|(name, numbers)| {
                write(&file(name), numbers);
                format!("{:?}", file(name))
            });
            let paths: Vec<String> = paths.collect();
            text += &format!("evaluate.prompts = [{}]\n", paths.join(", "));
        }
        let recipe = recipe::read(&text, &[]).unwrap();
        with_recipe(root.path(), &recipe, |context| {
            stages::run(context, &["prepare".into()]).unwrap();
            let all = prepare::prompts(context.run).unwrap();
            let place = |of: &Vec<u32>| all.iter().position(|prompt| prompt == of).unwrap();
            let Evaluated { read, .. } = Evaluated::of(context, "eval").unwrap();
            [
                decoded(&read).map(|prompt| place(&prompt.tokens)).collect(),
                read.others.iter().map(place).collect(),
                validation_prompts(context, 64)
                    .unwrap()
                    .iter()
                    .map(place)
                    .collect(),
            ]
        })
    }

    #[test]
    fn validations_leave_alone_what_is_evaluated_of_prompts_that_repeat() {
        // The places of an even spread are others once the repeats are left out.
        let [decoded, others, validated] =
            places(&[20, 20, 20, 21, 22, 23], &[], "evaluate.prompts = 2\n");
        assert_eq!(decoded, [0, 4]);
        assert_eq!(others, [3, 5]);
        assert_eq!(validated, [3, 5]);
        // Those that are left are validated with once, however often they are there.
        let [decoded, _, validated] =
            places(&[20, 21, 21, 21, 22, 23], &[], "evaluate.prompts = 2\n");
        assert_eq!(decoded, [0, 4]);
        assert_eq!(validated, [1, 5]);
    }

    #[test]
    fn what_is_evaluated_of_named_sets_is_neither_validated_nor_calibrated_on() {
        let numbers = [20, 21, 22, 23];
        let sets = [("eval.jsonl", &numbers[..])];
        let [decoded, others, validated] = places(&numbers, &sets, "evaluate.count = 2\n");
        assert_eq!(decoded, [0, 2]);
        assert_eq!(others, [1, 3]);
        assert_eq!(validated, [1, 3]);
        // Of another file, some of which is held out too.
        let sets = [("asked.jsonl", &[21, 23][..])];
        let [decoded, others, validated] = places(&numbers, &sets, "");
        assert_eq!(decoded, [1, 3]);
        assert_eq!(others, [0, 2]);
        assert_eq!(validated, [0, 2]);
    }

    #[test]
    fn where_all_is_evaluated_validations_have_it_too() {
        let [decoded, others, validated] = places(&[20, 21], &[], "");
        assert_eq!(decoded, [0, 1]);
        assert!(others.is_empty(), "{others:?}");
        assert_eq!(validated, [0, 1]);
    }

    #[test]
    fn prompts_that_are_not_there_are_told() {
        let told = fewer("eval", 500, 400).unwrap();
        assert_eq!(told, "evaluate: `eval`: asked for 500 prompts, found 400");
        assert_eq!(fewer("eval", 400, 400), None);
    }

    #[test]
    fn prompts_without_room_for_an_answer_are_counted() {
        let prompts = [3, 4, 5].map(|length| Prompt::from(vec![1; length]));
        let (kept, told) = fitting(prompts.to_vec(), 5);
        assert_eq!(kept.len(), 2);
        assert!(told.unwrap().ends_with("left out: 1"));
        assert_eq!(fitting(kept, 5).1, None);
    }

    #[test]
    fn what_has_no_room_with_a_further_target_is_left_out_and_counted() {
        let of = |lengths: &[usize]| -> Vec<Vec<u32>> {
            lengths.iter().map(|&length| vec![1; length]).collect()
        };
        let set = |lengths: &[usize]| PromptSet {
            name: "a".into(),
            prompts: of(lengths).into_iter().map(Prompt::from).collect(),
        };
        let mut evaluated = Evaluated {
            read: ReadSets {
                sets: vec![set(&[3, 5, 8]), set(&[9])],
                others: of(&[4, 6]),
                ..ReadSets::default()
            },
            warnings: Vec::new(),
        };
        evaluated.fit("`B`'s", 9);
        let told =
            "evaluate: held-out prompts that fill `B`'s context of 9 tokens and are left out: 1";
        assert_eq!(evaluated.warnings, [told]);
        evaluated.fit("`C`'s", 5);
        let kept: Vec<usize> = decoded(&evaluated.read).map(|of| of.tokens.len()).collect();
        assert_eq!((kept, evaluated.read.others.len()), (vec![3], 1));
        assert!(evaluated.warnings[1].ends_with("left out: 2"));
        evaluated.fit("`C`'s", 5);
        assert_eq!(evaluated.warnings.len(), 2);
    }
}
