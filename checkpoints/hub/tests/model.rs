//! What a well-meaning hub and its cache give.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::server::{COMMIT, answer, file_answer, hold, sha256_tag, status, tagged_answer};
use super::*;

#[test]
fn an_existing_folder_is_taken_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let options = HubOptions::default();
    assert_eq!(resolve(path, None, &options).unwrap(), folder.path());
    assert_eq!(resolve(".", None, &options).unwrap(), Path::new("."));
}

#[test]
fn what_is_neither_folder_nor_id_is_refused_without_a_request() {
    let hub = Hub::with_files(vec![]);
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub, cache.path());
    let error = |model: &str| resolve(model, None, &options).unwrap_err().to_string();
    for model in [
        "./absent",
        "/absent/model",
        "absent",
        "a/b/c",
        "../a",
        "a/..",
        "a/b c",
        "a/b?c",
    ] {
        let text = error(model);
        assert!(text.contains(model) && text.contains("org/name"), "{text}");
    }
    let here = std::env::current_dir().unwrap();
    assert!(error("./absent").contains(here.to_str().unwrap()));
    let file = cache.path().join("file");
    fs::write(&file, "").unwrap();
    assert!(error(file.to_str().unwrap()).contains("is a file"));
    assert!(hub.asked().is_empty());
}

#[test]
fn a_model_is_downloaded_at_its_revision_with_the_token_and_then_taken_from_the_cache() {
    let hub = Hub::with_files(model());
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        token: Some("secret".to_string()),
        ..options(&hub, cache.path())
    };
    let folder = fetch_with(Some("v2"), &options).unwrap();
    assert!(folder.ends_with(COMMIT));
    let opened = crate::folder::ModelFolder::open(&folder).unwrap();
    assert_eq!(opened.config()["a"], 1);
    assert_eq!(opened.read("w").unwrap(), weight("w"));
    assert!(folder.join("tokenizer.json").exists() && !folder.join("chat_template.jinja").exists());

    let asked = hub.asked();
    assert_eq!(asked[0].path, "/org/name/resolve/v2/config.json");
    let by_commit = format!("/org/name/resolve/{COMMIT}/model.safetensors");
    assert!(asked.iter().any(|asked| asked.path == by_commit));
    let authorized = |asked: &server::Asked| asked.headers["authorization"] == "Bearer secret";
    assert!(asked.iter().all(authorized));

    assert_eq!(fetch_with(Some("v2"), &options).unwrap(), folder);
    assert_eq!(fetch_with(Some(COMMIT), &options).unwrap(), folder);
    assert_eq!(
        hub.asked().len(),
        asked.len(),
        "a complete snapshot needs no request"
    );
}

#[cfg(unix)]
#[test]
fn the_cache_is_laid_out_as_hugging_faces_tools_read_it() {
    let hub = Hub::with_files(model());
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&hub, cache.path()).unwrap();
    let repository = cache.path().join("hub/models--org--name");
    assert_eq!(folder, repository.join("snapshots").join(COMMIT));
    let main = fs::read_to_string(repository.join("refs/main")).unwrap();
    assert_eq!(main, COMMIT);
    let mut blobs: Vec<_> = model()
        .iter()
        .map(|(_, bytes)| crate::hash::sha256_bytes(bytes))
        .collect();
    blobs.sort();
    assert_eq!(names(cache.path(), "blobs"), blobs);
    let (_, bytes) = &model()[2];
    let target = format!("../../blobs/{}", crate::hash::sha256_bytes(bytes));
    let pointer = fs::read_link(folder.join("model.safetensors")).unwrap();
    assert_eq!(pointer, Path::new(&target));
}

#[cfg(unix)]
#[test]
fn a_cache_that_huggingface_hub_made_is_used_without_a_request() {
    let hub = Hub::with_files(vec![]);
    let cache = tempfile::tempdir().unwrap();
    let repository = cache.path().join("hub/models--org--name");
    let snapshot = repository.join("snapshots").join(COMMIT);
    for folder in ["blobs", "refs/refs/pr"] {
        fs::create_dir_all(repository.join(folder)).unwrap();
    }
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(repository.join("refs/main"), COMMIT).unwrap();
    fs::write(repository.join("refs/refs/pr/1"), COMMIT).unwrap();
    for (i, (name, bytes)) in model().into_iter().enumerate() {
        fs::write(repository.join(format!("blobs/{i}")), bytes).unwrap();
        let target = format!("../../blobs/{i}");
        std::os::unix::fs::symlink(target, snapshot.join(name)).unwrap();
    }
    let absent = repository.join(".no_exist").join(COMMIT);
    fs::create_dir_all(&absent).unwrap();
    for name in [
        "generation_config.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "chat_template.json",
    ] {
        fs::write(absent.join(name), "").unwrap();
    }
    let options = options(&hub, cache.path());
    for revision in [None, Some("refs/pr/1"), Some(COMMIT)] {
        assert_eq!(fetch_with(revision, &options).unwrap(), snapshot);
    }
    assert_eq!(cached("org/name", None, &options).unwrap(), snapshot);
    assert_eq!(cached("org/name", Some("v2"), &options), None);
    assert!(hub.asked().is_empty());
}

#[test]
fn what_another_tool_left_out_of_a_snapshot_is_asked_for_once_at_its_commit() {
    let mut files = model();
    files.push(("generation_config.json", b"{\"b\": 2}".to_vec()));
    let hub = Hub::with_files(files);
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&hub, cache.path()).unwrap();
    let absent = format!(".no_exist/{COMMIT}");
    let noted = [
        "chat_template.jinja",
        "chat_template.json",
        "tokenizer_config.json",
    ];
    assert_eq!(names(cache.path(), &absent), noted);
    // As a tool leaves it that was asked for some of the files alone.
    fs::remove_file(folder.join("generation_config.json")).unwrap();
    let repository = cache.path().join("hub/models--org--name");
    fs::remove_dir_all(repository.join(".no_exist")).unwrap();

    let before = hub.asked().len();
    assert_eq!(fetch(&hub, cache.path()).unwrap(), folder);
    assert!(folder.join("generation_config.json").exists());
    let mut heads: Vec<String> = hub.asked()[before..]
        .iter()
        .filter(|asked| asked.is_head())
        .map(|asked| asked.path.clone())
        .collect();
    heads.sort();
    let expected = [noted[0], noted[1], "generation_config.json", noted[2]]
        .map(|file| format!("/org/name/resolve/{COMMIT}/{file}"));
    assert_eq!(heads, expected, "the branch may have moved");
    assert_eq!(names(cache.path(), &absent), noted);
    let asked = hub.asked().len();
    assert_eq!(fetch(&hub, cache.path()).unwrap(), folder);
    assert_eq!(hub.asked().len(), asked);
}

#[test]
fn of_chat_templates_those_that_may_be_read_are_asked_for() {
    let in_config = br#"{"chat_template": "x"}"#.to_vec();
    let further = [
        "chat_template.json",
        "additional_chat_templates/tool_use.jinja",
    ];
    for (beside, expected) in [
        (None, [true, false]),
        (Some(("tokenizer_config.json", in_config)), [false, false]),
        (Some(("chat_template.jinja", b"x".to_vec())), [false, true]),
    ] {
        let mut files = model();
        files.extend(beside);
        let (hub, cache) = (Hub::with_files(files), tempfile::tempdir().unwrap());
        let folder = fetch(&hub, cache.path()).unwrap();
        let asked = hub.asked();
        let is_asked = |file: &str| asked.iter().any(|asked| asked.path.ends_with(file));
        assert_eq!(further.map(is_asked), expected);
        assert_eq!(fetch(&hub, cache.path()).unwrap(), folder);
        assert_eq!(hub.asked().len(), asked.len());
    }
}

#[test]
fn a_snapshot_that_suffices_is_used_whatever_the_hub_says_of_what_is_beside_it() {
    for line in [
        None,
        Some("401 Unauthorized"),
        Some("404 Not Found\r\nx-error-code: RepoNotFound"),
        Some("404 Not Found"),
        Some("500 Internal Server Error"),
    ] {
        let (hub, cache) = (Hub::with_files(model()), tempfile::tempdir().unwrap());
        let folder = fetch(&hub, cache.path()).unwrap();
        let repository = cache.path().join("hub/models--org--name");
        fs::remove_dir_all(repository.join(".no_exist")).unwrap();
        let other = line.map(|line| Hub::answering(move |_| status(line)));
        let endpoint = other.as_ref().map(|hub| hub.endpoint.clone());
        let options = HubOptions {
            endpoint: endpoint.or(Some("http://127.0.0.1:1".to_string())),
            ..options(&hub, cache.path())
        };
        assert_eq!(fetch_with(None, &options).unwrap(), folder, "{line:?}");
        assert!(!repository.join(".no_exist").exists(), "{line:?}");
    }
}

/// A complete snapshot of the model, of which it is not known which companions it lacks.
fn snapshot_without_notes(cache: &Path) -> PathBuf {
    let folder = fetch(&Hub::with_files(model()), cache).unwrap();
    fs::remove_dir_all(cache.join("hub/models--org--name/.no_exist")).unwrap();
    folder
}

/// Lines of a log that name a folder: tests may share a process.
fn said_of(folder: &Path, log: &str) -> String {
    let name = folder.to_str().unwrap();
    let lines = log.lines().filter(|line| line.contains(name));
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn a_snapshot_that_suffices_waits_for_no_slow_hub() {
    let limited = || Hub::answering(|_| status("429 Too Many Requests\r\nretry-after: 200"));
    let silent = || {
        Hub::serving(|_, stream| {
            hold(stream);
            Ok(())
        })
    };
    for hub in [limited(), silent()] {
        let cache = tempfile::tempdir().unwrap();
        let folder = snapshot_without_notes(cache.path());
        let usual = options(&hub, cache.path());
        let limits = HubLimits {
            answer: Duration::from_secs(2),
            ..usual.limits.clone()
        };
        let options = HubOptions { limits, ..usual };
        let started = Instant::now();
        assert_eq!(fetch_with(None, &options).unwrap(), folder);
        assert!(started.elapsed() < Duration::from_secs(60));
        assert_eq!(hub.asked().len(), 1, "it is tried once");
    }
}

#[test]
fn of_a_cache_that_cannot_be_written_no_companion_is_left_out_and_nobody_is_warned() {
    let log = log::capture();
    let cache = tempfile::tempdir().unwrap();
    let folder = snapshot_without_notes(cache.path());
    // No mode keeps out whoever may do everything.
    let notes = cache.path().join("hub/models--org--name/.no_exist");
    fs::write(&notes, "").unwrap();
    let mut files = model();
    files.push(("chat_template.jinja", b"x".to_vec()));
    let hub = Hub::with_files(files);
    assert_eq!(fetch(&hub, cache.path()).unwrap(), folder);
    assert!(folder.join("chat_template.jinja").exists());
    let log = said_of(cache.path(), &log.text());
    assert!(log.contains("is not noted"), "{log}");
    assert!(!log.contains("WARN"), "{log}");
}

#[test]
fn a_gated_model_that_is_here_is_used_without_a_token_and_without_a_warning() {
    let log = log::capture();
    let cache = tempfile::tempdir().unwrap();
    let folder = snapshot_without_notes(cache.path());
    let hub = Hub::answering(|_| status("401 Unauthorized"));
    assert_eq!(fetch(&hub, cache.path()).unwrap(), folder);
    assert_eq!(hub.asked().len(), 1);
    let told = said_of(&folder, &log.text());
    assert!(told.contains("INFO") && told.contains("http 401"), "{told}");
    assert!(!told.contains("WARN"), "{told}");
}

#[test]
fn the_shards_of_an_index_are_downloaded() {
    let index = r#"{"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors", "z": "m-3.safetensors"}}"#;
    let hub = Hub::with_files(vec![
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
        ("m-1.safetensors", weights("x")),
        ("m-2.safetensors", weights("y")),
        ("m-3.safetensors", weights("z")),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&hub, cache.path()).unwrap();
    let opened = crate::folder::ModelFolder::open(folder).unwrap();
    assert_eq!(opened.tensors().count(), 3);
}

#[test]
fn of_shards_only_those_with_wanted_tensors_are_downloaded() {
    let index = r#"{"weight_map": {"x": "m-1.safetensors", "y": "m-2.safetensors", "z": "m-3.safetensors"}}"#;
    let hub = Hub::with_files(vec![
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
        ("m-1.safetensors", weights("x")),
        ("m-2.safetensors", weights("y")),
        ("m-3.safetensors", weights("z")),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub, cache.path());
    let resolve = |wanted: fn(&str) -> bool| {
        crate::resolve_parts("org/name", None, &wanted, &options).unwrap()
    };
    let folder = resolve(|name| name == "y");
    let shards =
        |folder: &Path| [1, 2, 3].map(|at| folder.join(format!("m-{at}.safetensors")).exists());
    assert_eq!(shards(&folder), [false, true, false]);
    let opened = crate::folder::ModelFolder::open_some(&folder, &|name| name == "y").unwrap();
    assert_eq!(opened.tensors().count(), 1);
    // What is here is not asked for again, and what is not yet is fetched once it is wanted.
    let asked = hub.asked().len();
    assert_eq!(resolve(|name| name == "y"), folder);
    assert_eq!(hub.asked().len(), asked);
    assert_eq!(resolve(|name| name != "x"), folder);
    assert_eq!(shards(&folder), [false, true, true]);
    assert_eq!(fetch(&hub, cache.path()).unwrap(), folder);
    assert_eq!(shards(&folder), [true, true, true]);
}

#[test]
fn a_missing_shard_is_named() {
    let index = r#"{"weight_map": {"x": "m-1.safetensors"}}"#;
    let hub = Hub::with_files(vec![
        ("config.json", b"{}".to_vec()),
        ("model.safetensors.index.json", index.into()),
    ]);
    let cache = tempfile::tempdir().unwrap();
    assert!(error(&hub, cache.path()).contains("`m-1.safetensors`"));
}

#[test]
fn a_model_without_safetensors_says_what_was_looked_for() {
    let hub = Hub::with_files(vec![("config.json", b"{}".to_vec())]);
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    assert!(
        text.contains("model.safetensors.index.json") && text.contains("only safetensors"),
        "{text}"
    );
}

#[test]
fn a_pickle_on_the_hub_comes_with_the_commands_that_make_it_readable() {
    let files = ["a/b.bin", "optimizer.pt", "pytorch_model.bin"];
    let files = files.map(|file| serde_json::json!({"rfilename": file}));
    let list = serde_json::json!({"sha": COMMIT, "siblings": files}).to_string();
    let hub = Hub::answering(move |asked| {
        let length = list.len().to_string();
        let headers = [("content-length", length.as_str())];
        if asked.path.starts_with("/api/models/org/name/revision/") {
            return answer(asked, "200 OK", &headers, list.as_bytes());
        }
        match asked.file() {
            "config.json" => file_answer(asked, b"{}"),
            _ => status("404 Not Found\r\nx-error-code: EntryNotFound"),
        }
    });
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    for part in [
        "`pytorch_model.bin`, a pickle",
        "`hf download org/name --local-dir DIR`",
        "torch.load('pytorch_model.bin', weights_only=True)",
        "`org/name@refs/pr/N`",
    ] {
        assert!(text.contains(part), "no `{part}`: {text}");
    }
    let options = options(&hub, cache.path());
    let text = fetch_with(Some("v2"), &options).unwrap_err().to_string();
    assert!(text.contains("org/name --revision v2 --local"), "{text}");
}

#[test]
fn contents_that_another_revision_has_too_are_not_sent_again() {
    const OTHER: &str = "89abcdef0123456789abcdef0123456789abcdef";
    let hub = Hub::with_files_but(model(), |asked, bytes| {
        let text = String::from_utf8(file_answer(asked, &[]).to_vec()).unwrap();
        let is_other = asked.path.contains("/v2/") || asked.path.contains(OTHER);
        let length = format!("content-length: {}", bytes.len());
        let (tag, none) = (sha256_tag(bytes), sha256_tag(&[]));
        let text = text.replace(COMMIT, OTHER).replace(&none, &tag);
        (is_other && asked.is_head())
            .then(|| text.replace("content-length: 0", &length).into_bytes())
    });
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub, cache.path());
    let first = fetch_with(None, &options).unwrap();
    let second = fetch_with(Some("v2"), &options).unwrap();
    assert_ne!(first, second);
    let weights = |folder: &Path| fs::read(folder.join("model.safetensors")).unwrap();
    assert_eq!(weights(&first), weights(&second));
    assert_eq!(hub.gets("model.safetensors").len(), 1);
}

/// A store of large files on another host, and a hub that sends there.
fn with_store(files: Vec<(&'static str, Vec<u8>)>, host: &'static str) -> (Hub, Hub) {
    let store = Hub::with_files_but(files.clone(), |asked, bytes| {
        // Its tags are its own.
        Some(tagged_answer(asked, bytes, "\"of-the-store\""))
    });
    let address = store.endpoint.replace("127.0.0.1", host);
    let hub = Hub::with_files_but(files, move |asked, bytes| {
        let length = bytes.len().to_string();
        let location = format!("{address}/bucket/{}?Signature=x", asked.file());
        let headers = [
            ("x-repo-commit", COMMIT),
            ("x-linked-size", &length),
            ("x-linked-etag", &sha256_tag(bytes)),
            ("etag", "\"of-the-redirect\""),
            ("location", &location),
            ("content-length", "9"),
        ];
        let is_large = asked.file().ends_with(".safetensors");
        is_large.then(|| answer(asked, "302 Found", &headers, b"Found. /x"))
    });
    (hub, store)
}

#[test]
fn large_files_come_from_the_store_that_the_hub_redirects_to_which_gets_no_token() {
    for host in ["localhost", "127.0.0.1"] {
        let (hub, store) = with_store(model(), host);
        let cache = tempfile::tempdir().unwrap();
        let options = HubOptions {
            token: Some("secret".to_string()),
            ..options(&hub, cache.path())
        };
        let folder = fetch_with(None, &options).unwrap();
        let opened = crate::folder::ModelFolder::open(folder).unwrap();
        assert_eq!(opened.read("w").unwrap(), weight("w"));
        assert_eq!(store.gets("model.safetensors").len(), 1);
        for asked in store.asked() {
            assert!(!format!("{asked:?}").contains("secret"), "{asked:?}");
        }
        let hubs = hub.asked();
        assert!(
            hubs.iter()
                .all(|asked| asked.headers.contains_key("authorization"))
        );
    }
}

#[test]
fn a_file_that_the_hub_has_and_its_store_has_not_is_not_taken_for_absent() {
    for line in ["404 Not Found", "403 Forbidden"] {
        let hub = Hub::with_files_but(model(), move |asked, _| {
            let is_contents = asked.file() == "tokenizer.json" && !asked.is_head();
            is_contents.then(|| status(line))
        });
        let cache = tempfile::tempdir().unwrap();
        let text = error(&hub, cache.path());
        assert!(
            text.contains("`tokenizer.json`") && text.contains(&line[..3]),
            "{text}"
        );
        assert_eq!(
            hub.gets("tokenizer.json").len(),
            3,
            "another link may be better"
        );
    }
}

#[test]
fn a_model_that_was_renamed_is_followed_with_the_token() {
    let hub = Hub::with_files_but(model(), |asked, _| {
        let location = asked.path.replace("/org/name/", "/new/name/");
        let headers = [("location", location.as_str()), ("content-length", "0")];
        let is_old = asked.path.starts_with("/org/name/");
        is_old.then(|| answer(asked, "307 Temporary Redirect", &headers, b""))
    });
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        token: Some("secret".to_string()),
        ..options(&hub, cache.path())
    };
    fetch_with(None, &options).unwrap();
    let asked = hub.asked();
    assert!(
        asked
            .iter()
            .any(|asked| asked.path.starts_with("/new/name/"))
    );
    assert!(
        asked
            .iter()
            .all(|asked| asked.headers.contains_key("authorization"))
    );
}

#[test]
fn small_files_under_gits_name_of_them_are_compared_and_kept_under_it() {
    // `printf '{}' | git hash-object --stdin`
    const NAME: &str = "9e26dfeeb6e641a33dae4961196235bdb965b21b";
    let files = vec![
        ("config.json", b"{}".to_vec()),
        ("model.safetensors", weights("w")),
    ];
    let hub = Hub::with_files_but(files, |asked, bytes| {
        let is_small = asked.file() == "config.json";
        is_small.then(|| tagged_answer(asked, bytes, &format!("\"{NAME}\"")))
    });
    let cache = tempfile::tempdir().unwrap();
    fetch(&hub, cache.path()).unwrap();
    assert!(names(cache.path(), "blobs").contains(&NAME.to_string()));
}

#[test]
fn named_files_of_a_dataset_are_downloaded_and_nothing_else() {
    let hub = Hub::with_files(vec![
        ("train.jsonl", b"{}\n".to_vec()),
        ("README.md", b"#".to_vec()),
        ("empty", Vec::new()),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let repository = Repository::new(RepoType::Dataset, "org/name", None).unwrap();
    let environment = Environment::of(cache.path(), &[]);
    let options = options(&hub, cache.path());
    let download = Download::new(&repository, &options, &environment).unwrap();
    let files = ["data/train.jsonl", "empty"];
    let folder = download.run(Files::Named(&files)).unwrap();
    assert_eq!(fs::read(folder.join("data/train.jsonl")).unwrap(), b"{}\n");
    assert!(folder.starts_with(cache.path().join("hub/datasets--org--name")));
    let asked = hub.asked();
    assert_eq!(
        asked[0].path,
        "/datasets/org/name/resolve/main/data/train.jsonl"
    );
    assert!(asked.iter().all(|asked| asked.file() != "README.md"));
    assert_eq!(fs::read(folder.join("empty")).unwrap(), b"");
    assert_eq!(download.run(Files::Named(&files)).unwrap(), folder);
    assert_eq!(hub.asked().len(), asked.len());
    let absent = ["data/train.jsonl", "absent"];
    let error = download.run(Files::Named(&absent)).unwrap_err();
    assert!(error.to_string().contains("`absent`"));
    assert!(download.run(Files::Named(&[])).is_err());
}

#[test]
fn an_unknown_model_or_revision_is_named_with_hub_and_revision() {
    let cache = tempfile::tempdir().unwrap();
    for (code, reason) in [
        ("RepoNotFound", "no such repository"),
        ("RevisionNotFound", "no such revision"),
    ] {
        let hub =
            Hub::answering(move |_| status(&format!("404 Not Found\r\nx-error-code: {code}")));
        let text = error(&hub, cache.path());
        assert!(
            text.contains(reason) && text.contains("`main`") && text.contains(&hub.endpoint),
            "{text}"
        );
    }
}

#[test]
fn a_model_that_goes_away_during_a_download_is_not_one_without_a_tokenizer() {
    let hub = Hub::with_files_but(model(), |asked, _| {
        let gone = "404 Not Found\r\nx-error-code: RepoNotFound";
        (asked.file() != "config.json").then(|| status(gone))
    });
    let cache = tempfile::tempdir().unwrap();
    assert!(error(&hub, cache.path()).contains("no such repository"));
}

#[test]
fn a_gated_model_asks_for_a_token() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::answering(|_| status("401 Unauthorized"));
    let text = error(&hub, cache.path());
    assert!(
        text.contains("http 401, without a token") && text.contains("HF_TOKEN"),
        "{text}"
    );
    assert_eq!(hub.asked().len(), 1, "it is asked once");
    let hub = Hub::answering(|_| status("403 Forbidden"));
    let options = HubOptions {
        token: Some("secret".into()),
        ..options(&hub, cache.path())
    };
    let text = fetch_with(None, &options).unwrap_err().to_string();
    assert!(
        text.contains("http 403, with a token") && !text.contains("secret"),
        "{text}"
    );
}

#[test]
fn why_the_hub_refuses_is_told_and_a_token_that_it_does_not_know_is_called_invalid() {
    let cache = tempfile::tempdir().unwrap();
    for (line, said, advice) in [
        (
            "401 Unauthorized",
            "Invalid credentials in Authorization header",
            "the token may be invalid",
        ),
        (
            "403 Forbidden",
            "Access to model org/name is restricted",
            "accept its terms",
        ),
    ] {
        let hub = Hub::answering(move |_| status(&format!("{line}\r\nx-error-message: {said}")));
        let options = HubOptions {
            token: Some("hf_of_somebody".into()),
            ..options(&hub, cache.path())
        };
        let text = fetch_with(None, &options).unwrap_err().to_string();
        let said = format!("the hub says `{said}`; ");
        assert!(text.contains(&said) && text.contains(advice), "{text}");
        assert_eq!(text.contains("terms"), line.starts_with("403"), "{text}");
    }
}

#[test]
fn a_failing_hub_is_asked_a_few_times_and_reported_with_its_status() {
    let cache = tempfile::tempdir().unwrap();
    let hub = Hub::answering(|_| status("500 Internal Server Error"));
    let text = error(&hub, cache.path());
    assert!(
        text.contains("http 500") && text.contains("`config.json`"),
        "{text}"
    );
    assert_eq!(hub.asked().len(), 3);
}

/// A hub that answers every third request only, and the others with `line`.
fn every_third(line: &'static str) -> Hub {
    let count = AtomicUsize::new(0);
    Hub::with_files_but(model(), move |_, _| {
        let turn = count.fetch_add(1, Ordering::SeqCst);
        (turn % 3 != 2).then(|| status(line))
    })
}

#[test]
fn a_hub_that_recovers_is_asked_again() {
    for line in [
        "503 Service Unavailable",
        "429 Too Many Requests\r\nretry-after: 0",
        "429 Too Many Requests",
    ] {
        let cache = tempfile::tempdir().unwrap();
        fetch(&every_third(line), cache.path()).unwrap();
    }
}

#[test]
fn a_pause_of_hours_is_reported_and_not_waited_for() {
    let hub = Hub::answering(|_| status("429 Too Many Requests\r\nretry-after: 86400"));
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    assert!(
        text.contains("http 429") && text.contains("86400 s"),
        "{text}"
    );
    assert_eq!(hub.asked().len(), 1);
}

#[test]
fn without_a_network_the_error_says_how_to_go_on() {
    let hub = Hub::with_files(model());
    let cache = tempfile::tempdir().unwrap();
    let options = HubOptions {
        endpoint: Some("http://127.0.0.1:1".to_string()),
        ..options(&hub, cache.path())
    };
    let text = fetch_with(None, &options).unwrap_err().to_string();
    assert!(
        text.contains("http://127.0.0.1:1") && text.contains("without a network, name a folder"),
        "{text}"
    );
}

#[test]
fn without_a_network_a_complete_snapshot_without_a_tokenizer_is_used() {
    let hub = Hub::with_files(vec![
        ("config.json", b"{}".to_vec()),
        ("model.safetensors", weights("w")),
    ]);
    let cache = tempfile::tempdir().unwrap();
    let folder = fetch(&hub, cache.path()).unwrap();
    let offline = HubOptions {
        endpoint: Some("http://127.0.0.1:1".to_string()),
        ..options(&hub, cache.path())
    };
    assert_eq!(fetch_with(None, &offline).unwrap(), folder);
}

#[test]
fn offline_nothing_is_asked_and_what_is_here_is_used() {
    let hub = Hub::with_files(model());
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub, cache.path());
    let offline = [("HF_HUB_OFFLINE", "1")];
    let text = fetch_in(&offline, None, &options).unwrap_err().to_string();
    assert!(text.contains("HF_HUB_OFFLINE"), "{text}");
    assert!(hub.asked().is_empty());
    let folder = fetch_in(&[("HF_HUB_OFFLINE", "0")], None, &options).unwrap();
    let asked = hub.asked().len();
    assert_eq!(fetch_in(&offline, None, &options).unwrap(), folder);
    assert_eq!(hub.asked().len(), asked);
    // Nobody is asked, so it does not matter how.
    let nowhere = HubOptions {
        endpoint: Some("nowhere".to_string()),
        token: Some("\u{1}".to_string()),
        ..options
    };
    assert_eq!(fetch_in(&[], None, &nowhere).unwrap(), folder);
}

#[test]
fn the_variables_of_hugging_faces_tools_say_where_and_as_whom() {
    let hub = Hub::with_files(model());
    let home = tempfile::tempdir().unwrap();
    fs::write(home.path().join("token"), "of-a-login").unwrap();
    let variables = [
        ("HF_ENDPOINT", hub.endpoint.as_str()),
        ("HF_HOME", home.path().to_str().unwrap()),
    ];
    let folder = fetch_in(&variables, None, &HubOptions::default()).unwrap();
    assert!(folder.starts_with(home.path().join("hub/models--org--name/snapshots")));
    let authorized = |asked: &server::Asked| asked.headers["authorization"] == "Bearer of-a-login";
    assert!(hub.asked().iter().all(authorized));
}

#[test]
fn a_revision_that_is_none_is_refused() {
    let hub = Hub::with_files(model());
    let cache = tempfile::tempdir().unwrap();
    let options = options(&hub, cache.path());
    for revision in ["", "../x", "a b", "a?b"] {
        let error = fetch_with(Some(revision), &options).unwrap_err();
        assert!(error.to_string().contains("revision"));
    }
    assert!(hub.asked().is_empty());
}
