//! Finds one turn of the assistant in a rendered conversation.

use std::ops::Range;

use crate::conversation::Exchange;
use crate::error::{Error, Result};
use crate::template::GenerationPrompt;

/// Texts without a common first or last character, and without whitespace that a template might trim.
const PROBES: [&str; 2] = ["kprobek", "zprobez"];

/// Renders a conversation or its beginning.
pub(crate) type Render<'a> = &'a dyn Fn(Exchange<'_>, GenerationPrompt) -> Result<String>;

/// A rendered conversation and what made it.
pub(crate) struct Conversed<'a> {
    pub(crate) exchange: Exchange<'a>,
    pub(crate) text: &'a str,
    pub(crate) render: Render<'a>,
    /// The texts of the special tokens, by which templates mark turns.
    pub(crate) special: &'a [String],
}

impl Conversed<'_> {
    /// The bytes of one turn.
    ///
    /// The start is where the messages before it, with a generation prompt, end; the end is where the messages up
    /// to it end; each as long as that shorter rendering is a prefix of the whole. It is not where the template
    /// writes a turn differently once others follow (dropping its reasoning, say). Then the message's content is
    /// replaced by two probes: what the two renderings share before and after the probe surrounds the content in
    /// the whole rendering too, and what follows the probe in a conversation that ends with it closes the turn.
    ///
    /// Whitespace after the special token that ends a turn is left out: an engine stops before it.
    pub(super) fn turn(&self, index: usize) -> Result<Range<usize>> {
        let prefix = |count: usize, generation| {
            let text = (self.render)(self.exchange.first(count), generation).ok()?;
            self.text.starts_with(&text).then_some(text.len())
        };
        let start = match prefix(index, GenerationPrompt::With) {
            Some(start) => start,
            None => self.start_by_probe(index)?,
        };
        let end = match prefix(index + 1, GenerationPrompt::Without) {
            Some(end) if end >= start => end,
            _ => self.end_by_probe(index)?,
        };
        self.trimmed(start..end)
            .ok_or_else(|| not_found(index, "its end comes before its start"))
    }

    /// A turn without whitespace after the special token that ends it.
    pub(super) fn trimmed(&self, turn: Range<usize>) -> Option<Range<usize>> {
        let text = self.text.get(turn.clone())?;
        let trimmed = text.trim_end();
        let ends = |token: &String| trimmed.ends_with(token.as_str());
        let length = if self.special.iter().any(ends) {
            trimmed.len()
        } else {
            text.len()
        };
        Some(turn.start..turn.start + length)
    }

    fn start_by_probe(&self, index: usize) -> Result<usize> {
        let probe = self.probe(self.exchange, index)?;
        Ok(common_prefix(self.text, probe.before()))
    }

    fn end_by_probe(&self, index: usize) -> Result<usize> {
        let probe = self.probe(self.exchange, index)?;
        let after = probe.after();
        if !self.text.ends_with(after) {
            return Err(not_found(index, "what follows it depends on what it says"));
        }
        let last = self.probe(self.exchange.first(index + 1), index)?;
        Ok(self.text.len() - after.len() + self.closing(after, last.after()))
    }

    /// How much of what follows a message closes its turn: what also follows it where it is the last.
    ///
    /// Where the two differ, because another token ends a whole conversation, the closing stops before the special
    /// token in which they differ, or after it if no other one came before.
    fn closing(&self, after: &str, after_last: &str) -> usize {
        let shared = common_prefix(after, after_last);
        if shared == after_last.len() {
            return shared;
        }
        let special = self.special;
        let across = special.iter().find_map(|token| {
            let mut starts = after.match_indices(token.as_str()).map(|(start, _)| start);
            let start = starts
                .find(|start| *start + token.len() > shared)
                .filter(|start| *start <= shared)?;
            Some(start..start + token.len())
        });
        match across {
            Some(across)
                if special
                    .iter()
                    .any(|token| after[..across.start].contains(token.as_str())) =>
            {
                across.start
            }
            Some(across) => across.end,
            None => shared,
        }
    }

    fn probe(&self, exchange: Exchange<'_>, index: usize) -> Result<Probe> {
        let mut messages = exchange.messages.to_vec();
        let mut render = |content: &str| {
            content.clone_into(&mut messages[index].content);
            let messages = &messages;
            (self.render)(
                Exchange {
                    messages,
                    ..exchange
                },
                GenerationPrompt::Without,
            )
        };
        let (text, other) = (render(PROBES[0])?, render(PROBES[1])?);
        if text == other {
            return Err(not_found(index, "the template does not show its content"));
        }
        let start = common_prefix(&text, &other);
        let shared = text
            .bytes()
            .rev()
            .zip(other.bytes().rev())
            .take_while(|(one, two)| one == two)
            .count();
        let end = text.len() - shared;
        if text.get(start..end).is_none() || !text.is_char_boundary(end) {
            return Err(not_found(
                index,
                "the template shows its content more than once",
            ));
        }
        Ok(Probe { text, start, end })
    }
}

/// A rendering with a probe in the place of a message's content.
struct Probe {
    text: String,
    start: usize,
    end: usize,
}

impl Probe {
    fn before(&self) -> &str {
        &self.text[..self.start]
    }

    fn after(&self) -> &str {
        &self.text[self.end..]
    }
}

/// Length of the longest common beginning of two texts, in whole characters.
fn common_prefix(one: &str, two: &str) -> usize {
    one.chars()
        .zip(two.chars())
        .take_while(|(one, two)| one == two)
        .map(|(character, _)| character.len_utf8())
        .sum()
}

fn not_found(message: usize, reason: &'static str) -> Error {
    Error::TurnNotFound { message, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conversation::Message;
    use crate::template::ChatTemplate;
    use crate::template::tests::CHATML;
    use crate::tokenizer::tests::small;

    /// The assistant's turns as text.
    fn turns(source: &str, messages: &[Message]) -> Result<Vec<String>> {
        let template = ChatTemplate::from_source(source, None, Some("<|im_end|>"))?;
        let text = template.render(messages, GenerationPrompt::Without)?;
        let tokenizer = small();
        let conversed = Conversed {
            exchange: messages.into(),
            text: &text,
            render: &|exchange, generation| template.render(exchange, generation),
            special: tokenizer.special_texts(),
        };
        let assistants = (0..messages.len()).filter(|&index| messages[index].is_assistant());
        assistants
            .map(|index| Ok(text[conversed.turn(index)?].to_owned()))
            .collect()
    }

    fn dialogue(contents: &[&str]) -> Vec<Message> {
        let roles = ["user", "assistant"].into_iter().cycle();
        contents
            .iter()
            .zip(roles)
            .map(|(content, role)| Message::new(role, *content))
            .collect()
    }

    #[test]
    fn a_turn_runs_from_the_generation_prompt_to_its_end_token() {
        let messages = dialogue(&["a", "b", "c", ""]);
        assert_eq!(
            turns(CHATML, &messages).unwrap(),
            ["b<|im_end|>", "<|im_end|>"]
        );
    }

    #[test]
    fn a_turn_whose_reasoning_is_dropped_later_is_still_found() {
        let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% set parts = m.content.split('</think>') %}\
                      {% if loop.last %}{{ m.content }}{% else %}{{ parts[-1].strip() }}{% endif %}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n<think>{% endif %}";
        let messages = dialogue(&["a", "<think>x</think>\n\nb ", "c", "<think>y</think>d"]);
        assert_eq!(
            turns(source, &messages).unwrap(),
            ["b<|im_end|>", "y</think>d<|im_end|>"]
        );
    }

    #[test]
    fn another_token_at_the_end_of_a_conversation_does_not_blur_where_turns_end() {
        let header = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}";
        let other_end = "{{ '<|endoftext|>' if loop.last else '<|im_end|>' }}{% endfor %}";
        let prompt = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        let messages = dialogue(&["a", "b", "c", "d"]);
        assert_eq!(
            turns(&format!("{header}{other_end}{prompt}"), &messages).unwrap(),
            ["b<|im_end|>", "d<|endoftext|>"]
        );
        let appended = "<|im_end|>\n{% endfor %}";
        let end = "{% if not add_generation_prompt %}<|endoftext|>{% endif %}";
        assert_eq!(
            turns(&format!("{header}{appended}{prompt}{end}"), &messages).unwrap(),
            ["b<|im_end|>", "d<|im_end|>\n<|endoftext|>"]
        );
    }

    #[test]
    fn a_system_text_that_moves_does_not_hide_a_turn() {
        let source = "{% for m in messages if m.role != 'system' %}{% if m.role == 'user' %}\
                      [{{ messages[0].content ~ '|' if loop.index >= loop.length - 1 else '' }}{{ m.content }}]\
                      {% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}";
        let mut messages = dialogue(&["a", "b", "c", "d"]);
        messages.insert(0, Message::new("system", "s"));
        assert_eq!(
            turns(source, &messages).unwrap(),
            ["b<|im_end|>", "d<|im_end|>"]
        );
    }

    #[test]
    fn a_first_message_of_the_assistant_is_found() {
        let source = CHATML.replace(
            "{%- for",
            "{%- if messages[0].role == 'system' %}!{% endif %}{%- for",
        );
        let messages = dialogue(&["a", "b"])[1..].to_vec();
        assert_eq!(turns(&source, &messages).unwrap(), ["b<|im_end|>"]);
    }

    #[test]
    fn a_turn_that_cannot_be_found_is_an_error() {
        let shown_twice = "{{ messages | length }}{% for m in messages %}{{ m.content }}-{{ m.content }};{% endfor %}";
        assert_eq!(turns(shown_twice, &dialogue(&["a", "b"])).unwrap().len(), 1);
        let hidden = "{{ messages | length }}{{ messages[-1].content }}";
        let error = turns(hidden, &dialogue(&["a", "b", "c"])).unwrap_err();
        assert!(
            error.to_string().contains("does not show its content"),
            "{error}"
        );
    }
}
