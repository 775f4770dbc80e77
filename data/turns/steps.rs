//! Finds the assistant's turns of a long conversation in one go through it.
//!
//! Rendering every beginning of a conversation takes as long as the square of its length. But what a message adds to a
//! text depends, in most templates, on little before it. So the conversation is gone through in units (a turn of the
//! user with the answer, or an answer to a tool), and what each adds is rendered behind the first messages and the unit
//! before it alone. These additions must make up the whole text, and where the turns lie by them must be where they lie
//! by rendering the beginning itself for some of them; else nothing is found here. An answer that does not stand behind the prompt for
//! it is looked for in its unit, as it would be in the whole.

use std::mem::discriminant;
use std::ops::Range;

use super::conversed::{Conversed, Opening, Turn};
use crate::conversation::{Exchange, Message};
use crate::template::GenerationPrompt;

/// Turns that are also looked for by rendering the beginning up to them.
const CHECKED: usize = 3;

/// The turns of assistant messages, by their indices in order.
pub(super) fn turns(conversed: &Conversed<'_>, wanted: &[usize]) -> Option<Vec<Turn>> {
    let messages = conversed.exchange.messages;
    let cuts = cuts(messages);
    let (&first, &second) = (cuts.first()?, cuts.get(1)?);
    let beginning = conversed.exchange.first(second);
    let before = (conversed.render)(beginning, GenerationPrompt::Without).ok()?;
    let mut at = conversed
        .text
        .starts_with(&before)
        .then_some(before.len())?;
    let mut wanted_left = wanted.iter().copied().peekable();
    let mut found = Vec::with_capacity(wanted.len());
    while let Some(index) = wanted_left.next_if(|&index| index < second) {
        found.push(conversed.turn(index).ok()?);
    }
    for (place, &cut) in cuts.iter().enumerate().skip(1) {
        let end = cuts.get(place + 1).copied().unwrap_or(messages.len());
        let mut window = messages[..first].to_vec();
        let previous = cuts[place - 1];
        if previous != opening(messages, previous).start {
            window.extend_from_slice(&messages[opening(messages, previous)]);
        }
        window.extend_from_slice(&messages[previous..cut]);
        let mut unit = Unit::new(conversed, window, at)?;
        for (index, message) in (cut..end).zip(&messages[cut..end]) {
            let is_wanted = wanted_left.next_if_eq(&index).is_some();
            let start = is_wanted.then(|| unit.end(GenerationPrompt::With));
            unit.window.push(message.clone());
            match start {
                Some(Some(start)) => {
                    let end = unit.end(GenerationPrompt::Without)?;
                    found.push(Turn {
                        message: index,
                        bytes: conversed.trimmed(start..end)?,
                        begins: start,
                        opening: Opening::Prompt,
                    });
                }
                Some(None) => found.push(unit.turn(index)?),
                None => {}
            }
        }
        at = unit.end(GenerationPrompt::Without)?;
    }
    let spread = (1..=CHECKED).map(|part| part * (wanted.len() - 1) / CHECKED);
    let agrees = |place: usize| {
        let turn = conversed.turn(wanted[place]);
        turn.is_ok_and(|turn| is_same(&turn, &found[place]))
    };
    let is_whole = at == conversed.text.len() && found.len() == wanted.len();
    (is_whole && spread.into_iter().all(agrees)).then_some(found)
}

/// Whether two turns are one, but for how the prompt for it ends: that of a unit may be shorter than what is shown of it.
fn is_same(one: &Turn, other: &Turn) -> bool {
    let place = |turn: &Turn| (turn.message, turn.bytes.clone(), turn.begins);
    place(one) == place(other) && discriminant(&one.opening) == discriminant(&other.opening)
}

/// A unit and what it is rendered behind.
struct Unit<'c> {
    conversed: &'c Conversed<'c>,
    window: Vec<Message>,
    /// Length of the rendering of what comes before.
    before: usize,
    /// Where it starts in the whole text.
    at: usize,
}

impl<'c> Unit<'c> {
    fn new(conversed: &'c Conversed<'c>, window: Vec<Message>, at: usize) -> Option<Self> {
        let mut unit = Self {
            conversed,
            window,
            before: 0,
            at,
        };
        unit.before = unit.render(GenerationPrompt::Without)?.len();
        Some(unit)
    }

    fn exchange(&self) -> Exchange<'_> {
        Exchange {
            messages: &self.window,
            ..self.conversed.exchange
        }
    }

    fn render(&self, generation: GenerationPrompt) -> Option<String> {
        (self.conversed.render)(self.exchange(), generation).ok()
    }

    /// Where the messages so far end in the whole text, if that is what they add.
    fn end(&self, generation: GenerationPrompt) -> Option<usize> {
        let text = self.render(generation)?;
        let added = text.get(self.before..)?;
        let rest = self.conversed.text.get(self.at..)?;
        rest.starts_with(added).then_some(self.at + added.len())
    }

    /// The last message so far, of this index in the whole, as a turn in the whole text: where the prompt of engines is not what the
    /// messages before it add there.
    fn turn(&self, message: usize) -> Option<Turn> {
        self.end(GenerationPrompt::Without)?;
        let text = self.render(GenerationPrompt::Without)?;
        let conversed = Conversed {
            exchange: self.exchange(),
            text: &text,
            render: self.conversed.render,
            special: self.conversed.special,
        };
        let turn = conversed.turn(self.window.len().checked_sub(1)?).ok()?;
        let added = |at: usize| Some(at.checked_sub(self.before)? + self.at);
        Some(Turn {
            message,
            bytes: added(turn.bytes.start)?..added(turn.bytes.end)?,
            // A turn of which nothing is known begins with the text.
            begins: added(turn.begins).unwrap_or_default(),
            opening: turn.opening,
        })
    }
}

/// Where units start: at turns of the user, and at answers to what is neither the user's nor the assistant's.
fn cuts(messages: &[Message]) -> Vec<usize> {
    let is_user = |index: usize| messages[index].role == "user";
    let first = (0..messages.len()).find(|&index| is_user(index));
    let starts = |&index: &usize| {
        Some(index) == first
            || is_user(index) && !is_user(index - 1)
            || messages[index].is_assistant()
                && !is_user(index - 1)
                && !messages[index - 1].is_assistant()
    };
    (first.unwrap_or(messages.len())..messages.len())
        .filter(starts)
        .collect()
}

/// What the user said at the start of the turn that `index` is in.
fn opening(messages: &[Message], index: usize) -> Range<usize> {
    let is_user = |index: &usize| messages[*index].role == "user";
    let last = (0..=index).rev().find(is_user).unwrap_or(index);
    let start = (0..=last).rev().take_while(is_user).last().unwrap_or(last);
    start..last + 1
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::template::ChatTemplate;
    use crate::template::tests::CHATML;
    use crate::tokenizer::tests::small;

    /// A conversation with tools now and then.
    fn long(turns: usize) -> Vec<Message> {
        let mut messages = vec![Message::new("system", "s")];
        for turn in 0..turns {
            messages.push(Message::new("user", format!("question {turn}")));
            for call in 0..turn % 3 {
                messages.push(Message::new("assistant", format!("call {call}")));
                messages.push(Message::new("tool", " 42\n"));
            }
            messages.push(Message::new(
                "assistant",
                format!(" answer <|im_end|> {turn} "),
            ));
        }
        messages
    }

    /// Looks for all turns with `find`; also returns how many messages were rendered for it.
    fn with<T>(
        source: &str,
        messages: &[Message],
        find: impl Fn(&Conversed<'_>, &[usize]) -> T,
    ) -> (T, usize) {
        let template = ChatTemplate::from_source(source, Some("<s>"), Some("<|im_end|>")).unwrap();
        let text = template
            .render(messages, GenerationPrompt::Without)
            .unwrap();
        let rendered = Cell::new(0);
        let tokenizer = small();
        let conversed = Conversed {
            exchange: messages.into(),
            text: &text,
            render: &|exchange, generation| {
                rendered.set(rendered.get() + exchange.messages.len());
                template.render(exchange, generation)
            },
            special: tokenizer.special_texts(),
        };
        let is_assistant = |&index: &usize| messages[index].is_assistant();
        let wanted: Vec<usize> = (0..messages.len()).filter(is_assistant).collect();
        let found = find(&conversed, &wanted);
        (found, rendered.get())
    }

    fn one_by_one(conversed: &Conversed<'_>, wanted: &[usize]) -> Option<Vec<Turn>> {
        wanted
            .iter()
            .map(|&index| conversed.turn(index).ok())
            .collect()
    }

    /// Templates that show something else before answers than the prompt for them.
    fn behind_others() -> [String; 2] {
        let asked = "('!' if loop.last and message.role == 'user' else '') + message.content";
        [
            CHATML.replace(r"assistant\n", r"assistant\n<think>\n"),
            CHATML.replace("message.content", asked),
        ]
    }

    #[test]
    fn turns_found_in_steps_are_those_found_one_by_one() {
        let trimmed = CHATML.replace("message.content", "message.content | trim");
        let first = CHATML.replace(
            "{{- '<|im_start|>'",
            "{%- if loop.first %}{{ bos_token }}{% endif %}{{- '<|im_start|>'",
        );
        let [other, rewritten] = behind_others();
        for source in [CHATML, &trimmed, &first, &other, &rewritten] {
            let messages = long(12);
            let (found, exact) = (
                with(source, &messages, turns).0,
                with(source, &messages, one_by_one).0,
            );
            assert!(found.is_some(), "{source}");
            assert_eq!(found, exact, "{source}");
        }
    }

    #[test]
    fn a_long_conversation_is_rendered_a_few_times_and_not_once_for_each_turn() {
        let messages = long(100);
        let find = |conversed: &Conversed<'_>, wanted: &[usize]| conversed.turns(wanted).unwrap();
        let (found, rendered) = with(CHATML, &messages, find);
        let answers = messages.iter().filter(|message| message.is_assistant());
        assert_eq!(found.len(), answers.count());
        assert!(
            rendered < 30 * messages.len(),
            "{rendered} of {}",
            messages.len()
        );
    }

    #[test]
    fn answers_behind_other_prompts_are_found_in_as_few_renderings_as_they_are_many() {
        let messages = long(100);
        let find = |conversed: &Conversed<'_>, wanted: &[usize]| conversed.turns(wanted).unwrap();
        for source in behind_others() {
            let (found, rendered) = with(&source, &messages, find);
            let others = found.iter().filter(|turn| turn.opening != Opening::Prompt);
            assert!(others.count() >= 99, "{source}");
            // One by one they take ten times as many.
            assert!(
                rendered < 100 * messages.len(),
                "{rendered} of {}",
                messages.len()
            );
        }
    }

    #[test]
    fn where_a_turn_depends_on_what_is_far_from_it_nothing_is_found_in_steps() {
        let numbered = CHATML.replace("message.content", "loop.index ~ message.content");
        let dropped = CHATML.replace(
            "message.content",
            "(message.content if loop.last else message.content | trim)",
        );
        let counted = CHATML.replace("message.content", "(message.content ~ (messages | length))");
        for source in [numbered, dropped, counted] {
            assert_eq!(with(&source, &long(8), turns).0, None, "{source}");
        }
    }
}
