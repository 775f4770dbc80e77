//! Downloads that break off, wait for one another, and go on.

use std::fs::File;
use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use super::server::{Asked, COMMIT, answer, file_answer, hold, sha256_tag, status};
use super::*;

/// Weights of some length.
fn large() -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w");
    let values: Vec<_> = (0..100_000).map(|i| i as f32).collect();
    let tensor = NamedTensor::from_f32("w", [values.len()], values);
    write_safetensors(&path, &[tensor], &BTreeMap::new()).unwrap();
    fs::read(path).unwrap()
}

fn files() -> Vec<(&'static str, Vec<u8>)> {
    vec![
        ("config.json", b"{}".to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", large()),
    ]
}

fn assert_whole(folder: &Path) {
    assert!(fs::read(folder.join("model.safetensors")).unwrap() == large());
}

/// What an interrupted download left of the weights.
fn incomplete(cache: &Path) -> PathBuf {
    let name = format!("{}.incomplete", crate::hash::sha256_bytes(&large()));
    cache.join("hub/models--org--name/blobs").join(name)
}

fn leave(cache: &Path, bytes: &[u8]) {
    let path = incomplete(cache);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

/// A hub whose answers to requests for the weights' contents are those of `weights`.
fn with_weights(
    weights: impl Fn(&Asked, &[u8], &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> Hub {
    let files = files();
    Hub::serving(
        move |asked, stream| match files.iter().find(|(name, _)| *name == asked.file()) {
            Some((name, bytes)) if *name == "model.safetensors" && !asked.is_head() => {
                weights(asked, bytes, stream)
            }
            Some((_, bytes)) => stream.write_all(&file_answer(asked, bytes)),
            None => stream.write_all(&status("404 Not Found")),
        },
    )
}

#[test]
fn a_download_that_breaks_off_is_taken_up_where_it_broke() {
    let hub = with_weights(|asked, bytes, stream| {
        let answer = file_answer(asked, bytes);
        // Each answer breaks off behind another fifth of the file: more often than attempts in a row may fail.
        let fifth = bytes.len() / 5;
        let head = answer.len() - (bytes.len() - asked.first());
        stream.write_all(&answer[..answer.len().min(head + fifth)])
    });
    let cache = tempfile::tempdir().unwrap();
    assert_whole(&fetch(&hub, cache.path()).unwrap());
    let firsts: Vec<_> = hub
        .gets("model.safetensors")
        .iter()
        .map(Asked::first)
        .collect();
    let fifth = large().len() / 5;
    assert!(firsts.len() >= 5 && firsts[0] == 0, "{firsts:?}");
    assert_eq!(firsts[1..5], [fifth, 2 * fifth, 3 * fifth, 4 * fifth]);
}

#[test]
fn what_an_earlier_download_left_is_not_sent_again() {
    let hub = Hub::with_files(files());
    let cache = tempfile::tempdir().unwrap();
    leave(cache.path(), &large()[..1000]);
    assert_whole(&fetch(&hub, cache.path()).unwrap());
    let gets = hub.gets("model.safetensors");
    assert_eq!(gets.iter().map(Asked::first).collect::<Vec<_>>(), [1000]);
    assert!(!incomplete(cache.path()).exists());
}

#[test]
fn a_download_that_was_killed_before_its_last_step_needs_that_alone() {
    let hub = Hub::with_files(files());
    let cache = tempfile::tempdir().unwrap();
    leave(cache.path(), &large());
    assert_whole(&fetch(&hub, cache.path()).unwrap());
    assert!(hub.gets("model.safetensors").is_empty());
}

#[test]
fn a_part_that_is_not_of_the_file_is_thrown_away() {
    let long = [large(), vec![0; 9]].concat();
    for part in [vec![7; 1000], vec![7; large().len()], long] {
        let hub = Hub::with_files(files());
        let cache = tempfile::tempdir().unwrap();
        leave(cache.path(), &part);
        assert_whole(&fetch(&hub, cache.path()).unwrap());
        assert_eq!(hub.gets("model.safetensors").last().unwrap().first(), 0);
    }
}

#[test]
fn a_server_that_breaks_off_and_sends_other_bytes_gets_two_tries() {
    let half = large().len() / 2;
    let hub = with_weights(move |asked, bytes, stream| {
        let answer = file_answer(asked, &vec![7; bytes.len()]);
        let rest = bytes.len() - half.max(asked.first());
        // The second half comes only by itself.
        let end = answer.len() - if asked.first() == 0 { rest } else { 0 };
        stream.write_all(&answer[..end])
    });
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    assert!(text.contains("digest"), "{text}");
    let gets = hub.gets("model.safetensors");
    let firsts: Vec<_> = gets.iter().map(Asked::first).collect();
    assert_eq!(firsts, [0, half, 0, half]);
}

#[test]
fn a_server_that_ignores_ranges_sends_the_file_from_its_start() {
    let hub = with_weights(|asked, bytes, stream| {
        let mut whole = asked.clone();
        whole.headers.remove("range");
        stream.write_all(&file_answer(&whole, bytes))
    });
    let cache = tempfile::tempdir().unwrap();
    leave(cache.path(), &large()[..1000]);
    assert_whole(&fetch(&hub, cache.path()).unwrap());
    assert_eq!(hub.gets("model.safetensors").len(), 1);
}

#[test]
fn a_part_of_other_bytes_than_asked_for_is_not_joined() {
    let total = large().len();
    for range in [
        format!("bytes 0-{}/{total}", total - 1),
        format!("bytes 999-{}/{total}", total - 1),
        format!("bytes 1000-{}/{total}", total - 2),
        format!("bytes 1000-{total}/{total}"),
    ] {
        let hub = with_weights(move |asked, bytes, stream| {
            if asked.first() == 0 {
                return stream.write_all(&file_answer(asked, bytes));
            }
            let headers = [("content-range", range.as_str())];
            stream.write_all(&answer(
                asked,
                "206 Partial Content",
                &headers,
                &bytes[1000..],
            ))
        });
        let cache = tempfile::tempdir().unwrap();
        leave(cache.path(), &large()[..1000]);
        assert_whole(&fetch(&hub, cache.path()).unwrap());
        let gets = hub.gets("model.safetensors");
        assert_eq!(gets.iter().map(Asked::first).collect::<Vec<_>>(), [1000, 0]);
    }
}

#[test]
fn a_server_that_has_nothing_behind_the_part_is_asked_from_the_start() {
    let hub = with_weights(|asked, bytes, stream| {
        if asked.first() > 0 {
            return stream.write_all(&status("416 Range Not Satisfiable"));
        }
        stream.write_all(&file_answer(asked, bytes))
    });
    let cache = tempfile::tempdir().unwrap();
    leave(cache.path(), &large()[..1000]);
    assert_whole(&fetch(&hub, cache.path()).unwrap());
}

#[test]
fn a_download_that_is_stopped_leaves_what_it_has_and_goes_on_from_there() {
    static STOP: AtomicBool = AtomicBool::new(false);
    let cache = tempfile::tempdir().unwrap();
    let half = large().len() / 2;
    let here = incomplete(cache.path());
    let hub = with_weights(move |asked, bytes, stream| {
        let answer = file_answer(asked, bytes);
        if asked.first() > 0 {
            return stream.write_all(&answer);
        }
        let head = answer.len() - bytes.len();
        stream.write_all(&answer[..head + half])?;
        while fs::metadata(&here).map_or(0, |here| here.len()) == 0 {
            thread::sleep(Duration::from_millis(1));
        }
        STOP.store(true, Ordering::SeqCst);
        // Whoever reads this byte finds that it is to stop.
        stream.write_all(&answer[head + half..=head + half])?;
        hold(stream);
        Ok(())
    });
    let options = HubOptions {
        stop: Some(|| STOP.load(Ordering::SeqCst)),
        ..options(&hub, cache.path())
    };
    let error = fetch_with(None, &options).unwrap_err();
    let text = error.to_string();
    assert!(matches!(error, Error::Interrupted { .. }), "{text}");
    assert!(text.contains("`model.safetensors`"), "{text}");
    let kept = fs::read(incomplete(cache.path())).unwrap();
    assert!(large().starts_with(&kept) && !kept.is_empty());
    STOP.store(false, Ordering::SeqCst);
    assert_whole(&fetch_with(None, &options).unwrap());
    assert_eq!(hub.gets("model.safetensors")[1].first(), kept.len());
}

#[test]
fn two_downloads_at_once_ask_for_contents_once() {
    let heads = Arc::new((Mutex::new(0), Condvar::new()));
    let seen = heads.clone();
    let files = files();
    let hub = Hub::serving(move |asked, stream| {
        let Some((name, bytes)) = files.iter().find(|(name, _)| *name == asked.file()) else {
            return stream.write_all(&status("404 Not Found"));
        };
        if *name == "model.safetensors" {
            let (count, changed) = &*seen;
            let mut count = count.lock().unwrap();
            if asked.is_head() {
                *count += 1;
                changed.notify_all();
            }
            // No contents before both have asked about them.
            while !asked.is_head() && *count < 2 {
                count = changed.wait(count).unwrap();
            }
        }
        stream.write_all(&file_answer(asked, bytes))
    });
    let cache = tempfile::tempdir().unwrap();
    let folders: Vec<_> = thread::scope(|scope| {
        let start = || scope.spawn(|| fetch(&hub, cache.path()).unwrap());
        let both = [start(), start()];
        both.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(folders[0], folders[1]);
    assert_whole(&folders[0]);
    assert_eq!(hub.gets("model.safetensors").len(), 1);
}

/// Locks the weights as another process would that downloads them.
fn hold_lock(cache: &Path) -> File {
    let locks = cache.join("hub/.locks/models--org--name");
    fs::create_dir_all(&locks).unwrap();
    let name = format!("{}.lock", crate::hash::sha256_bytes(&large()));
    let file = File::create(locks.join(name)).unwrap();
    file.lock().unwrap();
    file
}

#[test]
fn a_download_waits_for_another_process_says_so_and_takes_up_what_it_left_when_it_dies() {
    const FILE: &str = "waited-for.bin";
    let log = log::capture();
    let hub = Hub::with_files(vec![(FILE, large())]);
    let cache = tempfile::tempdir().unwrap();
    leave(cache.path(), &large()[..1000]);
    let lock = hold_lock(cache.path());
    let folder = thread::scope(|scope| {
        let waiting =
            scope.spawn(|| fetch_files(Files::Named(&[FILE]), &options(&hub, cache.path())));
        let says = format!("waiting for another process that downloads `{FILE}`");
        while !log.text().contains(&says) {
            assert!(!waiting.is_finished(), "it ended without waiting");
            thread::sleep(Duration::from_millis(1));
        }
        assert!(hub.gets(FILE).is_empty());
        // The system does this for a process that dies.
        drop(lock);
        waiting.join().unwrap().unwrap()
    });
    assert!(fs::read(folder.join(FILE)).unwrap() == large());
    assert_eq!(hub.gets(FILE)[0].first(), 1000);
}

#[test]
fn another_process_that_stands_still_is_named_by_its_lock() {
    let hub = Hub::with_files(files());
    let cache = tempfile::tempdir().unwrap();
    let _lock = hold_lock(cache.path());
    let options = options(&hub, cache.path());
    let limits = HubLimits {
        stall: Duration::ZERO,
        ..options.limits.clone()
    };
    let error = fetch_with(None, &HubOptions { limits, ..options }).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains(".lock`") && text.contains("another process"),
        "{text}"
    );
}

#[test]
fn a_connection_that_is_lost_for_good_keeps_what_came() {
    let hub = with_weights(|asked, bytes, stream| {
        if asked.first() > 0 {
            return Ok(());
        }
        let answer = file_answer(asked, bytes);
        stream.write_all(&answer[..answer.len() - bytes.len() / 2])
    });
    let cache = tempfile::tempdir().unwrap();
    let text = error(&hub, cache.path());
    assert!(text.contains("`model.safetensors`"), "{text}");
    let kept = fs::read(incomplete(cache.path())).unwrap();
    assert!(large().starts_with(&kept) && !kept.is_empty());
    let snapshot = names(cache.path(), &format!("snapshots/{COMMIT}"));
    assert_eq!(snapshot, ["config.json", "tokenizer.json"]);
    assert!(sha256_tag(&kept) != sha256_tag(&large()));
}
