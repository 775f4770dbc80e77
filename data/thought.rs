//! Answers that were cut off inside their reasoning.

use crate::conversation::{Exchange, Message, REASONING, THOUGHT};
use crate::template::{ChatTemplate, GenerationPrompt};

/// The messages with the reasoning of the last answer apart, as engines hand it out, where that answer was cut off inside it.
///
/// Chat templates look for the mark that ends a reasoning. A text without it they take for what is said, before which they write an
/// empty reasoning that the target did not write. None where the template shows the answer as the target wrote it, or shows no
/// reasoning that is apart.
pub(crate) fn apart(exchange: Exchange<'_>, template: &ChatTemplate) -> Option<Vec<Message>> {
    let (answer, before) = exchange.messages.split_last()?;
    let [begins, ends] = THOUGHT;
    let is_apart = answer.extra.contains_key(REASONING) || answer.content.contains(ends);
    if is_apart || !(answer.is_assistant() && answer.is_cut_off()) {
        return None;
    }
    let prompt = exchange.first(before.len());
    let prompt = template.render(prompt, GenerationPrompt::With).ok()?;
    let thought = if prompt.trim_end().ends_with(begins) {
        answer.content.as_str()
    } else {
        answer.content.trim_start().strip_prefix(begins)?
    };
    let text = template.render(exchange, GenerationPrompt::Without).ok()?;
    let shown = text.strip_prefix(&prompt).map(str::trim_start);
    if shown.is_some_and(|shown| shown.starts_with(answer.content.trim())) {
        return None;
    }
    let mut answer = answer.clone();
    answer.extra.insert(REASONING.into(), thought.into());
    answer.content.clear();
    let messages = [before, &[answer]].concat();
    let apart = Exchange {
        messages: &messages,
        ..exchange
    };
    let text = template.render(apart, GenerationPrompt::Without).ok()?;
    // The same may be said before the answer.
    let times = |text: &str| text.matches(thought.trim()).count();
    (times(&text) > times(&prompt)).then_some(messages)
}
