//! What can be wrong with a single conversation, and with a sample of it.

use crate::conversation::{Conversation, Exchange, Message, Sample, THOUGHT, is_blank};
use crate::template::{ChatTemplate, GenerationPrompt};
use crate::thought;
use crate::tokenizer::Tokenizer;

/// The keys in which messages have what the assistant thought.
const REASONING: [&str; 3] = ["reasoning_content", "reasoning", "thinking"];
/// The keys in which messages have what the assistant calls.
const CALLS: [&str; 2] = ["tool_calls", "function_call"];

/// Whether a conversation defines tools of which its rendering shows nothing.
pub(super) fn hides_tools(conversation: &Conversation, template: &ChatTemplate) -> bool {
    let shown = Exchange::from(conversation);
    let hidden = Exchange {
        tools: &[],
        ..shown
    };
    !conversation.tools.is_empty() && are_rendered_alike(shown, hidden, template)
}

/// Whether the last answer with reasoning is rendered, at the end of its conversation, as it is without, or with another one where
/// it stands in what the answer says, or has its reasoning behind another one there.
///
/// What templates drop of earlier answers is theirs to drop; each answer can be a sample of its own.
pub(super) fn hides_reasoning(conversation: &Conversation, template: &ChatTemplate) -> bool {
    let apart;
    let conversation = match thought::ended(conversation.into(), template) {
        Some(messages) => {
            apart = Conversation {
                messages,
                tools: conversation.tools.clone(),
                variables: conversation.variables.clone(),
            };
            &apart
        }
        None => conversation,
    };
    let unreasoned = |answer: &Message| without(answer, &REASONING);
    hides(conversation, template, &unreasoned)
        || hides(conversation, template, &thinking_more)
        || thought::is_behind_another(conversation.into(), template)
}

/// Whether the last call of a tool is rendered as if it were not there.
pub(super) fn hides_calls(conversation: &Conversation, template: &ChatTemplate) -> bool {
    hides(conversation, template, &|answer| without(answer, &CALLS))
}

/// Whether an answer that is trained on to its end says nothing, and thinks and calls nothing either.
pub(super) fn has_empty_answer(conversation: &Conversation) -> bool {
    conversation.messages.iter().any(|message| {
        let is_empty = message.is_assistant() && message.content.trim().is_empty();
        let is_silent = is_empty && !has(message, &REASONING) && !has(message, &CALLS);
        is_silent && message.is_trained_on() && !message.is_cut_off()
    })
}

/// Whether the assistant speaks before any user does.
pub(super) fn is_unasked(conversation: &Conversation) -> bool {
    let speaks = |message: &&Message| message.is_assistant() || message.role == "user";
    let first = conversation.messages.iter().find(speaks);
    first.is_some_and(Message::is_assistant)
}

/// Whether an answer of a conversation holds, before its end, the token that ends it or one at which the target stops.
pub(super) fn ends_inside(
    conversation: &Conversation,
    sample: &Sample,
    (tokenizer, stop_tokens): (&Tokenizer, &[u32]),
) -> bool {
    let is_special = |token: u32| {
        let text = tokenizer.token(token);
        text.is_some_and(|text| tokenizer.special_texts().contains(&text))
    };
    // Of a text that is trained on as a whole, prompt included, the ends of other turns are no part of an answer.
    let is_written = |token: u32| {
        let text = tokenizer.token(token).unwrap_or_default();
        let mut answers = conversation.messages.iter().filter(|m| m.is_assistant());
        !text.is_empty() && answers.any(|answer| answer.content.contains(&text))
    };
    let mut start = 0;
    let mut runs = sample.loss_mask.chunk_by(|one, two| one == two);
    runs.any(|run| {
        let tokens = &sample.tokens[start..start + run.len()];
        start += run.len();
        let Some((&last, inner)) = tokens.split_last().filter(|_| run[0]) else {
            return false;
        };
        let end = is_special(last).then_some(last);
        let mut ends = inner
            .iter()
            .filter(|token| end == Some(**token) || stop_tokens.contains(token));
        ends.any(|&token| is_written(token))
    })
}

/// Whether a sample is trained on one of these tokens.
pub(super) fn is_trained_on(sample: &Sample, tokens: &[u32]) -> bool {
    let mut each = sample.tokens.iter().zip(&sample.loss_mask);
    each.any(|(token, trained)| *trained && tokens.contains(token))
}

/// Whether the last answer that can be changed so is rendered, at the end of its conversation, as it is without the change.
fn hides(
    conversation: &Conversation,
    template: &ChatTemplate,
    changed: &dyn Fn(&Message) -> Option<Message>,
) -> bool {
    let messages = conversation.messages.iter().enumerate().rev();
    let mut answers = messages.filter(|(_, message)| message.is_assistant());
    let Some((last, other)) = answers.find_map(|(at, answer)| Some((at, changed(answer)?))) else {
        return false;
    };
    let shown = Exchange::from(conversation).first(last + 1);
    let messages = [&shown.messages[..last], &[other]].concat();
    let hidden = Exchange {
        messages: &messages,
        ..shown
    };
    are_rendered_alike(shown, hidden, template)
}

/// An answer without these keys, where it has one of them.
fn without(answer: &Message, keys: &[&str]) -> Option<Message> {
    has(answer, keys).then(|| {
        let mut answer = answer.clone();
        answer.extra.retain(|key, _| !keys.contains(&key.as_str()));
        answer
    })
}

/// An answer that thinks a little more in what it says, where it thinks there.
fn thinking_more(answer: &Message) -> Option<Message> {
    let [begins, ends] = THOUGHT;
    let (thought, said) = answer.content.split_once(ends)?;
    let is_blank = thought.replace(begins, "").trim().is_empty();
    (!is_blank).then(|| Message {
        content: format!("{thought}x{ends}{said}"),
        ..answer.clone()
    })
}

fn has(message: &Message, keys: &[&str]) -> bool {
    let mut values = keys.iter().filter_map(|key| message.extra.get(*key));
    values.any(|value| !is_blank(value))
}

fn are_rendered_alike(one: Exchange<'_>, other: Exchange<'_>, template: &ChatTemplate) -> bool {
    let [one, other] =
        [one, other].map(|exchange| template.render(exchange, GenerationPrompt::Without));
    matches!((one, other), (Ok(one), Ok(other)) if one == other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    use crate::template::tests::CHATML;

    /// Reasoning is shown in the last message alone.
    const REASONS: &str = "{% for m in messages %}[{{ m.role }}] {% if loop.last and m.reasoning_content %}\
        ({{ m.reasoning_content }}){% endif %}{{ m.content }}\n{% endfor %}";

    fn conversation(messages: Value) -> Conversation {
        Conversation::new(serde_json::from_value(messages).unwrap())
    }

    #[test]
    fn reasoning_is_hidden_where_no_place_of_it_shows_it() {
        let template = |source: &str| ChatTemplate::from_source(source, None, None).unwrap();
        let thought = json!({"role": "assistant", "content": "b", "reasoning_content": "r"});
        let user = json!({"role": "user", "content": "a"});
        let plain = json!({"role": "assistant", "content": "c"});
        let one = conversation(json!([user, thought]));
        let earlier = conversation(json!([user, thought, user, plain]));
        for given in [&one, &earlier] {
            assert!(hides_reasoning(given, &template(CHATML)));
            assert!(!hides_reasoning(given, &template(REASONS)));
        }
        let other_key =
            conversation(json!([user, {"role": "assistant", "content": "b", "reasoning": "r"}]));
        assert!(hides_reasoning(&other_key, &template(REASONS)));
        let blank = conversation(
            json!([user, {"role": "assistant", "content": "b", "reasoning_content": " "}]),
        );
        for given in [&blank, &conversation(json!([user, plain]))] {
            assert!(!hides_reasoning(given, &template(CHATML)));
        }
    }

    #[test]
    fn reasoning_in_what_is_said_is_hidden_where_the_template_cuts_it_off() {
        // As DeepSeek-R1's.
        let cutting = "{% for m in messages %}[{{ m.role }}] {{ m.content.split('</think>')[-1] }}\n{% endfor %}";
        let cutting = ChatTemplate::from_source(cutting, None, None).unwrap();
        let showing = ChatTemplate::from_source(CHATML, None, None).unwrap();
        let answered = |content: &str| {
            conversation(json!([
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": content},
            ]))
        };
        for content in ["r\n</think>\n\nb", "<think>r</think>b", "r</think>"] {
            assert!(hides_reasoning(&answered(content), &cutting));
            assert!(!hides_reasoning(&answered(content), &showing));
        }
        for content in ["b", "<think>\n\n</think>\n\nb", "</think>b"] {
            assert!(!hides_reasoning(&answered(content), &cutting));
        }
        // Of an earlier answer a template may drop it.
        let dropping = "{% for m in messages %}[{{ m.role }}] {{ m.content if loop.last else m.content.split('</think>')[-1] }}\n{% endfor %}";
        let dropping = ChatTemplate::from_source(dropping, None, None).unwrap();
        let mut longer = answered("r</think>b");
        longer.messages.push(Message::new("user", "c"));
        assert!(hides_reasoning(&longer, &cutting));
        assert!(!hides_reasoning(&longer, &dropping));
    }

    #[test]
    fn reasoning_in_what_is_said_is_hidden_behind_another_one() {
        // The template writes a reasoning before each answer, and reads it from nowhere or from a key.
        let source = "{% for m in messages %}[{{ m.role }}] {% if m.role == 'assistant' %}<think>REASONING</think>{% endif %}\
            {{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant] <think>{% endif %}";
        let template = |reasoning: &str| {
            let source = source.replace("REASONING", reasoning);
            ChatTemplate::from_source(&source, None, None).unwrap()
        };
        let answered = |content: &str| {
            conversation(json!([
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": content},
            ]))
        };
        for content in ["r</think>b", "<think>r</think>b"] {
            assert!(hides_reasoning(&answered(content), &template("")));
            let reading = template("{{ m.reasoning_content or '' }}");
            assert!(!hides_reasoning(&answered(content), &reading));
        }
        assert!(!hides_reasoning(&answered("b"), &template("")));
    }

    #[test]
    fn a_call_is_hidden_where_the_template_says_nothing_of_it() {
        let shows = "{% for m in messages %}{{ m.content }}{% for call in m.tool_calls or [] %}[{{ call.function.name }}]{% endfor %}{% endfor %}";
        let template = |source: &str| ChatTemplate::from_source(source, None, None).unwrap();
        let call = json!({"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {}}}]});
        let called = conversation(json!([{"role": "user", "content": "a"}, call]));
        assert!(hides_calls(&called, &template(CHATML)));
        assert!(!hides_calls(&called, &template(shows)));
        let plain = conversation(json!([{"role": "assistant", "content": "b", "tool_calls": []}]));
        assert!(!hides_calls(&plain, &template(CHATML)));
    }

    #[test]
    fn an_answer_is_empty_where_it_says_thinks_and_calls_nothing() {
        let answered = |answer: Value| {
            let mut answer = answer;
            answer["role"] = json!("assistant");
            conversation(json!([{"role": "user", "content": "a"}, answer]))
        };
        for empty in [
            json!({"content": ""}),
            json!({"content": " \n", "name": "x"}),
            json!({"content": "", "tool_calls": []}),
        ] {
            assert!(has_empty_answer(&answered(empty)));
        }
        for full in [
            json!({"content": "b"}),
            json!({"content": "", "tool_calls": [{"name": "f"}]}),
            json!({"content": "", "reasoning_content": "r"}),
            json!({"content": "", "weight": 0}),
            json!({"content": "", "truncated": true}),
        ] {
            assert!(!has_empty_answer(&answered(full)));
        }
    }

    #[test]
    fn an_answer_is_unasked_before_the_first_user() {
        let of = |roles: &[&str]| {
            let messages = roles.iter().map(|role| Message::new(*role, "text"));
            is_unasked(&Conversation::new(messages.collect()))
        };
        assert!(of(&["assistant", "user"]) && of(&["system", "assistant"]));
        assert!(!of(&["system", "user", "assistant"]) && !of(&["user"]) && !of(&["system"]));
    }
}
