//! The token in no log, whatever its level.

use super::server::{answer, status, tagged_answer};
use super::*;

const TOKEN: &str = "hf_QzXwVyKjPqRtLmNbGdFs";

/// Whether any five letters of the token are in a text, as they are or as the hexadecimal digits of a dump.
fn tells(text: &str) -> bool {
    let packed = text.replace(' ', "").to_lowercase();
    (0..=TOKEN.len() - 5).any(|start| {
        let piece = &TOKEN[start..start + 5];
        let digits: String = piece.bytes().map(|byte| format!("{byte:02x}")).collect();
        text.contains(piece) || packed.contains(&digits)
    })
}

#[test]
fn pieces_of_the_token_are_found_in_text_and_in_dumps() {
    assert!(tells("a yKjPq b") && tells("794b 6a50 71") && !tells("hf_Q yKjP"));
}

/// A hub that sends the token back in a header.
fn echo(line: &'static str, header: &'static str) -> Hub {
    Hub::answering(move |asked| {
        let token = asked.headers["authorization"].replace("Bearer ", "");
        let value = format!("{token}://{token}");
        answer(asked, line, &[(header, value.as_str())], b"")
    })
}

/// Requests that succeed, are refused, redirected, broken off and refused by the client.
#[test]
fn no_log_at_any_level_and_no_error_has_the_token() {
    let log = log::capture();
    tracing::trace!("the capture has the lowest level");
    ::log::debug!("and the logs of libraries");
    let store = Hub::with_files(model());
    let location = format!("{}/x/config.json", store.endpoint);
    let redirect = format!("302 Found\r\nlocation: {location}");
    let hubs = [
        Hub::with_files(model()),
        Hub::answering(|_| status("401 Unauthorized")),
        Hub::answering(move |_| status(&redirect)),
        Hub::answering(|_| b"HTTP/1.1 nonsense\r\n\r\n".to_vec()),
        Hub::answering(|_| Vec::new()),
        Hub::with_files_but(model(), |asked, bytes| {
            Some(tagged_answer(asked, &bytes[1..], "\"x\""))
        }),
        echo("418 Teapot", "x-error-message"),
        echo("503 Service Unavailable", "x-error-message"),
        echo("429 Too Many Requests\r\nretry-after: 0", "x-error-message"),
        echo("200 OK", "x-repo-commit"),
        echo("302 Found", "location"),
    ];
    for hub in &hubs {
        let cache = tempfile::tempdir().unwrap();
        let options = HubOptions {
            token: Some(TOKEN.to_string()),
            ..options(hub, cache.path())
        };
        let outcome = format!("{:?} {options:?}", fetch_with(None, &options));
        assert!(!tells(&outcome), "{outcome}");
        let sent = format!("{:?}", hub.asked());
        assert!(sent.contains(TOKEN), "the token was sent at all");
    }
    let unusable = HubOptions {
        token: Some(format!("{TOKEN}\u{1}")),
        ..HubOptions::default()
    };
    let text = fetch_with(None, &unusable).unwrap_err().to_string();
    assert!(text.contains("access token") && !tells(&text), "{text}");

    let log = log.text();
    assert!(log.contains("the capture has the lowest level") && log.contains("logs of libraries"));
    assert!(log.contains("ureq"), "what the HTTP client logs is in it");
    let lines = log.lines().filter(|line| tells(line)).collect::<Vec<_>>();
    assert!(lines.is_empty(), "{lines:#?}");
}
