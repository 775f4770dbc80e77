//! Files to large-file storage: whole, or in parts where the hub asks for that (<https://github.com/git-lfs/git-lfs>,
//! `docs/api/batch.md`).

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

use serde_json::{Value, json};
use ureq::http::header::ETAG;
use url::Url;

use super::client::{LFS, Sender};
use super::files::Pushed;
use crate::error::Error;
use crate::hub::address;
use crate::hub::announced::text;
use crate::hub::failure::{Failure, Outcome};
use crate::hub::progress::Bar;
use crate::hub::repository::Repository;

/// Parts of one file, more than any store takes.
const MOST_PARTS: u64 = 100_000;

/// What was sent.
#[derive(Default)]
pub(super) struct Sent {
    pub(super) bytes: u64,
    pub(super) already_there: usize,
}

/// Sends the files that are not there yet.
pub(super) fn send(
    sender: &Sender<'_>,
    repository: &Repository,
    files: &[&Pushed],
) -> Outcome<Sent> {
    let mut sent = Sent::default();
    if files.is_empty() {
        return Ok(sent);
    }
    let objects: Vec<Value> = files
        .iter()
        .map(|file| json!({"oid": file.sha256, "size": file.bytes}))
        .collect();
    let wanted = json!({
        "operation": "upload",
        "transfers": ["basic", "multipart"],
        "hash_algo": "sha256",
        "ref": {"name": repository.revision()},
        "objects": objects,
    });
    let git = format!("{}.git", repository.id());
    let parts = git.split('/').chain(["info", "lfs", "objects", "batch"]);
    let url = sender.client.endpoint().at(parts);
    let answer = sender.post_as(&url, LFS, &wanted)?.value;
    for file in files {
        let found = answer["objects"].as_array().into_iter().flatten();
        let mut found = found.filter(|object| object["oid"] == file.sha256.as_str());
        let object = found.next().ok_or_else(|| {
            Failure::Lasting(format!(
                "the hub's answer says nothing about `{}`",
                file.name
            ))
        })?;
        if let Some(message) = object["error"]["message"].as_str() {
            return Err(Failure::Lasting(format!("`{}`: {message}", file.name)));
        }
        if object["actions"]["upload"].is_null() {
            sent.already_there += 1;
            continue;
        }
        Transfer {
            sender,
            file,
            base: &url,
        }
        .run(&object["actions"])?;
        sent.bytes += file.bytes;
    }
    Ok(sent)
}

struct Transfer<'a> {
    sender: &'a Sender<'a>,
    file: &'a Pushed,
    /// The hub's own address, which what it names must not be less safe than.
    base: &'a Url,
}

impl Transfer<'_> {
    fn run(&self, actions: &Value) -> Outcome<()> {
        let upload = &actions["upload"];
        let href = self.address(&upload["href"])?;
        match &upload["header"]["chunk_size"] {
            Value::Null => self.whole(&href)?,
            size => self.parts(&href, &upload["header"], size)?,
        }
        if actions["verify"].is_null() {
            return Ok(());
        }
        let verify = self.address(&actions["verify"]["href"])?;
        let Pushed { sha256, bytes, .. } = self.file;
        let stored = json!({"oid": sha256, "size": bytes});
        self.sender.post_as(&verify, LFS, &stored).map(drop)
    }

    fn address(&self, href: &Value) -> Outcome<Url> {
        let href = href.as_str().unwrap_or_default();
        let address = address::redirected(self.base, href);
        address.map_err(|reason| {
            Failure::Lasting(format!("uploading `{}`: the hub {reason}", self.file.name))
        })
    }

    fn whole(&self, href: &Url) -> Outcome<()> {
        self.sender
            .again(|| self.slice(href, 0, self.file.bytes))
            .map(drop)
    }

    /// Sends the file in parts of a size, each to an address of its own, and says that all are there.
    fn parts(&self, href: &Url, header: &Value, size: &Value) -> Outcome<()> {
        let size = size.as_u64().or_else(|| size.as_str()?.parse().ok());
        let size = size.filter(|size| *size > 0);
        let size =
            size.ok_or_else(|| self.refused("the hub's `chunk_size` is no number of bytes"))?;
        let count = self.file.bytes.div_ceil(size);
        if count > MOST_PARTS {
            return Err(self.refused("the hub's `chunk_size` makes too many parts"));
        }
        let mut stored = Vec::new();
        for part in 1..=count {
            // Some hubs fill the numbers with zeros.
            let named = header.as_object().into_iter().flatten();
            let mut named = named.filter(|(key, _)| key.parse() == Ok(part));
            let (_, address) = named.next().ok_or_else(|| {
                self.refused(&format!("the hub gives no address for part {part}"))
            })?;
            let address = self.address(address)?;
            let first = (part - 1) * size;
            let length = size.min(self.file.bytes - first);
            let tag = self.sender.again(|| self.slice(&address, first, length))?;
            let tag = tag.ok_or_else(|| {
                self.refused(&format!("the store's answer to part {part} has no `ETag`"))
            })?;
            stored.push(json!({"partNumber": part, "etag": tag}));
        }
        let all = json!({"oid": self.file.sha256, "parts": stored});
        self.sender.post_as(href, LFS, &all).map(drop)
    }

    fn refused(&self, reason: &str) -> Failure {
        Failure::Lasting(format!("`{}`: {reason}", self.file.name))
    }

    /// Sends a part of the file; gives the tag that the store has for it.
    fn slice(&self, to: &Url, first: u64, length: u64) -> Outcome<Option<String>> {
        let path = &self.file.path;
        let mut file = File::open(path).map_err(Error::io("open", path))?;
        file.seek(SeekFrom::Start(first))
            .map_err(Error::io("read", path))?;
        let mut slice = Watched {
            inner: file.take(length),
            bar: Bar::new(&self.file.name, self.file.bytes, first),
            stop: self.sender.stop,
        };
        let answer = self.sender.put(to, &mut slice, length)?;
        Ok(text(&answer.headers, ETAG.as_str()).map(str::to_string))
    }
}

/// A part of a file, as it is sent.
struct Watched {
    inner: std::io::Take<File>,
    bar: Bar,
    stop: Option<fn() -> bool>,
}

impl Read for Watched {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if self.stop.is_some_and(|stop| stop()) {
            return Err(std::io::Error::other("the program is to stop"));
        }
        let count = self.inner.read(buffer)?;
        self.bar.advance(count as u64);
        Ok(count)
    }
}
