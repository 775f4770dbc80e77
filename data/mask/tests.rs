use super::*;
use crate::conversation::CUT_OFF;
use crate::template::tests::CHATML;
use crate::tokenizer::Special;
use crate::tokenizer::tests::small;
use crate::turns::tests::{CHANNELS, LAST_SYSTEM, called};
use serde_json::json;
use std::path::Path;

const MARKED: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}\
    {% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}\n\n\
    {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

fn dialogue() -> Conversation {
    let turns = [
        ("user", "one"),
        ("assistant", "the cat"),
        ("user", "two"),
        ("assistant", "é ran"),
    ];
    Conversation::new(
        turns
            .map(|(role, content)| Message::new(role, content))
            .to_vec(),
    )
}

/// The text that is trained on, runs of it separated by a bar.
fn trained(source: &str, masking: Masking) -> String {
    trained_of(&dialogue(), source, masking)
}

fn trained_of(conversation: &Conversation, source: &str, masking: Masking) -> String {
    let (template, tokenizer) = (
        ChatTemplate::from_source(source, None, None).unwrap(),
        small(),
    );
    let sample = tokenize(conversation, &template, &tokenizer, masking).unwrap();
    let runs = sample
        .loss_mask
        .chunk_by(|one, two| one == two)
        .scan(0, |start, run| {
            let tokens = &sample.tokens[*start..*start + run.len()];
            *start += run.len();
            Some(run[0].then(|| tokenizer.decode(tokens, Special::Keep).unwrap()))
        });
    runs.flatten().collect::<Vec<_>>().join("|")
}

#[test]
fn a_token_that_the_prompt_ends_inside_is_not_trained_on() {
    // The space is the prompt's: what the target writes behind it is no token that begins with one.
    let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}\
        {% if add_generation_prompt %}assistant: {% endif %}";
    let found = trained(source, Masking::Assistant);
    assert_eq!(found, " cat<|im_end|>|é ran<|im_end|>");
    assert!(is_across(&(2..5), &[1, 4]));
    for token in [2..4, 4..5, 5..9] {
        assert!(!is_across(&token, &[1, 4]), "{token:?}");
    }
}

#[test]
fn a_system_message_that_only_the_last_question_shows_stands_before_a_single_answer() {
    let conversation = Conversation::new(
        [("system", "s"), ("user", "one"), ("assistant", "the cat")]
            .map(|(role, content)| Message::new(role, content))
            .to_vec(),
    );
    let (template, tokenizer) = (
        ChatTemplate::from_source(LAST_SYSTEM, None, None).unwrap(),
        small(),
    );
    for masking in [Masking::Assistant, Masking::LastTurn] {
        let with = (&template, &tokenizer);
        let found = tokenized((&conversation).into(), with, masking).unwrap();
        let engines = prompt(&conversation, &template, &tokenizer).unwrap();
        assert_eq!(found.sample.prompt(), engines);
        assert!(found.other_prompts.is_empty());
        let found = trained_of(&conversation, LAST_SYSTEM, masking);
        assert_eq!(found, " the cat<|im_end|>");
    }
}

#[test]
fn of_an_answer_behind_another_prompt_its_first_token_and_both_ends_are_told() {
    let turn = |opening: Opening| Turn {
        message: 1,
        bytes: 2..6,
        begins: 2,
        opening,
    };
    // The block of the turn begins inside it.
    let places = (&[0..1, 3..5][..], &[0..2, 2..4, 4..6][..]);
    let told = |opening: Opening| other_prompt("abcdef", places, &turn(opening));
    let other = OtherPrompt {
        token: 1,
        differs: r#"the prompt ends with "ab", and the text before the answer with "abc""#.into(),
    };
    assert_eq!(told(Opening::Other("ab".into())), Some(other));
    assert_eq!(told(Opening::Prompt), None);
    assert_eq!(told(Opening::Unknown), None);
}

#[test]
fn masks_cover_answers_and_their_end_tokens_with_and_without_blocks() {
    for source in [CHATML, MARKED] {
        assert_eq!(
            trained(source, Masking::Assistant),
            "the cat<|im_end|>|é ran<|im_end|>"
        );
        assert_eq!(trained(source, Masking::LastTurn), "é ran<|im_end|>");
    }
    assert!(trained(CHATML, Masking::All).starts_with("<|im_start|>user\none"));
}

#[test]
fn the_end_of_an_answer_that_was_cut_off_is_not_trained_on() {
    let cut = |place: usize| {
        let mut conversation = dialogue();
        let extra = &mut conversation.messages[place].extra;
        extra.insert(CUT_OFF.into(), true.into());
        conversation
    };
    for source in [CHATML, MARKED] {
        let shown = |of: &Conversation, masking| trained_of(of, source, masking);
        assert_eq!(
            shown(&cut(1), Masking::Assistant),
            "the cat|é ran<|im_end|>"
        );
        assert_eq!(
            shown(&cut(3), Masking::Assistant),
            "the cat<|im_end|>|é ran"
        );
        assert_eq!(shown(&cut(3), Masking::LastTurn), "é ran");
        assert_eq!(shown(&cut(1), Masking::LastTurn), "é ran<|im_end|>");
        // A content that is part of the token that ends turns.
        let mut short = cut(3);
        short.messages[3].content = "end".into();
        assert_eq!(shown(&short, Masking::LastTurn), "end");
    }
    // Templates may strip what it says, at both ends.
    let source = CHATML.replace("message.content", "message.content|trim");
    let mut spaced = cut(3);
    spaced.messages[3].content = "\n é ran ".into();
    assert_eq!(trained_of(&spaced, &source, Masking::LastTurn), "é ran");
    // Where the template shows something else in its place, nothing of it is trained on.
    let source = CHATML.replace("message.content", "message.content|upper");
    assert_eq!(trained_of(&cut(3), &source, Masking::LastTurn), "");
}

#[test]
fn an_answer_that_says_that_it_is_not_trained_on_is_only_context() {
    let said = |place: usize, key: &str, value: Value| {
        let mut conversation = dialogue();
        let extra = &mut conversation.messages[place].extra;
        extra.insert(key.into(), value);
        conversation
    };
    let both = "the cat<|im_end|>|é ran<|im_end|>";
    for source in [CHATML, MARKED] {
        let shown = |of: &Conversation| trained_of(of, source, Masking::Assistant);
        for (key, no, yes) in [
            ("weight", json!(0), json!(1)),
            ("weight", json!(0.0), json!(1.0)),
            ("train", json!(false), json!(true)),
            ("training", json!(false), json!(true)),
        ] {
            assert_eq!(shown(&said(1, key, no.clone())), "é ran<|im_end|>");
            assert_eq!(shown(&said(3, key, no.clone())), "the cat<|im_end|>");
            assert_eq!(shown(&said(1, key, yes)), both);
            // The last turn is the last one, whatever it says; of what others say nothing is trained on anyway.
            let last = trained_of(&said(3, key, no.clone()), source, Masking::LastTurn);
            assert_eq!(last, "");
            assert_eq!(shown(&said(0, key, no)), both);
        }
        // One that was cut off, too, has no part that is trained on.
        let mut cut = said(1, "weight", json!(0));
        let extra = &mut cut.messages[1].extra;
        extra.insert(CUT_OFF.into(), true.into());
        assert_eq!(shown(&cut), "é ran<|im_end|>");
    }
    // Of several blocks in a turn none is, although none of them is the turn.
    let halves = MARKED.replace(
        "{{ m.content }}<|im_end|>{% endgeneration %}",
        "{{ m.content.split(' ')[0] }}{% endgeneration %} \
         {% generation %}{{ m.content.split(' ')[1] }}<|im_end|>{% endgeneration %}",
    );
    let shown = |of: &Conversation| trained_of(of, &halves, Masking::Assistant);
    assert_eq!(shown(&dialogue()).matches("<|im_end|>").count(), 2);
    let found = shown(&said(1, "weight", json!(0)));
    let is_second = found.ends_with("an<|im_end|>") && !found.contains("cat");
    assert!(is_second, "{found}");
    // Nor is one that opens before its turn does.
    let header = "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}";
    let in_block = "{% if m.role == 'assistant' %}{% generation %}<|im_start|>{{ m.role }}\n";
    let early = halves
        .replace(header, in_block)
        .replace("{% else %}", "{% else %}<|im_start|>{{ m.role }}\n");
    let shown = |of: &Conversation| trained_of(of, &early, Masking::Assistant);
    assert!(shown(&dialogue()).starts_with("the"));
    let found = shown(&said(1, "weight", json!(0)));
    assert!(
        !found.contains("the") && found.ends_with("an<|im_end|>"),
        "{found}"
    );
}

#[test]
fn the_turn_of_an_answer_that_is_only_context_need_not_be_found() {
    // Each text depends on how many messages there are, and one of them is not shown.
    let shown = "('' if message.weight is defined else message.content)";
    let source = format!(
        "{{{{ messages | length }}}}{}",
        CHATML.replace("message.content", shown)
    );
    let mut conversation = dialogue();
    let extra = &mut conversation.messages[1].extra;
    extra.insert("weight".into(), json!(0));
    for masking in [Masking::Assistant, Masking::LastTurn] {
        let found = trained_of(&conversation, &source, masking);
        assert_eq!(found, "é ran<|im_end|>");
    }
    // One that is trained on has to be.
    conversation.messages[1].extra["weight"] = json!(1);
    let template = ChatTemplate::from_source(&source, None, None).unwrap();
    let refused = tokenize(&conversation, &template, &small(), Masking::Assistant);
    assert!(refused.is_err());
}

#[test]
fn the_end_of_a_cut_off_answer_is_found_in_its_block_where_the_turn_cannot_be() {
    let mut conversation = dialogue();
    let first = &mut conversation.messages[1];
    first.content = "the cat ran".into();
    first.extra.insert(CUT_OFF.into(), true.into());
    // Each text depends on how many messages there are, and its end on what was said.
    let source =
        format!("{{{{ messages | length }}}}{MARKED}{{{{ messages[1].content | length }}}}");
    assert_eq!(
        trained_of(&conversation, &source, Masking::Assistant),
        "the cat ran|é ran<|im_end|>"
    );
    // Without blocks it is refused.
    let plain = source
        .replace("{% generation %}", "")
        .replace("{% endgeneration %}", "");
    let template = ChatTemplate::from_source(&plain, None, None).unwrap();
    let refused = tokenize(&conversation, &template, &small(), Masking::Assistant);
    assert!(refused.is_err());
}

/// As Qwen3.5's: answers begin with a reasoning that the prompt has begun, and ended where there is to be none, and the end token
/// has a newline behind it in the block.
fn thinking(is_quiet: bool) -> String {
    let ended = if is_quiet {
        r"{{ '\n</think>\n\n' }}"
    } else {
        ""
    };
    let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}<think>\n\
        {{ m.reasoning_content or '' }}\n</think>\n\n{{ m.content }}<|im_end|>{{ '\\n' }}{% endgeneration %}{% else %}\
        {{ m.content }}<|im_end|>{{ '\\n' }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n<think>{{ '\\n' }}ENDED{% endif %}";
    source.replace("ENDED", ended)
}

/// The same template without its blocks.
fn unmarked(source: &str) -> String {
    let opened = source.replace("{% generation %}", "");
    opened.replace("{% endgeneration %}", "")
}

#[test]
fn of_a_block_the_prompt_of_engines_and_what_is_behind_the_end_are_not_trained_on() {
    let mut answer = Message::new("assistant", "the cat");
    let asked =
        |answer: &Message| Conversation::new(vec![Message::new("user", "one"), answer.clone()]);
    for masking in [Masking::Assistant, Masking::LastTurn] {
        let quiet = thinking(true);
        for source in [&quiet, &unmarked(&quiet)] {
            let found = trained_of(&asked(&answer), source, masking);
            assert_eq!(found, "the cat<|im_end|>");
        }
    }
    answer.extra.insert(REASONING.into(), "ran".into());
    let found = trained_of(&asked(&answer), &thinking(false), Masking::Assistant);
    assert_eq!(found, "ran\n</think>\n\nthe cat<|im_end|>");
    // As SmolLM3's: the header stands in the block, too, or in one of its own.
    let around = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|im_start|>assistant{{ '\\n' }}\
        SPLIT{{ m.content }}<|im_end|>{{ '\\n' }}{% endgeneration %}{% else %}<|im_start|>{{ m.role }}\n\
        {{ m.content }}<|im_end|>{{ '\\n' }}{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant{{ '\\n' }}{% endif %}";
    for split in ["", "{% endgeneration %}{% generation %}"] {
        let source = around.replace("SPLIT", split);
        let both = "the cat<|im_end|>|é ran<|im_end|>";
        assert_eq!(trained(&source, Masking::Assistant), both);
        assert_eq!(trained(&source, Masking::LastTurn), "é ran<|im_end|>");
    }
}

/// How the prompts differ behind which answers are trained on that stand behind others.
fn differences(found: &Tokenized) -> Vec<&str> {
    let others = found.other_prompts.iter();
    others.map(|other| other.differs.as_str()).collect()
}

#[test]
fn a_block_begins_at_the_latest_where_it_differs_from_the_prompt_of_engines() {
    // As DeepSeek-R1's: the prompt begins a reasoning that this answer does not have.
    let source = "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}<|im_start|>assistant\n{{ m.content }}\
        <|im_end|>{% endgeneration %}{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>{% endif %}{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}";
    let messages = dialogue().messages;
    let (template, tokenizer) = (
        ChatTemplate::from_source(source, None, None).unwrap(),
        small(),
    );
    let with = (&template, &tokenizer);
    let found = tokenized((&messages[..]).into(), with, Masking::Assistant).unwrap();
    let told = r#"the prompt ends with "start|>assistant\n<think>", and the text before the answer with "|><|im_start|>assistant\n""#;
    assert_eq!(differences(&found), [told; 2]);
    let both = "the cat<|im_end|>|é ran<|im_end|>";
    assert_eq!(trained(source, Masking::Assistant), both);
    // A block with a text that begins as the prompt goes on.
    let mut similar = dialogue();
    similar.messages[1].content = "<the cat".into();
    let found = trained_of(&similar, source, Masking::Assistant);
    assert_eq!(found, "<the cat<|im_end|>|é ran<|im_end|>");
}

#[test]
fn whole_reasoning_in_what_is_said_stands_behind_the_prompt_and_not_behind_another_one() {
    let marked = thinking(false);
    // As Nemotron's: what is said is shown as it is, and the prompt has begun the reasoning.
    let opening = CHATML.replace(r"assistant\n", r"assistant\n<think>\n");
    for source in [&marked, &unmarked(&marked), &opening] {
        for content in [
            "<think>\nran\n</think>\n\nthe cat",
            "ran\n</think>\n\nthe cat",
        ] {
            let asked = Message::new("user", "one");
            let answer = Message::new("assistant", content);
            let mut conversation = Conversation::new(vec![asked.clone(), answer]);
            for masking in [Masking::Assistant, Masking::LastTurn] {
                let found = trained_of(&conversation, source, masking);
                assert_eq!(found, "ran\n</think>\n\nthe cat<|im_end|>");
                let found = trained_of(&stopped(content, ""), source, masking);
                assert_eq!(found, "ran\n</think>\n\nthe cat");
            }
            // So it does in the prompt of a later turn.
            conversation.messages.push(asked);
            let template = ChatTemplate::from_source(source, None, None).unwrap();
            let prompt = prompt_text(&conversation, &template).unwrap();
            let said = "assistant\n<think>\nran\n</think>\n\nthe cat<|im_end|>";
            assert!(prompt.contains(said), "{prompt}");
        }
    }
    // A template that drops it drops it.
    let dropping = opening.replace("message.content", "message.content.split('</think>')[-1]");
    let answer = Message::new("assistant", "ran</think>the cat");
    let conversation = Conversation::new(vec![Message::new("user", "one"), answer]);
    let found = trained_of(&conversation, &dropping, Masking::Assistant);
    assert_eq!(found, "the cat<|im_end|>");
}

#[test]
fn a_single_answer_stands_behind_the_prompt_of_engines_where_that_is_shown_otherwise() {
    let (template, tokenizer) = (
        ChatTemplate::from_source(CHANNELS, None, None).unwrap(),
        small(),
    );
    let conversation = Conversation::new(called());
    let answer = ":thinks\nso<|im_end|><|im_start|>assistant:says\nb<|im_end|>";
    let with = (&template, &tokenizer);
    let of = |masking| tokenized((&conversation).into(), with, masking).unwrap();
    let (alone, both) = (of(Masking::LastTurn), of(Masking::Assistant));
    let engines = prompt(&conversation, &template, &tokenizer).unwrap();
    assert_eq!(alone.sample.prompt(), engines);
    assert_eq!(differences(&alone), [""; 0]);
    let found = trained_of(&conversation, CHANNELS, Masking::LastTurn);
    assert_eq!(found, answer);
    // Of both answers together the first has lost its reasoning.
    let found = trained_of(&conversation, CHANNELS, Masking::Assistant);
    assert_eq!(found, format!(":says\ncall<|im_end|>|{answer}"));
    assert_eq!(
        differences(&both),
        ["what was said before is rendered otherwise there"]
    );
}

/// A template of the golden rows.
fn golden(name: &str) -> String {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tests/golden/chat_masks.json"
    );
    let data: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    data["templates"][name]["source"]
        .as_str()
        .unwrap()
        .to_owned()
}

/// A question and an answer that was cut off, with its reasoning apart if it has some.
fn stopped(content: &str, reasoning: &str) -> Conversation {
    let mut answer = Message::new("assistant", content);
    answer.extra.insert(CUT_OFF.into(), true.into());
    if !reasoning.is_empty() {
        answer.extra.insert(REASONING.into(), reasoning.into());
    }
    Conversation::new(vec![Message::new("user", "one"), answer])
}

#[test]
fn of_an_answer_cut_off_inside_its_reasoning_what_the_target_wrote_is_trained_on() {
    let begun = stopped("<think>\nthe cat", "");
    for name in ["thinking", "thinking_plain"] {
        let source = golden(name);
        for masking in [Masking::Assistant, Masking::LastTurn] {
            let shown = |of: &Conversation| trained_of(of, &source, masking);
            assert_eq!(shown(&begun), "<think>\nthe cat");
            // As engines hand it out, and behind a whole reasoning.
            assert_eq!(shown(&stopped("", "the cat")), "<think>\nthe cat");
            let whole = "<think>\nthe cat\n</think>\n\nran";
            assert_eq!(shown(&stopped("ran", "the cat")), whole);
            assert_eq!(shown(&stopped(whole, "")), whole);
            // The empty reasoning that the template writes here is not the target's.
            assert_eq!(shown(&stopped("the cat", "")), "");
        }
    }
    // The prompt has begun the reasoning.
    let opening = golden("thinking_plain")
        .replace(
            "enable_thinking is defined and enable_thinking is false",
            "true",
        )
        .replace(r"'<think>\n\n</think>\n\n'", r"'<think>\n'");
    let shown = |of: &Conversation| trained_of(of, &opening, Masking::Assistant);
    assert_eq!(shown(&stopped("the cat", "")), "the cat");
    assert_eq!(
        shown(&stopped("the cat\n</think>\n\nran", "")),
        "the cat\n</think>\n\nran"
    );
    // A template that knows nothing of reasoning shows it as it was written.
    assert_eq!(
        trained_of(&begun, CHATML, Masking::Assistant),
        "<think>\nthe cat"
    );
}

#[test]
fn an_answer_cut_off_inside_its_reasoning_stands_behind_the_prompt_that_has_begun_it() {
    let source = CHATML.replace(r"assistant\n", r"assistant\n<think>\n");
    let (template, tokenizer) = (
        ChatTemplate::from_source(&source, None, None).unwrap(),
        small(),
    );
    for content in ["the cat", "<think>\nthe cat"] {
        let conversation = stopped(content, "");
        let with = (&template, &tokenizer);
        let found = tokenized((&conversation).into(), with, Masking::Assistant).unwrap();
        let engines = prompt(&conversation, &template, &tokenizer).unwrap();
        assert_eq!(found.sample.prompt(), engines);
        assert!(found.other_prompts.is_empty());
        let found = trained_of(&conversation, &source, Masking::Assistant);
        assert_eq!(found, "the cat");
    }
}

#[test]
fn an_answer_cut_off_inside_its_reasoning_stays_where_the_template_shows_none_apart() {
    // The prompt opens a reasoning that the history leaves out.
    let source = CHATML
        .replace("message.content", "message.content.split('</think>')[-1]")
        .replace(r"assistant\n", r"assistant\n<think>\n");
    // The second one is what was asked, too.
    for content in ["Okay, let me count: one and", "one"] {
        let shown = trained_of(&stopped(content, ""), &source, Masking::Assistant);
        assert_eq!(shown, content);
    }
}

#[test]
fn of_an_answer_cut_off_in_its_second_part_both_parts_are_trained_on() {
    let mut conversation = stopped("the cat \nran", "");
    conversation.messages[1].parts = vec!["the cat ".len(), "ran".len()];
    let shown = |source: &str| trained_of(&conversation, source, Masking::Assistant);
    let parts = "message.content if message.content is string else message.content|map(attribute='text')|join";
    let source = CHATML.replace("message.content", &format!("({parts})"));
    assert_eq!(shown(&source), "the cat ran");
    // A template that takes texts gets a line of each.
    assert_eq!(shown(CHATML), "the cat \nran");
}

#[test]
fn what_a_template_writes_before_every_answer_hides_none_that_was_cut_off() {
    let header = "('final: ' if message.role == 'assistant' else '') + message.content";
    let shown = |from: &str, to: &str| {
        let source = CHATML.replace(from, to);
        trained_of(&stopped("the cat", ""), &source, Masking::Assistant)
    };
    assert_eq!(shown("message.content", header), "final: the cat");
    // Without a generation prompt, whose answer it is.
    assert_eq!(
        shown("add_generation_prompt", "false"),
        "<|im_start|>assistant\nthe cat"
    );
}

#[test]
fn a_mask_says_which_answers_it_asks_for() {
    let mut messages = dialogue().messages;
    messages[1].extra.insert("weight".into(), json!(0));
    let asked = |masking: Masking| -> Vec<&str> {
        let answers = masking.asked_answers(&messages).into_iter();
        answers.map(|answer| answer.content.as_str()).collect()
    };
    assert_eq!(asked(Masking::Assistant), ["the cat", "é ran"]);
    assert_eq!(asked(Masking::LastTurn), ["é ran"]);
    assert_eq!(asked(Masking::All), [""; 0]);
    assert_eq!(Masking::LastTurn.asked(&[0; 0]), [0; 0]);
}

#[test]
fn a_token_counts_when_it_shares_a_byte_with_a_span() {
    let offsets = [0..2, 2..4, 4..5, 5..9, 5..9, 9..10];
    let mask = overlapping(&offsets, &[3..3, 3..5, 6..7]);
    assert_eq!(mask, [false, true, true, true, true, false]);
}

#[test]
fn a_prompt_ends_where_the_assistant_begins() {
    let (template, tokenizer) = (
        ChatTemplate::from_source(CHATML, None, None).unwrap(),
        small(),
    );
    let text = |conversation: &Conversation| {
        tokenizer
            .decode(
                &prompt(conversation, &template, &tokenizer).unwrap(),
                Special::Keep,
            )
            .unwrap()
    };
    let mut conversation = dialogue();
    let whole = text(&conversation);
    assert!(
        whole.ends_with("user\ntwo<|im_end|>\n<|im_start|>assistant\n"),
        "{whole}"
    );
    conversation.messages.pop();
    assert_eq!(text(&conversation), whole);
}

/// The template of a row of the golden file, with what it is rendered with.
fn template_of(data: &serde_json::Value, row: &serde_json::Value) -> ChatTemplate {
    let source = &data["templates"][row["template"].as_str().unwrap()]["source"];
    let [bos, eos] = ["bos_token", "eos_token"].map(|name| row[name].as_str());
    let template = ChatTemplate::from_source(source.as_str().unwrap(), bos, eos).unwrap();
    match row["variables"].as_object() {
        Some(variables) => template.with_variables(variables.clone()),
        None => template,
    }
}

/// Whether each token of a rendering is one that the prompt of an answer ends inside.
fn cut_by_prompts(
    offsets: &[Range<usize>],
    rendered: &str,
    messages: &[Message],
    template: &ChatTemplate,
) -> Vec<bool> {
    let answers = (0..messages.len()).filter(|&at| messages[at].is_assistant());
    let ends = answers.filter_map(|at| {
        let prompt = template.render(&messages[..at], GenerationPrompt::With);
        let prompt = prompt.ok()?;
        rendered.starts_with(&prompt).then_some(prompt.len())
    });
    let ends: Vec<usize> = ends.collect();
    let is_cut =
        |token: &Range<usize>| ends.iter().any(|&end| token.start < end && end < token.end);
    offsets.iter().map(is_cut).collect()
}

#[test]
fn renderings_tokens_and_masks_are_those_of_transformers() {
    let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden"));
    let tokenizer = Tokenizer::from_folder(&golden.join("chat_tokenizer")).unwrap();
    let text = std::fs::read_to_string(golden.join("chat_masks.json")).unwrap();
    let data: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (mut masks, mut prompts, mut cut) = (0, 0, 0);
    for row in data["rows"].as_array().unwrap() {
        let name = row["name"].as_str().unwrap();
        let template = template_of(&data, row);
        let messages: Vec<Message> = serde_json::from_value(row["messages"].clone()).unwrap();
        let generation = match row["add_generation_prompt"].as_bool().unwrap() {
            true => GenerationPrompt::With,
            false => GenerationPrompt::Without,
        };
        let rendered = template.render(&messages[..], generation).unwrap();
        assert_eq!(rendered, row["rendered"].as_str().unwrap(), "{name}");
        let Some(ids) = row["ids"].as_array() else {
            prompts += 1;
            continue;
        };
        let offsets = tokenizer.encode(&rendered).unwrap().offsets;
        // `transformers` takes these.
        let is_cut = cut_by_prompts(&offsets, &rendered, &messages, &template);
        cut += is_cut.iter().filter(|&&cut| cut).count();
        let conversation = Conversation::new(messages);
        let sample = tokenize(&conversation, &template, &tokenizer, Masking::Assistant).unwrap();
        let ids: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
        assert_eq!(sample.tokens, ids, "{name}");
        let bits = row["mask"].as_array().unwrap().iter().zip(is_cut);
        let mask: Vec<bool> = bits.map(|(bit, is_cut)| bit == 1 && !is_cut).collect();
        assert_eq!(sample.loss_mask, mask, "{name}: {rendered}");
        masks += 1;
    }
    assert!(
        masks >= 60 && prompts >= 10 && cut > 0,
        "{masks} masks, {prompts} prompts and {cut} tokens of both"
    );
}
