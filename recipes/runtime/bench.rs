//! What `spectrain bench` times: feature capture, training steps and decoding, of models without any training.
mod sizes;
mod train;

use anyhow::Result;
use burn::prelude::*;
use clap::ValueEnum;
use rand::{SeedableRng, rngs::StdRng};
use spectrain_eval::{DecodeSettings, Decoder, Greedy, Verifier as _};
use spectrain_models::eagle3::{Eagle3, Eagle3Config};
use spectrain_models::few_rows::Decoding;
use spectrain_models::weights::held_in;
use spectrain_models::{
    Caches, Capture, Draft, DraftShape, Drafter, LogitRows, Pass, Proposal, Sampling, Session,
    Target as _, Transformer, chain,
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
        sizes.held = self.held.unwrap_or(sizes.held);
        sizes.held.int8 = self.int8;
        if self.packed {
            sizes.texts = PACKED;
        }
        sizes.prompts = self.prompts;
        match task {
            Task::Capture => capture(&sizes, device),
            Task::Train => train::eagle3(self, &sizes),
            Task::TrainMedusa => train::medusa(self, &sizes),
            Task::TrainDFlash => train::dflash(self, &sizes),
            Task::TrainPard => train::pard(self, &sizes),
            Task::Plain => decode(&sizes, device, Drafting::Off),
            Task::Verify => Ok(verify(target(&sizes.spec, sizes.held, device)?)),
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
    let compute = target.parts().dtype();
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

/// Passes over the prompt and then over [`DRAFT`] tokens behind the one before, of which that one is kept. What they give is judged as
/// in a decoder.
fn verify(target: Transformer) -> Work {
    let vocab = target.spec().vocab;
    let prompt = text(vocab, PROMPT);
    let tokens = text(vocab, 1 + DRAFT);
    let draft = Draft::chain(tokens[1..].to_vec(), Proposal::Deterministic);
    let none = Capture::default();
    Box::new(move || {
        let _decoding = Decoding::begin();
        let mut rng = StdRng::seed_from_u64(0);
        let mut caches = Caches::new(target.spec().layers, PROMPT + DECODED + DRAFT);
        let mut pass = |tokens: &[u32], draft: &Draft, kept: usize| -> Result<()> {
            let pass = Pass {
                tokens,
                parents: &chain(tokens.len()),
                logits: match draft.is_empty() {
                    true => LogitRows::Last,
                    false => LogitRows::All,
                },
            };
            let output = target.decode(pass, &mut caches, &none);
            Greedy.verify(draft, output.logits, &Sampling::GREEDY, &mut rng)?;
            caches.truncate(kept);
            Ok(())
        };
        pass(&prompt, &Draft::default(), PROMPT)?;
        for done in 1..=DECODED {
            pass(&tokens, &draft, PROMPT + done)?;
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use burn::module::{Module as _, ModuleMapper, Param};
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
            held: None,
            int8: false,
            divergence: Divergence::Kl,
            packed: true,
            prompts: 0.5,
        };
        let sizes = Sizes {
            spec: spec(32, [4, 8], 300),
            draft_vocab: 100,
            held: DType::BF16.into(),
            rows: 2,
            length: 36,
            texts: 3,
            prompts: 0.0,
        };
        capture(&sizes, &device).unwrap()().unwrap();
        for train in [train::eagle3, train::medusa, train::dflash, train::pard] {
            train(&setup, &sizes).unwrap()().unwrap();
        }
        verify(target(&sizes.spec, sizes.held, &device).unwrap())().unwrap();
        for drafting in [Drafting::On, Drafting::Off] {
            decode(&sizes, &device, drafting).unwrap()().unwrap();
        }
    }

    /// Makes every parameter no number.
    struct Broken;

    impl ModuleMapper for Broken {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            Param::initialized(param.id, param.val() * f32::NAN)
        }
    }

    #[test]
    fn what_verify_times_is_a_decoders_judgement_which_refuses_logits_that_are_no_numbers() {
        let made = target(&spec(32, [4, 8], 300), DType::F32.into(), &test_device()).unwrap();
        let error = verify(made.map(&mut Broken))().unwrap_err();
        assert!(matches!(
            error.downcast_ref::<spectrain_eval::Error>(),
            Some(spectrain_eval::Error::Logits { row: 0 })
        ));
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
