//! What a hub that means harm, or a broken one, cannot do.

use std::io::Write;

use super::server::{
    Asked, COMMIT, answer, chunked, file_answer, hold, sha256_tag, status, tagged_answer,
};
use super::*;

/// A hub whose weights are answered by `weights`, given what is asked and what they should be.
fn with_weights(weights: impl Fn(&Asked, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Hub {
    Hub::with_files_but(model(), move |asked, bytes| {
        let is_weights = asked.file() == "model.safetensors";
        is_weights.then(|| weights(asked, bytes)).flatten()
    })
}

/// No contents and no pointer to the weights are in the cache.
fn assert_no_weights(cache: &Path) {
    let digest = crate::hash::sha256_bytes(&model()[2].1);
    assert!(!names(cache, "blobs").contains(&digest));
    let snapshot = names(cache, &format!("snapshots/{COMMIT}"));
    assert!(
        !snapshot.contains(&"model.safetensors".to_string()),
        "{snapshot:?}"
    );
}

/// Everything under a folder.
fn everything(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            found.extend(everything(&path));
        }
        found.push(path);
    }
    found
}

#[test]
fn a_tag_that_is_a_path_overwrites_nothing_outside_the_cache() {
    let outside = tempfile::tempdir().unwrap();
    let victim = outside.path().join("victim");
    let relative = "../../../../../victim".to_string();
    for tag in [victim.to_str().unwrap().to_string(), relative] {
        fs::write(&victim, "mine").unwrap();
        let header = format!("\"{tag}\"");
        let hub = with_weights(move |asked, bytes| Some(tagged_answer(asked, bytes, &header)));
        let cache = outside.path().join("a/b");
        fs::create_dir_all(&cache).unwrap();
        let folder = fetch(&hub, &cache).unwrap();
        assert!(crate::folder::ModelFolder::open(folder).is_ok());
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        fs::remove_file(&victim).unwrap();
        for path in everything(outside.path()) {
            assert!(
                path.starts_with(outside.path().join("a")),
                "{}",
                path.display()
            );
            let real = path.canonicalize().unwrap();
            assert!(real.starts_with(outside.path().join("a").canonicalize().unwrap()));
        }
        fs::remove_dir_all(outside.path().join("a")).unwrap();
    }
}

#[test]
fn a_commit_that_is_a_path_plants_nothing() {
    let outside = tempfile::tempdir().unwrap();
    let planted = outside.path().join("planted");
    let absolute = planted.to_str().unwrap().to_string();
    for commit in [
        absolute,
        "../../../../planted".to_string(),
        "main".to_string(),
    ] {
        let hub = Hub::with_files_but(model(), move |asked, bytes| {
            let text = String::from_utf8_lossy(&file_answer(asked, bytes)).replace(COMMIT, &commit);
            Some(text.into_bytes())
        });
        let cache = outside.path().join("a/b");
        fs::create_dir_all(&cache).unwrap();
        let text = error(&hub, &cache);
        assert!(text.contains("X-Repo-Commit"), "{text}");
        let left = everything(outside.path());
        assert!(
            !planted.exists() && left.iter().all(|path| path.is_dir()),
            "{left:?}"
        );
    }
}

#[test]
fn a_commit_that_was_not_asked_for_is_refused() {
    let hub = Hub::with_files_but(model(), |asked, bytes| {
        let other = "89abcdef0123456789abcdef0123456789abcdef";
        let text = String::from_utf8(file_answer(asked, b"{}")).ok()?;
        (asked.file() != "config.json" || bytes.is_empty())
            .then(|| text.replace(COMMIT, other).into_bytes())
    });
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    assert!(text.contains(COMMIT) && text.contains("89abcdef"), "{text}");
}

#[test]
fn redirects_without_end_end() {
    let hub = Hub::answering(|asked| {
        let next = format!("{}x", asked.path);
        status(&format!("302 Found\r\nlocation: {next}"))
    });
    let cache = tempfile::tempdir().unwrap();
    let limits = HubLimits {
        redirects: 4,
        ..HubLimits::default()
    };
    let options = HubOptions {
        limits,
        ..options(&hub, cache.path())
    };
    let text = fetch_with(None, &options).unwrap_err().to_string();
    assert!(text.contains("more than 4 redirects"), "{text}");
    assert_eq!(hub.asked().len(), 5);
}

#[test]
fn a_redirect_that_leads_nowhere_is_an_error() {
    for (line, expected) in [
        ("302 Found", "without a `Location`"),
        ("302 Found\r\nlocation: \u{ff}", "without a `Location`"),
        ("301 Moved\r\nlocation: file:///etc/passwd", "`file:`"),
        ("307 Temporary Redirect\r\nlocation: http://", "no address"),
    ] {
        let cache = tempfile::tempdir().unwrap();
        let hub = Hub::answering(|_| status(line));
        let text = error(&hub, cache.path());
        assert!(text.contains(expected), "{line}: {text}");
        // The contents are asked for in another way than what the hub says of them.
        let hub = with_weights(move |asked, _| (!asked.is_head()).then(|| status(line)));
        let text = error(&hub, cache.path());
        assert!(text.contains(expected), "{line}: {text}");
    }
}

#[test]
fn the_token_goes_to_no_other_host_that_the_hub_names() {
    let other = Hub::with_files(model());
    let port = other.endpoint.rsplit(':').next().unwrap().to_string();
    for host in ["localhost", "127.0.0.1", "hub@127.0.0.1"] {
        let location = format!("http://{host}:{port}/x/config.json");
        let hub = Hub::with_files_but(model(), move |asked, bytes| {
            let headers = [
                ("x-repo-commit", COMMIT),
                ("x-linked-etag", &sha256_tag(bytes)),
                ("location", &location),
                ("content-length", "0"),
            ];
            Some(answer(asked, "302 Found", &headers, b""))
        });
        let cache = tempfile::tempdir().unwrap();
        let options = HubOptions {
            token: Some("secret".to_string()),
            ..options(&hub, cache.path())
        };
        // What the other host sends for the tokenizer is not what the hub announces.
        assert!(fetch_with(None, &options).is_err());
        for asked in other.asked() {
            assert!(
                !asked.headers.contains_key("authorization"),
                "{host}: {asked:?}"
            );
        }
    }
    assert!(!other.asked().is_empty());
}

/// Ways to send a body that is longer than the hub announces in `announced`.
fn longer(way: usize) -> Hub {
    with_weights(move |asked, bytes| {
        let announced = bytes.len().to_string();
        let long = [bytes, &vec![7; 1 << 20]].concat();
        let length = long.len().to_string();
        let mut headers = vec![
            ("x-repo-commit", COMMIT),
            ("x-linked-size", announced.as_str()),
            ("x-linked-etag", "\"opaque\""),
        ];
        if asked.is_head() {
            return Some(answer(asked, "200 OK", &headers, b""));
        }
        let body = match way {
            0 => {
                headers.push(("content-length", &length));
                long
            }
            1 => {
                headers.push(("transfer-encoding", "chunked"));
                chunked(&long)
            }
            _ => long,
        };
        Some(answer(asked, "200 OK", &headers, &body))
    })
}

#[test]
fn a_body_longer_than_announced_is_not_written() {
    for way in 0..3 {
        let cache = tempfile::tempdir().unwrap();
        let text = error(&longer(way), cache.path());
        assert!(text.contains("as announced"), "{way}: {text}");
        assert_no_weights(cache.path());
        let most = model().iter().map(|(_, bytes)| bytes.len() as u64).max();
        for path in everything(cache.path())
            .iter()
            .filter(|path| path.is_file())
        {
            assert!(
                Some(fs::metadata(path).unwrap().len()) <= most,
                "{}",
                path.display()
            );
        }
    }
}

#[test]
fn a_body_shorter_than_announced_is_never_taken_for_the_file() {
    // The connection ends early; the length is another; chunks end early.
    for way in 0..3 {
        let hub = with_weights(move |asked, bytes| {
            let half = &bytes[..bytes.len() / 2];
            let (length, short) = (bytes.len().to_string(), half.len().to_string());
            let mut headers = vec![("x-repo-commit", COMMIT), ("etag", "\"opaque\"")];
            if asked.is_head() {
                headers.push(("content-length", &length));
                return Some(answer(asked, "200 OK", &headers, b""));
            }
            let body = match way {
                0 => {
                    headers.push(("content-length", &length));
                    half.to_vec()
                }
                1 => {
                    headers.push(("content-length", &short));
                    half.to_vec()
                }
                _ => {
                    headers.push(("transfer-encoding", "chunked"));
                    chunked(half)
                }
            };
            Some(answer(asked, "200 OK", &headers, &body))
        });
        let cache = tempfile::tempdir().unwrap();
        let text = error(&hub, cache.path());
        assert!(text.contains("`model.safetensors`"), "{way}: {text}");
        assert_no_weights(cache.path());
        // The hub is mended: nothing of what it sent is in the way.
        let mended = Hub::with_files(model());
        let folder = fetch(&mended, cache.path()).unwrap();
        assert!(crate::folder::ModelFolder::open(folder).is_ok());
    }
}

#[test]
fn contents_of_an_earlier_download_that_are_not_whole_are_replaced() {
    let hub = Hub::with_files(model());
    let cache = tempfile::tempdir().unwrap();
    let (_, bytes) = &model()[2];
    let blobs = cache.path().join("hub/models--org--name/blobs");
    fs::create_dir_all(&blobs).unwrap();
    fs::write(blobs.join(crate::hash::sha256_bytes(bytes)), &bytes[..9]).unwrap();
    let folder = fetch(&hub, cache.path()).unwrap();
    assert!(crate::folder::ModelFolder::open(folder).is_ok());
}

#[test]
fn contents_with_another_digest_than_announced_are_not_kept() {
    // SHA-256 as of large files, and git's name of a blob as of small ones.
    for tag in ["a".repeat(64), "b".repeat(40)] {
        let header = format!("\"{tag}\"");
        let hub = with_weights(move |asked, bytes| Some(tagged_answer(asked, bytes, &header)));
        let cache = tempfile::tempdir().unwrap();
        let text = error(&hub, cache.path());
        assert!(text.contains("digest") && text.contains(&tag), "{text}");
        assert_no_weights(cache.path());
        assert!(
            !names(cache.path(), "blobs")
                .iter()
                .any(|name| name.contains(&tag))
        );
    }
}

#[test]
fn a_hub_that_does_not_say_how_long_a_file_is_is_refused() {
    let hub = with_weights(|asked, bytes| {
        let headers = [("x-repo-commit", COMMIT), ("etag", "\"x\"")];
        Some(answer(asked, "200 OK", &headers, bytes))
    });
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    assert!(text.contains("how long"), "{text}");
    assert_no_weights(cache.path());
}

#[test]
fn contents_in_another_form_than_asked_for_are_refused() {
    let hub = with_weights(|asked, bytes| {
        let length = bytes.len().to_string();
        let headers = [
            ("x-repo-commit", COMMIT),
            ("etag", "\"opaque\""),
            ("content-length", &length),
            ("content-encoding", "zstd"),
        ];
        Some(answer(asked, "200 OK", &headers, bytes))
    });
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    assert!(text.contains("`zstd`"), "{text}");
    assert_no_weights(cache.path());
}

#[test]
fn a_file_larger_than_any_is_refused_before_it_is_written() {
    let hub = with_weights(|asked, _| {
        let headers = [
            ("x-repo-commit", COMMIT),
            ("etag", "\"x\""),
            ("content-length", "18446744073709551615"),
        ];
        Some(answer(asked, "200 OK", &headers, b"start"))
    });
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    assert!(text.contains("at most"), "{text}");
    assert_no_weights(cache.path());
    let limits = HubLimits {
        largest_text: 1,
        ..HubLimits::default()
    };
    let hub = Hub::with_files(model());
    let options = HubOptions {
        limits,
        ..options(&hub, cache.path())
    };
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        cache: Some(cache.path().to_path_buf()),
        ..options
    };
    let text = fetch_with(None, &options).unwrap_err().to_string();
    assert!(
        text.contains("at most 1 bytes") && text.contains("`config.json`"),
        "{text}"
    );
}

/// Options that bear with nothing for long. What they are for never answers: no machine is too slow for it.
fn hasty(hub: &Hub, cache: &Path) -> HubOptions {
    HubOptions {
        limits: HubLimits {
            attempts: 2,
            pause: Duration::ZERO,
            answer: Duration::from_millis(50),
            silence: Duration::from_millis(50),
            ..HubLimits::default()
        },
        ..options(hub, cache)
    }
}

#[test]
fn a_hub_that_never_answers_is_given_up() {
    let hub = Hub::serving(|_, stream| {
        hold(stream);
        Ok(())
    });
    let cache = tempfile::tempdir().unwrap();
    let error = fetch_with(None, &hasty(&hub, cache.path())).unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
}

#[test]
fn a_hub_that_falls_silent_in_the_middle_of_a_file_is_given_up() {
    let hub = Hub::serving(|asked, stream| {
        let answer = file_answer(asked, b"{\"a\": 1}");
        if asked.is_head() {
            return stream.write_all(&answer);
        }
        stream.write_all(&answer[..answer.len() - 4])?;
        hold(stream);
        Ok(())
    });
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub, cache.path());
    let limits = HubLimits {
        silence: Duration::from_millis(50),
        ..options.limits.clone()
    };
    assert!(fetch_with(None, &HubOptions { limits, ..options }).is_err());
    let blobs = names(cache.path(), "blobs");
    assert!(
        blobs.iter().all(|name| name.ends_with(".incomplete")),
        "{blobs:?}"
    );
}

#[test]
fn a_hub_that_sends_too_slowly_is_given_up_whatever_it_sends() {
    let hub = Hub::with_files(model());
    let cache = tempfile::tempdir().unwrap();
    let limits = HubLimits {
        grace: Duration::ZERO,
        slowest: u64::MAX,
        ..HubLimits::default()
    };
    let options = HubOptions {
        limits,
        ..options(&hub, cache.path())
    };
    let text = fetch_with(None, &options).unwrap_err().to_string();
    assert!(text.contains("bytes per second"), "{text}");
}

#[test]
fn headers_without_end_and_answers_that_are_none_are_errors() {
    let endless = format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(1 << 20));
    for text in [
        endless,
        "SSH-2.0-OpenSSH\r\n\r\n".to_string(),
        String::new(),
    ] {
        let hub = Hub::answering(move |_| text.clone().into_bytes());
        let cache = tempfile::tempdir().unwrap();
        error(&hub, cache.path());
        assert!(hub.asked().len() <= 3);
    }
}

#[test]
fn a_shard_outside_the_folder_is_never_asked_for() {
    let index = r#"{"weight_map": {"x": "../../x.safetensors"}}"#;
    let hub = Hub::with_files(vec![
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
    ]);
    let cache = tempfile::tempdir().unwrap();
    assert!(error(&hub, cache.path()).contains("../../x.safetensors"));
    let asked = hub.asked();
    assert!(
        asked
            .iter()
            .all(|asked| !asked.path.contains("x.safetensors"))
    );
}

#[test]
fn a_file_outside_the_snapshot_is_never_asked_for() {
    let hub = Hub::with_files(vec![("x", b"{}".to_vec())]);
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub, cache.path());
    for name in ["../x", "/x", "a/../../x", "", "\u{1b}[2Jx"] {
        for names in [&[name][..], &["x", name]] {
            let error = fetch_files(Files::Named(names), &options).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("expected a name") && !text.contains('\u{1b}'),
                "{text}"
            );
        }
    }
    let places = ["main", COMMIT].map(|revision| format!("/org/name/resolve/{revision}/x"));
    let asked = hub.asked();
    assert!(asked.iter().all(|asked| places.contains(&asked.path)));
}

#[test]
fn what_a_hub_says_is_shown_without_what_moves_the_cursor() {
    let evil = "\u{1b}]0;owned\u{7}\u{9b}2J";
    let index = r#"{"weight_map": {"x\u001b[2J": "\u001b[2J\u009b.safetensors"}}"#;
    let says = |line: String| Hub::answering(move |_| status(&line));
    let hubs = [
        says(format!("418 Teapot\r\nx-error-message: {evil}")),
        says(format!("503 {evil}\r\nx-error-message: {evil}")),
        says(format!("302 Found\r\nlocation: {evil}://x")),
        says(format!("200 OK\r\nx-repo-commit: {evil}")),
        says(format!(
            "200 OK\r\nx-repo-commit: {COMMIT}\r\nx-linked-size: {evil}"
        )),
        Hub::with_files(vec![
            ("config.json", b"{}".to_vec()),
            ("model.safetensors.index.json", index.into()),
        ]),
    ];
    for hub in hubs {
        let cache = tempfile::tempdir().unwrap();
        let text = error(&hub, cache.path());
        assert!(!text.chars().any(char::is_control), "{text:?}");
    }
}
