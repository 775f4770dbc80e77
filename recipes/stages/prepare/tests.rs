//! What the stage makes of data and templates of different kinds.

use std::collections::BTreeSet;

use serde_json::Map;
use spectrain_data::conversation::Message;
use spectrain_data::template::GenerationPrompt;
use spectrain_data::tokenizer::Special;
use spectrain_data::tokens::TokenShards;

use super::*;
use crate::recipe;
use crate::runtime::target;
use crate::stages;
use crate::stages::tests::{fixture, recipe_text, with_recipe, write_data};

/// Runs the stage with further keys of the recipe; its summary and what is in its folder.
fn prepared(root: &Path, keys: &str) -> (Value, Left) {
    let recipe = recipe::read(&(recipe_text(root) + keys), &[]).unwrap();
    with_recipe(root, &recipe, |context| {
        stages::run(context, &["prepare".into()]).unwrap();
        let manifest = context.run.manifest("prepare").unwrap().unwrap();
        let (tokenizer, _) =
            target::text(&context.target_folder().unwrap(), None, &Map::new()).unwrap();
        let text = |tokens: &[u32]| tokenizer.decode(tokens, Special::Keep).unwrap();
        let samples = |name: &str| {
            let shards = TokenShards::open(context.folder("prepare").join(name)).unwrap();
            shards.iter().map(|sample| text(sample.tokens)).collect()
        };
        let left = Left {
            train: samples("train"),
            eval: samples("eval"),
            prompts: prompts(context.run)
                .unwrap()
                .iter()
                .map(|prompt| text(prompt))
                .collect(),
            index: TokenShards::open(context.folder("prepare").join("train"))
                .unwrap()
                .index()
                .extra
                .clone(),
            settings: manifest.settings,
        };
        (manifest.summary, left)
    })
}

/// What the stage leaves, as texts.
struct Left {
    train: Vec<String>,
    eval: Vec<String>,
    prompts: Vec<String>,
    index: Map<String, Value>,
    settings: Value,
}

#[test]
fn it_is_said_why_more_rows_than_prompts_are_held_out() {
    let told = "prepare: held out of `data.train` for the evaluation:";
    let why = "rows with the same prompt stay together";
    for (prompts, rows, expected) in [
        (64, 64, format!("{told} 64 prompts in 64 rows")),
        (64, 65, format!("{told} 64 prompts in 65 rows: {why}")),
        (1, 1, format!("{told} 1 prompt in 1 row")),
    ] {
        assert_eq!(told_of_held_out(prompts, rows), expected);
    }
}

#[test]
fn variables_of_the_template_decide_on_samples_and_prompts_and_are_recorded() {
    let root = fixture();
    let template = "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>a\n{{ m.content }}<|im_end|>\n\
        {% else %}<|im_start|>u\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>a\n{% if enable_thinking is false %}no thoughts {% endif %}{% endif %}";
    fs::write(root.path().join("target/chat_template.jinja"), template).unwrap();
    let keys = format!("data.eval = {:?}\n", root.path().join("eval.jsonl"));
    let (_, plain) = prepared(root.path(), &keys);
    assert!(
        plain.prompts[0].ends_with("<|im_start|>a\n"),
        "{}",
        plain.prompts[0]
    );
    let keys = keys + "data.template_variables = { enable_thinking = false }\n";
    let (_, set) = prepared(root.path(), &keys);
    assert!(
        set.prompts[0].ends_with("<|im_start|>a\nno thoughts "),
        "{}",
        set.prompts[0]
    );
    let variables = json!({"enable_thinking": false});
    assert_eq!(set.settings["data"]["template_variables"], variables);
    assert_eq!(set.index["template_variables"], variables);
}

/// ChatML in which answers begin behind a date that prompts end with.
const DATED: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
    {% if add_generation_prompt %}<|im_start|>assistant\n{{ strftime_now('%d %B') }}{% endif %}";
/// A day in seconds since 1970.
const LEAP_DAY: u64 = 1_709_164_800;

#[test]
fn a_template_that_prints_the_date_prints_that_of_the_recipe() {
    let root = fixture();
    fs::write(root.path().join("target/chat_template.jinja"), DATED).unwrap();
    let keys = format!("data.eval = {:?}\n", root.path().join("eval.jsonl"));
    let (summary, left) = prepared(root.path(), &(keys + "data.date = \"2024-02-29\"\n"));
    assert!(
        left.prompts[0].ends_with("assistant\n29 February"),
        "{}",
        left.prompts[0]
    );
    assert_eq!(summary["date"], json!("2024-02-29"));
    assert_eq!(left.settings["data"]["date"], json!("2024-02-29"));
    let refused = recipe::read(
        &(recipe_text(root.path()) + "data.date = \"29 Feb 2024\"\n"),
        &[],
    );
    let refused = format!("{:#}", refused.err().unwrap());
    assert!(refused.contains("a day such as `2026-11-29`"), "{refused}");
}

#[test]
fn a_template_that_prints_the_date_prints_on_all_days_that_on_which_the_run_began_to_render() {
    let root = fixture();
    fs::write(root.path().join("target/chat_template.jinja"), DATED).unwrap();
    let keys = format!("data.eval = {:?}\n", root.path().join("eval.jsonl"));
    let recipe = recipe::read(&(recipe_text(root.path()) + &keys), &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        stages::run(context, &["prepare".into()]).unwrap();
        // As an earlier version left it, which had no key for the day and noted none.
        let run = context.run.path().join("run.json");
        let mut noted: Value = serde_json::from_str(&fs::read_to_string(&run).unwrap()).unwrap();
        let day = noted.as_object_mut().unwrap().shift_remove("day");
        assert_eq!(day.as_ref(), Some(&json!(context.day().unwrap())));
        fs::write(&run, noted.to_string()).unwrap();
        let path = context.folder("prepare").join("manifest.json");
        let text = fs::read_to_string(&path).unwrap();
        let mut manifest: Value = serde_json::from_str(&text).unwrap();
        manifest["started"] = json!(LEAP_DAY);
        let keys = manifest["settings"]["data"].as_object_mut().unwrap();
        assert_eq!(keys.shift_remove("date"), Some(Value::Null));
        let told = manifest["summary"].as_object_mut().unwrap();
        assert_eq!(told.shift_remove("date"), day);
        manifest.as_object_mut().unwrap().shift_remove("sha256");
        fs::write(&path, manifest.to_string()).unwrap();

        let text = context.text().unwrap();
        let asked = [Message::new("user", "one")];
        let prompt = text.template.unwrap();
        let prompt = prompt.render(&asked[..], GenerationPrompt::With).unwrap();
        assert!(prompt.ends_with("assistant\n29 February"), "{prompt}");
        // It is still done.
        stages::run(context, &["prepare".into()]).unwrap();
        let manifest = context.run.manifest("prepare").unwrap().unwrap();
        assert_eq!(manifest.started, LEAP_DAY);
    });
    let keys = keys + "data.max_length = 1024\n";
    let recipe = recipe::read(&(recipe_text(root.path()) + &keys), &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        stages::run(context, &["prepare".into()]).unwrap();
        let manifest = context.run.manifest("prepare").unwrap().unwrap();
        assert_ne!(manifest.started, LEAP_DAY);
        assert_eq!(manifest.summary["date"], json!("2024-02-29"));
        context.run.clear("prepare").unwrap();
        assert_eq!(context.day().unwrap().to_string(), "2024-02-29");
    });
}

#[test]
fn the_day_of_prepared_texts_is_that_which_they_say() {
    let root = fixture();
    fs::write(root.path().join("target/chat_template.jinja"), DATED).unwrap();
    let keys = format!("data.eval = {:?}\n", root.path().join("eval.jsonl"));
    let given = keys.clone() + "data.date = \"2024-02-29\"\n";
    prepared(root.path(), &given);
    let recipe = recipe::read(&(recipe_text(root.path()) + &keys), &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        let told = || context.day().unwrap().to_string();
        assert_eq!(told(), "2024-02-29");
        // Whatever the run has noted before it took them over.
        let day = "2024-03-01".parse().unwrap();
        context.run.note_day(day).unwrap();
        assert_eq!(told(), "2024-02-29");
    });
}

#[test]
fn tokens_are_counted_as_they_are_written_with_copies_by_weight() {
    let root = fixture();
    let file = root.path().join("train.jsonl");
    let text = recipe_text(root.path());
    let without = text.lines().filter(|line| !line.starts_with("data.train"));
    let recipe = without.collect::<Vec<_>>().join("\n")
        + &format!(
            "\ndata.eval = {:?}\n[[data.train]]\npath = {file:?}\nweight = 3\n",
            root.path().join("eval.jsonl")
        );
    let recipe = recipe::read(&recipe, &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        stages::run(context, &["prepare".into()]).unwrap();
        let shards = TokenShards::open(context.folder("prepare").join("train")).unwrap();
        let counts = counts(context.run).unwrap();
        let mut expected = vec![0; counts.len()];
        for sample in shards.iter() {
            for (&token, &trained) in sample.tokens.iter().zip(sample.loss_mask) {
                expected[token as usize] += u64::from(trained);
            }
        }
        assert_eq!(counts, expected);
        assert_eq!(counts.iter().sum::<u64>(), shards.index().trained_tokens);
    });
}

#[test]
fn variables_of_a_row_decide_on_its_sample_and_its_prompt_alone() {
    let root = fixture();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is false %}no thoughts {% endif %}{% endif %}";
    fs::write(root.path().join("target/chat_template.jinja"), template).unwrap();
    let said = |role: &str, content: &str| json!({"role": role, "content": content});
    let row = |thinks: Value| {
        let messages = [said("user", "one"), said("assistant", "no thoughts two")];
        json!({"messages": messages, "chat_template_kwargs": {"enable_thinking": thinks}})
    };
    let rows = [row(json!(false)), row(json!(true))];
    let rows = rows.map(|row| row.to_string()).join("\n");
    for name in ["train.jsonl", "eval.jsonl"] {
        fs::write(root.path().join(name), &rows).unwrap();
    }
    let keys = format!(
        "data.eval = {:?}\ndata.template_variables = {{ enable_thinking = true }}\n",
        root.path().join("eval.jsonl")
    );
    let (summary, left) = prepared(root.path(), &keys);
    let prompts = left.prompts.iter();
    let begun = prompts.map(|prompt| prompt.ends_with("assistant\nno thoughts "));
    assert_eq!(begun.collect::<Vec<_>>(), [true, false]);
    // Of the same text what the generation prompt begins is trained on in the second row alone.
    assert_eq!(left.train[0], left.train[1]);
    assert_eq!(summary["train"]["duplicates"]["count"], json!(0));
}

#[test]
fn without_evaluation_data_prompts_are_held_out_of_the_training_data() {
    let root = fixture();
    write_data(&root.path().join("train.jsonl"), 0, 40);
    let (summary, left) = prepared(root.path(), "data.held_out = 0.1\n");
    assert_eq!(
        summary["held_out"],
        json!({"share": 0.1, "prompts": 8, "rows": 8})
    );
    let (train, eval): (BTreeSet<_>, BTreeSet<_>) =
        (left.train.iter().collect(), left.eval.iter().collect());
    assert_eq!((train.len(), eval.len(), left.prompts.len()), (32, 8, 8));
    assert!(train.is_disjoint(&eval));
    // Written in another order and some of it twice, the same is held out.
    let text = fs::read_to_string(root.path().join("train.jsonl")).unwrap();
    let lines: Vec<&str> = text.lines().rev().chain(text.lines().take(20)).collect();
    fs::write(root.path().join("train.jsonl"), lines.join("\n")).unwrap();
    let (summary, again) = prepared(root.path(), "data.held_out = 0.1\n");
    let warnings = summary["warnings"].to_string();
    let named = "the held-out rows of `data.train`: ";
    assert!(
        warnings.contains(named) && !warnings.contains("`data.eval`"),
        "{warnings}"
    );
    assert_eq!(again.eval.iter().collect::<BTreeSet<_>>(), eval);
    assert_eq!(again.train.iter().collect::<BTreeSet<_>>(), train);
}

#[test]
fn weights_decide_how_often_samples_are_there() {
    let root = fixture();
    write_data(&root.path().join("more.jsonl"), 50, 5);
    let path = |name: &str| root.path().join(name);
    let keys = format!(
        "data.eval = {:?}\n[[data.train]]\npath = {:?}\n[[data.train]]\npath = {:?}\nweight = 3\n",
        path("eval.jsonl"),
        path("train.jsonl"),
        path("mor?.jsonl"),
    );
    let text = recipe_text(root.path());
    let without = text.lines().filter(|line| !line.starts_with("data.train"));
    let recipe = without.collect::<Vec<_>>().join("\n") + "\n" + &keys;
    let recipe = recipe::read(&recipe, &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        stages::run(context, &["prepare".into()]).unwrap();
        let summary = context.run.manifest("prepare").unwrap().unwrap().summary;
        assert_eq!(
            (&summary["train"]["kept"], &summary["train"]["copies"]),
            (&json!(17), &json!(10))
        );
        let shards = TokenShards::open(context.folder("prepare").join("train")).unwrap();
        assert_eq!(shards.len(), 12 + 15);
    });
}

#[test]
fn a_template_that_drops_earlier_reasoning_gets_a_sample_for_each_answer() {
    let root = fixture();
    let template = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {{ m.content.split('|')[-1] if m.role == 'assistant' and not loop.last else m.content }}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    fs::write(root.path().join("target/chat_template.jinja"), template).unwrap();
    let said = |role: &str, text: &str| json!({"role": role, "content": text});
    let row = json!({"messages": [said("user", "one"), said("assistant", "x|two"), said("user", "three"), said("assistant", "y|four")]});
    fs::write(root.path().join("train.jsonl"), format!("{row}\n")).unwrap();
    let keys = format!("data.eval = {:?}\n", root.path().join("eval.jsonl"));
    let (summary, left) = prepared(root.path(), &keys);
    let train = &summary["train"];
    assert_eq!(
        (&train["expanded"], &train["added"], &train["kept"]),
        (&json!(1), &json!(1), &json!(2))
    );
    assert!(
        left.train[0].contains("x|two")
            && !left.train[1].contains("x|")
            && left.train[1].contains("y|four")
    );
    let (summary, left) = prepared(root.path(), &(keys + "data.turns = \"joined\"\n"));
    assert_eq!(
        (&summary["train"]["expanded"], left.train.len()),
        (&json!(0), 1)
    );
}

/// What the stage says where it fails on these rows, of which some are to be held out.
fn refused(rows: &str) -> String {
    let root = fixture();
    fs::write(root.path().join("train.jsonl"), rows).unwrap();
    let recipe = recipe::read(&recipe_text(root.path()), &[]).unwrap();
    with_recipe(root.path(), &recipe, |context| {
        let error = stages::run(context, &["prepare".into()]).unwrap_err();
        format!("{error:#}")
    })
}

#[test]
fn what_is_held_out_is_named_only_where_nothing_can_be() {
    let row = |role: &str| {
        let said = |role: &str| json!({"role": role, "content": "one"});
        json!({"messages": [said("user"), said(role)]}).to_string() + "\n"
    };
    let broken = refused(&(row("assistant") + "not json\n"));
    assert!(
        broken.contains("cannot prepare `data.train`: ")
            && broken.ends_with("train.jsonl` row 2 is not JSON: expected ident at column 2")
            && !broken.contains("is not set"),
        "{broken}"
    );
    let single = refused(&row("assistant"));
    assert!(
        single.contains("`data.eval` is not set: no prompt can be held out"),
        "{single}"
    );
}

#[test]
fn rows_that_are_trained_on_from_their_first_token_are_no_prompts_and_are_counted() {
    let root = fixture();
    let row = |mask: [u8; 4]| json!({"input_ids": [5, 6, 7, 8], "loss_mask": mask}).to_string();
    let rows = [row([0, 0, 1, 1]), row([1, 1, 1, 1]), row([1, 0, 1, 1])];
    fs::write(root.path().join("eval.jsonl"), rows.join("\n")).unwrap();
    let keys = format!("data.eval = {:?}\n", root.path().join("eval.jsonl"));
    let (summary, left) = prepared(root.path(), &keys);
    assert_eq!((left.eval.len(), left.prompts.len()), (3, 1));
    assert_eq!(summary["rows_without_prompt"], json!(2));
}

#[test]
fn what_is_wrong_with_samples_is_said_once() {
    let root = fixture();
    write_data(&root.path().join("train.jsonl"), 0, 4);
    let rows = fs::read_to_string(root.path().join("train.jsonl")).unwrap();
    let long = json!({"messages": [
        {"role": "user", "content": "count"},
        {"role": "assistant", "content": "one two three ".repeat(400)},
    ]});
    let first = rows.lines().next().unwrap();
    let text = format!("{rows}\n{long}\n{long}\n{first}\n");
    fs::write(root.path().join("train.jsonl"), text).unwrap();
    let keys = format!(
        "data.eval = {:?}\ndata.max_length = 100\ndata.overlong = \"drop\"\n",
        root.path().join("eval.jsonl")
    );
    let (summary, _) = prepared(root.path(), &keys);
    let place = format!("`{}`", root.path().join("train.jsonl").display());
    let warnings: Vec<&str> = summary["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let of_train = warnings.into_iter().filter(|one| one.contains(&place));
    let of_train: Vec<&str> = of_train.collect();
    assert_eq!(
        of_train,
        [
            format!("`data.train`: 2 left out, too long: {place} rows 5, 6"),
            format!("`data.train`: 1 equal to an earlier sample: {place} row 7"),
        ]
    );
}
