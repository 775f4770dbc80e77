//! A module as the list of its tensors: what plans count, and what a folder must hold.

use burn::prelude::*;
use spectrain_checkpoints::{DType, NamedTensor};
use spectrain_data::vocabulary::DraftVocabulary;

use crate::drafter::Drafter;
use crate::error::Result;
use crate::linear::{Bias, Linear};
use crate::norm::RmsNorm;
use crate::target::{SoftCap, TargetParts, TargetSpec};
use crate::transformer::{Transformer, TransformerConfig, embedding};
use crate::weights::{Init, Scope, Weights};

/// The name and the shape of a parameter in files.
pub type Parameter = (String, Vec<usize>);

/// Parameters that have names and shapes and no values: nothing is allocated for them.
#[derive(Debug, Default)]
pub struct Listing(Vec<Parameter>);

impl Weights for Listing {
    fn tensor(&mut self, name: &str, shape: &[usize], _: Init) -> Result<NamedTensor> {
        self.0.push((name.to_owned(), shape.to_vec()));
        Ok(NamedTensor {
            name: name.to_owned(),
            shape: shape.to_vec(),
            dtype: DType::F32,
            // None of the values: see `Scope`.
            bytes: Vec::new(),
        })
    }
}

/// The parameters of a drafter of so many tokens, in the order in which it makes them.
///
/// # Errors
/// The settings do not fit such a target.
pub fn parameters<D: Drafter>(
    config: &D::Config,
    target: &TargetSpec,
    draft_vocab: usize,
) -> Result<Vec<Parameter>> {
    let mut listing = Listing::default();
    hollow_drafter::<D>(config, target, draft_vocab, &mut listing)?;
    Ok(listing.0)
}

/// A drafter whose parameters have no values, for its settings with all sizes filled in.
///
/// # Errors
/// The settings do not fit such a target.
pub fn hollow<D: Drafter>(
    config: &D::Config,
    target: &TargetSpec,
    draft_vocab: usize,
) -> Result<D> {
    hollow_drafter(config, target, draft_vocab, &mut Listing::default())
}

/// The parameters of a decoder of this structure, in the order in which it makes them.
///
/// # Errors
/// None.
pub fn decoder(structure: &TransformerConfig) -> Result<Vec<Parameter>> {
    let (device, mut listing) = (Device::flex(), Listing::default());
    let mut scope = Scope::root(&mut listing, &device, DType::F32);
    Transformer::new(&mut scope, structure.clone())?;
    Ok(listing.0)
}

fn hollow_drafter<D: Drafter>(
    config: &D::Config,
    target: &TargetSpec,
    draft_vocab: usize,
    listing: &mut Listing,
) -> Result<D> {
    let parts = TargetParts::hollow(target)?;
    let vocabulary = if draft_vocab == target.vocab {
        DraftVocabulary::full(target.vocab)
    } else {
        // Which tokens they are makes no difference to sizes.
        DraftVocabulary::from_d2t(&vec![0; draft_vocab], target.vocab)?
    };
    D::new(config, &parts, &vocabulary, listing, &Device::flex())
}

impl TargetParts {
    /// Those of a target of these sizes, without values. Nobody may ask for them.
    ///
    /// # Errors
    /// None.
    pub fn hollow(spec: &TargetSpec) -> Result<Self> {
        let (device, mut listing) = (Device::flex(), Listing::default());
        let mut scope = Scope::root(&mut listing, &device, DType::F32);
        let (vocab, d) = (spec.vocab, spec.d_model);
        Ok(Self {
            embed_tokens: embedding(&mut scope.child("embed_tokens"), vocab, d)?,
            norm: RmsNorm::new(&mut scope.child("norm"), d, spec.norm_epsilon)?,
            lm_head: Linear::new(&mut scope.child("lm_head"), d, vocab, Bias::Without)?,
            soft_cap: SoftCap::default(),
            spec: spec.clone(),
            folder: None,
        })
    }
}
