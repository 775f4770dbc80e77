//! Features in the files of vLLM's connector: a safetensors file for each sample, with `hidden_states` and `token_ids`. Speculators
//! (0.9, `hs_{i}.safetensors`) lays them beside the rows of a dataset, which hold the loss masks.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, RecordBatch};
use arrow::buffer::OffsetBuffer;
use arrow::datatypes::{DataType, Field, Schema};
use arrow::error::ArrowError;
use arrow::ipc::writer::StreamWriter;
use serde_json::{Value, json};
use spectrain_checkpoints::folder::TensorFile;
use spectrain_checkpoints::{DType, NamedTensor};

use super::layout::{
    ForeignFeatures, ForeignStates, ForeignText, SaidLayers, as_mask, as_tokens, inside, read_json,
};
use super::rows::{Rows, STATE};
use crate::durable::{self, PendingFile};
use crate::error::{Error, Result};

/// The file that says which layers the slots are, as vLLM counts them; this program writes it.
pub const LAYERS: &str = "layers.json";
/// The tensor with the last hidden state after the norm, which this program writes: what others read is before it.
pub const LAST_NORMED: &str = "last_hidden_state_normed";
/// Bytes of that file, at most.
const LONGEST_LAYERS: u64 = 16 << 20;
/// Where speculators puts states in the folder of the rows.
const STATES: &str = "hidden_states";

/// A folder of such files.
pub(super) struct Speculators {
    folder: PathBuf,
    rows: Option<Rows>,
    /// Of each sample its file, and its row where there are rows.
    files: Vec<(String, usize)>,
    layers: Option<SaidLayers>,
    shape: [usize; 2],
}

impl Speculators {
    /// The features in a folder, if it has such; its rows are in it, or in the folder `rows`.
    pub(super) fn find(folder: &Path, rows: Option<&Path>) -> Result<Option<Self>> {
        let inner = folder.join(STATES);
        let has_rows = folder.join(STATE).exists();
        let mut states = folder.to_owned();
        let mut files = numbered(folder)?;
        if files.is_empty() && inner.is_dir() {
            states = inside(folder, STATES)?;
            files = numbered(&states)?;
        }
        if files.is_empty() {
            return Ok(None);
        }
        let rows_in = match rows {
            Some(rows) => Some(rows),
            None => has_rows.then_some(folder),
        };
        let rows = rows_in.map(Rows::open).transpose()?;
        if let Some(rows) = &rows {
            check_numbers(&states, &files, rows.len())?;
        }
        let files: Vec<_> = files
            .into_iter()
            .map(|(number, name)| (name, number.unwrap_or_default()))
            .collect();
        let layers = match [folder, &states].map(|at| at.join(LAYERS)) {
            [outer, _] if outer.exists() => Some(said(folder)?),
            [_, inner] if inner.exists() => Some(said(&states)?),
            _ => None,
        };
        let first = inside(&states, &files[0].0)?;
        let (_, [_, slots, d_model]) = open(&first)?;
        Ok(Some(Self {
            folder: states,
            rows,
            files,
            layers,
            shape: [slots, d_model],
        }))
    }
}

impl ForeignFeatures for Speculators {
    fn layout(&self) -> &'static str {
        "files of vLLM's connector"
    }

    fn samples(&self) -> usize {
        self.files.len()
    }

    fn without_states(&self) -> usize {
        let rows = self.rows.as_ref().map_or(0, Rows::len);
        rows.saturating_sub(self.files.len())
    }

    fn slots(&self) -> usize {
        self.shape[0]
    }

    fn d_model(&self) -> usize {
        self.shape[1]
    }

    fn layers(&self) -> Option<&SaidLayers> {
        self.layers.as_ref()
    }

    fn text(&self, sample: usize) -> Result<ForeignText> {
        let (name, row) = &self.files[sample];
        let path = inside(&self.folder, name)?;
        let (file, [length, ..]) = open(&path)?;
        let numbers = integers(&file, &path, "token_ids", length)?;
        let tokens = as_tokens(numbers);
        let tokens = tokens
            .ok_or_else(|| Error::altered(&path, "token_ids", "token ids", "another number"))?;
        if tokens.is_empty() {
            return Err(Error::altered(&path, "token_ids", "at least one", 0));
        }
        if let Some(rows) = &self.rows {
            let found = rows.get(*row)?;
            if found.tokens != tokens {
                let expected = format!(
                    "the {} tokens of `input_ids` in row {row}",
                    found.tokens.len()
                );
                let other = format!("{} other tokens", tokens.len());
                return Err(Error::altered(&path, "token_ids", expected, other));
            }
            if found.loss_mask.is_some() {
                return Ok(found);
            }
        }
        let loss_mask = match file.info("loss_mask") {
            None => None,
            Some(_) => {
                let mask = as_mask(integers(&file, &path, "loss_mask", length)?);
                let wrong = || Error::altered(&path, "loss_mask", "0 or 1", "another number");
                Some(mask.ok_or_else(wrong)?)
            }
        };
        Ok(ForeignText { tokens, loss_mask })
    }

    fn states(&self, sample: usize) -> Result<ForeignStates> {
        let path = inside(&self.folder, &self.files[sample].0)?;
        let (file, [length, slots, d_model]) = open(&path)?;
        if [slots, d_model] != self.shape {
            let [of, width] = self.shape;
            let expected = format!("{of} slots of width {width}, as in the first file");
            let found = format!("{slots} of width {d_model}");
            return Err(Error::altered(&path, "hidden_states", expected, found));
        }
        let read = |name: &str| file.read(name).map_err(|source| Error::read(&path, source));
        let normed = match file.info(LAST_NORMED) {
            None => None,
            Some(info) if info.dtype == DType::BF16 && info.shape == [length, d_model] => {
                let bytes = read(LAST_NORMED)?.bytes;
                let (pairs, _) = bytes.as_chunks::<2>();
                Some(pairs.iter().map(|pair| u16::from_le_bytes(*pair)).collect())
            }
            Some(info) => {
                let expected = format!("BF16 of [{length}, {d_model}]");
                let found = format!("{} of {:?}", info.dtype, info.shape);
                return Err(Error::altered(&path, LAST_NORMED, expected, found));
            }
        };
        Ok(ForeignStates {
            states: read("hidden_states")?,
            normed,
        })
    }
}

/// The files of states in a folder by their numbers; those of other names by their names, where none has a number.
fn numbered(folder: &Path) -> Result<Vec<(Option<usize>, String)>> {
    let entries = fs::read_dir(folder).map_err(|source| Error::read(folder, source))?;
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| Error::read(folder, source))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(stem) = name.strip_suffix(".safetensors") else {
            continue;
        };
        let number = stem
            .strip_prefix("hs_")
            .and_then(|number| number.parse().ok());
        files.push((number, name));
    }
    if files.iter().any(|(number, _)| number.is_some())
        && let Some((_, name)) = files.iter().find(|(number, _)| number.is_none())
    {
        let found = format!("`{name}` among them");
        return Err(Error::altered(
            folder,
            "files",
            "`hs_{number}.safetensors`",
            found,
        ));
    }
    files.sort();
    if let Some([_, (_, second)]) = files
        .array_windows()
        .find(|[(first, _), (second, _)]| first.is_some() && first == second)
    {
        let found = format!("a second one, `{second}`");
        return Err(Error::altered(
            folder,
            "files",
            "one for each number",
            found,
        ));
    }
    Ok(files)
}

/// Fails where files do not say which row they are of, or one that is not there.
fn check_numbers(folder: &Path, files: &[(Option<usize>, String)], rows: usize) -> Result<()> {
    for (number, name) in files {
        if number.is_none_or(|number| number >= rows) {
            let expected = format!(
                "`hs_{{i}}.safetensors` with numbers below {rows}, as there are so many rows"
            );
            return Err(Error::altered(
                folder,
                "files",
                expected,
                format!("`{name}`"),
            ));
        }
    }
    Ok(())
}

/// What a folder says of its layers.
fn said(folder: &Path) -> Result<SaidLayers> {
    let path = inside(folder, LAYERS)?;
    let read = read_json(&path, LONGEST_LAYERS)?;
    let ids = read["layer_ids"].as_array().map(|ids| {
        let id = |id: &Value| id.as_u64().and_then(|id| u32::try_from(id).ok());
        ids.iter().map(id).collect::<Option<Vec<u32>>>()
    });
    let ids = ids
        .flatten()
        .and_then(|ids| SaidLayers::of_layers_run(&ids));
    ids.ok_or_else(|| {
        Error::altered(
            &path,
            "layer_ids",
            "a list of whole numbers",
            &read["layer_ids"],
        )
    })
}

/// Opens a file of states, and says how many tokens, slots and numbers of a state it has.
fn open(path: &Path) -> Result<(TensorFile, [usize; 3])> {
    let file = TensorFile::open(path).map_err(|source| Error::read(path, source))?;
    let shape = match file.info("hidden_states") {
        None => {
            return Err(Error::altered(path, "hidden_states", "a tensor", "none"));
        }
        Some(info) => match (info.dtype, &info.shape[..]) {
            (DType::F8E4M3 | DType::F8E5M2, _) => {
                let expected = "BF16, F16 or F32, as the connector writes without compression";
                return Err(Error::altered(path, "hidden_states", expected, info.dtype));
            }
            (DType::BF16 | DType::F16 | DType::F32, &[tokens, slots, d_model])
                if slots > 0 && d_model > 0 =>
            {
                [tokens, slots, d_model]
            }
            (dtype, shape) => {
                let expected = "BF16, F16 or F32 of [tokens, layers, width]";
                let found = format!("{dtype} of {shape:?}");
                return Err(Error::altered(path, "hidden_states", expected, found));
            }
        },
    };
    Ok((file, shape))
}

/// The numbers of a tensor `[length]`.
fn integers(file: &TensorFile, path: &Path, name: &'static str, length: usize) -> Result<Vec<i64>> {
    let found = match file.info(name) {
        Some(info) if info.shape == [length] => {
            let tensor = file
                .read(name)
                .map_err(|source| Error::read(path, source))?;
            numbers(&tensor)
        }
        Some(info) => {
            let expected = format!("[{length}], as many as there are states");
            return Err(Error::altered(
                path,
                name,
                expected,
                format!("{:?}", info.shape),
            ));
        }
        None => return Err(Error::altered(path, name, "a tensor", "none")),
    };
    found.ok_or_else(|| Error::altered(path, name, "whole numbers", "others"))
}

fn numbers(tensor: &NamedTensor) -> Option<Vec<i64>> {
    match tensor.dtype {
        DType::Bool | DType::U8 => Some(tensor.bytes.iter().map(|&byte| byte.into()).collect()),
        _ => tensor.to_i64().ok(),
    }
}

/// Writes the rows of a dataset that speculators reads: `input_ids`, `loss_mask` and `seq_len`, in the layout of Hugging Face's
/// `datasets`.
pub struct RowsWriter {
    folder: PathBuf,
    writer: StreamWriter<PendingFile>,
    schema: Arc<Schema>,
}

const ROWS: &str = "data-00000-of-00001.arrow";

impl std::fmt::Debug for RowsWriter {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = formatter.debug_struct("RowsWriter");
        shown.field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// What `datasets` calls the columns' types.
fn features() -> Value {
    let list = json!({"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"});
    let length = json!({"dtype": "int64", "_type": "Value"});
    json!({"input_ids": list, "loss_mask": list, "seq_len": length})
}

impl RowsWriter {
    /// Starts the rows in a folder.
    ///
    /// # Errors
    /// Nothing can be written there.
    pub fn create(folder: &Path) -> Result<Self> {
        let list =
            |name: &str| Field::new_list(name, Field::new("item", DataType::Int64, true), true);
        let fields = vec![
            list("input_ids"),
            list("loss_mask"),
            Field::new("seq_len", DataType::Int64, true),
        ];
        let described = json!({"info": {"features": features()}}).to_string();
        let metadata = HashMap::from([("huggingface".to_owned(), described)]);
        let schema = Arc::new(Schema::new_with_metadata(fields, metadata));
        let path = folder.join(ROWS);
        let file = PendingFile::create(&path)?;
        let writer = StreamWriter::try_new(file, &schema);
        Ok(Self {
            folder: folder.to_owned(),
            writer: writer.map_err(|source| Error::write(&path, source))?,
            schema,
        })
    }

    /// Adds a row.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn push(&mut self, tokens: &[u32], loss_mask: &[u8]) -> Result<()> {
        let written = self
            .batch(tokens, loss_mask)
            .and_then(|batch| self.writer.write(&batch));
        written.map_err(|source| Error::write(&self.folder.join(ROWS), source))
    }

    fn batch(
        &self,
        tokens: &[u32],
        loss_mask: &[u8],
    ) -> std::result::Result<RecordBatch, ArrowError> {
        let list = |values: Vec<i64>| -> std::result::Result<ArrayRef, ArrowError> {
            let item = Arc::new(Field::new("item", DataType::Int64, true));
            let offsets = OffsetBuffer::from_lengths([values.len()]);
            let values = Arc::new(Int64Array::from(values));
            Ok(Arc::new(ListArray::try_new(item, offsets, values, None)?))
        };
        let length = Int64Array::from(vec![tokens.len() as i64]);
        RecordBatch::try_new(
            self.schema.clone(),
            vec![
                list(tokens.iter().map(|&token| token.into()).collect())?,
                list(loss_mask.iter().map(|&bit| bit.into()).collect())?,
                Arc::new(length),
            ],
        )
    }

    /// Ends the rows, with the files that `datasets` reads beside them.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn finish(mut self) -> Result<()> {
        let path = self.folder.join(ROWS);
        let ended = self.writer.finish().and_then(|()| self.writer.into_inner());
        let written = ended
            .map_err(|source| Error::write(&path, source))?
            .commit()?;
        let info = json!({"citation": "", "description": "", "features": features(), "homepage": "", "license": ""});
        let state = json!({
            "_data_files": [{"filename": ROWS}],
            "_fingerprint": &written.sha256[..16],
            "_format_columns": null,
            "_format_kwargs": {},
            "_format_type": "torch",
            "_output_all_columns": false,
            "_split": null,
        });
        for (name, value) in [("dataset_info.json", info), (STATE, state)] {
            let text = format!("{value:#}\n");
            durable::write_whole(&self.folder.join(name), text.as_bytes())?;
        }
        Ok(())
    }
}
