//! Reasoning in what answers say, as a chat template takes it.
//!
//! A target writes its reasoning before `</think>`, and often the prompt has begun it. Some chat templates take such an answer as it
//! is written; others take the reasoning from a key of its own, and write an empty one before an answer without that key.

use crate::conversation::{Exchange, Message, REASONING, THOUGHT, is_blank};
use crate::template::{ChatTemplate, GenerationPrompt};

/// An exchange with these messages in the place of its own, where there are some.
pub(crate) fn with<'a>(exchange: Exchange<'a>, messages: Option<&'a [Message]>) -> Exchange<'a> {
    Exchange {
        messages: messages.unwrap_or(exchange.messages),
        ..exchange
    }
}

/// The messages with the whole reasoning of answers in the form in which the template shows it right behind the prompt: begun by the
/// mark that the prompt ends with, or apart, as engines hand it out. None where the template shows it as it stands, or in no form.
///
/// The last answer that has one decides: what templates show of earlier ones is less than what they show of the last.
pub(crate) fn ended(exchange: Exchange<'_>, template: &ChatTemplate) -> Option<Vec<Message>> {
    let (last, parts) = last_whole(exchange.messages)?;
    let is_shown = |messages: &[Message]| {
        let answered = with(exchange, Some(messages)).first(last + 1);
        let shown = behind_prompt(answered, template);
        shown.is_some_and(|(shown, is_begun)| are_shown(parts, &shown, is_begun))
    };
    if is_shown(exchange.messages) {
        return None;
    }
    let changed = |change: &dyn Fn(&Message) -> Option<Message>| {
        let messages = exchange.messages.iter();
        let messages = messages.map(|message| change(message).unwrap_or_else(|| message.clone()));
        let messages: Vec<Message> = messages.collect();
        is_shown(&messages).then_some(messages)
    };
    let prompt = template.render(exchange.first(last), GenerationPrompt::With);
    let prompt = prompt.ok()?;
    let reopened = |answer: &Message| {
        whole(answer)?;
        reopened(answer, &prompt)
    };
    let apart = |answer: &Message| {
        let (thought, said) = whole(answer)?;
        let mut apart = Message {
            content: said.trim_start_matches('\n').to_owned(),
            parts: Vec::new(),
            ..answer.clone()
        };
        let thought = thought.trim_matches('\n');
        apart.extra.insert(REASONING.into(), thought.into());
        Some(apart)
    };
    changed(&reopened).or_else(|| changed(&apart))
}

/// An answer begun by the mark that a prompt ends with, if it does not begin with that.
fn reopened(answer: &Message, prompt: &str) -> Option<Message> {
    let [begins, _] = THOUGHT;
    let before = prompt.trim_end().strip_suffix(begins)?;
    let (content, mark) = (&answer.content, &prompt[before.len()..]);
    let is_begun = content.trim_start().starts_with(begins);
    (!is_begun).then(|| Message {
        content: format!("{mark}{}", content.trim_start_matches('\n')),
        parts: Vec::new(),
        ..answer.clone()
    })
}

/// The messages with the reasoning of the last answer in the form in which the template shows it right behind the prompt, where that
/// answer was cut off inside it: begun by the mark that the prompt ends with, or else apart, as engines hand it out.
///
/// Chat templates look for the mark that ends a reasoning. A text without it they take for what is said, before which some write an
/// empty reasoning that the target did not write, and others nothing. None where the template shows the answer as the target wrote
/// it, or in neither form.
pub(crate) fn begun(exchange: Exchange<'_>, template: &ChatTemplate) -> Option<Vec<Message>> {
    let (answer, before) = exchange.messages.split_last()?;
    let [begins, ends] = THOUGHT;
    let is_apart = answer.extra.contains_key(REASONING) || answer.content.contains(ends);
    if is_apart || !(answer.is_assistant() && answer.is_cut_off()) {
        return None;
    }
    let prompt = exchange.first(before.len());
    let prompt = template.render(prompt, GenerationPrompt::With).ok()?;
    let content = answer.content.as_str();
    let is_begun = prompt.trim_end().ends_with(begins);
    let marked = content.trim_start().strip_prefix(begins);
    let thought = marked.or(is_begun.then_some(content))?;
    let wrote = if is_begun { thought } else { content };
    let is_shown = |messages: &[Message]| {
        let answered = with(exchange, Some(messages));
        let text = template.render(answered, GenerationPrompt::Without);
        let text = text.unwrap_or_default();
        let shown = text.strip_prefix(&prompt).map(str::trim_start);
        shown.is_some_and(|shown| shown.starts_with(wrote.trim()))
    };
    if is_shown(exchange.messages) {
        return None;
    }
    if let Some(reopened) = reopened(answer, &prompt) {
        let messages = [before, &[reopened]].concat();
        if is_shown(&messages) {
            return Some(messages);
        }
    }
    let mut answer = answer.clone();
    answer.extra.insert(REASONING.into(), thought.into());
    answer.content.clear();
    let messages = [before, &[answer]].concat();
    let apart = with(exchange, Some(&messages));
    let text = template.render(apart, GenerationPrompt::Without).ok()?;
    // The same may be said before the answer.
    let times = |text: &str| text.matches(thought.trim()).count();
    (times(&text) > times(&prompt)).then_some(messages)
}

/// Whether the template shows the reasoning in the last answer that has one behind another reasoning, which the target did not write.
pub(crate) fn is_behind_another(exchange: Exchange<'_>, template: &ChatTemplate) -> bool {
    let Some((last, (thought, _))) = last_whole(exchange.messages) else {
        return false;
    };
    let Some((shown, _)) = behind_prompt(exchange.first(last + 1), template) else {
        return false;
    };
    let [_, ends] = THOUGHT;
    let thought = thought.trim();
    let at = shown.find(thought).filter(|_| !thought.is_empty());
    at.is_some_and(|at| shown[..at].contains(ends))
}

/// The reasoning of an answer and what it says behind it, where the content has both.
fn whole(answer: &Message) -> Option<(&str, &str)> {
    let [begins, ends] = THOUGHT;
    let apart = answer.extra.get(REASONING);
    if !answer.is_assistant() || apart.is_some_and(|apart| !is_blank(apart)) {
        return None;
    }
    let (thought, said) = answer.content.split_once(ends)?;
    let thought = thought.trim_start();
    Some((thought.strip_prefix(begins).unwrap_or(thought), said))
}

/// The last answer whose content has both, and these.
fn last_whole(messages: &[Message]) -> Option<(usize, (&str, &str))> {
    let mut messages = messages.iter().enumerate().rev();
    messages.find_map(|(at, message)| Some((at, whole(message)?)))
}

/// What the template shows of the last message behind the prompt for it, and whether that prompt has begun a reasoning.
fn behind_prompt(exchange: Exchange<'_>, template: &ChatTemplate) -> Option<(String, bool)> {
    let before = exchange.messages.len().checked_sub(1)?;
    let prompt = template.render(exchange.first(before), GenerationPrompt::With);
    let prompt = prompt.ok()?;
    let text = template.render(exchange, GenerationPrompt::Without).ok()?;
    let shown = text.strip_prefix(&prompt)?;
    Some((shown.to_owned(), prompt.trim_end().ends_with(THOUGHT[0])))
}

/// Whether a text begins with a reasoning, its end and what is said behind it, whitespace between them aside.
fn are_shown((thought, said): (&str, &str), shown: &str, is_begun: bool) -> bool {
    let [begins, ends] = THOUGHT;
    let shown = shown.trim_start();
    let begun = shown.strip_prefix(begins).filter(|_| !is_begun);
    let mut parts = [thought, ends, said].into_iter();
    let rest = parts.try_fold(begun.unwrap_or(shown), |rest, part| {
        rest.trim_start().strip_prefix(part.trim())
    });
    rest.is_some()
}
