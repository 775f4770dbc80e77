//! Conversations as tokens with a loss mask over what the assistant said.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conversation::{Conversation, Exchange, Message, REASONING, Sample, THOUGHT};
use crate::error::Result;
use crate::template::{ChatTemplate, GenerationPrompt, Rendered};
use crate::thought;
use crate::tokenizer::Tokenizer;
use crate::turns::Conversed;

/// Which tokens a drafter is trained on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Masking {
    /// What the assistant says, including the token that ends each turn.
    #[default]
    Assistant,
    /// Only the assistant's last turn.
    LastTurn,
    /// Every token.
    All,
}

impl Masking {
    /// Those of the answers of a conversation, in order, that it asks for, whatever they say of themselves; none where every token is
    /// trained on, whoever says it.
    pub(crate) fn asked<T>(self, answers: &[T]) -> &[T] {
        match self {
            Self::Assistant => answers,
            Self::LastTurn => &answers[answers.len().saturating_sub(1)..],
            Self::All => &[],
        }
    }

    /// The same of the messages of a conversation.
    pub(crate) fn asked_answers(self, messages: &[Message]) -> Vec<&Message> {
        let answers = messages.iter().filter(|message| message.is_assistant());
        let answers: Vec<&Message> = answers.collect();
        self.asked(&answers).to_vec()
    }
}

/// Renders and tokenises a conversation and marks the tokens to train on.
///
/// The assistant's part is what the template's `{% generation %}` blocks contain; without such blocks it is each
/// turn from the generation prompt to the token that ends it. The text is tokenised once, as a whole, and a token is
/// in the mask when it shares a byte with that part. This is `return_assistant_tokens_mask` of `transformers`, but
/// for a block that ends inside a character of several tokens, of which `transformers` takes only the first. Answers that are
/// [only context](Message::is_trained_on) are no part of it. Of an answer that was [cut off](Message::is_cut_off) the part is what
/// the target wrote: not the end of the turn, and nothing where the template shows something else, or before it a reasoning that
/// is not the target's.
pub fn tokenize<'a>(
    exchange: impl Into<Exchange<'a>>,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    masking: Masking,
) -> Result<Sample> {
    let exchange = exchange.into();
    let apart = thought::apart(exchange, template);
    let exchange = match &apart {
        Some(messages) => Exchange {
            messages,
            ..exchange
        },
        None => exchange,
    };
    let rendered = template.render_marked(exchange, GenerationPrompt::Without)?;
    let encoding = tokenizer.encode(&rendered.text)?;
    let loss_mask = match masking {
        Masking::All => vec![true; encoding.ids.len()],
        Masking::Assistant | Masking::LastTurn => {
            let with = (template, tokenizer);
            let spans = trained_spans(exchange, &rendered, with, masking)?;
            overlapping(&encoding.offsets, &spans)
        }
    };
    Ok(Sample {
        tokens: encoding.ids,
        loss_mask,
    })
}

/// The tokens of [`prompt_text`].
pub fn prompt(
    conversation: &Conversation,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
) -> Result<Vec<u32>> {
    Ok(tokenizer.encode(&prompt_text(conversation, template)?)?.ids)
}

/// The text of a conversation up to its last assistant turn, where the target is to answer.
///
/// A conversation that ends with another role is taken whole: its answer is still to come.
pub fn prompt_text(conversation: &Conversation, template: &ChatTemplate) -> Result<String> {
    let mut exchange = Exchange::from(conversation);
    if exchange.messages.last().is_some_and(Message::is_assistant) {
        exchange = exchange.first(exchange.messages.len() - 1);
    }
    template.render(exchange, GenerationPrompt::With)
}

/// The bytes of a rendering that are trained on, in order.
fn trained_spans(
    exchange: Exchange<'_>,
    rendered: &Rendered,
    (template, tokenizer): (&ChatTemplate, &Tokenizer),
    masking: Masking,
) -> Result<Vec<Range<usize>>> {
    let messages = exchange.messages;
    let answers = (0..messages.len()).filter(|&index| messages[index].is_assistant());
    let answers: Vec<usize> = answers.collect();
    let Some(&last) = answers.last() else {
        return Ok(Vec::new());
    };
    let asked = masking.asked(&answers).iter().copied();
    let (trained, context): (Vec<usize>, Vec<usize>) =
        asked.partition(|&index| messages[index].is_trained_on());
    if trained.is_empty() {
        return Ok(Vec::new());
    }
    let conversed = Conversed {
        exchange,
        text: &rendered.text,
        render: &|exchange, generation| template.render(exchange, generation),
        special: tokenizer.special_texts(),
    };
    let Some(blocks) = &rendered.spans else {
        let turns = trained.iter().zip(conversed.turns(&trained)?);
        let span = |(&place, turn): (&usize, Range<usize>)| match messages[place].is_cut_off() {
            true => turn.start..end_written(&conversed, place, &turn),
            false => turn,
        };
        return Ok(turns.map(span).collect());
    };
    let wanted = match masking {
        Masking::LastTurn => last_blocks(exchange, blocks, template, last),
        Masking::Assistant | Masking::All => &blocks[..],
    };
    let turns = |places: &[usize]| match blocks_of(messages, blocks, places) {
        Some(blocks) => Ok(blocks),
        None => conversed.turns(places),
    };
    // A block may begin before its turn does, so that a part of it would be left beside the turn.
    let context = turns(&context)?;
    let is_trained = |span: &&Range<usize>| !context.iter().any(|turn| overlap(span, turn));
    let cut_off = trained.iter().copied();
    let cut_off: Vec<usize> = cut_off.filter(|&at| messages[at].is_cut_off()).collect();
    let ends = cut_off.iter().zip(turns(&cut_off)?);
    let ends = ends.map(|(&place, turn)| end_written(&conversed, place, &turn)..turn.end);
    let ends: Vec<_> = ends.collect();
    let spans = wanted.iter().filter(is_trained).cloned();
    Ok(spans.map(|span| before(span, &ends)).collect())
}

/// The blocks of the last turn of the assistant, at this index: a turn can have several, so those of the turns before it are counted.
fn last_blocks<'a>(
    exchange: Exchange<'_>,
    blocks: &'a [Range<usize>],
    template: &ChatTemplate,
    last: usize,
) -> &'a [Range<usize>] {
    let earlier = match template.render_marked(exchange.first(last), GenerationPrompt::Without) {
        Ok(before) => before.spans.map_or(0, |spans| spans.len()),
        Err(_) => blocks.len().saturating_sub(1),
    };
    blocks.get(earlier..).unwrap_or_default()
}

/// The template's blocks of these messages, where it has one for each message of the assistant: they are there also where turns
/// cannot be found.
fn blocks_of(
    messages: &[Message],
    blocks: &[Range<usize>],
    places: &[usize],
) -> Option<Vec<Range<usize>>> {
    let assistants = (0..messages.len()).filter(|&index| messages[index].is_assistant());
    let assistants: Vec<usize> = assistants.collect();
    let block = |place| Some(blocks[assistants.binary_search(place).ok()?].clone());
    (blocks.len() == assistants.len()).then(|| places.iter().filter_map(block).collect())
}

/// Where what the target wrote ends in a turn that was cut off: the template ends the turn, and the target did not.
fn end_written(conversed: &Conversed<'_>, place: usize, turn: &Range<usize>) -> usize {
    let shown = without_special_end(&conversed.text[turn.clone()], conversed.special);
    turn.start + written(&conversed.exchange.messages[place], shown)
}

/// How many bytes of a turn that was cut off, shown like this without its end, the target wrote.
fn written(message: &Message, shown: &str) -> usize {
    let reasoning = message.extra.get(REASONING).and_then(Value::as_str);
    let reasoning = reasoning.map_or("", str::trim);
    // Where the content is empty, the target was stopped in its reasoning.
    let said = match message.content.trim() {
        "" => reasoning,
        content => content,
    };
    // Where the template shows something else, nobody knows where the target was stopped.
    let Some(at) = shown.rfind(said).filter(|_| !said.is_empty()) else {
        return 0;
    };
    let end = at + said.len();
    // Marks stand around a reasoning that is there; a template may also write them around none.
    let is_thought = THOUGHT.iter().any(|mark| shown[..at].contains(mark));
    let is_reasoned = !reasoning.is_empty() && shown[..end].contains(reasoning);
    if !is_thought || is_reasoned { end } else { 0 }
}

/// The text of a turn before the special tokens that end it.
fn without_special_end<'a>(turn: &'a str, special: &[String]) -> &'a str {
    let mut shown = turn.trim_end();
    let ended = |shown: &'a str| {
        let mut tokens = special.iter().filter(|token| !token.is_empty());
        tokens.find_map(|token| shown.strip_suffix(token.as_str()))
    };
    while let Some(rest) = ended(shown) {
        shown = rest.trim_end();
    }
    shown
}

/// Whether two spans share a byte.
fn overlap(one: &Range<usize>, other: &Range<usize>) -> bool {
    one.start < other.end && other.start < one.end
}

/// What is left of a span before these ends of turns, with which it shares a turn or nothing.
fn before(span: Range<usize>, ends: &[Range<usize>]) -> Range<usize> {
    match ends.iter().find(|end| overlap(&span, end)) {
        Some(end) => span.start..end.start.max(span.start),
        None => span,
    }
}

/// For each token whether it shares a byte with a span.
fn overlapping(offsets: &[Range<usize>], spans: &[Range<usize>]) -> Vec<bool> {
    let mut spans: Vec<_> = spans.iter().filter(|span| !span.is_empty()).collect();
    spans.sort_by_key(|span| span.start);
    // Of the spans that start before a token ends, whether the one that ends last reaches into it.
    let ends: Vec<usize> = spans
        .iter()
        .scan(0, |end, span| {
            *end = span.end.max(*end);
            Some(*end)
        })
        .collect();
    let is_trained = |token: &Range<usize>| {
        let before = spans.partition_point(|span| span.start < token.end);
        before > 0 && ends[before - 1] > token.start
    };
    offsets.iter().map(is_trained).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::CUT_OFF;
    use crate::template::tests::CHATML;
    use crate::tokenizer::Special;
    use crate::tokenizer::tests::small;
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
        assert!(shown(&dialogue()).starts_with("<|im_start|>assistant\nthe"));
        let found = shown(&said(1, "weight", json!(0)));
        assert_eq!(found.matches("<|im_start|>assistant").count(), 1, "{found}");
        assert!(!found.contains("the"), "{found}");
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

    #[test]
    fn renderings_tokens_and_masks_are_those_of_transformers() {
        let golden = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/golden"));
        let tokenizer = Tokenizer::from_folder(&golden.join("chat_tokenizer")).unwrap();
        let text = std::fs::read_to_string(golden.join("chat_masks.json")).unwrap();
        let data: serde_json::Value = serde_json::from_str(&text).unwrap();
        let (mut masks, mut prompts) = (0, 0);
        for row in data["rows"].as_array().unwrap() {
            let name = row["name"].as_str().unwrap();
            let source = data["templates"][row["template"].as_str().unwrap()]["source"]
                .as_str()
                .unwrap();
            let template = ChatTemplate::from_source(
                source,
                row["bos_token"].as_str(),
                row["eos_token"].as_str(),
            )
            .unwrap();
            let template = match row["variables"].as_object() {
                Some(variables) => template.with_variables(variables.clone()),
                None => template,
            };
            let messages: Vec<Message> = serde_json::from_value(row["messages"].clone()).unwrap();
            let generation = if row["add_generation_prompt"].as_bool().unwrap() {
                GenerationPrompt::With
            } else {
                GenerationPrompt::Without
            };
            let rendered = template.render(&messages[..], generation).unwrap();
            assert_eq!(rendered, row["rendered"].as_str().unwrap(), "{name}");
            let Some(ids) = row["ids"].as_array() else {
                prompts += 1;
                continue;
            };
            let sample = tokenize(
                &Conversation::new(messages),
                &template,
                &tokenizer,
                Masking::Assistant,
            )
            .unwrap();
            let ids: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
            assert_eq!(sample.tokens, ids, "{name}");
            let mask: Vec<bool> = row["mask"]
                .as_array()
                .unwrap()
                .iter()
                .map(|bit| bit == 1)
                .collect();
            assert_eq!(sample.loss_mask, mask, "{name}: {rendered}");
            masks += 1;
        }
        assert!(
            masks >= 60 && prompts >= 10,
            "{masks} masks and {prompts} prompts"
        );
    }
}
