use serde_json::json;

use super::*;

/// A part in the form of vLLM.
fn part(ids: &[u32], so_far: usize, finish: Option<&str>) -> String {
    json!({
        "id": "cmpl-1", "object": "text_completion", "model": "m",
        "choices": [{"index": 0, "text": "x", "token_ids": ids, "finish_reason": finish}],
        "usage": {"prompt_tokens": 3, "completion_tokens": so_far, "total_tokens": 3 + so_far},
    })
    .to_string()
}

fn usage(tokens: u64, more: Value) -> String {
    let mut last =
        json!({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": tokens}});
    for (key, value) in more.as_object().unwrap() {
        last[key] = value.clone();
    }
    last.to_string()
}

fn taken(events: &[String]) -> Result<Answer> {
    let mut incoming = Incoming::default();
    for (number, event) in events.iter().enumerate() {
        incoming.take(event, 0.5 * (1 + number) as f64)?;
    }
    incoming.end(&[0; 3], 9.0)
}

fn refused(events: &[String]) -> String {
    taken(events).unwrap_err().to_string()
}

#[test]
fn tokens_are_counted_by_the_server_and_not_by_parts() {
    let stats = json!({"metrics": {"speculative_decoding": {
        "mean_acceptance_length": 2.0, "acceptance_histogram": [1, 0, 1], "num_draft_tokens": 4,
        "num_spec_steps": 2, "per_step_accepted": null,
    }}});
    let events = [
        part(&[7], 1, None),
        part(&[8, 9, 10], 4, None),
        part(&[], 4, None),
        part(&[2], 5, Some("stop")),
        usage(5, stats),
        DONE.to_owned(),
    ];
    let answer = taken(&events).unwrap();
    assert_eq!((answer.tokens, answer.seconds), (5, 9.0));
    assert_eq!(answer.ids.as_deref(), Some(&[7, 8, 9, 10, 2][..]));
    assert_eq!(answer.first_token(), Some(0.5));
    let sixth = 0.5 / 3.0;
    assert_eq!(answer.between_tokens(), [sixth, sixth, sixth, 1.0]);
    assert_eq!(answer.between_chunks(), [0.5, 1.0]);
    let drafts = answer.drafts.unwrap();
    assert_eq!((drafts.drafts, drafts.accepted), (2, 2));
    assert_eq!(drafts.reaching, [1, 1]);
}

#[test]
fn an_answer_that_ends_at_once_has_a_first_token_or_none_and_nothing_between() {
    let one = [
        part(&[2], 1, Some("stop")),
        usage(1, json!({})),
        DONE.into(),
    ];
    let answer = taken(&one).unwrap();
    assert_eq!((answer.tokens, answer.first_token()), (1, Some(0.5)));
    assert!(answer.between_tokens().is_empty() && answer.between_chunks().is_empty());
    let none = [part(&[], 0, Some("stop")), usage(0, json!({})), DONE.into()];
    let answer = taken(&none).unwrap();
    assert_eq!((answer.tokens, answer.first_token()), (0, None));
}

#[test]
fn sglang_tells_of_drafts_in_its_own_form() {
    let details = |histogram: Value| {
        json!({"usage": null, "sglext": {"routed_experts": null, "spec_tokens_details": {
            "spec_accept_rate": 0.5, "spec_verify_ct": 3, "spec_num_correct_drafts": 4,
            "spec_num_proposed_drafts": 9, "spec_correct_drafts_histogram": histogram,
        }}})
    };
    let of = |histogram| {
        let events = [
            part(&[7, 8], 2, Some("length")),
            usage(2, details(histogram)),
            usage(2, json!({})),
            DONE.into(),
        ];
        taken(&events).unwrap().drafts.unwrap()
    };
    let told = of(json!([1, 0, 2]));
    assert_eq!((told.drafts, told.drafted, told.accepted), (3, Some(9), 4));
    assert_eq!(told.reaching, [2, 2]);
    let silent = of(json!([]));
    assert_eq!((silent.drafts, silent.accepted), (3, 4));
    assert!(silent.reaching.is_empty());
}

#[test]
fn drafts_of_sglang_that_are_longer_than_any_are_refused() {
    let of = |drafted: u64| {
        let details = json!({"usage": null, "sglext": {"spec_tokens_details": {
            "spec_verify_ct": 2, "spec_num_correct_drafts": 0, "spec_num_proposed_drafts": drafted,
        }}});
        Incoming::default().take(&usage(2, details), 0.0)
    };
    of(2 * 4096).unwrap();
    let error = of(2 * 4097).unwrap_err().to_string();
    assert_eq!(
        error,
        "the tokens of a draft: expected at most 4096, found 4097"
    );
}

#[test]
fn half_an_answer_is_none() {
    let begun = part(&[7], 1, None);
    let ended = part(&[8], 2, Some("stop"));
    let last = usage(2, json!({}));
    let done = DONE.to_owned();
    let cases = [
        (
            vec![begun.clone()],
            "found the end of the stream after 1 tokens",
        ),
        (
            vec![begun.clone(), last.clone(), done.clone()],
            "`finish_reason`: expected `stop` or `length`, found none",
        ),
        (
            vec![
                begun.clone(),
                part(&[8], 2, Some("abort")),
                last.clone(),
                done.clone(),
            ],
            "found `abort`",
        ),
        (
            vec![
                begun.clone(),
                ended.clone(),
                usage(3, json!({})),
                done.clone(),
            ],
            "tokens of the parts: expected 3, found 2",
        ),
        (
            vec![
                begun.clone(),
                part(&[8, 9], 2, Some("stop")),
                last,
                done.clone(),
            ],
            "tokens in `token_ids`: expected 2, found 3",
        ),
        (
            vec![
                part(&[7], 1, Some("stop")).replace("\"prompt_tokens\":3", "\"prompt_tokens\":4"),
                done.clone(),
            ],
            "tokens of the prompt in `usage`: expected 3, found 4",
        ),
        (
            vec![
                json!({"choices": [{"text": "", "finish_reason": "stop"}]}).to_string(),
                done,
            ],
            "`usage`: expected a count of the answer's tokens, found none",
        ),
    ];
    for (events, expected) in cases {
        let found = refused(&events);
        assert!(found.contains(expected), "{found}");
    }
}

#[test]
fn errors_in_the_stream_are_told_in_the_servers_words() {
    let begun = part(&[7], 1, None);
    let said = |event: &str| refused(&[begun.clone(), event.to_owned()]);
    assert_eq!(
        said(r#"{"error": {"message": "out of memory", "code": 500}}"#),
        "the server says: out of memory"
    );
    assert_eq!(said(r#"{"error": "no"}"#), "the server says: \"no\"");
    let other = said("<html>");
    assert!(
        other.starts_with("an event of the stream: expected a part of an answer, found `<html>`"),
        "{other}"
    );
    let uncounted = said(r#"{"choices": [{"text": "word"}]}"#);
    assert!(uncounted.ends_with("found neither"), "{uncounted}");
}

#[test]
fn counts_that_no_answer_has_are_refused_before_anything_is_made_of_them() {
    for (events, expected) in [
        (
            vec![part(&[7], 1 << 40, Some("stop"))],
            "at most 1048576, found 1099511627776",
        ),
        (
            vec![part(&[7], 1 << 20, None), part(&[7], (1 << 20) + 1, None)],
            "at most 1048576, found 1",
        ),
        (
            vec![usage(
                0,
                json!({"metrics": {"speculative_decoding": {
                    "acceptance_histogram": [u64::MAX, 1], "num_draft_tokens": 4,
                }}}),
            )],
            "a count of drafts: expected at most 4294967296",
        ),
        (
            vec![usage(
                0,
                json!({"sglext": {"spec_tokens_details": {
                    "spec_verify_ct": 1, "spec_num_correct_drafts": u64::MAX, "spec_num_proposed_drafts": 1,
                }}}),
            )],
            "a count of drafts: expected at most 4294967296",
        ),
    ] {
        let said = refused(&events);
        assert!(said.contains(expected), "{said}");
    }
}
