//! Pickles, which can run any program: refused, with the lines that convert them where somebody trusts them.

use std::fs;
use std::path::Path;

use spectrain_checkpoints::Mismatch;

use crate::error::{Error, Result};

const ENDINGS: [&str; 6] = [".ckpt", ".pt", ".pth", ".bin", ".pkl", ".ckpt.gz"];

/// A Python program that writes what SpecForge (`hidden_state`, `aux_hidden_state`) and ModelOpt (`hidden_states`,
/// `aux_hidden_states`) pickle as `hs_{i}.safetensors`; its arguments are the folder to read and the one to write.
pub const PICKLE_CONVERTER: &str = r#"import gzip, io, pathlib, sys, torch
from safetensors.torch import save_file
source, out = map(pathlib.Path, sys.argv[1:3]); out.mkdir(parents=True, exist_ok=True)
endings = (".ckpt", ".pt", ".pth", ".bin", ".pkl", ".ckpt.gz")
files = [source] if source.is_file() else sorted(f for f in source.rglob("*") if f.name.endswith(endings))
if not files:
    sys.exit(f"`{source}`: expected files that end in {', '.join(endings)}, found none")
for i, f in enumerate(files):
    data = gzip.decompress(f.read_bytes()) if f.suffix == ".gz" else f.read_bytes()
    x = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    get = lambda *names: next(x[name] for name in names if name in x)
    ids = get("input_ids", "token_ids").reshape(-1).long()
    last = get("hidden_state", "target_last_hidden_states", "hidden_states").reshape(len(ids), 1, -1)
    aux = get("aux_hidden_state", "aux_hidden_states", "target_hidden_states").reshape(len(ids), -1, last.shape[2])
    tensors = {"token_ids": ids, "hidden_states": torch.cat([aux, last.to(aux.dtype)], 1).contiguous()}
    if "loss_mask" in x:
        tensors["loss_mask"] = x["loss_mask"].reshape(-1).long()
    save_file(tensors, out / f"hs_{i}.safetensors")
"#;

fn is_pickle(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

fn refused(path: &Path, name: &str) -> Error {
    Error::File {
        path: path.to_owned(),
        mismatch: Mismatch::new(
            "safetensors",
            format!(
                "`{name}`, a pickle, which can run any program and is not read; if you trust it, convert it with \
                 `spectrain features converter > convert.py` and `python convert.py FROM TO`"
            ),
        ),
    }
}

/// Fails for a path to a pickle.
pub(super) fn refuse_file(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if path.is_file() && is_pickle(&name) {
        return Err(refused(path, &name));
    }
    Ok(())
}

/// Fails for a folder with pickles in it, or in the folders in it.
pub(super) fn refuse_folder(folder: &Path) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|source| Error::read(folder, source))?;
    let paths = entries.map(|entry| Ok(entry?.path()));
    let mut paths: Vec<_> = paths
        .collect::<std::io::Result<_>>()
        .map_err(|source| Error::read(folder, source))?;
    let inner: Vec<_> = paths
        .iter()
        .flat_map(|path| fs::read_dir(path).into_iter().flatten().flatten())
        .map(|entry| entry.path())
        .collect();
    paths.extend(inner);
    let names = paths.iter().filter_map(|path| path.file_name());
    let mut names = names.map(|name| name.to_string_lossy());
    match names.find(|name| is_pickle(name)) {
        Some(name) => Err(refused(folder, &name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_refused_with_the_advice_to_convert_it_is_converted() {
        for ending in ENDINGS {
            assert!(
                PICKLE_CONVERTER.contains(&format!("\"{ending}\"")),
                "{ending}"
            );
        }
    }
}
