//! The map between the drafter's vocabulary and the target's.

use std::path::Path;

use crate::dialect::settings::Settings;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expected::TensorSpec;
use crate::tensors::NamedTensor;

/// How a folder says which of the target's tokens a drafter knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenMap {
    /// Not at all: it knows every one.
    Whole,
    /// `d2t` holds offsets, not ids: token `i` of the drafter is token `i + d2t[i]` of the target. `t2d` says for each token
    /// of the target whether the drafter has it.
    Offsets,
    /// `token_map` holds the target's id of each.
    Ids,
}

const OFFSETS: &str = "d2t";
const MARKS: &str = "t2d";
const IDS: &str = "token_map";

impl TokenMap {
    /// The tensors of a draft vocabulary, ascending, of a target of so many tokens.
    ///
    /// # Panics
    /// An id is outside the target's vocabulary.
    pub(crate) fn tensors(self, ids: &[usize], vocab: usize) -> Vec<NamedTensor> {
        let values = || ids.iter().map(|&id| id as i64);
        match self {
            Self::Whole => Vec::new(),
            Self::Ids => vec![NamedTensor::from_i64(IDS, [ids.len()], values().collect())],
            Self::Offsets => {
                let mut marks = vec![false; vocab];
                ids.iter().for_each(|&id| marks[id] = true);
                let offsets = values().zip(0..).map(|(id, draft)| id - draft).collect();
                vec![
                    NamedTensor::from_i64(OFFSETS, [ids.len()], offsets),
                    NamedTensor::from_bool(MARKS, [vocab], marks),
                ]
            }
        }
    }

    /// Adds what a folder must and may hold: `t2d` is read by no engine, so published folders may lack it.
    pub(crate) fn expect(
        self,
        settings: &Settings,
        required: &mut Vec<TensorSpec>,
        optional: &mut Vec<TensorSpec>,
    ) {
        if !settings.has_draft_vocab() {
            return;
        }
        let draft = vec![settings.size("draft_vocab")];
        match self {
            Self::Whole => {}
            Self::Ids => required.push((IDS.into(), draft, DType::I64)),
            Self::Offsets => {
                required.push((OFFSETS.into(), draft, DType::I64));
                let vocab = vec![settings.size("vocab")];
                optional.push((MARKS.into(), vocab, DType::Bool));
            }
        }
    }

    /// Drops the map of a vocabulary that is the target's, which says nothing and which vLLM refuses. A map that says
    /// something stays, and is refused as one too many.
    pub(crate) fn drop_identity(
        self,
        settings: &Settings,
        tensors: &mut Vec<NamedTensor>,
    ) -> Result<()> {
        if settings.has_draft_vocab() || self != Self::Offsets {
            return Ok(());
        }
        let mut kept = Vec::with_capacity(tensors.len());
        for tensor in tensors.drain(..) {
            let says_nothing = match tensor.name.as_str() {
                OFFSETS => tensor.to_i64()?.iter().all(|&offset| offset == 0),
                MARKS => tensor.bytes.iter().all(|&known| known != 0),
                _ => false,
            };
            if !says_nothing {
                kept.push(tensor);
            }
        }
        *tensors = kept;
        Ok(())
    }

    /// The name of a map of fewer tokens than the target's, and how many it has, where the settings say that the drafter knows every one.
    pub(crate) fn unsaid(
        self,
        settings: &Settings,
        tensors: &[NamedTensor],
    ) -> Option<(&'static str, usize)> {
        if settings.has_draft_vocab() || self != Self::Offsets {
            return None;
        }
        let map = tensors.iter().find(|tensor| tensor.name == OFFSETS)?;
        let size = map.shape.first().copied();
        let size = size.filter(|&size| size < settings.size("vocab"))?;
        Some((OFFSETS, size))
    }

    /// Takes the map out of a folder's tensors: the target's id of each token, ascending. `absolute` says that `d2t` holds
    /// ids.
    ///
    /// # Errors
    /// An id is not the target's, they do not ascend, or `t2d` marks others. Offsets that are all shifted alike are seen
    /// through `t2d` only.
    pub(crate) fn take(
        self,
        file: &Path,
        settings: &Settings,
        absolute: bool,
        tensors: &mut Vec<NamedTensor>,
    ) -> Result<Option<Vec<usize>>> {
        let name = match self {
            Self::Whole => return Ok(None),
            Self::Offsets => OFFSETS,
            Self::Ids => IDS,
        };
        let Some(map) = take(tensors, name) else {
            return Ok(None);
        };
        let wrong = |name: &str, reason: String| Error::Values {
            name: name.to_string(),
            path: file.to_path_buf(),
            reason,
        };
        let vocab = settings.size("vocab");
        let shifted = self == Self::Offsets && !absolute;
        let mut ids = Vec::new();
        for (value, draft) in map.to_i64()?.into_iter().zip(0_i64..) {
            let id = value.checked_add(if shifted { draft } else { 0 });
            let id = id.and_then(|id| usize::try_from(id).ok()).ok_or_else(|| {
                wrong(
                    name,
                    format!("offset {value} of draft token {draft} leads to no target token"),
                )
            })?;
            if id >= vocab {
                let reason =
                    format!("draft token {draft} is target token {id}; the target has {vocab}");
                return Err(wrong(name, reason));
            }
            ids.push(id);
        }
        if let Some(draft) = ids.windows(2).position(|pair| pair[0] >= pair[1]) {
            let (id, next, behind) = (ids[draft], ids[draft + 1], draft + 1);
            let reason = format!(
                "target ids must ascend, but draft tokens {draft} and {behind} are {id} and {next}"
            );
            return Err(wrong(name, reason));
        }
        if let Some(marks) = take(tensors, MARKS) {
            check_marks(&marks.to_bool()?, &ids).map_err(|reason| wrong(MARKS, reason))?;
        }
        Ok(Some(ids))
    }
}

fn take(tensors: &mut Vec<NamedTensor>, name: &str) -> Option<NamedTensor> {
    let at = tensors.iter().position(|tensor| tensor.name == name)?;
    Some(tensors.remove(at))
}

fn check_marks(drafted: &[bool], ids: &[usize]) -> std::result::Result<(), String> {
    let marked: Vec<usize> = (0..drafted.len()).filter(|&id| drafted[id]).collect();
    if marked == ids {
        return Ok(());
    }
    let mut pairs = marked.iter().zip(ids);
    let first = pairs.position(|(a, b)| a != b);
    let first = first.unwrap_or(marked.len().min(ids.len()));
    Err(format!(
        "it does not mark the {} tokens that `d2t` leads to: they differ from draft token {first} on",
        ids.len()
    ))
}
