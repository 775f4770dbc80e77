//! What the linter reports of small datasets.

use serde_json::json;

use super::*;
use crate::conversation::Conversation;
use crate::mask::Masking;
use crate::prepare::{Overlong, Turns};
use crate::template::tests::CHATML;
use crate::tokenizer::tests::small;
use crate::unusable::Unusable;

/// The end of an answer is no part of it.
const UNENDING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}\
    {% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}";

fn chat(user: &str, assistant: &str) -> Row {
    let messages = vec![
        Message::new("user", user),
        Message::new("assistant", assistant),
    ];
    Conversation::new(messages).into()
}

fn tokens(tokens: &[u32], trained: bool) -> Row {
    Row::from(Sample {
        tokens: tokens.to_vec(),
        loss_mask: vec![trained; tokens.len()],
    })
}

fn located(file: &'static str, rows: Vec<Row>) -> impl Iterator<Item = Result<LocatedRow>> {
    rows.into_iter()
        .zip(1..)
        .map(move |(row, at)| Ok(LocatedRow::new(Location::new(file, at), row)))
}

fn said(messages: &[(&str, &str)]) -> Row {
    let messages = messages
        .iter()
        .map(|(role, content)| Message::new(*role, *content));
    Conversation::new(messages.collect()).into()
}

fn report(train: Vec<Row>, eval: Vec<Row>, masking: Masking) -> LintReport {
    report_with(CHATML, train, eval, masking)
}

fn report_with(template: &str, train: Vec<Row>, eval: Vec<Row>, masking: Masking) -> LintReport {
    let (train, eval) = (located("train", train), located("eval", eval));
    report_of(template, train, eval, masking)
}

fn report_of(
    template: &str,
    train: impl Iterator<Item = Result<LocatedRow>>,
    eval: impl Iterator<Item = Result<LocatedRow>>,
    masking: Masking,
) -> LintReport {
    let template = ChatTemplate::from_source(template, None, None).unwrap();
    linted(&template, train, eval, masking)
}

fn linted(
    template: &ChatTemplate,
    train: impl Iterator<Item = Result<LocatedRow>>,
    eval: impl Iterator<Item = Result<LocatedRow>>,
    masking: Masking,
) -> LintReport {
    let settings = PrepareSettings {
        max_length: 30,
        overlong: Overlong::Truncate,
        masking,
        turns: Turns::Auto,
        min_trained_tokens: 1,
        unusable: Unusable::Refuse,
        vocab: 320,
    };
    let tokenizer = small();
    let linter = Linter {
        template: Some(template),
        tokenizer: &tokenizer,
        settings: &settings,
        stop_tokens: &[tokenizer.token_id("<|im_end|>").unwrap()],
        draft_vocabularies: &[1, 2, 320],
        shown: 1,
        lists_rows: true,
    };
    lint(train, eval, &linter).unwrap()
}

#[test]
fn clean_data_has_no_problems_and_a_visible_mask() {
    let report = report(
        vec![chat("the dog", "the cat")],
        vec![chat("a mat", "ran")],
        Masking::Assistant,
    );
    assert_eq!(report.problems(), [""; 0]);
    assert_eq!(
        report.shown[0].text,
        "<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>assistant\n⟦the cat<|im_end|>⟧\n"
    );
    assert!(report.to_string().ends_with("no problems found"));
}

#[test]
fn every_kind_of_damage_is_reported_with_its_place() {
    let train = vec![
        chat("the dog", "the cat"),
        chat("the dog", "the cat"),
        tokens(&[1, 2], false),
        tokens(&[1, 2], true),
        tokens(&[999], true),
        tokens(&[7; 31], true),
    ];
    let report = report(
        train,
        vec![chat(" the dog\n", "something else")],
        Masking::Assistant,
    );
    let problems = report.problems().join("\n");
    for expected in [
        "1 training row cannot be used: `train` row 5: token 999",
        "1 training sample has nothing to train on: `train` row 3",
        "2 training samples are trained on from end to end, prompt included: `train` rows 4, 6",
        "1 training sample repeats an earlier one: `train` row 2",
        "1 training sample is longer than `max_length`: `train` row 6",
        "1 evaluation prompt also occurs in the training data: `eval` row 1",
    ] {
        assert!(
            problems.contains(expected),
            "{expected}\nnot in\n{problems}"
        );
    }
    assert_eq!((report.train.samples, report.train.refused.count), (5, 1));
    let flawed = report.rows();
    let rows: Vec<_> = flawed
        .iter()
        .map(|flawed| (flawed.set, flawed.problem, flawed.row))
        .collect();
    assert_eq!(
        rows,
        [
            ("train", "refused", 5),
            ("train", "all_zero", 3),
            ("train", "all_one", 4),
            ("train", "all_one", 6),
            ("train", "duplicates", 2),
            ("train", "overlong", 6),
            ("eval", "overlap", 1),
        ]
    );
    assert_eq!(flawed[0].file, "train");
    assert!(
        flawed[0].reason.starts_with("token 999 is outside"),
        "{flawed:?}"
    );
}

#[test]
fn a_prompt_occurs_in_the_training_data_where_the_same_is_said_before_an_answer_there() {
    let talk = |question: &str| {
        said(&[
            ("user", "a"),
            ("assistant", "b"),
            ("user", question),
            ("assistant", "d"),
        ])
    };
    // Another question behind the same example is another prompt.
    let overlap = |eval: Row| report(vec![talk("c")], vec![eval], Masking::Assistant).overlap;
    assert_eq!(overlap(talk("e")).count, 0);
    assert_eq!(overlap(talk(" c\n")).count, 1);
    // One that is answered on the way to it is not.
    assert_eq!(overlap(chat("a", "x")).count, 1);
    let asked = [
        ("system", "s"),
        ("user", "a"),
        ("assistant", "b"),
        ("user", "c"),
    ];
    assert_eq!(overlap(said(&asked)).count, 1);
    // A row with a sample for each answer has one prompt.
    let rewriting = CHATML.replace(
        "message.content",
        "(message.content ~ ('!' if loop.last else ''))",
    );
    let found = report_with(
        &rewriting,
        vec![talk("c")],
        vec![talk("c")],
        Masking::Assistant,
    );
    let eval = (found.eval.samples, found.eval.rows);
    assert_eq!((eval, found.overlap.count), ((2, 1), 1));
    let text = found.eval.to_string();
    assert!(text.starts_with("2 samples of 1 row, "), "{text}");
}

#[test]
fn rows_that_a_weight_passes_over_are_not_looked_at() {
    let rows = [
        chat("the dog", "the cat"),
        chat("a mat", ""),
        chat("the mat", "ran"),
    ];
    let weighted = (1..).zip(rows).map(|(at, row)| {
        let copies = usize::from(at == 3);
        let row = LocatedRow::new(Location::new("train", at), row);
        Ok(LocatedRow { copies, ..row })
    });
    let eval = vec![chat("the dog", "x"), chat("the mat", "y")];
    let found = report_of(CHATML, weighted, located("eval", eval), Masking::Assistant);
    assert_eq!((found.train.samples, found.overlap.count), (1, 1));
    let text = found.train.to_string();
    assert!(text.starts_with("1 sample, "), "{text}");
    assert!(text.contains("\n  2 rows passed over by"), "{text}");
    assert_eq!(found.problems().len(), 1, "{:?}", found.problems());
}

#[test]
fn a_set_of_which_a_weight_leaves_nothing_is_a_problem() {
    let rows = located("train", vec![chat("the dog", "the cat"); 2]);
    let rows = rows.map(|row| row.map(|row| LocatedRow { copies: 0, ..row }));
    let found = report_of(CHATML, rows, std::iter::empty(), Masking::Assistant);
    let expected =
        "training data: no sample is made, as the `weight` of its source passes over 2 rows";
    assert_eq!(found.problems(), [expected]);
    let text = found.to_string();
    assert!(text.starts_with("train: 0 samples, "), "{text}");
    // Preparation, which reads all rows, says so itself.
    assert_eq!(found.beside_preparation().problems(), [""; 0]);
}

#[test]
fn every_row_with_a_flaw_is_known_and_the_first_few_are_told() {
    let train = (0..40).map(|_| chat("the dog", "the cat")).collect();
    let report = report(train, vec![], Masking::Assistant);
    assert_eq!(report.train.duplicates.examples.len(), 5);
    let rows: Vec<u64> = report.rows().iter().map(|flawed| flawed.row).collect();
    assert_eq!(rows, (2..=40).collect::<Vec<_>>());
}

#[test]
fn coverage_is_the_share_of_the_most_frequent_trained_tokens() {
    let found = report(
        vec![tokens(&[5, 5, 5, 6, 7], true), tokens(&[8; 9], false)],
        vec![],
        Masking::Assistant,
    );
    let shares: Vec<f64> = found
        .coverage
        .iter()
        .map(|coverage| coverage.share)
        .collect();
    assert_eq!(shares, [0.6, 0.8], "not of the whole vocabulary");
    let nothing = report(vec![tokens(&[1, 2], false)], vec![], Masking::Assistant);
    assert!(nothing.coverage.is_empty());
}

#[test]
fn answers_that_teach_nothing_or_too_much_are_reported() {
    let mut thought = chat("a mat", "ran");
    if let Content::Conversation(conversation) = &mut thought.content {
        let reasoning = serde_json::json!("the dog");
        let extra = &mut conversation.messages[1].extra;
        extra.insert("reasoning_content".to_owned(), reasoning);
    }
    let train = vec![
        chat("the dog", "the cat<|im_end|>\n"),
        chat("the dog<|im_end|>", "the cat"),
        chat("the mat", ""),
        said(&[("assistant", "ran"), ("user", "the")]),
        thought,
    ];
    for masking in [Masking::Assistant, Masking::All] {
        let problems = report(train.clone(), vec![], masking).problems();
        for expected in [
            "1 training sample has a token that ends answers in the middle of an answer: `train` row 1",
            "1 training row has an empty answer, of which nothing but its end can be learned: `train` row 3",
            "1 training row has an answer of the assistant before any message of the user: `train` row 4",
            "1 training row has reasoning (`reasoning_content`, or text before `</think>`) that the chat template does not show: `train` row 5",
        ] {
            assert!(
                problems.iter().any(|problem| problem == expected),
                "{expected}\nnot in\n{problems:#?}"
            );
        }
    }
}

#[test]
fn a_template_under_which_no_stop_token_is_trained_on_is_reported() {
    let train = || vec![chat("the dog", "the cat"), chat("a mat", "ran")];
    let found = report_with(UNENDING, train(), vec![], Masking::Assistant);
    assert_eq!(
        found.problems(),
        [
            "2 training samples train on no token at which the target stops, so the drafter does not learn where answers end; \
             the chat template should write one after each answer: `train` rows 1, 2"
        ]
    );
    let found = report(train(), vec![], Masking::Assistant);
    assert_eq!((found.train.ended, found.train.unending.count), (2, 0));
}

#[test]
fn roles_are_named_where_no_message_is_the_assistants() {
    let wrong = || said(&[("User", "the"), ("bot", "cat")]);
    let lack = "no message has the role `assistant`; roles found: `User` 1, `bot` 1; did you mean `assistant`?";
    let found = report(vec![wrong()], vec![wrong()], Masking::Assistant);
    assert_eq!(
        found.problems()[..2],
        [
            format!("no token at all is trained on: {lack}"),
            format!("evaluation data: {lack}")
        ]
    );
    assert!(!found.to_string().contains("draft vocabulary"));
    let (asked, train) = (said(&[("user", "the")]), chat("the dog", "the cat"));
    let found = report(vec![train.clone()], vec![asked], Masking::All);
    assert_eq!(found.problems(), [""; 0]);
    let found = report(vec![train], vec![wrong()], Masking::All);
    assert_eq!(found.problems(), [format!("evaluation data: {lack}")]);
}

#[test]
fn a_role_that_is_a_slip_of_another_is_named() {
    let slip = || said(&[("User", "the dog"), ("assistant", "the cat")]);
    let found = report(
        vec![slip(), chat("a mat", "ran")],
        vec![slip()],
        Masking::All,
    );
    let named = "unknown roles: `User` 1 (did you mean `user`?)";
    let problems = found.problems();
    assert_eq!(
        problems[..2],
        [
            format!("training data: {named}"),
            format!("evaluation data: {named}")
        ]
    );
    assert!(problems[2].contains("before any message of the user"));
    // A template may know more roles than are known here: they matter where nobody else asks.
    let critic = |first: &str| {
        said(&[
            (first, "the dog"),
            ("critic", "a mat"),
            ("assistant", "ran"),
        ])
    };
    let asked = report(vec![critic("user")], vec![], Masking::Assistant);
    assert_eq!(asked.problems(), [""; 0]);
    let unasked = report(vec![critic("system")], vec![], Masking::Assistant);
    assert_eq!(
        unasked.problems()[0],
        "training data: unknown roles: `critic` 1"
    );
}

#[test]
fn a_variable_that_the_template_does_not_read_is_a_problem_of_the_data() {
    let variables = serde_json::json!({"enable_thinkng": false});
    let serde_json::Value::Object(variables) = variables else {
        panic!("{variables}");
    };
    let source = format!("{CHATML}{{% if enable_thinking %}}{{% endif %}}");
    let template = ChatTemplate::from_source(&source, None, None).unwrap();
    let template = template.with_variables(variables);
    let train = located("train", vec![chat("the dog", "the cat")]);
    let found = linted(&template, train, std::iter::empty(), Masking::Assistant);
    let told =
        "the chat template reads no variable `enable_thinkng` (did you mean `enable_thinking`?)";
    assert_eq!(found.problems(), [told]);
    assert_eq!(found.beside_preparation().problems(), [told]);
}

#[test]
fn what_preparation_counts_is_not_said_again() {
    let train = vec![
        chat("the dog", "the cat"),
        chat("the dog", "the cat"),
        tokens(&[1, 2], false),
        tokens(&[7; 31], true),
        chat("the mat", ""),
    ];
    let found = report(train, vec![], Masking::Assistant);
    assert_eq!(found.problems().len(), 5);
    let rest = found.beside_preparation().problems();
    assert_eq!(rest.len(), 2, "{rest:#?}");
}

#[test]
fn answers_behind_another_prompt_than_that_of_engines_are_reported_with_both() {
    let source = CHATML.replace(r"assistant\n", r"assistant\n<think>\n");
    let train = vec![chat("the dog", "the cat")];
    let found = report_with(&source, train, vec![], Masking::Assistant);
    let problems = found.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let told = "1 training answer is trained on behind something else than the prompt that engines render for it: `train` row 1: the \
                prompt ends with ";
    assert!(problems[0].starts_with(told), "{problems:?}");
    for ends in [r#"assistant\n<think>\n", and"#, r#"assistant\n""#] {
        assert!(problems[0].contains(ends), "{problems:?}");
    }
    let rows = found.rows();
    assert_eq!((rows[0].problem, rows[0].row), ("other_prompts", 1));
    assert_eq!(found.beside_preparation().problems(), [""; 0]);
    // One whose sample is left out is not trained on.
    let train = vec![chat(&"the dog ".repeat(40), "the cat")];
    let found = report_with(&source, train, vec![], Masking::Assistant);
    assert!(found.train.other_prompts.is_none());
}

#[test]
fn tools_that_the_template_does_not_show_are_reported() {
    let tools = vec![serde_json::json!({"type": "function"})];
    let with_tools = |user: &str| {
        let mut row = chat(user, "the cat");
        if let Content::Conversation(conversation) = &mut row.content {
            conversation.tools = tools.clone();
        }
        row
    };
    let found = report(
        vec![with_tools("the dog"), chat("x", "y")],
        vec![],
        Masking::Assistant,
    );
    assert_eq!(found.train.hidden_tools.count, 1);
    let problem =
        "1 training row defines tools that the chat template does not show: `train` row 1";
    assert_eq!(found.problems(), [problem]);
}

/// A row with further keys of its answer, and one with variables.
fn with(row: Row, answer: serde_json::Value, variables: serde_json::Value) -> Row {
    let Content::Conversation(mut conversation) = row.content else {
        panic!("expected a conversation");
    };
    let fields = |value: serde_json::Value| value.as_object().unwrap().clone();
    conversation.messages[1].extra.extend(fields(answer));
    conversation.variables = fields(variables);
    conversation.into()
}

#[test]
fn answers_that_are_only_context_are_counted_and_those_without_others_have_nothing_to_train_on() {
    let mut both = said(&[
        ("user", "the dog"),
        ("assistant", ""),
        ("user", "a mat"),
        ("assistant", "the cat"),
    ]);
    both = with(both, json!({"weight": 0}), json!({}));
    let alone = with(chat("the mat", "ran"), json!({"train": false}), json!({}));
    let all = report(vec![alone.clone()], vec![], Masking::All);
    assert_eq!(all.train.context_answers, 0);
    let found = report(vec![both, alone], vec![], Masking::Assistant);
    assert_eq!((found.train.context_answers, found.train.samples), (2, 2));
    let text = found.to_string();
    let told = "\n  2 answers not trained on, as their messages say\n";
    assert!(text.contains(told), "{text}");
    assert!(text.contains("<|im_end|>\n<|im_start|>assistant\n⟦the cat<|im_end|>⟧"));
    let nothing = "1 training sample has nothing to train on: `train` row 2";
    assert!(found.problems().contains(&nothing.to_owned()));
    assert_eq!(found.train.empty_answers.count, 0);
}

#[test]
fn variables_of_rows_are_counted_and_those_that_the_template_does_not_read_are_reported() {
    let source = format!("{{% if enable_thinking is false %}}the{{% endif %}}{CHATML}");
    let row = |variables: serde_json::Value| with(chat("a mat", "ran"), json!({}), variables);
    let train = vec![
        row(json!({})),
        row(json!({"enable_thinking": false})),
        row(json!({"enable_thinkng": false})),
    ];
    let eval = vec![row(json!({"enable_thinking": true}))];
    let overlap = |train: &[Row], eval: Row| {
        let found = report_with(&source, train.to_vec(), vec![eval], Masking::Assistant);
        found.overlap.count
    };
    // The same is said, but not in the same text.
    let other = || row(json!({"enable_thinking": false}));
    assert_eq!(overlap(&[train[0].clone(), train[2].clone()], other()), 0);
    assert_eq!(overlap(&train, other()), 1);
    let found = report_with(&source, train, eval, Masking::Assistant);
    let counts = [&found.train, &found.eval].map(|set| set.own_variables);
    assert_eq!(counts, [2, 1]);
    let text = found.to_string();
    for told in [
        "\n  2 rows rendered with `chat_template_kwargs` of their own\n",
        "\n  1 row rendered with `chat_template_kwargs` of its own\n",
    ] {
        assert!(text.contains(told), "{text}");
    }
    // With a variable that changes nothing it is the same text.
    assert_eq!(
        found.problems(),
        [
            "1 training sample repeats an earlier one: `train` row 3",
            "1 training row has a variable (`chat_template_kwargs`) that the chat template does not read: `train` row 3: \
             `enable_thinkng` (did you mean `enable_thinking`?)",
            "1 evaluation prompt also occurs in the training data: `eval` row 1",
        ]
    );
    let flawed = found.rows();
    let unread = flawed.iter().find(|row| row.problem == "unread_variables");
    let unread = unread.map(|row| (row.row, row.reason));
    let named = "`enable_thinkng` (did you mean `enable_thinking`?)";
    assert_eq!(unread, Some((3, named)));
    let two = row(json!({"enable_thinkng": false, "x": 1}));
    let found = report_with(&source, vec![two], vec![], Masking::Assistant);
    let told = "row 1: `enable_thinkng` (did you mean `enable_thinking`?) and `x`";
    let problems = found.problems();
    assert!(problems[0].ends_with(told), "{problems:?}");
}

/// A row with an answer that was cut off.
fn cut_off(user: &str, assistant: &str) -> Row {
    with(chat(user, assistant), json!({"truncated": true}), json!({}))
}

#[test]
fn with_answers_that_were_cut_off_nothing_is_wrong() {
    let train = vec![cut_off("the dog", "the cat"), cut_off("the mat", "ran")];
    for masking in [Masking::Assistant, Masking::LastTurn] {
        let found = report(train.clone(), vec![], masking);
        assert_eq!(found.problems(), [""; 0]);
        let expected = CutOff {
            answers: 2,
            untrained: 0,
            unending: 2,
        };
        assert_eq!(found.train.cut_off, expected);
        let text = found.to_string();
        let told = "\n  2 answers cut off (`truncated`): what they say is trained on, and no end of theirs\n  no answer with its end \
                    is trained on, so a drafter does not learn from these where answers end\n";
        assert!(text.contains(told), "{text}");
    }
    // Beside a whole answer ends are learned.
    let mixed = vec![train[0].clone(), chat("a mat", "ran")];
    let found = report(mixed, vec![], Masking::Assistant);
    assert_eq!(found.problems(), [""; 0]);
    let text = found.to_string();
    let told = "\n  1 answer cut off (`truncated`): what it says is trained on, and no end of it\n  tokens per sample";
    assert!(text.contains(told), "{text}");
    // With every token the end that the template writes is trained on.
    let all = report(train, vec![], Masking::All);
    assert_eq!(all.train.cut_off, CutOff::default());
}

#[test]
fn a_template_that_writes_no_ends_is_wrong_whatever_was_cut_off() {
    let train = vec![cut_off("the dog", "the cat"), chat("a mat", "ran")];
    let found = report_with(UNENDING, train, vec![], Masking::Assistant);
    let problems = found.problems();
    assert_eq!(problems.len(), 1, "{problems:?}");
    let told = "1 training sample trains on no token at which the target stops";
    assert!(problems[0].starts_with(told), "{problems:?}");
    assert!(problems[0].ends_with(": `train` row 2"), "{problems:?}");
}

#[test]
fn samples_of_answers_that_were_cut_off_and_are_shown_otherwise_are_counted_as_left_out() {
    let shown = "('x' if message.truncated is defined else message.content)";
    let source = CHATML.replace("message.content", shown);
    let whole = chat("a mat", "ran");
    let train = || {
        vec![
            cut_off("the dog", "the cat"),
            cut_off("the mat", ""),
            whole.clone(),
        ]
    };
    let found = report_with(&source, train(), vec![], Masking::Assistant);
    assert_eq!(found.problems(), [""; 0]);
    let text = found.to_string();
    let told = "\n  2 samples of such answers with nothing to train on, as the chat template does not show the answer as the target \
                wrote it, are left out\n";
    assert!(text.contains(told), "{text}");
    // Where nothing is left at all, that is a problem.
    let cut = train()[..2].to_vec();
    let found = report_with(&source, cut, vec![], Masking::Assistant);
    assert_eq!(
        found.problems(),
        [
            "no token at all is trained on: all answers were cut off (`truncated`), and the chat template shows none as the target \
             wrote it"
        ]
    );
}

#[test]
fn a_sample_with_an_answer_that_was_not_cut_off_is_not_expected_to_be_left_out() {
    let mixed = said(&[
        ("user", "the dog"),
        ("assistant", "the cat"),
        ("user", "a mat"),
        ("assistant", "ran"),
    ]);
    let mixed = with(mixed, json!({"truncated": true}), json!({}));
    let marked = "{% generation %}{% endgeneration %}{{ m.content }}";
    let empty = UNENDING.replace("{% generation %}{{ m.content }}{% endgeneration %}", marked);
    let train = vec![mixed, cut_off("the mat", "ran")];
    let found = report_with(&empty, train, vec![], Masking::Assistant).train;
    let lost = (found.cut_off.untrained, found.all_zero.count);
    assert_eq!((found.cut_off.answers, lost), (2, (1, 1)));
}

#[test]
fn a_sample_of_an_answer_that_was_cut_off_is_left_out_whatever_others_its_conversation_has() {
    // What was thought is dropped from all answers but the last, so that each has a sample.
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.truncated is defined %}x\
        {% elif m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}\
        {% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let row = said(&[
        ("user", "a"),
        ("assistant", "the cat"),
        ("user", "a"),
        ("assistant", "a</think>ran"),
        ("user", "a"),
    ]);
    let row = with(row, json!({"truncated": true}), json!({}));
    let found = report_with(source, vec![row], vec![], Masking::Assistant).train;
    let lost = (found.cut_off.untrained, found.all_zero.count);
    assert_eq!((found.samples, lost), (2, (1, 0)));
}

#[test]
fn of_answers_only_those_that_the_mask_asks_for_are_counted() {
    let row = said(&[
        ("user", "the dog"),
        ("assistant", "the cat"),
        ("user", "a mat"),
        ("assistant", "ran"),
    ]);
    let of = |key: serde_json::Value, masking| {
        let row = with(row.clone(), key, json!({}));
        let found = report(vec![row], vec![], masking).train;
        (found.context_answers, found.cut_off.answers)
    };
    for (masking, count) in [(Masking::Assistant, 1), (Masking::LastTurn, 0)] {
        assert_eq!(of(json!({"weight": 0}), masking), (count, 0));
        assert_eq!(of(json!({"truncated": true}), masking), (0, count));
    }
}

#[test]
fn a_full_mask_is_no_problem_when_it_was_asked_for() {
    let report = report(vec![chat("the dog", "the cat")], vec![], Masking::All);
    assert_eq!(report.train.all_one.count, 1);
    assert_eq!(report.problems(), [""; 0]);
}

#[test]
fn a_file_that_cannot_be_read_is_no_row_and_conversations_beside_tokens_are_counted() {
    let settings = PrepareSettings {
        max_length: 30,
        overlong: Overlong::Truncate,
        masking: Masking::Assistant,
        turns: Turns::Auto,
        min_trained_tokens: 1,
        unusable: Unusable::Refuse,
        vocab: 320,
    };
    let tokenizer = small();
    let linter = Linter {
        template: None,
        tokenizer: &tokenizer,
        settings: &settings,
        stop_tokens: &[],
        draft_vocabularies: &[],
        shown: 0,
        lists_rows: true,
    };
    let folder = tempfile::tempdir().unwrap();
    let row = r#"{"input_ids": [1, 2], "loss_mask": [0, 1], "messages": []}"#;
    std::fs::write(folder.path().join("a.jsonl"), row).unwrap();
    std::fs::write(folder.path().join("b.parquet"), "not one").unwrap();
    std::fs::write(folder.path().join("c.jsonl"), "{}").unwrap();
    let rows = crate::rows::read_rows(folder.path()).unwrap();
    let found = lint(rows, [], &linter).unwrap();
    let train = &found.train;
    assert_eq!((train.unreadable.count, train.refused.count), (1, 1));
    let problems = found.problems();
    assert!(
        problems[0].starts_with("1 training file cannot be read: `"),
        "{problems:?}"
    );
    assert!(
        problems[1].starts_with("1 training row cannot be used: `"),
        "{problems:?}"
    );
    assert_eq!(found.rows()[0].problem, "unreadable");
    assert_eq!(train.beside_tokens, 1);
    let text = found.to_string();
    assert!(
        text.contains("\n  1 row read by its `input_ids` and mask; the conversation beside it"),
        "{text}"
    );
}
