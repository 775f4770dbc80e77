//! A prefix of an object store.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as Key;
use object_store::{MultipartUpload as _, ObjectStore, ObjectStoreExt as _, PutPayload};
use spectrain_checkpoints::atomic::partial_path;
use tokio::runtime::Runtime;

use super::connector::Connector;
use crate::errors::Misuse;
use crate::runtime::interruption::check_interrupted;

/// As many bytes are sent or fetched at a time.
const CHUNK: usize = 32 << 20;
/// Bytes of a file that is read into memory, at most.
const SMALL: u64 = 64 << 20;

/// A prefix of an object store.
pub struct Remote {
    store: Arc<dyn ObjectStore>,
    prefix: Key,
    name: String,
    runtime: Runtime,
    /// Bytes that are sent or fetched at a time.
    chunk: usize,
}

impl Remote {
    /// Opens an address that begins with `s3://`, `gs://` or `az://`.
    pub(super) fn open(given: &str) -> Result<Self> {
        let foreign = || {
            Misuse(format!(
                "expected a folder, or an address such as `file:///DIR`, `s3://BUCKET/PREFIX`, `gs://BUCKET/PREFIX` or \
                 `az://CONTAINER/PREFIX`, found `{given}`"
            ))
        };
        let cannot = || format!("cannot open `{given}`");
        let (scheme, rest) = given.split_once("://").ok_or_else(foreign)?;
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err(foreign().into());
        }
        let store = store(scheme, bucket).with_context(cannot)?;
        Ok(Self {
            store: store.ok_or_else(foreign)?,
            prefix: Key::parse(prefix.trim_end_matches('/')).with_context(cannot)?,
            name: given.trim_end_matches('/').to_owned(),
            runtime: runtime().with_context(cannot)?,
            chunk: CHUNK,
        })
    }

    /// Its address.
    pub fn name(&self) -> &str {
        &self.name
    }

    fn key(&self, name: &str) -> Key {
        name.split('/').fold(self.prefix.clone(), Key::join)
    }

    /// What stands before the next `/`.
    pub(super) fn names(&self) -> Result<Vec<String>> {
        let listed = self
            .runtime
            .block_on(self.store.list_with_delimiter(Some(&self.prefix)));
        let listed = listed.with_context(|| format!("cannot list `{}`", self.name))?;
        let files = listed.objects.iter().map(|object| &object.location);
        // Consoles make an empty object of a folder's own name.
        let files = files.filter(|key| **key != self.prefix);
        let names = files
            .chain(&listed.common_prefixes)
            .filter_map(|key| key.filename().map(str::to_owned));
        let mut names: Vec<String> = names.collect();
        names.sort();
        Ok(names)
    }

    /// The contents of a small file.
    pub(super) fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let Some(length) = self.length(name)? else {
            return Ok(None);
        };
        let key = self.key(name);
        let cannot = || format!("cannot read `{}/{name}`", self.name);
        if length > SMALL {
            return Err(anyhow!("expected at most {SMALL} bytes, found {length}"))
                .with_context(cannot);
        }
        if length == 0 {
            return Ok(Some(Vec::new()));
        }
        let found = self.runtime.block_on(self.store.get_range(&key, 0..length));
        Ok(Some(found.with_context(cannot)?.to_vec()))
    }

    /// The length of a file; nothing where it is not there.
    ///
    /// # Errors
    /// The store does not say.
    pub fn length(&self, name: &str) -> Result<Option<u64>> {
        match self.runtime.block_on(self.store.head(&self.key(name))) {
            Ok(found) => Ok(Some(found.size)),
            Err(object_store::Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read `{}/{name}`", self.name)),
        }
    }

    /// Sends a file.
    ///
    /// # Errors
    /// It cannot be read, or not be sent.
    pub fn send(&self, from: &Path, name: &str) -> Result<()> {
        let key = self.key(name);
        let sent = || format!("cannot send `{}` to `{}/{name}`", from.display(), self.name);
        let mut file = File::open(from).with_context(sent)?;
        let length = file.metadata().with_context(sent)?.len();
        if length <= self.chunk as u64 {
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).with_context(sent)?;
            let put = self.store.put(&key, PutPayload::from(bytes));
            return self.runtime.block_on(put).map(drop).with_context(sent);
        }
        let mut upload = self
            .runtime
            .block_on(self.store.put_multipart(&key))
            .with_context(sent)?;
        let mut parts = || -> Result<()> {
            loop {
                check_interrupted()?;
                let mut bytes = Vec::new();
                (&mut file)
                    .take(self.chunk as u64)
                    .read_to_end(&mut bytes)?;
                if bytes.is_empty() {
                    return Ok(());
                }
                let part = upload.put_part(PutPayload::from(bytes));
                self.runtime.block_on(part)?;
            }
        };
        if let Err(error) = parts() {
            // The first error is the one to report.
            let _ = self.runtime.block_on(upload.abort());
            return Err(error).with_context(sent);
        }
        let completed = self.runtime.block_on(upload.complete());
        completed.map(drop).with_context(sent)
    }

    /// Fetches a file of so many bytes.
    ///
    /// # Errors
    /// It cannot be fetched, or not be written, or has another length.
    pub fn fetch(&self, name: &str, to: &Path, length: u64) -> Result<()> {
        let key = self.key(name);
        let fetched = || format!("cannot fetch `{}/{name}` to `{}`", self.name, to.display());
        let found = self
            .runtime
            .block_on(self.store.head(&key))
            .with_context(fetched)?;
        if found.size != length {
            bail!(
                "`{}/{name}`: expected {length} bytes, found {}",
                self.name,
                found.size
            );
        }
        let partial = partial_path(to);
        let mut file = File::create(&partial).with_context(fetched)?;
        let mut at = 0;
        while at < length {
            check_interrupted()?;
            let end = length.min(at + self.chunk as u64);
            let chunk = self.runtime.block_on(self.store.get_range(&key, at..end));
            file.write_all(&chunk.with_context(fetched)?)
                .with_context(fetched)?;
            at = end;
        }
        file.sync_all().with_context(fetched)?;
        fs::rename(&partial, to).with_context(fetched)
    }
}

/// What waits for the store: nothing runs beside it.
fn runtime() -> std::io::Result<Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
}

/// The store of a bucket; none where the scheme is no store's.
fn store(scheme: &str, bucket: &str) -> object_store::Result<Option<Arc<dyn ObjectStore>>> {
    Ok(Some(match scheme {
        "s3" => Arc::new(
            AmazonS3Builder::from_env()
                .with_bucket_name(bucket)
                .with_http_connector(Connector)
                .build()?,
        ),
        "gs" => Arc::new(
            GoogleCloudStorageBuilder::from_env()
                .with_bucket_name(bucket)
                .with_http_connector(Connector)
                .build()?,
        ),
        "az" => Arc::new(
            MicrosoftAzureBuilder::from_env()
                .with_container_name(bucket)
                .with_http_connector(Connector)
                .build()?,
        ),
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use object_store::memory::InMemory;

    use super::*;

    #[test]
    fn files_go_there_and_back_in_chunks() {
        let remote = Remote {
            store: Arc::new(InMemory::new()),
            prefix: Key::parse("a/b").unwrap(),
            name: "memory://a/b".into(),
            runtime: runtime().unwrap(),
            chunk: 1000,
        };
        let folder = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| folder.path().join(name));
        for length in [0, 1, 1000, 1001, 3500] {
            let bytes: Vec<u8> = (0..length).map(|at| (at % 251) as u8).collect();
            fs::write(&from, &bytes).unwrap();
            remote.send(&from, "part/file").unwrap();
            remote.fetch("part/file", &to, length).unwrap();
            assert_eq!(fs::read(&to).unwrap(), bytes);
            assert_eq!(remote.read("part/file").unwrap(), Some(bytes));
            assert_eq!(remote.length("part/file").unwrap(), Some(length));
        }
        assert_eq!(remote.names().unwrap(), ["part"]);
        assert_eq!(remote.read("part/other").unwrap(), None);
        let error = remote.fetch("part/file", &to, 3).unwrap_err();
        let told = "`memory://a/b/part/file`: expected 3 bytes, found 3500";
        assert_eq!(error.to_string(), told);
        assert!(remote.fetch("part/other", &to, 3).is_err());
    }
}
