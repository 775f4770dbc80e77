//! The file in which a server leaves the hidden states of one request.

use std::fs::{self, File, TryLockError};
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use burn::prelude::*;
use spectrain_checkpoints::folder::read_safetensors;
use spectrain_checkpoints::{DType, NamedTensor, printable};
use spectrain_models::weights::tensor_from;

/// How often it is looked whether the file is there.
const LOOK_EVERY: Duration = Duration::from_millis(5);
/// Bytes of a file beside its tensors, at most.
const HEADER: u64 = 1 << 20;

/// Files of hidden states that nobody has taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Abandoned {
    /// How many.
    pub files: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// A folder that a server writes into, under its name and under ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedFolder {
    /// As the server calls it.
    pub on_server: PathBuf,
    /// Where it is on this machine.
    pub here: PathBuf,
}

impl SharedFolder {
    /// Where a file of the server is on this machine.
    ///
    /// # Errors
    /// It is not in the folder: no other file is read or deleted, whatever a server says.
    pub fn file(&self, path: &str) -> Result<PathBuf> {
        let inside = Path::new(path).strip_prefix(&self.on_server).ok();
        let is_plain = |inside: &&Path| {
            inside
                .components()
                .all(|part| matches!(part, Component::Normal(_)))
                && inside.components().next().is_some()
        };
        match inside.filter(is_plain) {
            Some(inside) => Ok(self.here.join(inside)),
            None => bail!(
                "`hidden_states_path`: expected a file in `{}`, where `target.server_folder` says that the server writes, found `{}`",
                self.on_server.display(),
                printable(path)
            ),
        }
    }

    /// Files that are older than a request may take: what was asked for by a client that was killed.
    pub fn abandoned(&self, patience: Duration) -> Abandoned {
        let mut found = Abandoned::default();
        for entry in fs::read_dir(&self.here).into_iter().flatten().flatten() {
            let is_states = entry
                .path()
                .extension()
                .is_some_and(|ending| ending == "safetensors");
            let Some(of) = entry.metadata().ok().filter(|of| is_states && of.is_file()) else {
                continue;
            };
            let age = of.modified().ok().and_then(|time| time.elapsed().ok());
            if age.is_some_and(|age| age > patience) {
                found.files += 1;
                found.bytes += of.len();
            }
        }
        found
    }
}

/// The contents of a file of hidden states.
#[derive(Debug, Clone)]
pub struct HiddenStates {
    /// The tokens that it has states of.
    pub tokens: Vec<u32>,
    /// `[tokens, slots, d_model]`, in the engine's type.
    pub states: NamedTensor,
}

/// One slot of states `[tokens, slots, d_model]`: `[tokens, d_model]`, f32. Only they go to the device.
///
/// # Panics
/// There are not as many slots.
pub fn slot(states: &NamedTensor, slot: usize, device: &Device) -> Tensor<2> {
    let [tokens, slots, d_model] = [0, 1, 2].map(|axis| states.shape[axis]);
    assert!(slot < slots, "slot {slot} of {slots}");
    let of_slot = states.bytes.chunks(d_model * states.dtype.size());
    let states = NamedTensor {
        name: states.name.clone(),
        dtype: states.dtype,
        shape: vec![tokens, d_model],
        bytes: of_slot
            .skip(slot)
            .step_by(slots)
            .flatten()
            .copied()
            .collect(),
    };
    tensor_from::<2>(states, device).cast(burn::tensor::DType::F32)
}

/// Reads and deletes the file at `path`, once its writer has let go of the lock beside it. It may have `tokens` tokens of `slots`
/// states of `d_model` numbers, at most.
///
/// # Errors
/// It does not come within `patience`, or holds something else.
pub fn take(
    path: &Path,
    [tokens, slots, d_model]: [usize; 3],
    patience: Duration,
) -> Result<HiddenStates> {
    let lock = lock_beside(path);
    wait_for(path, &lock, patience)?;
    let found = read(path, [tokens, slots, d_model]);
    for file in [path, &lock] {
        if let Err(error) = fs::remove_file(file)
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(
                "cannot delete `{}`, which is no longer needed: {error}",
                file.display()
            );
        }
    }
    found
}

fn lock_beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Waits until the file is there and nobody writes it.
fn wait_for(path: &Path, lock: &Path, patience: Duration) -> Result<()> {
    let since = Instant::now();
    loop {
        // A writer makes the lock first, and the file while it holds it.
        let is_free = match File::open(lock) {
            Ok(file) => match file.try_lock_shared() {
                Ok(()) => true,
                Err(TryLockError::WouldBlock) => false,
                Err(TryLockError::Error(error)) => {
                    return Err(error).with_context(|| format!("cannot lock `{}`", lock.display()));
                }
            },
            Err(_) => true,
        };
        if is_free && path.exists() {
            return Ok(());
        }
        if since.elapsed() > patience {
            bail!(
                "`{}` was not complete within {:.0} s; set `target.local_folder` to the path at which this machine has the \
                 server's folder",
                path.display(),
                patience.as_secs_f64()
            );
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn read(path: &Path, [most, slots, d_model]: [usize; 3]) -> Result<HiddenStates> {
    let named = || format!("`{}`", path.display());
    let whole = (most as u64).saturating_mul(slots as u64 * d_model as u64 * 4 + 8) + HEADER;
    let bytes = fs::metadata(path).with_context(named)?.len();
    if bytes > whole {
        bail!(
            "{}: expected at most {whole} bytes for {most} tokens, found {bytes}",
            named()
        );
    }
    let mut tensors = read_safetensors(path)?;
    let mut take = |name: &str| {
        let place = tensors.iter().position(|tensor| tensor.name == name);
        let found = place.map(|place| tensors.swap_remove(place));
        found.with_context(|| format!("{}: expected a tensor `{name}`, found none", named()))
    };
    let (states, tokens) = (take("hidden_states")?, take("token_ids")?);
    let tokens: Option<Vec<u32>> = tokens
        .to_i64()
        .with_context(named)?
        .into_iter()
        .map(|token| token.try_into().ok())
        .collect();
    let tokens = tokens
        .with_context(|| format!("{}: `token_ids`: expected whole numbers from 0 on", named()))?;
    let expected = [tokens.len(), slots, d_model];
    if states.shape != expected {
        bail!(
            "{}: `hidden_states`: expected the shape {expected:?} of tokens, layers asked for and `hidden_size`, found {:?}",
            named(),
            states.shape
        );
    }
    if ![DType::BF16, DType::F16, DType::F32].contains(&states.dtype) {
        bail!(
            "{}: `hidden_states`: expected numbers of 16 or 32 bits, found {:?}",
            named(),
            states.dtype
        );
    }
    Ok(HiddenStates { tokens, states })
}

#[cfg(test)]
mod tests {
    use super::*;
    use spectrain_checkpoints::write_safetensors;

    #[test]
    fn only_files_of_the_shared_folder_are_taken() {
        let shared = SharedFolder {
            on_server: "/dev/shm/hs".into(),
            here: "/mnt/hs".into(),
        };
        assert_eq!(
            shared.file("/dev/shm/hs/a/b.safetensors").unwrap(),
            Path::new("/mnt/hs/a/b.safetensors")
        );
        for path in [
            "/dev/shm/hs",
            "/dev/shm/hs/../x",
            "/etc/passwd",
            "hs/a",
            "/dev/shm/hsx/a",
            "",
        ] {
            let told = shared.file(path).unwrap_err().to_string();
            assert!(told.contains("expected a file in `/dev/shm/hs`"), "{told}");
        }
    }

    #[test]
    fn files_that_nobody_takes_are_counted_once_they_are_old() {
        let folder = tempfile::tempdir().unwrap();
        let here = folder.path().to_owned();
        for name in ["old.safetensors", "old.safetensors.lock", "other"] {
            fs::write(here.join(name), [0; 10]).unwrap();
        }
        let shared = SharedFolder {
            on_server: here.clone(),
            here,
        };
        let none = Abandoned::default();
        assert_eq!(shared.abandoned(Duration::from_secs(60)), none);
        let an_hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        for entry in fs::read_dir(&shared.here).unwrap() {
            let file = File::options().write(true).open(entry.unwrap().path());
            file.unwrap().set_modified(an_hour_ago).unwrap();
        }
        let one = Abandoned {
            files: 1,
            bytes: 10,
        };
        assert_eq!(shared.abandoned(Duration::from_secs(60)), one);
    }

    fn states(tokens: usize, shape: [usize; 3]) -> Vec<NamedTensor> {
        let values = vec![0.5; shape.iter().product()];
        let ids: Vec<i64> = (0..tokens as i64).collect();
        vec![
            NamedTensor::from_f32("hidden_states", shape, values),
            NamedTensor::from_i64("token_ids", [tokens], ids),
        ]
    }

    #[test]
    fn a_file_is_read_once_its_writer_lets_go_and_is_gone_then() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let lock = File::create(lock_beside(&path)).unwrap();
        lock.lock().unwrap();
        let writer = {
            let path = path.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(30));
                write_safetensors(&path, &states(4, [4, 3, 2]), &Default::default()).unwrap();
                drop(lock);
            })
        };
        let found = take(&path, [8, 3, 2], Duration::from_secs(20)).unwrap();
        writer.join().unwrap();
        assert_eq!(found.tokens, [0, 1, 2, 3]);
        assert_eq!(found.states.shape, [4, 3, 2]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_was_not_asked_for_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.safetensors");
        let refused = |tensors: &[NamedTensor], most: [usize; 3]| {
            write_safetensors(&path, tensors, &Default::default()).unwrap();
            take(&path, most, Duration::from_secs(1))
                .unwrap_err()
                .to_string()
        };
        let told = refused(&states(4, [4, 2, 2]), [8, 3, 2]);
        assert!(told.contains("expected the shape [4, 3, 2]"), "{told}");
        assert!(refused(&states(3, [4, 3, 2]), [8, 3, 2]).contains("[3, 3, 2]"));
        let told = refused(&states(60_000, [60_000, 3, 2]), [8, 3, 2]);
        assert!(told.contains("expected at most"), "{told}");
        assert!(refused(&states(4, [4, 3, 2])[..1], [8, 3, 2]).contains("`token_ids`"));
        assert!(!path.exists(), "what is no good is deleted, too");
        let told = take(&path, [8, 3, 2], Duration::from_millis(20))
            .unwrap_err()
            .to_string();
        assert!(told.contains("was not complete within"), "{told}");
    }
}
