//! Which variables of a row change what a template renders, and from which of its prompts on.

use serde_json::{Map, Value};

use crate::conversation::{Conversation, Exchange};
use crate::template::{ChatTemplate, GenerationPrompt};

/// A variable that changes prompts of a row.
pub(super) struct Shown {
    /// The number of the first of these prompts.
    pub(super) from: usize,
    pub(super) name: String,
    pub(super) value: Value,
}

/// The variables of a row without which a template renders other prompts, in the order of their names. `prompts` are how many
/// messages each has, in ascending order: what a prompt shows of a variable is taken to be in all that go on from it. Of two
/// variables either of which alone makes the same of all prompts one counts.
pub(super) fn shown(
    conversation: &Conversation,
    prompts: &[usize],
    template: &ChatTemplate,
) -> Vec<Shown> {
    let rendered = |count: usize, variables: &Map<String, Value>| {
        let exchange = Exchange {
            variables: Some(variables),
            ..Exchange::from(conversation)
        };
        template.render(exchange.first(count), GenerationPrompt::With)
    };
    let changes = template.changed_by(&conversation.variables).into_iter();
    let changes: Vec<_> = changes
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    let mut variables: Map<String, Value> = changes.iter().cloned().collect();
    let mut shown = Vec::new();
    for (name, value) in changes {
        let mut without = variables.clone();
        without.remove(&name);
        let is_same = |count: &usize| {
            let both = (rendered(*count, &variables), rendered(*count, &without));
            matches!(both, (Ok(one), Ok(other)) if one == other)
        };
        let from = prompts.partition_point(is_same);
        if from < prompts.len() {
            shown.push(Shown { from, name, value });
        } else {
            variables = without;
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::conversation::Message;

    /// The variables that are shown, each with the first prompt of which it is.
    fn found(source: &str, variables: &Value) -> Vec<(String, usize)> {
        let template = ChatTemplate::from_source(source, None, None).unwrap();
        let roles = ["user", "assistant", "user", "assistant", "user"];
        let messages = roles.map(|role| Message::new(role, "text")).to_vec();
        let conversation = Conversation {
            variables: variables.as_object().unwrap().clone(),
            ..Conversation::new(messages)
        };
        let shown = shown(&conversation, &[1, 3, 5], &template).into_iter();
        shown.map(|shown| (shown.name, shown.from)).collect()
    }

    #[test]
    fn a_variable_counts_from_the_first_prompt_on_that_is_another_one_without_it() {
        let source = "{% if quiet %}!{% endif %}{% if later and messages | length > 2 %}?{% endif %}\
                      {% for m in messages %}{{ m.content }}{% endfor %}";
        let of = |variables: Value| found(source, &variables);
        let named = |name: &str, from: usize| (name.to_owned(), from);
        assert!(of(json!({"quiet": false, "unread": 1})).is_empty());
        assert_eq!(of(json!({"quiet": true})), [named("quiet", 0)]);
        assert_eq!(of(json!({"later": true})), [named("later", 1)]);
        assert_eq!(
            of(json!({"quiet": 1, "later": 1})),
            [named("later", 1), named("quiet", 0)]
        );
        // Either is enough.
        let either = "{{ '!' if one or other }}{{ messages | length }}";
        let both = json!({"one": true, "other": true});
        assert_eq!(found(either, &both), [named("other", 0)]);
    }

    #[test]
    fn what_cannot_be_rendered_is_taken_for_another_prompt() {
        let source = "{% if quiet %}{{ raise_exception('no') }}{% endif %}{{ messages | length }}";
        let shown = found(source, &json!({"quiet": true}));
        assert_eq!(shown, [("quiet".to_owned(), 0)]);
    }
}
