//! Which prompts are decoded.

use spectrain_eval::{CalibrationPrompts, DraftChoice, MeasuredOn, Prompt, PromptSet};

use crate::recipe::tables::EvaluateTable;

/// Whether a target of so many positions has room for a token behind a prompt.
pub fn has_room(prompt: &[u32], positions: usize) -> bool {
    prompt.len() < positions
}

/// At most `count` prompts, spread evenly.
pub fn spread<T>(prompts: Vec<T>, count: usize) -> Vec<T> {
    let total = prompts.len();
    let count = count.min(total);
    let mut taken = (0..count).map(|i| i * total / count).peekable();
    let keep = |(index, prompt)| (taken.next_if_eq(&index).is_some()).then_some(prompt);
    prompts.into_iter().enumerate().filter_map(keep).collect()
}

/// At most `count` prompts to evaluate, spread evenly, and the first turns of the others.
pub fn split(prompts: Vec<Prompt>, count: usize) -> (Vec<Prompt>, Vec<Vec<u32>>) {
    let all: Vec<Vec<u32>> = prompts.iter().map(|prompt| prompt.tokens.clone()).collect();
    let judged = spread(prompts, count);
    let is_other = |tokens: &Vec<u32>| judged.iter().all(|prompt| prompt.tokens != *tokens);
    let others = all.into_iter().filter(is_other).collect();
    (judged, others)
}

/// As many prompts as `table` calibrates trees and tunes thresholds on, of `others` or, without any, of those evaluated.
pub fn calibration(
    others: Vec<Vec<u32>>,
    sets: &[PromptSet],
    table: &EvaluateTable,
) -> CalibrationPrompts {
    let wanted = table.drafts.iter().filter_map(DraftChoice::prompts);
    let (from, measured_on) = if others.is_empty() {
        let evaluated = sets.iter().flat_map(|set| &set.prompts);
        let evaluated = evaluated.map(|prompt| prompt.tokens.clone());
        (evaluated.collect(), MeasuredOn::Evaluated)
    } else {
        (others, MeasuredOn::Others)
    };
    CalibrationPrompts {
        prompts: spread(from, wanted.max().unwrap_or(0)),
        measured_on,
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(found.prompts, [[1], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Others);
        let found = calibrated_on(10);
        assert_eq!(found.prompts, [[0], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Evaluated);
    }

    #[test]
    fn prompts_are_taken_evenly_and_never_twice() {
        let prompts: Vec<Vec<u32>> = (0..10).map(|i| vec![i]).collect();
        assert_eq!(spread(prompts.clone(), 3), [[0], [3], [6]]);
        assert_eq!(spread(prompts.clone(), 10), prompts);
        assert_eq!(spread(prompts.clone(), 64), prompts);
    }
}
