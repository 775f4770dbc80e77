//! Lists of files: what a hub may say, what is kept, and what is done without it.

use serde_json::json;

use super::server::{COMMIT, answer, file_answer, status};
use super::*;
use crate::hub::listing::{here, keep, list, remembered};

fn repository() -> Repository {
    Repository::new(RepoType::Dataset, "org/name", None).unwrap()
}

fn none() -> Environment {
    Environment::of(Path::new("/nonexistent"), &[])
}

fn text() -> String {
    let files = json!([{"rfilename": "b.jsonl", "size": 3}, {"rfilename": "a/x.parquet"}]);
    json!({"sha": COMMIT, "siblings": files, "cardData": {"license": "mit"}}).to_string()
}

/// A hub that says this of a repository, and has one file.
fn saying(text: String) -> Hub {
    Hub::answering(move |asked| match asked.path.starts_with("/api/") {
        true => {
            let length = text.len().to_string();
            answer(
                asked,
                "200 OK",
                &[("content-length", &length)],
                text.as_bytes(),
            )
        }
        false => file_answer(asked, b"{}\n"),
    })
}

#[test]
fn a_list_is_asked_with_sizes_and_kept_once_its_files_are_here() {
    let (hub, folder) = (saying(text()), tempfile::tempdir().unwrap());
    let options = options(&hub, folder.path());
    let listing = list(&repository(), &options, &none()).unwrap();
    let paths: Vec<&str> = listing
        .files
        .iter()
        .map(|file| file.path.as_str())
        .collect();
    assert_eq!(paths, ["a/x.parquet", "b.jsonl"]);
    assert_eq!(listing.files[1].bytes, Some(3));
    assert_eq!(listing.card["license"], "mit");
    assert_eq!(
        hub.asked()[0].path,
        "/api/datasets/org/name/revision/main?blobs=true"
    );

    let cache = connection::cache(&none(), &options, &repository()).unwrap();
    assert_eq!(remembered(&cache, "main"), None);
    let at_commit = repository().at(COMMIT).unwrap();
    let environment = none();
    let download = Download::new(&at_commit, &options, &environment).unwrap();
    let snapshot = download.run(Files::Named(&["b.jsonl"])).unwrap();
    keep(&cache, "main", &listing).unwrap();
    assert_eq!(remembered(&cache, "main"), Some(listing.clone()));
    assert_eq!(here(&cache, COMMIT, &["b.jsonl"]), Some(snapshot));
    assert_eq!(here(&cache, COMMIT, &["a/x.parquet"]), None);
    assert_eq!(here(&cache, COMMIT, &["../x"]), None);
    let asked = hub.asked().len();
    assert_eq!(list(&repository(), &options, &none()).unwrap(), listing);
    assert_eq!(hub.asked().len(), asked, "the hub is not asked again");
}

#[test]
fn a_list_that_is_none_is_refused() {
    let long = format!(
        "{{\"sha\": \"{COMMIT}\", \"siblings\": [], \"x\": \"{}\"}}",
        "x".repeat(65 << 20)
    );
    for (said, expected) in [
        ("[]".to_owned(), "expected JSON"),
        ("{}".to_owned(), "`sha`"),
        ("nonsense".to_owned(), "expected JSON"),
        (
            json!({"sha": "../../x", "siblings": []}).to_string(),
            "`sha`",
        ),
        (json!({"sha": COMMIT}).to_string(), "`siblings`"),
        (long, "at most"),
    ] {
        let (hub, folder) = (saying(said), tempfile::tempdir().unwrap());
        let error = list(&repository(), &options(&hub, folder.path()), &none()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains(expected) && error.contains("org/name"),
            "{error}"
        );
    }
    let (hub, folder) = (saying(text()), tempfile::tempdir().unwrap());
    let other = repository().at(&"1".repeat(40)).unwrap();
    let error = list(&other, &options(&hub, folder.path()), &none())
        .unwrap_err()
        .to_string();
    assert!(error.contains("asked for commit"), "{error}");
}

#[test]
fn without_the_hub_what_is_here_of_a_snapshot_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let hub = Hub::answering(|_| status("503 Busy"));
    let options = options(&hub, folder.path());
    let environment = Environment::of(Path::new("/nonexistent"), &[("HF_HUB_OFFLINE", "1")]);
    assert!(matches!(
        list(&repository(), &options, &environment),
        Err(Error::Unreachable { .. })
    ));
    let root = folder.path().join("hub/datasets--org--name");
    let snapshot = root.join("snapshots").join(COMMIT);
    fs::create_dir_all(snapshot.join("data")).unwrap();
    fs::create_dir_all(root.join("refs")).unwrap();
    fs::write(root.join("refs/main"), COMMIT).unwrap();
    fs::write(snapshot.join("data/train.jsonl"), "{}").unwrap();
    let listing = list(&repository(), &options, &environment).unwrap();
    assert!(listing.is_partial);
    assert_eq!(listing.files[0].path, "data/train.jsonl");
    let cache = connection::cache(&environment, &options, &repository()).unwrap();
    keep(&cache, "main", &listing).unwrap();
    assert_eq!(
        remembered(&cache, "main"),
        None,
        "what may not be all is not kept as all"
    );
    assert!(hub.asked().is_empty());
}
