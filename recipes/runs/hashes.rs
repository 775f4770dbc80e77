//! SHA-256 of inputs and outputs. Those of large files are remembered while nothing touches the file: a target may be many
//! gigabytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use spectrain_checkpoints::folder::CONFIG;
use spectrain_checkpoints::hash::{sha256_bytes, sha256_file};
use spectrain_checkpoints::regular::check_link;
use spectrain_checkpoints::seal;
use spectrain_data::features::{Recorded, WrittenShard};

use crate::runs::files::{entries, write_json};
use crate::runs::hashing::sha256_each;
use crate::runtime::model_files::{drafter_files, read_json, weight_files};

/// The file of a run that hashes are remembered in.
pub(crate) const HASHES: &str = "hashes.json";

/// Bytes up to which a file is read every time: that takes milliseconds.
const SMALL: u64 = 4 << 20;

/// Hashes of large files.
#[derive(Debug, Clone, Default)]
pub(crate) struct HashMemory {
    /// Where it is kept; empty where it is not.
    path: PathBuf,
    known: BTreeMap<String, Known>,
    /// The memories of the runs whose files were linked here. Whoever links these once more has them know how they look since, and
    /// nobody else.
    lenders: BTreeSet<String>,
    /// What these know, once they were asked.
    lent: Option<BTreeMap<Look, String>>,
    changed: bool,
}

/// A hash, and how the file looked then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Known {
    #[serde(flatten)]
    look: Look,
    sha256: String,
}

/// A file that is not read where its hash is known.
struct Large<'a> {
    path: &'a Path,
    place: String,
    look: Look,
}

impl<'a> Large<'a> {
    /// None of a small file, and of a folder.
    fn of(path: &'a Path, data: &Metadata) -> Option<Self> {
        let is_large = data.is_file() && data.len() > SMALL;
        is_large.then(|| Self {
            path,
            place: place(path),
            look: Look::of(data),
        })
    }
}

/// What tells that a file was not touched. Its time of change can be set to what it was; the time at which the system
/// changed anything about the file cannot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Look {
    length: u64,
    modified: u64,
    touched: i64,
    number: u64,
}

impl Look {
    fn of(data: &Metadata) -> Self {
        let modified = data
            .modified()
            .ok()
            .and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let (touched, number) = touched(data);
        Self {
            length: data.len(),
            modified: modified.map_or(0, |time| time.as_nanos() as u64),
            touched,
            number,
        }
    }
}

/// When the system last changed a file or what it says of it, in nanoseconds, and the file's number.
#[cfg(unix)]
fn touched(data: &Metadata) -> (i64, u64) {
    use std::os::unix::fs::MetadataExt as _;
    let seconds = data.ctime().wrapping_mul(1_000_000_000);
    (seconds.wrapping_add(data.ctime_nsec()), data.ino())
}

#[cfg(not(unix))]
fn touched(_data: &Metadata) -> (i64, u64) {
    (0, 0)
}

/// Files that were linked, and how they looked before: another name of a file is a change of it to the system, and none of what it
/// holds.
#[derive(Debug, Default)]
pub(crate) struct Links {
    /// Before and behind, by the file's number.
    looks: BTreeMap<u64, [Look; 2]>,
}

impl Links {
    /// Links a file as `link`, or copies it where that cannot be.
    pub(crate) fn link(&mut self, file: &Path, link: &Path) -> io::Result<()> {
        let before = Look::of(&fs::metadata(file)?);
        if fs::hard_link(file, link).is_err() {
            return fs::copy(file, link).map(drop);
        }
        let behind = Look::of(&fs::metadata(link)?);
        let touched = behind.touched;
        // Whoever changed it meanwhile is noticed.
        if (Look { touched, ..before }) == behind && before != behind {
            self.looks.insert(behind.number, [before, behind]);
        }
        Ok(())
    }
}

impl HashMemory {
    /// What cannot be read, or is not what was written, is computed again.
    pub(crate) fn read(path: &Path) -> Self {
        let read = || -> Option<(BTreeMap<String, Known>, BTreeSet<String>)> {
            let text = fs::read_to_string(path).ok()?;
            let mut memory: Value = serde_json::from_str(&text).ok()?;
            let files = memory.get_mut("files")?.take();
            if memory["sha256"] != digest(&files) {
                return None;
            }
            let lenders = memory.get_mut("lenders").map(Value::take);
            let lenders = lenders.and_then(|lenders| serde_json::from_value(lenders).ok());
            Some((
                serde_json::from_value(files).ok()?,
                lenders.unwrap_or_default(),
            ))
        };
        let (known, lenders) = read().unwrap_or_default();
        Self {
            path: path.to_owned(),
            known,
            lenders,
            lent: None,
            changed: false,
        }
    }

    /// The hash of a file, or of every file of a folder.
    pub(crate) fn of(&mut self, path: &Path) -> Result<String> {
        check_link(path)?;
        let data =
            fs::metadata(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        if data.is_dir() {
            let files: Vec<PathBuf> = entries(path)?.iter().map(|name| path.join(name)).collect();
            return self.of_all(&files);
        }
        let Some(file) = Large::of(path, &data) else {
            return Ok(sha256_file(path)?);
        };
        if let Some(sha256) = self.known(&file) {
            return Ok(sha256);
        }
        self.read_each(std::slice::from_ref(&file))?;
        self.known(&file)
            .with_context(|| format!("cannot read `{}`", path.display()))
    }

    /// The hash of a file that looks as it did when it was learned.
    fn known(&mut self, file: &Large) -> Option<String> {
        let Large { place, look, .. } = file;
        let known = self.known.get(place).filter(|known| known.look == *look);
        if let Some(known) = known {
            return Some(known.sha256.clone());
        }
        let sha256 = self.lent(*look)?;
        self.learn(place.clone(), *look, sha256.clone());
        Some(sha256)
    }

    /// Learns the hashes of those of these files that are large and unknown, several at a time. What is not there is for whoever
    /// needs it to say.
    pub(crate) fn learn_each<'p>(&mut self, paths: impl Iterator<Item = &'p Path>) -> Result<()> {
        let mut unknown = Vec::new();
        for path in paths {
            let data = fs::metadata(path).ok();
            let file = data.and_then(|data| Large::of(path, &data));
            unknown.extend(file.filter(|file| self.known(file).is_none()));
        }
        self.read_each(&unknown)
    }

    /// Reads files and learns their hashes. What was read before it is stopped is known.
    fn read_each(&mut self, files: &[Large]) -> Result<()> {
        let paths: Vec<&Path> = files.iter().map(|file| file.path).collect();
        let bytes = files.iter().map(|file| file.look.length).sum();
        sha256_each(&paths, bytes, &mut |number, sha256| {
            let Large { place, look, .. } = &files[number];
            self.learn(place.clone(), *look, sha256);
        })
    }

    /// Fails unless files are as they are on record. Those that are known are not read.
    pub(crate) fn prove(&mut self, files: &[Recorded]) -> Result<()> {
        self.learn_each(files.iter().map(|file| file.path.as_path()))?;
        for file in files {
            let sha256 = self.of(&file.path)?;
            file.check(&sha256)?;
        }
        Ok(())
    }

    /// What a lender knows of a file that looks like this.
    fn lent(&mut self, look: Look) -> Option<String> {
        // Where files have no numbers, others may look the same.
        if look.number == 0 {
            return None;
        }
        let lenders = self.lenders.iter();
        let known = lenders.flat_map(|lender| Self::read(Path::new(lender)).known.into_values());
        let known = known.map(|Known { look, sha256 }| (look, sha256));
        let lent = self.lent.get_or_insert_with(|| known.collect());
        lent.get(&look).cloned()
    }

    /// Asks from now on what `lender` knows and whom it asks, where a file that was linked from there looks otherwise.
    pub(crate) fn ask(&mut self, lender: &Self) {
        let asked = lender.lenders.iter().cloned();
        let asked: Vec<String> = asked.chain([place(&lender.path)]).collect();
        for memory in asked {
            self.changed |= self.lenders.insert(memory);
        }
        self.lent = None;
    }

    /// Has lenders read again when they are asked next: they may have learned more.
    pub(crate) fn ask_again(&mut self) {
        self.lent = None;
    }

    /// Knows what the memory in the file `path` knows, too, where it knows nothing itself of a file as that looks now.
    pub(crate) fn recall(&mut self, path: &Path) {
        for (place, known) in Self::read(path).known {
            let is_known = self.known.get(&place).is_some_and(|own| {
                let now = fs::metadata(&place);
                now.is_ok_and(|data| Look::of(&data) == own.look)
            });
            if !is_known {
                self.known.insert(place, known);
            }
        }
    }

    /// Is kept in the file `path` from now on.
    pub(crate) fn keep_in(&mut self, path: PathBuf) {
        self.path = path;
        self.changed = true;
    }

    /// The memories that are asked, but for this one.
    pub(crate) fn lenders(&self) -> impl Iterator<Item = &Path> {
        let own = place(&self.path);
        let lenders = self.lenders.iter().filter(move |lender| **lender != own);
        lenders.map(Path::new)
    }

    fn learn(&mut self, place: String, look: Look, sha256: String) {
        self.known.insert(place, Known { look, sha256 });
        self.changed = true;
    }

    /// Takes the hash of a file from whoever has just written it.
    pub(crate) fn remember(&mut self, path: &Path, sha256: &str) -> Result<()> {
        let data =
            fs::metadata(path).with_context(|| format!("cannot read `{}`", path.display()))?;
        self.learn(place(path), Look::of(&data), sha256.to_owned());
        Ok(())
    }

    /// Takes the hashes of shards in a folder from who wrote them, as they looked then.
    pub(crate) fn remember_written(&mut self, folder: &Path, written: &[WrittenShard]) {
        for WrittenShard { file, sha256, look } in written {
            self.learn(place(&folder.join(file)), Look::of(look), sha256.clone());
        }
    }

    /// Knows files by how they look since they were linked.
    pub(crate) fn follow(&mut self, links: &Links) {
        for known in self.known.values_mut() {
            if let Some([before, behind]) = links.looks.get(&known.look.number)
                && known.look == *before
            {
                known.look = *behind;
                self.changed = true;
            }
        }
    }

    /// Takes what `other` knows of files in the folder `from` for what they are in the folder `to`, too.
    pub(crate) fn adopt(&mut self, other: &Self, [from, to]: [&Path; 2]) {
        let from = place(from);
        for (at, Known { look, sha256 }) in &other.known {
            let Ok(inner) = Path::new(at).strip_prefix(&from) else {
                continue;
            };
            let link = to.join(inner);
            if fs::metadata(&link).is_ok_and(|data| Look::of(&data) == *look) {
                self.learn(place(&link), *look, sha256.clone());
            }
        }
    }

    /// The hash of several files or folders, by their names and contents.
    pub(crate) fn of_all(&mut self, paths: &[PathBuf]) -> Result<String> {
        self.learn_each(paths.iter().map(PathBuf::as_path))?;
        let mut parts = String::new();
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            parts.push_str(&format!("{name} {}\n", self.of(path)?));
        }
        Ok(sha256_bytes(parts.as_bytes()))
    }

    /// The hash of a drafter's folder: its weights, and its configuration without what an evaluation found.
    pub(crate) fn of_drafter(&mut self, folder: &Path) -> Result<String> {
        let files = drafter_files(folder)?;
        self.of_sealed(folder, files)
    }

    /// The same of a folder with a language model, which may be a drafter's: all of its weights.
    pub(crate) fn of_language_model(&mut self, folder: &Path) -> Result<String> {
        let files = weight_files(folder)?;
        self.of_sealed(folder, files)
    }

    /// The hash of these files in `folder`, and of its configuration without what an evaluation found.
    fn of_sealed(&mut self, folder: &Path, mut files: Vec<PathBuf>) -> Result<String> {
        files.retain(|file| file.file_name() != Some(CONFIG.as_ref()));
        let config = seal::sha256_of_config(&read_json(&folder.join(CONFIG))?);
        let weights = self.of_all(&files)?;
        Ok(sha256_bytes(format!("{config} {weights}").as_bytes()))
    }

    /// Whether there is anything to keep.
    pub(crate) fn has_changed(&self) -> bool {
        self.changed
    }

    /// Keeps what was computed for the next process, where it is kept at all.
    pub(crate) fn write(&mut self) -> Result<()> {
        if !self.changed || self.path.as_os_str().is_empty() {
            return Ok(());
        }
        let files = json!(self.known);
        write_json(
            &self.path,
            &json!({ "sha256": digest(&files), "files": files, "lenders": self.lenders }),
        )?;
        self.changed = false;
        Ok(())
    }
}

/// Fails unless files are as they are on record, for whoever keeps no memory of them: large ones are read, several at a time.
pub(crate) fn prove_files(files: &[Recorded]) -> Result<()> {
    HashMemory::default().prove(files)
}

fn place(path: &Path) -> String {
    let place = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    place.to_string_lossy().into_owned()
}

fn digest(files: &Value) -> String {
    sha256_bytes(files.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use spectrain_data::features::{FeatureHeader, FeatureWriter, StoredSample, StoredType};

    use super::*;

    #[test]
    fn the_hash_of_a_changed_file_or_folder_is_another() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("hashes.json");
        let data = root.path().join("data");
        fs::create_dir(&data).unwrap();
        fs::write(data.join("x.jsonl"), "one").unwrap();
        let hash = || {
            let mut hashes = HashMemory::read(&memory);
            let hash = hashes.of(&data).unwrap();
            hashes.write().unwrap();
            hash
        };
        let before = hash();
        assert_eq!(hash(), before);
        fs::write(data.join("x.jsonl"), "two").unwrap();
        assert_ne!(hash(), before);
    }

    #[test]
    fn a_memory_of_another_form_is_none() {
        let root = tempfile::tempdir().unwrap();
        let memory = root.path().join("hashes.json");
        for text in ["3", "[]", "null", "\"files\"", "{}", "{\"files\": 3}"] {
            fs::write(&memory, text).unwrap();
            assert!(HashMemory::read(&memory).known.is_empty(), "{text}");
        }
    }

    /// Just large enough to be remembered.
    fn large(root: &Path) -> PathBuf {
        let path = root.join("large");
        File::create(&path).unwrap().set_len(SMALL + 1).unwrap();
        path
    }

    #[test]
    fn a_known_large_file_is_not_read_again() {
        let root = tempfile::tempdir().unwrap();
        let (memory, file) = (root.path().join("hashes.json"), large(root.path()));
        let mut hashes = HashMemory::read(&memory);
        hashes.remember(&file, "remembered").unwrap();
        hashes.write().unwrap();
        assert_eq!(HashMemory::read(&memory).of(&file).unwrap(), "remembered");
        let text = fs::read_to_string(&memory).unwrap();
        fs::write(&memory, text.replace("remembered", "misremembered")).unwrap();
        let read = HashMemory::read(&memory).of(&file).unwrap();
        assert_eq!(read, sha256_file(&file).unwrap());
    }

    /// Returns once a file that is changed now has another time than `data`: clocks of file systems are coarse.
    #[cfg(unix)]
    fn await_clock(root: &Path, data: &Metadata) {
        let probe = root.join("probe");
        let passed = || {
            fs::write(&probe, "").unwrap();
            touched(&fs::metadata(&probe).unwrap()).0 > touched(data).0
        };
        while !passed() {}
    }

    #[cfg(unix)]
    #[test]
    fn a_file_that_was_linked_is_known_under_both_names_until_it_is_changed() {
        use std::os::unix::fs::FileExt as _;
        let root = tempfile::tempdir().unwrap();
        let [from, to] = ["from", "to"].map(|name| root.path().join(name));
        for folder in [&from, &to] {
            fs::create_dir(folder).unwrap();
        }
        let file = large(&from);
        let link = to.join("large");
        let mut lender = HashMemory::default();
        lender.remember(&file, "remembered").unwrap();
        await_clock(root.path(), &fs::metadata(&file).unwrap());
        let mut links = Links::default();
        links.link(&file, &link).unwrap();
        assert_eq!(links.looks.len(), 1);
        lender.follow(&links);
        let mut borrower = HashMemory::default();
        borrower.adopt(&lender, [&from, &to]);
        assert!(lender.has_changed() && borrower.has_changed());
        assert_eq!(lender.of(&file).unwrap(), "remembered");
        assert_eq!(borrower.of(&link).unwrap(), "remembered");
        // What nobody knew nobody knows now.
        let mut other = HashMemory::default();
        other.follow(&links);
        other.adopt(&HashMemory::default(), [&from, &to]);
        assert!(!other.has_changed());

        await_clock(root.path(), &fs::metadata(&file).unwrap());
        let opened = File::options().write(true).open(&file).unwrap();
        opened.write_at(&[1], 3).unwrap();
        lender.follow(&links);
        borrower.adopt(&lender, [&from, &to]);
        let sha256 = sha256_file(&file).unwrap();
        assert_eq!(lender.of(&file).unwrap(), sha256);
        assert_eq!(borrower.of(&link).unwrap(), sha256);
    }

    /// What is on record of a file that was hashed by whoever wrote it.
    fn recorded(path: &Path) -> Recorded {
        Recorded {
            path: path.to_owned(),
            bytes: SMALL + 1,
            sha256: sha256_file(path).unwrap(),
        }
    }

    #[test]
    fn files_on_record_are_proven_by_what_is_known_of_them_and_else_read() {
        let root = tempfile::tempdir().unwrap();
        let file = large(root.path());
        let right = recorded(&file);
        let other = Recorded {
            sha256: "as remembered".into(),
            ..right.clone()
        };
        let mut hashes = HashMemory::default();
        hashes.remember(&file, "as remembered").unwrap();
        hashes.prove(std::slice::from_ref(&other)).unwrap();
        let refused = hashes.prove(std::slice::from_ref(&right)).unwrap_err();
        let told = "sha256: expected ";
        assert!(refused.to_string().contains(told), "{refused}");
        // Of another length it is another file.
        File::create(&file).unwrap().set_len(SMALL + 2).unwrap();
        let right = recorded(&file);
        hashes.prove(std::slice::from_ref(&right)).unwrap();
        hashes.prove(&[other]).unwrap_err();
    }

    #[cfg(unix)]
    #[test]
    fn a_memory_that_has_seen_a_file_before_it_was_changed_recalls_who_has_seen_it_since() {
        let root = tempfile::tempdir().unwrap();
        let (path, file) = (root.path().join("hashes.json"), large(root.path()));
        let mut stale = HashMemory::default();
        stale.remember(&file, "before").unwrap();
        await_clock(root.path(), &fs::metadata(&file).unwrap());
        File::create(&file).unwrap().set_len(SMALL + 2).unwrap();
        let mut kept = HashMemory::read(&path);
        kept.remember(&file, "since").unwrap();
        kept.write().unwrap();
        stale.recall(&path);
        assert_eq!(stale.of(&file).unwrap(), "since");
    }

    #[cfg(unix)]
    #[test]
    fn a_shard_that_was_changed_before_its_folder_was_whole_is_noticed() {
        use std::os::unix::fs::FileExt as _;
        let root = tempfile::tempdir().unwrap();
        let (seq, d_model) = (1024, 1100);
        let header = FeatureHeader {
            target_sha256: "t".into(),
            captured_layers: vec![1],
            d_model,
            tokens_fingerprint: "f".into(),
            dtype: StoredType::Bf16,
        };
        let bits = vec![1; seq * d_model];
        let sample = StoredSample {
            tokens: &vec![1; seq],
            loss_mask: &vec![1; seq],
            captured: (&bits).into(),
            last: (&bits).into(),
        };
        let mut writer = FeatureWriter::open(root.path(), header, 1).unwrap();
        for _ in 0..2 {
            writer.push(&sample).unwrap();
        }
        let path = root.path().join("features-00000.arrow");
        let data = fs::metadata(&path).unwrap();
        assert!(data.len() > SMALL);
        await_clock(root.path(), &data);
        let file = File::options().write(true).open(&path).unwrap();
        file.write_at(&[1], 3).unwrap();
        let written = writer.finish().unwrap();
        let mut hashes = HashMemory::default();
        hashes.remember_written(root.path(), &written);
        let found = |hashes: &mut HashMemory, shard: &WrittenShard| {
            hashes.of(&root.path().join(&shard.file)).unwrap()
        };
        assert_ne!(found(&mut hashes, &written[0]), written[0].sha256);
        // The other one is known, and so not read.
        let mut other = written[1].clone();
        other.sha256 = "as remembered".into();
        hashes.remember_written(root.path(), std::slice::from_ref(&other));
        assert_eq!(found(&mut hashes, &other), "as remembered");
    }

    #[test]
    fn a_memory_that_is_kept_nowhere_recalls_another_and_keeps_nothing() {
        let root = tempfile::tempdir().unwrap();
        let (path, file) = (root.path().join("hashes.json"), large(root.path()));
        let mut kept = HashMemory::read(&path);
        kept.remember(&file, "as remembered").unwrap();
        kept.write().unwrap();
        let before = fs::read(&path).unwrap();
        let mut hashes = HashMemory::default();
        hashes.recall(&path);
        assert_eq!(hashes.of(&file).unwrap(), "as remembered");
        hashes.remember(&file, "learned").unwrap();
        hashes.recall(&path);
        assert_eq!(hashes.of(&file).unwrap(), "learned");
        hashes.write().unwrap();
        assert_eq!(fs::read(&path).unwrap(), before);
        hashes.keep_in(path.clone());
        hashes.write().unwrap();
        assert_eq!(HashMemory::read(&path).of(&file).unwrap(), "learned");
    }

    #[cfg(unix)]
    #[test]
    fn a_byte_changed_under_the_same_length_and_time_is_noticed() {
        use std::os::unix::fs::FileExt as _;
        let root = tempfile::tempdir().unwrap();
        let small = root.path().join("small");
        fs::write(&small, [0; 8]).unwrap();
        for path in [small, large(root.path())] {
            let mut hashes = HashMemory::default();
            let before = hashes.of(&path).unwrap();
            let file = File::options().write(true).open(&path).unwrap();
            let data = file.metadata().unwrap();
            let modified = data.modified().unwrap();
            await_clock(root.path(), &data);
            file.write_at(&[1], 3).unwrap();
            file.set_modified(modified).unwrap();
            assert_ne!(hashes.of(&path).unwrap(), before, "{}", path.display());
        }
    }
}
