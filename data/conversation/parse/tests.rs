//! What rows are read as, and what is said of those that are refused.

use serde_json::json;

use super::messages::{MESSAGES, MOST_MESSAGES};
use super::*;
use crate::conversation::{Message, Sample};

fn messages(value: Value) -> Vec<Message> {
    match Row::from_json(&value.to_string()).unwrap().content {
        Content::Conversation(conversation) => conversation.messages,
        Content::Tokens(sample) => panic!("{sample:?}"),
    }
}

#[test]
fn both_spellings_of_a_conversation_read_the_same() {
    let ours = messages(json!({"messages": [
        {"role": "system", "content": "s"}, {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}));
    let theirs = messages(json!({"id": 3, "conversations": [
        {"from": "system", "value": "s"}, {"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]}));
    let beside = messages(json!({"system": "s", "conversations": [
        {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}]}));
    assert_eq!(ours, theirs);
    assert_eq!(ours, beside);
    assert_eq!(ours[2], Message::new("assistant", "a"));
}

#[test]
fn further_keys_of_a_message_are_kept_and_nulls_dropped() {
    let read = messages(json!({"messages": [
        {"role": "assistant", "content": null, "tool_calls": [{"name": "f"}], "reasoning_content": "r", "name": null}]}));
    assert_eq!(read[0].content, "");
    assert_eq!(
        read[0].extra.keys().collect::<Vec<_>>(),
        ["tool_calls", "reasoning_content"]
    );
}

#[test]
fn a_list_of_no_calls_is_left_out() {
    let answer = |calls: Value| json!({"role": "assistant", "content": "a", "tool_calls": calls, "name": "n"});
    let plain = messages(json!({"messages": [{"role": "assistant", "content": "a", "name": "n"}]}));
    for none in [json!([]), json!(null)] {
        assert_eq!(messages(json!({"messages": [answer(none)]})), plain);
    }
    assert_eq!(
        messages(json!({"messages": [{"role": "assistant", "tool_calls": []}]})),
        [Message::new("assistant", "")]
    );
    let called = messages(json!({"messages": [answer(json!([{"name": "f"}]))]}));
    assert_eq!(called[0].extra["tool_calls"], json!([{"name": "f"}]));
}

#[test]
fn reasoning_under_the_name_of_vllm_has_both_names() {
    let read = |fields: Value| {
        let mut answer = json!({"role": "assistant", "content": "a"});
        let further = fields.as_object().unwrap().clone();
        answer.as_object_mut().unwrap().extend(further);
        Value::from(messages(json!({"messages": [answer]}))[0].extra.clone())
    };
    assert_eq!(
        read(json!({"reasoning": "r"})),
        json!({"reasoning": "r", "reasoning_content": "r"})
    );
    for kept in [
        json!({"reasoning": "r", "reasoning_content": "s"}),
        json!({"reasoning_content": "s"}),
        json!({"reasoning": {"effort": "low"}}),
    ] {
        assert_eq!(read(kept.clone()), kept);
    }
    let asked = json!({"messages": [{"role": "user", "content": "u", "reasoning": "r"}]});
    assert_eq!(messages(asked)[0].extra.len(), 1);
}

#[test]
fn tokens_take_their_mask_from_either_column() {
    let expected = Row::from(Sample {
        tokens: vec![5, 6, 7],
        loss_mask: vec![false, true, true],
    });
    for row in [
        json!({"input_ids": [5, 6, 7], "loss_mask": [0, 1, 1]}),
        json!({"tokens": [5, 6, 7], "loss_mask": [false, true, true]}),
        json!({"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "loss_mask": null}),
    ] {
        assert_eq!(Row::from_json(&row.to_string()).unwrap(), expected);
    }
}

#[test]
fn labels_that_are_not_the_tokens_at_their_places_are_refused() {
    let refused = |labels: Value| {
        let row = json!({"input_ids": [1, 100, 200, 300, 2], "labels": labels});
        Row::from_json(&row.to_string()).unwrap_err()
    };
    let shifted = refused(json!([100, 200, 300, 2, -100]));
    assert_eq!(
        shifted.expected,
        "label 1 of `labels` to be -100 or the token at the same place, `1` (labels are not shifted)"
    );
    assert_eq!(shifted.found, "`100`, the token behind it");
    let other = refused(json!([-100, -100, 200, -1, 2]));
    assert!(other.expected.starts_with("label 4 of"), "{other:?}");
    assert_eq!(other.found, "`-1`");
    let short = refused(json!([100, 200]));
    assert_eq!(short.found, "5 tokens and a mask of 2");
    // Where there is a mask nothing is read from the labels.
    let row = json!({"input_ids": [1, 2], "labels": [2, -100], "loss_mask": [0, 1]});
    assert!(Row::from_json(&row.to_string()).is_ok());
}

#[test]
fn half_a_surrogate_pair_is_named_as_what_is_wrong_with_a_text() {
    let of = |row: &str| Row::from_json(row).unwrap_err();
    for content in [r#""a\ud800""#, r#"[{"type":"text","text":"a\ud800"}]"#] {
        let row = format!(r#"{{"messages":[{{"role":"user","content":{content}}}]}}"#);
        let found = of(&row).found;
        assert!(
            found.starts_with("a text with half of a surrogate pair: ")
                && found.contains("hex escape at column"),
            "{found}"
        );
    }
    let further = of(r#"{"messages":[{"role":"user","content":"a","name":"\ud800"}]}"#);
    assert!(further.expected.contains("surrogate"), "{further:?}");
    assert!(further.found.contains("hex escape"), "{further:?}");
}

#[test]
fn tokens_with_their_mask_are_read_where_a_conversation_stands_beside_them() {
    let said = json!([{"role": "user", "content": [{"type": "image_url"}]}]);
    let text =
        format!(r#"{{"messages":{said},"id":1,"input_ids":[5,6],"loss_mask":[0,1],"tools":[]}}"#);
    let row = Row::from_json(&text).unwrap();
    let expected = Sample {
        tokens: vec![5, 6],
        loss_mask: vec![false, true],
    };
    assert_eq!(row.content, Content::Tokens(expected));
    assert!(row.has_conversation_beside());
    let written = row.to_json();
    assert_eq!(
        written,
        format!(r#"{{"input_ids":[5,6],"loss_mask":[0,1],"id":1,"messages":{said},"tools":[]}}"#)
    );
    assert_eq!(Row::from_json(&written).unwrap(), row);
    // One with an image has no other form, one of texts has.
    assert_eq!(row.clone().or_conversation(), row);
    let of_texts = text.replace(&said.to_string(), r#"[{"role":"user","content":"u"}]"#);
    let row = Row::from_json(&of_texts).unwrap().or_conversation();
    assert_eq!(
        row.to_json(),
        r#"{"messages":[{"role":"user","content":"u"}],"id":1}"#
    );
    let alone = r#"{"input_ids":[1],"loss_mask":[1],"tools":[]}"#;
    assert!(!Row::from_json(alone).unwrap().has_conversation_beside());
}

#[test]
fn without_a_mask_or_with_empty_lists_the_conversation_is_read() {
    let said = json!([{"role": "user", "content": "u"}]);
    for beside in [
        json!({"input_ids": [5, 6]}),
        json!({"tokens": 512, "labels": [1]}),
        json!({"input_ids": [], "loss_mask": []}),
    ] {
        let mut row = beside;
        row["messages"] = said.clone();
        assert_eq!(messages(row), [Message::new("user", "u")]);
    }
    let row = json!({"messages": said, "input_ids": [1, 2], "loss_mask": [1]});
    let mismatch = Row::from_json(&row.to_string()).unwrap_err();
    assert_eq!(mismatch.found, "2 tokens and a mask of 1");
}

#[test]
fn a_mismatch_says_what_was_expected_and_which_keys_are_there() {
    let reject = |row: Value| Row::from_json(&row.to_string()).unwrap_err();
    let mismatch = reject(json!({"prompt": "p", "answer": "a"}));
    assert_eq!(mismatch.expected, SHAPES);
    assert_eq!(mismatch.found, "the keys `prompt`, `answer`");
    assert_eq!(
        reject(json!({"messages": [{"role": "user", "text": "x"}]})).found,
        "the keys `role`, `text`"
    );
    let second = reject(json!({"conversations": [
        {"from": "human", "value": "x"}, {"from": "gpt", "value": null}]}));
    assert_eq!(
        second.expected,
        "message 2 with `role` and `content`, or `from` and `value`"
    );
    assert_eq!(
        second.found,
        "the keys `from`, `value`, of which `value` is null"
    );
    assert_eq!(reject(json!({"messages": []})).found, "a list of 0");
    assert_eq!(
        reject(json!({"input_ids": [1]})).expected,
        "`loss_mask` or `labels` beside the token ids"
    );
    assert_eq!(
        reject(json!({"input_ids": [1], "loss_mask": [1, 1]})).found,
        "1 token and a mask of 2"
    );
    assert_eq!(
        reject(json!({"input_ids": [-1], "loss_mask": [1]})).found,
        "`-1`"
    );
    assert!(
        reject(json!({"messages": [{"from": "function_call", "value": "x"}]}))
            .found
            .contains("function_call")
    );
    assert_eq!(reject(json!([1])).found, "a list of 1");
}

#[test]
fn contents_in_parts_become_lines_and_other_parts_are_refused_by_name() {
    let parts = json!([{"type": "text", "text": "one"}, "two", {"type": "text", "text": ""}]);
    let read = messages(
        json!({"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": []}]}),
    );
    assert_eq!(
        (read[0].content.as_str(), read[1].content.as_str()),
        ("one\ntwo\n", "")
    );
    // They come back as parts.
    let said = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b\nc"}]}]});
    let row = Row::from_json(&said.to_string()).unwrap();
    assert_eq!(row.to_json(), said.to_string());
    let Content::Conversation(Conversation { mut messages, .. }) = row.content else {
        panic!("tokens");
    };
    assert_eq!(messages[0].content, "a \nb\nc");
    assert_eq!(messages[0].texts(), Some(vec!["a ", "b\nc"]));
    // Another content has none.
    for other in ["a ", "a \nb", "a \nb\ncd", "aéb"] {
        messages[0].content = other.into();
        assert_eq!(messages[0].texts(), None, "{other}");
    }
    assert_eq!(Message::new("user", "").texts(), None);
    let image = json!([{"type": "text", "text": "x"}, {"type": "image_url", "image_url": {"url": "data:"}}]);
    let row = json!({"messages": [{"role": "user", "content": image}]});
    let mismatch = Row::from_json(&row.to_string()).unwrap_err();
    assert_eq!(
        mismatch.expected,
        "`content` of message 1 to be a text or a list of texts"
    );
    assert_eq!(mismatch.found, "a part of the type `image_url`");
    let row = json!({"messages": [{"role": "user", "content": [{"type": "text", "value": "x"}]}]});
    let mismatch = Row::from_json(&row.to_string()).unwrap_err();
    assert_eq!(
        mismatch.found,
        "a part of the type `text` without the key `text`, with the keys `type`, `value`"
    );
}

#[test]
fn tools_are_read_as_a_list_or_as_its_text() {
    let tools = json!([{"type": "function", "function": {"name": "f"}}]);
    let said = json!([{"role": "user", "content": "u"}]);
    for given in [tools.clone(), json!(tools.to_string())] {
        let row = json!({"messages": said, "tools": given});
        let Content::Conversation(read) = Row::from_json(&row.to_string()).unwrap().content else {
            panic!("{row}");
        };
        assert_eq!(Value::from(read.tools), tools);
    }
    for (given, found) in [
        (json!({"name": "f"}), "an object with the keys `name`"),
        (json!("f"), "at line 1"),
        (json!([1]), "`1` in it"),
    ] {
        let row = json!({"messages": said, "tools": given});
        let mismatch = Row::from_json(&row.to_string()).unwrap_err();
        assert!(
            mismatch.expected.contains("`tools`") && mismatch.found.contains(found),
            "{mismatch:?}"
        );
    }
}

#[test]
fn an_answer_says_whether_it_is_trained_on_in_few_words() {
    let row = |role: &str, key: &str, value: &Value| {
        let mut answer = json!({"role": role, "content": "a"});
        answer[key] = value.clone();
        json!({"messages": [{"role": "user", "content": "u"}, answer]})
    };
    for (key, value, is_trained_on) in [
        ("weight", json!(0), false),
        ("weight", json!(1.0), true),
        ("train", json!(false), false),
        ("training", json!(true), true),
        ("weight", json!(null), true),
    ] {
        let read = messages(row("assistant", key, &value));
        assert_eq!(read[1].is_trained_on(), is_trained_on, "{key} {value}");
    }
    for (key, value, known, found) in [
        ("weight", json!(0.5), "0 or 1", "`0.5`"),
        ("weight", json!("0"), "0 or 1", "a text"),
        ("weight", json!(false), "0 or 1", "`false`"),
        ("train", json!(0), "true or false", "`0`"),
        ("training", json!([]), "true or false", "a list of 0"),
    ] {
        let refused = Row::from_json(&row("assistant", key, &value).to_string()).unwrap_err();
        let expected = format!("`{key}` of message 2 to be {known}");
        assert_eq!(refused.expected, expected);
        assert_eq!(refused.found, found);
        // What others say is not trained on whatever this says.
        assert_eq!(messages(row("user", key, &value)).len(), 2);
    }
}

/// A row with these variables of the chat template.
fn with_variables(variables: Value) -> Result<Row, Mismatch> {
    let said = json!([{"role": "user", "content": "u"}]);
    let row = json!({"id": 1, "chat_template_kwargs": variables, "messages": said});
    Row::from_json(&row.to_string())
}

#[test]
fn variables_of_a_row_that_are_no_object_or_not_the_templates_own_are_refused() {
    let refused = |variables: Value| with_variables(variables).unwrap_err();
    for (given, found) in [
        (json!("enable_thinking"), "a text that is no JSON: "),
        (json!("[1]"), "a list of 1"),
        (json!("{\"enable_thinking\": "), "a text that is no JSON: "),
        (json!(json!("{}").to_string()), "a text"),
        (json!(3), "`3`"),
    ] {
        let other = refused(given);
        assert_eq!(
            other.expected,
            "`chat_template_kwargs` to be an object, or such an object as a text"
        );
        assert!(other.found.starts_with(found), "{found}: {other:?}");
    }
    assert_eq!(
        refused(json!("{\"tools\": []}")),
        refused(json!({"tools": []}))
    );
    let own = refused(json!({"tools": []}));
    assert_eq!(
        own.to_string(),
        "expected only variables of the template itself in `chat_template_kwargs`, found `tools`, which the program sets"
    );
}

#[test]
fn variables_of_a_row_are_an_object_and_come_back_beside_its_messages() {
    let said = json!([{"role": "user", "content": "u"}]);
    let read = with_variables;
    let row = read(json!({"enable_thinking": false, "effort": null})).unwrap();
    let Content::Conversation(conversation) = &row.content else {
        panic!("{row:?}");
    };
    let variables = json!({"enable_thinking": false, "effort": null});
    assert_eq!(Value::from(conversation.variables.clone()), variables);
    let written = row.to_json();
    assert_eq!(
        written,
        format!(r#"{{"messages":{said},"chat_template_kwargs":{variables},"id":1}}"#)
    );
    assert_eq!(Row::from_json(&written).unwrap(), row);
    let as_text = read(json!(format!(" {variables:#}\n"))).unwrap();
    assert_eq!(as_text, row);
    for none in [
        json!(null),
        json!({}),
        json!(""),
        json!("null"),
        json!("{}"),
    ] {
        let written = read(none).unwrap().to_json();
        assert_eq!(written, format!(r#"{{"messages":{said},"id":1}}"#));
    }
    // They stay with a row of tokens, whose conversation may be read in their place.
    let mut both = json!({"input_ids": [5, 6], "loss_mask": [0, 1], "messages": said});
    both["chat_template_kwargs"] = variables.clone();
    let row = Row::from_json(&both.to_string()).unwrap();
    assert!(row.to_json().contains("\"chat_template_kwargs\":{"));
    let Content::Conversation(conversation) = row.or_conversation().content else {
        panic!("tokens");
    };
    assert_eq!(Value::from(conversation.variables), variables);
    // So they do where there is no conversation.
    let alone =
        format!(r#"{{"input_ids":[5],"loss_mask":[1],"chat_template_kwargs":{variables}}}"#);
    assert_eq!(Row::from_json(&alone).unwrap().to_json(), alone);
}

#[test]
fn messages_are_read_as_a_list_or_as_its_text() {
    let said =
        json!([{"role": "user", "content": "u"}, {"role": "assistant", "content": "\"a\" é"}]);
    let spoken = json!([{"from": "human", "value": "u"}, {"from": "gpt", "value": "\"a\" é"}]);
    let expected = messages(json!({"messages": said}));
    for row in [
        json!({"messages": said.to_string()}),
        json!({"messages": format!(" {said:#}\n")}),
        json!({"conversations": spoken.to_string(), "input_ids": [5]}),
    ] {
        assert_eq!(messages(row), expected);
    }
    let row = json!({"messages": said.to_string(), "id": 1}).to_string();
    let written = Row::from_json(&row).unwrap().to_json();
    assert_eq!(written, format!(r#"{{"messages":{said},"id":1}}"#));
    for (given, found) in [
        (json!("hello"), "a text that is no JSON: "),
        (json!(" "), "a text that says nothing"),
        (
            json!("{\"role\": \"user\"}"),
            "an object with the keys `role`",
        ),
        (json!("[]"), "a list of 0"),
        (json!(said.to_string() + "x"), "a text that is no JSON: "),
        (json!(json!(said.to_string()).to_string()), "a text"),
        (json!(3), "`3`"),
    ] {
        let refused = Row::from_json(&json!({ "messages": given }).to_string()).unwrap_err();
        assert_eq!(refused.expected, MESSAGES);
        assert!(refused.found.starts_with(found), "{given}: {refused:?}");
    }
}

#[test]
fn other_keys_come_back_as_they_stood() {
    let text = r#"{"id":"é\u0041","messages":[{"role":"user","content":"u"}],"score":1.50,"system":null,"more":{"a":[1, 2]}}"#;
    let row = Row::from_json(text).unwrap();
    let written = row.to_json();
    assert_eq!(
        written,
        r#"{"messages":[{"role":"user","content":"u"}],"id":"é\u0041","score":1.50,"more":{"a":[1, 2]}}"#
    );
    assert_eq!(Row::from_json(&written).unwrap(), row);
    let tokens = r#"{"input_ids":[1,2],"loss_mask":[0,1],"id":7}"#;
    assert_eq!(Row::from_json(tokens).unwrap().to_json(), tokens);
}

#[test]
fn a_row_beyond_the_limits_is_refused_and_a_long_one_is_not() {
    let refused = |messages: String| {
        let row = format!(r#"{{"messages": [{messages}]}}"#);
        Row::from_json(&row).unwrap_err().expected
    };
    let user = r#"{"role":"user","content":""}"#;
    assert_eq!(
        refused(vec![user; MOST_MESSAGES + 1].join(",")),
        "at most 100000 messages"
    );
    let many = vec!["[]"; MOST_VALUES].join(",");
    let values = format!(r#"{{"role":"user","content":"","more":[{many}]}}"#);
    let expected = "at most 200000 values in further keys of messages, in `tools` and in `chat_template_kwargs`";
    assert_eq!(refused(values), expected);
    // They are counted together.
    let half = vec!["[]"; MOST_VALUES / 2].join(",");
    let both = format!(
        r#"{{"chat_template_kwargs":{{"a":[{half}]}},"messages":[{{"role":"user","content":"","more":[{half}]}}]}}"#
    );
    assert_eq!(Row::from_json(&both).unwrap_err().expected, expected);
    let deep = format!("{}{}", "[".repeat(1000), "]".repeat(1000));
    let nested = format!(r#"{{"role":"user","content":"","more":{deep}}}"#);
    assert!(refused(nested).contains("not too deep"));
    let keys: Vec<String> = (0..2000).map(|n| format!("\"{n}\":1")).collect();
    assert_eq!(
        refused(format!("{{{}}}", keys.join(","))),
        "a message of at most 1000 keys"
    );
    let long = "word ".repeat(2_000_000);
    assert_eq!(
        messages(json!({"messages": [{"role": "user", "content": long}]}))[0]
            .content
            .len(),
        10_000_000
    );
    // Of no account, they are not taken apart.
    let beside = format!(r#"{{"messages":[{user}],"more":[{many}],"deep":{deep}}}"#);
    assert!(Row::from_json(&beside).is_ok());
}

#[test]
fn a_message_that_is_written_and_read_again_has_its_parts() {
    let content = json!([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]);
    let read = messages(json!({"messages": [
        {"role": "user", "content": content, "name": "n"}, {"role": "assistant", "content": "a"}]}));
    let written = serde_json::to_value(&read).unwrap();
    assert_eq!(written[0]["content"], content);
    let again: Vec<Message> = serde_json::from_value(written).unwrap();
    assert_eq!(again, read);
    assert_eq!(again[0].texts().unwrap(), ["one", "two"]);
}
