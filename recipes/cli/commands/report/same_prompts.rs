//! How to make reports of two drafters that can be compared.

use spectrain_checkpoints::launch::quote;
use spectrain_eval::Report;

use crate::recipe::tables::{PromptEntry, Prompts};
use crate::runtime::target::TEMPLATE_VARIABLES;

/// The commands that judge the drafters of both reports on the prompts of `baseline`, where its recipe tells them.
pub(super) fn commands(baseline: &Report, report: &Report) -> String {
    let settings = &baseline.recipe["evaluate"];
    let number = |key: &str| settings[key].as_u64();
    let (prompts, count) = prompts(baseline);
    let targets = baseline.all_targets().iter();
    let mut words = vec!["spectrain evaluate".to_owned()];
    words.extend(targets.map(|target| format!("--target {}", quote(&target.model))));
    words.push(drafter(baseline));
    words.extend(prompts.iter().map(|word| format!("--prompts {word}")));
    words.extend(count.map(|count| format!("--count {count}")));
    words.extend(number("max_new_tokens").map(|tokens| format!("--max-new-tokens {tokens}")));
    if is_served(baseline) {
        words.extend(asked(baseline));
    }
    format!(
        "judge both drafters on the same prompts: `{} --out OLD`, the same with `{} --out NEW`, and then \
         `spectrain report NEW --baseline OLD`",
        words.join(" "),
        drafter(report)
    )
}

/// Whether all its figures are those of a server.
fn is_served(report: &Report) -> bool {
    report.settings.is_empty() && !report.served.is_empty()
}

/// The drafter of a report, or the server that has it, as words of a command line.
fn drafter(report: &Report) -> String {
    let (option, unknown) = match is_served(report) {
        true => ("--server", "URL"),
        false => ("--drafter", "DRAFTER"),
    };
    match &*report.drafter.path {
        "" => format!("{option} {unknown}"),
        path => format!("{option} {}", quote(path)),
    }
}

/// What else a server's prompts and answers depend on, as words of a command line.
fn asked(report: &Report) -> Vec<String> {
    let variables = report.recipe["data"][TEMPLATE_VARIABLES].as_object();
    let variables = variables.into_iter().flatten();
    let mut words: Vec<String> = variables
        .map(|(name, value)| format!("--template-variable {}", quote(&format!("{name}={value}"))))
        .collect();
    let mut asked = report.served.iter().filter_map(|run| run.asked.as_ref());
    if asked.next().is_some_and(|asked| asked.stop.is_empty()) {
        words.push("--ignore-stop".to_owned());
    }
    words
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
        let run = json!({
            "role": "drafter", "url": "http://a:1", "model": "m", "temperature": 0.0, "concurrency": 1, "prompts": 2,
            "asked": {"prompts_sha256": "a", "max_new_tokens": 8},
        });
        let served = |url: &str, recipe: Value| {
            let mut served = report(url, recipe);
            served.served = vec![serde_json::from_value(run.clone()).unwrap()];
            served
        };
        let recipe = json!({
            "evaluate": {"prompts": ["mt-bench"], "count": 80, "max_new_tokens": 8},
            "data": {"template_variables": {"enable_thinking": false}},
        });
        let found = commands(
            &served("http://a:1", recipe),
            &served("http://b:1", Value::Null),
        );
        let words = "--target Qwen/Qwen3-8B --server http://a:1 --prompts mt-bench --count 80 --max-new-tokens 8 \
                     --template-variable enable_thinking=false --ignore-stop --out OLD`, the same with `--server http://b:1 --out NEW`";
        assert!(found.contains(words), "{found}");
        let words = "spectrain evaluate --target T --drafter D --prompts P --count 2 --max-new-tokens 8 --out OLD";
        Arguments::try_parse_from(words.split(' ')).unwrap();
        Arguments::try_parse_from("spectrain report NEW --baseline OLD".split(' ')).unwrap();
    }
}
