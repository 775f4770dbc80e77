//! Which prompts are decoded.

use std::collections::{HashMap, HashSet};

use spectrain_eval::{CalibrationPrompts, DraftChoice, MeasuredOn, Prompt, PromptSet, evenly};

use crate::recipe::tables::EvaluateTable;

/// Whether a target of so many positions has room for a token behind a prompt.
pub fn has_room(prompt: &[u32], positions: usize) -> bool {
    prompt.len() < positions
}

/// The prompts without those that ask the same as an earlier one, and how many those are. An answer says once what it says: counted
/// as often as it is repeated, it would make intervals narrower than what is known.
pub fn distinct(prompts: Vec<Prompt>) -> (Vec<Prompt>, usize) {
    let all = prompts.len();
    let mut kept: Vec<Prompt> = Vec::with_capacity(all);
    let mut places: HashMap<Vec<u32>, Vec<usize>> = HashMap::new();
    for prompt in prompts {
        let alike = places.entry(prompt.tokens.clone()).or_default();
        if !alike.iter().any(|&at| kept[at].asks_as(&prompt)) {
            alike.push(kept.len());
            kept.push(prompt);
        }
    }
    let repeated = all - kept.len();
    (kept, repeated)
}

/// The same of prompts after whose answers nothing is asked.
pub fn distinct_tokens(prompts: Vec<Vec<u32>>) -> (Vec<Vec<u32>>, usize) {
    let (kept, repeated) = distinct(prompts.into_iter().map(Prompt::from).collect());
    let kept = kept.into_iter().map(|prompt| prompt.tokens);
    (kept.collect(), repeated)
}

/// What is said of so many prompts of `name` that were left out because they repeat others.
pub fn repeated(name: &str, count: usize) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "prompts of `{name}` that repeat an earlier one and are left out, as they would only make intervals too narrow: {count}"
        )
    })
}

/// What is said of so many of these prompts that were left out because they are longer than allowed.
pub fn too_long(prompts: &str, longest: &str, count: usize) -> Option<String> {
    (count > 0).then(|| format!("{prompts} longer than {longest}, which are left out: {count}"))
}

/// What is said of so many of these rows of tokens that have no prompt.
pub fn without_prompt(rows: &str, count: usize) -> Option<String> {
    (count > 0).then(|| {
        format!(
            "{rows} that are trained on from their first token, so that nothing of them is a prompt: {count}"
        )
    })
}

/// At most `count` prompts to evaluate, spread evenly, and the first turns of the others.
pub fn split(prompts: Vec<Prompt>, count: usize) -> (Vec<Prompt>, Vec<Vec<u32>>) {
    let all: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
    let judged = evenly(prompts, count);
    let others = beside(&judged, all);
    (judged, others)
}

/// Those of `prompts` that none of `judged` begins with.
pub fn beside<'a>(
    judged: impl IntoIterator<Item = &'a Prompt>,
    mut prompts: Vec<Vec<u32>>,
) -> Vec<Vec<u32>> {
    let judged = judged.into_iter().map(|prompt| &prompt.tokens[..]);
    let judged: HashSet<&[u32]> = judged.collect();
    prompts.retain(|prompt| !judged.contains(&prompt[..]));
    prompts
}

/// The prompts that `table` calibrates trees and tunes thresholds on, where it does: `others` or, without any, those evaluated.
pub fn calibration(
    others: Vec<Vec<u32>>,
    sets: &[PromptSet],
    table: &EvaluateTable,
) -> CalibrationPrompts {
    let mut wanted = table.drafts.iter().filter_map(DraftChoice::prompts);
    if wanted.next().is_none() {
        return CalibrationPrompts::default();
    }
    let (prompts, measured_on) = if others.is_empty() {
        let evaluated = sets.iter().flat_map(|set| &set.prompts);
        let evaluated = evaluated.map(|prompt| prompt.tokens.clone());
        (evaluated.collect(), MeasuredOn::Evaluated)
    } else {
        (others, MeasuredOn::Others)
    };
    CalibrationPrompts {
        prompts,
        measured_on,
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::sync::Arc;

    use spectrain_eval::Later;

    use super::*;

    #[test]
    fn trees_are_calibrated_on_prompts_that_do_not_count() {
        let prompts: Vec<Vec<u32>> = (0..10).map(|i| vec![i]).collect();
        let calibrated = r#"{ "shape": "calibrated", "nodes": 5, "prompts": 2 }"#;
        let table = EvaluateTable {
            drafts: vec![serde_json::from_str(calibrated).unwrap()],
            ..EvaluateTable::default()
        };
        let calibrated_on = |count: usize| {
            let prompts = prompts.iter().cloned().map(Prompt::from).collect();
            let (prompts, others) = split(prompts, count);
            let name = "a".to_owned();
            calibration(others, &[PromptSet { name, prompts }], &table)
        };
        let found = calibrated_on(5);
        assert_eq!(found.of(2), [[1], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Others);
        let found = calibrated_on(10);
        assert_eq!(found.of(2), [[0], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Evaluated);
        // Where nothing is found on prompts, none are held.
        let none = EvaluateTable::default();
        assert_eq!(
            calibration(prompts, &[], &none),
            CalibrationPrompts::default()
        );
    }

    #[derive(Debug)]
    struct Turns(&'static [&'static str]);

    impl Later for Turns {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn identity(&self) -> String {
            format!("{:?}", self.0)
        }

        fn ask(&self, _: &[Vec<u32>]) -> Result<Vec<u32>, Box<dyn Error + Send + Sync>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_prompt_that_is_there_already_is_left_out() {
        let of = |tokens: &[u32], turns: Option<&'static [&'static str]>| Prompt {
            later: turns.map(|turns| Arc::new(Turns(turns)) as Arc<dyn Later>),
            ..Prompt::from(tokens.to_vec())
        };
        let given = vec![
            of(&[1, 2], None),
            of(&[3], None),
            of(&[1, 2], None),
            of(&[1, 2], Some(&["go on"])),
            of(&[1, 2], Some(&["stop"])),
            of(&[1, 2], Some(&["go on"])),
            of(&[3], None),
        ];
        let (kept, count) = distinct(given);
        let found: Vec<(&[u32], usize)> = kept
            .iter()
            .map(|prompt| (&prompt.tokens[..], prompt.turns()))
            .collect();
        assert_eq!(
            found,
            [(&[1, 2][..], 1), (&[3], 1), (&[1, 2], 2), (&[1, 2], 2)]
        );
        assert_eq!(count, 3);
        assert!(repeated("a", count).unwrap().ends_with(": 3"));
        assert_eq!(repeated("a", 0), None);
    }
}
