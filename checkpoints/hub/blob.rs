//! The contents of one file: from where an earlier download left off to bytes that are what the hub announced.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use sha1::{Digest as _, Sha1};
use ureq::http::Response;
use ureq::{Body, BodyReader};
use url::Url;

use super::announced::{Announced, Digest, Part, length, shown, text};
use super::client::Client;
use super::failure::{Failure, Outcome, Patience, http};
use super::progress::Bar;
use crate::error::Error;
use crate::hash::{hex, sha256_file};

const CHUNK: usize = 256 << 10;

/// Contents to download, while no other process does.
pub(super) struct Transfer<'a> {
    pub(super) client: &'a Client,
    /// Where the file is.
    pub(super) url: &'a Url,
    /// Its name in the repository.
    pub(super) file: &'a str,
    /// What the hub says of it.
    pub(super) announced: &'a Announced,
    /// What is here of it, and what an interrupted download leaves.
    pub(super) incomplete: PathBuf,
    /// Where the contents are to be.
    pub(super) blob: PathBuf,
}

impl Transfer<'_> {
    /// Brings the contents to where they are to be, in as many attempts as `patience` has.
    pub(super) fn run(&self, patience: &mut Patience<'_>) -> Outcome<()> {
        let mut most = self.here()?;
        let mut was_thrown_away = false;
        loop {
            let failure = match self.attempt(patience) {
                Ok(()) => return Ok(()),
                Err(Failure::ThrownAway(reason)) if !was_thrown_away => {
                    was_thrown_away = true;
                    most = 0;
                    Failure::passing(reason)
                }
                Err(failure) => after_head(failure),
            };
            let here = self.here()?;
            if here > most {
                most = here;
                patience.progressed();
            }
            patience.after(failure)?;
        }
    }

    /// Bytes that are here.
    fn here(&self) -> Result<u64, Error> {
        if !self.incomplete.exists() {
            return Ok(0);
        }
        let metadata = fs::metadata(&self.incomplete);
        Ok(metadata.map_err(Error::io("read", &self.incomplete))?.len())
    }

    fn attempt(&self, patience: &mut Patience<'_>) -> Outcome<()> {
        let here = self.here()?;
        match self.announced.size {
            Some(size) if here > size => {
                return Err(
                    self.throw_away("the part that is here already is longer than the file")
                );
            }
            Some(size) if here == size && here > 0 => return self.finish(here, Origin::Resumed),
            _ => {}
        }
        let response = self.client.get(self.url, here)?;
        if let Some(encoding) = text(response.headers(), "content-encoding")
            && encoding != "identity"
        {
            let encoding = shown(encoding);
            let reason = format!("expected the file without an encoding, found `{encoding}`");
            return Err(Failure::Lasting(reason));
        }
        let (first, total) = match response.status().as_u16() {
            206 => (here, self.rest(&response, here)?),
            // The whole file, also where a part of it was asked for.
            200 => (0, self.whole(&response)?),
            _ => {
                return Err(
                    self.throw_away("the hub has no bytes after those that are here already")
                );
            }
        };
        self.check_length(total)?;
        patience.expect(total);
        let copy = Copy {
            transfer: self,
            first,
            total,
        };
        copy.run(response, patience)?;
        let origin = if first == 0 {
            Origin::Fresh
        } else {
            Origin::Resumed
        };
        self.finish(total, origin)
    }

    /// The length of the file, of which an answer has what is behind `here`.
    fn rest(&self, response: &Response<Body>, here: u64) -> Outcome<u64> {
        let part = Part::of(response.headers())?;
        if part.first != here || part.last.checked_add(1) != Some(part.total) {
            let Part { first, last, total } = part;
            return Err(self.throw_away(&format!(
                "asked for the bytes from {here} on, the hub sends bytes {first} to {last} of {total}"
            )));
        }
        let sent = length(response.headers(), "content-length")?;
        if sent.is_some_and(|sent| sent != part.total - here) {
            return Err(
                self.throw_away("`Content-Range` and `Content-Length` state different lengths")
            );
        }
        Ok(part.total)
    }

    /// The length of the file, which an answer has whole.
    fn whole(&self, response: &Response<Body>) -> Outcome<u64> {
        let sent = length(response.headers(), "content-length")?;
        let known = sent.or(self.announced.size);
        known.ok_or_else(|| {
            Failure::Lasting("the hub does not say how long the file is".to_string())
        })
    }

    fn check_length(&self, total: u64) -> Outcome<()> {
        if let Some(size) = self.announced.size
            && size != total
        {
            let reason = format!("expected {size} bytes, as announced, found {total}");
            return Err(Failure::Lasting(reason));
        }
        let most = self.client.limits().largest_of(self.file);
        if total > most {
            let reason = format!("expected a file of at most {most} bytes, found {total}");
            return Err(Failure::Lasting(reason));
        }
        Ok(())
    }

    /// Gives contents that are whole their place, if they are what the hub announced.
    fn finish(&self, total: u64, origin: Origin) -> Outcome<()> {
        if let Some(found) = self.other_digest(total)? {
            let reason = format!("its digest is not the one that the hub announces: {found}");
            return Err(match origin {
                // What is wrong may be the part that an earlier download left.
                Origin::Resumed => self.throw_away(&reason),
                Origin::Fresh => {
                    self.discard()?;
                    Failure::Lasting(reason)
                }
            });
        }
        let renamed = fs::rename(&self.incomplete, &self.blob);
        renamed.map_err(Error::io("write", &self.blob))?;
        Ok(())
    }

    /// Expected and found digests that differ.
    fn other_digest(&self, total: u64) -> Result<Option<String>, Error> {
        let (expected, found) = match &self.announced.digest {
            None => return Ok(None),
            Some(Digest::Sha256(expected)) => (expected, vec![sha256_file(&self.incomplete)?]),
            Some(Digest::Sha1(expected)) => (expected, sha1_of(&self.incomplete, total)?),
        };
        if found.contains(expected) {
            return Ok(None);
        }
        let found = found.join("` or `");
        Ok(Some(format!("expected `{expected}`, found `{found}`")))
    }

    /// Removes what is here, for one more attempt from the start.
    fn throw_away(&self, reason: &str) -> Failure {
        match self.discard() {
            Ok(()) => Failure::ThrownAway(reason.to_string()),
            Err(error) => error.into(),
        }
    }

    fn discard(&self) -> Result<(), Error> {
        fs::remove_file(&self.incomplete).map_err(Error::io("remove", &self.incomplete))
    }
}

/// A failure to get what the hub a moment ago said it has: that is not missing, and its store refuses nobody for good.
fn after_head(failure: Failure) -> Failure {
    match failure {
        Failure::Unreachable(reason) | Failure::Broken(reason) => Failure::passing(reason),
        Failure::Refused { status, said } => {
            let status = http(status, said.as_deref());
            Failure::passing(format!("{status}, asked for its contents"))
        }
        Failure::Missing(_) => Failure::passing("http 404 for its contents"),
        failure => failure,
    }
}

/// Where contents that are whole come from.
#[derive(Clone, Copy)]
enum Origin {
    /// From one answer of the hub.
    Fresh,
    /// In part from an earlier download.
    Resumed,
}

/// The body of one answer on its way to the disk.
struct Copy<'a> {
    transfer: &'a Transfer<'a>,
    first: u64,
    total: u64,
}

impl Copy<'_> {
    fn run(&self, mut response: Response<Body>, patience: &Patience<'_>) -> Outcome<()> {
        let path = &self.transfer.incomplete;
        let mut file = File::options()
            .create(true)
            .write(true)
            .truncate(self.first == 0)
            .append(self.first > 0)
            .open(path)
            .map_err(Error::io("write", path))?;
        let mut body = response.body_mut().as_reader();
        let copied = self.copy(&mut body, &mut file, patience);
        file.sync_all().map_err(Error::io("write", path))?;
        copied?;
        // What else comes, or why nothing does, changes nothing about bytes that are all here.
        if matches!(body.read(&mut [0]), Ok(1..)) {
            self.transfer.discard()?;
            let total = self.total;
            let reason = format!("expected {total} bytes, as announced, found more");
            return Err(Failure::Lasting(reason));
        }
        Ok(())
    }

    fn copy(
        &self,
        body: &mut BodyReader<'_>,
        file: &mut File,
        patience: &Patience<'_>,
    ) -> Outcome<()> {
        let Copy { first, total, .. } = *self;
        let bar = Bar::new(self.transfer.file, total, first);
        let mut chunk = vec![0; CHUNK];
        let mut here = first;
        while here < total {
            patience.check()?;
            let room = usize::try_from(total - here).map_or(CHUNK, |left| left.min(CHUNK));
            let read = body.read(&mut chunk[..room]);
            let count = read.map_err(|error| {
                Failure::passing(format!(
                    "the connection broke at byte {here} of {total}: {error}"
                ))
            })?;
            if count == 0 {
                let reason = format!("the answer ended at byte {here} of {total}");
                return Err(Failure::passing(reason));
            }
            let written = file.write_all(&chunk[..count]);
            written.map_err(Error::io("write", &self.transfer.incomplete))?;
            here += count as u64;
            bar.advance(count as u64);
        }
        Ok(())
    }
}

/// SHA-1 of git's blob with these contents, and of the contents.
fn sha1_of(path: &Path, total: u64) -> Result<Vec<String>, Error> {
    let mut file = File::open(path).map_err(Error::io("open", path))?;
    let mut blob = Sha1::new_with_prefix(format!("blob {total}\0"));
    let mut contents = Sha1::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match file.read(&mut chunk).map_err(Error::io("read", path))? {
            0 => break,
            count => {
                blob.update(&chunk[..count]);
                contents.update(&chunk[..count]);
            }
        }
    }
    Ok(vec![hex(&blob.finalize()), hex(&contents.finalize())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gits_name_of_a_blob_is_the_one_that_git_gives() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        fs::write(&path, "test content\n").unwrap();
        // `echo 'test content' | git hash-object --stdin`, and `| sha1sum`.
        let digests = sha1_of(&path, 13).unwrap();
        assert_eq!(
            digests,
            [
                "d670460b4b4aece5915caf5c68d12f560a9fe3e4",
                "4fe2b8dd12cd9cd6a413ea960cd8c09c25f19527"
            ]
        );
    }
}
