//! Finds one turn of the assistant in a rendered conversation.

use std::cell::OnceCell;
use std::ops::Range;

use crate::conversation::Exchange;
use crate::error::{Error, Result};
use crate::template::GenerationPrompt;

/// Texts without a common first or last character, and without whitespace that a template might trim.
const PROBES: [&str; 2] = ["kprobek", "zprobez"];

/// Renders a conversation or its beginning.
pub(crate) type Render<'a> = &'a dyn Fn(Exchange<'_>, GenerationPrompt) -> Result<String>;

/// A turn of the assistant in a rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Turn {
    /// The index of its message.
    pub(crate) message: usize,
    /// The bytes that the target generated.
    pub(crate) bytes: Range<usize>,
    /// The first byte that may be no part of the prompt that engines render for it: at most where its bytes start.
    pub(crate) begins: usize,
    /// What stands before them.
    pub(crate) opening: Opening,
}

/// What stands before a turn of the assistant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Opening {
    /// The prompt that engines render for it.
    Prompt,
    /// What the prompt of engines that ends like this adds to what was said before, which the template shows otherwise by now.
    Rewritten(String),
    /// Something else than the end of the prompt of engines, which is this.
    Other(String),
    /// Nobody knows: the template renders no prompt for it.
    Unknown,
}

/// A rendered conversation and what made it.
pub(crate) struct Conversed<'a> {
    pub(crate) exchange: Exchange<'a>,
    pub(crate) text: &'a str,
    pub(crate) render: Render<'a>,
    /// The texts of the special tokens, by which templates mark turns.
    pub(crate) special: &'a [String],
}

impl Conversed<'_> {
    /// One turn.
    ///
    /// The start is where the messages before it, with a generation prompt, end; the end is where the messages up
    /// to it end; each as long as that shorter rendering is a prefix of the whole. It is not where the template
    /// writes a turn differently once others follow (dropping its reasoning, say). Then the message's content is
    /// replaced by two probes: what the two renderings share before and after the probe surrounds the content in
    /// the whole rendering too, and what follows the probe in a conversation that ends with it closes the turn. It
    /// starts behind what the generation prompt adds, if that stands between the message before it and the content.
    ///
    /// Whitespace after the special token that ends a turn is left out: an engine stops before it.
    pub(super) fn turn(&self, index: usize) -> Result<Turn> {
        let probed = OnceCell::new();
        let (start, begins, opening) = self.start_with(index, &probed)?;
        let shorter = self.exchange.first(index + 1);
        let shorter = (self.render)(shorter, GenerationPrompt::Without).ok();
        let end = match shorter.filter(|shorter| self.text.starts_with(shorter)) {
            Some(shorter) if shorter.len() >= start => shorter.len(),
            _ => self.end_by_probe(index, &probed)?,
        };
        let bytes = self
            .trimmed(start..end)
            .ok_or_else(|| not_found(index, "its end comes before its start"))?;
        Ok(Turn {
            message: index,
            bytes,
            begins,
            opening,
        })
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

    /// Where a turn starts, the first byte that may be no part of its prompt, and what stands before it.
    pub(super) fn start(&self, index: usize) -> Result<(usize, usize, Opening)> {
        self.start_with(index, &OnceCell::new())
    }

    /// The same. The [probe](Self::probed) of its message is kept for who wants it next.
    fn start_with(
        &self,
        index: usize,
        probed: &OnceCell<Probe>,
    ) -> Result<(usize, usize, Opening)> {
        let before = self.exchange.first(index);
        let Ok(prompt) = (self.render)(before, GenerationPrompt::With) else {
            let content = self.start_by_probe(index, probed)?;
            return Ok((content, 0, Opening::Unknown));
        };
        if self.text.starts_with(&prompt) {
            return Ok((prompt.len(), prompt.len(), Opening::Prompt));
        }
        let content = self.start_by_probe(index, probed)?;
        let said = (self.render)(before, GenerationPrompt::Without).ok();
        let said = said.as_deref();
        let opening = match said.and_then(|said| prompt.strip_prefix(said)) {
            // The template writes nothing for an answer alone, so it begins behind what ends the message before it.
            Some("") => self.closing_of_last(before, &prompt),
            opening => opening.unwrap_or_default().to_owned(),
        };
        let end = ending(&prompt).to_owned();
        Ok(match self.behind_opening(index, &opening, content) {
            Some(start) => (start, start, Opening::Rewritten(end)),
            None if said.is_some_and(|said| self.text.starts_with(said)) => {
                let shared = common_prefix(self.text, &prompt);
                (content, shared.min(content), Opening::Other(end))
            }
            None => (content, 0, Opening::Other(end)),
        })
    }

    /// What stands behind the content of the last of these messages at the end of the prompt that they are; nothing where that cannot be
    /// found.
    fn closing_of_last(&self, said: Exchange<'_>, prompt: &str) -> String {
        let Some(last) = said.messages.len().checked_sub(1) else {
            return String::new();
        };
        let probe = self.probe(said, last).ok();
        let closing = probe.map(|probe| probe.after().to_owned());
        let closing = closing.filter(|closing| prompt.ends_with(closing.as_str()));
        closing.unwrap_or_default()
    }

    /// Where what a prompt adds to the messages before a turn ends in the whole text: the first time that it stands between the
    /// message before the turn and the content of the turn, which may itself hold the same once more.
    fn behind_opening(&self, index: usize, opening: &str, content: usize) -> Option<usize> {
        let is_there = self.text.get(..content)?.contains(opening);
        if opening.is_empty() || !is_there {
            return None;
        }
        let before = match index.checked_sub(1) {
            Some(previous) => {
                let probe = self.probe(self.exchange, previous).ok()?;
                self.text.strip_suffix(probe.after())?.len()
            }
            None => 0,
        };
        let at = self.text.get(before..content)?.find(opening)?;
        Some(before + at + opening.len())
    }

    fn start_by_probe(&self, index: usize, probed: &OnceCell<Probe>) -> Result<usize> {
        let probe = self.probed(index, probed)?;
        Ok(common_prefix(self.text, probe.before()))
    }

    fn end_by_probe(&self, index: usize, probed: &OnceCell<Probe>) -> Result<usize> {
        // Whitespace behind a content is one that templates do not write behind none, as before calls of tools.
        let is_empty = self.exchange.messages[index].content.trim().is_empty();
        let behind: fn(&str) -> &str = match is_empty {
            true => str::trim_start,
            false => |after| after,
        };
        let after = behind(self.probed(index, probed)?.after());
        if !self.text.ends_with(after) {
            return Err(not_found(index, "what follows it depends on what it says"));
        }
        let last = self.probe(self.exchange.first(index + 1), index)?;
        let closing = self.closing(after, behind(last.after()));
        Ok(self.text.len() - after.len() + closing)
    }

    /// The probe of a message in the whole exchange: it takes two renderings, and a turn's start and end may both want it.
    fn probed<'p>(&self, index: usize, probed: &'p OnceCell<Probe>) -> Result<&'p Probe> {
        if let Some(found) = probed.get() {
            return Ok(found);
        }
        let made = self.probe(self.exchange, index)?;
        Ok(probed.get_or_init(|| made))
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
            let message = &mut messages[index];
            content.clone_into(&mut message.content);
            if !message.parts.is_empty() {
                message.parts = vec![content.len()];
            }
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

/// Characters of a text's end by which it is told from another one.
const SHOWN_END: usize = 24;

/// The last characters of a text.
pub(crate) fn ending(text: &str) -> &str {
    let last = text.char_indices().rev().take(SHOWN_END).last();
    &text[last.map_or(text.len(), |(at, _)| at)..]
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
pub(crate) mod tests {
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
            .map(|index| Ok(text[conversed.turn(index)?.bytes].to_owned()))
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

    /// As gpt-oss's: what was thought before a call of a tool is dropped once an answer without a call follows, and so is, behind a
    /// last answer, that with which another header begins.
    pub(crate) const CHANNELS: &str = "{% set ns = namespace(final=false) %}{% for m in messages %}\
        {% if m.role == 'assistant' and not m.tool_calls %}{% set ns.final = true %}{% endif %}{% endfor %}\
        {% for m in messages %}{% if m.role != 'assistant' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\
        {% else %}{% if m.thinking and (loop.last or m.tool_calls and not ns.final) %}\
        <|im_start|>assistant:thinks\n{{ m.thinking }}<|im_end|>{% endif %}\
        <|im_start|>assistant:says\n{% for call in m.tool_calls or [] %}{{ call }}{% endfor %}{{ m.content }}\
        <|im_end|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}";

    /// As Mistral's: the system message stands in a question that comes last, and no prompt does behind it.
    pub(crate) const LAST_SYSTEM: &str = "{% for m in messages %}{% if m.role == 'user' %}\
        ({% if loop.last %}{{ messages[0].content }}: {% endif %}{{ m.content }})\
        {% elif m.role == 'assistant' %} {{ m.content }}<|im_end|>{% endif %}{% endfor %}";

    /// A question, a call of a tool, its result and an answer, both with reasoning.
    pub(crate) fn called() -> Vec<Message> {
        let thinking = |content: &str, thought: &str| {
            let mut message = Message::new("assistant", content);
            message.extra.insert("thinking".into(), thought.into());
            message
        };
        let mut call = thinking("", "must call");
        let calls = serde_json::json!(["call"]);
        call.extra.insert("tool_calls".into(), calls);
        vec![
            Message::new("user", "a"),
            call,
            Message::new("tool", "20"),
            thinking("b", "so"),
        ]
    }

    #[test]
    fn a_turn_behind_reasoning_that_is_dropped_by_now_begins_behind_the_generation_prompt() {
        let found = turns(CHANNELS, &called()).unwrap();
        assert_eq!(found[0], ":says\ncall<|im_end|>");
        assert_eq!(
            found[1],
            ":thinks\nso<|im_end|><|im_start|>assistant:says\nb<|im_end|>"
        );
    }

    #[test]
    fn a_call_without_a_content_is_found_where_a_content_would_have_whitespace_behind_it() {
        // As Qwen3.5's. What was thought is dropped later.
        let source = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}\
                      {% if loop.last %}(thought){% endif %}{{ m.content }}{% if m.tool_calls %}\
                      {% if m.content %}{{ '\\n\\n' }}{% endif %}call{% endif %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
        let mut messages = called();
        assert_eq!(
            turns(source, &messages).unwrap(),
            ["call<|im_end|>", "(thought)b<|im_end|>"]
        );
        messages[1].content = "x".into();
        assert_eq!(turns(source, &messages).unwrap()[0], "x\n\ncall<|im_end|>");
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
