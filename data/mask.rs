//! Conversations as tokens with a loss mask over what the assistant said.

use std::ops::Range;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::conversation::{Conversation, Exchange, Message, REASONING, Sample, THOUGHT};
use crate::error::Result;
use crate::template::{ChatTemplate, GenerationPrompt, Rendered};
use crate::thought;
use crate::tokenizer::{Encoding, Tokenizer};
use crate::turns::{Conversed, Opening, Turn, ending};

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
/// turn from the generation prompt to the token that ends it. What the prompt that engines render for an answer has of a block is no
/// part of it, nor is whitespace behind that token. The text is tokenised once, as a whole, and a token is
/// in the mask when it shares a byte with that part, and does not begin inside the prompt: behind that the target cannot write it.
/// This is `return_assistant_tokens_mask` of `transformers`, but
/// for those three, and for a block that ends inside a character of several tokens, of which `transformers` takes only the first.
/// Answers that are [only context](Message::is_trained_on) are no part of it. Of an answer that was
/// [cut off](Message::is_cut_off) the part is what
/// the target wrote: not the end of the turn, and nothing where the template shows something else, or before it a reasoning that
/// is not the target's.
///
/// A single answer that is trained on stands behind the prompt that engines render for it, where the template shows what was said
/// before otherwise once the answer is there. Reasoning in what is said is rendered with the `<think>` that the prompt begins it with,
/// or as `reasoning_content`, where the template shows it right behind the prompt in that form alone.
pub fn tokenize<'a>(
    exchange: impl Into<Exchange<'a>>,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    masking: Masking,
) -> Result<Sample> {
    let exchange = exchange.into();
    let ended = thought::ended(exchange, template);
    let exchange = thought::with(exchange, ended.as_deref());
    Ok(tokenized(exchange, (template, tokenizer), masking)?.sample)
}

/// A sample of a conversation, and what there is to say of it.
pub(crate) struct Tokenized {
    pub(crate) sample: Sample,
    pub(crate) other_prompts: Vec<OtherPrompt>,
}

/// An answer that is trained on behind something else than the prompt that engines render for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtherPrompt {
    /// The first of its tokens that is trained on.
    pub(crate) token: usize,
    /// How the two differ.
    pub(crate) differs: String,
}

/// The same as [`tokenize`] of a conversation whose whole reasoning is as the template [shows it](thought::ended).
pub(crate) fn tokenized(
    exchange: Exchange<'_>,
    with: (&ChatTemplate, &Tokenizer),
    masking: Masking,
) -> Result<Tokenized> {
    let (template, tokenizer) = with;
    let begun = thought::begun(exchange, template);
    let exchange = thought::with(exchange, begun.as_deref());
    let rendered = template.render_marked(exchange, GenerationPrompt::Without)?;
    let (text, trained) = match masking {
        Masking::All => (rendered.text, None),
        Masking::Assistant | Masking::LastTurn => {
            let trained = trained(exchange, &rendered, with, masking)?;
            let (text, trained) = in_context(exchange, (rendered.text, trained), template)?;
            (text, Some(trained))
        }
    };
    let Encoding { ids, offsets } = tokenizer.encode(&text)?;
    let Some(trained) = trained else {
        return Ok(Tokenized {
            sample: Sample {
                loss_mask: vec![true; ids.len()],
                tokens: ids,
            },
            other_prompts: Vec::new(),
        });
    };
    let turns = trained.turns.iter().flatten();
    let prompts: Vec<usize> = turns.clone().filter_map(end_of_prompt).collect();
    let trained_on = overlapping(&offsets, &trained.spans).into_iter();
    let trained_on = trained_on.zip(&offsets);
    let others = turns.filter_map(|turn| other_prompt(&text, (&trained.spans, &offsets), turn));
    Ok(Tokenized {
        other_prompts: others.collect(),
        sample: Sample {
            loss_mask: trained_on
                .map(|(is_trained, token)| is_trained && !is_across(token, &prompts))
                .collect(),
            tokens: ids,
        },
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
    prompt_to_answer(before_answer(conversation), template)
}

/// A conversation up to its last assistant turn; one that ends with another role whole.
pub(crate) fn before_answer(conversation: &Conversation) -> Exchange<'_> {
    let exchange = Exchange::from(conversation);
    match exchange.messages.split_last() {
        Some((last, before)) if last.is_assistant() => exchange.first(before.len()),
        _ => exchange,
    }
}

/// The text of all these messages, where the target is to answer: with the reasoning of earlier answers in the form in which
/// [samples](tokenize) have it.
pub fn prompt_to_answer(exchange: Exchange<'_>, template: &ChatTemplate) -> Result<String> {
    let ended = thought::ended(exchange, template);
    let exchange = thought::with(exchange, ended.as_deref());
    template.render(exchange, GenerationPrompt::With)
}

/// What is trained on of a text.
#[derive(Default)]
struct Trained {
    /// Its bytes, in order.
    spans: Vec<Range<usize>>,
    /// The turns that they are of, each where it is found.
    turns: Vec<Option<Turn>>,
}

/// A text in which a single turn that is trained on stands behind the prompt that engines render for it, if it began behind the end of
/// that prompt before.
fn in_context(
    exchange: Exchange<'_>,
    (text, trained): (String, Trained),
    template: &ChatTemplate,
) -> Result<(String, Trained)> {
    let [
        Some(Turn {
            message,
            bytes,
            opening: Opening::Rewritten(_),
            ..
        }),
    ] = &trained.turns[..]
    else {
        return Ok((text, trained));
    };
    let prompt = template.render(exchange.first(*message), GenerationPrompt::With)?;
    let text = format!("{prompt}{}", &text[bytes.start..]);
    let at = |at: usize| at.max(bytes.start) - bytes.start + prompt.len();
    let moved = |bytes: &Range<usize>| at(bytes.start)..at(bytes.end);
    let turn = Turn {
        message: *message,
        bytes: moved(bytes),
        begins: prompt.len(),
        opening: Opening::Prompt,
    };
    let in_context = Trained {
        spans: trained.spans.iter().map(moved).collect(),
        turns: vec![Some(turn)],
    };
    Ok((text, in_context))
}

/// What is trained on in a text with tokens at these bytes behind something else than the prompt that engines render for it, in a turn;
/// nothing where it stands behind that, or where no such prompt is known.
fn other_prompt(
    text: &str,
    (spans, tokens): (&[Range<usize>], &[Range<usize>]),
    turn: &Turn,
) -> Option<OtherPrompt> {
    let (Opening::Rewritten(expected) | Opening::Other(expected)) = &turn.opening else {
        return None;
    };
    let mut spans = spans.iter().filter(|span| !span.is_empty());
    let span = spans.find(|span| overlap(span, &turn.bytes))?;
    let found = ending(&text[..span.start]);
    let differs = if expected == found {
        "what was said before is rendered otherwise there".to_owned()
    } else {
        format!("the prompt ends with {expected:?}, and the text before the answer with {found:?}")
    };
    Some(OtherPrompt {
        token: tokens.partition_point(|token| token.end <= span.start),
        differs,
    })
}

/// Where the prompt that engines render for a turn ends, if it is what stands right before the turn.
fn end_of_prompt(turn: &Turn) -> Option<usize> {
    match turn.opening {
        Opening::Prompt | Opening::Rewritten(_) => Some(turn.begins),
        Opening::Other(_) | Opening::Unknown => None,
    }
}

/// Whether one of these places, in order, is inside a token.
fn is_across(token: &Range<usize>, places: &[usize]) -> bool {
    let next = places.partition_point(|&place| place <= token.start);
    places.get(next).is_some_and(|&place| place < token.end)
}

/// What is trained on of a rendering.
fn trained(
    exchange: Exchange<'_>,
    rendered: &Rendered,
    (template, tokenizer): (&ChatTemplate, &Tokenizer),
    masking: Masking,
) -> Result<Trained> {
    let messages = exchange.messages;
    let answers = (0..messages.len()).filter(|&index| messages[index].is_assistant());
    let answers: Vec<usize> = answers.collect();
    let asked = masking.asked(&answers).iter().copied();
    let (trained, context): (Vec<usize>, Vec<usize>) =
        asked.partition(|&index| messages[index].is_trained_on());
    if trained.is_empty() {
        return Ok(Trained::default());
    }
    let conversed = Conversed {
        exchange,
        text: &rendered.text,
        render: &|exchange, generation| template.render(exchange, generation),
        special: tokenizer.special_texts(),
    };
    let Some(blocks) = &rendered.spans else {
        let turns = conversed.turns(&trained)?;
        let span = |(&place, Turn { bytes, .. }): (&usize, &Turn)| {
            let end = match messages[place].is_cut_off() {
                true => end_written(&conversed, place, bytes),
                false => bytes.end,
            };
            bytes.start..end
        };
        return Ok(Trained {
            spans: trained.iter().zip(&turns).map(span).collect(),
            turns: turns.into_iter().map(Some).collect(),
        });
    };
    let turns = conversed.turns_if_found(&trained)?;
    let blocks = behind_prompts(&rendered.text, blocks, &turns);
    let wanted = match (masking, answers.last()) {
        (Masking::LastTurn, Some(&last)) => last_blocks(exchange, &blocks, template, last),
        _ => &blocks[..],
    };
    Ok(Trained {
        spans: of_blocks(&conversed, (&blocks, wanted), (&trained, &context))?,
        turns,
    })
}

/// The blocks without what of them engines' prompts have before these turns, and without whitespace behind the ends of the turns:
/// each in its place, and an empty one where nothing is left. A block whose turn is not found stays as it is.
fn behind_prompts(
    text: &str,
    blocks: &[Range<usize>],
    turns: &[Option<Turn>],
) -> Vec<Range<usize>> {
    let found = turns.iter().flatten();
    let found = found.map(|turn| turn.begins..turn.bytes.end);
    let found: Vec<Range<usize>> = found.collect();
    let is_blank = |bytes: Range<usize>| text[bytes].trim().is_empty();
    let behind = |block: &Range<usize>| {
        let mut starts = found.iter().map(|turn| turn.start);
        let start = starts.find(|start| block.start < *start && *start < block.end);
        let start = start.unwrap_or(block.start);
        let mut ends = found.iter().map(|turn| turn.end);
        let end = ends.find(|&end| start < end && end < block.end && is_blank(end..block.end));
        let left = start..end.unwrap_or(block.end);
        let is_whole = found.len() == turns.len();
        let is_outside = is_whole && !found.iter().any(|turn| overlap(turn, &left));
        if is_outside { start..start } else { left }
    };
    blocks.iter().map(behind).collect()
}

/// What is trained on of the blocks that are wanted, without turns that are only context and without the ends of those that were cut
/// off.
fn of_blocks(
    conversed: &Conversed<'_>,
    (blocks, wanted): (&[Range<usize>], &[Range<usize>]),
    (trained, context): (&[usize], &[usize]),
) -> Result<Vec<Range<usize>>> {
    let messages = conversed.exchange.messages;
    let turns = |places: &[usize]| -> Result<Vec<Range<usize>>> {
        if let Some(blocks) = blocks_of(messages, blocks, places) {
            return Ok(blocks);
        }
        let turns = conversed.turns(places)?.into_iter();
        Ok(turns.map(|turn| turn.bytes).collect())
    };
    // A block may begin before its turn does, so that a part of it would be left beside the turn.
    let context = turns(context)?;
    let is_trained = |span: &&Range<usize>| !context.iter().any(|turn| overlap(span, turn));
    let cut_off = trained.iter().copied();
    let cut_off: Vec<usize> = cut_off.filter(|&at| messages[at].is_cut_off()).collect();
    let ends = cut_off.iter().zip(turns(&cut_off)?);
    let ends = ends.map(|(&place, turn)| end_written(conversed, place, &turn)..turn.end);
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
    // A template that takes parts may show something else between them than line breaks.
    let said = message
        .texts()
        .unwrap_or_else(|| vec![message.content.as_str()]);
    let said = said.into_iter().map(|said| match said.trim() {
        said if shown.contains(said) => said,
        // The prompt has begun the reasoning.
        said => said.strip_prefix(THOUGHT[0]).map_or(said, str::trim_start),
    });
    let mut said: Vec<&str> = said.filter(|said| !said.is_empty()).collect();
    // Where the content is empty, the target was stopped in its reasoning.
    if message.content.trim().is_empty() && !reasoning.is_empty() {
        said.push(reasoning);
    }
    // Where the template shows something else, nobody knows where the target was stopped.
    let Some(Range { start: at, end }) = last_place(shown, &said) else {
        return 0;
    };
    // Marks stand around a reasoning that is there; a template may also write them around none.
    let is_thought = THOUGHT.iter().any(|mark| shown[..at].contains(mark));
    let is_reasoned = !reasoning.is_empty() && shown[..end].contains(reasoning);
    if !is_thought || is_reasoned { end } else { 0 }
}

/// Where a text has these ones, in order and as far behind as can be; none where it does not, or there are none.
fn last_place(text: &str, parts: &[&str]) -> Option<Range<usize>> {
    let mut place: Option<Range<usize>> = None;
    for &part in parts.iter().rev() {
        let before = place.as_ref().map_or(text, |place| &text[..place.start]);
        let start = before.rfind(part)?;
        let end = place.map_or(start + part.len(), |place| place.end);
        place = Some(start..end);
    }
    place
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
mod tests;
