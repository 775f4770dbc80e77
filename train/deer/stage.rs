/// A stage of the training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeerStage {
    /// Masked diffusion over whole replies.
    Adapt,
    /// Masked diffusion behind a cut.
    Align,
    /// All masks, the first ones most.
    Refine,
}

impl DeerStage {
    /// In order.
    pub(super) const ALL: [(&'static str, Self); 3] = [
        ("adapt", Self::Adapt),
        ("align", Self::Align),
        ("refine", Self::Refine),
    ];
}
