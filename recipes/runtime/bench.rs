//! What `spectrain bench` times: feature capture, training steps and decoding, of models without any training.
mod sizes;
mod train;

use anyhow::Result;
use burn::prelude::*;
use clap::ValueEnum;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_eval::{DecodeSettings, Decoder, Greedy};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::few_rows::Decoding;
use spectrain_models::weights::held_in;
use spectrain_models::{
    Caches, Capture, DraftShape, Drafter, LogitRows, Pass, Sampling, Session, Target as _, chain,
};

pub(crate) use self::sizes::{Setup, Size};
use self::sizes::{Sizes, Work, batch, target, text};

/// Tokens decoded, after a prompt of [`PROMPT`], with chains of [`DRAFT`].
const DECODED: usize = 64;
const PROMPT: usize = 128;
const DRAFT: usize = 5;
/// Texts of a row where there are several.
const PACKED: usize = 3;

/// What is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Task {
    /// The target's hidden states over a batch.
    Capture,
    /// A training step of EAGLE-3: seven unrolled steps, loss, gradients, clipping, AdamW.
    Train,
    /// One of Medusa: four heads, judged by the text.
    TrainMedusa,
    /// One of DFlash: two layers, 32 blocks of eight a row, judged by the text.
    #[value(name = "train-dflash")]
    TrainDFlash,
    /// One of PARD: a language model of two layers that drafts eight tokens, judged by the text.
    TrainPard,
    /// Plain greedy decoding.
    Plain,
    /// As many passes of the target, each over a draft of five tokens: the cost of verifying, by what it is more than plain decoding.
    Verify,
    /// Speculative greedy decoding with an untrained drafter: the cost of drafting and verifying, without its gain.
    Speculative,
}

impl Task {
    /// Whether it runs without being asked for.
    pub(crate) fn is_usual(self) -> bool {
        !matches!(
            self,
            Self::TrainMedusa | Self::TrainDFlash | Self::TrainPard
        )
    }

    /// Whether it is a training step.
    pub(crate) fn trains(self) -> bool {
        matches!(
            self,
            Self::Train | Self::TrainMedusa | Self::TrainDFlash | Self::TrainPard
        )
    }

    /// Whether it computes over a batch.
    pub(crate) fn has_batch(self) -> bool {
        self == Self::Capture || self.trains()
    }

    /// Tokens of one time.
    pub(crate) fn tokens(self, size: Size) -> usize {
        let sizes = Sizes::of(size);
        match self.has_batch() {
            true => sizes.rows * sizes.length,
            false => DECODED,
        }
    }
}

impl Setup {
    /// Makes everything that a task needs.
    pub(crate) fn work(&self, task: Task) -> Result<Work> {
        let (mut sizes, device) = (Sizes::of(self.size), &self.device);
        sizes.held.int8 = self.int8;
        if self.packed {
            sizes.texts = PACKED;
        }
        match task {
            Task::Capture => capture(&sizes, device),
            Task::Train => train::eagle3(self, &sizes),
            Task::TrainMedusa => train::medusa(self, &sizes),
            Task::TrainDFlash => train::dflash(self, &sizes),
            Task::TrainPard => train::pard(self, &sizes),
            Task::Plain => decode(&sizes, device, Drafting::Off),
            Task::Verify => verify(&sizes, device),
            Task::Speculative => decode(&sizes, device, Drafting::On),
        }
    }
}

fn capture(sizes: &Sizes, device: &Device) -> Result<Work> {
    let target = target(&sizes.spec, sizes.held, device)?;
    let batch = batch(sizes, device);
    let capture = Eagle3::capture(&Eagle3Config::default(), &sizes.spec)?;
    let device = device.clone();
    Ok(Box::new(move || {
        let features = target.features(batch.tokens.clone(), &batch.layout, &capture);
        // Written out, as the stage `features` does.
        let _ = features.captured.into_data();
        device
            .sync()
            .map_err(|error| anyhow::anyhow!("reading from the device: {error}"))
    }))
}

#[derive(Clone, Copy)]
enum Drafting {
    On,
    Off,
}

fn decode(sizes: &Sizes, device: &Device, drafting: Drafting) -> Result<Work> {
    let target = target(&sizes.spec, sizes.held, device)?;
    let capture = Eagle3::capture(&Eagle3Config::default(), &sizes.spec)?;
    let drafter = Eagle3::fresh(
        &Eagle3Config::default(),
        &target.parts(),
        &sizes.vocabulary()?,
        3,
        device,
    )?;
    let compute = target.parts().embed_tokens.weight.val().dtype();
    let mut session = Session::new(held_in(drafter, compute));
    let prompt = text(sizes.spec.vocab, PROMPT);
    let settings = DecodeSettings {
        max_new_tokens: DECODED,
        draft: DraftShape::Chain { length: DRAFT },
        sampling: Sampling::GREEDY,
        stop: Vec::new(),
        shadow: None,
    };
    Ok(Box::new(move || {
        let none = Capture::default();
        let mut rng = StdRng::seed_from_u64(0);
        match drafting {
            Drafting::Off => {
                Decoder::new(&target, &none).plain(&prompt, &settings, &mut rng)?;
            }
            Drafting::On => {
                let decoder = Decoder::new(&target, &capture);
                decoder.generate(&mut session, &Greedy, &prompt, &settings, &mut rng)?;
            }
        }
        Ok(())
    }))
}

/// Passes over the prompt and then over [`DRAFT`] tokens behind the one before, of which that one is kept.
fn verify(sizes: &Sizes, device: &Device) -> Result<Work> {
    let target = target(&sizes.spec, sizes.held, device)?;
    let prompt = text(sizes.spec.vocab, PROMPT);
    let drafted = text(sizes.spec.vocab, 1 + DRAFT);
    let none = Capture::default();
    Ok(Box::new(move || {
        let _decoding = Decoding::begin();
        let mut caches = Caches::new(target.spec().layers, PROMPT + DECODED + DRAFT);
        let mut pass = |tokens: &[u32], logits, kept: usize| {
            let pass = Pass {
                tokens,
                parents: &chain(tokens.len()),
                logits,
            };
            let output = target.decode(pass, &mut caches, &none);
            caches.truncate(kept);
            // The likeliest tokens come to the host, as in a decoder.
            let _ = output.logits.argmax(1).into_data();
        };
        pass(&prompt, LogitRows::Last, PROMPT);
        for done in 1..=DECODED {
            pass(&drafted, LogitRows::All, PROMPT + done);
        }
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use spectrain_checkpoints::DType;
    use spectrain_models::device::test_device;

    use spectrain_train::Divergence;

    use super::sizes::spec;
    use super::*;

    #[test]
    fn every_task_runs_with_a_drawn_target_in_bf16() {
        let device = test_device();
        let setup = Setup {
            size: Size::Qwen3Of8B,
            graph: device.clone().autodiff(),
            device: device.clone(),
            recompute: true,
            int8: false,
            divergence: Divergence::Kl,
            packed: true,
        };
        let sizes = Sizes {
            spec: spec(32, [4, 8], 300),
            draft_vocab: 100,
            held: DType::BF16.into(),
            rows: 2,
            length: 36,
            texts: 3,
        };
        capture(&sizes, &device).unwrap()().unwrap();
        for train in [train::eagle3, train::medusa, train::dflash, train::pard] {
            train(&setup, &sizes).unwrap()().unwrap();
        }
        verify(&sizes, &device).unwrap()().unwrap();
        for drafting in [Drafting::On, Drafting::Off] {
            decode(&sizes, &device, drafting).unwrap()().unwrap();
        }
    }

    #[test]
    fn what_is_drawn_is_neither_zero_nor_the_same_twice() {
        let made = target(&spec(32, [4, 8], 300), DType::BF16.into(), &test_device()).unwrap();
        let tensors = spectrain_models::weights::export(&made);
        let first = |name: &str| {
            let found = tensors.iter().find(|tensor| tensor.name.ends_with(name));
            found.unwrap().to_f32().unwrap()[..4].to_vec()
        };
        let [query, key] = ["0.self_attn.q_proj.weight", "0.self_attn.k_proj.weight"].map(first);
        assert!(query != key && query.iter().all(|value| *value != 0.0));
        assert_eq!(first("0.input_layernorm.weight"), [1.0; 4]);
    }
}
