//! Which prompts are decoded.

use spectrain_eval::{CalibrationPrompts, DraftChoice, MeasuredOn, PromptSet};

use crate::recipe::tables::EvaluateTable;

/// At most `count` prompts, spread evenly.
pub fn spread(prompts: Vec<Vec<u32>>, count: usize) -> Vec<Vec<u32>> {
    let total = prompts.len();
    let count = count.min(total);
    let mut taken = (0..count).map(|i| i * total / count).peekable();
    let keep = |(index, prompt)| (taken.next_if_eq(&index).is_some()).then_some(prompt);
    prompts.into_iter().enumerate().filter_map(keep).collect()
}

/// At most `count` prompts to evaluate, spread evenly, and the others.
pub fn split(prompts: Vec<Vec<u32>>, count: usize) -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    let judged = spread(prompts.clone(), count);
    let is_other = |prompt: &Vec<u32>| !judged.contains(prompt);
    let others = prompts.into_iter().filter(is_other).collect();
    (judged, others)
}

/// As many prompts as `table` calibrates trees on, of `others` or, without any, of those evaluated.
pub fn calibration(
    others: Vec<Vec<u32>>,
    sets: &[PromptSet],
    table: &EvaluateTable,
) -> CalibrationPrompts {
    let wanted = table.drafts.iter().filter_map(|draft| match draft {
        DraftChoice::Calibrated(calibration) => Some(calibration.prompts),
        _ => None,
    });
    let (from, measured_on) = if others.is_empty() {
        let evaluated = sets.iter().flat_map(|set| set.prompts.iter().cloned());
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
        let mut table = EvaluateTable {
            prompts: 5,
            drafts: vec![serde_json::from_str(calibrated).unwrap()],
            ..EvaluateTable::default()
        };
        let calibrated_on = |table: &EvaluateTable| {
            let (prompts, others) = split(prompts.clone(), table.prompts);
            let name = "a".to_owned();
            calibration(others, &[PromptSet { name, prompts }], table)
        };
        let found = calibrated_on(&table);
        assert_eq!(found.prompts, [[1], [5]]);
        assert_eq!(found.measured_on, MeasuredOn::Others);
        table.prompts = 10;
        let found = calibrated_on(&table);
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
