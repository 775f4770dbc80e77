//! Features that others captured, proven and written in this program's own layout.

use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, bail};
use burn::prelude::Device;
use serde::Serialize;
use serde_json::json;
use spectrain_checkpoints::atomic::write_with;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_checkpoints::{DType, ModelFolder};
use spectrain_data::Error;
use spectrain_data::features::{FeatureHeader, FeatureWriter, StoredSample, StoredType};
use spectrain_data::foreign::{ForeignFeatures, ForeignStates, SaidLayers, open};
use spectrain_models::{TargetParts, load_parts, load_target};

use super::evidence::Sample;
use super::layers::{FoundLayer, Slots, check};
use super::masks::{Unmasked, loss_mask};
use super::proof::{TextProof, prove};
use crate::progress::{Output, Progress, counted};
use crate::runs::files::write_json;
use crate::runs::hashes::prove_files;
use crate::runs::run_folder::{LOCK, lock_for};
use crate::runtime::bf16::words;
use crate::runtime::capture::proof::LastState;
use crate::runtime::capture::server::Captured;
use crate::runtime::capture::states::HiddenStates;
use crate::runtime::capture::stored::{Bits, bits, check_states};
use crate::runtime::interruption::check_interrupted;
use crate::runtime::target;

/// What says how features were imported, in their folder.
pub const IMPORT: &str = "import.json";
/// The imported texts as rows of tokens, to train on.
pub const TOKENS: &str = "tokens.jsonl";
/// The files of stored features that tell a folder of them.
const INDEX: &str = "features.json";
const FIRST_SHARD: &str = "features-00000.arrow";
/// Samples by which features are proven.
const PROVEN: usize = 8;
/// How far a last state that was normed here may be from the one that the file has, relative to itself.
const MOST_APART: f32 = 0.02;

/// The same of all numbers of a text together, as a share of their length, where each is rounded to one of some 255 steps.
const MOST_APART_IN_EIGHT_BITS: f32 = 0.02;

/// What is imported, and how.
pub struct Import<'a> {
    /// The folder of features.
    pub from: &'a Path,
    /// The folder of their rows, where it is another one.
    pub rows: Option<&'a Path>,
    /// The folder to write.
    pub out: &'a Path,
    /// The target's folder.
    pub target: &'a Path,
    /// What the target is called.
    pub model: &'a str,
    /// Layers that have run, of each slot.
    pub layer_ids: Option<&'a [u32]>,
    /// What texts without a loss mask are trained on.
    pub unmasked: Option<Unmasked>,
    /// Whether the target computes its layers, to compare them.
    pub check_layers: bool,
    /// Samples of one file.
    pub samples_per_shard: u64,
    /// What hidden states are written in.
    pub stored: StoredType,
    /// Where the target computes.
    pub device: Device,
    /// In which type.
    pub dtype: DType,
    /// Where progress goes.
    pub output: Output,
}

/// How features were imported.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ImportReport {
    /// Version of this program.
    pub spectrain: String,
    /// The folder that they came from.
    pub from: String,
    /// Its layout.
    pub layout: String,
    /// The target.
    pub target: String,
    /// See [`FeatureHeader::target_sha256`].
    pub target_sha256: String,
    /// Samples.
    pub samples: usize,
    /// Samples that the folder names and has no states of.
    pub without_states: usize,
    /// Tokens.
    pub tokens: u64,
    /// Tokens that are trained on.
    pub trained_tokens: u64,
    /// Samples that had no loss mask.
    pub without_mask: usize,
    /// Captured layers, 0-based.
    pub captured_layers: Vec<usize>,
    /// Slots with the embedding, which were left out.
    pub embedding_slots: Vec<usize>,
    /// What was found of the states.
    pub proof: TextProof,
    /// The slots beside the target's own layers, where they were compared.
    pub layers: Option<Vec<FoundLayer>>,
}

/// Texts of all samples, in short.
struct Texts {
    fingerprint: String,
    tokens: u64,
    trained: u64,
    without_mask: usize,
}

/// Imports features.
///
/// # Errors
/// They cannot be read, or are not the target's; the message says what is so in place of that.
pub fn import(wanted: &Import) -> Result<ImportReport> {
    let found = open(wanted.from, wanted.rows)?;
    let target = load_parts(wanted.target, &wanted.device, wanted.dtype)?;
    check_out(wanted.out)?;
    let slots = slots(wanted, found.as_ref(), &target)?;
    let texts = read_texts(wanted, found.as_ref(), target.spec.vocab)?;
    let samples = to_prove(wanted, found.as_ref())?;
    let proof = prove(&samples, &target)?;
    if slots.captured() == found.slots() {
        check_captured(wanted.from, proof.last_state)?;
    }
    let layers = match wanted.check_layers {
        false => None,
        true => {
            let model = ModelFolder::open(wanted.target)?;
            let whole = load_target(&model, &wanted.device, wanted.dtype)?;
            let longest = samples.iter().max_by_key(|sample| sample.tokens.len());
            let longest = longest.context("there is no sample")?;
            let found = check(longest, &slots, &whole);
            Some(found.with_context(|| format!("sample {}", longest.number))?)
        }
    };
    let report = ImportReport {
        spectrain: env!("CARGO_PKG_VERSION").into(),
        from: wanted.from.display().to_string(),
        layout: found.layout().into(),
        target: wanted.model.into(),
        target_sha256: target::sha256(wanted.target)?,
        samples: found.samples(),
        without_states: found.without_states(),
        tokens: texts.tokens,
        trained_tokens: texts.trained,
        without_mask: texts.without_mask,
        captured_layers: slots.layers.clone(),
        embedding_slots: slots.embedding.clone(),
        proof,
        layers,
    };
    let header = FeatureHeader {
        target_sha256: report.target_sha256.clone(),
        captured_layers: slots.layers.clone(),
        d_model: target.spec.d_model,
        tokens_fingerprint: texts.fingerprint,
        dtype: wanted.stored,
    };
    let _lock = lock_for(wanted.out, "choose another `--out`")?;
    let conversion = Conversion {
        wanted,
        found: found.as_ref(),
        target: &target,
        slots: &slots,
        last_state: report.proof.last_state,
    };
    conversion.write(header)?;
    write_tokens(wanted, found.as_ref())?;
    write_json(&wanted.out.join(IMPORT), &report)?;
    Ok(report)
}

/// Fails where a folder holds something else than features.
fn check_out(out: &Path) -> Result<()> {
    // Shards whose index is lost are features as well.
    let is_ours = [INDEX, FIRST_SHARD]
        .iter()
        .any(|name| out.join(name).exists());
    // The lock of an import that was stopped before it wrote anything may be there.
    let is_lock =
        |entry: std::io::Result<fs::DirEntry>| entry.is_ok_and(|entry| entry.file_name() == LOCK);
    let is_empty = || fs::read_dir(out).map_or(true, |mut entries| entries.all(is_lock));
    if !is_ours && !is_empty() {
        bail!(
            "`{}` exists already and holds something other than features; choose another `--out`",
            out.display()
        );
    }
    Ok(())
}

/// The slots to keep, by what the folder or the user says.
fn slots(wanted: &Import, found: &dyn ForeignFeatures, target: &TargetParts) -> Result<Slots> {
    let (slots, layers, named) = (found.slots(), target.spec.layers, wanted.from.display());
    if found.d_model() != target.spec.d_model {
        bail!(
            "`{named}`: the width of hidden states: expected {} as the target has, found {}",
            target.spec.d_model,
            found.d_model()
        );
    }
    let given = wanted.layer_ids.and_then(SaidLayers::of_layers_run);
    let said = match (given, found.layers()) {
        (Some(given), Some(said)) if given.captured != said.captured => bail!(
            "`{named}`: `--layer-ids`: expected those of the folder, {:?}, found {:?}",
            ids(said),
            ids(&given)
        ),
        (_, Some(said)) => said.clone(),
        (Some(given), None) => given,
        (None, None) => bail!(
            "`{named}`: expected `--layer-ids`, because the folder does not say of which layers its {slots} slots are: give \
             the ids that the server was started with, the last of which is {layers} (speculators' own are \
             `2,{},{},{layers}`), and {layers} twice where the drafter is to read the last layer, too",
            layers / 2,
            layers.saturating_sub(3)
        ),
    };
    Slots::of(&said, slots, layers).with_context(|| format!("`{named}`"))
}

/// Fails where the last slot, which is to be a captured layer, too, is not the output of a layer.
fn check_captured(from: &Path, last_state: LastState) -> Result<()> {
    let before = LastState::BeforeNorm;
    if last_state != before {
        bail!(
            "`{}`: the last slot, which is to be a captured layer, too: expected states {before}, found states {last_state}",
            from.display()
        );
    }
    Ok(())
}

/// Ids as vLLM has them.
fn ids(said: &SaidLayers) -> Vec<i64> {
    said.captured.iter().map(|layer| layer + 1).collect()
}

/// Reads the tokens of every sample, which must be the target's.
fn read_texts(wanted: &Import, found: &dyn ForeignFeatures, vocab: usize) -> Result<Texts> {
    let mut digests = String::new();
    let mut texts = Texts {
        fingerprint: String::new(),
        tokens: 0,
        trained: 0,
        without_mask: 0,
    };
    let mut progress = wanted.output.start("texts", found.samples() as u64);
    for number in 0..found.samples() {
        check_interrupted()?;
        let text = found.text(number)?;
        if let Some(token) = text.tokens.iter().find(|token| **token as usize >= vocab) {
            bail!("sample {number}: expected tokens below {vocab}, found {token}");
        }
        let mask = loss_mask(&text, number, wanted.unmasked.as_ref())?;
        texts.without_mask += usize::from(text.loss_mask.is_none());
        texts.tokens += text.tokens.len() as u64;
        texts.trained += mask.iter().filter(|bit| **bit != 0).count() as u64;
        digests.push_str(&sha256_bytes(
            json!([text.tokens, mask]).to_string().as_bytes(),
        ));
        progress.set(number as u64 + 1, "samples");
    }
    if texts.trained == 0 {
        bail!("expected tokens that are trained on, found none in the loss masks");
    }
    texts.fingerprint = sha256_bytes(digests.as_bytes());
    progress.finish(format!(
        "{}, {} tokens",
        counted(found.samples() as u64, "sample"),
        texts.tokens
    ));
    Ok(texts)
}

/// Samples to prove the features by, from the whole folder.
fn to_prove(wanted: &Import, found: &dyn ForeignFeatures) -> Result<Vec<Sample>> {
    let count = found.samples().min(PROVEN);
    let numbers = (0..count).map(|at| at * found.samples() / count);
    let sample = |number: usize| {
        let text = found.text(number)?;
        let states = states_of(found, number, text.tokens.len())?.states;
        let rounded = states.clone().cast(DType::BF16)?;
        let sizes = [found.slots(), found.d_model()];
        check_states(&words(&rounded.bytes), sizes).with_context(|| format!("sample {number}"))?;
        Ok(Sample {
            number,
            loss_mask: loss_mask(&text, number, wanted.unmasked.as_ref())?,
            tokens: text.tokens,
            states,
        })
    };
    numbers.map(sample).collect()
}

/// The states of a sample, one for each of its tokens.
fn states_of(found: &dyn ForeignFeatures, number: usize, tokens: usize) -> Result<ForeignStates> {
    let states = found.states(number)?;
    let expected = [tokens, found.slots(), found.d_model()];
    if states.states.shape != expected {
        bail!(
            "sample {number}: hidden states: expected the shape {expected:?}, found {:?}",
            states.states.shape
        );
    }
    Ok(states)
}

/// An error of a folder `out` that features were written into, with what to do about it.
fn advised(error: anyhow::Error, out: &Path) -> anyhow::Error {
    let out = out.display();
    match error.downcast_ref() {
        Some(Error::Altered { .. }) => anyhow!(
            "{error}; remove this file, and the same command imports it again, or choose another `--out`"
        ),
        Some(Error::FeatureHeader { .. }) => {
            anyhow!("{error}; choose another `--out`, or remove `{out}` to import all anew")
        }
        _ => error,
    }
}

/// A folder on its way into stored features.
struct Conversion<'a> {
    wanted: &'a Import<'a>,
    found: &'a dyn ForeignFeatures,
    target: &'a TargetParts,
    slots: &'a Slots,
    last_state: LastState,
}

/// A sample as it is stored.
struct Converted {
    tokens: Vec<u32>,
    loss_mask: Vec<u8>,
    states: Bits,
    /// Whether the last state went through the norm here, as exactly as the device computes.
    normed_here: bool,
}

impl Conversion<'_> {
    /// Writes the features of every sample, from where an earlier import of the same states stopped.
    fn write(&self, header: FeatureHeader) -> Result<()> {
        let (wanted, count) = (self.wanted, self.found.samples());
        let per_shard = wanted.samples_per_shard;
        let writer = FeatureWriter::open_with(wanted.out, header, per_shard, None, prove_files);
        let mut writer = writer.map_err(|error| advised(error, wanted.out))?;
        for amiss in writer.amiss() {
            wanted.output.warn(amiss);
        }
        let mut progress = wanted.output.start("import", count as u64);
        self.check_written(&writer, &mut progress)?;
        for number in writer.missing(count as u64).into_iter().flatten() {
            let number = number as usize;
            if let Err(interrupted) = check_interrupted() {
                writer.pause()?;
                return Err(interrupted);
            }
            let made = self.sample(number)?;
            writer.push(&made.states.sample(&made.tokens, &made.loss_mask))?;
            progress.set(number as u64 + 1, "samples");
        }
        writer.finish()?;
        progress.finish(counted(count as u64, "sample"));
        Ok(())
    }

    /// Fails where what is written already is of other states. The header does not tell: it is that of the texts.
    fn check_written(&self, writer: &FeatureWriter, progress: &mut Progress) -> Result<()> {
        writer.each_sample(&mut |number, written| {
            check_interrupted()?;
            let made = self.sample(number as usize)?;
            if !self.is_same(&made, &written)? {
                let out = self.wanted.out.display();
                bail!(
                    "`{out}`: sample {number}: expected the hidden states in `{}`, found others of the same text; choose another \
                     `--out`, or remove `{out}` to import all of them anew",
                    self.wanted.from.display()
                );
            }
            progress.set(number + 1, "samples");
            Ok(())
        })
    }

    /// Whether a sample was written with these states.
    fn is_same(&self, made: &Converted, written: &StoredSample) -> Result<bool> {
        let d_model = self.target.spec.d_model;
        let captured = self.slots.layers.len() * d_model;
        let stored = self.wanted.stored;
        let read_back = |bits, width| stored.read_back(bits, width).context("no number");
        if read_back(&made.states.captured, captured)? != written.captured.bits() {
            return Ok(false);
        }
        let last = read_back(&made.states.last, d_model)?;
        let found = written.last.bits();
        let is_near = || match stored {
            StoredType::Bf16 => first_apart(&last, &found).is_none(),
            StoredType::Int8 => share_apart(&last, &found) < MOST_APART_IN_EIGHT_BITS,
        };
        Ok(last == found || (made.normed_here && is_near()))
    }

    fn sample(&self, number: usize) -> Result<Converted> {
        let (found, width) = (self.found, self.target.spec.d_model);
        let text = found.text(number)?;
        let states = states_of(found, number, text.tokens.len())?;
        let loss_mask = loss_mask(&text, number, self.wanted.unmasked.as_ref())?;
        let captured = Captured {
            tokens: text.tokens.clone(),
            states: HiddenStates {
                tokens: text.tokens.clone(),
                states: states.states,
            },
            likely: Vec::new(),
        };
        let named = || format!("sample {number}");
        let layers = self.slots.captured();
        let made = bits(&captured, layers, self.last_state, self.target);
        let mut made = made.with_context(named)?;
        // Here every token has its states, the last one as well.
        for (rows, slots) in [(&made.captured, layers), (&made.last, 1)] {
            check_states(rows, [slots.max(1), width]).with_context(named)?;
        }
        let mut normed_here = self.last_state == LastState::BeforeNorm;
        if let Some(normed) = states.normed {
            check_normed(number, &made, &normed)?;
            made.last = normed;
            normed_here = false;
        }
        made.captured = self.slots.columns(&made.captured, width);
        Ok(Converted {
            tokens: text.tokens,
            loss_mask,
            states: made,
            normed_here,
        })
    }
}

/// Fails where a last state beside the others is not what the norm makes of the one among them.
fn check_normed(number: usize, made: &Bits, normed: &[u16]) -> Result<()> {
    match first_apart(&made.last, normed) {
        None => Ok(()),
        Some((made, found)) => bail!(
            "sample {number}: `{}`: expected {made}, which the norm makes of the last slot, found {found}",
            spectrain_data::foreign::LAST_NORMED,
        ),
    }
}

/// The first number of last states that were normed here that is further from the one that is found than rounding explains, with that.
fn first_apart(made: &[u16], found: &[u16]) -> Option<(f32, f32)> {
    let square = |bits: &u16| value(*bits).powi(2);
    let mean = made.iter().map(square).sum::<f32>() / made.len().max(1) as f32;
    let slack = 1e-3 * mean.sqrt();
    let pairs = made.iter().zip(found);
    let mut pairs = pairs.map(|(made, found)| (value(*made), value(*found)));
    pairs.find(|(made, found)| {
        let apart = (made - found).abs();
        apart.is_nan() || apart > MOST_APART * made.abs() + slack
    })
}

/// The number with these bits of bf16.
fn value(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// How far last states are from those that are found, as a share of their own length.
fn share_apart(made: &[u16], found: &[u16]) -> f32 {
    let pairs = made.iter().zip(found);
    let (apart, own) = pairs.fold((0.0, 0.0), |(apart, own), (&made, &found)| {
        let (made, found) = (value(made), value(found));
        (apart + (made - found).powi(2), own + made.powi(2))
    });
    (apart / f32::max(own, f32::MIN_POSITIVE)).sqrt()
}

/// Writes the texts as rows of tokens.
fn write_tokens(wanted: &Import, found: &dyn ForeignFeatures) -> Result<()> {
    let mut failure = None;
    let line = |file: &mut BufWriter<fs::File>, number: usize| -> Result<()> {
        let text = found.text(number)?;
        let mask = loss_mask(&text, number, wanted.unmasked.as_ref())?;
        let row = json!({"input_ids": text.tokens, "loss_mask": mask});
        Ok(writeln!(file, "{row}")?)
    };
    let written = write_with(&wanted.out.join(TOKENS), |file| {
        for number in 0..found.samples() {
            if let Err(error) = line(file, number) {
                let told = std::io::Error::other(format!("{error:#}"));
                failure = Some(error);
                return Err(told);
            }
        }
        Ok(())
    });
    match failure {
        Some(failure) => Err(failure),
        None => Ok(written?),
    }
}
