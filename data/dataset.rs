//! A dataset whose files are on this machine, and its rows.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cap::{Cap, Wanted};
use crate::error::{Error, Result};
use crate::hub_data::FetchedData;
use crate::prepare::Category;
use crate::presets::Conversion;
use crate::rows::{
    Columns, LocatedRow, Location, TextReader, files, found, is_same, read_columns, read_texts,
    would_read,
};
use crate::seed::{mix, uniform};

pub use crate::cap::{LeftOut, ReadPart};

/// Seed of the choice of rows by weight: the same in every run, whatever its own seed.
const WEIGHT_SEED: u64 = 0x77e1_6474;

/// Rows in their order.
type Rows = Box<dyn Iterator<Item = Result<LocatedRow>> + Send>;

/// A dataset whose files are on this machine.
#[derive(Debug, Clone)]
pub struct Dataset {
    sources: Vec<Located>,
    unusable: Arc<Mutex<Category>>,
    /// How many rows are read, where not all are.
    cap: Option<Arc<Cap>>,
}

/// A part of a dataset.
#[derive(Debug, Clone, PartialEq)]
pub struct Located {
    /// The name of the preset that it is.
    pub(crate) name: Option<String>,
    /// Where its files are.
    pub place: Place,
    /// How its rows become conversations.
    pub(crate) conversion: Conversion,
    /// How often its samples are taken.
    pub weight: f64,
}

/// Where files are.
#[derive(Debug, Clone, PartialEq)]
pub enum Place {
    /// A file, a folder or a pattern.
    Path(PathBuf),
    /// Files of a dataset of the hub.
    Hub(Box<FetchedData>),
}

impl Located {
    /// Its files.
    ///
    /// # Errors
    /// The path leads to no file with rows.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        match &self.place {
            Place::Path(path) => files(path),
            Place::Hub(data) => Ok(data.paths.clone()),
        }
    }

    /// Whether a file, which need not be there yet, is one of them under this or another name.
    fn reads(&self, file: &Path) -> bool {
        match &self.place {
            Place::Path(path) => would_read(path, file),
            Place::Hub(data) => data.paths.iter().any(|path| is_same(path, file)),
        }
    }

    /// What to say of files and folders beside its files that no rows are read from.
    fn not_read(&self) -> Option<String> {
        match &self.place {
            // A path that leads nowhere is an error where it is read.
            Place::Path(path) => found(path).ok()?.remark(path),
            Place::Hub(_) => None,
        }
    }

    /// What its rows depend on beside its files; empty for most.
    pub fn reading(&self) -> String {
        match self.conversion {
            Conversion::None => String::new(),
            conversion => conversion.to_string(),
        }
    }

    /// What reports call it: the name of a preset or of a file, or that of a dataset with its split.
    pub fn short_name(&self) -> Option<String> {
        match (&self.name, &self.place) {
            (Some(name), _) => Some(name.clone()),
            (None, Place::Path(path)) => Some(path.file_stem()?.to_string_lossy().into_owned()),
            (None, Place::Hub(data)) => {
                let name = data.id.rsplit('/').next().unwrap_or_default();
                Some(format!("{name} {}", data.split))
            }
        }
    }

    fn rows(
        &self,
        columns: Columns,
        unusable: &Arc<Mutex<Category>>,
        wanted: Wanted,
    ) -> Result<Rows> {
        let data = match &self.place {
            Place::Path(path) => return Ok(Box::new(wanted.first(read_columns(path, columns)?))),
            Place::Hub(data) => data,
        };
        let (conversion, unusable) = (self.conversion, unusable.clone());
        let columns = match conversion {
            Conversion::None => columns,
            converted => converted.columns(),
        };
        let name = Path::new(&data.address);
        let texts = wanted.first(TextReader::of(name, data.paths.clone(), columns));
        Ok(Box::new(texts.filter_map(move |found| {
            let (location, text) = match found {
                Ok(found) => found,
                Err(error) => return Some(Err(error)),
            };
            match conversion.row(&text) {
                Ok(Some(row)) => Some(Ok(LocatedRow::new(location, row))),
                Ok(None) => {
                    let mut unusable = unusable.lock().unwrap_or_else(PoisonError::into_inner);
                    unusable.add(format!("{location}: no question with an answer"));
                    None
                }
                Err(mismatch) => Some(Err(Error::row(&location, &text, mismatch))),
            }
        })))
    }
}

impl fmt::Display for Located {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match &self.place {
            Place::Path(path) => write!(f, "{}", path.display()),
            Place::Hub(data) => f.write_str(&data.address),
        }
    }
}

impl From<PathBuf> for Dataset {
    /// The file, folder or pattern, whether it leads anywhere or not.
    fn from(path: PathBuf) -> Self {
        Self::new(vec![Located {
            name: None,
            place: Place::Path(path),
            conversion: Conversion::None,
            weight: 1.0,
        }])
    }
}

impl fmt::Display for Dataset {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for (number, source) in self.sources.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            write!(f, "{comma}`{source}`")?;
        }
        Ok(())
    }
}

impl Dataset {
    /// That of some sources.
    pub(crate) fn new(sources: Vec<Located>) -> Self {
        Self {
            sources,
            unusable: Arc::default(),
            cap: None,
        }
    }

    /// The same, of which at most so many rows are read: the first ones of its files in their order. Of several parts each gives
    /// the share that it has of all rows; weights say how often these are taken. Rows that cannot be used count.
    #[must_use]
    pub fn at_most(self, rows: Option<usize>) -> Self {
        Self {
            cap: rows.map(|rows| Arc::new(Cap::new(rows))),
            ..self
        }
    }

    /// How many rows are read at most, where it is so.
    pub fn most(&self) -> Option<usize> {
        self.cap.as_ref().map(|cap| cap.most())
    }

    /// What was not read of it, where more is there than was asked for, as far as it was read.
    pub fn left_out(&self) -> Option<LeftOut> {
        self.cap.as_ref()?.left_out()
    }

    /// Each of its parts.
    pub fn each(&self) -> &[Located] {
        &self.sources
    }

    /// The only part, where there is one alone.
    pub fn only(&self) -> Option<&Located> {
        match &self.sources[..] {
            [source] => Some(source),
            _ => None,
        }
    }

    /// What of it is of the hub.
    pub fn of_hub(&self) -> impl Iterator<Item = &FetchedData> {
        self.sources
            .iter()
            .filter_map(|source| match &source.place {
                Place::Hub(data) => Some(data.as_ref()),
                Place::Path(_) => None,
            })
    }

    /// All its files.
    ///
    /// # Errors
    /// A path leads to no file with rows.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let each = self.sources.iter().map(Located::files);
        Ok(each.collect::<Result<Vec<_>>>()?.concat())
    }

    /// Whether a file, which need not be there yet, is one of its files under this or another name.
    pub fn reads(&self, file: &Path) -> bool {
        self.sources.iter().any(|source| source.reads(file))
    }

    /// What to say of files and folders that its paths lead to and that no rows are read from.
    pub fn not_read(&self) -> Vec<String> {
        self.sources.iter().filter_map(Located::not_read).collect()
    }

    /// The rows of all parts one after the other, with how often their samples are taken; those that are not are there too.
    ///
    /// # Errors
    /// A path leads to no file with rows. Each item fails for itself.
    pub fn rows(&self) -> Result<impl Iterator<Item = Result<LocatedRow>> + Send + use<>> {
        self.rows_with(&Columns::Needed)
    }

    /// The same with every other column of tables too, as far as rows are not converted.
    ///
    /// # Errors
    /// Those of [`rows`](Self::rows).
    pub fn whole_rows(&self) -> Result<impl Iterator<Item = Result<LocatedRow>> + Send + use<>> {
        self.rows_with(&Columns::All)
    }

    fn rows_with(
        &self,
        columns: &Columns,
    ) -> Result<impl Iterator<Item = Result<LocatedRow>> + Send + use<>> {
        *self.unusable.lock().unwrap_or_else(PoisonError::into_inner) = Category::default();
        let files = || -> Result<Vec<(String, Vec<PathBuf>)>> {
            let named = |source: &Located| Ok((source.to_string(), source.files()?));
            self.sources.iter().map(named).collect()
        };
        let parts = self.cap.as_ref().map(|cap| cap.parts(files));
        let parts = parts.transpose()?;
        let each = self.sources.iter().enumerate().map(|(place, source)| {
            let (seed, weight) = (mix(WEIGHT_SEED, place as u64), source.weight);
            let first = Wanted::of(self.cap.as_ref(), parts.map(|parts| &parts[place]));
            let rows = (0..).zip(source.rows(columns.clone(), &self.unusable, first)?);
            Ok(rows.map(move |(number, row)| {
                row.map(|row| LocatedRow {
                    copies: copies(weight, mix(seed, number)),
                    ..row
                })
            }))
        });
        Ok(each.collect::<Result<Vec<_>>>()?.into_iter().flatten())
    }

    /// Whether rows of it are converted into conversations.
    pub(crate) fn is_converted(&self) -> bool {
        let mut each = self.sources.iter();
        each.any(|source| source.conversion != Conversion::None)
    }

    /// The rows as the JSON that they are, with these columns of tables.
    pub(crate) fn texts(
        &self,
        columns: &Columns,
    ) -> Result<impl Iterator<Item = Result<(Location, String)>> + Send + use<>> {
        let each = self.sources.iter().map(|source| match &source.place {
            Place::Path(path) => read_texts(path, columns.clone()),
            Place::Hub(data) => {
                let name = Path::new(&data.address);
                Ok(TextReader::of(name, data.paths.clone(), columns.clone()))
            }
        });
        Ok(each.collect::<Result<Vec<_>>>()?.into_iter().flatten())
    }

    /// Rows of presets that the last [`rows`](Self::rows) left out so far, as they hold no question with an answer.
    pub fn unusable(&self) -> Category {
        let unusable = self.unusable.lock();
        unusable.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The whole part of a weight, and one more for as large a share of the rows as the rest says.
fn copies(weight: f64, bits: u64) -> usize {
    let more = uniform(bits) < weight.fract();
    weight as usize + usize::from(more)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use spectrain_checkpoints::HubOptions;

    use crate::sources::Sources;

    #[test]
    fn a_weight_says_how_often_rows_are_taken() {
        let folder = tempfile::tempdir().unwrap();
        let row = r#"{"input_ids": [1], "loss_mask": [1]}"#;
        for name in ["a.jsonl", "b.jsonl"] {
            std::fs::write(folder.path().join(name), format!("{row}\n").repeat(400)).unwrap();
        }
        let path = |name: &str| folder.path().join(name);
        let given = json!([{"path": path("a.jsonl"), "weight": 2}, {"path": path("b.jsonl"), "weight": 0.5}]);
        let sources: Sources = serde_json::from_value(given).unwrap();
        let dataset = sources.fetch(&HubOptions::default()).unwrap();
        let taken = || -> Vec<usize> {
            dataset
                .rows()
                .unwrap()
                .map(|row| row.unwrap().copies)
                .collect()
        };
        let copies = taken();
        assert!(copies[..400].iter().all(|&copies| copies == 2));
        let half: usize = copies[400..].iter().sum();
        assert!(
            (160..240).contains(&half) && copies[400..].iter().all(|&copies| copies < 2),
            "{half}"
        );
        assert_eq!(taken(), copies);
        assert_eq!(dataset.files().unwrap(), [path("a.jsonl"), path("b.jsonl")]);
    }
}
