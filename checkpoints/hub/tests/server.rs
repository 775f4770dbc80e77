//! A hub on the loopback interface that says what a test has it say, and remembers what it was asked.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

pub(super) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What a request asked for. Names of headers are in lower case.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    pub(super) method: String,
    pub(super) path: String,
    pub(super) headers: HashMap<String, String>,
}

impl Asked {
    pub(super) fn is_head(&self) -> bool {
        self.method == "HEAD"
    }

    pub(super) fn file(&self) -> &str {
        let path = self.path.split('?').next().unwrap();
        path.rsplit('/').next().unwrap()
    }

    /// The first byte that is asked for.
    pub(super) fn first(&self) -> usize {
        let range = self.headers.get("range").map(|range| {
            let range = range.strip_prefix("bytes=").unwrap();
            range.split_once('-').unwrap().0.parse().unwrap()
        });
        range.unwrap_or(0)
    }
}

pub(super) struct Hub {
    pub(super) endpoint: String,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Hub {
    /// Whose connections `serve` writes to.
    pub(super) fn serving(
        serve: impl Fn(&Asked, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
    ) -> Hub {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let (log, serve) = (asked.clone(), Arc::new(serve));
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let (log, serve) = (log.clone(), serve.clone());
                thread::spawn(move || {
                    let Some(asked) = read(&stream) else { return };
                    log.lock().unwrap().push(asked.clone());
                    // The client may hang up early; it is the client that is tested.
                    let _ = serve(&asked, &mut stream);
                });
            }
        });
        Hub { endpoint, asked }
    }

    /// That gives `answer` and ends the connection.
    pub(super) fn answering(answer: impl Fn(&Asked) -> Vec<u8> + Send + Sync + 'static) -> Hub {
        Hub::serving(move |asked, stream| stream.write_all(&answer(asked)))
    }

    /// That has these files, whatever the repository.
    pub(super) fn with_files(files: Vec<(&'static str, Vec<u8>)>) -> Hub {
        Hub::with_files_but(files, |_, _| None)
    }

    /// That has these files, unless `other` has another answer for what is asked and the file's contents.
    pub(super) fn with_files_but(
        files: Vec<(&'static str, Vec<u8>)>,
        other: impl Fn(&Asked, &[u8]) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Hub {
        Hub::answering(move |asked| {
            let file = files.iter().find(|(name, _)| *name == asked.file());
            match file {
                Some((_, bytes)) => {
                    other(asked, bytes).unwrap_or_else(|| file_answer(asked, bytes))
                }
                None => status("404 Not Found\r\nx-error-code: EntryNotFound"),
            }
        })
    }

    pub(super) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// Requests for the contents of a file.
    pub(super) fn gets(&self, file: &str) -> Vec<Asked> {
        let asked = self.asked().into_iter();
        asked
            .filter(|asked| !asked.is_head() && asked.file() == file)
            .collect()
    }
}

fn read(stream: &TcpStream) -> Option<Asked> {
    let mut lines = BufReader::new(stream)
        .lines()
        .map_while(std::io::Result::ok);
    let start = lines.next()?;
    let mut words = start.split(' ');
    let (method, path) = (words.next()?.to_string(), words.next()?.to_string());
    let headers = lines
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_lowercase(), value.to_string()))
        })
        .collect();
    Some(Asked {
        method,
        path,
        headers,
    })
}

/// Waits until the other side is gone.
pub(super) fn hold(stream: &mut TcpStream) {
    let _ = stream.read_to_end(&mut Vec::new());
}

/// An answer of a status alone, with headers after a line break.
pub(super) fn status(line: &str) -> Vec<u8> {
    format!("HTTP/1.1 {line}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n").into_bytes()
}

/// An answer of these headers, and the body if it is asked for.
pub(super) fn answer(asked: &Asked, line: &str, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {line}\r\nconnection: close\r\n");
    for (name, value) in headers {
        write!(head, "{name}: {value}\r\n").unwrap();
    }
    head.push_str("\r\n");
    let body = if asked.is_head() { &[] } else { body };
    [head.as_bytes(), body].concat()
}

/// A body in chunks.
pub(super) fn chunked(body: &[u8]) -> Vec<u8> {
    let length = format!("{:x}\r\n", body.len());
    [length.as_bytes(), body, b"\r\n0\r\n\r\n"].concat()
}

pub(super) fn sha256_tag(bytes: &[u8]) -> String {
    format!("\"{}\"", crate::hash::sha256_bytes(bytes))
}

/// A file, or the rest of it that a range asks for, as the hub sends it.
pub(super) fn file_answer(asked: &Asked, bytes: &[u8]) -> Vec<u8> {
    tagged_answer(asked, bytes, &sha256_tag(bytes))
}

pub(super) fn tagged_answer(asked: &Asked, bytes: &[u8], tag: &str) -> Vec<u8> {
    let part = &bytes[asked.first()..];
    let (first, last, total) = (asked.first(), bytes.len().saturating_sub(1), bytes.len());
    let range = format!("bytes {first}-{last}/{total}");
    let length = part.len().to_string();
    let mut headers = vec![
        ("x-repo-commit", COMMIT),
        ("etag", tag),
        ("content-length", &length),
    ];
    if asked.headers.contains_key("range") {
        headers.push(("content-range", &range));
        return answer(asked, "206 Partial Content", &headers, part);
    }
    answer(asked, "200 OK", &headers, part)
}
