//! The target's own answers to held-out prompts. They are written once, by the first validation, and kept with the run: what
//! a drafter makes of them says what a decoder would accept.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::json;
use spectrain_checkpoints::atomic::write_file;
use spectrain_checkpoints::hash::sha256_bytes;
use spectrain_eval::{self as eval, DecodeSettings, Decoder, Generation, OwnText};
use spectrain_models::{DraftShape, Sampling};
use spectrain_train::{Error, Result, Together};

use crate::runtime::texts::StoredTexts;

/// Where a training stage keeps them, in its folder.
pub(super) const ANSWERS: &str = "answers.json";

/// Prompts that the target answers side by side.
const TOGETHER: usize = 16;

/// The target's answers to held-out prompts.
pub(super) enum Answers<'a> {
    /// There are none.
    None,
    /// The target of this program writes them.
    Written(WrittenAnswers<'a>),
    /// A server wrote them, and handed out their hidden states.
    Stored(Box<StoredAnswers<'a>>),
}

impl Answers<'_> {
    /// Prompts.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::Written(written) => written.prompts.len(),
            Self::Stored(stored) => stored.texts.len(),
        }
    }

    /// Has all ranks know the answer to each prompt. All of them call this.
    ///
    /// # Errors
    /// A rank has ended, or was interrupted.
    pub(super) fn complete(&mut self, together: &mut Together) -> Result<()> {
        match self {
            Self::None => Ok(()),
            Self::Written(written) => written.complete(together),
            Self::Stored(stored) => {
                stored.keep(together);
                Ok(())
            }
        }
    }

    /// The digest of the prompts, of the answers to them, which are known, and of how long these may be: counts of the same can be
    /// compared.
    pub(super) fn sha256(&self) -> Option<String> {
        match self {
            Self::None => None,
            Self::Written(written) => {
                let known = written.known.as_deref()?;
                let each: Vec<_> = written.prompts.iter().zip(known).collect();
                Some(sha256_bytes(json!(each).to_string().as_bytes()))
            }
            Self::Stored(stored) => Some(stored.sha256()),
        }
    }

    /// A prompt with its answer and what the target makes of both; `None` where it has no answer of two tokens.
    pub(super) fn text(&self, prompt: usize) -> Option<OwnText> {
        match self {
            Self::None => None,
            Self::Written(written) => written.text(prompt),
            Self::Stored(stored) => {
                let answers = stored.texts.answers(prompt, stored.longest);
                answers.into_iter().next()
            }
        }
    }
}

/// Answers that are there with their features.
pub(super) struct StoredAnswers<'a> {
    /// The answers, with what was asked.
    pub(super) texts: StoredTexts<'a>,
    /// Tokens of an answer, at most, where that is known: no more are drafted behind it.
    pub(super) longest: Option<usize>,
    /// Where it is kept which prompts choose the weights.
    pub(super) file: PathBuf,
    /// Whether it was.
    pub(super) is_kept: bool,
}

impl StoredAnswers<'_> {
    fn fingerprint(&self) -> String {
        self.texts.header().tokens_fingerprint.clone()
    }

    /// See [`Answers::sha256`]: behind the longest answers nothing is drafted.
    fn sha256(&self) -> String {
        let of = self.fingerprint();
        match self.longest {
            None => of,
            Some(longest) => sha256_bytes(json!([of, longest]).to_string().as_bytes()),
        }
    }

    /// Keeps once which prompts choose the weights; rank 0 does.
    fn keep(&mut self, together: &Together) {
        if std::mem::replace(&mut self.is_kept, true) || !together.leads() {
            return;
        }
        let prompts = (0..self.texts.len()).map(|prompt| self.texts.prompt(prompt));
        let mut kept = Kept {
            of: self.fingerprint(),
            answers: Vec::new(),
            sha256: String::new(),
            validated: prompts.map(|prompt| digest_of(&prompt)).collect(),
        };
        kept.write(&self.file);
    }
}

/// Held-out prompts and how they are answered.
pub(super) struct WrittenAnswers<'a> {
    /// The target.
    pub(super) decoder: Decoder<'a>,
    /// Tokens of each prompt.
    pub(super) prompts: Vec<Vec<u32>>,
    /// Tokens of an answer, at most.
    pub(super) longest: usize,
    /// Tokens that end one.
    pub(super) stop: Vec<u32>,
    /// Where they are kept.
    pub(super) file: PathBuf,
    /// What else they depend on: the target, by a hash.
    pub(super) identity: String,
    /// One for each prompt, once they are known.
    pub(super) known: Option<Vec<Vec<u32>>>,
}

/// The file.
#[derive(Serialize, Deserialize)]
struct Kept {
    /// Hash of all that the answers depend on.
    of: String,
    /// Those that were written here.
    answers: Vec<Vec<u32>>,
    /// The digest of the answers: a damaged one would be judged by as if the target had said it.
    #[serde(default)]
    sha256: String,
    /// Digests of all prompts that a validation of this training was of: the evaluation may have left over others before.
    #[serde(default)]
    validated: BTreeSet<String>,
}

impl Kept {
    /// What is in a file, if it is one.
    fn read(file: &Path) -> Option<Self> {
        let text = fs::read_to_string(file).ok()?;
        serde_json::from_str(&text).ok()
    }

    /// Writes the file, with the prompts that it has of earlier validations.
    fn write(&mut self, file: &Path) {
        let before = Self::read(file).map(|kept| kept.validated);
        self.validated.extend(before.into_iter().flatten());
        if let Err(error) = write_file(file, json!(self).to_string().as_bytes()) {
            tracing::warn!(
                "cannot keep which prompts are validated with, nor answers that were written here, which a resumed run makes anew: \
                 {error}"
            );
        }
    }
}

/// What a prompt is known by in the file.
pub(super) fn digest_of(prompt: &[u32]) -> String {
    sha256_bytes(json!(prompt).to_string().as_bytes())
}

/// Digests of the prompts that the training stage in `folder` has chosen its weights by; none where it decoded none.
pub(super) fn validated(folder: &Path) -> BTreeSet<String> {
    let kept = Kept::read(&folder.join(ANSWERS));
    kept.map(|kept| kept.validated).unwrap_or_default()
}

fn digest(answers: &[Vec<u32>]) -> String {
    sha256_bytes(json!(answers).to_string().as_bytes())
}

impl WrittenAnswers<'_> {
    /// See [`Answers::complete`]. What is kept is what rank 0 finds.
    fn complete(&mut self, together: &mut Together) -> Result<()> {
        if self.known.is_some() {
            return Ok(());
        }
        let kept = together.leads().then(|| self.kept()).flatten();
        self.known = Some(match together.of_first(kept)? {
            Some(answers) => answers,
            None => self.write(together)?,
        });
        Ok(())
    }

    /// See [`Answers::text`]; of answers that are known.
    fn text(&self, prompt: usize) -> Option<OwnText> {
        let answer = self.known.as_ref()?.get(prompt)?;
        let Decoder {
            target, capture, ..
        } = self.decoder;
        OwnText::read(target, capture, &self.prompts[prompt], answer, self.longest)
    }

    /// The hash of what the answers depend on.
    fn of(&self) -> String {
        let (prompts, longest, stop) = (&self.prompts, self.longest, &self.stop);
        let all = json!([self.identity, prompts, longest, stop]);
        sha256_bytes(all.to_string().as_bytes())
    }

    /// Those of an earlier validation.
    fn kept(&self) -> Option<Vec<Vec<u32>>> {
        let kept = Kept::read(&self.file)?;
        let is_whole = kept.sha256 == digest(&kept.answers);
        let is_ours = kept.of == self.of() && kept.answers.len() == self.prompts.len();
        (is_whole && is_ours).then_some(kept.answers)
    }

    /// Lets the target answer every prompt, each on one of the ranks.
    fn write(&self, together: &mut Together) -> Result<Vec<Vec<u32>>> {
        let settings = DecodeSettings {
            max_new_tokens: self.longest,
            draft: DraftShape::Chain { length: 0 },
            sampling: Sampling::GREEDY,
            stop: self.stop.clone(),
            shadow: None,
        };
        let ours = (0..self.prompts.len()).filter(|&number| together.takes(number));
        let ours: Vec<usize> = ours.collect();
        let prompts = ours.iter().map(|&number| self.prompts[number].clone());
        let found = self.decoder.plain_batch(prompts, 0, TOGETHER, &settings);
        let answer = |found: eval::Result<Generation>| match found {
            Ok(generation) => Ok(generation.tokens),
            Err(error) if error.is_interruption() => Err(Error::Interrupted),
            Err(error) => {
                tracing::warn!("the target did not answer a validation prompt: {error}");
                Ok(Vec::new())
            }
        };
        let found = found.into_iter().map(answer).zip(ours);
        let answers = found.map(|(tokens, number)| Ok((number, tokens?)));
        let answers = answers.collect();
        let answers: Vec<Vec<u32>> = together.gather_pieces(answers)?;
        let own = self.prompts.iter().map(|prompt| digest_of(prompt));
        let mut kept = Kept {
            of: self.of(),
            sha256: digest(&answers),
            answers,
            validated: own.collect(),
        };
        if together.leads() {
            kept.write(&self.file);
        }
        Ok(kept.answers)
    }
}

#[cfg(test)]
mod tests {
    use burn::prelude::Device;
    use spectrain_checkpoints::{DType, ModelFolder};
    use spectrain_data::features::{FeatureHeader, FeatureWriter, StoredSample, StoredType};
    use spectrain_models::{Capture, Transformer, load_target};

    use super::*;

    fn target() -> Transformer {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/targets/llama");
        let model = ModelFolder::open(folder).unwrap();
        load_target(&model, &Device::flex(), DType::F32).unwrap()
    }

    fn answers<'a>(decoder: Decoder<'a>, file: PathBuf, identity: &str) -> WrittenAnswers<'a> {
        WrittenAnswers {
            decoder,
            prompts: vec![vec![3, 1, 4, 1], vec![5, 9], vec![]],
            longest: 9,
            stop: Vec::new(),
            file,
            identity: identity.into(),
            known: None,
        }
    }

    /// The tokens of each text.
    fn texts(mut answers: WrittenAnswers) -> Vec<Option<Vec<u32>>> {
        answers.complete(&mut Together(None)).unwrap();
        let texts = (0..answers.prompts.len()).map(|prompt| answers.text(prompt));
        texts.map(|text| text.map(|text| text.tokens)).collect()
    }

    #[test]
    fn behind_an_answer_as_long_as_servers_may_write_nothing_is_drafted() {
        let folder = tempfile::tempdir().unwrap();
        let parts = target().parts();
        let d_model = parts.spec.d_model;
        let header = FeatureHeader {
            target_sha256: String::new(),
            captured_layers: Vec::new(),
            d_model,
            tokens_fingerprint: String::new(),
            dtype: StoredType::Bf16,
        };
        let mut writer = FeatureWriter::open(folder.path(), header, 1).unwrap();
        let last = vec![0; 6 * d_model];
        let sample = StoredSample {
            tokens: &[3, 1, 4, 1, 5, 9],
            loss_mask: &[0, 0, 1, 1, 1, 1],
            captured: [][..].into(),
            last: (&last).into(),
        };
        writer.push(&sample).unwrap();
        writer.finish().unwrap();
        let read = |longest: Option<usize>| {
            let capture = Capture::default();
            let texts = StoredTexts::open(folder.path(), &capture, &parts, |_| Ok(())).unwrap();
            let answers = Answers::Stored(Box::new(StoredAnswers {
                texts,
                longest,
                file: folder.path().join(ANSWERS),
                is_kept: true,
            }));
            (answers.text(0).unwrap().limit, answers.sha256().unwrap())
        };
        let [short, long, any] = [Some(4), Some(7), None].map(read);
        assert_eq!([short.0, long.0, any.0], [6, 9, parts.spec.max_positions]);
        // So what is counted with one limit is no pair of what is counted with another.
        assert_eq!(read(Some(4)), short);
        let all = BTreeSet::from([short.1, long.1, any.1]);
        assert_eq!(all.len(), 3);
    }

    #[test]
    fn the_target_answers_once_for_all_validations_of_a_run() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("answers.json");
        let (target, capture) = (target(), Capture::default());
        let answers = |file, identity| answers(Decoder::new(&target, &capture), file, identity);
        let written = texts(answers(file.clone(), "a"));
        let lengths: Vec<_> = written
            .iter()
            .map(|text| text.as_ref().map(Vec::len))
            .collect();
        assert_eq!(lengths, [Some(13), Some(11), None], "no prompt, no answer");
        assert_eq!(texts(answers(file.clone(), "a")), written);

        // What is kept is read, and not written anew.
        let mut kept: Kept = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
        kept.answers[1].truncate(4);
        fs::write(&file, json!(kept).to_string()).unwrap();
        assert_eq!(texts(answers(file.clone(), "a")), written, "it was damaged");
        kept.sha256 = digest(&kept.answers);
        fs::write(&file, json!(kept).to_string()).unwrap();
        let read = texts(answers(file.clone(), "a"));
        assert_eq!(read[1].as_ref().map(Vec::len), Some(6));

        // What other prompts were validated before is known on.
        let mut fewer = answers(file.clone(), "a");
        fewer.prompts.remove(0);
        texts(fewer);
        let known = Kept::read(&file).unwrap().validated;
        let all: [&[u32]; 3] = [&[3, 1, 4, 1], &[5, 9], &[]];
        assert_eq!(known, BTreeSet::from(all.map(digest_of)));

        // Those of another target are not, nor what is no such file.
        assert_eq!(texts(answers(file.clone(), "b")), written);
        fs::write(&file, "{").unwrap();
        assert_eq!(texts(answers(file, "a")), written);
    }
}
