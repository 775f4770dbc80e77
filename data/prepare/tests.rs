use std::iter::repeat_n;

use super::*;
use crate::conversation::{Conversation, Message};
use crate::template::tests::CHATML;
use crate::tokenizer::tests::small;
use crate::unusable::Unusable;

fn settings() -> PrepareSettings {
    PrepareSettings {
        max_length: 6,
        overlong: Overlong::Drop,
        masking: Masking::Assistant,
        turns: Turns::Auto,
        min_trained_tokens: 1,
        unusable: Unusable::Refuse,
        vocab: 320,
    }
}

fn tokens(tokens: &[u32], mask: &[u8]) -> Row {
    Row::from(Sample {
        tokens: tokens.to_vec(),
        loss_mask: mask.iter().map(|&bit| bit == 1).collect(),
    })
}

/// By one thread.
fn prepare(
    rows: impl IntoIterator<Item = Result<LocatedRow>>,
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
    settings: &PrepareSettings,
    sink: &mut dyn FnMut(Sample) -> Result<()>,
) -> Result<PrepareReport> {
    let preparation = Preparation {
        template,
        tokenizer,
        settings,
    };
    preparation.prepare(rows, NonZero::<usize>::MIN, sink)
}

fn run(rows: Vec<Row>, settings: &PrepareSettings) -> Result<(Vec<Sample>, PrepareReport)> {
    let mut samples = Vec::new();
    let rows = rows
        .into_iter()
        .zip(1..)
        .map(|(row, at)| Ok(LocatedRow::new(Location::new("rows.jsonl", at), row)));
    let report = prepare(rows, None, &small(), settings, &mut |sample| {
        samples.push(sample);
        Ok(())
    })?;
    Ok((samples, report))
}

fn mixed() -> Vec<Row> {
    vec![
        tokens(&[1, 2, 3], &[0, 1, 1]),
        tokens(&[1, 2, 3, 4, 5, 6, 7], &[0, 0, 1, 0, 1, 1, 1]),
        tokens(&[9, 9], &[0, 0]),
        tokens(&[1, 2, 3], &[0, 1, 1]),
        tokens(&[1, 2, 3, 4, 5, 6, 7], &[0, 0, 0, 0, 0, 0, 1]),
    ]
}

#[test]
fn one_sample_is_not_called_several() {
    let totals = |kept: u64| {
        let report = PrepareReport {
            read: kept,
            kept,
            ..PrepareReport::default()
        };
        report.totals()
    };
    assert!(totals(1).starts_with("1 of 1 sample kept\n"));
    assert!(totals(2).starts_with("2 of 2 samples kept\n"));
    let text = |count: u64| {
        let mut unusable = Category::default();
        (0..count).for_each(|row| unusable.add(format!("`a` row {row}")));
        let report = PrepareReport {
            read: 3 * count,
            passed_over: count,
            copies: count,
            expanded: count,
            added: count,
            beside_tokens: count,
            unusable,
            ..PrepareReport::default()
        };
        report.to_string()
    };
    let (one, two) = (text(1), text(2));
    for (text, parts) in [
        (
            &one,
            [
                "\n1 row read by its `input_ids` and mask; the conversation beside it is not read\n",
                "\n1 conversation expanded to a sample for each answer that is trained on, which adds 1 sample\n",
                "\nby weight 1 row was passed over and 1 copy made\n",
                "\n1 row that cannot be used, left out: `a` row 0",
            ],
        ),
        (
            &two,
            [
                "\n2 rows read by their `input_ids` and mask; the conversations beside them are not read\n",
                "\n2 conversations expanded to a sample for each answer that is trained on, which adds 2 samples\n",
                "\nby weight 2 rows were passed over and 2 copies made\n",
                "\n2 rows that cannot be used, left out: `a` rows 0, 1",
            ],
        ),
    ] {
        for part in parts {
            assert!(text.contains(part), "{part:?} not in {text}");
        }
    }
}

#[test]
fn every_row_is_kept_or_counted_with_its_place() {
    let (samples, report) = run(mixed(), &settings()).unwrap();
    assert_eq!((report.read, report.kept, samples.len()), (5, 2, 2));
    assert_eq!((report.tokens, report.trained_tokens), (6, 4));
    assert_eq!(
        report.overlong.examples,
        ["`rows.jsonl` row 2", "`rows.jsonl` row 5"]
    );
    assert_eq!(report.untrained.examples, ["`rows.jsonl` row 3"]);
    assert_eq!(report.duplicates.count, 1);
    let text = report.to_string();
    assert!(
        text.starts_with("2 of 5 samples kept\n6 tokens, "),
        "{text}"
    );
    assert!(
        text.contains("\n2 left out, too long: `rows.jsonl` rows 2, 5\n"),
        "{text}"
    );
}

/// Conversations and rows of tokens by turns, of several weights.
fn mixed_row(at: usize) -> LocatedRow {
    let said = ["the cat", "the", "a cat"][at % 3];
    let mut answer = Message::new("assistant", said.repeat(1 + at % 4));
    answer.extra.insert("at".into(), at.into());
    let turns = vec![Message::new("user", "the"), answer];
    let row = match at % 7 {
        3 => tokens(&[1, 2, at as u32 % 5], &[0, 1, 1]),
        _ => Conversation::new(turns).into(),
    };
    let located = LocatedRow::new(Location::new("rows.jsonl", at), row);
    let copies = at % 5;
    LocatedRow { copies, ..located }
}

#[test]
fn a_row_weighs_what_is_made_of_it_and_not_only_what_is_said() {
    let mut answer = Message::new("assistant", "12345");
    answer
        .extra
        .insert("reasoning".into(), "1".repeat(100).into());
    let turns = [Message::new("user", "123"), answer];
    let turns: Vec<Message> = repeat_n(turns, 50).flatten().collect();
    let conversation = Conversation {
        tools: vec![serde_json::json!({"name": ["1".repeat(46)]})],
        ..Conversation::new(turns)
    };
    let bytes = 50 * (3 + 5 + 9 + 100) + 50;
    let row = LocatedRow::new(Location::new("rows.jsonl", 1), Row::from(conversation));
    let weight = |turns: Turns| {
        let settings = PrepareSettings {
            turns,
            ..settings()
        };
        let preparation = Preparation {
            template: None,
            tokenizer: &small(),
            settings: &settings,
        };
        preparation.weight(&Ok(row.clone()))
    };
    assert_eq!(weight(Turns::Joined), bytes);
    for turns in [Turns::Auto, Turns::Expand] {
        assert_eq!(weight(turns), 50 * bytes);
    }
}

#[test]
fn as_much_is_made_of_rows_by_several_threads_and_the_first_error_is_the_same() {
    let rows = |unreadable: &'static [usize]| {
        (1..=400).map(move |at| match unreadable.contains(&at) {
            true => Err(Error::NotJson {
                location: format!("`rows.jsonl` row {at}"),
                fault: String::new(),
            }),
            false => Ok(mixed_row(at)),
        })
    };
    // It refuses some rows.
    let refusing = "{% for m in messages if m.at is defined and m.at % 97 == 96 %}\
        {{ raise_exception('no ' ~ m.at) }}{% endfor %}";
    let source = format!("{refusing}{CHATML}");
    let template = ChatTemplate::from_source(&source, None, None).unwrap();
    let tokenizer = small();
    let made = |threads: usize, unreadable: &'static [usize], settings: &PrepareSettings| {
        let preparation = Preparation {
            template: Some(&template),
            tokenizer: &tokenizer,
            settings,
        };
        let mut kept = Vec::new();
        let threads = NonZero::new(threads).unwrap();
        let report = preparation.prepare(rows(unreadable), threads, &mut |sample| {
            kept.push(sample);
            Ok(())
        });
        (kept, report.map_err(|error| error.to_string()))
    };
    let refusing = PrepareSettings {
        max_length: 40,
        ..settings()
    };
    let dropping = PrepareSettings {
        unusable: Unusable::Drop,
        ..refusing.clone()
    };
    const UNREADABLE: [&[usize]; 3] = [&[], &[90, 93, 200], &[201]];
    for settings in [&refusing, &dropping] {
        for unreadable in UNREADABLE {
            let alone = made(1, unreadable, settings);
            for threads in [2, 5] {
                assert_eq!(made(threads, unreadable, settings), alone);
            }
        }
    }
    let (kept, report) = made(5, &[90, 200], &dropping);
    assert_eq!(report.unwrap().unusable.count, 5);
    assert!(kept.len() > 50, "{}", kept.len());
    let (_, refused) = made(5, &[200], &refusing);
    assert!(refused.unwrap_err().contains("row 96: chat template: "));
    let (_, refused) = made(5, &[90], &refusing);
    assert!(refused.unwrap_err().contains("row 90 is not JSON"));
}

#[test]
fn truncation_keeps_the_beginning_and_may_leave_nothing_to_train() {
    let settings = PrepareSettings {
        overlong: Overlong::Truncate,
        ..settings()
    };
    let (samples, report) = run(mixed(), &settings).unwrap();
    assert_eq!(samples[1].tokens, [1, 2, 3, 4, 5, 6]);
    assert_eq!(
        (report.kept, report.truncated.count, report.untrained.count),
        (3, 1, 2)
    );
    assert_eq!((report.overlong.count, report.duplicates.count), (0, 1));
}

#[test]
fn masking_applies_to_rows_of_tokens_too() {
    let row = tokens(&[1, 2, 3, 4, 5], &[1, 1, 0, 1, 0]);
    let mask = |masking| {
        let (samples, _) = run(
            vec![row.clone()],
            &PrepareSettings {
                masking,
                ..settings()
            },
        )
        .unwrap();
        samples[0]
            .loss_mask
            .iter()
            .map(|&trained| u8::from(trained))
            .collect::<Vec<_>>()
    };
    assert_eq!(mask(Masking::Assistant), [1, 1, 0, 1, 0]);
    assert_eq!(mask(Masking::LastTurn), [0, 0, 0, 1, 0]);
    assert_eq!(mask(Masking::All), [1; 5]);
}

#[test]
fn a_token_the_target_lacks_is_an_error() {
    let error = run(vec![tokens(&[1, 320], &[1, 1])], &settings())
        .unwrap_err()
        .to_string();
    assert!(
        error
            .starts_with("`rows.jsonl` row 1: token 320 is outside the target's vocabulary of 320"),
        "{error}"
    );
}

#[test]
fn nothing_left_is_an_error_that_says_why() {
    let error = run(vec![tokens(&[1], &[0])], &settings())
        .unwrap_err()
        .to_string();
    assert_eq!(
        error,
        "no sample is left of the 1 row read: 0 too long, 1 with too few trained tokens"
    );
    let passed_over = (1..=2).map(|at| {
        let row = LocatedRow::new(Location::new("rows.jsonl", at), tokens(&[1], &[1]));
        Ok(LocatedRow { copies: 0, ..row })
    });
    let found = prepare(passed_over, None, &small(), &settings(), &mut |_| Ok(()));
    let error = found.unwrap_err().to_string();
    assert!(
        error.ends_with(", 2 in rows that the `weight` of their source passes over"),
        "{error}"
    );
}

#[test]
fn conversations_are_rendered_and_failures_say_where() {
    let rows = |content: &str| {
        let messages = vec![
            Message::new("user", "the"),
            Message::new("assistant", content),
        ];
        [Ok(LocatedRow::new(
            Location::new("chat.jsonl", 7),
            Conversation::new(messages),
        ))]
    };
    let settings = PrepareSettings {
        max_length: 100,
        ..settings()
    };
    let tokenizer = small();
    let run = |template: Option<&str>| {
        let template =
            template.map(|source| ChatTemplate::from_source(source, None, None).unwrap());
        prepare(
            rows("cat"),
            template.as_ref(),
            &tokenizer,
            &settings,
            &mut |_| Ok(()),
        )
    };
    let report = run(Some(CHATML)).unwrap();
    assert!(report.trained_tokens >= 2 && report.trained_tokens < report.tokens);
    let refused = run(Some("{{ raise_exception('no') }}"))
        .unwrap_err()
        .to_string();
    assert!(
        refused.starts_with("`chat.jsonl` row 7: chat template: "),
        "{refused}"
    );
    let missing = run(None).unwrap_err().to_string();
    assert!(
        missing.starts_with("`chat.jsonl` row 7: a conversation needs a chat template")
            && missing.contains("`data.template = \"FILE\"`")
            && missing.contains("`chat_template.jinja`"),
        "{missing}"
    );
}

#[test]
fn nothing_left_counts_answers_that_are_only_context_or_were_cut_off() {
    let row = |(at, key, value): (usize, &str, serde_json::Value)| {
        let mut answer = Message::new("assistant", "the cat");
        answer.extra.insert(key.into(), value);
        let asked = Message::new("user", "the");
        let messages = vec![asked.clone(), answer.clone(), asked, answer];
        LocatedRow::new(Location::new("chat.jsonl", at), Conversation::new(messages))
    };
    let rows: [(usize, &str, serde_json::Value); 3] = [
        (1, "weight", 0.into()),
        (2, "train", false.into()),
        (3, "truncated", true.into()),
    ];
    // It shows something else than the answer that was cut off.
    let source = CHATML.replace("message.content", "message.content|upper");
    let template = ChatTemplate::from_source(&source, None, None).unwrap();
    let refused = |masking, max_length| {
        let settings = PrepareSettings {
            max_length,
            masking,
            ..settings()
        };
        let rows = rows.clone().map(row).map(Ok);
        let found = prepare(rows, Some(&template), &small(), &settings, &mut |_| Ok(()));
        found.unwrap_err().to_string()
    };
    assert_eq!(
        refused(Masking::Assistant, 100),
        "no sample is left of the 3 rows read: 0 too long, 3 with too few trained tokens; answers that are only context, as \
         their messages say (`weight`, `train`, `training`): 4; answers that are cut off, so that only what the chat template \
         shows of them as the target wrote it is trained on: 2"
    );
    // Of these the mask asks for one a row.
    let last = refused(Masking::LastTurn, 100);
    let counted =
        last.contains("`training`): 2; answers that are cut off") && last.ends_with(": 1");
    assert!(counted, "{last}");
    let all = refused(Masking::All, 1);
    assert!(all.ends_with("0 with too few trained tokens"), "{all}");
}

#[test]
fn answers_behind_another_prompt_than_that_of_engines_are_counted() {
    let row = |at| {
        let messages = [("user", "the"), ("assistant", "cat"), ("user", "a")];
        let messages = messages.map(|(role, content)| Message::new(role, content));
        LocatedRow::new(
            Location::new("chat.jsonl", at),
            Conversation::new(messages.to_vec()),
        )
    };
    let settings = PrepareSettings {
        max_length: 100,
        overlong: Overlong::Truncate,
        ..settings()
    };
    let told = |source: &str, rows: Vec<LocatedRow>| {
        let template = ChatTemplate::from_source(source, None, None).unwrap();
        let rows = rows.into_iter().map(Ok);
        let found = prepare(rows, Some(&template), &small(), &settings, &mut |_| Ok(()));
        let remarks = found.unwrap().remarks();
        remarks.into_iter().find(|told| told.contains("engines"))
    };
    let two = || vec![row(1), row(2)];
    assert_eq!(told(CHATML, two()), None);
    let thinking = CHATML.replace(r"assistant\n", r"assistant\n<think>\n");
    // Answers that are cut away are trained on nowhere, nor are those of samples that are left out.
    let (mut longer, mut long) = (row(3), row(4));
    let messages = |row: &mut LocatedRow, place: usize| {
        let Content::Conversation(conversation) = &mut row.row.content else {
            panic!("no conversation");
        };
        let messages = &mut conversation.messages;
        messages.insert(place, Message::new("user", "the ".repeat(200)));
        messages.push(Message::new("assistant", "cat"));
    };
    messages(&mut longer, 3);
    messages(&mut long, 0);
    let cut = told(&thinking, vec![longer, long]).unwrap();
    assert!(cut.starts_with("1 answer trained on ") && cut.contains("`chat.jsonl` row 3: "));
    let told = told(&thinking, two()).unwrap();
    let expected = "2 answers trained on behind something else than the prompts that engines render for them: `chat.jsonl` rows 1, 2: \
                    the prompt ends with ";
    assert!(told.starts_with(expected), "{told}");
}

#[test]
fn nothing_left_names_the_roles_where_none_is_the_assistants() {
    let rows = || {
        let row = |at| {
            let messages = vec![Message::new("User", "the"), Message::new("bot", "cat")];
            LocatedRow::new(Location::new("chat.jsonl", at), Conversation::new(messages))
        };
        (1..=2).map(row).map(Ok)
    };
    let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
    let refused = |settings: &PrepareSettings| {
        let found = prepare(rows(), Some(&template), &small(), settings, &mut |_| Ok(()));
        found.unwrap_err().to_string()
    };
    let long = PrepareSettings {
        max_length: 100,
        ..settings()
    };
    assert_eq!(
        refused(&long),
        "no sample is left of the 2 rows read: 0 too long, 2 with too few trained tokens; no message has the role `assistant`; \
         roles found: `User` 2, `bot` 2; did you mean `assistant`?"
    );
    let all = PrepareSettings {
        max_length: 1,
        masking: Masking::All,
        ..settings()
    };
    assert!(refused(&all).ends_with("2 too long, 0 with too few trained tokens"));
}
