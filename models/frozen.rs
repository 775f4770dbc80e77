//! What a drafter uses and does not train.
use burn::prelude::*;
use spectrain_data::vocabulary::DraftVocabulary;

use crate::linear::Linear;
use crate::target::TargetParts;
use crate::weights::lift;

/// What a drafter uses and does not train.
#[derive(Debug, Clone)]
pub struct Frozen<Config> {
    /// Its settings, sizes resolved.
    pub config: Config,
    /// Pieces of the target it drafts for, whose sizes are those that its layers are built by: norms, positions and the width of heads
    /// may be its own.
    pub target: TargetParts,
    /// The tokens it can propose.
    pub vocabulary: DraftVocabulary,
    /// The target's rows of the draft vocabulary, `[d_model, draft_vocab]`, where its head is shared but not whole.
    rows: Option<Tensor<2>>,
}

impl<Config> Frozen<Config> {
    /// Of a drafter with a head of its own, or none.
    pub(crate) fn new(config: Config, target: &TargetParts, vocabulary: &DraftVocabulary) -> Self {
        Self {
            config,
            target: target.clone(),
            vocabulary: vocabulary.clone(),
            rows: None,
        }
    }

    /// Of a drafter that shares the target's head if `shared`.
    pub(crate) fn sharing_head(self, shared: bool) -> Self {
        let some = shared && !self.vocabulary.is_full();
        Self {
            rows: some.then(|| self.target.head_rows(&self.vocabulary)),
            ..self
        }
    }

    /// The weight of the drafter's head, `[d_model, draft_vocab]`: of its own, which takes gradients, else of the target's,
    /// in the graph that parameters on `device` are in.
    pub(crate) fn head(&self, own: Option<&Linear>, device: &Device) -> Tensor<2> {
        match (own, &self.rows) {
            (Some(own), _) => own.weight.val(),
            (None, Some(rows)) => lift(rows.clone(), device),
            (None, None) => lift(self.target.lm_head.weight.val(), device),
        }
    }

    /// Parameters of the target's head that a pass reads: none where the drafter has a head of its own.
    pub(crate) fn shared_parameters(&self, own: Option<&Linear>) -> usize {
        let whole = self.target.lm_head.weight.val();
        let used = self.rows.as_ref().unwrap_or(&whole);
        own.map_or(used.dims().iter().product(), |_| 0)
    }
}
