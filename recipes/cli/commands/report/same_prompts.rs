//! How to make reports of two drafters that can be compared.

use spectrain_checkpoints::launch::quote;
use spectrain_eval::Report;

use crate::recipe::tables::{PromptEntry, Prompts};

/// The commands that judge the drafters of both reports on the prompts of `baseline`, where its recipe tells them.
pub(super) fn commands(baseline: &Report, report: &Report) -> String {
    let settings = &baseline.recipe["evaluate"];
    let number = |key: &str| settings[key].as_u64();
    let (prompts, count) = prompts(baseline);
    let targets = baseline.all_targets().iter();
    let mut words = vec!["spectrain evaluate".to_owned()];
    words.extend(targets.map(|target| format!("--target {}", quote(&target.model))));
    words.push(format!("--drafter {}", drafter(baseline)));
    words.extend(prompts.iter().map(|word| format!("--prompts {word}")));
    words.extend(count.map(|count| format!("--count {count}")));
    words.extend(number("max_new_tokens").map(|tokens| format!("--max-new-tokens {tokens}")));
    format!(
        "judge both drafters on the same prompts: `{} --out OLD`, the same with `--drafter {} --out NEW`, and then \
         `spectrain report NEW --baseline OLD`",
        words.join(" "),
        drafter(report)
    )
}

fn drafter(report: &Report) -> String {
    match &*report.drafter.path {
        "" => "DRAFTER".to_owned(),
        path => quote(path),
    }
}

/// The prompts of a report as words of a command line, and how many of each set; a word to fill in where that is not known.
fn prompts(report: &Report) -> (Vec<String>, Option<u64>) {
    let settings = &report.recipe["evaluate"];
    let given = serde_json::from_value(settings["prompts"].clone()).ok();
    let known = match given {
        Some(Prompts::Sets(sets)) => {
            let short = sets.iter().map(|entry| match entry {
                PromptEntry::Short(name) => Some(quote(name)),
                PromptEntry::Table(_) => None,
            });
            let words: Option<Vec<String>> = short.collect();
            words.map(|words| (words, settings["count"].as_u64()))
        }
        Some(Prompts::Count(count)) => {
            let eval = report.recipe["data"]["eval"].as_str();
            eval.map(|path| (vec![quote(path)], Some(count as u64)))
        }
        None => None,
    };
    known.unwrap_or_else(|| (vec!["PROMPTS".to_owned()], None))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use serde_json::{Value, json};
    use spectrain_eval::{DrafterReport, TargetReport};

    use crate::cli::Arguments;

    fn report(drafter: &str, recipe: Value) -> Report {
        let target = TargetReport {
            model: "Qwen/Qwen3-8B".into(),
            ..TargetReport::default()
        };
        let drafter = DrafterReport {
            path: drafter.into(),
            ..DrafterReport::default()
        };
        let mut report = Report::new(target, drafter, Vec::new());
        report.recipe = recipe;
        report
    }

    fn told(recipe: Value) -> String {
        commands(&report("runs/a b", recipe), &report("me/new", Value::Null))
    }

    #[test]
    fn what_would_make_two_reports_comparable_is_a_command_of_this_program() {
        let sets = json!({"evaluate": {"prompts": ["gsm8k", "it's.jsonl"], "count": 80, "max_new_tokens": 16}});
        let words = "spectrain evaluate --target Qwen/Qwen3-8B --drafter 'runs/a b' --prompts gsm8k --prompts 'it'\\''s.jsonl' \
                     --count 80 --max-new-tokens 16 --out OLD`";
        let found = told(sets);
        assert!(found.contains(words), "{found}");
        assert!(
            found.contains(
                "`--drafter me/new --out NEW`, and then `spectrain report NEW --baseline OLD`"
            ),
            "{found}"
        );
        let run = json!({"data": {"eval": "eval.jsonl"}, "evaluate": {"prompts": 2}});
        assert!(told(run).contains("--prompts eval.jsonl --count 2 --out"));
        let table = json!({"evaluate": {"prompts": [{"preset": "gsm8k"}], "count": 80}});
        for recipe in [table, json!({"evaluate": {"prompts": 2}}), Value::Null] {
            let found = told(recipe);
            assert!(found.contains("--prompts PROMPTS --out OLD"), "{found}");
        }
        let words = "spectrain evaluate --target T --drafter D --prompts P --count 2 --max-new-tokens 8 --out OLD";
        Arguments::try_parse_from(words.split(' ')).unwrap();
        Arguments::try_parse_from("spectrain report NEW --baseline OLD".split(' ')).unwrap();
    }
}
